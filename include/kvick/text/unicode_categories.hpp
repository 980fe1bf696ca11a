// SPDX-License-Identifier: MIT
// Classes of characters, as the splitting rules of tokenizers need them: Unicode's general
// categories, with numbers, punctuation, symbols and marks each as one class, and white space.
//
// The classes do not overlap: white space is exactly what has the property White_Space, which
// includes all separators and a few control characters. Tables of 38 KiB; a lookup reads two bytes.
//
// Threads   Pure functions.
// Source    Unicode 15, UnicodeData.txt and PropList.txt (Debian's package unicode-data).
// Layer     text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvick/text/impl/unicode_tables.hpp"
#include "kvick/text/utf8.hpp"

namespace kvick::inline v0_1 {

/// The order is that of the letters in the tables.
enum class CharacterClass : std::uint8_t {
  kOther,           ///< control, format, private, unassigned; also bytes that are no UTF-8
  kUpperCase,       ///< Lu
  kLowerCase,       ///< Ll
  kTitleCase,       ///< Lt
  kModifierLetter,  ///< Lm
  kOtherLetter,     ///< Lo
  kMark,            ///< M
  kNumber,          ///< N
  kPunctuation,     ///< P
  kSymbol,          ///< S
  kSpace,           ///< White_Space
};

/// The class of a code point; kOther for what is none.
constexpr CharacterClass character_class(std::uint32_t code_point) noexcept;

/// Some of the classes.
class CharacterSet {
 public:
  constexpr CharacterSet(CharacterClass member) noexcept  // NOLINT: a class is a set
      : bits_(static_cast<std::uint16_t>(1u << static_cast<unsigned>(member))) {}

  constexpr bool contains(CharacterClass c) const noexcept {
    return (bits_ >> static_cast<unsigned>(c) & 1) != 0;
  }
  constexpr CharacterSet operator|(CharacterSet other) const noexcept {
    return CharacterSet(static_cast<std::uint16_t>(bits_ | other.bits_));
  }
  /// All other classes.
  constexpr CharacterSet operator~() const noexcept {
    return CharacterSet(static_cast<std::uint16_t>(~bits_));
  }

 private:
  constexpr explicit CharacterSet(std::uint16_t bits) noexcept : bits_(bits) {}

  std::uint16_t bits_;
};

constexpr CharacterSet operator|(CharacterClass a, CharacterClass b) noexcept {
  return CharacterSet(a) | CharacterSet(b);
}

/// What stands at the front of a text: a character, or one byte that is no part of one.
struct Character {
  std::uint32_t code_point;  ///< kNoCodePoint for such a byte
  std::size_t num_bytes;
  CharacterClass character_class;

  static constexpr std::uint32_t kNoCodePoint = 0xFFFFFFFF;
};

/// `text` must not be empty.
constexpr Character front_character(std::string_view text) noexcept;

// ---- Implementation: nothing below is API ----

constexpr CharacterClass character_class(std::uint32_t code_point) noexcept {
  if (code_point >= detail::kFirstSparseCodePoint) {
    const bool is_mark =
        code_point >= detail::kFirstSparseMark && code_point <= detail::kLastSparseMark;
    return is_mark ? CharacterClass::kMark : CharacterClass::kOther;
  }
  const std::size_t block = detail::kUnicodeBlockIndex[code_point / 128];
  return static_cast<CharacterClass>(detail::kUnicodeClassLetters[block * 128 + code_point % 128] -
                                     'a');
}

constexpr Character front_character(std::string_view text) noexcept {
  const auto byte = [text](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, character_class(lead)};
  const Utf8Step step = first_utf8_step(text);
  if (step.kind != Utf8Step::Kind::kCharacter) {
    return {Character::kNoCodePoint, 1, CharacterClass::kOther};
  }
  // A lead byte of a character of n bytes has 7 - n bits of its own, every other byte has 6.
  std::uint32_t code_point = lead & (0x7Fu >> step.num_bytes);
  for (std::size_t i = 1; i < step.num_bytes; ++i) code_point = code_point << 6 | (byte(i) & 0x3F);
  return {code_point, step.num_bytes, character_class(code_point)};
}

}  // namespace kvick::inline v0_1
