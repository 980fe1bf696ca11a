// SPDX-License-Identifier: MIT
#include "kvick/quant/packed_linear.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvick/reference/linear.hpp"
#include "nn/compute.hpp"
#include "quant/weight_parts.hpp"
#include "support/allocation_counter.hpp"
#include "support/fp_mode.hpp"

namespace kvick {
namespace {

using support::Compute;
using support::contract_int8;
using support::expect_error;
using support::fma_chains;
using support::parts_of;
using support::random_floats;
using support::same_bits;
using support::WeightParts;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Random weights of a packed format, and what they are made of.
struct Layer {
  WeightParts parts;
  PackedWeights packed;

  bool is_float() const { return parts.integers.size() == 0; }
  Matrix expected(const Matrix& x, ActivationType activations) const {
    const bool is_int8 = activations == ActivationType::kInt8 && !is_float();
    return is_int8 ? contract_int8(parts, x) : fma_chains(parts.weights, x);
  }
};

constexpr PackedFormat kFormats[] = {
    PackedFormat::kF32,    PackedFormat::kF16,      PackedFormat::kBF16,    PackedFormat::kQ8_0,
    PackedFormat::kQ4_0,   PackedFormat::kQ4_1,     PackedFormat::kQ5_0,    PackedFormat::kQ5_1,
    PackedFormat::kQ4_K,   PackedFormat::kQ5_K,     PackedFormat::kQ6_K,    PackedFormat::kGroup8,
    PackedFormat::kGroup4, PackedFormat::kChannel8, PackedFormat::kChannel4};
static_assert(std::size(kFormats) == kNumPackedFormats);

TensorType stored_type(PackedFormat format) {
  constexpr TensorType kTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16,
                                   TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
                                   TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ4_K,
                                   TensorType::kQ5_K, TensorType::kQ6_K};
  return kTypes[static_cast<int>(format)];
}

// `in` is rounded up to whole blocks.
Layer make_layer(PackedFormat format, Index out, Index in, unsigned seed) {
  ThreadPool pool(1);
  if (format >= PackedFormat::kGroup8) {
    const bool is_nibble = format == PackedFormat::kGroup4 || format == PackedFormat::kChannel4;
    const QuantizeOptions options = {.num_bits = is_nibble ? 4 : 8, .full_range = seed % 2 == 0};
    const int group_size = 32 << seed % 3;
    const QuantizationScheme scheme = !is_per_channel(format) ? per_group(group_size, options)
                                      : seed % 3 == 0         ? per_tensor(options)
                                                              : per_channel(options);
    const QuantizedMatrix matrix = support::random_quantized(scheme, out, in, seed);
    return {parts_of(matrix), PackedWeights(matrix, pool)};
  }
  const TensorType type = stored_type(format);
  const auto block = static_cast<Index>(info(type).block_size);
  const auto weights = support::random_weights(type, out, (in + block - 1) / block * block, seed);
  return {parts_of(weights), PackedWeights(weights.view, pool)};
}

Matrix multiply_one(const PackedWeights& weights, const Matrix& x, ActivationType activations,
                    const ComputeContext& context) {
  LinearWorkspace workspace(context.pool.num_threads());
  Matrix y = Matrix::Constant(x.rows(), weights.out_features(), kNaN);
  const LinearProduct product{weights, y};
  multiply({&product, 1}, x, activations, workspace, context);
  return y;
}

// Normal values; a few groups are zeros, of other magnitudes, or of one value, which makes the
// largest sums.
Matrix random_input(Index rows, Index cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> kind(0, 15);
  Matrix x(rows, cols);
  for (Index m = 0; m < rows; ++m) {
    for (Index first = 0; first < cols; first += 32) {
      const int k = kind(random);
      const float size = k == 0 ? 0.0f : k == 1 ? 0x1p-110f : k == 2 ? 0x1p-30f : 1.0f;
      const float constant = normal(random);
      for (Index i = first; i < std::min(first + 32, cols); ++i) {
        x(m, i) = k == 3 ? constant : size * normal(random);
      }
    }
  }
  return x;
}

constexpr ActivationType kActivationTypes[] = {ActivationType::kInt8, ActivationType::kF32};

class PackedLinear : public support::OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, PackedLinear, ::testing::ValuesIn(supported_isas()),
                         support::isa_name);

