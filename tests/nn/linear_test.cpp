// SPDX-License-Identifier: MIT
#include "kvick/nn/linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "nn/compute.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::Compute;
using support::expect_error;
using support::fma_chains;
using support::random_floats;
using support::random_weights;
using support::same_bits;
using support::StoredWeights;

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

/// Lengths below, at and above what is decoded at a time (256), where the format allows them.
std::vector<Index> input_sizes(TensorType type) {
  switch (info(type).block_size) {
    case 1: return {1, 5, 172, 256, 300, 513};
    case 32: return {32, 64, 224, 256, 288, 544};
    default: return {256, 512, 768};
  }
}

Matrix computed(const WeightView& weights, const Matrix& x, const ComputeContext& context,
                const LinearEpilogue& epilogue = {}) {
  Matrix y = Matrix::Constant(x.rows(), weights.out_features(), kUnwritten);
  linear(weights, x, y, context, epilogue);
  return y;
}

class LinearOnEveryIsa : public support::OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, LinearOnEveryIsa, ::testing::ValuesIn(supported_isas()),
                         support::isa_name);

TEST_P(LinearOnEveryIsa, SumsAscendingInputsForEveryFormatAndSize) {
  Compute one(GetParam(), 1), two(GetParam(), 2), three(GetParam(), 3);
  Compute* const computes[] = {&one, &two, &three};
  for (const TensorTypeInfo& format : tensor_types()) {
    const std::vector<Index> sizes = input_sizes(format.type);
    for (Index out = 1; out <= 40; ++out) {
      const Index in = sizes[static_cast<std::size_t>(out) % sizes.size()];
      const Index rows = out * 7 % 20 + 1;  // each of 1 to 20 twice
      SCOPED_TRACE(::testing::Message()
                   << format.name << " " << out << " x " << in << ", " << rows << " rows");
      const auto seed = static_cast<unsigned>(out);
      const StoredWeights weights = random_weights(format.type, out, in, seed);
      const Matrix x = random_floats(rows, in, seed + 1000);
      const Matrix want = fma_chains(weights.dequantized(), x);
      for (Compute* compute : computes) {
        ASSERT_TRUE(same_bits(computed(weights.view, x, compute->context), want))
            << compute->pool.num_threads() << " threads";
      }
    }
  }
}

TEST_P(LinearOnEveryIsa, ManyRowsGiveTheBitsOfEachRowAlone) {
  Compute compute(GetParam(), 2);
  for (const TensorType type : {TensorType::kF32, TensorType::kQ8_0, TensorType::kQ4_K}) {
    const StoredWeights weights = random_weights(type, 35, 512, 1);
    const Matrix x = random_floats(257, 512, 2);  // one more than shares a decoding
    const Matrix all = computed(weights.view, x, compute.context);
    EXPECT_TRUE(same_bits(all, fma_chains(weights.dequantized(), x)));
    for (const Index count : {1, 2, 3, 5, 8, 13}) {
      for (const Index first : {Index{0}, Index{100}, 257 - count}) {
        const Matrix some = x.middleRows(first, count);
        ASSERT_TRUE(
            same_bits(computed(weights.view, some, compute.context), all.middleRows(first, count)))
            << info(type).name << ", rows " << first << " + " << count;
      }
    }
  }
}

TEST_P(LinearOnEveryIsa, AddsTheBiasThenTheOutput) {
  Compute compute(GetParam(), 2);
  const Index rows = 6, out = 21, in = 40;
  const StoredWeights weights = random_weights(TensorType::kF16, out, in, 3);
  const Matrix x = random_floats(rows, in, 4);
  const Matrix bias = random_floats(1, out, 5);
  const Matrix old = random_floats(rows, out, 6);
  const std::span<const float> bias_span(bias.data(), static_cast<std::size_t>(out));
  const Matrix sums = fma_chains(weights.dequantized(), x);
  Matrix with_bias = sums, with_both = old, with_output = old;
  for (Index m = 0; m < rows; ++m) {
    for (Index n = 0; n < out; ++n) {
      with_bias(m, n) = sums(m, n) + bias(0, n);
      with_both(m, n) = old(m, n) + with_bias(m, n);
      with_output(m, n) = old(m, n) + sums(m, n);
    }
  }
  EXPECT_TRUE(
      same_bits(computed(weights.view, x, compute.context, {.bias = bias_span}), with_bias));
  Matrix y = old;
  linear(weights.view, x, y, compute.context, {.add_to_output = true});
  EXPECT_TRUE(same_bits(y, with_output));
  y = old;
  linear(weights.view, x, y, compute.context, {.bias = bias_span, .add_to_output = true});
  EXPECT_TRUE(same_bits(y, with_both));
}

TEST_P(LinearOnEveryIsa, WritesOnlyItsColumnsOfRowsWithAStride) {
  Compute compute(GetParam(), 2);
  const StoredWeights weights = random_weights(TensorType::kQ5_1, 19, 64, 7);
  const Matrix x = random_floats(9, 100, 8);
  Matrix y = Matrix::Constant(9, 30, 7.0f);
  linear(weights.view, x.middleCols(20, 64), y.middleCols(5, 19), compute.context);
  EXPECT_TRUE(
      same_bits(y.middleCols(5, 19), fma_chains(weights.dequantized(), x.middleCols(20, 64))));
  EXPECT_TRUE((y.leftCols(5).array() == 7.0f).all());
  EXPECT_TRUE((y.rightCols(6).array() == 7.0f).all());
}

