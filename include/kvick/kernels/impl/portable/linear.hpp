// SPDX-License-Identifier: MIT
// Multiplication by weight panels, in plain C++: the definition that every other implementation must equal.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <cmath>

#include "kvick/kernels/contract.hpp"

namespace kvick::inline v0_1::detail::portable {

inline void accumulate_panel(const float* panel, Index depth, const float* x, Index x_stride,
                             Index rows, float* acc) noexcept {
  for (Index m = 0; m < rows; ++m, x += x_stride, acc += kPanelWidth) {
    for (Index k = 0; k < depth; ++k) {
      const float* weights = panel + k * kPanelWidth;
      for (int j = 0; j < kPanelWidth; ++j) acc[j] = std::fma(x[k], weights[j], acc[j]);
    }
  }
}

}  // namespace kvick::inline v0_1::detail::portable