// ---- The promise, to the bit

TEST_P(PackedLinear, RandomShapesGiveTheContract) {
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    std::mt19937 random(seed);
    for (const PackedFormat format : kFormats) {
      const auto draw = [&](int most) { return std::uniform_int_distribution(1, most)(random); };
      const Index out = draw(700), in = draw(700), rows = draw(40);
      const int num_threads = draw(3);
      SCOPED_TRACE(::testing::Message()
                   << "format " << static_cast<int>(format) << ", " << rows << " rows, " << out
                   << " x " << in << ", " << num_threads << " threads, seed " << seed);
      const Layer layer = make_layer(format, out, in, seed);
      const Matrix x = random_input(rows, layer.packed.in_features(), seed);
      Compute compute(GetParam(), num_threads);
      for (const ActivationType activations : kActivationTypes) {
        // Scalar chains of fma are slow: some rows tell enough of floats.
        const Matrix got = multiply_one(layer.packed, x, activations, compute.context);
        const Index checked =
            activations == ActivationType::kInt8 ? rows : std::min<Index>(rows, 5);
        const Matrix last = x.bottomRows(checked);
        ASSERT_TRUE(same_bits(got.bottomRows(checked), layer.expected(last, activations)));
      }
    }
  }
}

TEST_P(PackedLinear, EveryNumberOfRowsGivesTheContract) {
  for (const PackedFormat format : kFormats) {
    const Layer layer = make_layer(format, 69, 300, 5);  // 4 panels and 5 outputs
    const Matrix x = random_input(40, layer.packed.in_features(), 6);
    for (const ActivationType activations : kActivationTypes) {
      const Matrix want = layer.expected(x, activations);
      Compute compute(GetParam(), 2);
      LinearWorkspace workspace(2);  // shared, so that rows of other sizes are left in it
      for (Index rows = 40; rows >= 0; --rows) {
        Matrix y = Matrix::Constant(rows, 69, kNaN);
        const LinearProduct product{layer.packed, y};
        multiply({&product, 1}, x.topRows(rows), activations, workspace, compute.context);
        ASSERT_TRUE(same_bits(y, want.topRows(rows)))
            << "format " << static_cast<int>(format) << ", " << rows << " rows";
      }
    }
  }
}

TEST_P(PackedLinear, BlocksOfManyRowsGiveTheContract) {
  for (const PackedFormat format : kFormats) {
    const Layer layer = make_layer(format, 20, 64, 7);
    const Matrix x = random_input(1025, layer.packed.in_features(), 8);
    for (const ActivationType activations : kActivationTypes) {
      const Matrix want = layer.expected(x, activations);
      for (const int num_threads : {1, 3}) {
        Compute compute(GetParam(), num_threads);
        for (const Index rows : {511, 512, 513, 1025}) {
          const Matrix got =
              multiply_one(layer.packed, x.topRows(rows), activations, compute.context);
          ASSERT_TRUE(same_bits(got, want.topRows(rows)))
              << "format " << static_cast<int>(format) << ", " << rows << " rows";
        }
      }
    }
  }
}

TEST_P(PackedLinear, ARowIsTheSameAlone) {
  Compute compute(GetParam(), 2);
  for (const PackedFormat format : kFormats) {
    const Layer layer = make_layer(format, 130, 500, 9);
    const Matrix x = random_input(23, layer.packed.in_features(), 10);
    for (const ActivationType activations : kActivationTypes) {
      const Matrix all = multiply_one(layer.packed, x, activations, compute.context);
      for (Index m = 0; m < x.rows(); ++m) {
        ASSERT_TRUE(same_bits(multiply_one(layer.packed, x.row(m), activations, compute.context),
                              all.row(m)))
            << "format " << static_cast<int>(format) << ", row " << m;
      }
    }
  }
}

