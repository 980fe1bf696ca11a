// SPDX-License-Identifier: MIT
#include "kvick/nn/rope.hpp"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <complex>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "nn/compute.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::Compute;
using support::expect_error;
using support::random_floats;
using support::same_bits;
using Complex = std::complex<long double>;

/// Elements of pair i within a head.
std::pair<Index, Index> pair_of(RopeForm form, Index i, Index rotary_dim) {
  return form == RopeForm::kAdjacentPairs ? std::pair(2 * i, 2 * i + 1)
                                          : std::pair(i, i + rotary_dim / 2);
}

/// e^(i angle) at a position.
Complex turn(const Rope& rope, Index pair, int position) {
  const long double angle = static_cast<long double>(position) *
                            static_cast<long double>(rope.frequencies()[static_cast<size_t>(pair)]);
  return static_cast<long double>(rope.magnitude()) * Complex(std::cos(angle), std::sin(angle));
}

Matrix rotations_of(const Rope& rope, const std::vector<int>& positions) {
  Matrix rotations(static_cast<Index>(positions.size()), rope.rotary_dim());
  rope.rotations(positions, rotations);
  return rotations;
}

Matrix rotated(const Rope& rope, const Matrix& x, const std::vector<int>& positions,
               const ComputeContext& context) {
  Matrix y = x;
  rope.apply(rotations_of(rope, positions), y, context);
  return y;
}

// Cosines are at most the magnitude and rounded to float once (half an ulp of that); the angle
// carries one rounding in double. Angles here stay below 2^20: 2^-33 of error.
double table_error(const Rope& rope) { return rope.magnitude() * (0x1p-24 + 0x1p-33); }

/// Of an element of a rotated pair: the table's error for both operands, the rounding of one
/// product, and that of the result.
double pair_error(const Rope& rope, float a, float b) {
  const double magnitude = std::fabs(static_cast<double>(a)) + std::fabs(static_cast<double>(b));
  return magnitude * (table_error(rope) + 2.001 * support::kFloatRounding * rope.magnitude());
}

void expect_frequencies(const Rope& rope,
                        std::initializer_list<std::pair<std::size_t, double>> want) {
  for (const auto& [i, frequency] : want) {
    EXPECT_NEAR(rope.frequencies()[i], frequency, 0x1p-50 * frequency) << "pair " << i;
  }
}

// ---- Frequencies. Expected values: the published formulas in 40-digit decimal arithmetic.

TEST(RopeFrequencies, ArePowersOfTheBase) {
  const Rope rope({.head_dim = 128});
  ASSERT_EQ(rope.frequencies().size(), 64u);
  expect_frequencies(rope, {{0, 1.0},
                            {1, 0.8659643233600653523},
                            {16, 0.1},  // 10000^(-32 / 128)
                            {32, 0.01},
                            {48, 0.001},
                            {63, 0.0001154781984689458180}});
  EXPECT_EQ(rope.magnitude(), 1.0);
  EXPECT_EQ(rope.rotary_dim(), 128);
}

TEST(RopeFrequencies, LinearScalingDividesThem) {
  const Rope rope({.head_dim = 128, .scaling = RopeScaling::kLinear, .factor = 4});
  expect_frequencies(rope,
                     {{0, 0.25}, {1, 0.2164910808400163380}, {63, 0.00002886954961723645449}});
  EXPECT_EQ(rope.magnitude(), 1.0);
}

// Wavelengths below 8192 / 4 are kept (up to pair 28: 1956.5), those above 8192 / 1 are divided by
// 8 (from pair 35: 8218.7), and a ramp over 8192 / wavelength lies between.
TEST(RopeFrequencies, Llama3ScalingHasThreeBands) {
  const RopeOptions llama3 = {.head_dim = 128,
                              .freq_base = 500000,
                              .scaling = RopeScaling::kLlama3,
                              .factor = 8,
                              .original_context_length = 8192,
                              .low_freq_factor = 1,
                              .high_freq_factor = 4};
  const Rope rope(llama3);
  const Rope plain({.head_dim = 128, .freq_base = 500000});
  for (std::size_t i = 0; i <= 28; ++i) EXPECT_EQ(rope.frequencies()[i], plain.frequencies()[i]);
  for (std::size_t i = 35; i < 64; ++i)
    EXPECT_EQ(rope.frequencies()[i], plain.frequencies()[i] / 8);
  expect_frequencies(rope, {{0, 1.0},
                            {1, 8.14617233856544720e-01},
                            {28, 3.21144599475259090e-03},
                            {29, 2.16657076350335867e-03},
                            {30, 1.37189356776113813e-03},
                            {32, 5.24846160992954681e-04},
                            {34, 1.78507812767996410e-04},
                            {35, 9.55621235396468327e-05},
                            {63, 3.06892598891451108e-07}});
  EXPECT_EQ(rope.magnitude(), 1.0);
}

