// SPDX-License-Identifier: MIT
#include "kvick/nn/rms_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "nn/compute.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::Compute;
using support::expect_error;
using support::random_floats;
using support::same_bits;

constexpr float kEpsilon = 1e-5f;
const Index kWidths[] = {1, 2, 15, 16, 17, 31, 64, 100, 576, 2048};

std::span<const float> span_of(const Matrix& row) {
  return {row.data(), static_cast<std::size_t>(row.size())};
}

/// The documented order of operations, written out once more.
Matrix naive(const Matrix& x, const Matrix& weight, float epsilon) {
  Matrix y(x.rows(), x.cols());
  for (Index row = 0; row < x.rows(); ++row) {
    float s[16] = {};
    for (Index i = 0; i < x.cols(); ++i) s[i % 16] = std::fma(x(row, i), x(row, i), s[i % 16]);
    const auto pair = [&](int i) { return s[i] + s[i + 8]; };
    const auto four = [&](int i) { return pair(i) + pair(i + 4); };
    const auto eight = [&](int i) { return four(i) + four(i + 2); };
    const float sum = eight(0) + eight(1);
    const float mean = sum / static_cast<float>(x.cols());
    const float root = std::sqrt(mean + epsilon);
    const float inverse = 1.0f / root;
    for (Index i = 0; i < x.cols(); ++i) {
      const float scaled = x(row, i) * inverse;
      y(row, i) = scaled * weight(0, i);
    }
  }
  return y;
}

class RmsNormOnEveryIsa : public support::OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, RmsNormOnEveryIsa, ::testing::ValuesIn(supported_isas()),
                         support::isa_name);

TEST_P(RmsNormOnEveryIsa, FollowsTheFixedTreeForEveryWidthAndThreadCount) {
  for (const int threads : {1, 2, 3}) {
    Compute compute(GetParam(), threads);
    for (const Index width : kWidths) {
      const Matrix x = 3 * random_floats(37, width, 1);
      const Matrix weight = random_floats(1, width, 2);
      Matrix y(37, width);
      rms_norm(x, span_of(weight), kEpsilon, y, compute.context);
      ASSERT_TRUE(same_bits(y, naive(x, weight, kEpsilon))) << width << ", " << threads;
    }
  }
}

// The sum has positive terms only: ceil(n / 16) + 4 roundings. Division by the width and adding
// epsilon make two more; the root halves all of them and rounds itself; then come the reciprocal
// and two products.
TEST_P(RmsNormOnEveryIsa, StaysInsideTheBoundOfItsRoundings) {
  Compute compute(GetParam(), 2);
  for (const Index width : kWidths) {
    const Matrix x = random_floats(5, width, 3);
    const Matrix weight = random_floats(1, width, 4);
    Matrix y(5, width);
    rms_norm(x, span_of(weight), kEpsilon, y, compute.context);
    const double roundings = (static_cast<double>((width + 15) / 16) + 6) / 2 + 4;
    for (Index row = 0; row < 5; ++row) {
      double sum = 0;
      for (Index i = 0; i < width; ++i) sum += std::pow(static_cast<double>(x(row, i)), 2);
      const double root =
          std::sqrt(sum / static_cast<double>(width) + static_cast<double>(kEpsilon));
      for (Index i = 0; i < width; ++i) {
        const double want =
            static_cast<double>(x(row, i)) / root * static_cast<double>(weight(0, i));
        ASSERT_NEAR(static_cast<double>(y(row, i)), want,
                    1.001 * roundings * support::kFloatRounding * std::fabs(want))
            << width;
      }
    }
  }
}

TEST_P(RmsNormOnEveryIsa, ByHand) {
  Compute compute(GetParam());
  Matrix x(3, 4), weight(1, 4), want(3, 4), y(3, 4);
  x << 2, -2, 2, -2,  // mean square 4
      0, 0, 0, 8,     // 16
      0, 0, 0, 0;     // only epsilon
  weight << 1, 2, 3, -4;
  want << 1, -2, 3, 4, 0, 0, 0, -8, 0, 0, 0, 0;
  rms_norm(x.topRows(2), span_of(weight), 0.0f, y.topRows(2), compute.context);
  EXPECT_EQ(y.topRows(2), want.topRows(2));
  rms_norm(x.bottomRows(1), span_of(weight), kEpsilon, y.bottomRows(1), compute.context);
  EXPECT_EQ(y.bottomRows(1), want.bottomRows(1));
  rms_norm(x.topRows(1), span_of(weight), 12.0f, y.topRows(1), compute.context);  // root of 16
  EXPECT_EQ(y.topRows(1), want.topRows(1) / 2);
}