// More inputs than kernels unpack at a time.
TEST_P(PackedLinear, LongInputsGiveTheContract) {
  for (const PackedFormat format : kFormats) {
    const Layer layer = make_layer(format, 21, 2100, 46);
    const Matrix x = random_input(13, layer.packed.in_features(), 47);
    Compute compute(GetParam());
    for (const ActivationType activations : kActivationTypes) {
      const Matrix want = layer.expected(x, activations);
      for (const Index rows : {1, 8, 13}) {
        ASSERT_TRUE(
            same_bits(multiply_one(layer.packed, x.topRows(rows), activations, compute.context),
                      want.topRows(rows)))
            << "format " << static_cast<int>(format) << ", " << rows << " rows";
      }
    }
  }
}

// Sums of per-channel integers at the limit of 32 bits: 131072 * 128 * 127 = 2^31 - 2^24. Stored
// unsigned, 127 is 255: the sum before the zero point is taken off exceeds 2^31.
TEST_P(PackedLinear, TheLargestIntegerSumsAreExact) {
  constexpr Index kIn = 131072;
  Compute compute(GetParam(), 1);
  Int8Matrix values = Int8Matrix::Constant(2, kIn, -128);
  values.row(1).setConstant(127);
  const QuantizedMatrix matrix(per_channel({.full_range = true}), values,
                               Matrix::Constant(2, 1, 1.0f));
  const PackedWeights weights(matrix, compute.pool);
  Matrix x = Matrix::Constant(9, kIn, 127.0f);
  x.row(4) = -x.row(4);
  for (const Index rows : {1, 5, 9}) {
    const Matrix y = multiply_one(weights, x.topRows(rows), ActivationType::kInt8, compute.context);
    for (Index m = 0; m < rows; ++m) {
      const float sign = m == 4 ? -1.0f : 1.0f;
      EXPECT_EQ(y(m, 0), sign * -2130706432.0f) << "row " << m;
      EXPECT_EQ(y(m, 1), sign * 2114060288.0f) << "row " << m;  // 131072 * 127 * 127
    }
  }
}

// ---- Against exact sums, in double

// s q + m and what activations stand for, multiplied exactly; each of the at most 3 roundings a
// group and 2 fma (scale, scaled sum, half scales) cost 2^-24 of the magnitudes.
TEST_P(PackedLinear, Int8ProductsAreCloseToExactSums) {
  Compute compute(GetParam());
  for (const PackedFormat format : kFormats) {
    if (is_float(format)) continue;
    const Layer layer = make_layer(format, 33, 400, 11);
    const Index in = layer.packed.in_features();
    const Matrix x = random_input(3, in, 12);
    const Matrix y = multiply_one(layer.packed, x, ActivationType::kInt8, compute.context);
    for (Index m = 0; m < x.rows(); ++m) {
      const auto a = support::quantize_activations(x, m, is_per_channel(format));
      for (Index o = 0; o < 33; ++o) {
        double exact = 0.0, magnitude = 0.0;
        for (Index k = 0; k < in; ++k) {
          const double w = double{layer.parts.scales(o, k)} * double{layer.parts.integers(o, k)};
          const double minimum =
              layer.parts.minimums.size() != 0 ? double{layer.parts.minimums(o, k)} : 0.0;
          const double value = double{a.scales[static_cast<std::size_t>(k / 32)]} *
                               a.values[static_cast<std::size_t>(k)];
          exact += (w + minimum) * value;
          magnitude += (std::abs(w) + std::abs(minimum)) * std::abs(value);
        }
        const double steps = 2.0 * std::ceil(static_cast<double>(in) / 32.0) + 3.0;
        ASSERT_NEAR(double{y(m, o)}, exact, 1.01 * steps * support::kFloatRounding * magnitude)
            << "format " << static_cast<int>(format);
      }
    }
  }
}

