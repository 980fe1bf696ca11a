// SPDX-License-Identifier: MIT
// Attention over one tile of keys and values, for CPUs with AVX-512.
//
// Blocks of 6 rows and 64 columns keep 24 sums in registers.
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
#include "kvick/kernels/impl/avx512/conversions.hpp"  // IWYU pragma: export
#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// Vectors of the tile that 6 rows share: 24 sums, 4 loads and a weight are 29 of 32 registers.
inline constexpr int kBlockVectors = 4;

/// sums[r][c] = the sum of fma(weights[r][k], tile[k * stride + c], .) over k in [begin, end)
/// ascending, from `start`, for kRows rows and 16 kVectors columns from `offset` on.
template <int kRows, int kVectors>
KVICK_AVX512 inline void accumulate(SumStart start, const float* const* weights, const float* tile,
                                    Index stride, Index begin, Index end, float* const* sums,
                                    Index offset) noexcept {
  const float* row[kRows];
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    row[r] = weights[r];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = start == SumStart::kZero ? _mm512_setzero_ps()
                                           : _mm512_loadu_ps(sums[r] + offset + v * 16);
    }
  }
  const float* column = tile + begin * stride + offset;
  for (Index k = begin; k < end; ++k, column += stride) {
    __m512 loaded[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) loaded[v] = _mm512_loadu_ps(column + v * 16);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512 weight = _mm512_set1_ps(row[r][k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(weight, loaded[v], sum[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(sums[r] + offset + v * 16, sum[r][v]);
  }
}

using Accumulate = void (*)(SumStart, const float* const*, const float*, Index, Index, Index,
                            float* const*, Index) noexcept;

/// accumulate() by [rows - 1][vectors - 1].
inline constexpr Accumulate kAccumulate[6][kBlockVectors] = {
    {accumulate<1, 1>, accumulate<1, 2>, accumulate<1, 3>, accumulate<1, 4>},
    {accumulate<2, 1>, accumulate<2, 2>, accumulate<2, 3>, accumulate<2, 4>},
    {accumulate<3, 1>, accumulate<3, 2>, accumulate<3, 3>, accumulate<3, 4>},
    {accumulate<4, 1>, accumulate<4, 2>, accumulate<4, 3>, accumulate<4, 4>},
    {accumulate<5, 1>, accumulate<5, 2>, accumulate<5, 3>, accumulate<5, 4>},
    {accumulate<6, 1>, accumulate<6, 2>, accumulate<6, 3>, accumulate<6, 4>}};

/// Scores of kRows queries for the keys of an int8 tile. vpdpbusd takes unsigned bytes times signed
/// ones: keys get 128 more, and sums start at -128 times the sum of the query, all exact.
template <int kRows>
KVICK_AVX512 inline void score_int8(const Int8Query* const* queries, const AttentionTile& tile,
                                    float (*scores)[kAttentionTile]) noexcept {
  const std::int8_t* query[kRows];
  __m512i dots[kRows][kBlockVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    query[r] = queries[r]->values;
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) {
      dots[r][v] = _mm512_set1_epi32(128 * queries[r]->minus_sum);
    }
  }
  const __m512i top_bits = _mm512_set1_epi8(static_cast<char>(0x80));
  const std::int8_t* keys = tile.int8_keys;
  for (int g = 0; g < num_int8_groups(tile.head_dim); ++g) {
    __m512i group[kBlockVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v, keys += 64) {
      group[v] = _mm512_xor_si512(_mm512_loadu_si512(keys), top_bits);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      std::int32_t four;
      std::memcpy(&four, query[r] + g * kInt8Group, kInt8Group);
      const __m512i values = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int v = 0; v < kBlockVectors; ++v) {
        dots[r][v] = _mm512_dpbusd_epi32(dots[r][v], group[v], values);
      }
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kBlockVectors; ++v) {
    const __m512 key_scales = _mm512_loadu_ps(tile.key_scales + v * 16);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(queries[r]->scale), key_scales);
      const __m512 dot = _mm512_maskz_cvtepi32_ps(kAllLanes, dots[r][v]);
      _mm512_store_ps(scores[r] + v * 16, _mm512_fmadd_ps(dot, scale, _mm512_setzero_ps()));
    }
  }
}

using ScoreInt8 = void (*)(const Int8Query* const*, const AttentionTile&,
                           float (*)[kAttentionTile]) noexcept;

/// score_int8() by [rows - 1].
inline constexpr ScoreInt8 kScoreInt8[6] = {score_int8<1>, score_int8<2>, score_int8<3>,
                                            score_int8<4>, score_int8<5>, score_int8<6>};

/// The keys of row's tile that it sees, one bit each.
inline unsigned long long visible_keys(const AttentionRow& row) noexcept {
  return (~0ull >> (kAttentionTile - row.end_key)) & (~0ull << row.first_key);
}

