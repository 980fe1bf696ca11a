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
#include "kvick/kernels/attention_tile.hpp"
#include "kvick/kernels/lanes.hpp"

namespace kvick::inline v0_1 {

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
