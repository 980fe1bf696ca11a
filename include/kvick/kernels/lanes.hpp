// SPDX-License-Identifier: MIT
// The widths that fix the order of every sum, whatever the vector width of the CPU.
//
// Layer     kernels: may include core.
#pragma once

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// Outputs in a weight panel: one zmm, two ymm or sixteen scalars.
inline constexpr int kPanelWidth = 16;

/// Reductions across elements (sum of squares, softmax denominators) keep this many partial sums,
/// element i in partial sum i mod 16, and join them as ((i, i+8), then +4, +2, +1).
inline constexpr int kPartialSums = 16;

/// Joins partial sums by the fixed tree, overwriting them; the total.
inline float join_partial_sums(float* sums) noexcept {
  for (int width = kPartialSums / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

}  // namespace kvick::inline v0_1