/// What AttendRows asks of weigh(). Every row's steps depend on each other, so the rows take each
/// step one after another, and the exponentials of all maxima are taken at once.
KVICK_AVX512 inline void weigh(const AttentionRow* rows, int num_rows, int head_dim,
                               float (*scores)[kAttentionTile]) noexcept {
  static_assert(kChunkRows <= 16, "a lane for each row");
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const int max_offset = AttentionState::max_offset(head_dim);
  alignas(64) float old_maxima[16] = {}, maxima[16] = {}, references[16], rescales[16];
  for (int r = 0; r < num_rows; ++r) {
    const unsigned long long visible = visible_keys(rows[r]);
    old_maxima[r] = rows[r].state[max_offset];
    // Maximum is exact in any order; its first operand loses against NaN, like std::max(max,
    // score).
    __m512 max = _mm512_set1_ps(old_maxima[r]);
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) {
      const auto lanes = static_cast<__mmask16>(visible >> (v * 16));
      max = _mm512_mask_max_ps(max, lanes, _mm512_load_ps(scores[r] + v * 16), max);
    }
    maxima[r] = max_lane(max) + 0.0f;  // -0 becomes +0
    rows[r].state[max_offset] = maxima[r];
  }
  const __m512 minus_infinity = _mm512_set1_ps(kMinusInfinity);
  const __m512 all_maxima = _mm512_load_ps(maxima);
  const __m512 all_references =
      _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(all_maxima, minus_infinity, _CMP_NEQ_OQ), all_maxima);
  _mm512_store_ps(references, all_references);
  _mm512_store_ps(rescales,
                  exp16_up_to_0(_mm512_sub_ps(_mm512_load_ps(old_maxima), all_references)));
  const int padded = padded_head_dim(head_dim);
  for (int r = 0; r < num_rows; ++r) {
    const unsigned long long visible = visible_keys(rows[r]);
    const __m512 reference = _mm512_set1_ps(references[r]);
    const __m512 rescale = _mm512_set1_ps(rescales[r]);
    __m512 p[kBlockVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVectors; ++v) {
      const auto lanes = static_cast<__mmask16>(visible >> (v * 16));
      const __m512 score =
          _mm512_mask_mov_ps(minus_infinity, lanes, _mm512_load_ps(scores[r] + v * 16));
      p[v] = exp16_up_to_0(_mm512_sub_ps(score, reference));
      _mm512_store_ps(scores[r] + v * 16, p[v]);
    }
    float* const sums = rows[r].state + AttentionState::kSums;
    float* const output = rows[r].state + AttentionState::kOutput;
    const __m512 tile_sums = _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3]));
    _mm512_storeu_ps(sums, _mm512_fmadd_ps(_mm512_loadu_ps(sums), rescale, tile_sums));
    for (int d = 0; d < padded; d += 16) {
      _mm512_storeu_ps(output + d, _mm512_mul_ps(_mm512_loadu_ps(output + d), rescale));
    }
  }
}

/// What AttendRows needs of this ISA.
struct AttentionLanes {
  using Tile = AttentionTile;
  static constexpr int kBlockRows = 6;

  KVICK_AVX512 static void accumulate(SumStart start, int num_rows, const float* const* weights,
                                      const float* tile, Index stride, Index begin, Index end,
                                      int num_columns, float* const* sums) noexcept {
    for (int c = 0; c < num_columns; c += kBlockVectors * 16) {
      const int num_vectors = std::min(kBlockVectors, (num_columns - c) / 16);
      kAccumulate[num_rows - 1][num_vectors - 1](start, weights, tile, stride, begin, end, sums, c);
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

  KVICK_AVX512 static void score_int8(int num_rows, const Int8Query* const* queries,
                                      const AttentionTile& tile,
                                      float (*scores)[kAttentionTile]) noexcept {
    kScoreInt8[num_rows - 1](queries, tile, scores);
  }

  KVICK_AVX512 static void weigh(const AttentionRow* rows, int num_rows, int head_dim,
                                 float (*scores)[kAttentionTile]) noexcept {
    avx512::weigh(rows, num_rows, head_dim, scores);
  }
};

inline void attend_tile(const AttentionTile& tile, const AttentionRow* rows,
                        Index num_rows) noexcept {
  AttendRows<AttentionLanes>::attend_tile(tile, rows, num_rows);
}

KVICK_AVX512 inline void merge_states(float* state, const float* later, int head_dim) noexcept {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const int max_offset = AttentionState::max_offset(head_dim);
  const float max = std::max(state[max_offset], later[max_offset]);
  const __m512 reference = _mm512_set1_ps(max == kMinusInfinity ? 0.0f : max);
  const __m512 u = exp16(_mm512_sub_ps(_mm512_set1_ps(state[max_offset]), reference));
  const __m512 v = exp16(_mm512_sub_ps(_mm512_set1_ps(later[max_offset]), reference));
  for (int i = 0; i < max_offset; i += 16) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(state + i), u);
    _mm512_storeu_ps(state + i, _mm512_fmadd_ps(_mm512_loadu_ps(later + i), v, scaled));
  }
  state[max_offset] = max;
}

}  // namespace kvick::inline v0_1::detail::avx512