// The pair that turns 32 times over 32768 positions is 23.596, the one that turns once is 39.651:
// the ramp goes from 23 (kept) to 40 (divided by 4).
TEST(RopeFrequencies, YarnScalingRampsOverPairs) {
  const Rope rope({.head_dim = 128,
                   .freq_base = 1e6,
                   .scaling = RopeScaling::kYarn,
                   .factor = 4,
                   .original_context_length = 32768});
  const Rope plain({.head_dim = 128, .freq_base = 1e6});
  for (std::size_t i = 0; i <= 23; ++i) EXPECT_EQ(rope.frequencies()[i], plain.frequencies()[i]);
  for (std::size_t i = 40; i < 64; ++i)
    EXPECT_EQ(rope.frequencies()[i], plain.frequencies()[i] / 4);
  expect_frequencies(rope, {{22, 8.65964323360065430e-03},
                            {23, 6.97830584859866331e-03},
                            {24, 5.37532149079010188e-03},  // 16/17 kept
                            {31, 8.02959727545230341e-04},  // 9/17
                            {39, 6.49039432083702928e-05},  // 1/17
                            {40, 4.44569852509730674e-05},
                            {63, 3.10234440187929882e-07}});
  EXPECT_NEAR(rope.magnitude(), 1.138629436111989061883, 0x1p-51);
}

TEST(RopeFrequencies, YarnAttentionFactorMultipliesTheMagnitude) {
  RopeOptions options = {.head_dim = 64,
                         .scaling = RopeScaling::kYarn,
                         .factor = 1,
                         .original_context_length = 4096,
                         .attention_factor = 0.5};
  EXPECT_EQ(Rope(options).magnitude(), 0.5);  // ln 1 = 0
  options.factor = 4;
  EXPECT_NEAR(Rope(options).magnitude(), 1.138629436111989061883 / 2, 0x1p-51);
  options.scaling = RopeScaling::kLinear;
  EXPECT_EQ(Rope(options).magnitude(), 1.0);
}

// Half a turn over the whole context: even the fastest pair makes fewer than beta_slow turns, and
// both ends of the ramp are cut off at pair 0.
TEST(RopeFrequencies, YarnRampMayCollapse) {
  const Rope rope(
      {.head_dim = 8, .scaling = RopeScaling::kYarn, .factor = 2, .original_context_length = 3});
  const Rope plain({.head_dim = 8});
  EXPECT_EQ(rope.frequencies()[0], plain.frequencies()[0]);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(rope.frequencies()[i], plain.frequencies()[i] / 2);
}

TEST(RopeFrequencies, FactorsDivideThemBeforeScaling) {
  RopeOptions options = {.head_dim = 8, .freq_factors = {1, 2, 4, 0.5f}};
  expect_frequencies(Rope(options), {{0, 1.0}, {1, 0.05}, {2, 0.0025}, {3, 0.002}});
  options.scaling = RopeScaling::kLinear;
  options.factor = 2;
  expect_frequencies(Rope(options), {{0, 0.5}, {1, 0.025}, {2, 0.00125}, {3, 0.001}});
}

TEST(RopeFrequencies, DependOnTheRotatedPartOfAHead) {
  const Rope partial({.head_dim = 96, .rotary_dim = 32});
  const Rope whole({.head_dim = 32});
  EXPECT_EQ(partial.rotary_dim(), 32);
  ASSERT_EQ(partial.frequencies().size(), 16u);
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_EQ(partial.frequencies()[i], whole.frequencies()[i]) << i;
}

