// SPDX-License-Identifier: MIT
// Attention of few rows over a tile as a cache stores it, for CPUs with AVX-512.
//
// Loading a tile as floats takes the time of some 5 rows, most of it for storing them. Few rows, as
// in decoding, read values where they are, and keys of 16 bits are transposed without widening
// them: both become floats in registers, beside the multiplications.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/attention_rows.hpp"
#include "kvick/kernels/impl/avx512/attention.hpp"
#include "kvick/kernels/impl/avx512/conversions.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"
#include "kvick/kernels/impl/stored_tile.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// Most rows that read elements where they are stored.
inline constexpr int kMaxStoredRows = 16;

/// Asks memory for one line; addresses may be anything.
KVICK_AVX512_INLINE void prefetch_line(std::uintptr_t address) noexcept {
  _mm_prefetch(reinterpret_cast<const char*>(address),  // NOLINT(performance-no-int-to-ptr)
               _MM_HINT_T0);
}

/// Rows of elements that are multiplied where they are.
struct StoredRows {
  const std::byte* data;
  Index stride_bytes;
  const float* scales;         // of kInt8 only
  std::uintptr_t ahead_bytes;  // from an element to one that is to be asked for meanwhile
};

/// As accumulate(), over the elements of rows.
template <ElementType type, int kRows, int kVectors>
KVICK_AVX512 inline void accumulate_stored(SumStart start, const float* const* weights,
                                           const StoredRows& rows, Index begin, Index end,
                                           float* const* sums, Index offset) noexcept {
  constexpr int kVectorBytes = 16 * static_cast<int>(size_bytes(type));
  const float* row[kRows];
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    row[r] = weights[r];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = start == SumStart::kZero ? _mm512_setzero_ps()
                                           : _mm512_loadu_ps(sums[r] + offset + v * 16);
    }
  }
  const std::byte* from =
      rows.data + begin * rows.stride_bytes + offset * static_cast<Index>(size_bytes(type));
  for (Index k = begin; k < end; ++k, from += rows.stride_bytes) {
    const std::uintptr_t ahead = reinterpret_cast<std::uintptr_t>(from) + rows.ahead_bytes;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors * kVectorBytes; i += 64) {
      prefetch_line(ahead + static_cast<std::uintptr_t>(i));
    }
    __m512 loaded[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      loaded[v] = load_floats<type>(from + v * kVectorBytes);
      if constexpr (type == ElementType::kInt8) {
        loaded[v] = _mm512_mul_ps(loaded[v], _mm512_set1_ps(rows.scales[k]));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512 weight = _mm512_set1_ps(row[r][k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(weight, loaded[v], sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(sums[r] + offset + v * 16, sum[r][v]);
  }
}

/// accumulate_stored() over `num_columns`, a multiple of 16.
template <ElementType type, int kRows>
KVICK_AVX512 inline void accumulate_stored_columns(SumStart start, const float* const* weights,
                                                   const StoredRows& rows, Index begin, Index end,
                                                   int num_columns, float* const* sums) noexcept {
  int c = 0;
  for (; c + 64 <= num_columns; c += 64) {
    accumulate_stored<type, kRows, 4>(start, weights, rows, begin, end, sums, c);
  }
  for (; c < num_columns; c += 16) {
    accumulate_stored<type, kRows, 1>(start, weights, rows, begin, end, sums, c);
  }
}

/// A tile whose values are where a cache stores them; keys are int8 groups, or lanes of elements of
/// 16 bits: [head_dim][kAttentionTile].
struct StoredLanesTile : AttentionTile {
  StoredRows key_lanes;
  StoredRows value_rows;
};

/// What AttendRows needs, for elements of one type.
template <ElementType type>
struct StoredLanes {
  using Tile = StoredLanesTile;
  static constexpr int kBlockRows = 4;

  static void accumulate(SumStart start, int num_rows, const float* const* weights,
                         const StoredRows& rows, Index begin, Index end, int num_columns,
                         float* const* sums) noexcept {
    using AccumulateColumns = void (*)(SumStart, const float* const*, const StoredRows&, Index,
                                       Index, int, float* const*) noexcept;
    static constexpr AccumulateColumns kByRows[kBlockRows] = {
        accumulate_stored_columns<type, 1>, accumulate_stored_columns<type, 2>,
        accumulate_stored_columns<type, 3>, accumulate_stored_columns<type, 4>};
    kByRows[num_rows - 1](start, weights, rows, begin, end, num_columns, sums);
  }

  static void score_floats(const Tile& tile, int num_rows, const float* const* queries,
                           int num_keys, float* const* scores) noexcept {
    accumulate(SumStart::kZero, num_rows, queries, tile.key_lanes, 0, tile.head_dim, num_keys,
               scores);
  }

  static void score_int8(int num_rows, const Int8Query* const* queries, const AttentionTile& tile,
                         float (*scores)[kAttentionTile]) noexcept {
    AttentionLanes::score_int8(num_rows, queries, tile, scores);
  }

  static void add_values(const Tile& tile, int num_rows, const float* const* weights, int begin,
                         int end, float* const* outputs) noexcept {
    accumulate(SumStart::kHeld, num_rows, weights, tile.value_rows, begin, end, tile.head_dim,
               outputs);
  }

  static void weigh(const AttentionRow* rows, int num_rows, int head_dim,
                    float (*scores)[kAttentionTile]) noexcept {
    AttentionLanes::weigh(rows, num_rows, head_dim, scores);
  }
};

/// Transposes 16 bytes from `offset` on of 32 rows of 16-bit elements: columns[c] holds element c
/// of every row.
KVICK_AVX512_INLINE void transpose_halves(const std::byte* const* rows, Index offset,
                                          __m512i (&columns)[8]) noexcept {
  // Lane l of v[i] is row 8 l + i, so that unpacking within lanes yields rows in order.
  __m512i v[8], w[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = join_lanes(rows[i] + offset, rows[i + 8] + offset, rows[i + 16] + offset,
                      rows[i + 24] + offset);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    w[i] = _mm512_unpacklo_epi16(v[i], v[i + 1]);
    w[i + 1] = _mm512_unpackhi_epi16(v[i], v[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    v[i] = _mm512_maskz_unpacklo_epi32(kAllLanes, w[i], w[i + 2]);
    v[i + 1] = _mm512_maskz_unpackhi_epi32(kAllLanes, w[i], w[i + 2]);
    v[i + 2] = _mm512_maskz_unpacklo_epi32(kAllLanes, w[i + 1], w[i + 3]);
    v[i + 3] = _mm512_maskz_unpackhi_epi32(kAllLanes, w[i + 1], w[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    columns[2 * i] = _mm512_maskz_unpacklo_epi64(0xff, v[i], v[i + 4]);
    columns[2 * i + 1] = _mm512_maskz_unpackhi_epi64(0xff, v[i], v[i + 4]);
  }
}

/// Keys of 16 bits, head_dim a multiple of 8: lanes[d][j] = element d of row j, or of the last row.
KVICK_AVX512 inline void transpose_half_keys(const ElementRows& keys, std::byte* lanes) noexcept {
  constexpr Index kLaneBytes = 2 * kAttentionTile;
  for (int first = 0; first < kAttentionTile; first += 32) {
    if (first >= keys.num_rows) {  // never seen, but read
      for (int d = 0; d < keys.head_dim; ++d) {
        _mm512_store_si512(lanes + d * kLaneBytes + 2 * first, _mm512_setzero_si512());
      }
      continue;
    }
    const std::byte* rows[32];
    for (int j = 0; j < 32; ++j) {
      rows[j] = keys.data + std::min(first + j, keys.num_rows - 1) * keys.stride_bytes;
    }
    // Memory is asked for a few rows at a time, to keep it busy throughout.
    const int num_steps = keys.head_dim / 8;
    for (int step = 0; step < num_steps; ++step) {
      for (int j = step * 32 / num_steps; j < (step + 1) * 32 / num_steps; ++j) {
        prefetch_row(keys, first + j);
      }
      __m512i columns[8];
      transpose_halves(rows, Index{step} * 16, columns);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        _mm512_store_si512(lanes + (step * 8 + i) * kLaneBytes + 2 * first, columns[i]);
      }
    }
  }
}

template <ElementType type>
void attend_where_stored(const StoredTile& tile, const AttentionRow* rows,
                         Index num_rows) noexcept {
  const ElementRows& values = tile.values;
  auto* const lanes = reinterpret_cast<std::byte*>(tile.key_room);
  StoredLanesTile operand{{nullptr, nullptr, values.head_dim}, {}, {}};
  if constexpr (type == ElementType::kInt8) {
    load_keys(tile.keys, tile.key_room);
    std::copy_n(tile.key_scales, tile.keys.num_rows, tile.scale_room);
    operand.int8_keys = reinterpret_cast<const std::int8_t*>(tile.key_room);
    operand.key_scales = tile.scale_room;
  } else {
    transpose_half_keys(tile.keys, lanes);
    operand.key_lanes = {lanes, 2 * kAttentionTile, nullptr, 0};
  }
  const auto here = reinterpret_cast<std::uintptr_t>(values.data);
  const auto upcoming = reinterpret_cast<std::uintptr_t>(values.upcoming);
  operand.value_rows = {values.data, values.stride_bytes, values.scales,
                        values.upcoming == nullptr ? 0 : upcoming - here};
  AttendRows<StoredLanes<type>>::attend_tile(operand, rows, num_rows);
}

inline void attend_stored_tile(const StoredTile& tile, const AttentionRow* rows,
                               Index num_rows) noexcept {
  const bool is_whole = tile.first_key == 0 && tile.keys.head_dim % 16 == 0;
  if (is_whole && num_rows <= kMaxStoredRows) {
    switch (tile.keys.type) {
      case ElementType::kF16: return attend_where_stored<ElementType::kF16>(tile, rows, num_rows);
      case ElementType::kBF16: return attend_where_stored<ElementType::kBF16>(tile, rows, num_rows);
      case ElementType::kInt8: return attend_where_stored<ElementType::kInt8>(tile, rows, num_rows);
      case ElementType::kF32: break;
    }
  }
  attend_loaded_tile<load_keys, load_values, attend_tile>(tile, rows, num_rows);
}

}  // namespace kvick::inline v0_1::detail::avx512
