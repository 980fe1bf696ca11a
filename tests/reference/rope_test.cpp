// SPDX-License-Identifier: MIT
#include "kvick/reference/rope.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "reference/operands.hpp"

namespace kvick::reference {
namespace {

using support::epsilon;
using support::expect_error;
using support::random_matrix;

// The frequencies of a model: base^(-i / n) for n pairs.
Eigen::VectorXd model_frequencies(Index num_pairs) {
  return Eigen::VectorXd::NullaryExpr(num_pairs, [&](Index i) {
    return std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(num_pairs));
  });
}

template <class Scalar>
class ReferenceRope : public ::testing::Test {};
TYPED_TEST_SUITE(ReferenceRope, support::Scalars);

TYPED_TEST(ReferenceRope, QuarterTurnsAreReadableByHand) {
  // Pair 0 turns by 90 degrees per position, pair 1 by 180.
  const Eigen::Vector2d frequencies(std::numbers::pi / 2, std::numbers::pi);
  RowMajorMatrix<TypeParam> x(3, 5), adjacent(3, 5), halves(3, 5);  // element 4 is not rotated
  x << 1, 2, 3, 4, 5,                                               // position 0
      1, 2, 3, 4, 5,                                                // position 1
      1, 2, 3, 4, 5;                                                // position 2
  adjacent << 1, 2, 3, 4, 5, -2, 1, -3, -4, 5, -1, -2, 3, 4, 5;
  halves << 1, 2, 3, 4, 5, -3, -2, 1, -4, 5, -1, 2, -3, 4, 5;
  // sin(pi) is not 0 in floating point, but below epsilon; elements are at most 4.
  const double bound = 8 * epsilon<TypeParam>();
  const auto distance = [](const auto& a, const auto& b) {
    return static_cast<double>((a - b).cwiseAbs().maxCoeff());
  };
  EXPECT_LE(distance(rope_adjacent(x, 5, 0, frequencies), adjacent), bound);
  EXPECT_LE(distance(rope_half_split(x, 5, 0, frequencies), halves), bound);
  EXPECT_EQ(rope_adjacent(x, 5, 7, frequencies).col(4), x.col(4));
}

TYPED_TEST(ReferenceRope, MultipliesPairsByAComplexNumberInEveryHead) {
  constexpr Index kHeadDim = 8, kHeads = 3;
  const auto x = random_matrix<TypeParam>(5, kHeads * kHeadDim, 1);
  const auto frequencies = model_frequencies(kHeadDim / 2);
  const auto adjacent = rope_adjacent(x, kHeadDim, 4000, frequencies);
  const auto halves = rope_half_split(x, kHeadDim, 4000, frequencies);
  const auto expect_pair = [&](const auto& y, Index token, Index a, Index b, Index pair) {
    const auto angle = static_cast<double>(4000 + token) * frequencies(pair);
    const std::complex<double> before(static_cast<double>(x(token, a)),
                                      static_cast<double>(x(token, b)));
    const std::complex<double> want = before * std::polar(1.0, angle);
    // Two rounded factors, two products, one sum.
    const double bound =
        3 * epsilon<TypeParam>() * (std::fabs(before.real()) + std::fabs(before.imag()));
    ASSERT_NEAR(static_cast<double>(y(token, a)), want.real(), bound);
    ASSERT_NEAR(static_cast<double>(y(token, b)), want.imag(), bound);
  };
  for (Index token = 0; token < 5; ++token) {
    for (Index head = 0; head < kHeads; ++head) {
      for (Index pair = 0; pair < kHeadDim / 2; ++pair) {
        const Index first = head * kHeadDim;
        expect_pair(adjacent, token, first + 2 * pair, first + 2 * pair + 1, pair);
        expect_pair(halves, token, first + pair, first + pair + kHeadDim / 2, pair);
      }
    }
  }
}

TEST(ReferenceRopeDouble, ScoresDependOnDistanceOnly) {
  const auto q = random_matrix<double>(1, 16, 1), k = random_matrix<double>(1, 16, 2);
  const auto frequencies = model_frequencies(8);
  const auto score = [&](int q_position, int k_position) {
    return rope_half_split(q, 16, q_position, frequencies)
        .row(0)
        .dot(rope_half_split(k, 16, k_position, frequencies).row(0));
  };
  // Angles up to 1010 radians are rounded by 2^-43 at most; 16 products of at most 2.
  EXPECT_NEAR(score(10, 3), score(1010, 1003), 32 * 2 * 0x1p-43);
  EXPECT_GT(std::fabs(score(10, 3) - score(10, 4)), 0.01);
}

TYPED_TEST(ReferenceRope, RefusesWhatDoesNotFit) {
  const RowMajorMatrix<TypeParam> x = RowMajorMatrix<TypeParam>::Ones(1, 8);
  expect_error(ErrorCode::kShape,
               "[reference::rope_adjacent] x must have a multiple of head_dim = 3 columns, got 8",
               [&] { rope_adjacent(x, 3, 0, Eigen::VectorXd::Ones(1)); });
  expect_error(ErrorCode::kShape, "a multiple of head_dim = 0",
               [&] { rope_half_split(x, 0, 0, Eigen::VectorXd()); });
  expect_error(ErrorCode::kShape,
               "[reference::rope_half_split] frequencies must be at most head_dim / 2 = 2, got 3",
               [&] { rope_half_split(x, 4, 0, Eigen::VectorXd::Ones(3)); });
  expect_error(ErrorCode::kArgument, "first_position must be at least 0, got -1",
               [&] { rope_adjacent(x, 4, -1, Eigen::VectorXd::Ones(2)); });
}

}  // namespace
}  // namespace kvick::reference
