// SPDX-License-Identifier: MIT
// Kernels along rows: sums of squares, SiLU, for CPUs with AVX2, FMA and F16C.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstring>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/math.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"

namespace kvick::inline v0_1::detail::avx2 {

KVICK_AVX2 inline float sum_of_squares(const float* x, Index count) noexcept {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  Index i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
    const __m256 v_low = _mm256_loadu_ps(x + i);
    const __m256 v_high = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(v_low, v_low, low);
    high = _mm256_fmadd_ps(v_high, v_high, high);
  }
  if (i < count) {
    alignas(32) float tail[kPartialSums] = {};
    std::memcpy(tail, x + i, static_cast<std::size_t>(count - i) * sizeof(float));
    const __m256 v_low = _mm256_load_ps(tail);
    const __m256 v_high = _mm256_load_ps(tail + 8);
    low = _mm256_fmadd_ps(v_low, v_low, low);
    high = _mm256_fmadd_ps(v_high, v_high, high);
  }
  return join(low, high);
}

KVICK_AVX2_INLINE __m256 silu_multiply8(__m256 gate, __m256 up) noexcept {
  const __m256 negated = _mm256_xor_ps(gate, _mm256_set1_ps(-0.0f));
  const __m256 denominator = _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(negated));
  return _mm256_mul_ps(_mm256_div_ps(gate, denominator), up);
}

KVICK_AVX2 inline void silu_multiply(const float* gate, const float* up, float* out,
                                     Index count) noexcept {
  Index i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, silu_multiply8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  }
  if (i < count) {
    const std::size_t tail_bytes = static_cast<std::size_t>(count - i) * sizeof(float);
    alignas(32) float g[8] = {};
    alignas(32) float u[8] = {};
    std::memcpy(g, gate + i, tail_bytes);
    std::memcpy(u, up + i, tail_bytes);
    _mm256_store_ps(g, silu_multiply8(_mm256_load_ps(g), _mm256_load_ps(u)));
    std::memcpy(out + i, g, tail_bytes);
  }
}

}  // namespace kvick::inline v0_1::detail::avx2
