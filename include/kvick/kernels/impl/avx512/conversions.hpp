// SPDX-License-Identifier: MIT
// Conversions between the element types of caches and the f32 tiles of attention, for CPUs with
// AVX-512.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvick/core/element_type.hpp"
#include "kvick/core/half.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// 16 elements of 16 bits to floats.
template <ElementType type>
KVICK_AVX512_INLINE __m512 widen(__m256i halves) noexcept {
  if constexpr (type == ElementType::kF16) {
    return _mm512_maskz_cvtph_ps(kAllLanes, halves);
  } else {
    const __m512i words = _mm512_maskz_cvtepu16_epi32(kAllLanes, halves);
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, words, 16));
  }
}

KVICK_AVX512_INLINE __m128i load_16_bytes(const std::byte* from) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

/// 16 bytes each in the four 128-bit lanes. A masked broadcast takes a load and a blend, which run
/// beside the shuffles that transposing is made of; an insertion is a shuffle itself.
KVICK_AVX512_INLINE __m512i join_lanes(const std::byte* a, const std::byte* b, const std::byte* c,
                                       const std::byte* d) noexcept {
  __m512i v = _mm512_zextsi128_si512(load_16_bytes(a));
  v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load_16_bytes(b));
  v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load_16_bytes(c));
  return _mm512_mask_broadcast_i32x4(v, 0xf000, load_16_bytes(d));
}

/// 16 bytes of rows 0, 4, 8 and 12, one row per 128-bit lane.
KVICK_AVX512_INLINE __m512i load_lanes(const std::byte* const* rows, Index offset) noexcept {
  return join_lanes(rows[0] + offset, rows[4] + offset, rows[8] + offset, rows[12] + offset);
}

/// Transposes 16 bytes from `offset` on of 16 rows: columns[c] holds element c of every row.
template <ElementType type, int kCount>
KVICK_AVX512_INLINE void transpose(const std::byte* const* rows, Index offset,
                                   __m512 (&columns)[kCount]) noexcept {
  // Lane l of v[i] is row 4 l + i, so that unpacking within lanes yields rows in order.
  __m512i v[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) v[i] = load_lanes(rows + i, offset);
  if constexpr (type == ElementType::kF32) {
    const __m512i a = _mm512_maskz_unpacklo_epi32(kAllLanes, v[0], v[1]),
                  b = _mm512_maskz_unpacklo_epi32(kAllLanes, v[2], v[3]);
    const __m512i c = _mm512_maskz_unpackhi_epi32(kAllLanes, v[0], v[1]),
                  d = _mm512_maskz_unpackhi_epi32(kAllLanes, v[2], v[3]);
    columns[0] = _mm512_castsi512_ps(_mm512_maskz_unpacklo_epi64(0xff, a, b));
    columns[1] = _mm512_castsi512_ps(_mm512_maskz_unpackhi_epi64(0xff, a, b));
    columns[2] = _mm512_castsi512_ps(_mm512_maskz_unpacklo_epi64(0xff, c, d));
    columns[3] = _mm512_castsi512_ps(_mm512_maskz_unpackhi_epi64(0xff, c, d));
  } else {
    const __m512i a = _mm512_unpacklo_epi16(v[0], v[1]), b = _mm512_unpacklo_epi16(v[2], v[3]);
    const __m512i c = _mm512_unpackhi_epi16(v[0], v[1]), d = _mm512_unpackhi_epi16(v[2], v[3]);
    v[0] = _mm512_maskz_unpacklo_epi32(kAllLanes, a, b);
    v[1] = _mm512_maskz_unpackhi_epi32(kAllLanes, a, b);
    v[2] = _mm512_maskz_unpacklo_epi32(kAllLanes, c, d);
    v[3] = _mm512_maskz_unpackhi_epi32(kAllLanes, c, d);
    // Each lane holds two columns of 4 rows: join the even and the odd halves of lanes.
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i pair = _mm512_maskz_permutexvar_epi64(0xff, order, v[i]);
      columns[2 * i] = widen<type>(_mm512_maskz_extracti64x4_epi64(0xff, pair, 0));
      columns[2 * i + 1] = widen<type>(_mm512_maskz_extracti64x4_epi64(0xff, pair, 1));
    }
  }
}

