// SPDX-License-Identifier: MIT
#include "kvick/nn/mlp.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kvick/core/math.hpp"
#include "kvick/reference/mlp.hpp"
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

struct Block {
  StoredWeights gate, up, down;
  PackedWeights packed_gate, packed_up, packed_down;
  GatedMlp weights() const { return {packed_gate, packed_up, packed_down}; }
};

PackedWeights packed(const WeightView& view) {
  ThreadPool pool(1);
  return PackedWeights(view, pool);
}

Block random_block(TensorType type, Index width, Index ffn, unsigned seed) {
  Block block;
  block.gate = random_weights(type, ffn, width, seed);
  block.up = random_weights(type, ffn, width, seed + 1);
  block.down = random_weights(type, width, ffn, seed + 2);
  block.packed_gate = packed(block.gate.view);
  block.packed_up = packed(block.up.view);
  block.packed_down = packed(block.down.view);
  return block;
}

void add_mlp(const GatedMlp& weights, const Matrix& x, MatrixRef y, MatrixRef hidden,
             Compute& compute) {
  LinearWorkspace workspace(compute.context.pool.num_threads());
  add_gated_mlp(weights, x, y, hidden, ActivationType::kF32, workspace, compute.context);
}

Matrix computed(const Block& block, const Matrix& x, const Matrix& old, Compute& compute) {
  Matrix y = old, hidden(x.rows(), block.gate.view.out_features());
  add_mlp(block.weights(), x, y, hidden, compute);
  return y;
}

/// The documented order of operations, written out once more.
Matrix naive(const Block& block, const Matrix& x, const Matrix& old) {
  const Matrix gate = fma_chains(block.gate.dequantized(), x);
  const Matrix up = fma_chains(block.up.dequantized(), x);
  Matrix hidden(gate.rows(), gate.cols());
  for (Index i = 0; i < gate.size(); ++i) {
    const float g = gate.data()[i];
    const float denominator = 1.0f + math::exp(-g);
    const float silu = g / denominator;
    hidden.data()[i] = silu * up.data()[i];
  }
  return old + fma_chains(block.down.dequantized(), hidden);
}

class GatedMlpOnEveryIsa : public support::OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, GatedMlpOnEveryIsa, ::testing::ValuesIn(supported_isas()),
                         support::isa_name);

TEST_P(GatedMlpOnEveryIsa, FollowsTheDocumentedOrderForEveryRowAndThreadCount) {
  const Block halves = random_block(TensorType::kF16, 41, 53, 1);
  const Block blocks = random_block(TensorType::kQ6_K, 256, 512, 4);
  for (const int threads : {1, 2, 3}) {
    Compute compute(GetParam(), threads);
    for (const Block* block : {&halves, &blocks}) {
      const Index width = block->gate.view.in_features();
      const Matrix x = random_floats(11, width, 7);
      const Matrix old = random_floats(11, width, 8);
      const Matrix want = naive(*block, x, old);
      ASSERT_TRUE(same_bits(computed(*block, x, old, compute), want)) << threads;
      for (Index row = 0; row < x.rows(); row += 5) {
        ASSERT_TRUE(same_bits(computed(*block, x.row(row), old.row(row), compute), want.row(row)))
            << threads;
      }
    }
  }
}

// A chain of K roundings errs by at most K u sum |x w|. The slope of silu is at most 1.1 and its
// own error 2.4 ulp (of at most 2u each). Second order terms fit into 1 %.
TEST_P(GatedMlpOnEveryIsa, StaysInsideTheBoundOfItsRoundings) {
  constexpr double u = support::kFloatRounding;
  Compute compute(GetParam(), 2);
  const Index width = 96, ffn = 160, rows = 7;
  const Block block = random_block(TensorType::kQ8_0, width, ffn, 11);
  const Matrix x = random_floats(rows, width, 14);
  const Matrix old = random_floats(rows, width, 15);
  const Matrix y = computed(block, x, old, compute);

  using Wide = reference::RowMajorMatrix<double>;
  const Wide xd = x.cast<double>(), gate = block.gate.dequantized().cast<double>(),
             up = block.up.dequantized().cast<double>(),
             down = block.down.dequantized().cast<double>();
  const Wide want = reference::gated_mlp(xd, gate, up, down) + old.cast<double>();
  const Wide g = xd * gate.transpose(), v = xd * up.transpose();
  const Wide g_error = static_cast<double>(width) * u * xd.cwiseAbs() * gate.cwiseAbs().transpose();
  const Wide v_error = static_cast<double>(width) * u * xd.cwiseAbs() * up.cwiseAbs().transpose();
  const Wide silu = g.array() / (1 + (-g.array()).exp());
  const Wide hidden = silu.cwiseProduct(v).cwiseAbs();
  const Wide hidden_error = (1.1 * g_error + 4.8 * u * silu.cwiseAbs()).cwiseProduct(v.cwiseAbs()) +
                            silu.cwiseAbs().cwiseProduct(v_error) + u * hidden;
  const Wide down_magnitude = hidden * down.cwiseAbs().transpose();
  const Wide bound = 1.01 * (hidden_error * down.cwiseAbs().transpose() +
                             static_cast<double>(ffn + 1) * u * down_magnitude +
                             u * old.cast<double>().cwiseAbs());
  for (Index row = 0; row < rows; ++row) {
    for (Index i = 0; i < width; ++i) {
      ASSERT_NEAR(static_cast<double>(y(row, i)), want(row, i), bound(row, i));
    }
  }
}

