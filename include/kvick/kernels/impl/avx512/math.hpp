// SPDX-License-Identifier: MIT
// Functions of whole vectors that the kernels share, for CPUs with AVX-512.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <limits>

#include "kvick/core/math.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// The first `count` (1 to 16) lanes.
inline __mmask16 first_lanes(Index count) noexcept {
  return static_cast<__mmask16>((1u << count) - 1u);
}

// gcc 12 warns inside the intrinsics that pass an undefined vector for unused lanes. Their maskz
// forms with a full mask compile to the same instructions without the warning.
inline constexpr __mmask16 kAllLanes = 0xffff;

/// exp(x - n ln 2) for the integer n nearest to x / ln 2.
KVICK_AVX512_INLINE __m512 exp16_of_rest(__m512 x, __m512 n) noexcept {
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(math::kExpLn2High), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(math::kExpLn2Low), r);
  __m512 p = _mm512_set1_ps(math::kExpCoefficients[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) {
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(math::kExpCoefficients[static_cast<unsigned>(i)]));
  }
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
}

/// exp of 16 lanes: the sequence of math::exp(float), lane by lane.
KVICK_AVX512_INLINE __m512 exp16(__m512 x) noexcept {
  const __m512 shift = _mm512_set1_ps(math::kExpShift);
  const __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(math::kExpLog2E), shift);
  const __m512 n = _mm512_sub_ps(t, shift);
  const __m512 p = exp16_of_rest(x, n);
  const __m512i exponent = _mm512_maskz_slli_epi32(kAllLanes, _mm512_castps_si512(t), 23);
  __m512 y = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  const __m512 infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(math::kExpMax), _CMP_GT_OQ),
                         infinity);
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(math::kExpMin), _CMP_LT_OQ),
                         _mm512_setzero_ps());
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

/// exp16() of lanes that are at most 0, NaN or -infinity. From kExpMin on, results are normal
/// numbers, so scaling by a power of two is exact.
KVICK_AVX512_INLINE __m512 exp16_up_to_0(__m512 x) noexcept {
  const __m512 shift = _mm512_set1_ps(math::kExpShift);
  const __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(math::kExpLog2E), shift);
  const __m512 n = _mm512_sub_ps(t, shift);
  const __m512 p = exp16_of_rest(x, n);
  const __mmask16 is_not_below = _mm512_cmp_ps_mask(x, _mm512_set1_ps(math::kExpMin), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(is_not_below, p, n);
}

KVICK_AVX512_INLINE __m256 low_half(__m512 v) noexcept {
  return _mm512_maskz_extractf32x8_ps(0xff, v, 0);
}
KVICK_AVX512_INLINE __m256 high_half(__m512 v) noexcept {
  return _mm512_maskz_extractf32x8_ps(0xff, v, 1);
}

/// The fixed tree over 16 partial sums.
KVICK_AVX512_INLINE float join(__m512 sums) noexcept {
  const __m256 by8 = _mm256_add_ps(low_half(sums), high_half(sums));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}

/// The largest of 16 lanes that hold no NaN.
KVICK_AVX512_INLINE float max_lane(__m512 v) noexcept {
  const __m256 by8 = _mm256_max_ps(low_half(v), high_half(v));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}

}  // namespace kvick::inline v0_1::detail::avx512
