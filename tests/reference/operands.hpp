// SPDX-License-Identifier: MIT
// Random operands of the plain layers.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "cache/expect_error.hpp"  // IWYU pragma: export
#include "kvick/core/matrix.hpp"
#include "kvick/reference/common.hpp"

namespace support {

/// Uniform in [-1, 1].
template <class Scalar>
kvick::reference::RowMajorMatrix<Scalar> random_matrix(kvick::Index rows, kvick::Index cols,
                                                       unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> values(-1, 1);
  return kvick::reference::RowMajorMatrix<Scalar>::NullaryExpr(
      rows, cols, [&] { return static_cast<Scalar>(values(random)); });
}

/// Of a result in Scalar and an oracle in double together.
template <class Scalar>
constexpr double epsilon() {
  return static_cast<double>(std::numeric_limits<Scalar>::epsilon()) +
         std::numeric_limits<double>::epsilon();
}

using Scalars = ::testing::Types<float, double>;

}  // namespace support
