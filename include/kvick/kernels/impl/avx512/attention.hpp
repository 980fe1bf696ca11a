// SPDX-License-Identifier: MIT
// Attention over one tile of keys and values, for CPUs with AVX-512.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <limits>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"

namespace kvick::inline v0_1::detail::avx512 {

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
