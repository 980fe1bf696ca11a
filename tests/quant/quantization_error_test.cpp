// SPDX-License-Identifier: MIT
#include "kvick/quant/quantization_error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <random>
#include <utility>

#include "cache/expect_error.hpp"
#include "support/fp_mode.hpp"

namespace kvick {
namespace {

using support::expect_error;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

QuantizationError error_of(std::initializer_list<float> original,
                           std::initializer_list<float> restored) {
  const auto row = [](std::initializer_list<float> values) {
    return Matrix(Eigen::Map<const Matrix>(values.begin(), 1, static_cast<Index>(values.size())));
  };
  return measure_error(row(original), row(restored));
}

void expect_same(const QuantizationError& got, const QuantizationError& want) {
  EXPECT_EQ(got.snr_db, want.snr_db);
  EXPECT_EQ(got.max_abs, want.max_abs);
  EXPECT_EQ(got.rmse, want.rmse);
  EXPECT_EQ(got.cosine_similarity, want.cosine_similarity);
}

Matrix random_matrix(Index rows, Index cols, std::mt19937& random) {
  std::normal_distribution<float> normal;
  return Matrix::NullaryExpr(rows, cols, [&] { return normal(random); });
}

TEST(MeasureError, ByHand) {
  const QuantizationError error = error_of({3, 4}, {3, 3});
  EXPECT_NEAR(error.snr_db, 13.979400086720376, 1e-14);  // 10 log10(25 / 1)
  EXPECT_EQ(error.max_abs, 1.0);
  EXPECT_EQ(error.rmse, std::sqrt(0.5));
  EXPECT_NEAR(error.cosine_similarity, 0.98994949366116653, 1e-15);  // 21 / sqrt(25 * 18)

  const QuantizationError tenfold = error_of({-10, 0, 0}, {-9, 0, 0});
  EXPECT_NEAR(tenfold.snr_db, 20.0, 1e-14);
  EXPECT_EQ(tenfold.max_abs, 1.0);
  EXPECT_NEAR(tenfold.rmse, 0.57735026918962573, 1e-16);  // sqrt(1 / 3)
  EXPECT_EQ(tenfold.cosine_similarity, 1.0);
}

TEST(MeasureError, OfEqualMatricesIsNone) {
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const Matrix values = random_matrix(13, 57, random);
  const QuantizationError none = {
      .snr_db = kInfinity, .max_abs = 0, .rmse = 0, .cosine_similarity = 1};
  expect_same(QuantizationError{}, none);
  expect_same(measure_error(values, values), none);
  expect_same(error_of({0, 0}, {0, -0.0f}), none);
  for (const auto& [rows, cols] : {std::pair<Index, Index>{0, 0}, {0, 5}, {5, 0}}) {
    expect_same(measure_error(Matrix(rows, cols), Matrix(rows, cols)), none);
  }
}

TEST(MeasureError, ZerosOnOneSide) {
  expect_same(error_of({0, 0}, {3, -4}), {-kInfinity, 4, std::sqrt(12.5), 0});
  expect_same(error_of({3, -4}, {0, 0}), {0, 4, std::sqrt(12.5), 0});  // 10 log10(1) = 0
}

TEST(MeasureError, CosinesOfOppositeAndOrthogonalMatrices) {
  EXPECT_EQ(error_of({1, 2, 3}, {-1, -2, -3}).cosine_similarity, -1.0);
  EXPECT_EQ(error_of({1, 2, 3}, {4, 8, 12}).cosine_similarity, 1.0);
  EXPECT_EQ(error_of({1, 2}, {2, -1}).cosine_similarity, 0.0);
}

TEST(MeasureError, CosinesOfParallelMatricesDoNotExceedOne) {
  constexpr unsigned kSeed = 11;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 200; ++i) {  // sums round: unclamped, some cosines are 1 + 2^-52
    const Matrix values = random_matrix(3, 50, random);
    EXPECT_LE(measure_error(values, 3.0f * values).cosine_similarity, 1.0);
    EXPECT_GE(measure_error(values, -3.0f * values).cosine_similarity, -1.0);
  }
}

TEST(MeasureError, NeitherOverflowsNorUnderflows) {
  const auto largest = static_cast<double>(kLargest);
  const auto smallest = static_cast<double>(kSmallest);
  const QuantizationError huge = error_of({kLargest, kLargest}, {-kLargest, -kLargest});
  EXPECT_NEAR(huge.snr_db, -6.0205999132796239, 1e-14);  // 10 log10(1 / 4)
  EXPECT_EQ(huge.max_abs, 2 * largest);
  EXPECT_EQ(huge.rmse, 2 * largest);
  EXPECT_EQ(huge.cosine_similarity, -1.0);
  expect_same(error_of({kSmallest}, {2 * kSmallest}), {0, smallest, smallest, 1});
  const QuantizationError both = error_of({kLargest}, {kSmallest});
  EXPECT_EQ(both.cosine_similarity, 1.0);
  EXPECT_EQ(both.max_abs, largest);
}

// |sum - exact| <= n u sum |terms|, u = 2^-53; the terms of three sums are exact and one is fused.
TEST(MeasureError, AgreesWithLongDoubles) {
  constexpr unsigned kSeed = 8;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (const auto& [rows, cols] : {std::pair<Index, Index>{1, 1}, {7, 3}, {40, 129}}) {
    for (const float noise : {1e-6f, 0.01f, 1.0f, 100.0f}) {
      const Matrix original = random_matrix(rows, cols, random);
      const Matrix restored = original + noise * random_matrix(rows, cols, random);
      long double xx = 0, yy = 0, xy = 0, dd = 0, max_abs = 0;
      for (Index i = 0; i < original.size(); ++i) {
        const long double x = original.data()[i];
        const long double y = restored.data()[i];
        xx += x * x, yy += y * y, xy += x * y, dd += (x - y) * (x - y);
        max_abs = std::max(max_abs, std::fabs(x - y));
      }
      const auto count = static_cast<double>(original.size());
      const double sum_error = count * 0x1p-53;
      const QuantizationError got = measure_error(original, restored);
      // d(10 log10 r) = 4.35 dr / r, with r off by two sums and a division; then two roundings.
      const auto snr = static_cast<double>(10 * std::log10(xx / dd));
      EXPECT_NEAR(got.snr_db, snr, 4.35 * (2 * sum_error + 0x1p-52) + 0x1p-50 * std::fabs(snr));
      EXPECT_NEAR(got.max_abs, static_cast<double>(max_abs), 0x1p-53 * got.max_abs);
      const auto rmse = static_cast<double>(std::sqrt(dd / static_cast<long double>(count)));
      EXPECT_NEAR(got.rmse, rmse, (sum_error + 0x1p-51) * rmse);
      // The sum of x y has terms of both signs, but their magnitudes add up to at most |x| |y|.
      EXPECT_NEAR(got.cosine_similarity, static_cast<double>(xy / std::sqrt(xx * yy)),
                  2 * sum_error + 0x1p-51);
    }
  }
}

TEST(MeasureError, DependsNeitherOnStorageOrderNorOnTheFloatingPointMode) {
  constexpr unsigned kSeed = 9;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const Matrix original = random_matrix(31, 45, random);
  const Matrix restored = original + 0.01f * random_matrix(31, 45, random);
  const QuantizationError want = measure_error(original, restored);
  const Eigen::MatrixXf column_major = restored;
  expect_same(measure_error(Eigen::MatrixXf(original), column_major), want);

  const QuantizationError want_tiny = error_of({kSmallest, 1e-39f}, {0, 1.1e-39f});
  for (const support::FpMode mode : support::foreign_fp_modes()) {
    SCOPED_TRACE(::testing::Message() << "mode " << mode);
    QuantizationError got, got_tiny;
    {
      const support::ScopedFpMode scoped(mode);
      got = measure_error(original, restored);
      got_tiny = error_of({kSmallest, 1e-39f}, {0, 1.1e-39f});
    }
    expect_same(got, want);
    expect_same(got_tiny, want_tiny);
  }
}

TEST(MeasureError, RefusesOtherShapes) {
  expect_error(ErrorCode::kShape, "restored must be [2, 3] like the original, got [3, 2]",
               [] { measure_error(Matrix::Zero(2, 3), Matrix::Zero(3, 2)); });
}

TEST(MeasureError, NamesWhatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    Matrix broken = Matrix::Ones(3, 4);
    broken(1, 2) = bad;
    expect_error(ErrorCode::kArgument, "original must be finite, got",
                 [&] { measure_error(broken, Matrix::Ones(3, 4)); });
    expect_error(ErrorCode::kArgument, "at row 1, column 2",
                 [&] { measure_error(Matrix::Ones(3, 4), broken); });
    expect_error(ErrorCode::kArgument, "restored must be finite, got",
                 [&] { measure_error(Matrix::Ones(3, 4), broken); });
  }
}

}  // namespace
}  // namespace kvick
