// SPDX-License-Identifier: MIT
// Attention over one tile of keys and values, for CPUs with AVX2, FMA and F16C.
//
// Blocks of 3 rows and 32 columns keep 12 sums in registers, one row alone takes 64 columns.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/attention_rows.hpp"
#include "kvick/kernels/impl/avx2/conversions.hpp"  // IWYU pragma: export
#include "kvick/kernels/impl/avx2/math.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"
#include "kvick/kernels/impl/stored_tile.hpp"

namespace kvick::inline v0_1::detail::avx2 {

/// sums[r][c] = the sum of fma(weights[r][k], tile[k * stride + c], .) over k in [begin, end)
/// ascending, from `start`, for kRows rows and 8 kVectors columns from `offset` on.
template <int kRows, int kVectors>
KVICK_AVX2 inline void accumulate(SumStart start, const float* const* weights, const float* tile,
                                  Index stride, Index begin, Index end, float* const* sums,
                                  Index offset) noexcept {
  const float* row[kRows];
  __m256 sum[kRows][kVectors];
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) {
    row[r] = weights[r];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = start == SumStart::kZero ? _mm256_setzero_ps()
                                           : _mm256_loadu_ps(sums[r] + offset + v * 8);
    }
  }
  const float* column = tile + begin * stride + offset;
  for (Index k = begin; k < end; ++k, column += stride) {
    __m256 weight[kRows];
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) weight[r] = _mm256_set1_ps(row[r][k]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __m256 loaded = _mm256_loadu_ps(column + v * 8);
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) sum[r][v] = _mm256_fmadd_ps(weight[r], loaded, sum[r][v]);
    }
  }
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(sums[r] + offset + v * 8, sum[r][v]);
  }
}

/// accumulate() over `num_columns`, a multiple of 16.
template <int kRows>
KVICK_AVX2 inline void accumulate_columns(SumStart start, const float* const* weights,
                                          const float* tile, Index stride, Index begin, Index end,
                                          int num_columns, float* const* sums) noexcept {
  int c = 0;
  if constexpr (kRows == 1) {  // 8 chains of sums hide the latency of fma
    for (; c + 64 <= num_columns; c += 64) {
      accumulate<kRows, 8>(start, weights, tile, stride, begin, end, sums, c);
    }
  }
  for (; c + 32 <= num_columns; c += 32) {
    accumulate<kRows, 4>(start, weights, tile, stride, begin, end, sums, c);
  }
  if (c < num_columns) accumulate<kRows, 2>(start, weights, tile, stride, begin, end, sums, c);
}

/// Scores of kRows queries for the keys of an int8 tile. Magnitudes of keys meet queries with the
/// keys' signs: a pair of products is at most 2 * 127 * 127 = 32,258, within 16 bits.
template <int kRows>
KVICK_AVX2 inline void score_int8_rows(const Int8Query* const* queries, const AttentionTile& tile,
                                       float (*scores)[kAttentionTile]) noexcept {
  constexpr int kVectors = 2;
  const __m256i ones = _mm256_set1_epi16(1);
  for (int j = 0; j < kAttentionTile; j += 8 * kVectors) {
    __m256i dots[kRows][kVectors];
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) dots[r][0] = dots[r][1] = _mm256_setzero_si256();
    const std::int8_t* keys = tile.int8_keys + j * kInt8Group;
    for (int g = 0; g < num_int8_groups(tile.head_dim); ++g, keys += kAttentionTile * kInt8Group) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const __m256i group =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + v * 8 * kInt8Group));
        const __m256i magnitudes = _mm256_abs_epi8(group);
#pragma GCC unroll 3
        for (int r = 0; r < kRows; ++r) {
          std::int32_t four;
          std::memcpy(&four, queries[r]->values + g * kInt8Group, kInt8Group);
          const __m256i values = _mm256_sign_epi8(_mm256_set1_epi32(four), group);
          const __m256i pairs = _mm256_maddubs_epi16(magnitudes, values);
          dots[r][v] = _mm256_add_epi32(dots[r][v], _mm256_madd_epi16(pairs, ones));
        }
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const __m256 key_scales = _mm256_loadu_ps(tile.key_scales + j + v * 8);
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) {
        const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(queries[r]->scale), key_scales);
        const __m256 dot = _mm256_cvtepi32_ps(dots[r][v]);
        _mm256_store_ps(scores[r] + j + v * 8, _mm256_fmadd_ps(dot, scale, _mm256_setzero_ps()));
      }
    }
  }
}

/// The largest of 8 lanes that hold no NaN.
KVICK_AVX2_INLINE float max_lane(__m256 v) noexcept {
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}

