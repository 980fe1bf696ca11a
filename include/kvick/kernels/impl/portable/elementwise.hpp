// SPDX-License-Identifier: MIT
// Kernels along rows: sums of squares, SiLU, in plain C++: the definition that every other
// implementation must equal.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <cmath>

#include "kvick/core/math.hpp"
#include "kvick/kernels/contract.hpp"

namespace kvick::inline v0_1::detail::portable {

inline float sum_of_squares(const float* x, Index count) noexcept {
  float sums[kPartialSums] = {};
  for (Index i = 0; i < count; ++i) {
    float& sum = sums[i % kPartialSums];
    sum = std::fma(x[i], x[i], sum);
  }
  return join_partial_sums(sums);
}

inline void silu_multiply(const float* gate, const float* up, float* out, Index count) noexcept {
  for (Index i = 0; i < count; ++i) {
    const float g = gate[i];
    const float silu = g / (1.0f + math::exp(-g));
    out[i] = silu * up[i];
  }
}

}  // namespace kvick::inline v0_1::detail::portable
