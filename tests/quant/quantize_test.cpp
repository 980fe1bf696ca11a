// SPDX-License-Identifier: MIT
#include "kvick/quant/quantize.hpp"

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

#include "cache/expect_error.hpp"
#include "kvick/quant/quantization_error.hpp"
#include "support/fp_mode.hpp"

namespace kvick {
namespace {

using support::expect_error;

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kLeastNormal = 0x1p-126f;

Matrix normal_matrix(Index rows, Index cols, std::mt19937& random) {
  std::normal_distribution<float> normal;
  return Matrix::NullaryExpr(rows, cols, [&] { return normal(random); });
}

// Normal values; rows differ in size from 2^-20 to 2^19, and a few values stand out or are 0.
Matrix uneven_matrix(Index rows, Index cols, std::mt19937& random) {
  Matrix values = normal_matrix(rows, cols, random);
  for (Index row = 0; row < rows; ++row) {
    values.row(row) *= std::ldexp(1.0f, static_cast<int>(random() % 40) - 20);
  }
  for (Index i = 0; i < values.size() / 8; ++i) {
    float& x = values.data()[static_cast<Index>(random() % static_cast<unsigned>(values.size()))];
    x *= static_cast<float>(random() % 10);
  }
  return values;
}

std::vector<std::pair<Index, Index>> shapes() {
  return {{0, 0}, {0, 7}, {5, 0}, {1, 1}, {1, 31}, {17, 33}, {33, 64}, {16, 129}, {3, 300}};
}

std::vector<QuantizationScheme> schemes_of(const QuantizeOptions& options) {
  return {per_tensor(options), per_channel(options), per_group(32, options), per_group(64, options),
          per_group(128, options)};
}

std::vector<QuantizationScheme> all_schemes(ScaleChoice scale) {
  std::vector<QuantizationScheme> schemes;
  for (int num_bits = 2; num_bits <= 8; ++num_bits) {
    for (const bool full_range : {false, true}) {
      for (const QuantizationScheme& scheme :
           schemes_of({.num_bits = num_bits, .full_range = full_range, .scale = scale})) {
        schemes.push_back(scheme);
      }
    }
  }
  return schemes;
}

QuantizationScheme with_max_abs(const QuantizationScheme& scheme) {
  QuantizeOptions options = scheme.options();
  options.scale = ScaleChoice::kMaxAbs;
  switch (scheme.granularity()) {
    case Granularity::kTensor: return per_tensor(options);
    case Granularity::kChannel: return per_channel(options);
    case Granularity::kGroup: break;
  }
  return per_group(scheme.group_size(), options);
}

std::string describe(const QuantizationScheme& scheme) {
  return std::to_string(scheme.num_bits()) + " bits, granularity " +
         std::to_string(static_cast<int>(scheme.granularity())) + ", group " +
         std::to_string(scheme.group_size()) + (scheme.options().full_range ? ", full range" : "");
}

Int8Matrix integers_of(const QuantizedMatrix& matrix) {
  Int8Matrix values(matrix.rows(), matrix.cols());
  for (Index row = 0; row < matrix.rows(); ++row) {
    matrix.unpack_row(row, values.data() + row * matrix.cols());
  }
  return values;
}

void expect_same(const QuantizedMatrix& got, const QuantizedMatrix& want) {
  EXPECT_EQ(got.scheme(), want.scheme());
  EXPECT_EQ(got.scales(), want.scales());
  EXPECT_EQ(integers_of(got), integers_of(want));
}

// The values that share the scale (row, group) of a scheme, in order.
std::vector<float> block_of(const Matrix& weights, const QuantizationScheme& scheme, Index row,
                            Index group) {
  const bool is_tensor = scheme.granularity() == Granularity::kTensor;
  const Index size =
      scheme.granularity() == Granularity::kGroup ? scheme.group_size() : weights.cols();
  std::vector<float> values;
  for (Index r = is_tensor ? 0 : row; r < (is_tensor ? weights.rows() : row + 1); ++r) {
    for (Index c = group * size; c < std::min(weights.cols(), (group + 1) * size); ++c) {
      values.push_back(weights(r, c));
    }
  }
  return values;
}

// The quotient rounded to float once, since double has more than twice its digits and two.
float quotient(float x, float y) {
  return static_cast<float>(static_cast<double>(x) / static_cast<double>(y));
}

// The documented scale of kMaxAbs, but for its care near FLT_MAX.
float expected_max_abs_scale(const std::vector<float>& block, const QuantizationScheme& scheme) {
  float scale = 0.0f;
  for (const float x : block) {
    const int end = x > 0 ? scheme.max_value() : scheme.min_value();
    scale = std::max(scale, quotient(x, static_cast<float>(end)));
  }
  return scale < kLeastNormal ? 0.0f : scale;
}

int expected_integer(float x, float scale, const QuantizationScheme& scheme) {
  if (scale == 0.0f) return 0;
  return std::clamp(static_cast<int>(std::nearbyint(quotient(x, scale))), scheme.min_value(),
                    scheme.max_value());
}

// ---- The code that users write.

TEST(Quantize, ReadsAsIntended) {
  std::mt19937 random(1);
  const Eigen::MatrixXf weights = normal_matrix(6, 70, random);

  const auto [q, scale] = quantize(weights, {.num_bits = 8});
  static_assert(std::is_same_v<decltype(q), const Int8Matrix>);
  static_assert(std::is_same_v<decltype(scale), const float>);
  EXPECT_LE((dequantize(q, scale) - weights).cwiseAbs().maxCoeff(), 0.51f * scale);

  const auto grouped = quantize(weights, per_group(32));
  const Eigen::MatrixXf back = dequantize(grouped);
  EXPECT_EQ(grouped.scales().cols(), 3);
  EXPECT_LE((back - weights).cwiseAbs().maxCoeff(), 0.51f * grouped.scales().maxCoeff());

  EXPECT_EQ(quantize(weights).values, q) << "8 bits per tensor by default";
  EXPECT_EQ(quantize(weights, {}).values, q);
  EXPECT_EQ(integers_of(quantize(weights, per_tensor())), q);
  EXPECT_EQ(quantize(weights, per_channel()).scales().rows(), 6);
  EXPECT_EQ(quantize(weights, per_group(64, {.num_bits = 4})).scheme().num_bits(), 4);
}

// ---- Worked by hand.

TEST(Quantize, PerTensorByHand) {
  Matrix weights(2, 4);
  weights << 254, 1, 3, -5,  // the scale is 2, ties go to even
      -254, 200.9f, 0, -0.9f;
  const auto [q, scale] = quantize(weights);
  Int8Matrix want(2, 4);
  want << 127, 0, 2, -2,  //
      -127, 100, 0, 0;
  EXPECT_EQ(scale, 2.0f);
  EXPECT_EQ(q, want);

  const QuantizedMatrix packed = quantize(weights, per_tensor({.num_bits = 2}));
  want << 1, 0, 0, 0,  //
      -1, 1, 0, 0;
  EXPECT_EQ(packed.scales(), Matrix::Constant(1, 1, 254.0f));
  EXPECT_EQ(integers_of(packed), want);
}

TEST(Quantize, PerChannelByHand) {
  Matrix weights(3, 3);
  weights << 7, 3.5f, -1,  //
      0, 0, 0,             //
      -0.875f, 0.125f, 0.3125f;
  const QuantizedMatrix matrix = quantize(weights, per_channel({.num_bits = 4}));
  Matrix scales(3, 1);
  scales << 1, 0, 0.125f;
  Int8Matrix want(3, 3);
  want << 7, 4, -1,  //
      0, 0, 0,       //
      -7, 1, 2;
  EXPECT_EQ(matrix.scales(), scales);
  EXPECT_EQ(integers_of(matrix), want);
}

TEST(Quantize, PerGroupByHand) {
  Matrix weights = Matrix::Zero(1, 70);
  weights(0, 0) = 31, weights(0, 31) = -9.4f;     // scale 1
  weights(0, 32) = -62, weights(0, 63) = 31;      // scale 2, and 15.5 goes to 16
  weights(0, 64) = 0.5f, weights(0, 69) = 15.5f;  // scale 1/2 in a group of six
  const QuantizedMatrix matrix = quantize(weights, per_group(32, {.num_bits = 6}));
  Int8Matrix want = Int8Matrix::Zero(1, 70);
  want(0, 0) = 31, want(0, 31) = -9;
  want(0, 32) = -31, want(0, 63) = 16;
  want(0, 64) = 1, want(0, 69) = 31;
  EXPECT_EQ(matrix.scales(), (Matrix(1, 3) << 1, 2, 0.5f).finished());
  EXPECT_EQ(integers_of(matrix), want);
}

TEST(Quantize, FullRangeByHand) {
  const QuantizeOptions options = {.num_bits = 4, .full_range = true};
  const auto [negative, negative_scale] = quantize(Eigen::RowVector3f(-8, 6.5f, 4), options);
  EXPECT_EQ(negative_scale, 1.0f);  // -8 takes the integer that has no partner
  EXPECT_EQ(negative, (Int8Matrix(1, 3) << -8, 6, 4).finished());
  const auto [positive, positive_scale] = quantize(Eigen::RowVector3f(14, -14, 3), options);
  EXPECT_EQ(positive_scale, 2.0f);  // 14 must not be clipped
  EXPECT_EQ(positive, (Int8Matrix(1, 3) << 7, -7, 2).finished());
}

// ---- Properties of the plain scale.

TEST(Quantize, MaxAbsIsTheDocumentedFormulaWithinItsBound) {
  constexpr unsigned kSeed = 2;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (const QuantizationScheme& scheme : all_schemes(ScaleChoice::kMaxAbs)) {
    SCOPED_TRACE(describe(scheme));
    for (const auto& [rows, cols] : shapes()) {
      const Matrix weights = uneven_matrix(rows, cols, random);
      const QuantizedMatrix matrix = quantize(weights, scheme);
      const Matrix back = dequantize(matrix);
      ASSERT_EQ(matrix.rows(), rows);
      ASSERT_EQ(matrix.cols(), cols);
      for (Index row = 0; row < rows; ++row) {
        for (Index group = 0; group < matrix.num_groups(); ++group) {
          ASSERT_EQ(matrix.scale(row, group),
                    expected_max_abs_scale(block_of(weights, scheme, row, group), scheme));
        }
        for (Index col = 0; col < cols; ++col) {
          const float x = weights(row, col);
          const float scale =
              matrix.scale(row, scheme.group_size() == 0 ? 0 : col / scheme.group_size());
          ASSERT_EQ(matrix.value(row, col), expected_integer(x, scale, scheme));
          const double error = std::fabs(static_cast<double>(x) - double{back(row, col)});
          ASSERT_LE(error, 0.5 * double{scale} +
                               (std::fabs(double{x}) + std::fabs(double{back(row, col)})) * 0x1p-24)
              << x << " at " << row << ", " << col;
        }
      }
    }
  }
}

// Half-way between integers a product with the reciprocal would often round to another one.
TEST(Quantize, QuotientsAreTrueDivisions) {
  constexpr unsigned kSeed = 12;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<float> uniform(1.0f, 2.0f);
  int num_told_apart = 0;
  for (int round = 0; round < 100; ++round) {
    const float max = uniform(random);
    const float scale = quotient(max, 127.0f);
    Matrix weights(3, 128);
    for (Index i = 0; i < 127; ++i) {
      weights(1, i) = scale * (static_cast<float>(i) + 0.5f);
      weights(0, i) = std::nextafter(weights(1, i), 0.0f);
      weights(2, i) = std::min(std::nextafter(weights(1, i), 9.0f), max);
    }
    weights.col(127).setConstant(-max);
    const QuantizedTensor tensor = quantize(weights);
    ASSERT_EQ(tensor.scale, scale);
    const float reciprocal = 1.0f / scale;
    for (Index i = 0; i < weights.size(); ++i) {
      const float x = weights.data()[i];
      const int want = expected_integer(x, scale, per_tensor());
      ASSERT_EQ(int{tensor.values.data()[i]}, want) << x << " / " << scale;
      num_told_apart += static_cast<int>(std::nearbyint(x * reciprocal)) != want ? 1 : 0;
    }
  }
  EXPECT_GT(num_told_apart, 100) << "the sample should tell a product from a quotient";
}

TEST(Quantize, MultiplesOfTheScaleComeBackAsTheyWere) {
  constexpr unsigned kSeed = 3;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (const ScaleChoice choice : {ScaleChoice::kMaxAbs, ScaleChoice::kLeastSquares}) {
    for (const QuantizationScheme& scheme : all_schemes(choice)) {
      std::uniform_int_distribution<int> integers(scheme.min_value(), scheme.max_value());
      Int8Matrix q = Int8Matrix::NullaryExpr(
          5, 129, [&] { return static_cast<std::int8_t>(integers(random)); });
      for (const Index first : {0, 32, 64, 96, 128}) {  // every block uses the range to its end
        q.col(first).setConstant(static_cast<std::int8_t>(scheme.max_value()));
      }
      const Matrix weights = q.cast<float>() * 0x1p-5f;
      const QuantizedMatrix matrix = quantize(weights, scheme);
      EXPECT_EQ(integers_of(matrix), q) << describe(scheme);
      EXPECT_EQ(dequantize(matrix), weights) << describe(scheme);
    }
  }
}

TEST(Quantize, TakesAnyStorageAndExpression) {
  constexpr unsigned kSeed = 4;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (const ScaleChoice choice : {ScaleChoice::kMaxAbs, ScaleChoice::kLeastSquares}) {
    for (const QuantizationScheme& scheme : schemes_of({.num_bits = 5, .scale = choice})) {
      SCOPED_TRACE(describe(scheme));
      for (const auto& [rows, cols] : shapes()) {
        const Matrix weights = uneven_matrix(rows, cols, random);
        const QuantizedMatrix want = quantize(weights, scheme);
        const Eigen::MatrixXf column_major = weights;
        expect_same(quantize(column_major, scheme), want);
        EXPECT_EQ(quantize(column_major, scheme.options()).values,
                  quantize(weights, scheme.options()).values);
        expect_same(quantize(ConstMatrixRef(weights), scheme), want);
        expect_same(quantize(Eigen::Map<const Matrix>(weights.data(), rows, cols), scheme), want);
        expect_same(quantize(weights * 1.0f, scheme), want);
        expect_same(quantize(column_major + Eigen::MatrixXf::Zero(rows, cols), scheme), want);
        const Matrix transposed = weights.transpose();
        expect_same(quantize(transposed.transpose(), scheme), want);

        // Blocks, and views whose elements are apart in both directions.
        Eigen::MatrixXf larger = Eigen::MatrixXf::Constant(rows + 3, cols + 2, 1e6f);
        larger.block(1, 2, rows, cols) = weights;
        expect_same(quantize(larger.block(1, 2, rows, cols), scheme), want);
        Matrix spread = Matrix::Constant(2 * rows + 1, 3 * cols + 1, 1e6f);
        using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
        Eigen::Map<Matrix, 0, Strides> view(spread.data(), rows, cols,
                                            Strides(2 * spread.cols(), 3));
        view = weights;
        expect_same(quantize(view, scheme), want);
      }
    }
  }
}

TEST(Quantize, TakesVectorsAndFixedSizes) {
  constexpr unsigned kSeed = 5;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const Eigen::MatrixXf weights = normal_matrix(40, 50, random);
  const Matrix row = weights.row(7);
  const Matrix column = weights.col(7);
  for (const QuantizationScheme& scheme : schemes_of({.num_bits = 7})) {
    expect_same(quantize(weights.row(7), scheme), quantize(row, scheme));
    expect_same(quantize(weights.col(7), scheme), quantize(column, scheme));
    expect_same(quantize(weights.col(7).transpose(), scheme),
                quantize(Matrix(column.transpose()), scheme));
    expect_same(quantize(weights.row(7).transpose(), scheme),
                quantize(Matrix(row.transpose()), scheme));
    const Eigen::Matrix<float, 3, 4> fixed = weights.topLeftCorner<3, 4>();
    expect_same(quantize(fixed, scheme), quantize(Matrix(fixed), scheme));
  }
}

// ---- The ends of what floats can say.

TEST(Quantize, ZerosHaveScaleZero) {
  for (const ScaleChoice choice : {ScaleChoice::kMaxAbs, ScaleChoice::kLeastSquares}) {
    for (const QuantizationScheme& scheme : all_schemes(choice)) {
      Matrix weights = Matrix::Zero(3, 70);
      weights(1, 1) = -0.0f;
      const QuantizedMatrix matrix = quantize(weights, scheme);
      EXPECT_TRUE(matrix.scales().isZero(0.0f)) << describe(scheme);
      EXPECT_EQ(integers_of(matrix), Int8Matrix::Zero(3, 70)) << describe(scheme);
      EXPECT_EQ(dequantize(matrix), Matrix::Zero(3, 70)) << describe(scheme);
    }
  }
}

TEST(Quantize, ScalesBelowTheLeastNormalFloatAreZero) {
  for (const ScaleChoice choice : {ScaleChoice::kMaxAbs, ScaleChoice::kLeastSquares}) {
    for (const QuantizationScheme& scheme : all_schemes(choice)) {
      SCOPED_TRACE(describe(scheme));
      const float least_max = kLeastNormal * static_cast<float>(scheme.max_value());  // exact
      const QuantizedMatrix kept = quantize(Matrix::Constant(2, 3, least_max), scheme);
      EXPECT_EQ(kept.scales(), Matrix::Constant(kept.scales().rows(), 1, kLeastNormal));
      EXPECT_TRUE((integers_of(kept).cast<int>().array() == scheme.max_value()).all());
      // Two floats less, so that the quotient is below 2^-126 however it is rounded.
      const float below = std::nextafter(std::nextafter(least_max, 0.0f), 0.0f);
      for (const float x : {below, 0x1p-127f, std::numeric_limits<float>::denorm_min()}) {
        const QuantizedMatrix lost = quantize(Matrix::Constant(2, 3, x), scheme);
        EXPECT_TRUE(lost.scales().isZero(0.0f)) << x;
        EXPECT_EQ(integers_of(lost), Int8Matrix::Zero(2, 3)) << x;
      }
    }
  }
}

TEST(Quantize, ScalesAreZeroOrNormalAndFiniteAtEveryMagnitude) {
  constexpr unsigned kSeed = 6;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const Matrix unit = normal_matrix(2, 70, random) / 8.0f;  // all below 1
  ASSERT_LT(unit.cwiseAbs().maxCoeff(), 1.0f);
  for (const ScaleChoice choice : {ScaleChoice::kMaxAbs, ScaleChoice::kLeastSquares}) {
    for (const QuantizationScheme& scheme : all_schemes(choice)) {
      for (const int exponent : {-149, -140, -127, -125, -122, -120, -118, -100, 100, 127, 128}) {
        const Matrix weights = unit.unaryExpr([&](float x) { return std::ldexp(x, exponent); });
        const QuantizedMatrix matrix = quantize(weights, scheme);
        ASSERT_TRUE((matrix.scales().array() == 0.0f || (matrix.scales().array() >= kLeastNormal &&
                                                         matrix.scales().array() < kLargest))
                        .all())
            << describe(scheme) << ", exponent " << exponent;
        ASSERT_TRUE(dequantize(matrix).allFinite()) << describe(scheme) << " " << exponent;
      }
    }
  }
}

// Values whose scale or nearest multiple would be beyond FLT_MAX if it were merely rounded.
TEST(Quantize, DequantizedValuesAreFiniteNextToTheLargestFloat) {
  std::vector<std::pair<float, float>> extremes;  // highest, lowest
  float x = kLargest;
  for (int i = 0; i < 40; ++i, x = std::nextafter(x, 0.0f)) {
    extremes.insert(extremes.end(), {{x, 0.0f}, {0.0f, -x}, {x, -kLargest}, {kLargest, -x}});
  }
  for (int i = 1; i <= 512; ++i) {  // where the full range rounds the lowest away from 0
    const float part = kLargest * (1.0f - static_cast<float>(i) / 1024.0f);
    extremes.insert(extremes.end(), {{part, -kLargest}, {kLargest, -part}});
  }
  for (const ScaleChoice choice : {ScaleChoice::kMaxAbs, ScaleChoice::kLeastSquares}) {
    for (const QuantizationScheme& scheme : all_schemes(choice)) {
      if (scheme.granularity() != Granularity::kChannel) continue;
      SCOPED_TRACE(describe(scheme));
      for (const auto& [highest, lowest] : extremes) {
        const Eigen::RowVector4f weights(highest, 1.0f, lowest, highest / 3.0f);
        const QuantizedMatrix matrix = quantize(weights, scheme);
        const Matrix back = dequantize(matrix);
        ASSERT_TRUE(back.allFinite()) << highest << " " << lowest;
        if (choice == ScaleChoice::kLeastSquares) continue;
        for (Index i = 0; i < 4; ++i) {
          const double error = std::fabs(double{weights(i)} - double{back(0, i)});
          ASSERT_LE(error,
                    0.5 * double{matrix.scale(0, 0)} +
                        (std::fabs(double{weights(i)}) + std::fabs(double{back(0, i)})) * 0x1p-24)
              << highest << " " << lowest << " value " << i;
        }
      }
    }
  }
}

TEST(Quantize, NamesWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<float, std::string>> bad = {
      {infinity, "got inf "}, {-infinity, "got -inf "}, {nan, "nan "}, {-nan, "nan "}};
  for (const QuantizationScheme& scheme : schemes_of({.scale = ScaleChoice::kLeastSquares})) {
    for (const auto& [x, text] : bad) {
      Matrix weights = Matrix::Ones(20, 70);
      weights(17, 33) = x;
      weights(18, 1) = x;
      const Eigen::MatrixXf column_major = weights;
      for (const std::string part :
           {"weights must be finite, got", text.c_str(), "at row 17, column 33"}) {
        expect_error(ErrorCode::kArgument, part, [&] { quantize(weights, scheme); });
        expect_error(ErrorCode::kArgument, part, [&] { quantize(column_major, scheme); });
      }
    }
  }
}

TEST(Quantize, RefusesOptionsOutsideTheirRange) {
  const Matrix weights = Matrix::Ones(1, 1);
  for (const int num_bits : {1, 9}) {
    expect_error(ErrorCode::kArgument,
                 "[QuantizeOptions] num_bits must be 2 to 8, got " + std::to_string(num_bits),
                 [&] { quantize(weights, {.num_bits = num_bits}); });
  }
}

TEST(Quantize, OfNothingIsNothing) {
  for (const QuantizationScheme& scheme : all_schemes(ScaleChoice::kLeastSquares)) {
    for (const auto& [rows, cols] : {std::pair<Index, Index>{0, 0}, {0, 7}, {5, 0}}) {
      const QuantizedMatrix matrix = quantize(Eigen::MatrixXf(rows, cols), scheme);
      EXPECT_EQ(matrix.rows(), rows);
      EXPECT_EQ(matrix.cols(), cols);
      EXPECT_TRUE(matrix.scales().isZero(0.0f));
      EXPECT_EQ(dequantize(matrix), Matrix(rows, cols));
    }
  }
  EXPECT_EQ(quantize(Matrix(0, 3)).scale, 0.0f);
}

TEST(Quantize, ResultsDoNotDependOnTheFloatingPointMode) {
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  Matrix weights = uneven_matrix(9, 200, random);
  weights.row(3) *= 0x1p-100f;                        // scales at the end of the normal floats
  weights.row(4).setConstant(0x1.8p-120f);            // a scale of 3 * 2^-127 at 7 bits
  weights.row(5).leftCols(2) << 127.0f, 63.4999962f;  // a quotient next to a tie
  weights.row(6) = weights.row(6).unaryExpr([](float x) { return std::ldexp(x, -135); });
  for (const ScaleChoice choice : {ScaleChoice::kMaxAbs, ScaleChoice::kLeastSquares}) {
    for (const QuantizationScheme& scheme : all_schemes(choice)) {
      const QuantizedMatrix want = quantize(weights, scheme);
      for (const support::FpMode mode : support::foreign_fp_modes()) {
        SCOPED_TRACE(::testing::Message() << describe(scheme) << ", mode " << mode);
        QuantizedMatrix got;
        {
          const support::ScopedFpMode scoped(mode);
          got = quantize(weights, scheme);
        }
        expect_same(got, want);
      }
    }
  }
}

// ---- Scales of least squares.

TEST(QuantizeLeastSquares, ByHand) {
  // At 2 bits kMaxAbs keeps the 2 alone, since 1/2 rounds to 0. All four at the mean have a squared
  // error of 0.75 instead of 3.
  const Eigen::RowVector4f weights(2, 1, -1, 1);
  const auto plain = quantize(weights, {.num_bits = 2});
  EXPECT_EQ(plain.scale, 2.0f);
  EXPECT_EQ(plain.values, (Int8Matrix(1, 4) << 1, 0, 0, 0).finished());
  const auto best = quantize(weights, {.num_bits = 2, .scale = ScaleChoice::kLeastSquares});
  EXPECT_EQ(best.scale, 1.25f);
  EXPECT_EQ(best.values, (Int8Matrix(1, 4) << 1, 1, -1, 1).finished());
}

long double squared_error(const std::vector<float>& block, float scale,
                          const QuantizationScheme& scheme) {
  long double error = 0;
  for (const float x : block) {
    const float back = scale * static_cast<float>(expected_integer(x, scale, scheme));
    const long double difference = static_cast<long double>(x) - static_cast<long double>(back);
    error += difference * difference;
  }
  return error;
}

// Both errors are compared in double, off by n 2^-53 each.
TEST(QuantizeLeastSquares, IsNeverWorseThanMaxAbsInAnyBlock) {
  constexpr unsigned kSeed = 8;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  int num_better = 0;
  int num_blocks = 0;
  for (const QuantizationScheme& scheme : all_schemes(ScaleChoice::kLeastSquares)) {
    SCOPED_TRACE(describe(scheme));
    for (const auto& [rows, cols] : shapes()) {
      Matrix weights = uneven_matrix(rows, cols, random);
      if (random() % 4 == 0) weights = weights.array().round().matrix();  // often representable
      const QuantizedMatrix matrix = quantize(weights, scheme);
      const QuantizedMatrix plain = quantize(weights, with_max_abs(scheme));
      for (Index row = 0; row < matrix.scales().rows(); ++row) {
        for (Index group = 0; group < matrix.scales().cols(); ++group) {
          const std::vector<float> block = block_of(weights, scheme, row, group);
          const long double error = squared_error(block, matrix.scale(row, group), scheme);
          const long double plain_error = squared_error(block, plain.scale(row, group), scheme);
          const long double slack = 2 * static_cast<long double>(block.size()) * 0x1p-53L;
          ASSERT_LE(error, plain_error * (1 + slack)) << row << ", " << group;
          num_better += error < plain_error ? 1 : 0;
          ++num_blocks;
        }
      }
      for (Index row = 0; row < rows; ++row) {  // integers are the nearest to these scales
        for (Index col = 0; col < cols; ++col) {
          const float scale =
              matrix.scale(row, scheme.group_size() == 0 ? 0 : col / scheme.group_size());
          ASSERT_EQ(matrix.value(row, col), expected_integer(weights(row, col), scale, scheme));
        }
      }
    }
  }
  EXPECT_GT(num_better, num_blocks / 2);
}

// Squared error against kMaxAbs, of normal values: what the choice of candidates promises. Standard
// errors of the ratios are below 0.01 with so many blocks, so 0.03 leaves three and more.
TEST(QuantizeLeastSquares, GainsOnNormalValues) {
  constexpr unsigned kSeed = 9;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const Matrix weights = normal_matrix(512, 1024, random);
  const auto error = [&](QuantizationScheme scheme) {
    return std::pow(measure_error(weights, dequantize(quantize(weights, scheme))).rmse, 2);
  };
  constexpr ScaleChoice kBest = ScaleChoice::kLeastSquares;
  EXPECT_NEAR(
      error(per_group(32, {.num_bits = 4, .scale = kBest})) / error(per_group(32, {.num_bits = 4})),
      0.877, 0.03);
  EXPECT_NEAR(
      error(per_group(32, {.num_bits = 8, .scale = kBest})) / error(per_group(32, {.num_bits = 8})),
      0.844, 0.03);
  // The least mean squared error of 15 evenly spaced levels, 0 among them, for the normal density,
  // integrated numerically: at a step of 0.354. 524,288 samples leave a standard error of 0.00003.
  EXPECT_NEAR(error(per_tensor({.num_bits = 4, .scale = kBest})), 0.01289, 0.0002);
  EXPECT_LT(error(per_tensor({.num_bits = 4, .scale = kBest})) / error(per_tensor({.num_bits = 4})),
            0.4);
}

// Uniform values in [-1, 1] have power 1/3, and errors of uniform density in half a step on both
// sides have step^2 / 12: together 4 * largest^2, 48.1 dB at 8 bits and 6 dB less per bit.
TEST(Quantize, UniformValuesHaveTheTextbookSignalToNoiseRatio) {
  constexpr unsigned kSeed = 10;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const Matrix weights = Matrix::NullaryExpr(256, 1024, [&] { return uniform(random); });
  for (int num_bits = 5; num_bits <= 8; ++num_bits) {
    const QuantizedTensor tensor = quantize(weights, {.num_bits = num_bits});
    const double largest = per_tensor({.num_bits = num_bits}).max_value();
    EXPECT_NEAR(measure_error(weights, dequantize(tensor)).snr_db,
                10 * std::log10(4 * largest * largest), 0.1)
        << num_bits << " bits";
  }
}

}  // namespace
}  // namespace kvick