KVICK_AVX2 inline void weigh_row(const AttentionRow& row, int head_dim, float* scores) noexcept {
  constexpr int kVectors = kAttentionTile / 8;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  float& max = row.state[AttentionState::max_offset(head_dim)];
  float* const sums = row.state + AttentionState::kSums;
  float* const output = row.state + AttentionState::kOutput;
  for (int j = 0; j < row.first_key; ++j) scores[j] = kMinusInfinity;
  for (int j = row.end_key; j < kAttentionTile; ++j) scores[j] = kMinusInfinity;

  // Maximum is exact in any order; its first operand loses against NaN, like std::max(max, score).
  __m256 maxima = _mm256_set1_ps(max);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    maxima = _mm256_max_ps(_mm256_load_ps(scores + v * 8), maxima);
  }
  const float new_max = max_lane(maxima) + 0.0f;  // -0 becomes +0
  const __m256 reference = _mm256_set1_ps(new_max == kMinusInfinity ? 0.0f : new_max);
  const __m256 rescale = exp8(_mm256_sub_ps(_mm256_set1_ps(max), reference));
  __m256 s[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    s[v] = exp8(_mm256_sub_ps(_mm256_load_ps(scores + v * 8), reference));
    _mm256_store_ps(scores + v * 8, s[v]);
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const __m256 tile_sums =
        _mm256_add_ps(_mm256_add_ps(s[v], s[v + 2]), _mm256_add_ps(s[v + 4], s[v + 6]));
    const __m256 sum = _mm256_loadu_ps(sums + v * 8);
    _mm256_storeu_ps(sums + v * 8, _mm256_fmadd_ps(sum, rescale, tile_sums));
  }
  const int padded = padded_head_dim(head_dim);
  for (int d = 0; d < padded; d += 8) {
    _mm256_storeu_ps(output + d, _mm256_mul_ps(_mm256_loadu_ps(output + d), rescale));
  }
  max = new_max;
}

/// What AttendRows needs of this ISA.
struct AttentionLanes {
  using Tile = AttentionTile;
  static constexpr int kBlockRows = 3;

  KVICK_AVX2 static void accumulate(SumStart start, int num_rows, const float* const* weights,
                                    const float* tile, Index stride, Index begin, Index end,
                                    int num_columns, float* const* sums) noexcept {
    if (num_rows == 3) {
      accumulate_columns<3>(start, weights, tile, stride, begin, end, num_columns, sums);
    } else if (num_rows == 2) {
      accumulate_columns<2>(start, weights, tile, stride, begin, end, num_columns, sums);
    } else {
      accumulate_columns<1>(start, weights, tile, stride, begin, end, num_columns, sums);
    }
  }

  static void score_floats(const Tile& tile, int num_rows, const float* const* queries,
                           int num_keys, float* const* scores) noexcept {
    accumulate(SumStart::kZero, num_rows, queries, tile.keys, kAttentionTile, 0, tile.head_dim,
               num_keys, scores);
  }

  static void add_values(const Tile& tile, int num_rows, const float* const* weights, int begin,
                         int end, float* const* outputs) noexcept {
    const int padded = padded_head_dim(tile.head_dim);
    accumulate(SumStart::kHeld, num_rows, weights, tile.values, padded, begin, end, padded,
               outputs);
  }

  KVICK_AVX2 static void score_int8(int num_rows, const Int8Query* const* queries,
                                    const AttentionTile& tile,
                                    float (*scores)[kAttentionTile]) noexcept {
    if (num_rows == 3) {
      score_int8_rows<3>(queries, tile, scores);
    } else if (num_rows == 2) {
      score_int8_rows<2>(queries, tile, scores);
    } else {
      score_int8_rows<1>(queries, tile, scores);
    }
  }

  KVICK_AVX2 static void weigh(const AttentionRow* rows, int num_rows, int head_dim,
                               float (*scores)[kAttentionTile]) noexcept {
    for (int r = 0; r < num_rows; ++r) weigh_row(rows[r], head_dim, scores[r]);
  }
};

inline void attend_tile(const AttentionTile& tile, const AttentionRow* rows,
                        Index num_rows) noexcept {
  AttendRows<AttentionLanes>::attend_tile(tile, rows, num_rows);
}

inline void attend_stored_tile(const StoredTile& tile, const AttentionRow* rows,
                               Index num_rows) noexcept {
  attend_loaded_tile<load_keys, load_values, attend_tile>(tile, rows, num_rows);
}

KVICK_AVX2 inline void merge_states(float* state, const float* later, int head_dim) noexcept {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const int max_offset = AttentionState::max_offset(head_dim);
  const float max = std::max(state[max_offset], later[max_offset]);
  const __m256 reference = _mm256_set1_ps(max == kMinusInfinity ? 0.0f : max);
  const __m256 u = exp8(_mm256_sub_ps(_mm256_set1_ps(state[max_offset]), reference));
  const __m256 v = exp8(_mm256_sub_ps(_mm256_set1_ps(later[max_offset]), reference));
  for (int i = 0; i < max_offset; i += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(state + i), u);
    _mm256_storeu_ps(state + i, _mm256_fmadd_ps(_mm256_loadu_ps(later + i), v, scaled));
  }
  state[max_offset] = max;
}

}  // namespace kvick::inline v0_1::detail::avx2
