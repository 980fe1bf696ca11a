// SPDX-License-Identifier: MIT
// SentencePiece's normalization, as model files carry it: which characters become which.
//
// The rules are a trie in a compact double array (Darts-clone), compiled by SentencePiece, and the
// texts they lead to. A unit of 32 bits holds a label (bits 0 to 7), whether a rule ends there (bit
// 8) and the offset to its children (bits 10 to 30, times 256 if bit 9 is set); the value of a
// rule, in a unit of its own, is where its text begins. The longest rule wins.
//
// Errors    Error(kFormat) for what is no such table. A trie that leads astray matches nothing.
// Threads   Immutable after construction.
// Source    SentencePiece's precompiled_charsmap; Yata, Darts-clone.
// Layer     text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"

namespace kvick::inline v0_1 {

class CharacterMap {
 public:
  struct Match {
    std::size_t length = 0;  ///< in bytes; 0: no rule fits
    std::string_view text;   ///< what stands in its place; lives as long as the map
  };

  /// No rules.
  CharacterMap() = default;
  /// `bytes`: the size of the trie in bytes (32 bits), the trie, texts that end with 0 each. Empty
  /// bytes are no rules.
  explicit CharacterMap(std::string_view bytes);

  /// The longest rule for the front of `text`.
  Match find(std::string_view text) const noexcept;

 private:
  /// Longer than any rule in use; keeps the search linear whatever the trie.
  static constexpr std::size_t kMaxRuleBytes = 64;
  /// Longer than any text in use; bounds how much a text may grow.
  static constexpr std::size_t kMaxTextBytes = 256;

  static std::uint32_t offset_of(std::uint32_t unit) noexcept {
    return (unit >> 10) << ((unit & 0x200) >> 6);
  }

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

// ---- Implementation: nothing below is API ----

inline CharacterMap::CharacterMap(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto u32_at = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 4; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    }
    return value;
  };
  constexpr std::string_view kOperation = "CharacterMap";
  detail::require(bytes.size() >= 4, ErrorCode::kFormat, kOperation,
                  "precompiled_charsmap must begin with a size of 4 bytes, got ", bytes.size(),
                  " bytes");
  const std::size_t num_bytes = u32_at(0);
  detail::require(num_bytes > 0 && num_bytes % 4 == 0 && num_bytes <= bytes.size() - 4,
                  ErrorCode::kFormat, kOperation,
                  "the trie of precompiled_charsmap must have whole units within its ",
                  bytes.size(), " bytes, got a size of ", num_bytes);
  units_.resize(num_bytes / 4);
  for (std::size_t i = 0; i < units_.size(); ++i) units_[i] = u32_at(4 + 4 * i);
  texts_ = bytes.substr(4 + num_bytes);
  for (std::size_t begin = 0; begin < texts_.size();) {
    const std::size_t end = std::min(texts_.find('\0', begin), texts_.size());
    detail::require(end - begin <= kMaxTextBytes, ErrorCode::kFormat, kOperation,
                    "texts of precompiled_charsmap must have at most ", kMaxTextBytes,
                    " bytes, got ", end - begin);
    begin = end + 1;
  }
}

inline CharacterMap::Match CharacterMap::find(std::string_view text) const noexcept {
  Match match;
  if (units_.empty()) return match;
  std::size_t node = offset_of(units_[0]);
  for (std::size_t i = 0; i < std::min(text.size(), kMaxRuleBytes); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size()) break;
    const std::uint32_t unit = units_[node];
    if ((unit & 0x800000FF) != byte) break;
    node ^= offset_of(unit);
    const bool ends_a_rule = (unit & 0x100) != 0;
    if (!ends_a_rule) continue;
    if (node >= units_.size()) break;
    const std::size_t begin = units_[node] & 0x7FFFFFFF;
    if (begin >= texts_.size()) break;
    match.length = i + 1;
    match.text = std::string_view(texts_).substr(begin);
    match.text = match.text.substr(0, match.text.find('\0'));
  }
  return match;
}

}  // namespace kvick::inline v0_1
