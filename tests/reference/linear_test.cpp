// SPDX-License-Identifier: MIT
#include "kvick/reference/linear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "reference/operands.hpp"

namespace kvick::reference {
namespace {

using support::expect_error;
using support::random_matrix;
using Int8Matrix = RowMajorMatrix<std::int8_t>;

template <class Scalar>
class ReferenceLinear : public ::testing::Test {};
TYPED_TEST_SUITE(ReferenceLinear, support::Scalars);

// Checks y against loops in double, inside the documented bound.
template <class Scalar, class X, class W, class B>
void expect_linear(const RowMajorMatrix<Scalar>& y, const X& x, const W& w, const B& bias) {
  ASSERT_EQ(y.rows(), x.rows());
  ASSERT_EQ(y.cols(), w.rows());
  for (Index row = 0; row < y.rows(); ++row) {
    for (Index out = 0; out < y.cols(); ++out) {
      double sum = bias.size() == 0 ? 0 : static_cast<double>(bias(out));
      double magnitude = std::fabs(sum);
      for (Index i = 0; i < x.cols(); ++i) {
        const double product = static_cast<double>(x(row, i)) * static_cast<double>(w(out, i));
        sum += product;
        magnitude += std::fabs(product);
      }
      const double bound =
          static_cast<double>(x.cols() + 1) * support::epsilon<Scalar>() * magnitude;
      ASSERT_NEAR(static_cast<double>(y(row, out)), sum, bound) << row << ", " << out;
    }
  }
}

TYPED_TEST(ReferenceLinear, MultipliesRowsByRowsOfTheWeight) {
  RowMajorMatrix<TypeParam> x(2, 3), w(2, 3), want(2, 2);
  x << 1, 2, 3, 0, 1, 0;
  w << 1, 0, -1, 2, 2, 2;
  Eigen::Matrix<TypeParam, Eigen::Dynamic, 1> bias(2);
  bias << 10, 20;
  want << -2, 12, 0, 2;
  EXPECT_EQ(linear(x, w), want);
  want << 8, 32, 10, 22;
  EXPECT_EQ(linear(x, w, bias), want);
  EXPECT_EQ(linear(x, w, bias.transpose()), want) << "a bias may be a row";
}

TYPED_TEST(ReferenceLinear, StaysInsideItsBound) {
  for (const Index rows : {1, 2, 5}) {
    for (const Index in : {1, 7, 64, 257}) {
      const auto x = random_matrix<TypeParam>(rows, in, 1);
      const auto w = random_matrix<TypeParam>(9, in, 2);
      const auto bias = random_matrix<TypeParam>(1, 9, 3);
      expect_linear(linear(x, w), x, w, RowMajorMatrix<TypeParam>());
      expect_linear(linear(x, w, bias), x, w, bias);
    }
  }
}

TYPED_TEST(ReferenceLinear, ConvertsWeightsOfAnotherTypeAndOrder) {
  using Other = std::conditional_t<std::is_same_v<TypeParam, float>, double, float>;
  const auto x = random_matrix<TypeParam>(3, 20, 1);
  const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic> w = random_matrix<float>(4, 20, 2);
  const RowMajorMatrix<Other> other = w.template cast<Other>();  // exact: values are floats
  const RowMajorMatrix<TypeParam> same = w.template cast<TypeParam>();
  EXPECT_EQ(linear(x, other), linear(x, same));
  expect_linear(linear(x, w), x, w, RowMajorMatrix<TypeParam>());
  expect_linear(linear(x.leftCols(7), w.leftCols(7)), x.leftCols(7).eval(), w.leftCols(7).eval(),
                RowMajorMatrix<TypeParam>());
}

TYPED_TEST(ReferenceLinear, NamesTheShapesThatDoNotFit) {
  const RowMajorMatrix<TypeParam> x = RowMajorMatrix<TypeParam>::Zero(2, 3);
  const RowMajorMatrix<TypeParam> w = RowMajorMatrix<TypeParam>::Zero(5, 4);
  expect_error(ErrorCode::kShape, "[reference::linear] x must have in = 4 columns, got 3",
               [&] { linear(x, w); });
  expect_error(ErrorCode::kShape, "bias must be empty or have out = 5 elements, got 2",
               [&] { linear(x, w.leftCols(3), x.col(0)); });
}

TYPED_TEST(ReferenceLinear, DequantizesByGroups) {
  Int8Matrix q(2, 4);
  q << 1, 2, -3, 4, 127, -128, 0, 1;
  const Matrix scales = (Matrix(2, 2) << 0.5f, 2, 1, 0.25f).finished();
  const RowMajorMatrix<TypeParam> want =
      (RowMajorMatrix<TypeParam>(2, 4) << 0.5, 1, -6, 8, 127, -128, 0, 0.25).finished();
  EXPECT_EQ(dequantize<TypeParam>(q, scales), want);
  // A scale per channel is a group as long as the row, a scale per weight a group of one.
  EXPECT_EQ(dequantize<TypeParam>(q, scales.col(0)).row(0)(3), TypeParam(2));
  EXPECT_EQ(dequantize<TypeParam>(q, want).row(0)(2), TypeParam(18));
}

TYPED_TEST(ReferenceLinear, MultipliesByDequantizedWeights) {
  RowMajorMatrix<TypeParam> x(1, 4);
  x << 1, 10, 100, 1000;
  Int8Matrix q(1, 4);
  q << 1, 2, -3, 4;
  const Matrix scales = (Matrix(1, 2) << 0.5f, 2).finished();
  const Vector bias = Vector::Constant(1, 0.5f);
  EXPECT_EQ(dequantized_linear(x, q, scales)(0, 0), TypeParam(0.5 + 10 - 600 + 8000));
  EXPECT_EQ(dequantized_linear(x, q, scales, bias)(0, 0), TypeParam(7411));
}

TYPED_TEST(ReferenceLinear, NamesScalesThatDoNotFit) {
  const Int8Matrix q = Int8Matrix::Zero(2, 4);
  const RowMajorMatrix<TypeParam> x = RowMajorMatrix<TypeParam>::Zero(1, 4);
  for (const auto& [rows, cols] : {std::pair{2, 3}, std::pair{1, 2}, std::pair{2, 0}}) {
    const Matrix scales = Matrix::Zero(rows, cols);
    expect_error(ErrorCode::kShape, "out = 2 rows and a divisor of in = 4 columns, got [",
                 [&] { dequantized_linear(x, q, scales); });
  }
}

}  // namespace
}  // namespace kvick::reference
