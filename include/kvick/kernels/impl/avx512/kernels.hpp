// SPDX-License-Identifier: MIT
// Kernels for CPUs with AVX-512: one zmm register holds the 16 lanes of the contract.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <limits>

#include "kvick/core/math.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// The first `count` (1 to 16) lanes.
inline __mmask16 first_lanes(Index count) noexcept {
  return static_cast<__mmask16>((1u << count) - 1u);
}

// gcc 12 warns inside the intrinsics that pass an undefined vector for unused lanes. Their maskz
// forms with a full mask compile to the same instructions without the warning.
inline constexpr __mmask16 kAllLanes = 0xffff;

/// exp of 16 lanes: the sequence of math::exp(float), lane by lane.
KVICK_AVX512_INLINE __m512 exp16(__m512 x) noexcept {
  const __m512 shift = _mm512_set1_ps(math::kExpShift);
  const __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(math::kExpLog2E), shift);
  const __m512 n = _mm512_sub_ps(t, shift);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(math::kExpLn2High), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(math::kExpLn2Low), r);
  __m512 p = _mm512_set1_ps(math::kExpCoefficients[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) {
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(math::kExpCoefficients[static_cast<unsigned>(i)]));
  }
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_maskz_slli_epi32(kAllLanes, _mm512_castps_si512(t), 23);
  __m512 y = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  const __m512 infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(math::kExpMax), _CMP_GT_OQ),
                         infinity);
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(math::kExpMin), _CMP_LT_OQ),
                         _mm512_setzero_ps());
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

KVICK_AVX512_INLINE __m256 low_half(__m512 v) noexcept {
  return _mm512_maskz_extractf32x8_ps(0xff, v, 0);
}
KVICK_AVX512_INLINE __m256 high_half(__m512 v) noexcept {
  return _mm512_maskz_extractf32x8_ps(0xff, v, 1);
}

/// The fixed tree over 16 partial sums.
KVICK_AVX512_INLINE float join(__m512 sums) noexcept {
  const __m256 by8 = _mm256_add_ps(low_half(sums), high_half(sums));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}

/// The largest of 16 lanes that hold no NaN.
KVICK_AVX512_INLINE float max_lane(__m512 v) noexcept {
  const __m256 by8 = _mm256_max_ps(low_half(v), high_half(v));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}

/// Accumulates `kRows` rows at once: that many independent chains hide the latency of the fma
/// (4 cycles, two per cycle: 8 rows are enough).
template <int kRows>
KVICK_AVX512_INLINE void accumulate_rows(const float* panel, Index depth, const float* x,
                                         Index x_stride, float* acc) noexcept {
  __m512 sums[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) sums[m] = _mm512_load_ps(acc + m * kPanelWidth);
  for (Index k = 0; k < depth; ++k) {
    const __m512 weights = _mm512_load_ps(panel + k * kPanelWidth);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m] = _mm512_fmadd_ps(_mm512_set1_ps(x[m * x_stride + k]), weights, sums[m]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) _mm512_store_ps(acc + m * kPanelWidth, sums[m]);
}

