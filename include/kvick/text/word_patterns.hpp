// SPDX-License-Identifier: MIT
// The regular expressions by which tokenizers split text, each as a function: the bytes of its
// match at the front of a text, 0 if there is none there. The text ends where the part to be split
// ends; nothing looks behind.
//
// An expression takes the first alternative that matches and, within it, the longest repetitions
// that let the rest match. Where that needs a step back, the function keeps the place to step back
// to, so nothing is scanned more often than a few times.
//
// Threads   Pure functions.
// Layer     text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string_view>

#include "kvick/text/unicode_categories.hpp"

namespace kvick::inline v0_1 {
namespace detail::patterns {

using enum CharacterClass;

inline constexpr CharacterSet kLetter =
    kUpperCase | kLowerCase | kTitleCase | kModifierLetter | kOtherLetter;  // \p{L}
inline constexpr CharacterSet kWordish = kLetter | kNumber;                 // [\p{L}\p{N}]
inline constexpr CharacterSet kSign = kPunctuation | kSymbol;               // [\p{P}\p{S}]

// ---- Steps: each returns where it ends; where it began if it took nothing ----

inline constexpr std::size_t kAnyCount = std::numeric_limits<std::size_t>::max();

/// Up to `max_count` characters for which is_member(Character) holds.
template <class IsMember>
std::size_t skip_if(std::string_view text, std::size_t at, IsMember is_member,
                    std::size_t max_count = kAnyCount) {
  for (; max_count > 0 && at < text.size(); --max_count) {
    const Character c = front_character(text.substr(at));
    if (!is_member(c)) break;
    at += c.num_bytes;
  }
  return at;
}

/// Up to `max_count` characters of `set`.
inline std::size_t skip(std::string_view text, std::size_t at, CharacterSet set,
                        std::size_t max_count = kAnyCount) {
  return skip_if(
      text, at, [set](const Character& c) { return set.contains(c.character_class); }, max_count);
}

/// All bytes that are one of `bytes`, which must be ASCII.
inline std::size_t skip_bytes(std::string_view text, std::size_t at, std::string_view bytes) {
  return std::min(text.find_first_not_of(bytes, at), text.size());
}

/// ` ?`
inline std::size_t skip_space(std::string_view text) { return text.starts_with(' ') ? 1 : 0; }

/// `[^\r\n<set>]?`
inline std::size_t skip_one_outside(std::string_view text, CharacterSet set) {
  if (text.starts_with('\r') || text.starts_with('\n')) return 0;
  return skip(text, 0, ~set, 1);
}

// ---- Parts that expressions share ----

/// `'s|'t|'re|'ve|'m|'ll|'d` at `at`; with `ignores_case`, `(?i:...)`, of ASCII letters.
inline std::size_t skip_contraction(std::string_view text, std::size_t at, bool ignores_case) {
  if (at >= text.size() || text[at] != '\'') return at;
  const auto letter_at = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return ignores_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = letter_at(at + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  const char second = letter_at(at + 2);
  const bool is_pair = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                       (first == 'l' && second == 'l');
  return is_pair ? at + 3 : at;
}

/// `\s+(?!\S)|\s+`: white space but for its last character if text follows, that one if it is
/// alone.
inline std::size_t white_space(std::string_view text) {
  std::size_t last = 0;
  std::size_t end = 0;
  while (end < text.size()) {
    const Character c = front_character(text.substr(end));
    if (c.character_class != kSpace) return last > 0 ? last : end;
    last = end;
    end += c.num_bytes;
  }
  return end;
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: white space up to its last line break if it has one.
inline std::size_t lines_or_white_space(std::string_view text) {
  const std::size_t end = skip(text, 0, kSpace);
  const std::size_t line_break = text.substr(0, end).find_last_of("\r\n");
  return line_break != std::string_view::npos ? line_break + 1 : white_space(text);
}

/// ` ?[<set>]+[<tail>]*`
inline std::size_t spaced_run(std::string_view text, CharacterSet set, std::string_view tail = {}) {
  const std::size_t begin = skip_space(text);
  const std::size_t end = skip(text, begin, set);
  return end == begin ? 0 : skip_bytes(text, end, tail);
}

/// `[^\r\n<outside>]?[<set>]+`
inline std::size_t prefixed_run(std::string_view text, CharacterSet outside, CharacterSet set) {
  const std::size_t begin = skip_one_outside(text, outside);
  const std::size_t end = skip(text, begin, set);
  // Without a run after it, what was taken as the prefix may itself be one.
  return end > begin ? end : skip(text, 0, set);
}

// ---- GPT-2 ----

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
inline std::size_t gpt2(std::string_view text) {
  if (const std::size_t end = skip_contraction(text, 0, false)) return end;
  for (const CharacterSet set : {kLetter, CharacterSet(kNumber), ~(kWordish | kSpace)}) {
    if (const std::size_t end = spaced_run(text, set)) return end;
  }
  return white_space(text);
}

// ---- Llama 3, and Qwen with numbers of one digit ----

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?<letters>+|\p{N}{1,digits}|`
/// ` ?[^\s<letters>\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
inline std::size_t words_of(std::string_view text, CharacterSet letters, std::size_t max_digits) {
  if (const std::size_t end = skip_contraction(text, 0, true)) return end;
  if (const std::size_t end = prefixed_run(text, kWordish, letters)) return end;
  if (const std::size_t end = skip(text, 0, kNumber, max_digits)) return end;
  const CharacterSet rest = ~(letters | kNumber | kSpace);
  if (const std::size_t end = spaced_run(text, rest, "\r\n")) return end;
  return lines_or_white_space(text);
}

/// `<letters>` is `\p{L}`.
template <std::size_t kMaxDigits>
std::size_t llama3(std::string_view text) {
  return words_of(text, kLetter, kMaxDigits);
}

/// `<letters>` is `[\p{L}\p{M}]`.
inline std::size_t qwen35(std::string_view text) { return words_of(text, kLetter | kMark, 1); }

// ---- GPT-4o, and Mistral's Tekken ----

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` at `begin`, which is returned if
/// nothing matches.
inline std::size_t skip_capitalized(std::string_view text, std::size_t begin) {
  constexpr CharacterSet kUpper = kUpperCase | kTitleCase | kModifierLetter | kOtherLetter | kMark;
  constexpr CharacterSet kBoth = kModifierLetter | kOtherLetter | kMark;
  std::size_t step_back = begin;  // behind the last character of both sets
  std::size_t at = begin;
  while (at < text.size()) {
    const Character c = front_character(text.substr(at));
    if (!kUpper.contains(c.character_class)) break;
    at += c.num_bytes;
    if (kBoth.contains(c.character_class)) step_back = at;
  }
  const std::size_t end = skip(text, at, kBoth | kLowerCase);
  return end > at ? end : step_back;
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` at `begin`, likewise.
inline std::size_t skip_capitals(std::string_view text, std::size_t begin) {
  constexpr CharacterSet kBoth = kModifierLetter | kOtherLetter | kMark;
  const std::size_t end = skip(text, begin, kBoth | kUpperCase | kTitleCase);
  return end > begin ? skip(text, end, kBoth | kLowerCase) : begin;
}

/// `[^\r\n\p{L}\p{N}]?` before either of the two, the first one preferred. A mark may be the
/// prefix or belong to the word; the prefix is tried first.
inline std::size_t cased_word(std::string_view text) {
  const std::size_t prefix = skip_one_outside(text, kWordish);
  for (const auto skip_word : {skip_capitalized, skip_capitals}) {
    if (const std::size_t end = skip_word(text, prefix); end > prefix) return end;
    if (const std::size_t end = skip_word(text, 0)) return end;
  }
  return 0;
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
inline std::size_t signs_or_white_space(std::string_view text) {
  if (const std::size_t end = spaced_run(text, ~(kWordish | kSpace), "\r\n/")) return end;
  return lines_or_white_space(text);
}

/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|`
/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|`
/// `\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
inline std::size_t tekken(std::string_view text) {
  if (const std::size_t end = cased_word(text)) return end;
  if (const std::size_t end = skip(text, 0, kNumber, 1)) return end;
  return signs_or_white_space(text);
}

/// The same with `(?i:'s|'t|'re|'ve|'m|'ll|'d)?` at the end of both kinds of words, and
/// `\p{N}{1,3}`.
inline std::size_t gpt4o(std::string_view text) {
  if (const std::size_t end = cased_word(text)) return skip_contraction(text, end, true);
  if (const std::size_t end = skip(text, 0, kNumber, 3)) return end;
  return signs_or_white_space(text);
}

// ---- DeepSeek ----

struct CodePointRange {
  std::uint32_t first;
  std::uint32_t last;
};

/// Whether one of the ranges, which ascend, holds the character.
template <std::size_t kCount>
bool is_in(const CodePointRange (&ranges)[kCount], const Character& c) {
  const auto* const range =
      std::partition_point(std::begin(ranges), std::end(ranges),
                           [&](const CodePointRange& r) { return r.last < c.code_point; });
  return range != std::end(ranges) && range->first <= c.code_point;
}

/// `\s?[<ranges>]+`
template <std::size_t kCount>
std::size_t spaced_ranges(std::string_view text, const CodePointRange (&ranges)[kCount]) {
  const std::size_t begin = skip(text, 0, kSpace, 1);
  const auto is_member = [&](const Character& c) { return is_in(ranges, c); };
  const std::size_t end = skip_if(text, begin, is_member);
  // U+3000, the one space among the ranges, may stand alone.
  return end > begin ? end : skip_if(text, 0, is_member);
}

/// `[\r\n]`
inline std::size_t line_break(std::string_view text) {
  return text.starts_with('\r') || text.starts_with('\n') ? 1 : 0;
}

/// `\s?[A-Za-zµÀ-ÖØ-...]+`: letters with case, but for those of a few scripts, in the order of
/// their code points.
inline std::size_t deepseek_word(std::string_view text) {
  static constexpr CodePointRange kRanges[] = {
      {0x0041, 0x005A},   {0x0061, 0x007A},   {0x00B5, 0x00B5},   {0x00C0, 0x00D6},
      {0x00D8, 0x00F6},   {0x00F8, 0x01BA},   {0x01BC, 0x01BF},   {0x01C4, 0x0293},
      {0x0295, 0x02AF},   {0x0370, 0x0373},   {0x0376, 0x0377},   {0x037B, 0x037D},
      {0x037F, 0x037F},   {0x0386, 0x0386},   {0x0388, 0x038A},   {0x038C, 0x038C},
      {0x038E, 0x03A1},   {0x03A3, 0x03F5},   {0x03F7, 0x0481},   {0x048A, 0x052F},
      {0x0531, 0x0556},   {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
      {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},
      {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},
      {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},
      {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
      {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},
      {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},
      {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},
      {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},
      {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
      {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},
      {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},
      {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
      {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},
      {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
      {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
  };
  return spaced_ranges(text, kRanges);
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`
inline std::size_t deepseek_punctuation(std::string_view text) {
  static constexpr CodePointRange kRanges[] = {{0x21, 0x2F},     {0x3A, 0x7E},
                                               {0x2018, 0x201F}, {0x3000, 0x3002},
                                               {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};
  return spaced_ranges(text, kRanges);
}

/// `[一-龥ࠀ-一가-퟿]+`
inline std::size_t deepseek_cjk(std::string_view text) {
  static constexpr CodePointRange kRanges[] = {{0x0800, 0x9FA5}, {0xAC00, 0xD7FF}};
  return skip_if(text, 0, [](const Character& c) { return is_in(kRanges, c); });
}

/// `[一-龥぀-ゟ゠-ヿ]+`
inline std::size_t deepseek3_cjk(std::string_view text) {
  static constexpr CodePointRange kRanges[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};
  return skip_if(text, 0, [](const Character& c) { return is_in(kRanges, c); });
}

/// `\s?\p{L}+`
inline std::size_t spaced_letters(std::string_view text) {
  const std::size_t begin = skip(text, 0, kSpace, 1);
  const std::size_t end = skip(text, begin, kLetter);
  return end > begin ? end : 0;
}

/// `\s?\p{P}+`
inline std::size_t spaced_punctuation(std::string_view text) {
  const std::size_t begin = skip(text, 0, kSpace, 1);
  const std::size_t end = skip(text, begin, kPunctuation);
  return end > begin ? end : 0;
}

/// `\p{N}`
inline std::size_t number(std::string_view text) { return skip(text, 0, kNumber, 1); }
/// `\p{N}{1,3}`
inline std::size_t up_to_3_numbers(std::string_view text) { return skip(text, 0, kNumber, 3); }
/// `\p{N}+`
inline std::size_t numbers(std::string_view text) { return skip(text, 0, kNumber); }

/// `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|`
/// ` ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
inline std::size_t deepseek3(std::string_view text) {
  const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
  const unsigned char first = static_cast<unsigned char>(text.front());
  if (first < 0x80 && kSign.contains(character_class(first))) {
    const auto* const end = std::find_if_not(text.begin() + 1, text.end(), is_letter);
    if (end > text.begin() + 1) return static_cast<std::size_t>(end - text.begin());
  }
  if (const std::size_t end = prefixed_run(text, kLetter | kSign, kLetter | kMark)) return end;
  if (const std::size_t end = spaced_run(text, kSign, "\r\n")) return end;
  return lines_or_white_space(text);
}

// ---- Falcon ----

/// `[\p{P}\$\+<=>\^~\|`]+`
inline std::size_t falcon_punctuation(std::string_view text) {
  return skip_if(text, 0, [](const Character& c) {
    const bool is_ascii_symbol = c.code_point < 0x80 && c.character_class == kSymbol;
    return c.character_class == kPunctuation || is_ascii_symbol;
  });
}

/// `[0-9][0-9][0-9]`
inline std::size_t three_digits(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return text.size() >= 3 && std::all_of(text.begin(), text.begin() + 3, is_digit) ? 3 : 0;
}

// ---- Bloom ----

/// ` ?[^(\s|.,!?…。，、।۔،)]+`
inline std::size_t bloom(std::string_view text) {
  const auto is_member = [](const Character& c) {
    static constexpr std::uint32_t kExcluded[] = {
        '(', '|', '.', ',', '!', '?', ')', 0x060C, 0x06D4, 0x0964, 0x2026, 0x3001, 0x3002, 0xFF0C};
    return c.character_class != kSpace && std::find(std::begin(kExcluded), std::end(kExcluded),
                                                    c.code_point) == std::end(kExcluded);
  };
  const std::size_t begin = skip_space(text);
  const std::size_t end = skip_if(text, begin, is_member);
  return end > begin ? end : 0;
}

}  // namespace detail::patterns
}  // namespace kvick::inline v0_1