TEST(RopeFrequencies, DoNotDependOnTheRoundingModeOfTheCaller) {
  const RopeOptions options = {.head_dim = 128,
                               .freq_base = 500000,
                               .scaling = RopeScaling::kYarn,
                               .factor = 3,
                               .original_context_length = 8192};
  const Rope nearest(options);
  const Matrix want = rotations_of(nearest, {1, 77, 4095});
  const int mode = std::fegetround();
  for (const int other : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(other);
    const Rope rope(options);
    const Matrix rotations = rotations_of(rope, {1, 77, 4095});
    std::fesetround(mode);
    for (std::size_t i = 0; i < 64; ++i)
      ASSERT_EQ(rope.frequencies()[i], nearest.frequencies()[i]) << i;
    EXPECT_EQ(rope.magnitude(), nearest.magnitude());
    EXPECT_TRUE(same_bits(rotations, want));
  }
}

// ---- Rotations

TEST(RopeRotations, AreCosinesThenSinesOfEveryPosition) {
  const Rope rope({.head_dim = 64,
                   .scaling = RopeScaling::kYarn,
                   .factor = 4,
                   .original_context_length = 2048});
  const std::vector<int> positions = {0, 1, 2, 77, 4095, 131071};
  const Matrix rotations = rotations_of(rope, positions);
  for (Index row = 0; row < rotations.rows(); ++row) {
    for (Index i = 0; i < 32; ++i) {
      const Complex want = turn(rope, i, positions[static_cast<std::size_t>(row)]);
      ASSERT_NEAR(static_cast<double>(rotations(row, i)), static_cast<double>(want.real()),
                  table_error(rope))
          << row << ", " << i;
      ASSERT_NEAR(static_cast<double>(rotations(row, 32 + i)), static_cast<double>(want.imag()),
                  table_error(rope))
          << row << ", " << i;
    }
  }
}

class RopeOnEveryIsa : public support::OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, RopeOnEveryIsa, ::testing::ValuesIn(supported_isas()),
                         support::isa_name);

TEST_P(RopeOnEveryIsa, TurnsPairsAsComplexNumbers) {
  const std::vector<int> positions = {0, 1, 5, 1000, 65535};
  for (const RopeForm form : {RopeForm::kAdjacentPairs, RopeForm::kHalfSplit}) {
    for (const int rotary_dim : {64, 48, 2}) {
      const Rope rope({.head_dim = 64,
                       .rotary_dim = rotary_dim,
                       .form = form,
                       .scaling = RopeScaling::kYarn,
                       .factor = 2,
                       .original_context_length = 4096});
      const Matrix x = random_floats(5, 3 * 64, 1);
      Compute compute(GetParam(), 2);
      const Matrix y = rotated(rope, x, positions, compute.context);
      for (Index row = 0; row < 5; ++row) {
        for (Index first = 0; first < 3 * 64; first += 64) {
          for (Index i = 0; i < rotary_dim / 2; ++i) {
            const auto [a, b] = pair_of(form, i, rotary_dim);
            const float re = x(row, first + a), im = x(row, first + b);
            const Complex want =
                Complex(re, im) * turn(rope, i, positions[static_cast<std::size_t>(row)]);
            const double error = pair_error(rope, re, im);
            ASSERT_NEAR(static_cast<double>(y(row, first + a)), static_cast<double>(want.real()),
                        error);
            ASSERT_NEAR(static_cast<double>(y(row, first + b)), static_cast<double>(want.imag()),
                        error);
          }
          ASSERT_TRUE(same_bits(y.block(row, first + rotary_dim, 1, 64 - rotary_dim),
                                x.block(row, first + rotary_dim, 1, 64 - rotary_dim)))
              << "elements that are not rotated";
        }
      }
    }
  }
}

TEST_P(RopeOnEveryIsa, FollowsTheDocumentedOrderForEveryThreadCount) {
  const Rope rope({.head_dim = 32});
  std::vector<int> positions(50);
  for (int i = 0; i < 50; ++i) positions[static_cast<std::size_t>(i)] = i * i;
  const Matrix x = random_floats(50, 2 * 32, 2);
  const Matrix rotations = rotations_of(rope, positions);
  Matrix want = x;
  for (Index row = 0; row < 50; ++row) {
    for (Index i = 0; i < 64; ++i) {
      if (i % 32 >= 16) continue;
      const float a = x(row, i), b = x(row, i + 16);
      const float c = rotations(row, i % 32), s = rotations(row, 16 + i % 32);
      const float bs = b * s, bc = b * c;
      want(row, i) = std::fma(a, c, -bs);
      want(row, i + 16) = std::fma(a, s, bc);
    }
  }
  for (const int threads : {1, 2, 3}) {
    Compute compute(GetParam(), threads);
    EXPECT_TRUE(same_bits(rotated(rope, x, positions, compute.context), want)) << threads;
  }
}