KVICK_AVX512 inline void accumulate_panel(const float* panel, Index depth, const float* x,
                                          Index x_stride, Index rows, float* acc) noexcept {
  constexpr int kTile = 8;
  Index m = 0;
  for (; m + kTile <= rows; m += kTile) {
    accumulate_rows<kTile>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
  for (; m + 2 <= rows; m += 2) {
    accumulate_rows<2>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
  if (m < rows) {
    accumulate_rows<1>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
}

KVICK_AVX512 inline float sum_of_squares(const float* x, Index count) noexcept {
  __m512 sums = _mm512_setzero_ps();
  Index i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
    const __m512 v = _mm512_loadu_ps(x + i);
    sums = _mm512_fmadd_ps(v, v, sums);
  }
  if (i < count) {
    const __m512 v = _mm512_maskz_loadu_ps(first_lanes(count - i), x + i);
    sums = _mm512_fmadd_ps(v, v, sums);
  }
  return join(sums);
}

KVICK_AVX512_INLINE __m512 silu_multiply16(__m512 gate, __m512 up) noexcept {
  const __m512 negated = _mm512_xor_ps(gate, _mm512_set1_ps(-0.0f));
  const __m512 denominator = _mm512_add_ps(_mm512_set1_ps(1.0f), exp16(negated));
  return _mm512_mul_ps(_mm512_div_ps(gate, denominator), up);
}

KVICK_AVX512 inline void silu_multiply(const float* gate, const float* up, float* out,
                                       Index count) noexcept {
  Index i = 0;
  for (; i + kPanelWidth <= count; i += kPanelWidth) {
    _mm512_storeu_ps(out + i, silu_multiply16(_mm512_loadu_ps(gate + i), _mm512_loadu_ps(up + i)));
  }
  if (i < count) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 u = _mm512_maskz_loadu_ps(mask, up + i);
    _mm512_mask_storeu_ps(out + i, mask, silu_multiply16(g, u));
  }
}

/// output[16 kVectors] = output * rescale, then fma over the visible keys.
template <int kVectors>
KVICK_AVX512_INLINE void add_values(const float* values, Index stride, const float* p, int first,
                                    int end, __m512 rescale, float* output) noexcept {
  __m512 sums[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    sums[v] = _mm512_mul_ps(_mm512_loadu_ps(output + v * 16), rescale);
  }
  for (int j = first; j < end; ++j) {
    const __m512 weight = _mm512_set1_ps(p[j]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 value = _mm512_loadu_ps(values + j * stride + v * 16);
      sums[v] = _mm512_fmadd_ps(weight, value, sums[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(output + v * 16, sums[v]);
}

KVICK_AVX512_INLINE void attend_row(const AttentionTile& tile, const AttentionRow& row) noexcept {
  constexpr int kVectors = kAttentionTile / 16;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const int head_dim = tile.head_dim;
  float& max = row.state[AttentionState::max_offset(head_dim)];
  float* sums = row.state + AttentionState::kSums;
  float* output = row.state + AttentionState::kOutput;

  __m512 s[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) s[v] = _mm512_setzero_ps();
  for (int d = 0; d < head_dim; ++d) {
    const __m512 q = _mm512_set1_ps(row.query[d]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      s[v] = _mm512_fmadd_ps(q, _mm512_loadu_ps(tile.keys + d * kAttentionTile + v * 16), s[v]);
    }
  }
  // Maximum is exact in any order; its first operand loses against NaN, like std::max(max, score).
  const unsigned long long below_end =
      row.end_key == kAttentionTile ? ~0ull : (1ull << row.end_key) - 1ull;
  const unsigned long long visible = below_end & (~0ull << row.first_key);
  __m512 maxima = _mm512_set1_ps(max);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    s[v] = _mm512_mask_blend_ps(static_cast<__mmask16>(visible >> (v * 16)),
                                _mm512_set1_ps(kMinusInfinity), s[v]);
    maxima = _mm512_maskz_max_ps(kAllLanes, s[v], maxima);
  }
  const float new_max = max_lane(maxima) + 0.0f;  // -0 becomes +0
  const __m512 reference = _mm512_set1_ps(new_max == kMinusInfinity ? 0.0f : new_max);
  const __m512 rescale = exp16(_mm512_sub_ps(_mm512_set1_ps(max), reference));

  alignas(64) float p[kAttentionTile];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    s[v] = exp16(_mm512_sub_ps(s[v], reference));
    _mm512_store_ps(p + v * 16, s[v]);
  }
  const __m512 tile_sums = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
  _mm512_storeu_ps(sums, _mm512_fmadd_ps(_mm512_loadu_ps(sums), rescale, tile_sums));

  const int padded = padded_head_dim(head_dim);
  int d = 0;
  for (; d + 64 <= padded; d += 64) {
    add_values<4>(tile.values + d, padded, p, row.first_key, row.end_key, rescale, output + d);
  }
  for (; d < padded; d += 16) {
    add_values<1>(tile.values + d, padded, p, row.first_key, row.end_key, rescale, output + d);
  }
  max = new_max;
}

KVICK_AVX512 inline void attend_tile(const AttentionTile& tile, const AttentionRow* rows,
                                     Index num_rows) noexcept {
  for (Index r = 0; r < num_rows; ++r) attend_row(tile, rows[r]);
}

}  // namespace kvick::inline v0_1::detail::avx512

#undef KVICK_AVX512
#undef KVICK_AVX512_INLINE
