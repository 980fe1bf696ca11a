// SPDX-License-Identifier: MIT
// What every kernel computes, to the bit, and the table that holds one implementation of each.
//
// Every implementation computes the same bits (of a NaN only that it is one: hardware picks its
// sign and payload by operand order, which compilers choose). That holds because each reduction has
// one fixed order per output element (one SIMD lane per output, walking the reduced dimension
// upwards), lanes are only joined by the fixed tree of `kPartialSums`, and a product meets an
// addition only inside an explicit fused multiply-add.
//
// Units     Floats are in model units (scales applied).
// Errors    None: callers check, once per layer-sized call.
// Threads   Kernels touch only their operands; outputs must not overlap inputs unless said so.
// Layer     kernels: may include core.
#pragma once

#include <cstddef>

#include "kvick/core/cpu.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/kernels/attention_tile.hpp"
#include "kvick/kernels/lanes.hpp"
#include "kvick/kernels/packed_format.hpp"

namespace kvick::inline v0_1 {

/// Kernels may write outputs, and read quantized rows, up to a multiple of this many rows.
inline constexpr Index kRowTile = 8;

/// Bytes of 64-byte aligned scratch that the multiplications work in.
inline constexpr std::size_t kMultiplyScratchBytes = std::size_t{64} << 10;

/// One function per kernel, all written for the same ISA.
struct KernelTable {
  Isa isa;

  /// Packed weights times int8 activations, for any quantized format:
  ///   out[m][16 p + j] = the sum, over groups g ascending from +0, of
  ///                      fma(weight_scale * scale, float(dot), .)
  ///                      then, with minimums, fma(minimum, scaled_sum, .),
  /// where dot is the exact sum of the products of the group's integers, and weight_scale of output
  /// 16 p + j and scale of row m are those of the group. Formats with half scales take each half of
  /// a group as a group, the first 16 inputs first. Formats that are per channel have one exact dot
  /// over all inputs (at most kMaxChannelInputs) and out = (channel_scale * row scale) *
  /// float(dot). `out` is [rows][num_panels * 16], 64-byte aligned; see kRowTile.
  void (*multiply_int8)(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                        float* out, std::byte* scratch) noexcept;

  /// Packed weights times float activations, for any format:
  ///   out[m][16 p + j] = the sum, over inputs k ascending from +0, of fma(x[m][k], w, .),
  /// where w is weight k of output 16 p + j: scale * integer, rounded once, or with minimums
  /// fma(scale, integer, minimum). x is [rows][in_features] with row stride x_stride in floats, and
  /// is read no further. `out` as for multiply_int8.
  void (*multiply_float)(const PackedPanels& weights, const float* x, Index x_stride, Index rows,
                         float* out, std::byte* scratch) noexcept;

  /// Quantizes each group of 32 values: with a = max |x|, scale = a / 127 and values =
  /// round_to_even(x * (127 / a)), clamped to [-127, 127]; all zeros if a < 2^-100. A group with a
  /// NaN or an infinity gets scale NaN and zeros, so that every output of its row becomes NaN.
  /// A shorter last group is filled up with zeros.
  void (*quantize_groups)(const float* x, Index count, QuantizedGroup* groups) noexcept;

  /// The same with the maximum of the whole row; every group gets its scale.
  QuantizedRowTotal (*quantize_row)(const float* x, Index count, QuantizedGroup* groups) noexcept;

  /// Sum of x[i]^2 over `count` values in kPartialSums partial sums, each step one fma.
  float (*sum_of_squares)(const float* x, Index count) noexcept;

  /// out[i] = silu(gate[i]) * up[i], with silu(g) = g / (1 + exp(-g)). out may be gate or up.
  void (*silu_multiply)(const float* gate, const float* up, float* out, Index count) noexcept;

  /// One step of online softmax attention for every row (Milakov & Gimelshein 2018, and Dao et al.
  /// 2022), in this order:
  ///   s[j] = sum over d of fma(query[d], keys[d][j], .), invisible keys -inf;
  ///          with int8 keys fma(float(exact dot), query scale * key scale, +0);
  ///   m' = max(m, max s) + 0, so that a zero is +0 whichever was met first, NaN scores ignored;
  ///   a = exp(m - r), p[j] = exp(s[j] - r) with r = m', or 0 if m' is -inf (exp(-inf) is 0);
  ///   sums[i] = fma(sums[i], a, (p[i] + p[i+16]) + (p[i+32] + p[i+48]));
  ///   output[d] = output[d] * a, then fma(p[j], values[j][d], .) over visible j ascending.
  void (*attend_tile)(const AttentionTile& tile, const AttentionRow* rows, Index num_rows) noexcept;

  /// What load_keys, load_values and attend_tile compute together. Every key that a row sees is
  /// among those stored. A kernel may read few rows' elements where they are stored.
  void (*attend_stored_tile)(const StoredTile& tile, const AttentionRow* rows,
                             Index num_rows) noexcept;

  /// state = state merged with `later`, the softmax of later keys (see AttentionState):
  ///   m' = max(m, later.m); u = exp(m - r); v = exp(later.m - r) with r as above;
  ///   sums and output: x = fma(later.x, v, x * u).
  void (*merge_states)(float* state, const float* later, int head_dim) noexcept;

  /// Keys of a tile, converted exactly: lanes[d * kAttentionTile + j] = element d of row j. Writes
  /// nothing else, so that a tile may be loaded in parts. `lanes` needs no alignment. Of kInt8,
  /// whose rows are padded to whole groups and aligned to them, groups of four bytes are moved as
  /// if each were a float: the layout of AttentionTile::int8_keys.
  void (*load_keys)(const ElementRows& keys, float* lanes) noexcept;

  /// Values of a tile, converted exactly: [num_rows][padded_head_dim], the padding zeros. Of kInt8,
  /// float(element) * scale of its row, one rounding.
  void (*load_values)(const ElementRows& rows, float* values) noexcept;

  /// Converts floats to `type`, which is not kInt8: rounded to nearest even, with the bits of
  /// f16(x) and bf16(x). `to` is aligned for the type.
  void (*store_elements)(ElementType type, const float* from, Index count, std::byte* to) noexcept;
};

}  // namespace kvick::inline v0_1