TEST_P(RopeOnEveryIsa, PositionZeroChangesNothing) {
  Compute compute(GetParam());
  const Rope rope({.head_dim = 64});
  const Matrix x = random_floats(3, 128, 3);
  EXPECT_TRUE(same_bits(rotated(rope, x, {0, 0, 0}, compute.context), x));
}

// The purpose of it all: a query at p and a key at p' meet under the angle of p - p'. Both rotated
// operands carry pair_error; their product doubles it to first order.
TEST_P(RopeOnEveryIsa, ProductsDependOnTheDistanceOnly) {
  Compute compute(GetParam());
  for (const RopeForm form : {RopeForm::kAdjacentPairs, RopeForm::kHalfSplit}) {
    const Index dim = 64;
    const Rope rope({.head_dim = static_cast<int>(dim), .form = form});
    const Matrix q = random_floats(1, dim, 4), k = random_floats(1, dim, 5);
    for (const int distance : {0, 1, 7, 500}) {
      double want = 0, error = 0;
      for (Index i = 0; i < dim / 2; ++i) {
        const auto pair = pair_of(form, i, dim);
        const Index a = pair.first, b = pair.second;  // clang 14 captures no bindings
        const Complex product = Complex(q(0, a), q(0, b)) * std::conj(Complex(k(0, a), k(0, b)));
        want += static_cast<double>((product * turn(rope, i, distance)).real());
        const auto sum = [&](const Matrix& x) {
          return std::fabs(static_cast<double>(x(0, a))) + std::fabs(static_cast<double>(x(0, b)));
        };
        error += 2.001 * (sum(q) * pair_error(rope, k(0, a), k(0, b)) +
                          sum(k) * pair_error(rope, q(0, a), q(0, b)));
      }
      for (const int key_position : {0, 1, 100, 30000}) {
        const Matrix turned_q = rotated(rope, q, {key_position + distance}, compute.context);
        const Matrix turned_k = rotated(rope, k, {key_position}, compute.context);
        const double dot = turned_q.row(0).cast<double>().dot(turned_k.row(0).cast<double>());
        ASSERT_NEAR(dot, want, error) << distance << " from " << key_position;
      }
    }
  }
}

TEST(Rope, HandlesRowsWithAStrideAndDoesNotAllocate) {
  Compute compute(best_isa(), 2);
  const Rope rope({.head_dim = 16});
  const std::vector<int> positions = {3, 4, 5};
  const Matrix x = random_floats(3, 50, 6);
  const Matrix want = rotated(rope, x.middleCols(10, 32), positions, compute.context);
  Matrix y = x, rotations(3, 16);
  rope.rotations(positions, rotations);
  const std::size_t before = support::num_allocations();
  rope.rotations(positions, rotations);
  rope.apply(rotations, y.middleCols(10, 32), compute.context);
  EXPECT_EQ(support::num_allocations(), before);
  EXPECT_TRUE(same_bits(y.middleCols(10, 32), want));
  EXPECT_TRUE(same_bits(y.leftCols(10), x.leftCols(10)));
  EXPECT_TRUE(same_bits(y.rightCols(8), x.rightCols(8)));
}

// ---- Errors

