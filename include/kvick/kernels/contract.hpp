// SPDX-License-Identifier: MIT
// What every kernel computes, to the bit, and the table that holds one implementation of each.
//
// Every implementation computes the same bits (of a NaN only that it is one: hardware picks its
// sign and payload by operand order, which compilers choose). That holds because each reduction has
// one fixed order per output element (one SIMD lane per output, walking the reduced dimension
// upwards), lanes are only joined by the fixed tree of `kPartialSums`, and a product meets an
// addition only inside an explicit fused multiply-add.
//
// Units     All operands are f32 and already in model units (scales applied).
// Errors    None: callers check, once per layer-sized call.
// Threads   Kernels touch only their operands; outputs must not overlap inputs unless said so.
// Layer     kernels: may include core.
#pragma once

#include "kvick/core/cpu.hpp"
#include "kvick/core/matrix.hpp"

namespace kvick::inline v0_1 {

/// Outputs in a weight panel: one zmm, two ymm or sixteen scalars.
inline constexpr int kPanelWidth = 16;

/// Reductions across elements (sum of squares, softmax denominators) keep this many partial sums,
/// element i in partial sum i mod 16, and join them as ((i, i+8), then +4, +2, +1).
inline constexpr int kPartialSums = 16;

/// Joins partial sums by the fixed tree, overwriting them; the total.
inline float join_partial_sums(float* sums) noexcept {
  for (int width = kPartialSums / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

/// Keys in an attention tile; tiles start at absolute positions divisible by it.
inline constexpr int kAttentionTile = 64;

/// Keys in an attention split: tiles of one split share a running softmax, and splits are merged in
/// ascending order, always.
inline constexpr int kAttentionSplit = 1024;

/// Length of a head's row in values and outputs of the attention kernels: a multiple of 16.
constexpr int padded_head_dim(int head_dim) noexcept { return (head_dim + 15) / 16 * 16; }

/// One tile of keys and values in f32. Keys and values that no row sees may hold anything; the
/// padding of a visible value must be finite.
struct AttentionTile {
  const float* keys;    ///< [head_dim][kAttentionTile], lane = key
  const float* values;  ///< [kAttentionTile][padded_head_dim]
  int head_dim;
};

/// One query row against a tile.
struct AttentionRow {
  const float* query;  ///< [head_dim], softmax scale applied
  float* state;        ///< running softmax of this row and split, see AttentionState
  int first_key;       ///< keys [first_key, end_key) of the tile are visible; at least one
  int end_key;
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

/// One function per kernel, all written for the same ISA.
struct KernelTable {
  Isa isa;

  /// acc[m][j] = fma(x[m][k], panel[k][j], acc[m][j]) for k ascending.
  /// panel [depth][16] and acc [rows][16] are 64-byte aligned; x is [rows][depth] with row stride
  /// x_stride in floats.
  void (*accumulate_panel)(const float* panel, Index depth, const float* x, Index x_stride,
                           Index rows, float* acc) noexcept;

  /// Sum of x[i]^2 over `count` values in kPartialSums partial sums, each step one fma.
  float (*sum_of_squares)(const float* x, Index count) noexcept;

  /// out[i] = silu(gate[i]) * up[i], with silu(g) = g / (1 + exp(-g)). out may be gate or up.
  void (*silu_multiply)(const float* gate, const float* up, float* out, Index count) noexcept;

  /// One step of online softmax attention for every row (Milakov & Gimelshein 2018, and Dao et al.
  /// 2022), in this order:
  ///   s[j] = sum over d of fma(query[d], keys[d][j], .), invisible keys -inf;
  ///   m' = max(m, max s) + 0, so that a zero is +0 whichever was met first, NaN scores ignored;
  ///   a = exp(m - r), p[j] = exp(s[j] - r) with r = m', or 0 if m' is -inf (exp(-inf) is 0);
  ///   sums[i] = fma(sums[i], a, (p[i] + p[i+16]) + (p[i+32] + p[i+48]));
  ///   output[d] = output[d] * a, then fma(p[j], values[j][d], .) over visible j ascending.
  void (*attend_tile)(const AttentionTile& tile, const AttentionRow* rows, Index num_rows) noexcept;
};

}  // namespace kvick::inline v0_1