/// 16 rows, of which those in `mask` are stored. All must be readable.
template <ElementType type>
KVICK_AVX512_INLINE void transpose_rows(const std::byte* const* rows, int head_dim, __mmask16 mask,
                                        float* lanes) noexcept {
  constexpr int kStep = 16 / static_cast<int>(size_bytes(type));
  __m512 columns[kStep];
  int d = 0;
  for (; d + kStep <= head_dim; d += kStep, lanes += kStep * kAttentionTile) {
    transpose<type>(rows, d * static_cast<Index>(size_bytes(type)), columns);
#pragma GCC unroll 8
    for (int i = 0; i < kStep; ++i) {
      _mm512_mask_storeu_ps(lanes + i * kAttentionTile, mask, columns[i]);
    }
  }
  if (d == head_dim) return;
  alignas(64) std::byte copies[16][16] = {};
  const std::byte* copied[16];
  const auto left = static_cast<std::size_t>(head_dim - d) * size_bytes(type);
  for (int j = 0; j < 16; ++j) {
    copied[j] = copies[j];
    std::memcpy(copies[j], rows[j] + static_cast<std::size_t>(d) * size_bytes(type), left);
  }
  transpose<type>(copied, 0, columns);
#pragma GCC unroll 8
  for (int i = 0; i < kStep; ++i) {
    if (i < head_dim - d) _mm512_mask_storeu_ps(lanes + i * kAttentionTile, mask, columns[i]);
  }
}

/// Asks memory for row `index` of the upcoming ones.
KVICK_AVX512_INLINE void prefetch_row(const ElementRows& rows, int index) noexcept {
  if (rows.upcoming == nullptr) return;
  const auto row = reinterpret_cast<std::uintptr_t>(rows.upcoming) +
                   static_cast<std::uintptr_t>(index * rows.stride_bytes);
  const auto size = static_cast<std::uintptr_t>(rows.head_dim) * size_bytes(rows.type);
  const std::uintptr_t num_lines = (row % 64 + size + 63) / 64;
  for (std::uintptr_t i = 0; i < num_lines; ++i) {  // counted: addresses may wrap around
    // Integers, because a pointer must not leave its array.
    const auto* const line =
        reinterpret_cast<const char*>(row + 64 * i);  // NOLINT(performance-no-int-to-ptr)
    _mm_prefetch(line, _MM_HINT_T0);
  }
}

template <ElementType type>
KVICK_AVX512 inline void transpose_keys(const ElementRows& keys, float* lanes) noexcept {
  for (int first = 0; first < keys.num_rows; first += 16) {
    const int count = std::min(16, keys.num_rows - first);
    const std::byte* rows[16];
    for (int j = 0; j < count; ++j) prefetch_row(keys, first + j);
    for (int j = 0; j < 16; ++j) {
      rows[j] = keys.data + (first + std::min(j, count - 1)) * keys.stride_bytes;
    }
    transpose_rows<type>(rows, keys.head_dim, first_lanes(count), lanes + first);
  }
}

KVICK_AVX512 inline void load_keys(const ElementRows& keys, float* lanes) noexcept {
  switch (keys.type) {
    case ElementType::kF32: return transpose_keys<ElementType::kF32>(keys, lanes);
    case ElementType::kF16: return transpose_keys<ElementType::kF16>(keys, lanes);
    case ElementType::kBF16: return transpose_keys<ElementType::kBF16>(keys, lanes);
    case ElementType::kInt8: {  // a group of four is moved like a float
      ElementRows groups = keys;
      groups.head_dim = num_int8_groups(keys.head_dim);
      return transpose_keys<ElementType::kF32>(groups, lanes);
    }
  }
}

