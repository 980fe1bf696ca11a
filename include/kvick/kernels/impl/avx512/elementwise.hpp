// SPDX-License-Identifier: MIT
// Kernels along rows: sums of squares, SiLU, for CPUs with AVX-512.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"

namespace kvick::inline v0_1::detail::avx512 {

KVICK_AVX512 inline float sum_of_squares(const float* x, Index count) noexcept {
  __m512 sums = _mm512_setzero_ps();
  Index i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
    const __m512 v = _mm512_loadu_ps(x + i);
    sums = _mm512_fmadd_ps(v, v, sums);
  }
  if (i < count) {
    const __m512 v = _mm512_maskz_loadu_ps(first_lanes(count - i), x + i);
    sums = _mm512_fmadd_ps(v, v, sums);
  }
  return join(sums);
}

KVICK_AVX512_INLINE __m512 silu_multiply16(__m512 gate, __m512 up) noexcept {
  const __m512 negated = _mm512_xor_ps(gate, _mm512_set1_ps(-0.0f));
  const __m512 denominator = _mm512_add_ps(_mm512_set1_ps(1.0f), exp16(negated));
  return _mm512_mul_ps(_mm512_div_ps(gate, denominator), up);
}

KVICK_AVX512 inline void silu_multiply(const float* gate, const float* up, float* out,
                                       Index count) noexcept {
  Index i = 0;
  for (; i + kPanelWidth <= count; i += kPanelWidth) {
    _mm512_storeu_ps(out + i, silu_multiply16(_mm512_loadu_ps(gate + i), _mm512_loadu_ps(up + i)));
  }
  if (i < count) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 u = _mm512_maskz_loadu_ps(mask, up + i);
    _mm512_mask_storeu_ps(out + i, mask, silu_multiply16(g, u));
  }
}

}  // namespace kvick::inline v0_1::detail::avx512
