// SPDX-License-Identifier: MIT
// Reading one group of a packed panel into registers, for CPUs with AVX-512.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"
#include "kvick/kernels/packed_format.hpp"

namespace kvick::inline v0_1::detail::avx512 {

KVICK_AVX512_INLINE __m512i load_bytes(const std::byte* from) noexcept {
  return _mm512_load_si512(from);
}

/// 16 f16 as f32.
KVICK_AVX512_INLINE __m512 load_f16(const std::byte* from) noexcept {
  return _mm512_maskz_cvtph_ps(kAllLanes,
                               _mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
}

KVICK_AVX512_INLINE __m128i load_plane(const std::byte* from) noexcept {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(from));
}

/// Bits `from`, ... of every byte moved to bits `to`, ...; neighbours move along and are masked by
/// the caller.
template <int from, int to>
KVICK_AVX512_INLINE __m512i move_bits(__m512i v) noexcept {
  if constexpr (from > to) {
    return _mm512_srli_epi16(v, from - to);
  } else if constexpr (from < to) {
    return _mm512_slli_epi16(v, to - from);
  } else {
    return v;
  }
}

/// value | (bits & mask)
KVICK_AVX512_INLINE __m512i insert_bits(__m512i value, __m512i bits, int mask) noexcept {
  return _mm512_ternarylogic_epi32(value, bits, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8);
}

/// The eight steps of a group's integers.
template <PackedIntegers kind>
KVICK_AVX512_INLINE void load_integers(const std::byte* group, __m512i (&steps)[8]) noexcept {
  if constexpr (kind == PackedIntegers::kBytes) {
#pragma GCC unroll 8
    for (int s = 0; s < 8; ++s) steps[s] = load_bytes(group + s * kVectorBytes);
  } else {
    const __m512i low = _mm512_set1_epi8(0x0f);
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const __m512i pair = load_bytes(group + s * kVectorBytes);
      steps[s] = _mm512_and_si512(pair, low);
      steps[s + 4] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
    }
  }
  if constexpr (kind == PackedIntegers::kNibblesPlus1Bit) {
    const __m512i fifth = load_bytes(group + 4 * kVectorBytes);
    steps[0] = insert_bits(steps[0], move_bits<0, 4>(fifth), 0x10);
    steps[1] = insert_bits(steps[1], move_bits<1, 4>(fifth), 0x10);
    steps[2] = insert_bits(steps[2], move_bits<2, 4>(fifth), 0x10);
    steps[3] = insert_bits(steps[3], move_bits<3, 4>(fifth), 0x10);
    steps[4] = insert_bits(steps[4], move_bits<4, 4>(fifth), 0x10);
    steps[5] = insert_bits(steps[5], move_bits<5, 4>(fifth), 0x10);
    steps[6] = insert_bits(steps[6], move_bits<6, 4>(fifth), 0x10);
    steps[7] = insert_bits(steps[7], move_bits<7, 4>(fifth), 0x10);
  }
  if constexpr (kind == PackedIntegers::kNibblesPlus2Bits) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i high = load_bytes(group + (4 + half) * kVectorBytes);
      __m512i* const four = steps + 4 * half;
      four[0] = insert_bits(four[0], move_bits<0, 4>(high), 0x30);
      four[1] = insert_bits(four[1], move_bits<2, 4>(high), 0x30);
      four[2] = insert_bits(four[2], move_bits<4, 4>(high), 0x30);
      four[3] = insert_bits(four[3], move_bits<6, 4>(high), 0x30);
    }
  }
}

/// What turns a group's integers into weights: first and second scale of formats with half scales,
/// scale and minimum of formats with minimums, otherwise only a scale.
struct GroupScales {
  __m512 scale;
  __m512 second;
};

/// scale * integer of formats with 6-bit scales and minimums, see unpack_k_scales.
KVICK_AVX512_INLINE GroupScales load_packed_6bit(const std::byte* unit, int group) noexcept {
  const std::byte* const planes = unit + 64;
  const __m128i six = _mm_set1_epi8(63);
  const __m128i four = _mm_set1_epi8(15);
  __m128i scale;
  __m128i minimum;
  if (group < 4) {
    scale = _mm_and_si128(load_plane(planes + 16 * group), six);
    minimum = _mm_and_si128(load_plane(planes + 16 * (group + 4)), six);
  } else {
    const __m128i nibbles = load_plane(planes + 16 * (group + 4));
    const __m128i scale_bits = load_plane(planes + 16 * (group - 4));
    const __m128i minimum_bits = load_plane(planes + 16 * group);
    const __m128i top = _mm_set1_epi8(0x30);
    scale = _mm_or_si128(_mm_and_si128(nibbles, four),
                         _mm_and_si128(_mm_srli_epi16(scale_bits, 2), top));
    minimum = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(nibbles, 4), four),
                           _mm_and_si128(_mm_srli_epi16(minimum_bits, 2), top));
  }
  const __m512 scales =
      _mm512_maskz_cvtepi32_ps(kAllLanes, _mm512_maskz_cvtepu8_epi32(kAllLanes, scale));
  const __m512 minimums =
      _mm512_maskz_cvtepi32_ps(kAllLanes, _mm512_maskz_cvtepu8_epi32(kAllLanes, minimum));
  const __m512 minus_dmin = _mm512_xor_ps(load_f16(unit + 32), _mm512_set1_ps(-0.0f));
  return {_mm512_mul_ps(load_f16(unit), scales), _mm512_mul_ps(minus_dmin, minimums)};
}

template <PackedScales kind>
KVICK_AVX512_INLINE GroupScales load_scales(const std::byte* unit, int group) noexcept {
  if constexpr (kind == PackedScales::kF16) {
    return {load_f16(unit + 32 * group), _mm512_setzero_ps()};
  } else if constexpr (kind == PackedScales::kF32) {
    return {_mm512_load_ps(unit), _mm512_setzero_ps()};
  } else if constexpr (kind == PackedScales::kF16WithMinimum) {
    return {load_f16(unit), load_f16(unit + 32)};
  } else if constexpr (kind == PackedScales::kPacked6Bit) {
    return load_packed_6bit(unit, group);
  } else if constexpr (kind == PackedScales::kInt8) {
    const __m512 d = load_f16(unit);
    const std::byte* const planes = unit + 64 + 32 * group;
    const __m512i low = _mm512_maskz_cvtepi8_epi32(kAllLanes, load_plane(planes));
    const __m512i high = _mm512_maskz_cvtepi8_epi32(kAllLanes, load_plane(planes + 16));
    return {_mm512_mul_ps(d, _mm512_maskz_cvtepi32_ps(kAllLanes, low)),
            _mm512_mul_ps(d, _mm512_maskz_cvtepi32_ps(kAllLanes, high))};
  } else {
    return {_mm512_setzero_ps(), _mm512_setzero_ps()};
  }
}

}  // namespace kvick::inline v0_1::detail::avx512
