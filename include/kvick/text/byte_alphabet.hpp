// SPDX-License-Identifier: MIT
// How byte-level BPE spells bytes: each is one printable character, so pieces are readable text
// without spaces.
//
// Bytes that are printable in Latin-1 stand for themselves (! to ~, U+00A1 to U+00AC, U+00AE to
// U+00FF); the other 68, in order, are U+0100 to U+0143. So a space is U+0120, a line feed U+010A.
//
// Threads   Pure functions.
// Source    GPT-2's tokenizer.
// Layer     text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvick/text/unicode_categories.hpp"

namespace kvick::inline v0_1 {

/// The bytes that a piece spells, or nothing if it has characters outside of the alphabet.
inline std::optional<std::string> bytes_of_spelling(std::string_view piece);

/// How byte-level BPE spells bytes.
inline std::string spelling_of_bytes(std::string_view bytes);

// ---- Implementation: nothing below is API ----

namespace detail {

inline constexpr std::uint32_t kFirstByteStandIn = 0x100;
inline constexpr std::size_t kNumByteStandIns = 68;

constexpr bool spells_itself(std::uint32_t byte) noexcept {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

/// The bytes that U+0100, U+0101 ... stand for.
inline constexpr auto kStoodInBytes = [] {
  std::array<unsigned char, kNumByteStandIns> bytes{};
  std::size_t count = 0;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    if (!spells_itself(byte)) bytes[count++] = static_cast<unsigned char>(byte);
  }
  return bytes;
}();

}  // namespace detail

inline std::optional<std::string> bytes_of_spelling(std::string_view piece) {
  std::string bytes;
  while (!piece.empty()) {
    const Character c = front_character(piece);
    piece.remove_prefix(c.num_bytes);
    if (c.code_point < 256 && detail::spells_itself(c.code_point)) {
      bytes += static_cast<char>(c.code_point);
    } else if (c.code_point >= detail::kFirstByteStandIn &&
               c.code_point < detail::kFirstByteStandIn + detail::kNumByteStandIns) {
      bytes += static_cast<char>(detail::kStoodInBytes[c.code_point - detail::kFirstByteStandIn]);
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

inline std::string spelling_of_bytes(std::string_view bytes) {
  std::string piece;
  for (const char c : bytes) {
    auto code_point = static_cast<std::uint32_t>(static_cast<unsigned char>(c));
    if (!detail::spells_itself(code_point)) {
      std::uint32_t rank = 0;
      while (detail::kStoodInBytes[rank] != code_point) ++rank;
      code_point = detail::kFirstByteStandIn + rank;
    }
    if (code_point < 0x80) {
      piece += static_cast<char>(code_point);
    } else {
      piece += static_cast<char>(0xC0 | code_point >> 6);
      piece += static_cast<char>(0x80 | (code_point & 0x3F));
    }
  }
  return piece;
}

}  // namespace kvick::inline v0_1
