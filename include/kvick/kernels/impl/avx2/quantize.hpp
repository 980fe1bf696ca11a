// SPDX-License-Identifier: MIT
// Quantized activations, for CPUs with AVX2.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"

namespace kvick::inline v0_1::detail::avx2 {

/// The largest magnitudes, lane by lane, as bits: they compare like the magnitudes, and those of
/// NaNs lie above infinity's.
KVICK_AVX2_INLINE __m256i max_bits(__m256i max, const float* x) noexcept {
  const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x));
  return _mm256_max_epu32(max, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
}

/// The largest magnitude, or NaN if any was not finite.
KVICK_AVX2_INLINE float finite_max(__m256i max) noexcept {
  const __m128i by4 = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
  const __m128i by2 = _mm_max_epu32(by4, _mm_shuffle_epi32(by4, 0x4e));
  const __m128i by1 = _mm_max_epu32(by2, _mm_shuffle_epi32(by2, 0xb1));
  const auto bits = static_cast<std::uint32_t>(_mm_cvtsi128_si32(by1));
  return bits < 0x7f800000u ? std::bit_cast<float>(bits) : std::numeric_limits<float>::quiet_NaN();
}

/// Eight values times `inverse`, rounded to nearest even and clamped.
KVICK_AVX2_INLINE __m256i quantize8(const float* x, __m256 inverse) noexcept {
  const __m256i rounded = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
  return _mm256_max_epi32(_mm256_min_epi32(rounded, _mm256_set1_epi32(127)),
                          _mm256_set1_epi32(-127));
}

KVICK_AVX2_INLINE std::int32_t sum8(__m256i v) noexcept {
  const __m128i by4 = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i by2 = _mm_add_epi32(by4, _mm_shuffle_epi32(by4, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(by2, _mm_shuffle_epi32(by2, 0xb1)));
}

KVICK_AVX2_INLINE float activation_scale(float max) noexcept {
  return max < kTinyActivation ? 0.0f : max / 127.0f;
}

KVICK_AVX2_INLINE void quantize_group(const float* x, float max, float scale,
                                      QuantizedGroup& out) noexcept {
  __m256i q[4];
  if (max >= kTinyActivation) {  // not NaN either
    const __m256 inverse = _mm256_set1_ps(127.0f / max);
    for (int i = 0; i < 4; ++i) q[i] = quantize8(x + 8 * i, inverse);
  } else {
    for (__m256i& v : q) v = _mm256_setzero_si256();
  }
  // Packing works within 128-bit halves; the permutation puts the four-byte pieces in order.
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.values),
                      _mm256_permutevar8x32_epi32(bytes, order));
  const std::int32_t low_sum = sum8(_mm256_add_epi32(q[0], q[1]));
  const std::int32_t sum = low_sum + sum8(_mm256_add_epi32(q[2], q[3]));
  out.scale = scale;
  out.minus_sum = -sum;
  out.scaled_sum = scale * static_cast<float>(sum);
  out.minus_low_sum = -low_sum;
}

/// 32 values: of x, or of a copy that is filled up with zeros.
inline const float* whole_group(const float* x, Index count, float (&copy)[kGroupSize]) noexcept {
  if (count >= kGroupSize) return x;
  std::fill(std::copy_n(x, count, copy), copy + kGroupSize, 0.0f);
  return copy;
}

KVICK_AVX2_INLINE __m256i max_bits_of_group(__m256i max, const float* x) noexcept {
  for (int i = 0; i < kGroupSize; i += 8) max = max_bits(max, x + i);
  return max;
}

KVICK_AVX2 inline void quantize_groups(const float* x, Index count,
                                       QuantizedGroup* groups) noexcept {
  float copy[kGroupSize];
  for (Index k = 0; k < count; k += kGroupSize, ++groups) {
    const float* const values = whole_group(x + k, count - k, copy);
    const float max = finite_max(max_bits_of_group(_mm256_setzero_si256(), values));
    quantize_group(values, max, activation_scale(max), *groups);
  }
}

KVICK_AVX2 inline QuantizedRowTotal quantize_row(const float* x, Index count,
                                                 QuantizedGroup* groups) noexcept {
  float copy[kGroupSize];
  __m256i bits = _mm256_setzero_si256();
  for (Index k = 0; k < count; k += kGroupSize) {
    bits = max_bits_of_group(bits, whole_group(x + k, count - k, copy));
  }
  const float max = finite_max(bits);
  QuantizedRowTotal total{activation_scale(max), 0};
  for (Index k = 0; k < count; k += kGroupSize, ++groups) {
    quantize_group(whole_group(x + k, count - k, copy), max, total.scale, *groups);
    total.minus_sum += groups->minus_sum;
  }
  return total;
}

}  // namespace kvick::inline v0_1::detail::avx2
