// SPDX-License-Identifier: MIT
// Multiplication by weight panels, for CPUs with AVX-512.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// Accumulates `kRows` rows at once: that many independent chains hide the latency of the fma
/// (4 cycles, two per cycle: 8 rows are enough).
template <int kRows>
KVICK_AVX512_INLINE void accumulate_rows(const float* panel, Index depth, const float* x,
                                         Index x_stride, float* acc) noexcept {
  __m512 sums[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) sums[m] = _mm512_load_ps(acc + m * kPanelWidth);
  for (Index k = 0; k < depth; ++k) {
    const __m512 weights = _mm512_load_ps(panel + k * kPanelWidth);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m] = _mm512_fmadd_ps(_mm512_set1_ps(x[m * x_stride + k]), weights, sums[m]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) _mm512_store_ps(acc + m * kPanelWidth, sums[m]);
}

KVICK_AVX512 inline void accumulate_panel(const float* panel, Index depth, const float* x,
                                          Index x_stride, Index rows, float* acc) noexcept {
  constexpr int kTile = 8;
  Index m = 0;
  for (; m + kTile <= rows; m += kTile) {
    accumulate_rows<kTile>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
  for (; m + 2 <= rows; m += 2) {
    accumulate_rows<2>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
  if (m < rows) {
    accumulate_rows<1>(panel, depth, x + m * x_stride, x_stride, acc + m * kPanelWidth);
  }
}

}  // namespace kvick::inline v0_1::detail::avx512
