// SPDX-License-Identifier: MIT
// Whether counts follow a distribution.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace support {

/// What a chi-square variable exceeds with probability 1e-3, by the cube-root approximation of
/// Wilson and Hilferty 1931; 3.0902 is that of the normal distribution. For 1 degree it gives 10.62
/// instead of 10.83, for 8 and more it is right to 0.1 %.
inline double chi_square_limit(std::size_t degrees) {
  const double n = static_cast<double>(degrees);
  const double root = 1 - 2 / (9 * n) + 3.0902 * std::sqrt(2 / (9 * n));
  return n * root * root * root;
}

/// Fails if counts deviate from probabilities more than one run in a thousand would, or if a token
/// of probability 0 was counted. Tokens expected less than five times are taken together.
inline void expect_distribution(const std::vector<std::int64_t>& counts,
                                const std::vector<double>& probabilities) {
  ASSERT_EQ(counts.size(), probabilities.size());
  const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  double chi_square = 0, rare = 0;
  std::int64_t num_rare = 0;
  std::size_t num_cells = 0;
  const auto add = [&](double count, double expected) {
    chi_square += (count - expected) * (count - expected) / expected;
    ++num_cells;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(total);
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " has probability 0";
    } else if (expected < 5) {
      rare += expected;
      num_rare += counts[i];
    } else {
      add(static_cast<double>(counts[i]), expected);
    }
  }
  if (rare >= 5) add(static_cast<double>(num_rare), rare);
  ASSERT_GE(num_cells, 1u);
  if (num_cells == 1) return;  // all in one: nothing left to chance
  EXPECT_LT(chi_square, chi_square_limit(num_cells - 1)) << num_cells << " cells";
}

}  // namespace support