TEST(Rope, RejectsOptionsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto expect = [](const char* part, const RopeOptions& options,
                         ErrorCode code = ErrorCode::kArgument) {
    expect_error(code, part, [&] { Rope rope(options); });
  };
  expect("head_dim must be positive, got 0", {});
  expect("head_dim must be positive, got -8", {.head_dim = -8});
  expect("rotary_dim must be even", {.head_dim = 7});
  expect("[2, head_dim = 8], got 10", {.head_dim = 8, .rotary_dim = 10});
  expect("got 3", {.head_dim = 8, .rotary_dim = 3});
  expect("got -2", {.head_dim = 8, .rotary_dim = -2});
  for (const double base : {1.0, 0.5, 0.0, -10.0, nan, infinity}) {
    expect("freq_base must be above 1", {.head_dim = 8, .freq_base = base});
  }
  for (const double factor : {0.0, -1.0, nan, infinity}) {
    expect("factor must be positive",
           {.head_dim = 8, .scaling = RopeScaling::kLinear, .factor = factor});
  }
  expect("rotary_dim / 2 = 4 values, got 3", {.head_dim = 8, .freq_factors = {1, 1, 1}},
         ErrorCode::kShape);
  for (const double divisor : {0.0, -1.0, nan, infinity}) {
    expect("freq_factors must be positive",
           {.head_dim = 8, .freq_factors = {1, 1, 1, static_cast<float>(divisor)}});
  }
  expect("at most 512 radians per position, got 1024 for pair 0",
         {.head_dim = 4, .freq_factors = {0x1p-10f, 1}});
  for (const RopeScaling scaling : {RopeScaling::kLlama3, RopeScaling::kYarn}) {
    expect("original_context_length must be positive, got 0", {.head_dim = 8, .scaling = scaling});
  }
  const auto llama3 = [](double low, double high) {
    return RopeOptions{.head_dim = 8,
                       .scaling = RopeScaling::kLlama3,
                       .original_context_length = 8,
                       .low_freq_factor = low,
                       .high_freq_factor = high};
  };
  EXPECT_NO_THROW(Rope{llama3(1, 4)});
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 4}, {-1, 4}, {4, 4}, {5, 4}, {nan, 4}, {1, nan}, {1, infinity}}) {
    expect("low_freq_factor must be in (0, high_freq_factor)", llama3(low, high));
  }
  const auto yarn = [](double factor, double attention, double fast, double slow) {
    return RopeOptions{.head_dim = 8,
                       .scaling = RopeScaling::kYarn,
                       .factor = factor,
                       .original_context_length = 8,
                       .beta_fast = fast,
                       .beta_slow = slow,
                       .attention_factor = attention};
  };
  EXPECT_NO_THROW(Rope{yarn(1, 1, 32, 1)});
  expect("factor must be at least 1", yarn(0.5, 1, 32, 1));
  for (const double attention : {0.0, -1.0, 1e308, nan, infinity}) {
    expect("attention_factor positive", yarn(2, attention, 32, 1));
  }
  for (const auto& [fast, slow] : std::vector<std::pair<double, double>>{
           {1, 1}, {1, 2}, {32, 0}, {32, -1}, {nan, 1}, {32, nan}, {infinity, 1}}) {
    expect("beta_slow must be in (0, beta_fast)", yarn(2, 1, fast, slow));
  }
}

TEST(Rope, LargestFrequencyStaysFiniteAtTheLargestPosition) {
  const Rope rope({.head_dim = 2, .freq_factors = {0x1p-9f}});
  EXPECT_TRUE(rotations_of(rope, {std::numeric_limits<int>::max()}).allFinite());
}

TEST(Rope, RejectsOperandsThatDoNotFit) {
  Compute compute(Isa::kPortable);
  const Rope rope({.head_dim = 8, .rotary_dim = 4});
  const auto rotations = [&](std::size_t positions, Index rows, Index cols) {
    Matrix out(rows, cols);
    rope.rotations(std::vector<int>(positions), out);
  };
  const auto apply = [&](Index rotation_rows, Index rotation_cols, Index rows, Index cols) {
    const Matrix table = Matrix::Zero(rotation_rows, rotation_cols);
    Matrix x = Matrix::Zero(rows, cols);
    rope.apply(table, x, compute.context);
  };
  EXPECT_NO_THROW(rotations(2, 2, 4));
  EXPECT_NO_THROW(apply(2, 4, 2, 16));
  const ErrorCode shape = ErrorCode::kShape;
  expect_error(shape, "[2, 4], got [3, 4]", [&] { rotations(2, 3, 4); });
  expect_error(shape, "[2, 4], got [2, 8]", [&] { rotations(2, 2, 8); });
  expect_error(shape, "got [3, 16] and [2, 4]", [&] { apply(2, 4, 3, 16); });
  expect_error(shape, "got [2, 12] and [2, 4]", [&] { apply(2, 4, 2, 12); });
  expect_error(shape, "rows of 4, got [2, 16] and [2, 8]", [&] { apply(2, 8, 2, 16); });
}

}  // namespace
}  // namespace kvick