// Of n fma in a row, each rounds a partial sum: at most n 2^-24 of the magnitudes.
TEST_P(PackedLinear, FloatProductsAreCloseToTheReference) {
  Compute compute(GetParam());
  for (const PackedFormat format : kFormats) {
    const Layer layer = make_layer(format, 40, 300, 13);
    const Eigen::MatrixXd weights = layer.parts.weights.cast<double>();
    const Matrix x = random_input(5, layer.packed.in_features(), 14);
    const auto exact = reference::linear(x.cast<double>(), weights);
    const auto magnitude = reference::linear(x.cast<double>().cwiseAbs(), weights.cwiseAbs());
    const Matrix y = multiply_one(layer.packed, x, ActivationType::kF32, compute.context);
    const double steps = static_cast<double>(x.cols());
    for (Index i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(double{y.data()[i]}, exact.data()[i],
                  1.01 * steps * support::kFloatRounding * magnitude.data()[i])
          << "format " << static_cast<int>(format);
    }
  }
}

// ---- Bias, residual, strides

TEST_P(PackedLinear, AddsTheBiasAndThenTheOldOutput) {
  for (const PackedFormat format :
       {PackedFormat::kF32, PackedFormat::kQ4_K, PackedFormat::kGroup8, PackedFormat::kChannel4}) {
    const Layer layer = make_layer(format, 53, 100, 15);
    const Matrix bias = random_floats(1, 53, 16);
    for (const Index rows : {1, 3, 9, 530}) {
      const Matrix x = random_input(rows, layer.packed.in_features(), 17);
      const Matrix old = random_floats(rows, 53, 18);
      for (const ActivationType activations : kActivationTypes) {
        const Matrix sums = layer.expected(x, activations);
        Compute compute(GetParam(), 2);
        LinearWorkspace workspace(2);
        for (const bool has_bias : {false, true}) {
          for (const bool add : {false, true}) {
            Matrix y = old;
            const std::span<const float> values(bias.data(), has_bias ? 53 : 0);
            const LinearProduct product{layer.packed, y, values, add};
            multiply({&product, 1}, x, activations, workspace, compute.context);
            Matrix want = sums;
            if (has_bias) want.rowwise() += bias.row(0);
            if (add) want = old + want;
            ASSERT_TRUE(same_bits(y, want)) << "format " << static_cast<int>(format) << ", " << rows
                                            << " rows, bias " << has_bias << ", add " << add;
          }
        }
      }
    }
  }
}

TEST_P(PackedLinear, ReadsAndWritesOnlyTheColumnsOfStridedOperands) {
  Compute compute(GetParam(), 2);
  for (const PackedFormat format : kFormats) {
    const Layer layer = make_layer(format, 37, 45, 19);
    const Index in = layer.packed.in_features();
    for (const Index rows : {2, 7, 21}) {
      for (const ActivationType activations : kActivationTypes) {
        Matrix wide_x = Matrix::Constant(rows, in + 11, kNaN);
        Matrix wide_y = Matrix::Constant(rows, 37 + 9, 77.0f);
        const Matrix x = random_input(rows, in, 20);
        wide_x.middleCols(3, in) = x;
        LinearWorkspace workspace(2);
        const LinearProduct product{layer.packed, wide_y.middleCols(4, 37)};
        multiply({&product, 1}, wide_x.middleCols(3, in), activations, workspace, compute.context);
        ASSERT_TRUE(same_bits(wide_y.middleCols(4, 37), layer.expected(x, activations)))
            << "format " << static_cast<int>(format) << ", " << rows << " rows";
        EXPECT_TRUE((wide_y.leftCols(4).array() == 77.0f).all());
        EXPECT_TRUE((wide_y.rightCols(5).array() == 77.0f).all());
      }
    }
  }
}

TEST_P(PackedLinear, TakesColumnMajorInput) {
  Compute compute(GetParam());
  const Layer layer = make_layer(PackedFormat::kGroup8, 20, 50, 21);
  const Matrix x = random_input(6, 50, 22);
  const Eigen::MatrixXf columns = x;
  LinearWorkspace workspace(1);
  Matrix y(6, 20);
  const LinearProduct product{layer.packed, y};
  multiply({&product, 1}, columns, ActivationType::kInt8, workspace, compute.context);
  EXPECT_TRUE(same_bits(y, layer.expected(x, ActivationType::kInt8)));
}

