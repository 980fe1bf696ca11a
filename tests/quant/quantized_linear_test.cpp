// SPDX-License-Identifier: MIT
#include "kvick/quant/quantized_linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvick/reference/linear.hpp"
#include "nn/compute.hpp"
#include "quant/weight_parts.hpp"
#include "support/allocation_counter.hpp"
#include "support/fp_mode.hpp"

namespace kvick {
namespace {

using support::expect_error;
using support::random_floats;
using support::random_quantized;
using support::random_weights;
using support::same_bits;
using support::schemes_of;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr ActivationType kActivationTypes[] = {ActivationType::kInt8, ActivationType::kF32};

using MatrixD = reference::RowMajorMatrix<double>;

// ---- The bound of the header: |y - exact| <= sum |w| max / 254, plus f32 rounding
//
// An activation x becomes s q with s = max / 127 rounded and q = round(x * (127 / max)), where the
// quotient and the product round by 2^-24 of at most 127 each: |x - s q| <= max / 254 + 3 u max
// with u = 2^-24. Then at most 2 roundings of scales and one fma for each of the `steps` sums, all
// relative to the magnitudes |w x|, which quantized activations exceed by at most 1 %.

struct Bounded {
  MatrixD exact;
  MatrixD bound;
};

// max of the 32 values around x[m][k], or of its row.
MatrixD scale_magnitudes(const Matrix& x, bool whole_rows) {
  MatrixD result(x.rows(), x.cols());
  const Index size = whole_rows ? x.cols() : 32;
  for (Index m = 0; m < x.rows(); ++m) {
    for (Index first = 0; first < x.cols(); first += size) {
      const Index count = std::min(size, x.cols() - first);
      const double max = double{x.row(m).segment(first, count).cwiseAbs().maxCoeff()};
      result.row(m).segment(first, count).setConstant(max);
    }
  }
  return result;
}

// `magnitudes` are |w|, or |scale q| + |minimum| where weights have one.
Bounded bounded(const Matrix& weights, const Matrix& magnitudes, const Matrix& x,
                const Vector& bias, ActivationType activations, bool whole_rows) {
  constexpr double u = support::kFloatRounding;
  const MatrixD w = weights.cast<double>();
  const MatrixD size = magnitudes.cast<double>().cwiseAbs();
  Bounded result;
  result.exact = reference::linear(MatrixD(x.cast<double>()), w, bias.cast<double>());
  const MatrixD max = scale_magnitudes(x, whole_rows);
  const bool is_int8 = activations == ActivationType::kInt8;
  const double steps = is_int8 ? 2.0 * std::ceil(static_cast<double>(x.cols()) / 32.0) + 3.0
                               : static_cast<double>(x.cols());
  // For int8 every |x| is at most max.
  const MatrixD reach = is_int8 ? max : MatrixD(x.cast<double>().cwiseAbs());
  result.bound = 1.02 * u * (steps + (is_int8 ? 3.0 : 0.0)) * reference::linear(reach, size);
  if (is_int8) result.bound += reference::linear(max, MatrixD(w.cwiseAbs())) / 254.0;
  if (bias.size() != 0) {
    result.bound += u * (result.exact.cwiseAbs() + result.bound);
    result.bound.array() += 1e-30;
  }
  return result;
}

// Checks the bound, and that it says something: int8 results come at least within a factor of 40 of
// it and never are exact, so that a bound (or an error) of another order would show.
void expect_bounded(const Matrix& y, const Bounded& want, bool is_int8) {
  ASSERT_EQ(y.rows(), want.exact.rows());
  ASSERT_EQ(y.cols(), want.exact.cols());
  const MatrixD error = (y.cast<double>() - want.exact).cwiseAbs();
  double worst = 0.0;
  for (Index i = 0; i < y.size(); ++i) {
    ASSERT_LE(error.data()[i], want.bound.data()[i]) << "element " << i;
    worst = std::max(worst, error.data()[i] / want.bound.data()[i]);
  }
  if (is_int8 && y.size() >= 64) {
    EXPECT_GT(worst, 1.0 / 40);
  }
}

class QuantizedLinearOnEveryIsa : public support::OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, QuantizedLinearOnEveryIsa, ::testing::ValuesIn(supported_isas()),
                         support::isa_name);

TEST_P(QuantizedLinearOnEveryIsa, StaysWithinTheDocumentedBound) {
  unsigned seed = 0;
  for (int num_bits = 2; num_bits <= 8; ++num_bits) {
    for (const QuantizationScheme& scheme : schemes_of(num_bits)) {
      ++seed;
      const Index out = 20 + seed % 50, in = 1 + seed * 83 % 300, rows = 1 + seed % 12;
      SCOPED_TRACE(::testing::Message() << num_bits << " bits, " << out << " x " << in << ", "
                                        << rows << " rows, seed " << seed);
      const Matrix weights = random_floats(out, in, seed);
      const Vector bias = random_floats(out, 1, seed + 1000);
      const Matrix x = random_floats(rows, in, seed + 2000);
      const Matrix dequantized = dequantize(quantize(weights, scheme));
      const bool whole_rows = scheme.granularity() != Granularity::kGroup;
      for (const ActivationType activations : kActivationTypes) {
        QuantizedLinear layer(weights, bias,
                              {.scheme = scheme, .activations = activations, .isa = GetParam()});
        EXPECT_EQ(layer.activations(), activations);
        const bool is_int8 = activations == ActivationType::kInt8;
        expect_bounded(layer.forward(x),
                       bounded(dequantized, dequantized, x, bias, activations, whole_rows),
                       is_int8 && in >= 32);
      }
    }
  }
}

// The plain layer of the reference: scales and integers as two matrices, in double.
TEST_P(QuantizedLinearOnEveryIsa, AgreesWithDequantizingReference) {
  for (const QuantizationScheme& scheme : {per_group(32), per_group(64, {.num_bits = 4}),
                                           per_channel(), per_channel({.num_bits = 4})}) {
    const Index out = 40, in = 256;
    const QuantizedMatrix matrix = random_quantized(scheme, out, in, 5);
    Int8Matrix values(out, in);
    for (Index o = 0; o < out; ++o) matrix.unpack_row(o, &values(o, 0));
    const Matrix x = random_floats(7, in, 6);
    const MatrixD want = reference::dequantized_linear(MatrixD(x.cast<double>()), values,
                                                       matrix.scales().cast<double>());
    const Matrix weights = dequantize(matrix);
    for (const ActivationType activations : kActivationTypes) {
      QuantizedLinear layer(matrix, {.activations = activations, .isa = GetParam()});
      Bounded limits = bounded(weights, weights, x, Vector(), activations,
                               scheme.granularity() != Granularity::kGroup);
      // Weights are products of 24 and 8 bits rounded once.
      limits.bound +=
          support::kFloatRounding * reference::linear(MatrixD(x.cast<double>().cwiseAbs()),
                                                      MatrixD(weights.cast<double>().cwiseAbs()));
      limits.exact = want;
      expect_bounded(layer.forward(x), limits, activations == ActivationType::kInt8);
    }
  }
}

TEST_P(QuantizedLinearOnEveryIsa, KeepsStoredWeightsOfEveryFormat) {
  for (const TensorTypeInfo& format : tensor_types()) {
    SCOPED_TRACE(format.name);
    const auto weights = random_weights(format.type, 37, 256, 7);
    const support::WeightParts parts = support::parts_of(weights);
    Matrix magnitudes = parts.weights;
    if (parts.minimums.size() != 0) {
      magnitudes = parts.scales.cwiseProduct(parts.integers).cwiseAbs() + parts.minimums.cwiseAbs();
    }
    const Vector bias = random_floats(37, 1, 8);
    const Matrix x = random_floats(11, 256, 9);
    for (const ActivationType activations : kActivationTypes) {
      QuantizedLinear layer(weights.view, bias, {.activations = activations, .isa = GetParam()});
      EXPECT_EQ(layer.in_features(), 256);
      EXPECT_EQ(layer.out_features(), 37);
      const bool is_int8 = activations == ActivationType::kInt8 && format.block_size != 1;
      const ActivationType used = is_int8 ? ActivationType::kInt8 : ActivationType::kF32;
      expect_bounded(layer.forward(x), bounded(parts.weights, magnitudes, x, bias, used, false),
                     is_int8);
    }
  }
}

// "Exactly dequantize-then-multiply: fma over inputs ascending", then the bias.
TEST_P(QuantizedLinearOnEveryIsa, FloatActivationsGiveTheChainOfFma) {
  for (int num_bits = 2; num_bits <= 8; ++num_bits) {
    for (const QuantizationScheme& scheme : schemes_of(num_bits)) {
      const Matrix weights = random_floats(19, 77, 10);
      const Vector bias = random_floats(19, 1, 11);
      const Matrix x = random_floats(9, 77, 12);
      QuantizedLinear layer(
          weights, bias,
          {.scheme = scheme, .activations = ActivationType::kF32, .isa = GetParam()});
      Matrix want = support::fma_chains(dequantize(quantize(weights, scheme)), x);
      want.rowwise() += bias.transpose();
      ASSERT_TRUE(same_bits(layer.forward(x), want)) << num_bits << " bits";
    }
  }
}

TEST_P(QuantizedLinearOnEveryIsa, RowsThreadsAndIsaChangeNoBit) {
  const QuantizedMatrix matrix = random_quantized(per_group(64, {.num_bits = 4}), 150, 333, 13);
  const Matrix x = random_floats(530, 333, 14);
  for (const ActivationType activations : kActivationTypes) {
    QuantizedLinear plain(matrix, {.activations = activations, .isa = Isa::kPortable});
    const Matrix want = plain.forward(x);
    for (const int num_threads : {1, 2, 3}) {
      ThreadPool pool(num_threads);
      QuantizedLinear layer(matrix, {.activations = activations, .pool = &pool, .isa = GetParam()});
      for (const Index rows : {530, 1, 0, 8, 40}) {
        ASSERT_TRUE(same_bits(layer.forward(x.topRows(rows)), want.topRows(rows)))
            << rows << " rows, " << num_threads << " threads";
      }
    }
  }
}

TEST_P(QuantizedLinearOnEveryIsa, MakesExactlyRowsWithNaNsNaN) {
  for (const QuantizationScheme& scheme :
       {per_group(32), per_group(128, {.num_bits = 4}), per_channel(), per_tensor()}) {
    const Matrix weights = random_floats(40, 100, 15);
    for (const float special : {kNaN, kInfinity, -kInfinity}) {
      for (const Index bad : {0, 3}) {
        const Matrix clean = random_floats(11, 100, 16);
        Matrix x = clean;
        x(bad, 40) = special;
        for (const ActivationType activations : kActivationTypes) {
          QuantizedLinear layer(weights,
                                {.scheme = scheme, .activations = activations, .isa = GetParam()});
          const Matrix want = layer.forward(clean);
          const Matrix got = layer.forward(x);
          for (Index m = 0; m < x.rows(); ++m) {
            if (m != bad) {
              ASSERT_TRUE(same_bits(got.row(m), want.row(m))) << "row " << m;
            } else if (std::isnan(special) || activations == ActivationType::kInt8) {
              ASSERT_TRUE(got.row(m).array().isNaN().all());
            } else {  // floats keep infinities; infinity times 0 is NaN
              ASSERT_FALSE(got.row(m).array().isFinite().any());
            }
          }
        }
      }
    }
  }
}

TEST_P(QuantizedLinearOnEveryIsa, DependsOnNoFloatingPointModeOfTheCaller) {
  Matrix weights = random_floats(33, 90, 17);
  weights.row(3) *= 0x1p-125f;  // scales that flushing or rounding up would change
  const Vector bias = random_floats(33, 1, 18);
  Matrix x = random_floats(9, 90, 19);
  x.row(2) *= 0x1p-95f;
  for (const QuantizationScheme& scheme :
       {per_group(32), per_channel({.num_bits = 4}),
        per_tensor({.num_bits = 5, .scale = ScaleChoice::kLeastSquares})}) {
    for (const ActivationType activations : kActivationTypes) {
      const auto run = [&] {
        QuantizedLinear layer(weights, bias,
                              {.scheme = scheme, .activations = activations, .isa = GetParam()});
        return layer.forward(x);
      };
      const Matrix want = run();
      for (const support::FpMode mode : support::foreign_fp_modes()) {
        const support::ScopedFpMode scoped(mode);
        const Matrix got = run();
        EXPECT_EQ(support::observed_fp_mode(), mode);
        ASSERT_TRUE(same_bits(got, want)) << mode;
      }
    }
  }
}

// ---- Constructors

TEST(QuantizedLinear, ByHand) {
  Matrix weights(2, 3);
  weights << 127, -127, 0, 12, 127, -1;  // scales of 1: nothing is lost
  Vector bias(2);
  bias << 1000, -0.5f;
  Matrix x(2, 3);
  x << 127, 2, 3, -127, 0, 1;
  for (const ActivationType activations : kActivationTypes) {
    QuantizedLinear layer(weights, bias, {.activations = activations});
    const Matrix y = layer.forward(x);
    EXPECT_EQ(y(0, 0), 127 * 127 - 2 * 127 + 1000);
    EXPECT_EQ(y(0, 1), 12 * 127 + 2 * 127 - 3 - 0.5f);
    EXPECT_EQ(y(1, 0), -127 * 127 + 1000);
    EXPECT_EQ(y(1, 1), -12 * 127 - 1 - 0.5f);
  }
}

TEST(QuantizedLinear, AllSourcesOfTheSameValuesAgree) {
  const Matrix weights = random_floats(30, 64, 20);
  const Vector bias = random_floats(30, 1, 21);
  const Matrix x = random_floats(5, 64, 22);
  for (const QuantizationScheme& scheme : {per_group(32), per_channel(), per_tensor()}) {
    const QuantizedMatrix matrix = quantize(weights, scheme);
    QuantizedLinear from_floats(weights, bias, {.scheme = scheme});
    QuantizedLinear from_integers(matrix, bias);
    QuantizedLinear without_bias(matrix);
    const Matrix y = from_floats.forward(x);
    EXPECT_TRUE(same_bits(from_integers.forward(x), y));
    Matrix sums = without_bias.forward(x);
    sums.rowwise() += bias.transpose();
    EXPECT_TRUE(same_bits(sums, y));
    EXPECT_TRUE(same_bits(QuantizedLinear(weights, Vector(), {.scheme = scheme}).forward(x),
                          without_bias.forward(x)));
  }
}

TEST(QuantizedLinear, QuantizesInGroupsOf32UnlessToldOtherwise) {
  EXPECT_EQ(QuantizedLinearOptions().scheme, per_group(32));
  EXPECT_EQ(QuantizedLinearOptions().activations, ActivationType::kInt8);
  QuantizedLinear layer(random_floats(3, 40, 23));
  EXPECT_EQ(layer.weights().format(), PackedFormat::kGroup8);
  EXPECT_EQ(QuantizedLinear(random_weights(TensorType::kQ6_K, 2, 256, 1).view).weights().format(),
            PackedFormat::kQ6_K);
}

TEST(QuantizedLinear, TextbookConstructorStartsWithZeros) {
  QuantizedLinear layer(48, 20);
  EXPECT_EQ(layer.in_features(), 48);
  EXPECT_EQ(layer.out_features(), 20);
  EXPECT_EQ(layer.weights().format(), PackedFormat::kChannel8);
  const Matrix x = random_floats(3, 48, 24);
  EXPECT_TRUE((layer.forward(x).array() == 0.0f).all());
  EXPECT_EQ(QuantizedLinear(48, 20, 4).weights().format(), PackedFormat::kChannel4);
}

TEST(QuantizedLinear, TextbookConstructorTakesWeightsLater) {
  const Matrix x = random_floats(3, 48, 25);
  for (int num_bits = 2; num_bits <= 8; ++num_bits) {
    QuantizedLinear layer(48, 20, num_bits);
    for (const unsigned seed : {26u, 27u}) {
      const Matrix weights = random_floats(20, 48, seed);
      layer.quantize(weights);
      QuantizedLinear want(weights, {.scheme = per_channel({.num_bits = num_bits})});
      ASSERT_TRUE(same_bits(layer.forward(x), want.forward(x))) << num_bits << " bits";
    }
  }
}

TEST(QuantizedLinear, QuantizeKeepsTheSchemeAndTheBias) {
  const Matrix x = random_floats(3, 64, 28);
  const Vector bias = random_floats(20, 1, 29);
  const Matrix weights = random_floats(20, 64, 30);
  const QuantizationScheme scheme = per_group(64, {.num_bits = 4});
  QuantizedLinear from_floats(random_floats(20, 64, 31), bias, {.scheme = scheme});
  QuantizedLinear from_integers(random_quantized(scheme, 20, 64, 32), bias);
  QuantizedLinear want(weights, bias, {.scheme = scheme});
  for (QuantizedLinear* layer : {&from_floats, &from_integers}) {
    layer->quantize(weights);
    EXPECT_TRUE(same_bits(layer->forward(x), want.forward(x)));
  }
}

TEST(QuantizedLinear, QuantizeThatFailsChangesNothing) {
  QuantizedLinear layer(random_floats(20, 48, 33));
  const Matrix x = random_floats(3, 48, 34);
  const Matrix want = layer.forward(x);
  Matrix bad = random_floats(20, 48, 35);
  bad(19, 47) = kNaN;
  expect_error(ErrorCode::kArgument, "at row 19, column 47", [&] { layer.quantize(bad); });
  expect_error(ErrorCode::kShape, "weights must be [20, 48], got [48, 20]",
               [&] { layer.quantize(random_floats(48, 20, 1)); });
  EXPECT_TRUE(same_bits(layer.forward(x), want));
}

TEST(QuantizedLinear, TakesColumnMajorAndStridedArguments) {
  const Matrix weights = random_floats(30, 50, 36);
  const Matrix x = random_floats(7, 50, 37);
  QuantizedLinear layer(weights);
  const Matrix want = layer.forward(x);
  const Eigen::MatrixXf weight_columns = weights, x_columns = x;
  EXPECT_TRUE(same_bits(QuantizedLinear(weight_columns).forward(x), want));
  EXPECT_TRUE(same_bits(layer.forward(x_columns), want));
  EXPECT_TRUE(same_bits(layer.forward(x_columns.bottomRows(3)), want.bottomRows(3)));
  EXPECT_TRUE(same_bits(layer.forward(1.0f * x_columns), want));  // an expression

  Matrix wide_x = Matrix::Constant(7, 60, kNaN);
  wide_x.middleCols(5, 50) = x;
  Matrix wide_y = Matrix::Constant(7, 40, 77.0f);
  layer.forward(wide_x.middleCols(5, 50), wide_y.middleCols(4, 30));
  EXPECT_TRUE(same_bits(wide_y.middleCols(4, 30), want));
  EXPECT_TRUE((wide_y.leftCols(4).array() == 77.0f).all());
  EXPECT_TRUE((wide_y.rightCols(6).array() == 77.0f).all());

  layer.quantize(Matrix::Zero(30, 50));
  layer.quantize(weight_columns);
  EXPECT_TRUE(same_bits(layer.forward(x), want));
}

TEST(QuantizedLinear, TakesOneInputOneOutputAndOneRow) {
  for (const ActivationType activations : kActivationTypes) {
    QuantizedLinear layer(Matrix::Constant(1, 1, -127.0f), {.activations = activations});
    const Eigen::VectorXf column = Eigen::VectorXf::LinSpaced(5, -127.0f, 127.0f);
    const Matrix y = layer.forward(column);  // 5 rows of one input
    for (Index m = 0; m < 5; ++m) EXPECT_NEAR(y(m, 0), -127.0f * column(m), 1e-2f);
    const Matrix weights = random_floats(6, 40, 38);
    QuantizedLinear wide(weights, {.activations = activations});
    const Eigen::RowVectorXf row = random_floats(1, 40, 39);
    EXPECT_TRUE(same_bits(wide.forward(row), wide.forward(Matrix(row))));
  }
}

TEST(QuantizedLinear, AcceptsNoRows) {
  QuantizedLinear layer(random_floats(30, 50, 40), random_floats(30, 1, 41));
  const Matrix y = layer.forward(Matrix(0, 50));
  EXPECT_EQ(y.rows(), 0);
  EXPECT_EQ(y.cols(), 30);
}

TEST(QuantizedLinear, MovesWithItsWeights) {
  static_assert(std::is_move_constructible_v<QuantizedLinear>);
  static_assert(!std::is_copy_constructible_v<QuantizedLinear>);
  const Matrix x = random_floats(3, 50, 42);
  std::vector<QuantizedLinear> layers;
  layers.emplace_back(random_floats(30, 50, 43), random_floats(30, 1, 44));
  const Matrix want = layers[0].forward(x);
  layers.emplace_back(random_floats(30, 50, 45));  // moves the first
  layers.emplace_back(random_floats(30, 50, 46));
  EXPECT_TRUE(same_bits(layers[0].forward(x), want));
  layers[2] = std::move(layers[0]);
  EXPECT_TRUE(same_bits(layers[2].forward(x), want));
}

TEST(QuantizedLinear, AllocatesNothingOnceItHasSeenTheLargestInput) {
  for (const QuantizationScheme& scheme : {per_group(32), per_channel()}) {
    for (const ActivationType activations : kActivationTypes) {
      ThreadPool pool(2);
      QuantizedLinear layer(random_floats(100, 300, 47),
                            {.scheme = scheme, .activations = activations, .pool = &pool});
      const Matrix x = random_floats(20, 300, 48);
      Matrix y(20, 100);
      layer.forward(x, y);
      const std::size_t before = support::num_allocations();
      for (const Index rows : {20, 1, 9}) layer.forward(x.topRows(rows), y.topRows(rows));
      EXPECT_EQ(support::num_allocations(), before);
    }
  }
}

// ---- Small activations

// Groups below 2^-100 count as zero, groups from there on do not.
TEST(QuantizedLinear, TinyActivationsCountAsZero) {
  QuantizedLinear layer(Matrix::Constant(3, 32, 1.0f));
  EXPECT_TRUE((layer.forward(Matrix::Constant(1, 32, 0x1.fffffep-101f)).array() == 0.0f).all());
  EXPECT_NEAR(layer.forward(Matrix::Constant(1, 32, 0x1p-100f))(0, 0) * 0x1p100f, 32.0f, 1e-4f);
}

// ---- Errors

TEST(QuantizedLinear, RejectsShapesThatDoNotFit) {
  const ErrorCode shape = ErrorCode::kShape;
  const Matrix weights = random_floats(30, 50, 49);
  QuantizedLinear layer(weights);
  Matrix y(2, 30), narrow(2, 29), short_y(1, 30);
  expect_error(shape, "x must have in_features = 50 columns, got 49",
               [&] { layer.forward(Matrix::Zero(2, 49), y); });
  expect_error(shape, "got 51", [&] { layer.forward(Matrix::Zero(2, 51)); });
  expect_error(shape, "y must be [2, 30], got [2, 29]",
               [&] { layer.forward(Matrix::Zero(2, 50), narrow); });
  expect_error(shape, "y must be [2, 30], got [1, 30]",
               [&] { layer.forward(Matrix::Zero(2, 50), short_y); });

  const std::string bias_rule = "bias must be empty or have out_features = 30 values, got ";
  const QuantizedMatrix matrix = quantize(weights, per_group(32));
  const auto stored = random_weights(TensorType::kQ8_0, 30, 64, 1);
  for (const Index size : {1, 29, 31, 50}) {
    const Vector bias = Vector::Zero(size);
    const std::string rule = bias_rule + std::to_string(size);
    expect_error(shape, rule, [&] { QuantizedLinear(weights, bias); });
    expect_error(shape, rule, [&] { QuantizedLinear(matrix, bias); });
    expect_error(shape, rule, [&] { QuantizedLinear(stored.view, bias); });
  }
  expect_error(shape, "at least one output and input", [&] { QuantizedLinear(Matrix(0, 5)); });
  expect_error(shape, "at least one output and input", [&] { QuantizedLinear(Matrix(5, 0)); });
  expect_error(shape, "at least one output", [&] { QuantizedLinear{QuantizedMatrix()}; });
  expect_error(shape, "at least one output", [&] { QuantizedLinear{WeightView()}; });
  expect_error(shape, "got in_features = 0 and out_features = 5", [&] { QuantizedLinear(0, 5); });
  expect_error(shape, "got in_features = 5 and out_features = -1", [&] { QuantizedLinear(5, -1); });
  expect_error(shape, "at most 131072 inputs", [&] { QuantizedLinear(131073, 1); });
}

TEST(QuantizedLinear, RejectsOptionsAndWeightsOutOfRange) {
  const ErrorCode argument = ErrorCode::kArgument;
  for (const int num_bits : {-1, 0, 1, 9}) {
    expect_error(argument, "num_bits must be 2 to 8, got " + std::to_string(num_bits),
                 [&] { QuantizedLinear(8, 8, num_bits); });
  }
  for (const float special : {kNaN, kInfinity, -kInfinity}) {
    Matrix weights = random_floats(30, 50, 50);
    weights(7, 49) = special;
    for (const auto& scheme : {per_group(32), per_channel(), per_tensor()}) {
      expect_error(argument, "weights must be finite, got ",
                   [&] { QuantizedLinear(weights, {.scheme = scheme}); });
      expect_error(argument, "at row 7, column 49",
                   [&] { QuantizedLinear(weights, {.scheme = scheme}); });
    }
  }
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kNeonDotprod}) {
    if (is_supported(isa)) continue;
    expect_error(ErrorCode::kUnsupported, "isa",
                 [&] { QuantizedLinear(random_floats(2, 2, 1), {.isa = isa}); });
  }
}

}  // namespace
}  // namespace kvick
