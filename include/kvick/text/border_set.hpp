// SPDX-License-Identifier: MIT
// Where tokens may join: the borders between bytes that lie within some piece.
//
// Two bytes that stand side by side in no piece are never merged over, so a text can be cut there
// first and each cut be tokenized on its own. With today's vocabularies that is before every word
// of English, and between most words of Chinese, which has no spaces.
//
// A border is known by the byte before it and the character after it, hashed into a set of bits.
// Noting too many costs speed, not correctness.
//
// Threads   Immutable once filled.
// Layer     text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

class BorderSet {
 public:
  /// A set of 2^num_bits bits; `num_bits` from 6 to 32.
  explicit BorderSet(int num_bits)
      : shift_(64 - num_bits), words_(std::size_t{1} << (num_bits - 6)) {}

  /// Notes the borders within `piece`, which may begin and end within a character.
  void note(std::string_view piece);

  /// Whether the border of `text` before byte `at` may lie within a piece; at > 0.
  bool may_join(std::string_view text, std::size_t at) const noexcept;

 private:
  std::uint64_t hash(char left, std::string_view bytes) const noexcept;

  int shift_;
  std::vector<std::uint64_t> words_;
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// Bytes of the character that starts with `lead`, if it is well-formed; 1 for a continuation byte.
constexpr std::size_t character_bytes(char lead) noexcept {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// The character at the front of `text`, clipped at the end.
constexpr std::string_view first_character(std::string_view text) noexcept {
  return text.substr(0, character_bytes(text.front()));
}

}  // namespace detail

inline std::uint64_t BorderSet::hash(char left, std::string_view bytes) const noexcept {
  std::uint64_t key = static_cast<unsigned char>(left);
  for (const char c : bytes) key = key << 8 | static_cast<unsigned char>(c);
  return (key * 0x9E3779B97F4A7C15u) >> shift_;
}

/// Every byte counts as the start of a character: continuation bytes are characters of one byte.
inline void BorderSet::note(std::string_view piece) {
  for (std::size_t at = 1; at < piece.size(); ++at) {
    const std::uint64_t bit = hash(piece[at - 1], detail::first_character(piece.substr(at)));
    words_[bit / 64] |= std::uint64_t{1} << bit % 64;
  }
}

/// A piece may end within the character, so its shorter beginnings are looked for as well.
inline bool BorderSet::may_join(std::string_view text, std::size_t at) const noexcept {
  const std::string_view character = detail::first_character(text.substr(at));
  for (std::size_t length = character.size(); length > 0; --length) {
    const std::uint64_t bit = hash(text[at - 1], character.substr(0, length));
    if ((words_[bit / 64] >> bit % 64 & 1) != 0) return true;
  }
  return false;
}

}  // namespace kvick::inline v0_1
