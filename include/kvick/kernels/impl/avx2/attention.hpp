// SPDX-License-Identifier: MIT
// Attention over one tile of keys and values, for CPUs with AVX2, FMA and F16C.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <limits>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/math.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"

namespace kvick::inline v0_1::detail::avx2 {

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