// An output is one chain of `in` roundings, each at most half an ulp of a partial sum, and partial
// sums are at most sum |x w|; then one rounding each for bias and output.
TEST_P(LinearOnEveryIsa, StaysInsideTheBoundOfItsRoundings) {
  Compute compute(GetParam(), 2);
  const Index rows = 5, out = 33;
  for (const TensorTypeInfo& format : tensor_types()) {
    const Index in = 512;
    const StoredWeights weights = random_weights(format.type, out, in, 9);
    const Matrix x = random_floats(rows, in, 10);
    const Matrix bias = random_floats(1, out, 11);
    const Matrix old = random_floats(rows, out, 12);
    Matrix y = old;
    linear(weights.view, x, y, compute.context,
           {.bias = {bias.data(), static_cast<std::size_t>(out)}, .add_to_output = true});
    const Eigen::MatrixXd wide = weights.dequantized().cast<double>();
    const Eigen::MatrixXd x_wide = x.cast<double>();
    const Eigen::MatrixXd addends =
        old.cast<double>().rowwise() + bias.row(0).cast<double>().eval();
    const Eigen::MatrixXd want = x_wide * wide.transpose() + addends;
    const Eigen::MatrixXd magnitude =
        x_wide.cwiseAbs() * wide.cwiseAbs().transpose() +
        (old.cast<double>().cwiseAbs().rowwise() + bias.row(0).cast<double>().cwiseAbs().eval());
    for (Index m = 0; m < rows; ++m) {
      for (Index n = 0; n < out; ++n) {
        const double bound =
            1.001 * static_cast<double>(in + 2) * support::kFloatRounding * magnitude(m, n);
        ASSERT_NEAR(static_cast<double>(y(m, n)), want(m, n), bound)
            << format.name << " [" << m << ", " << n << "]";
      }
    }
  }
}

TEST_P(LinearOnEveryIsa, ByHand) {
  Compute compute(GetParam());
  const std::vector<float> values = {1, 2, 3, -1, 0.5f, 4};  // 2 outputs of 3 inputs
  const WeightView weights(TensorType::kF32, std::as_bytes(std::span(values)), 2, 3);
  Matrix x(2, 3), want(2, 2);
  x << 1, 10, 100, 2, 0, -1;
  want << 321, 404, -1, -6;
  EXPECT_TRUE(same_bits(computed(weights, x, compute.context), want));
}

TEST_P(LinearOnEveryIsa, AnInfiniteInputStaysInItsRow) {
  Compute compute(GetParam());
  const StoredWeights weights = random_weights(TensorType::kQ8_0, 17, 32, 13);
  Matrix x = random_floats(9, 32, 14);
  const Matrix want = computed(weights.view, x, compute.context);
  x(4, 3) = std::numeric_limits<float>::infinity();
  const Matrix y = computed(weights.view, x, compute.context);
  EXPECT_TRUE(same_bits(y.topRows(4), want.topRows(4)));
  EXPECT_TRUE(same_bits(y.bottomRows(4), want.bottomRows(4)));
  EXPECT_FALSE(y.row(4).allFinite());
}

TEST(Linear, NoRowsAreNoWork) {
  Compute compute(Isa::kPortable);
  const StoredWeights weights = random_weights(TensorType::kF32, 3, 4, 15);
  Matrix y(0, 3);
  linear(weights.view, Matrix(0, 4), y, compute.context);
  EXPECT_EQ(y.rows(), 0);
}

TEST(Linear, DoesNotAllocate) {
  Compute compute(best_isa(), 2);
  const StoredWeights weights = random_weights(TensorType::kQ4_0, 100, 256, 16);
  const Matrix x = random_floats(20, 256, 17);
  Matrix y(20, 100);
  linear(weights.view, x, y, compute.context);
  const std::size_t before = support::num_allocations();
  linear(weights.view, x, y, compute.context);
  EXPECT_EQ(support::num_allocations(), before);
}

TEST(Linear, RejectsOperandsThatDoNotFit) {
  Compute compute(Isa::kPortable);
  const StoredWeights weights = random_weights(TensorType::kF32, 3, 4, 18);
  const auto call = [&](Index x_rows, Index x_cols, Index y_rows, Index y_cols, std::size_t bias) {
    const Matrix x = Matrix::Zero(x_rows, x_cols);
    Matrix y = Matrix::Zero(y_rows, y_cols);
    const std::vector<float> values(bias);
    linear(weights.view, x, y, compute.context, {.bias = values});
  };
  EXPECT_NO_THROW(call(2, 4, 2, 3, 0));
  EXPECT_NO_THROW(call(2, 4, 2, 3, 3));
  const ErrorCode shape = ErrorCode::kShape;
  expect_error(shape, "in_features = 4 columns, got 5", [&] { call(2, 5, 2, 3, 0); });
  expect_error(shape, "y must be [2, 3], got [1, 3]", [&] { call(2, 4, 1, 3, 0); });
  expect_error(shape, "y must be [2, 3], got [2, 4]", [&] { call(2, 4, 2, 4, 0); });
  expect_error(shape, "out_features = 3 values, got 2", [&] { call(2, 4, 2, 3, 2); });
}

}  // namespace
}  // namespace kvick