TEST_P(RmsNormOnEveryIsa, WorksInPlaceAndOnRowsWithAStride) {
  Compute compute(GetParam(), 2);
  const Index width = 50;
  const Matrix x = random_floats(40, 70, 5);
  const Matrix weight = random_floats(1, width, 6);
  const Matrix want = naive(x.middleCols(7, width), weight, kEpsilon);
  Matrix y = x;
  rms_norm(y.middleCols(7, width), span_of(weight), kEpsilon, y.middleCols(7, width),
           compute.context);
  EXPECT_TRUE(same_bits(y.middleCols(7, width), want));
  EXPECT_TRUE(same_bits(y.leftCols(7), x.leftCols(7)));
  EXPECT_TRUE(same_bits(y.rightCols(13), x.rightCols(13)));
}

TEST_P(RmsNormOnEveryIsa, HeadsAreNormalizedOnTheirOwn) {
  for (const int threads : {1, 2, 3}) {
    Compute compute(GetParam(), threads);
    for (const Index head_dim : {1, 8, 24, 128}) {
      const Index num_heads = 3;
      const Matrix x = random_floats(35, num_heads * head_dim, 7);
      const Matrix weight = random_floats(1, head_dim, 8);
      Matrix y = x;
      rms_norm_heads(y, span_of(weight), kEpsilon, compute.context);
      for (Index head = 0; head < num_heads; ++head) {
        ASSERT_TRUE(same_bits(y.middleCols(head * head_dim, head_dim),
                              naive(x.middleCols(head * head_dim, head_dim), weight, kEpsilon)))
            << head_dim << ", head " << head;
      }
    }
  }
}

TEST(RmsNorm, DoesNotAllocate) {
  Compute compute(best_isa(), 2);
  const Matrix weight = random_floats(1, 64, 9);
  Matrix x = random_floats(40, 64, 10);
  const auto run = [&] {
    rms_norm(x, span_of(weight), kEpsilon, x, compute.context);
    rms_norm_heads(x, span_of(weight).first(16), kEpsilon, compute.context);
  };
  run();
  const std::size_t before = support::num_allocations();
  run();
  EXPECT_EQ(support::num_allocations(), before);
}

TEST(RmsNorm, RejectsOperandsThatDoNotFit) {
  Compute compute(Isa::kPortable);
  const std::vector<float> weight(4, 1.0f);
  const auto call = [&](Index x_rows, Index x_cols, Index y_rows, Index y_cols) {
    const Matrix x = Matrix::Ones(x_rows, x_cols);
    Matrix y(y_rows, y_cols);
    rms_norm(x, weight, kEpsilon, y, compute.context);
  };
  EXPECT_NO_THROW(call(2, 4, 2, 4));
  EXPECT_NO_THROW(call(0, 4, 0, 4));
  const ErrorCode shape = ErrorCode::kShape;
  expect_error(shape, "got [2, 5] and [2, 5]", [&] { call(2, 5, 2, 5); });
  expect_error(shape, "got [2, 4] and [2, 5]", [&] { call(2, 4, 2, 5); });
  expect_error(shape, "got [2, 4] and [3, 4]", [&] { call(2, 4, 3, 4); });
}

TEST(RmsNormHeads, RejectsColumnsThatAreNoWholeHeads) {
  Compute compute(Isa::kPortable);
  const std::vector<float> weight(4, 1.0f);
  Matrix x = Matrix::Ones(2, 10);
  expect_error(ErrorCode::kShape, "whole heads of 4, got 10",
               [&] { rms_norm_heads(x, weight, kEpsilon, compute.context); });
  expect_error(ErrorCode::kShape, "whole heads of 0, got 10",
               [&] { rms_norm_heads(x, {}, kEpsilon, compute.context); });
}

}  // namespace
}  // namespace kvick
