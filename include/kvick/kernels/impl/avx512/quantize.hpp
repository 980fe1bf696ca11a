// SPDX-License-Identifier: MIT
// Quantized activations, for CPUs with AVX-512.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// Up to 32 values, zeros beyond.
struct Values32 {
  __m512 low;
  __m512 high;
};

KVICK_AVX512_INLINE Values32 load_values(const float* x, Index count) noexcept {
  if (count >= kGroupSize) return {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
  return {_mm512_maskz_loadu_ps(first_lanes(std::min<Index>(count, 16)), x),
          _mm512_maskz_loadu_ps(first_lanes(std::max<Index>(count - 16, 0)), x + 16)};
}

/// The largest magnitudes, lane by lane, as bits: they compare like the magnitudes, and those of
/// NaNs lie above infinity's.
KVICK_AVX512_INLINE __m512i max_bits(__m512i max, __m512 x) noexcept {
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  return _mm512_maskz_max_epu32(kAllLanes, max, magnitude);
}

/// The largest magnitude, or NaN if any was not finite.
KVICK_AVX512_INLINE float finite_max(__m512i max) noexcept {
  const __m256i by8 = _mm256_max_epu32(_mm512_maskz_extracti32x8_epi32(0xff, max, 0),
                                       _mm512_maskz_extracti32x8_epi32(0xff, max, 1));
  const __m128i by4 = _mm_max_epu32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
  const __m128i by2 = _mm_max_epu32(by4, _mm_shuffle_epi32(by4, 0x4e));
  const __m128i by1 = _mm_max_epu32(by2, _mm_shuffle_epi32(by2, 0xb1));
  const auto bits = static_cast<std::uint32_t>(_mm_cvtsi128_si32(by1));
  return bits < 0x7f800000u ? std::bit_cast<float>(bits) : std::numeric_limits<float>::quiet_NaN();
}

/// 16 values times `inverse`, rounded to nearest even and clamped.
KVICK_AVX512_INLINE __m128i quantize16(__m512 x, __m512 inverse) noexcept {
  const __m512i rounded = _mm512_maskz_cvtps_epi32(kAllLanes, _mm512_mul_ps(x, inverse));
  const __m512i clamped = _mm512_maskz_max_epi32(
      kAllLanes, _mm512_maskz_min_epi32(kAllLanes, rounded, _mm512_set1_epi32(127)),
      _mm512_set1_epi32(-127));
  return _mm512_maskz_cvtepi32_epi8(kAllLanes, clamped);
}

KVICK_AVX512_INLINE std::int32_t sum16(__m128i values) noexcept {
  const __m128i by4 = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), values);
  const __m128i by2 = _mm_add_epi32(by4, _mm_shuffle_epi32(by4, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(by2, _mm_shuffle_epi32(by2, 0xb1)));
}

KVICK_AVX512_INLINE float activation_scale(float max) noexcept {
  return max < kTinyActivation ? 0.0f : max / 127.0f;
}

KVICK_AVX512_INLINE void quantize_group(const Values32& x, float max, float scale,
                                        QuantizedGroup& out) noexcept {
  __m128i low = _mm_setzero_si128();
  __m128i high = _mm_setzero_si128();
  if (max >= kTinyActivation) {  // not NaN either
    const __m512 inverse = _mm512_set1_ps(127.0f / max);
    low = quantize16(x.low, inverse);
    high = quantize16(x.high, inverse);
  }
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out.values), low);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out.values + 16), high);
  const std::int32_t low_sum = sum16(low);
  const std::int32_t sum = low_sum + sum16(high);
  out.scale = scale;
  out.minus_sum = -sum;
  out.scaled_sum = scale * static_cast<float>(sum);
  out.minus_low_sum = -low_sum;
}

KVICK_AVX512 inline void quantize_groups(const float* x, Index count,
                                         QuantizedGroup* groups) noexcept {
  for (Index k = 0; k < count; k += kGroupSize, ++groups) {
    const Values32 values = load_values(x + k, count - k);
    const float max =
        finite_max(max_bits(max_bits(_mm512_setzero_si512(), values.low), values.high));
    quantize_group(values, max, activation_scale(max), *groups);
  }
}

KVICK_AVX512 inline QuantizedRowTotal quantize_row(const float* x, Index count,
                                                   QuantizedGroup* groups) noexcept {
  __m512i bits = _mm512_setzero_si512();
  for (Index k = 0; k < count; k += kGroupSize) {
    const Values32 values = load_values(x + k, count - k);
    bits = max_bits(max_bits(bits, values.low), values.high);
  }
  const float max = finite_max(bits);
  QuantizedRowTotal total{activation_scale(max), 0};
  for (Index k = 0; k < count; k += kGroupSize, ++groups) {
    quantize_group(load_values(x + k, count - k), max, total.scale, *groups);
    total.minus_sum += groups->minus_sum;
  }
  return total;
}

}  // namespace kvick::inline v0_1::detail::avx512
