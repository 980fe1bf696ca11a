// SPDX-License-Identifier: MIT
// UTF-8 as it arrives from outside: well-formed, ill-formed or cut in the middle of a character.
//
// Ill-formed bytes are replaced by the practice of "maximal subparts": the longest run of bytes
// that starts a well-formed character, or else one byte, becomes one U+FFFD. So the result does not
// depend on how the bytes were split over calls, and agrees with browsers and with Python's
// "replace".
//
// Threads   Pure functions.
// Source    Unicode Standard, chapter 3, table 3-7 and "U+FFFD Substitution of Maximal Subparts".
// Layer     text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// U+FFFD, the replacement character, in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// What stands at the front of a text.
struct Utf8Step {
  enum class Kind {
    kCharacter,   ///< one well-formed character
    kIllFormed,   ///< a maximal subpart that no further byte can complete
    kIncomplete,  ///< the text ends inside what may still become a well-formed character
  };
  Kind kind;
  std::size_t num_bytes;  ///< 1 to 4; of kIncomplete 1 to 3
};

/// The first character, or what stands in its place; `text` must not be empty.
constexpr Utf8Step first_utf8_step(std::string_view text) noexcept;

/// Bytes before the first ill-formed or incomplete character: text.size() if all is well-formed.
constexpr std::size_t valid_prefix_length(std::string_view text) noexcept;

constexpr bool is_valid_utf8(std::string_view text) noexcept;

/// Bytes at the end of the text that may still become a character: 0 to 3.
constexpr std::size_t incomplete_suffix_length(std::string_view text) noexcept;

/// Well-formed UTF-8: each maximal subpart of an ill-formed or incomplete character is U+FFFD.
inline std::string sanitize(std::string_view text);

// ---- Implementation: nothing below is API ----

constexpr Utf8Step first_utf8_step(std::string_view text) noexcept {
  using Kind = Utf8Step::Kind;
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Kind::kCharacter, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Kind::kIllFormed, 1};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Kind::kIncomplete, i};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) {
      return {Kind::kIllFormed, i};
    }
  }
  return {Kind::kCharacter, length};
}

constexpr std::size_t valid_prefix_length(std::string_view text) noexcept {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = first_utf8_step(text.substr(length));
    if (step.kind != Utf8Step::Kind::kCharacter) break;
    length += step.num_bytes;
  }
  return length;
}

constexpr bool is_valid_utf8(std::string_view text) noexcept {
  return valid_prefix_length(text) == text.size();
}

constexpr std::size_t incomplete_suffix_length(std::string_view text) noexcept {
  // Only one suffix starts with a lead byte and continues to the end of the text.
  for (std::size_t length = 1; length <= 3 && length <= text.size(); ++length) {
    const Utf8Step step = first_utf8_step(text.substr(text.size() - length));
    if (step.kind == Utf8Step::Kind::kIncomplete) return length;
  }
  return 0;
}

inline std::string sanitize(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (;;) {
    const std::size_t valid = valid_prefix_length(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) return out;
    out += kReplacementCharacter;
    text.remove_prefix(first_utf8_step(text).num_bytes);
  }
}

}  // namespace kvick::inline v0_1
