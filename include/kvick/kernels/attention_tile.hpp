// SPDX-License-Identifier: MIT
// The operands of the attention kernels: stored rows, tiles of keys and values, query rows and
// their running softmax.
//
// Shapes    See each member. Heads are padded to whole vectors of 16 floats.
// Layer     kernels: may include core.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvick/core/element_type.hpp"
#include "kvick/core/version.hpp"
#include "kvick/kernels/lanes.hpp"

namespace kvick::inline v0_1 {

/// Keys in an attention tile; tiles start at absolute positions divisible by it.
inline constexpr int kAttentionTile = 64;

/// Keys in an attention split: tiles of one split share a running softmax, and splits are merged in
/// ascending order, always.
inline constexpr int kAttentionSplit = 1024;

/// Length of a head's row in values and outputs of the attention kernels: a multiple of 16.
constexpr int padded_head_dim(int head_dim) noexcept { return (head_dim + 15) / 16 * 16; }

/// Rows of one head as a cache stores them: keys or values of consecutive positions.
struct ElementRows {
  ElementType type;
  const std::byte* data;        ///< first row, aligned for the type; elements of a row are adjacent
  std::ptrdiff_t stride_bytes;  ///< from one row to the next, a multiple of the element's size
  int num_rows;
  int head_dim;  ///< elements per row
  /// As many rows that will be loaded soon, for which memory is asked meanwhile; or null. Loading
  /// never reads them, so they need not be valid.
  const std::byte* upcoming = nullptr;
  const float* scales = nullptr;  ///< [num_rows], of kInt8 only
};

/// Elements of int8 keys and queries are multiplied four at a time; a last group is filled with
/// zeros.
inline constexpr int kInt8Group = 4;

constexpr int num_int8_groups(int head_dim) noexcept {
  return (head_dim + kInt8Group - 1) / kInt8Group;
}

/// One tile of keys and values in f32, or of int8 keys and f32 values. Keys and values that no row
/// sees may hold anything; the padding of a visible value must be finite.
struct AttentionTile {
  const float* keys;    ///< [head_dim][kAttentionTile], lane = key; null for int8
  const float* values;  ///< [kAttentionTile][padded_head_dim]
  int head_dim;
  const std::int8_t* int8_keys = nullptr;  ///< [num_int8_groups][kAttentionTile][kInt8Group]
  const float* key_scales = nullptr;       ///< [kAttentionTile], of int8 keys
};

/// A query for int8 keys: about scale * values, softmax scale applied.
struct Int8Query {
  const std::int8_t* values;  ///< [num_int8_groups * kInt8Group], in [-127, 127]
  float scale;
  std::int32_t minus_sum;  ///< -(sum of values)
};

/// One query row against a tile.
struct AttentionRow {
  const float* query;  ///< [head_dim], softmax scale applied
  float* state;        ///< running softmax of this row and split, see AttentionState
  int first_key;       ///< keys [first_key, end_key) of the tile are visible; at least one
  int end_key;
  Int8Query int8_query = {};  ///< in place of `query` where keys are int8
};

/// Consecutive keys and values of one tile as a cache stores them, with room to load the tile.
struct StoredTile {
  ElementRows keys;
  ElementRows values;       ///< of the same positions
  const float* key_scales;  ///< [rows], of kInt8 only
  int first_key;            ///< place in the tile of the first row
  float* key_room;          ///< [head_dim][kAttentionTile], 64-byte aligned
  float* value_room;        ///< [kAttentionTile][padded_head_dim], 64-byte aligned
  float* scale_room;        ///< [kAttentionTile], 64-byte aligned
};

/// Layout of AttentionRow::state: 16 partial sums of exp(score - max), the unnormalized output, and
/// the running maximum. A fresh state is all zeros with maximum -inf.
struct AttentionState {
  static constexpr int kSums = 0;
  static constexpr int kOutput = kPartialSums;
  static constexpr int max_offset(int head_dim) { return kOutput + padded_head_dim(head_dim); }
  /// Floats per row; keeps rows 64-byte aligned.
  static constexpr int stride(int head_dim) { return max_offset(head_dim) + kPartialSums; }
};

}  // namespace kvick::inline v0_1