// ---- Fused calls

TEST_P(PackedLinear, FusedProductsAreTheSeparateOnes) {
  // Formats that quantize by group, by row and not at all; panels that strips of three cross.
  std::vector<Layer> layers;
  const std::pair<PackedFormat, Index> wanted[] = {
      {PackedFormat::kQ4_K, 100}, {PackedFormat::kChannel8, 16}, {PackedFormat::kF16, 33},
      {PackedFormat::kQ6_K, 1},   {PackedFormat::kGroup4, 70},   {PackedFormat::kChannel4, 129}};
  for (const auto& [format, out] : wanted) layers.push_back(make_layer(format, out, 256, 23));
  const Matrix bias = random_floats(1, 200, 24);
  for (const int num_threads : {1, 2, 3}) {
    Compute compute(GetParam(), num_threads);
    LinearWorkspace workspace(num_threads);
    for (const Index rows : {0, 1, 4, 8, 9, 25, 515}) {
      const Matrix x = random_input(rows, 256, 25);
      for (const ActivationType activations : kActivationTypes) {
        std::vector<Matrix> ys, wants;
        for (const Layer& layer : layers) {
          ys.push_back(random_floats(rows, layer.packed.out_features(), 26));
          wants.push_back(ys.back());
        }
        std::vector<LinearProduct> products;
        for (std::size_t i = 0; i < layers.size(); ++i) {
          const auto out = static_cast<std::size_t>(layers[i].packed.out_features());
          const std::span<const float> some_bias(bias.data(), i % 2 == 0 ? out : 0);
          products.push_back({layers[i].packed, ys[i], some_bias, i % 3 == 0});
          const LinearProduct alone{layers[i].packed, wants[i], some_bias, i % 3 == 0};
          multiply({&alone, 1}, x, activations, workspace, compute.context);
        }
        multiply(products, x, activations, workspace, compute.context);
        for (std::size_t i = 0; i < layers.size(); ++i) {
          ASSERT_TRUE(same_bits(ys[i], wants[i]))
              << "product " << i << ", " << rows << " rows, " << num_threads << " threads";
        }
      }
    }
  }
}

TEST_P(PackedLinear, GatedProductsAreTheSeparateOnes) {
  const std::pair<PackedFormat, PackedFormat> pairs[] = {
      {PackedFormat::kQ4_K, PackedFormat::kQ6_K},
      {PackedFormat::kChannel8, PackedFormat::kGroup8},
      {PackedFormat::kF32, PackedFormat::kQ8_0},
      {PackedFormat::kChannel4, PackedFormat::kBF16}};
  for (const auto& [gate_format, up_format] : pairs) {
    for (const Index out : {5, 48, 119}) {
      const Layer gate = make_layer(gate_format, out, 256, 27);
      const Layer up = make_layer(up_format, out, 256, 28);
      for (const int num_threads : {1, 3}) {
        Compute compute(GetParam(), num_threads);
        LinearWorkspace workspace(num_threads);
        for (const Index rows : {0, 1, 6, 8, 9, 30, 520}) {
          if (rows == 520 && out != 48) continue;  // blocks of rows: once is enough
          const Matrix x = random_input(rows, 256, 29);
          for (const ActivationType activations : kActivationTypes) {
            Matrix wide = Matrix::Constant(rows, out + 3, 77.0f);
            multiply_gated(gate.packed, up.packed, x, wide.leftCols(out), activations, workspace,
                           compute.context);
            const Matrix gates = multiply_one(gate.packed, x, activations, compute.context);
            const Matrix ups = multiply_one(up.packed, x, activations, compute.context);
            Matrix want(rows, out);
            kernel_table(Isa::kPortable)
                .silu_multiply(gates.data(), ups.data(), want.data(), want.size());
            ASSERT_TRUE(same_bits(wide.leftCols(out), want)) << rows << " rows, " << out;
            if (rows > 0) {
              EXPECT_TRUE((wide.rightCols(3).array() == 77.0f).all());
            }
          }
        }
      }
    }
  }
}

