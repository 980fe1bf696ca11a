// SPDX-License-Identifier: MIT
// Conversions between the element types of caches and the f32 tiles of attention, for CPUs with
// AVX2, FMA and F16C.
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
#include "kvick/kernels/impl/avx2/target.hpp"

namespace kvick::inline v0_1::detail::avx2 {

KVICK_AVX2_INLINE __m128i load_16_bytes(const std::byte* from) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

/// 8 elements of 16 bits to floats.
template <ElementType type>
KVICK_AVX2_INLINE __m256 widen(__m128i halves) noexcept {
  if constexpr (type == ElementType::kF16) {
    return _mm256_cvtph_ps(halves);
  } else {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
}

/// Transposes 16 bytes from `offset` on of 8 rows: columns[c] holds element c of every row.
template <ElementType type, int kCount>
KVICK_AVX2_INLINE void transpose(const std::byte* const* rows, Index offset,
                                 __m256 (&columns)[kCount]) noexcept {
  // Lane l of v[i] is row 4 l + i, so that unpacking within lanes yields rows in order.
  __m256i v[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16_bytes(rows[i] + offset)),
                                   load_16_bytes(rows[i + 4] + offset), 1);
  }
  if constexpr (type == ElementType::kF32) {
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
    const __m256i c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    columns[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi64(a, b));
    columns[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi64(a, b));
    columns[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi64(c, d));
    columns[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi64(c, d));
  } else {
    const __m256i a = _mm256_unpacklo_epi16(v[0], v[1]), b = _mm256_unpacklo_epi16(v[2], v[3]);
    const __m256i c = _mm256_unpackhi_epi16(v[0], v[1]), d = _mm256_unpackhi_epi16(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi32(a, b);
    v[1] = _mm256_unpackhi_epi32(a, b);
    v[2] = _mm256_unpacklo_epi32(c, d);
    v[3] = _mm256_unpackhi_epi32(c, d);
    // Each lane holds two columns of 4 rows: join the even and the odd halves of lanes.
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i pair = _mm256_permute4x64_epi64(v[i], 0b11'01'10'00);
      columns[2 * i] = widen<type>(_mm256_castsi256_si128(pair));
      columns[2 * i + 1] = widen<type>(_mm256_extracti128_si256(pair, 1));
    }
  }
}

/// Stores the first `count` (1 to 8) lanes.
KVICK_AVX2_INLINE void store_first(float* to, __m256 v, int count) noexcept {
  if (count == 8) {
    _mm256_storeu_ps(to, v);
    return;
  }
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), index), v);
}

/// 8 rows, of which the first `count` are stored. All must be readable.
template <ElementType type>
KVICK_AVX2_INLINE void transpose_rows(const std::byte* const* rows, int head_dim, int count,
                                      float* lanes) noexcept {
  constexpr int kStep = 16 / static_cast<int>(size_bytes(type));
  __m256 columns[kStep];
  int d = 0;
  for (; d + kStep <= head_dim; d += kStep, lanes += kStep * kAttentionTile) {
    transpose<type>(rows, d * static_cast<Index>(size_bytes(type)), columns);
#pragma GCC unroll 8
    for (int i = 0; i < kStep; ++i) store_first(lanes + i * kAttentionTile, columns[i], count);
  }
  if (d == head_dim) return;
  alignas(32) std::byte copies[8][16] = {};
  const std::byte* copied[8];
  const auto left = static_cast<std::size_t>(head_dim - d) * size_bytes(type);
  for (int j = 0; j < 8; ++j) {
    copied[j] = copies[j];
    std::memcpy(copies[j], rows[j] + static_cast<std::size_t>(d) * size_bytes(type), left);
  }
  transpose<type>(copied, 0, columns);
#pragma GCC unroll 8
  for (int i = 0; i < kStep; ++i) {
    if (i < head_dim - d) store_first(lanes + i * kAttentionTile, columns[i], count);
  }
}

