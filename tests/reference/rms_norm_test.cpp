// SPDX-License-Identifier: MIT
#include "kvick/reference/rms_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/operands.hpp"

namespace kvick::reference {
namespace {

using support::expect_error;
using support::random_matrix;

template <class Scalar>
class ReferenceRmsNorm : public ::testing::Test {};
TYPED_TEST_SUITE(ReferenceRmsNorm, support::Scalars);

TYPED_TEST(ReferenceRmsNorm, DividesByTheRootMeanSquare) {
  RowMajorMatrix<TypeParam> x(2, 4), want(2, 4);
  x << 2, -2, 2, -2, 0, 0, 0, 6;  // root mean squares 2 and 3
  want << 1, -2, 3, -4, 0, 0, 0, 8;
  const Vector weight = (Vector(4) << 1, 2, 3, 4).finished();
  EXPECT_EQ(rms_norm(x, weight, 0), want);
  EXPECT_EQ(rms_norm(x, weight.transpose(), 0), want);
}

TYPED_TEST(ReferenceRmsNorm, AddsEpsilonToTheMeanSquare) {
  const RowMajorMatrix<TypeParam> x = RowMajorMatrix<TypeParam>::Constant(1, 3, 1);
  EXPECT_EQ(rms_norm(x, Vector::Ones(3), 3.0)(0, 1), TypeParam(0.5));  // 1 / sqrt(1 + 3)
  EXPECT_EQ(rms_norm(0 * x, Vector::Ones(3), 1e-5)(0, 1), TypeParam(0));
}

TYPED_TEST(ReferenceRmsNorm, StaysInsideItsBound) {
  for (const Index width : {1, 3, 64, 300}) {
    const auto x = random_matrix<TypeParam>(4, width, 1);
    const auto weight = random_matrix<TypeParam>(1, width, 2);
    const auto y = rms_norm(x, weight, 1e-5);
    for (Index row = 0; row < 4; ++row) {
      double sum = 0;
      for (Index i = 0; i < width; ++i) sum += std::pow(static_cast<double>(x(row, i)), 2);
      const double root = std::sqrt(sum / static_cast<double>(width) + 1e-5);
      for (Index i = 0; i < width; ++i) {
        const double want =
            static_cast<double>(x(row, i)) / root * static_cast<double>(weight(0, i));
        const double bound =
            (static_cast<double>(width) / 2 + 4) * support::epsilon<TypeParam>() * std::fabs(want);
        ASSERT_NEAR(static_cast<double>(y(row, i)), want, bound) << row << ", " << i;
      }
    }
  }
}

TYPED_TEST(ReferenceRmsNorm, RefusesWhatDoesNotFit) {
  const RowMajorMatrix<TypeParam> x = RowMajorMatrix<TypeParam>::Ones(2, 3);
  expect_error(ErrorCode::kShape, "columns of x, got 4 for 3",
               [&] { rms_norm(x, Vector::Ones(4), 0); });
  expect_error(ErrorCode::kShape, "got 0 for 0", [&] { rms_norm(x.leftCols(0), Vector(), 0); });
  expect_error(ErrorCode::kArgument, "epsilon must not be negative, got -1",
               [&] { rms_norm(x, Vector::Ones(3), -1); });
}

}  // namespace
}  // namespace kvick::reference
