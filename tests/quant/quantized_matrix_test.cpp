// SPDX-License-Identifier: MIT
#include "kvick/quant/quantized_matrix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/expect_error.hpp"
#include "support/fp_mode.hpp"

namespace kvick {
namespace {

using support::expect_error;

Int8Matrix random_integers(Index rows, Index cols, const QuantizationScheme& scheme,
                           std::mt19937& random) {
  std::uniform_int_distribution<int> values(scheme.min_value(), scheme.max_value());
  return Int8Matrix::NullaryExpr(rows, cols,
                                 [&] { return static_cast<std::int8_t>(values(random)); });
}

Matrix random_scales(Index rows, Index cols, const QuantizationScheme& scheme,
                     std::mt19937& random) {
  std::uniform_real_distribution<float> values(0.0f, 1.0f);
  return Matrix::NullaryExpr(scheme.granularity() == Granularity::kTensor ? 1 : rows,
                             scheme.num_groups(cols), [&] { return values(random); });
}

// Every granularity, with and without the full range.
std::vector<QuantizationScheme> schemes_of(int num_bits) {
  std::vector<QuantizationScheme> schemes;
  for (const bool full_range : {false, true}) {
    const QuantizeOptions options = {.num_bits = num_bits, .full_range = full_range};
    schemes.push_back(per_tensor(options));
    schemes.push_back(per_channel(options));
    for (const int group_size : {32, 64, 128}) schemes.push_back(per_group(group_size, options));
  }
  return schemes;
}

TEST(QuantizationScheme, FactoriesKeepTheirArguments) {
  EXPECT_EQ(per_tensor().granularity(), Granularity::kTensor);
  EXPECT_EQ(per_tensor().group_size(), 0);
  EXPECT_EQ(per_channel().granularity(), Granularity::kChannel);
  EXPECT_EQ(per_channel().group_size(), 0);
  EXPECT_EQ(per_group(64).granularity(), Granularity::kGroup);
  EXPECT_EQ(per_group(64).group_size(), 64);
  EXPECT_EQ(per_group(64).options(), QuantizeOptions{});
  EXPECT_EQ(per_group(64).num_bits(), 8);
  const QuantizationScheme scheme =
      per_group(128, {.num_bits = 3, .full_range = true, .scale = ScaleChoice::kLeastSquares});
  EXPECT_EQ(scheme.num_bits(), 3);
  EXPECT_TRUE(scheme.options().full_range);
  EXPECT_EQ(scheme.options().scale, ScaleChoice::kLeastSquares);
  EXPECT_NE(scheme, per_group(128, {.num_bits = 3}));
  EXPECT_NE(per_group(32), per_group(64));
  EXPECT_EQ(per_group(32), per_group(32, {.num_bits = 8}));
}

TEST(QuantizationScheme, RangesOfAllBits) {
  constexpr int kLargest[] = {1, 3, 7, 15, 31, 63, 127};  // of 2 to 8 bits
  for (int num_bits = 2; num_bits <= 8; ++num_bits) {
    const int largest = kLargest[num_bits - 2];
    EXPECT_EQ(per_tensor({.num_bits = num_bits}).max_value(), largest);
    EXPECT_EQ(per_tensor({.num_bits = num_bits}).min_value(), -largest);
    EXPECT_EQ(per_tensor({.num_bits = num_bits, .full_range = true}).max_value(), largest);
    EXPECT_EQ(per_tensor({.num_bits = num_bits, .full_range = true}).min_value(), -largest - 1);
  }
}

TEST(QuantizationScheme, LastGroupsMayBeShorter) {
  EXPECT_EQ(per_group(32).num_groups(0), 0);
  EXPECT_EQ(per_group(32).num_groups(1), 1);
  EXPECT_EQ(per_group(32).num_groups(32), 1);
  EXPECT_EQ(per_group(32).num_groups(33), 2);
  EXPECT_EQ(per_group(128).num_groups(257), 3);
  EXPECT_EQ(per_channel().num_groups(1000), 1);
  EXPECT_EQ(per_tensor().num_groups(1000), 1);
}

TEST(QuantizationScheme, RefusesOtherBitsAndGroups) {
  for (const int num_bits : {-8, 0, 1, 9, 16, std::numeric_limits<int>::max()}) {
    const QuantizeOptions options = {.num_bits = num_bits};
    const std::string part = "num_bits must be 2 to 8, got " + std::to_string(num_bits);
    expect_error(ErrorCode::kArgument, part, [&] { per_tensor(options); });
    expect_error(ErrorCode::kArgument, part, [&] { per_channel(options); });
    expect_error(ErrorCode::kArgument, part, [&] { per_group(32, options); });
  }
  for (const int group_size : {-32, 0, 1, 16, 33, 96, 256}) {
    expect_error(ErrorCode::kArgument,
                 "group_size must be 32, 64 or 128, got " + std::to_string(group_size),
                 [&] { per_group(group_size); });
  }
}

TEST(QuantizedMatrix, FourBitsAreTwoToAByteLowNibbleFirst) {
  Int8Matrix values(2, 3);
  values << 1, -2, 7,  //
      -8, 0, -1;
  const QuantizedMatrix matrix(per_channel({.num_bits = 4, .full_range = true}), values,
                               Matrix::Constant(2, 1, 0.5f));
  EXPECT_EQ(matrix.row_bytes(), 2);
  const std::vector<std::byte> want = {std::byte{0xe1}, std::byte{0x07},   // -2 | 1, spare | 7
                                       std::byte{0x08}, std::byte{0x0f}};  // 0 | -8, spare | -1
  EXPECT_TRUE(std::ranges::equal(matrix.data(), want));
  EXPECT_EQ(matrix.size_bytes(), 4u + 2 * sizeof(float));
}

TEST(QuantizedMatrix, OtherBitsTakeAByteEach) {
  Int8Matrix values(2, 3);
  values << 1, 0, -1,  //
      -1, 1, 1;
  const std::vector<std::byte> want = {std::byte{1},    std::byte{0}, std::byte{0xff},
                                       std::byte{0xff}, std::byte{1}, std::byte{1}};
  for (const int num_bits : {2, 3, 5, 6, 7, 8}) {
    const QuantizedMatrix matrix(per_tensor({.num_bits = num_bits}), values,
                                 Matrix::Constant(1, 1, 2.0f));
    EXPECT_EQ(matrix.row_bytes(), 3);
    EXPECT_TRUE(std::ranges::equal(matrix.data(), want)) << num_bits << " bits";
    EXPECT_EQ(matrix.size_bytes(), 6u + sizeof(float));
  }
}

TEST(QuantizedMatrix, GivesBackTheIntegersAndScalesItWasMadeOf) {
  constexpr unsigned kSeed = 41;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int num_bits = 2; num_bits <= 8; ++num_bits) {
    for (const QuantizationScheme& scheme : schemes_of(num_bits)) {
      for (const auto& [rows, cols] : {std::pair<Index, Index>{1, 1}, {3, 32}, {2, 33}, {5, 300}}) {
        const Int8Matrix values = random_integers(rows, cols, scheme, random);
        const Matrix scales = random_scales(rows, cols, scheme, random);
        const QuantizedMatrix matrix(scheme, values, scales);
        ASSERT_EQ(matrix.rows(), rows);
        ASSERT_EQ(matrix.cols(), cols);
        ASSERT_EQ(matrix.scheme(), scheme);
        ASSERT_EQ(matrix.num_groups(), scales.cols());
        ASSERT_EQ(matrix.scales(), scales);
        ASSERT_EQ(matrix.data().size(), static_cast<std::size_t>(rows * matrix.row_bytes()));
        for (Index row = 0; row < rows; ++row) {
          std::vector<std::int8_t> unpacked(static_cast<std::size_t>(cols) + 1, 99);
          matrix.unpack_row(row, unpacked.data());
          ASSERT_EQ(unpacked.back(), 99) << "unpack_row writes cols() integers only";
          for (Index col = 0; col < cols; ++col) {
            ASSERT_EQ(matrix.value(row, col), values(row, col));
            ASSERT_EQ(unpacked[static_cast<std::size_t>(col)], values(row, col));
          }
        }
      }
    }
  }
}

TEST(QuantizedMatrix, CopiesAndMovesKeepTheContent) {
  Int8Matrix values(1, 3);
  values << 1, 2, 3;
  QuantizedMatrix matrix(per_channel({.num_bits = 4}), values, Matrix::Constant(1, 1, 0.5f));
  const QuantizedMatrix copy = matrix;
  const QuantizedMatrix moved = std::move(matrix);
  for (const QuantizedMatrix* m : {&copy, &moved}) {
    EXPECT_EQ(dequantize(*m), (values.cast<float>() * 0.5f).eval());
  }
}

TEST(QuantizedMatrix, MayBeEmpty) {
  EXPECT_EQ(QuantizedMatrix().rows(), 0);
  EXPECT_EQ(QuantizedMatrix().cols(), 0);
  EXPECT_EQ(QuantizedMatrix().scheme(), per_tensor());
  EXPECT_EQ(QuantizedMatrix().data().size(), 0u);
  EXPECT_EQ(dequantize(QuantizedMatrix()), Matrix(0, 0));
  for (const int num_bits : {4, 8}) {
    for (const QuantizationScheme& scheme : schemes_of(num_bits)) {
      for (const auto& [rows, cols] : {std::pair<Index, Index>{0, 0}, {0, 40}, {3, 0}}) {
        const Matrix scales = Matrix::Zero(scheme.granularity() == Granularity::kTensor ? 1 : rows,
                                           scheme.num_groups(cols));
        const QuantizedMatrix matrix(scheme, Int8Matrix(rows, cols), scales);
        EXPECT_EQ(matrix.rows(), rows);
        EXPECT_EQ(matrix.cols(), cols);
        EXPECT_EQ(matrix.data().size(), 0u);
        EXPECT_EQ(dequantize(matrix), Matrix(rows, cols));
      }
    }
  }
}

TEST(QuantizedMatrix, RefusesIntegersOutsideTheRange) {
  const auto make = [](const QuantizationScheme& scheme, int q) {
    Int8Matrix values = Int8Matrix::Zero(3, 5);
    values(1, 4) = static_cast<std::int8_t>(q);
    values(2, 0) = static_cast<std::int8_t>(q);  // only the first is named
    const Index rows = scheme.granularity() == Granularity::kTensor ? 1 : 3;
    return QuantizedMatrix(scheme, values, Matrix::Ones(rows, 1));
  };
  for (int num_bits = 2; num_bits <= 8; ++num_bits) {
    for (const QuantizationScheme& scheme : schemes_of(num_bits)) {
      EXPECT_NO_THROW(make(scheme, scheme.max_value()));
      EXPECT_NO_THROW(make(scheme, scheme.min_value()));
      for (const int q : {scheme.min_value() - 1, scheme.max_value() + 1}) {
        if (q < -128 || q > 127) continue;
        expect_error(ErrorCode::kArgument, "got " + std::to_string(q) + " at row 1, column 4",
                     [&] { make(scheme, q); });
      }
    }
  }
  expect_error(ErrorCode::kArgument, "values of 4 bits must be in [-7, 7], got -8",
               [&] { make(per_tensor({.num_bits = 4}), -8); });
}

TEST(QuantizedMatrix, RefusesScalesThatAreNegativeOrNotFinite) {
  const auto make = [](float scale) {
    Matrix scales = Matrix::Ones(2, 3);
    scales(1, 2) = scale;
    return QuantizedMatrix(per_group(32), Int8Matrix::Zero(2, 70), scales);
  };
  for (const float scale : {0.0f, 1e-45f, std::numeric_limits<float>::max()}) {
    EXPECT_NO_THROW(make(scale));
  }
  for (const float scale : {-1e-45f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    expect_error(ErrorCode::kArgument, "at row 1, group 2", [&] { make(scale); });
  }
  expect_error(ErrorCode::kArgument, "scales must be finite and not negative, got -1 ",
               [&] { make(-1.0f); });
}

TEST(QuantizedMatrix, RefusesScalesOfAnotherShape) {
  const auto make = [](const QuantizationScheme& scheme, Index scale_rows, Index scale_cols) {
    return QuantizedMatrix(scheme, Int8Matrix::Zero(4, 40), Matrix::Ones(scale_rows, scale_cols));
  };
  expect_error(ErrorCode::kShape, "scales must be [1, 1], got [4, 1]",
               [&] { make(per_tensor(), 4, 1); });
  expect_error(ErrorCode::kShape, "scales must be [4, 1], got [1, 1]",
               [&] { make(per_channel(), 1, 1); });
  expect_error(ErrorCode::kShape, "scales must be [4, 2], got [4, 1]",
               [&] { make(per_group(32), 4, 1); });
  expect_error(ErrorCode::kShape, "scales must be [4, 1], got [4, 2]",
               [&] { make(per_group(64), 4, 2); });
}

TEST(Dequantize, ByHand) {
  Int8Matrix values = Int8Matrix::Zero(2, 34);
  values(0, 0) = 3, values(0, 31) = -4, values(0, 32) = 5, values(1, 33) = -7;
  Matrix want = Matrix::Zero(2, 34);

  want(0, 0) = 1.5f, want(0, 31) = -2.0f, want(0, 32) = 2.5f, want(1, 33) = -3.5f;
  EXPECT_EQ(dequantize(QuantizedMatrix(per_tensor(), values, Matrix::Constant(1, 1, 0.5f))), want);
  EXPECT_EQ(dequantize(QuantizedTensor{values, 0.5f}), want);
  EXPECT_EQ(dequantize(values, 0.5f), want);
  const Eigen::Matrix<std::int8_t, Eigen::Dynamic, Eigen::Dynamic> column_major = values;
  EXPECT_EQ(dequantize(column_major, 0.5f), want);
  EXPECT_EQ(dequantize(values.rightCols(3), 0.5f), want.rightCols(3)) << "rows may have a stride";

  Matrix scales(2, 1);
  scales << 2, 10;
  want(0, 0) = 6, want(0, 31) = -8, want(0, 32) = 10, want(1, 33) = -70;
  EXPECT_EQ(dequantize(QuantizedMatrix(per_channel({.num_bits = 4}), values, scales)), want);

  scales.resize(2, 2);
  scales << 1, 2,  //
      3, 4;
  want(0, 0) = 3, want(0, 31) = -4, want(0, 32) = 10, want(1, 33) = -28;
  EXPECT_EQ(dequantize(QuantizedMatrix(per_group(32, {.num_bits = 4}), values, scales)), want);
}

TEST(Dequantize, RoundsEachProductOnceInAnyFloatingPointMode) {
  constexpr unsigned kSeed = 42;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const QuantizationScheme scheme = per_group(32);
  const Int8Matrix values = random_integers(20, 70, scheme, random);
  Matrix scales = random_scales(20, 70, scheme, random);
  scales.row(3) *= 0x1p-140f;  // subnormal
  Matrix want(20, 70);
  for (Index row = 0; row < 20; ++row) {
    for (Index col = 0; col < 70; ++col) {  // exact in double: 24 bits times 8
      want(row, col) = static_cast<float>(static_cast<double>(scales(row, col / 32)) *
                                          static_cast<double>(values(row, col)));
    }
  }
  const QuantizedMatrix matrix(scheme, values, scales);
  EXPECT_EQ(dequantize(matrix), want);
  const float scale = scales(3, 0);
  const Matrix tensor = dequantize(values, scale);
  for (const support::FpMode mode : support::foreign_fp_modes()) {
    Matrix got, got_tensor;
    {
      const support::ScopedFpMode scoped(mode);
      got = dequantize(matrix);
      got_tensor = dequantize(values, scale);
    }
    EXPECT_EQ(got, want) << mode;
    EXPECT_EQ(got_tensor, tensor) << mode;
  }
}

}  // namespace
}  // namespace kvick
