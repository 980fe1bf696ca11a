// SPDX-License-Identifier: MIT
// From stored blocks to packed panels: the integers and scales of one output and group.
//
// Integers travel as words of four bytes, as unsigned as panels store them: word s holds step s,
// inputs 4 s to 4 s + 3 of the group.
//
// Layer     quant: may include core, kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvick/core/half.hpp"
#include "kvick/kernels/packed_format.hpp"
#include "kvick/quant/block_layouts.hpp"

namespace kvick::inline v0_1 {

// ---- Implementation: nothing below is API ----

namespace detail {

using GroupWords = std::array<std::uint32_t, kGroupSteps>;

inline std::uint32_t load_word(const void* from) noexcept {
  std::uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

inline constexpr std::uint32_t kLowNibbles = 0x0f0f0f0f;

/// The low four bits of bit s of four bytes, each in a byte of its own.
constexpr std::uint32_t spread_bits(std::uint32_t four) noexcept {
  return ((four & 15) * 0x00204081u) & 0x01010101u;
}

/// 16 bytes whose low nibbles are inputs 0 to 15 and whose high ones 16 to 31.
inline GroupWords split_nibbles(const std::uint8_t* bytes) noexcept {
  GroupWords words;
  for (std::size_t s = 0; s < 4; ++s) {
    const std::uint32_t pair = load_word(bytes + 4 * s);
    words[s] = pair & kLowNibbles;
    words[s + 4] = (pair >> 4) & kLowNibbles;
  }
  return words;
}

/// Adds 16 where bit j of `bits`, for input j, is set.
inline void add_fifth_bits(std::uint32_t bits, GroupWords& words) noexcept {
  for (std::size_t s = 0; s < words.size(); ++s) words[s] |= spread_bits(bits >> (4 * s)) << 4;
}

inline GroupWords group_words(const BlockQ8_0& block, int /*group*/) noexcept {
  GroupWords words;
  for (std::size_t s = 0; s < words.size(); ++s) {
    words[s] = load_word(block.qs + 4 * s) ^ 0x80808080u;  // int8 + 128
  }
  return words;
}

inline GroupWords group_words(const BlockQ4_0& block, int /*group*/) noexcept {
  return split_nibbles(block.qs);
}

inline GroupWords group_words(const BlockQ4_1& block, int /*group*/) noexcept {
  return split_nibbles(block.qs);
}

inline GroupWords group_words(const BlockQ5_0& block, int /*group*/) noexcept {
  GroupWords words = split_nibbles(block.qs);
  add_fifth_bits(load_word(block.qh), words);
  return words;
}

inline GroupWords group_words(const BlockQ5_1& block, int /*group*/) noexcept {
  GroupWords words = split_nibbles(block.qs);
  add_fifth_bits(load_word(block.qh), words);
  return words;
}

/// Groups 2 a and 2 a + 1 are the low and high nibbles of bytes 32 a to 32 a + 31.
inline GroupWords k_nibbles(const std::uint8_t (&qs)[128], int group) noexcept {
  GroupWords words;
  for (std::size_t s = 0; s < words.size(); ++s) {
    const std::uint32_t pair = load_word(qs + 32 * (group / 2) + 4 * s);
    words[s] = (pair >> (4 * (group % 2))) & kLowNibbles;
  }
  return words;
}

inline GroupWords group_words(const BlockQ4_K& block, int group) noexcept {
  return k_nibbles(block.qs, group);
}

inline GroupWords group_words(const BlockQ5_K& block, int group) noexcept {
  GroupWords words = k_nibbles(block.qs, group);
  for (std::size_t s = 0; s < words.size(); ++s) {
    words[s] |= ((load_word(block.qh + 4 * s) >> group) & 0x01010101u) << 4;
  }
  return words;
}

/// Groups 4 h + t: low bits in the nibbles of ql, two high bits at 2 t of qh.
inline GroupWords group_words(const BlockQ6_K& block, int group) noexcept {
  const int half = group / 4;
  const int t = group % 4;
  GroupWords words;
  for (std::size_t s = 0; s < words.size(); ++s) {
    const std::uint32_t low = load_word(block.ql + 64 * half + 32 * (t % 2) + 4 * s);
    const std::uint32_t high = load_word(block.qh + 32 * half + 4 * s);
    words[s] = ((low >> (4 * (t / 2))) & kLowNibbles) | ((high >> (2 * t)) & 0x03030303u) << 4;
  }
  return words;
}

/// Writes a group of output j of a panel; `group` is where the group's integers begin.
inline void store_words(PackedIntegers kind, const GroupWords& words, int j,
                        std::byte* group) noexcept {
  const auto store = [&](std::size_t vector, std::uint32_t word) {
    std::memcpy(group + vector * kVectorBytes + j * kStepSize, &word, sizeof word);
  };
  if (kind == PackedIntegers::kBytes) {
    for (std::size_t s = 0; s < words.size(); ++s) store(s, words[s]);
    return;
  }
  for (std::size_t s = 0; s < 4; ++s) {
    store(s, (words[s] & kLowNibbles) | (words[s + 4] & kLowNibbles) << 4);
  }
  if (kind == PackedIntegers::kNibblesPlus1Bit) {
    std::uint32_t fifth = 0;
    for (std::size_t s = 0; s < words.size(); ++s) fifth |= ((words[s] >> 4) & 0x01010101u) << s;
    store(4, fifth);
  }
  if (kind == PackedIntegers::kNibblesPlus2Bits) {
    for (std::size_t half = 0; half < 2; ++half) {
      std::uint32_t high = 0;
      for (std::size_t s = 0; s < 4; ++s) {
        high |= ((words[4 * half + s] >> 4) & 0x03030303u) << (2 * s);
      }
      store(4 + half, high);
    }
  }
}

inline void store_f16(std::byte* lanes, int j, f16 value) noexcept {
  std::memcpy(lanes + 2 * j, &value, sizeof value);
}

// Scales of output j: `unit` is where the unit begins, `group` the block's place in it.

template <class Block>
void store_scales(const Block& block, int group, int j, std::byte* unit) noexcept {
  if constexpr (requires { block.m; }) {
    store_f16(unit, j, block.d);
    store_f16(unit + 2 * kPanelWidth, j, block.m);
  } else {
    store_f16(unit + 2 * kPanelWidth * group, j, block.d);
  }
}

template <class Block>
void store_k_scales(const Block& block, int j, std::byte* unit) noexcept {
  store_f16(unit, j, block.d);
  store_f16(unit + 2 * kPanelWidth, j, block.dmin);
  std::byte* const planes = unit + 4 * kPanelWidth;
  for (int i = 0; i < 12; ++i) planes[i * kPanelWidth + j] = std::byte{block.scales[i]};
}

inline void store_scales(const BlockQ4_K& block, int /*group*/, int j, std::byte* unit) noexcept {
  store_k_scales(block, j, unit);
}

inline void store_scales(const BlockQ5_K& block, int /*group*/, int j, std::byte* unit) noexcept {
  store_k_scales(block, j, unit);
}

inline void store_scales(const BlockQ6_K& block, int /*group*/, int j, std::byte* unit) noexcept {
  store_f16(unit, j, block.d);
  std::byte* const planes = unit + 4 * kPanelWidth;
  for (int i = 0; i < 16; ++i) {
    planes[i * kPanelWidth + j] = static_cast<std::byte>(block.scales[i]);
  }
}

/// Writes one stored row of `num_blocks` blocks as output j of a panel.
template <class Block>
void pack_row(const PackedLayout& layout, const std::byte* row, Index num_blocks, int j,
              std::byte* panel) noexcept {
  constexpr int kGroups = static_cast<int>(kBlockValues<Block>) / kGroupSize;
  for (Index b = 0; b < num_blocks; ++b) {
    Block block;
    std::memcpy(&block, row + b * static_cast<Index>(sizeof block), sizeof block);
    const Index first = b * kGroups;  // groups of the row before this block
    const auto place = static_cast<int>(first % layout.groups_per_unit);
    std::byte* const unit = panel + first / layout.groups_per_unit * layout.unit_bytes();
    store_scales(block, place, j, unit);
    for (int g = 0; g < kGroups; ++g) {
      store_words(layout.integers, group_words(block, g), j,
                  unit + layout.scale_bytes + (place + g) * layout.group_bytes());
    }
  }
}

}  // namespace detail
}  // namespace kvick::inline v0_1
