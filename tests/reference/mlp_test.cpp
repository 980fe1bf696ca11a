// SPDX-License-Identifier: MIT
#include "kvick/reference/mlp.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reference/operands.hpp"

namespace kvick::reference {
namespace {

using support::epsilon;
using support::expect_error;
using support::random_matrix;

template <class Scalar>
class ReferenceMlp : public ::testing::Test {};
TYPED_TEST_SUITE(ReferenceMlp, support::Scalars);

TYPED_TEST(ReferenceMlp, GatesAreReadableByHand) {
  RowMajorMatrix<TypeParam> x(1, 1), gate(4, 1), up(4, 1), down(5, 4);
  x << 2;
  gate << 0, 100, -100, 0.5;  // silu(0) = 0, silu(200) = 200, silu(-200) = 0, silu(1) = 0.7310586
  up << 7, 3, 7, 0.5;
  down << 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0;
  const auto y = gated_mlp(x, gate, up, down);
  ASSERT_EQ(y.cols(), 5);
  EXPECT_EQ(y(0, 0), TypeParam(0));
  EXPECT_EQ(y(0, 1), TypeParam(1200));                    // 200 * 6
  EXPECT_NEAR(static_cast<double>(y(0, 2)), 0.0, 1e-34);  // 200 exp(-200) * 14, or exp clamped
  EXPECT_NEAR(static_cast<double>(y(0, 3)), 0.7310585786300049, 4 * epsilon<TypeParam>());
  EXPECT_EQ(y(0, 4), TypeParam(1200));
}

TYPED_TEST(ReferenceMlp, StaysInsideItsBound) {
  constexpr Index kRows = 3, kWidth = 24, kHidden = 40, kOut = 10;
  const auto x = random_matrix<TypeParam>(kRows, kWidth, 1);
  const auto gate = random_matrix<TypeParam>(kHidden, kWidth, 2);
  const auto up = random_matrix<TypeParam>(kHidden, kWidth, 3);
  const auto down = random_matrix<TypeParam>(kOut, kHidden, 4);
  const auto y = gated_mlp(x, gate, up, down);
  const double eps = epsilon<TypeParam>();

  struct Sum {
    double value = 0, magnitude = 0;
    void add(double term) {
      value += term;
      magnitude += std::fabs(term);
    }
  };
  for (Index row = 0; row < kRows; ++row) {
    std::vector<double> hidden, hidden_error;
    for (Index h = 0; h < kHidden; ++h) {
      Sum g, u;
      for (Index i = 0; i < kWidth; ++i) {
        g.add(static_cast<double>(x(row, i)) * static_cast<double>(gate(h, i)));
        u.add(static_cast<double>(x(row, i)) * static_cast<double>(up(h, i)));
      }
      const double silu = g.value / (1 + std::exp(-g.value));
      hidden.push_back(silu * u.value);
      // The slope of silu is at most 1.1; four roundings of silu itself, and one product.
      const double g_error = kWidth * eps * g.magnitude, u_error = kWidth * eps * u.magnitude;
      hidden_error.push_back(1.1 * g_error * (std::fabs(u.value) + u_error) +
                             std::fabs(silu) * u_error + 5 * eps * std::fabs(silu * u.value));
    }
    for (Index out = 0; out < kOut; ++out) {
      Sum want;
      double bound = 0;
      for (Index h = 0; h < kHidden; ++h) {
        const auto i = static_cast<std::size_t>(h);
        want.add(hidden[i] * static_cast<double>(down(out, h)));
        bound += hidden_error[i] * std::fabs(static_cast<double>(down(out, h)));
      }
      bound += kHidden * eps * want.magnitude;
      ASSERT_NEAR(static_cast<double>(y(row, out)), want.value, bound) << row << ", " << out;
    }
  }
}

TYPED_TEST(ReferenceMlp, RefusesWhatDoesNotFit) {
  const auto zero = [](Index rows, Index cols) {
    return RowMajorMatrix<TypeParam>(RowMajorMatrix<TypeParam>::Zero(rows, cols));
  };
  const auto x = zero(1, 3);
  expect_error(ErrorCode::kShape, "width = 3 columns, got 4 and 3",
               [&] { gated_mlp(x, zero(5, 4), zero(5, 3), zero(3, 5)); });
  expect_error(ErrorCode::kShape, "got 3 and 2",
               [&] { gated_mlp(x, zero(5, 3), zero(5, 2), zero(3, 5)); });
  expect_error(ErrorCode::kShape, "hidden = 5 of gate, got 6 and 5",
               [&] { gated_mlp(x, zero(5, 3), zero(6, 3), zero(3, 5)); });
  expect_error(ErrorCode::kShape, "hidden = 5 of gate, got 5 and 6",
               [&] { gated_mlp(x, zero(5, 3), zero(5, 3), zero(3, 6)); });
}

}  // namespace
}  // namespace kvick::reference