// silu by hand: 0 for 0, x / (1 + exp(-x)) else.
TEST_P(PackedLinear, GatedProductsByHand) {
  Compute compute(GetParam());
  Matrix gate_weights(2, 1), up_weights(2, 1), x(1, 1), y(1, 2);
  gate_weights << 0.0f, 1.0f;
  up_weights << 5.0f, -3.0f;
  x << 2.0f;
  LinearWorkspace workspace(1);
  multiply_gated(PackedWeights(gate_weights, compute.pool), PackedWeights(up_weights, compute.pool),
                 x, y, ActivationType::kF32, workspace, compute.context);
  EXPECT_EQ(y(0, 0), 0.0f);
  EXPECT_NEAR(double{y(0, 1)}, 2.0 / (1.0 + std::exp(-2.0)) * -6.0, 1e-5);
}

TEST_P(PackedLinear, OneProductByHand) {
  Compute compute(GetParam());
  Int8Matrix values(2, 3);
  values << 1, 2, 3, -4, 5, -6;
  const QuantizedMatrix matrix(per_group(32), values, Matrix::Constant(2, 1, 0.5f));
  Matrix x(1, 3);
  x << 127.0f, -64.0f, 1.0f;  // the scale is 1: int8 loses nothing
  for (const ActivationType activations : kActivationTypes) {
    const Matrix y =
        multiply_one(PackedWeights(matrix, compute.pool), x, activations, compute.context);
    EXPECT_EQ(y(0, 0), 1.0f);     // (127 - 128 + 3) / 2
    EXPECT_EQ(y(0, 1), -417.0f);  // (-508 - 320 - 6) / 2
  }
}

TEST_P(PackedLinear, NoProductsAndNoRowsDoNothing) {
  Compute compute(GetParam(), 2);
  LinearWorkspace workspace(2);
  multiply({}, random_floats(3, 4, 1), ActivationType::kInt8, workspace, compute.context);
  const Layer layer = make_layer(PackedFormat::kQ8_0, 5, 32, 1);
  EXPECT_EQ(
      multiply_one(layer.packed, Matrix(0, 32), ActivationType::kInt8, compute.context).rows(), 0);
}

// ---- Values that are not finite

TEST_P(PackedLinear, NaNsAndInfinitiesStayInTheirRows) {
  Compute compute(GetParam(), 2);
  for (const PackedFormat format : kFormats) {
    const Layer layer = make_layer(format, 37, 300, 30);
    for (const Index rows : {3, 8, 19}) {
      for (const float special : {kNaN, kInfinity, -kInfinity}) {
        const Matrix clean = random_input(rows, layer.packed.in_features(), 31);
        Matrix x = clean;
        x(1, layer.packed.in_features() - 1) = special;
        for (const ActivationType activations : kActivationTypes) {
          const Matrix got = multiply_one(layer.packed, x, activations, compute.context);
          const Matrix want = multiply_one(layer.packed, clean, activations, compute.context);
          const bool is_int8 = activations == ActivationType::kInt8 && !is_float(format);
          for (Index m = 0; m < rows; ++m) {
            if (m != 1) {
              ASSERT_TRUE(same_bits(got.row(m), want.row(m))) << "row " << m;
            } else if (is_int8 || std::isnan(special)) {
              ASSERT_TRUE(got.row(m).array().isNaN().all()) << static_cast<int>(format);
            } else {
              ASSERT_FALSE(got.row(m).array().isFinite().any()) << static_cast<int>(format);
            }
          }
        }
      }
    }
  }
}

// ---- Modes, threads, memory, errors

