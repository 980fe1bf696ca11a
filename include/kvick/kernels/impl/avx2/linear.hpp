// SPDX-License-Identifier: MIT
// Multiplication by weight panels, for CPUs with AVX2, FMA and F16C.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx2/math.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"

namespace kvick::inline v0_1::detail::avx2 {

/// Accumulates `kRows` rows at once; 4 rows are 8 independent chains, enough to hide the latency of
/// the fma, and fit 16 registers.
template <int kRows>
KVICK_AVX2_INLINE void accumulate_rows(const float* panel, Index depth, const float* x,
                                       Index x_stride, float* acc) noexcept {
  __m256 low[kRows];
  __m256 high[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    low[m] = _mm256_load_ps(acc + m * kPanelWidth);
    high[m] = _mm256_load_ps(acc + m * kPanelWidth + 8);
  }
  for (Index k = 0; k < depth; ++k) {
    const __m256 weights_low = _mm256_load_ps(panel + k * kPanelWidth);
    const __m256 weights_high = _mm256_load_ps(panel + k * kPanelWidth + 8);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const __m256 value = _mm256_set1_ps(x[m * x_stride + k]);
      low[m] = _mm256_fmadd_ps(value, weights_low, low[m]);
      high[m] = _mm256_fmadd_ps(value, weights_high, high[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    _mm256_store_ps(acc + m * kPanelWidth, low[m]);
    _mm256_store_ps(acc + m * kPanelWidth + 8, high[m]);
  }
}

KVICK_AVX2 inline void accumulate_panel(const float* panel, Index depth, const float* x,
                                        Index x_stride, Index rows, float* acc) noexcept {
  constexpr int kTile = 4;
  Index m = 0;
  for (; m + kTile <= rows; m += kTile) {
    accumulate_rows<kTile>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
  for (; m < rows; ++m) {
    accumulate_rows<1>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
}

}  // namespace kvick::inline v0_1::detail::avx2