/// 16 elements as floats.
template <ElementType type>
KVICK_AVX512_INLINE __m512 load_floats(const std::byte* from) noexcept {
  if constexpr (type == ElementType::kF32) {
    return _mm512_loadu_ps(from);
  } else if constexpr (type == ElementType::kInt8) {
    const __m512i integers = _mm512_maskz_cvtepi8_epi32(kAllLanes, load_16_bytes(from));
    return _mm512_maskz_cvtepi32_ps(kAllLanes, integers);
  } else {
    return widen<type>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
}

/// The first `count` (1 to 15) elements as floats, the others 0.
template <ElementType type>
KVICK_AVX512_INLINE __m512 load_first_floats(const std::byte* from, int count) noexcept {
  alignas(64) std::byte copies[16 * size_bytes(type)] = {};
  std::memcpy(copies, from, static_cast<std::size_t>(count) * size_bytes(type));
  return load_floats<type>(copies);
}

template <ElementType type>
KVICK_AVX512 inline void widen_rows(const ElementRows& rows, float* values) noexcept {
  constexpr std::size_t kStep = 16 * size_bytes(type);
  const int num_whole = rows.head_dim / 16;
  const int rest = rows.head_dim % 16;
  const std::byte* row = rows.data;
  for (int j = 0; j < rows.num_rows; ++j, row += rows.stride_bytes) {
    prefetch_row(rows, j);
    const std::byte* from = row;
    const __m512 scale = _mm512_set1_ps(type == ElementType::kInt8 ? rows.scales[j] : 1.0f);
#pragma GCC unroll 4
    for (int i = 0; i < num_whole; ++i, from += kStep, values += 16) {
      const __m512 v = load_floats<type>(from);
      _mm512_storeu_ps(values, type == ElementType::kInt8 ? _mm512_mul_ps(v, scale) : v);
    }
    if (rest == 0) continue;
    // Padding stays 0 whatever the scale is.
    const __m512 v = load_first_floats<type>(from, rest);
    const __m512 scaled = _mm512_maskz_mul_ps(first_lanes(rest), v, scale);
    _mm512_storeu_ps(values, type == ElementType::kInt8 ? scaled : v);
    values += 16;
  }
}

KVICK_AVX512 inline void load_values(const ElementRows& rows, float* values) noexcept {
  switch (rows.type) {
    case ElementType::kF32: return widen_rows<ElementType::kF32>(rows, values);
    case ElementType::kF16: return widen_rows<ElementType::kF16>(rows, values);
    case ElementType::kBF16: return widen_rows<ElementType::kBF16>(rows, values);
    case ElementType::kInt8: return widen_rows<ElementType::kInt8>(rows, values);
  }
}

/// 16 floats to elements of 16 bits, as f16(x) and bf16(x).
template <ElementType type>
KVICK_AVX512_INLINE __m256i narrow(__m512 v) noexcept {
  if constexpr (type == ElementType::kF16) {
    return _mm512_maskz_cvtps_ph(kAllLanes, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  } else {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd =
        _mm512_and_si512(_mm512_maskz_srli_epi32(kAllLanes, bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    const __m512i quiet =
        _mm512_or_si512(bits, _mm512_set1_epi32(static_cast<int>(kFloatQuietBit)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, is_nan, quiet);
    return _mm512_maskz_cvtepi32_epi16(kAllLanes, _mm512_maskz_srli_epi32(kAllLanes, chosen, 16));
  }
}

template <ElementType type>
KVICK_AVX512 inline void narrow_row(const float* from, Index count, std::byte* to) noexcept {
  for (Index i = 0; i < count; i += 16, to += 16 * size_bytes(type)) {
    const __mmask16 mask = first_lanes(std::min<Index>(16, count - i));
    const __m256i halves = narrow<type>(_mm512_maskz_loadu_ps(mask, from + i));
    _mm256_mask_storeu_epi16(to, mask, halves);
  }
}

KVICK_AVX512 inline void store_elements(ElementType type, const float* from, Index count,
                                        std::byte* to) noexcept {
  switch (type) {
    case ElementType::kF32:
      if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case ElementType::kF16: return narrow_row<ElementType::kF16>(from, count, to);
    case ElementType::kBF16: return narrow_row<ElementType::kBF16>(from, count, to);
    case ElementType::kInt8: return;  // excluded by the contract
  }
}

}  // namespace kvick::inline v0_1::detail::avx512
