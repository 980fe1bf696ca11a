// SPDX-License-Identifier: MIT
// Functions of whole vectors that the kernels share, for CPUs with AVX2, FMA and F16C.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <limits>

#include "kvick/core/math.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"

namespace kvick::inline v0_1::detail::avx2 {

/// exp of 8 lanes: the sequence of math::exp(float), lane by lane.
KVICK_AVX2_INLINE __m256 exp8(__m256 x) noexcept {
  const __m256 shift = _mm256_set1_ps(math::kExpShift);
  const __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(math::kExpLog2E), shift);
  const __m256 n = _mm256_sub_ps(t, shift);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(math::kExpLn2High), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(math::kExpLn2Low), r);
  __m256 p = _mm256_set1_ps(math::kExpCoefficients[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) {
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(math::kExpCoefficients[static_cast<unsigned>(i)]));
  }
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  __m256 y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  const __m256 infinity = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  const __m256 above = _mm256_cmp_ps(x, _mm256_set1_ps(math::kExpMax), _CMP_GT_OQ);
  const __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(math::kExpMin), _CMP_LT_OQ);
  y = _mm256_andnot_ps(below, _mm256_blendv_ps(y, infinity, above));
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/// The fixed tree over partial sums 0..7 and 8..15.
KVICK_AVX2_INLINE float join(__m256 low, __m256 high) noexcept {
  const __m256 by8 = _mm256_add_ps(low, high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}

}  // namespace kvick::inline v0_1::detail::avx2
