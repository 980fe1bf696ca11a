// SPDX-License-Identifier: MIT
// Kernels for CPUs with AVX2, FMA and F16C: two ymm registers hold the 16 lanes of the contract.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstring>
#include <limits>

#include "kvick/core/math.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"

namespace kvick::inline v0_1::detail::avx2 {

/// exp of 8 lanes: the sequence of math::exp(float), lane by lane.
KVICK_AVX2_INLINE __m256 exp8(__m256 x) noexcept {
  const __m256 shift = _mm256_set1_ps(math::kExpShift);
  const __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(math::kExpLog2E), shift);
  const __m256 n = _mm256_sub_ps(t, shift);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(math::kExpLn2High), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(math::kExpLn2Low), r);
  __m256 p = _mm256_set1_ps(math::kExpCoefficients[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) {
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(math::kExpCoefficients[static_cast<unsigned>(i)]));
  }
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  __m256 y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  const __m256 infinity = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  const __m256 above = _mm256_cmp_ps(x, _mm256_set1_ps(math::kExpMax), _CMP_GT_OQ);
  const __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(math::kExpMin), _CMP_LT_OQ);
  y = _mm256_andnot_ps(below, _mm256_blendv_ps(y, infinity, above));
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/// The fixed tree over partial sums 0..7 and 8..15.
KVICK_AVX2_INLINE float join(__m256 low, __m256 high) noexcept {
  const __m256 by8 = _mm256_add_ps(low, high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}

/// Accumulates `kRows` rows at once; 4 rows are 8 independent chains, enough to hide the latency of
/// the fma, and fit 16 registers.
template <int kRows>
KVICK_AVX2_INLINE void accumulate_rows(const float* panel, Index depth, const float* x,
                                       Index x_stride, float* acc) noexcept {
  __m256 low[kRows];
  __m256 high[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    low[m] = _mm256_load_ps(acc + m * kPanelWidth);
    high[m] = _mm256_load_ps(acc + m * kPanelWidth + 8);
  }
  for (Index k = 0; k < depth; ++k) {
    const __m256 weights_low = _mm256_load_ps(panel + k * kPanelWidth);
    const __m256 weights_high = _mm256_load_ps(panel + k * kPanelWidth + 8);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const __m256 value = _mm256_set1_ps(x[m * x_stride + k]);
      low[m] = _mm256_fmadd_ps(value, weights_low, low[m]);
      high[m] = _mm256_fmadd_ps(value, weights_high, high[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    _mm256_store_ps(acc + m * kPanelWidth, low[m]);
    _mm256_store_ps(acc + m * kPanelWidth + 8, high[m]);
  }
}

KVICK_AVX2 inline void accumulate_panel(const float* panel, Index depth, const float* x,
                                        Index x_stride, Index rows, float* acc) noexcept {
  constexpr int kTile = 4;
  Index m = 0;
  for (; m + kTile <= rows; m += kTile) {
    accumulate_rows<kTile>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
  for (; m < rows; ++m) {
    accumulate_rows<1>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
}

KVICK_AVX2 inline float sum_of_squares(const float* x, Index count) noexcept {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  Index i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
    const __m256 v_low = _mm256_loadu_ps(x + i);
    const __m256 v_high = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(v_low, v_low, low);
    high = _mm256_fmadd_ps(v_high, v_high, high);
  }
  if (i < count) {
    alignas(32) float tail[kPartialSums] = {};
    std::memcpy(tail, x + i, static_cast<std::size_t>(count - i) * sizeof(float));
    const __m256 v_low = _mm256_load_ps(tail);
    const __m256 v_high = _mm256_load_ps(tail + 8);
    low = _mm256_fmadd_ps(v_low, v_low, low);
    high = _mm256_fmadd_ps(v_high, v_high, high);
  }
  return join(low, high);
}

KVICK_AVX2_INLINE __m256 silu_multiply8(__m256 gate, __m256 up) noexcept {
  const __m256 negated = _mm256_xor_ps(gate, _mm256_set1_ps(-0.0f));
  const __m256 denominator = _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(negated));
  return _mm256_mul_ps(_mm256_div_ps(gate, denominator), up);
}

KVICK_AVX2 inline void silu_multiply(const float* gate, const float* up, float* out,
                                     Index count) noexcept {
  Index i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, silu_multiply8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  }
  if (i < count) {
    const std::size_t tail_bytes = static_cast<std::size_t>(count - i) * sizeof(float);
    alignas(32) float g[8] = {};
    alignas(32) float u[8] = {};
    std::memcpy(g, gate + i, tail_bytes);
    std::memcpy(u, up + i, tail_bytes);
    _mm256_store_ps(g, silu_multiply8(_mm256_load_ps(g), _mm256_load_ps(u)));
    std::memcpy(out + i, g, tail_bytes);
  }
}

/// output[8 kVectors] = output * rescale, then fma over the visible keys.
template <int kVectors>
KVICK_AVX2_INLINE void add_values(const float* values, Index stride, const float* p, int first,
                                  int end, __m256 rescale, float* output) noexcept {
  __m256 sums[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    sums[v] = _mm256_mul_ps(_mm256_loadu_ps(output + v * 8), rescale);
  }
  for (int j = first; j < end; ++j) {
    const __m256 weight = _mm256_set1_ps(p[j]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __m256 value = _mm256_loadu_ps(values + j * stride + v * 8);
      sums[v] = _mm256_fmadd_ps(weight, value, sums[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(output + v * 8, sums[v]);
}

KVICK_AVX2_INLINE void attend_row(const AttentionTile& tile, const AttentionRow& row) noexcept {
  constexpr int kVectors = kAttentionTile / 8;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const int head_dim = tile.head_dim;
  float& max = row.state[AttentionState::max_offset(head_dim)];
  float* sums = row.state + AttentionState::kSums;
  float* output = row.state + AttentionState::kOutput;

  __m256 s[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) s[v] = _mm256_setzero_ps();
  for (int d = 0; d < head_dim; ++d) {
    const __m256 q = _mm256_set1_ps(row.query[d]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      s[v] = _mm256_fmadd_ps(q, _mm256_loadu_ps(tile.keys + d * kAttentionTile + v * 8), s[v]);
    }
  }
  alignas(32) float p[kAttentionTile];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) _mm256_store_ps(p + v * 8, s[v]);
  for (int j = 0; j < row.first_key; ++j) p[j] = kMinusInfinity;
  for (int j = row.end_key; j < kAttentionTile; ++j) p[j] = kMinusInfinity;

  // Maximum is exact in any order; its first operand loses against NaN, like std::max(max, score).
  __m256 maxima = _mm256_set1_ps(max);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) maxima = _mm256_max_ps(_mm256_load_ps(p + v * 8), maxima);
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, maxima);
  float new_max = lanes[0];
  for (int i = 1; i < 8; ++i) new_max = lanes[i] > new_max ? lanes[i] : new_max;
  new_max += 0.0f;  // -0 becomes +0
  const __m256 reference = _mm256_set1_ps(new_max == kMinusInfinity ? 0.0f : new_max);
  const __m256 rescale = exp8(_mm256_sub_ps(_mm256_set1_ps(max), reference));

#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    s[v] = exp8(_mm256_sub_ps(_mm256_load_ps(p + v * 8), reference));
    _mm256_store_ps(p + v * 8, s[v]);
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const __m256 tile_sums =
        _mm256_add_ps(_mm256_add_ps(s[v], s[v + 2]), _mm256_add_ps(s[v + 4], s[v + 6]));
    const __m256 sum = _mm256_loadu_ps(sums + v * 8);
    _mm256_storeu_ps(sums + v * 8, _mm256_fmadd_ps(sum, rescale, tile_sums));
  }

  const int padded = padded_head_dim(head_dim);
  int d = 0;
  for (; d + 64 <= padded; d += 64) {
    add_values<8>(tile.values + d, padded, p, row.first_key, row.end_key, rescale, output + d);
  }
  for (; d < padded; d += 16) {
    add_values<2>(tile.values + d, padded, p, row.first_key, row.end_key, rescale, output + d);
  }
  max = new_max;
}

KVICK_AVX2 inline void attend_tile(const AttentionTile& tile, const AttentionRow* rows,
                                   Index num_rows) noexcept {
  for (Index r = 0; r < num_rows; ++r) attend_row(tile, rows[r]);
}

}  // namespace kvick::inline v0_1::detail::avx2

#undef KVICK_AVX2
#undef KVICK_AVX2_INLINE