/// Asks memory for row `index` of the upcoming ones.
KVICK_AVX2_INLINE void prefetch_row(const ElementRows& rows, int index) noexcept {
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
KVICK_AVX2 inline void transpose_keys(const ElementRows& keys, float* lanes) noexcept {
  for (int first = 0; first < keys.num_rows; first += 8) {
    const int count = std::min(8, keys.num_rows - first);
    const std::byte* rows[8];
    for (int j = 0; j < count; ++j) prefetch_row(keys, first + j);
    for (int j = 0; j < 8; ++j) {
      rows[j] = keys.data + (first + std::min(j, count - 1)) * keys.stride_bytes;
    }
    transpose_rows<type>(rows, keys.head_dim, count, lanes + first);
  }
}

KVICK_AVX2 inline void load_keys(const ElementRows& keys, float* lanes) noexcept {
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

/// 8 elements as floats.
template <ElementType type>
KVICK_AVX2_INLINE __m256 load_floats(const std::byte* from) noexcept {
  if constexpr (type == ElementType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  } else if constexpr (type == ElementType::kInt8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  } else {
    return widen<type>(load_16_bytes(from));
  }
}

/// The first `count` (0 to 7) lanes times `scale`, the others 0.
KVICK_AVX2_INLINE __m256 scale_first(__m256 v, __m256 scale, int count) noexcept {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i is_first = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), index);
  return _mm256_and_ps(_mm256_mul_ps(v, scale), _mm256_castsi256_ps(is_first));
}

template <ElementType type>
KVICK_AVX2 inline void widen_rows(const ElementRows& rows, float* values) noexcept {
  constexpr auto kSize = size_bytes(type);
  const int whole = rows.head_dim / 8 * 8;
  const auto left = static_cast<std::size_t>(rows.head_dim - whole) * kSize;
  const int padded = padded_head_dim(rows.head_dim);
  const std::byte* row = rows.data;
  for (int j = 0; j < rows.num_rows; ++j, row += rows.stride_bytes, values += padded) {
    prefetch_row(rows, j);
    const __m256 scale = _mm256_set1_ps(type == ElementType::kInt8 ? rows.scales[j] : 1.0f);
    int d = 0;
    for (; d < whole; d += 8) {
      const __m256 v = load_floats<type>(row + static_cast<std::size_t>(d) * kSize);
      _mm256_storeu_ps(values + d, type == ElementType::kInt8 ? _mm256_mul_ps(v, scale) : v);
    }
    for (; d < padded; d += 8) {
      alignas(32) std::byte last[8 * kSize] = {};
      if (d == whole) std::memcpy(last, row + static_cast<std::size_t>(whole) * kSize, left);
      const __m256 v = load_floats<type>(last);
      // Padding stays +0 whatever the scale is.
      const bool is_scaled = type == ElementType::kInt8 && d == whole;
      _mm256_storeu_ps(values + d, is_scaled ? scale_first(v, scale, rows.head_dim - d) : v);
    }
  }
}

KVICK_AVX2 inline void load_values(const ElementRows& rows, float* values) noexcept {
  switch (rows.type) {
    case ElementType::kF32: return widen_rows<ElementType::kF32>(rows, values);
    case ElementType::kF16: return widen_rows<ElementType::kF16>(rows, values);
    case ElementType::kBF16: return widen_rows<ElementType::kBF16>(rows, values);
    case ElementType::kInt8: return widen_rows<ElementType::kInt8>(rows, values);
  }
}

/// 8 floats to elements of 16 bits, as f16(x) and bf16(x).
template <ElementType type>
KVICK_AVX2_INLINE __m128i narrow(__m256 v) noexcept {
  if constexpr (type == ElementType::kF16) {
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  } else {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    const __m256i quiet =
        _mm256_or_si256(bits, _mm256_set1_epi32(static_cast<int>(kFloatQuietBit)));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
}

template <ElementType type>
KVICK_AVX2 inline void narrow_row(const float* from, Index count, std::byte* to) noexcept {
  Index i = 0;
  for (; i + 8 <= count; i += 8, to += 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow<type>(_mm256_loadu_ps(from + i)));
  }
  if (i == count) return;
  alignas(32) float last[8] = {};
  alignas(16) std::byte halves[16];
  const auto left = static_cast<std::size_t>(count - i);
  std::memcpy(last, from + i, left * sizeof(float));
  _mm_store_si128(reinterpret_cast<__m128i*>(halves), narrow<type>(_mm256_load_ps(last)));
  std::memcpy(to, halves, left * size_bytes(type));
}

KVICK_AVX2 inline void store_elements(ElementType type, const float* from, Index count,
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

}  // namespace kvick::inline v0_1::detail::avx2