TEST_P(PackedLinear, DependsOnNoFloatingPointModeOfTheCaller) {
  Compute compute(GetParam(), 2);
  for (const PackedFormat format : kFormats) {
    const Layer layer = make_layer(format, 70, 200, 32);
    const Matrix bias = random_floats(1, 70, 33);
    const std::span<const float> values(bias.data(), 70);
    for (const Index rows : {2, 11}) {
      const Matrix x = random_input(rows, layer.packed.in_features(), 34);
      for (const ActivationType activations : kActivationTypes) {
        LinearWorkspace workspace(2);
        const auto run = [&] {
          Matrix y = Matrix::Constant(rows, 70, 0.1f);
          const LinearProduct product{layer.packed, y, values, true};
          multiply({&product, 1}, x, activations, workspace, compute.context);
          Matrix gated(rows, 70);
          multiply_gated(layer.packed, layer.packed, x, gated, activations, workspace,
                         compute.context);
          Matrix both(2 * rows, 70);
          both << y, gated;
          return both;
        };
        const Matrix want = run();
        for (const support::FpMode mode : support::foreign_fp_modes()) {
          const support::ScopedFpMode scoped(mode);
          const Matrix got = run();
          EXPECT_EQ(support::observed_fp_mode(), mode);
          ASSERT_TRUE(same_bits(got, want)) << "format " << static_cast<int>(format) << " " << mode;
        }
      }
    }
  }
}

TEST_P(PackedLinear, MayRunInsideABusyPool) {
  Compute compute(GetParam(), 3);
  const Layer layer = make_layer(PackedFormat::kQ5_K, 150, 256, 35);
  const Matrix x = random_input(12, 256, 36);
  std::vector<Matrix> got(6);
  compute.pool.parallel_for(6, 1, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      got[static_cast<std::size_t>(i)] =
          multiply_one(layer.packed, x, ActivationType::kInt8, compute.context);
    }
  });
  const Matrix want = layer.expected(x, ActivationType::kInt8);
  for (const Matrix& y : got) EXPECT_TRUE(same_bits(y, want));
}

TEST_P(PackedLinear, AllocatesNothingOnceItHasSeenTheLargestInput) {
  Compute compute(GetParam(), 2);
  std::vector<Layer> layers;
  for (const PackedFormat format :
       {PackedFormat::kF32, PackedFormat::kGroup8, PackedFormat::kQ6_K, PackedFormat::kChannel4}) {
    layers.push_back(make_layer(format, 35, 100, 37));
  }
  LinearWorkspace workspace(2);
  std::vector<Matrix> inputs;
  for (const Layer& layer : layers) {
    inputs.push_back(random_input(513, layer.packed.in_features(), 38));
  }
  Matrix y(513, 35);
  const auto run = [&](Index rows) {
    for (const ActivationType activations : kActivationTypes) {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        const PackedWeights& weights = layers[i].packed;
        const ConstMatrixRef x = inputs[i].topRows(rows);
        const LinearProduct product{weights, y.topRows(rows)};
        multiply({&product, 1}, x, activations, workspace, compute.context);
        multiply_gated(weights, weights, x, y.topRows(rows), activations, workspace,
                       compute.context);
      }
    }
  };
  run(513);
  const std::size_t before = support::num_allocations();
  for (const Index rows : {513, 1, 9, 512}) run(rows);
  EXPECT_EQ(support::num_allocations(), before);
}

TEST_P(PackedLinear, WorkspacesServeInputsOfAnyOrder) {
  Compute compute(GetParam(), 2);
  LinearWorkspace workspace(2);
  const Layer narrow = make_layer(PackedFormat::kChannel8, 40, 33, 39);
  const Layer wide = make_layer(PackedFormat::kChannel8, 20, 500, 40);
  const Layer grouped = make_layer(PackedFormat::kGroup8, 40, 33, 41);
  const std::pair<const Layer*, Index> calls[] = {{&wide, 3},    {&narrow, 40}, {&grouped, 1},
                                                  {&wide, 1},    {&narrow, 9},  {&grouped, 70},
                                                  {&narrow, 70}, {&wide, 17}};
  for (const auto& [layer, rows] : calls) {
    const Matrix x = random_input(rows, layer->packed.in_features(), 42);
    Matrix y(rows, layer->packed.out_features());
    const LinearProduct product{layer->packed, y};
    multiply({&product, 1}, x, ActivationType::kInt8, workspace, compute.context);
    ASSERT_TRUE(same_bits(y, layer->expected(x, ActivationType::kInt8))) << rows << " rows";
  }
}