TEST_P(GatedMlpOnEveryIsa, ByHand) {
  Compute compute(GetParam());
  // Gates of 100, 0 and -200 open fully, hold nothing and close: silu is 100, 0 and -0.
  const std::vector<float> gate = {100, 0, -200}, up = {2, 5, 7}, down = {1, 1000, 1000};
  const auto pack = [](const std::vector<float>& values, Index out, Index in) {
    return packed(WeightView(TensorType::kF32, std::as_bytes(std::span(values)), out, in));
  };
  const PackedWeights packed_gate = pack(gate, 3, 1), packed_up = pack(up, 3, 1),
                      packed_down = pack(down, 1, 3);
  Matrix x(1, 1), y(1, 1), hidden(1, 3);
  x << 1;
  y << 0.5f;
  add_mlp({packed_gate, packed_up, packed_down}, x, y, hidden, compute);
  EXPECT_EQ(y(0, 0), 200.5f);
}

TEST_P(GatedMlpOnEveryIsa, OutputMayBeTheInput) {
  Compute compute(GetParam(), 2);
  const Block block = random_block(TensorType::kBF16, 24, 40, 21);
  const Matrix x = random_floats(5, 24, 24);
  Matrix y = x, hidden(5, 40);
  LinearWorkspace workspace(2);
  add_gated_mlp(block.weights(), y, y, hidden, ActivationType::kF32, workspace, compute.context);
  EXPECT_TRUE(same_bits(y, naive(block, x, x)));
}

TEST(GatedMlp, DoesNotAllocate) {
  Compute compute(best_isa(), 2);
  const Block block = random_block(TensorType::kQ8_0, 64, 96, 31);
  const Matrix x = random_floats(5, 64, 34);
  Matrix y = Matrix::Zero(5, 64), hidden(5, 96);
  LinearWorkspace workspace(2);
  for (const ActivationType activations : {ActivationType::kF32, ActivationType::kInt8}) {
    const auto add = [&] {
      add_gated_mlp(block.weights(), x, y, hidden, activations, workspace, compute.context);
    };
    add();
    const std::size_t before = support::num_allocations();
    add();
    EXPECT_EQ(support::num_allocations(), before);
  }
}

TEST(GatedMlp, RejectsOperandsThatDoNotFit) {
  Compute compute(Isa::kPortable);
  const auto weights = [](Index out, Index in) {
    return packed(random_weights(TensorType::kF32, out, in, 41).view);
  };
  const PackedWeights w64 = weights(6, 4), w54 = weights(5, 4), w46 = weights(4, 6),
                      w45 = weights(4, 5);
  const auto call = [&](const GatedMlp& mlp, Index x_cols, Index y_cols, Index hidden_cols) {
    const Matrix x = Matrix::Zero(2, x_cols);
    Matrix y = Matrix::Zero(2, y_cols), hidden(2, hidden_cols);
    add_mlp(mlp, x, y, hidden, compute);
  };
  const GatedMlp good = {w64, w64, w46};
  EXPECT_NO_THROW(call(good, 4, 4, 6));
  const ErrorCode shape = ErrorCode::kShape;
  expect_error(shape, "ffn = 6 of gate, got 5 and 6", [&] { call({w64, w54, w46}, 4, 4, 6); });
  expect_error(shape, "ffn = 6 of gate, got 6 and 5", [&] { call({w64, w64, w45}, 4, 4, 6); });
  expect_error(shape, "in_features = 4", [&] { call(good, 3, 4, 6); });
  expect_error(shape, "y must be [2, 4], got [2, 5]", [&] { call(good, 4, 5, 6); });
  expect_error(shape, "y must be [2, 6], got [2, 5]", [&] { call(good, 4, 4, 5); });
}

}  // namespace
}  // namespace kvick