TEST(PackedLinearErrors, NameWhatDoesNotFit) {
  Compute compute(default_isa(), 2);
  const Layer layer = make_layer(PackedFormat::kQ8_0, 20, 64, 43);
  const Layer other = make_layer(PackedFormat::kQ8_0, 21, 64, 44);
  const std::vector<float> values(21);
  const auto call = [&](Index x_rows, Index x_cols, Index y_rows, Index y_cols,
                        std::size_t bias_size, int num_threads) {
    LinearWorkspace workspace(num_threads);
    Matrix y(y_rows, y_cols);
    const LinearProduct product{layer.packed, y, std::span(values).first(bias_size)};
    multiply({&product, 1}, Matrix::Zero(x_rows, x_cols), ActivationType::kInt8, workspace,
             compute.context);
  };
  const ErrorCode shape = ErrorCode::kShape;
  EXPECT_NO_THROW(call(3, 64, 3, 20, 20, 2));
  EXPECT_NO_THROW(call(3, 64, 3, 20, 0, 3));
  expect_error(shape, "[multiply] x must have in_features = 64 columns, got 63",
               [&] { call(3, 63, 3, 20, 0, 2); });
  expect_error(shape, "y must be [3, 20], got [2, 20]", [&] { call(3, 64, 2, 20, 0, 2); });
  expect_error(shape, "y must be [3, 20], got [3, 21]", [&] { call(3, 64, 3, 21, 0, 2); });
  expect_error(shape, "y must be [0, 20], got [1, 20]", [&] { call(0, 64, 1, 20, 0, 2); });
  expect_error(shape, "bias must have out_features = 20 values, got 19",
               [&] { call(3, 64, 3, 20, 19, 2); });
  expect_error(shape, "got 21", [&] { call(3, 64, 3, 20, 21, 2); });
  expect_error(ErrorCode::kArgument, "at most the 1 threads given to the workspace, got 2",
               [&] { call(3, 64, 3, 20, 0, 1); });

  const auto gated = [&](const PackedWeights& gate, const PackedWeights& up, Index x_cols,
                         Index y_cols, int num_threads) {
    LinearWorkspace workspace(num_threads);
    Matrix y(3, y_cols);
    multiply_gated(gate, up, Matrix::Zero(3, x_cols), y, ActivationType::kInt8, workspace,
                   compute.context);
  };
  EXPECT_NO_THROW(gated(layer.packed, layer.packed, 64, 20, 2));
  expect_error(shape, "[multiply_gated] x must have in_features = 64 columns, got 65",
               [&] { gated(layer.packed, layer.packed, 65, 20, 2); });
  expect_error(shape, "y must be [3, 21], got [3, 20]",
               [&] { gated(layer.packed, other.packed, 64, 20, 2); });
  expect_error(shape, "y must be [3, 20], got [3, 21]",
               [&] { gated(layer.packed, other.packed, 64, 21, 2); });
  expect_error(ErrorCode::kArgument, "threads given to the workspace",
               [&] { gated(layer.packed, layer.packed, 64, 20, 1); });
}

// The second of two products is wrong: the first must not have been written.
TEST(PackedLinearErrors, ComeBeforeAnyOutput) {
  Compute compute(default_isa());
  const Layer layer = make_layer(PackedFormat::kQ8_0, 20, 64, 45);
  LinearWorkspace workspace(1);
  Matrix good = Matrix::Constant(2, 20, 77.0f), bad(2, 19);
  const LinearProduct products[] = {{layer.packed, good}, {layer.packed, bad}};
  expect_error(ErrorCode::kShape, "got [2, 19]", [&] {
    multiply(products, Matrix::Zero(2, 64), ActivationType::kInt8, workspace, compute.context);
  });
  EXPECT_TRUE((good.array() == 77.0f).all());
}

}  // namespace
}  // namespace kvick
