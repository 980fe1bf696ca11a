// SPDX-License-Identifier: MIT
#include "kvick/quant/weight_view.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "nn/compute.hpp"

namespace kvick {
namespace {

using support::expect_error;
using support::random_weights;
using support::StoredWeights;

TEST(WeightView, IsEmptyUnlessGivenWeights) {
  const WeightView view;
  EXPECT_TRUE(view.empty());
  EXPECT_EQ(view.out_features(), 0);
  EXPECT_EQ(view.in_features(), 0);
  EXPECT_TRUE(view.data().empty());
}

TEST(WeightView, TellsWhatItWasGiven) {
  const std::vector<std::byte> bytes(3 * 2 * 34);
  const WeightView view(TensorType::kQ8_0, bytes, 3, 64);
  EXPECT_FALSE(view.empty());
  EXPECT_EQ(view.type(), TensorType::kQ8_0);
  EXPECT_EQ(view.out_features(), 3);
  EXPECT_EQ(view.in_features(), 64);
  EXPECT_EQ(view.data().data(), bytes.data());
  EXPECT_EQ(view.data().size(), bytes.size());
}

TEST(WeightView, ByHand) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};  // 2 outputs of 3 inputs
  const WeightView view(TensorType::kF32, std::as_bytes(std::span(values)), 2, 3);
  float row[3] = {};
  view.dequantize(1, 0, 3, row);
  EXPECT_EQ(std::vector<float>(row, row + 3), (std::vector<float>{4, 5, 6}));
  view.dequantize(0, 1, 2, row);
  EXPECT_EQ(std::vector<float>(row, row + 3), (std::vector<float>{2, 3, 6}));
}

TEST(WeightView, DecodesAnyBlocksOfARowAndNothingElse) {
  for (const TensorTypeInfo& format : tensor_types()) {
    const auto block = static_cast<Index>(format.block_size);
    const Index in = 4 * block, out = 3;
    const StoredWeights weights = random_weights(format.type, out, in, 1);
    const Matrix want = weights.dequantized();
    for (Index output = 0; output < out; ++output) {
      for (Index first = 0; first < in; first += block) {
        for (Index count = block; first + count <= in; count += block) {
          std::vector<float> values(static_cast<std::size_t>(count) + 1, 77.0f);
          weights.view.dequantize(output, first, count, values.data());
          for (Index i = 0; i < count; ++i) {
            ASSERT_EQ(values[static_cast<std::size_t>(i)], want(output, first + i))
                << format.name << " [" << output << ", " << first + i << "]";
          }
          ASSERT_EQ(values.back(), 77.0f) << format.name;
        }
      }
    }
  }
}

TEST(WeightView, BytesNeedNoAlignment) {
  for (const TensorTypeInfo& format : tensor_types()) {
    const auto in = static_cast<Index>(format.block_size);
    const StoredWeights weights = random_weights(format.type, 2, in, 2);
    std::vector<std::byte> shifted(weights.bytes.size() + 1);
    std::memcpy(shifted.data() + 1, weights.bytes.data(), weights.bytes.size());
    const WeightView view(format.type, std::span(shifted).subspan(1), 2, in);
    std::vector<float> values(static_cast<std::size_t>(in));
    view.dequantize(1, 0, in, values.data());
    for (Index i = 0; i < in; ++i) {
      ASSERT_EQ(values[static_cast<std::size_t>(i)], weights.dequantized()(1, i)) << format.name;
    }
  }
}

TEST(WeightView, RejectsSizesThatDoNotFit) {
  const std::vector<std::byte> bytes(34 * 6);
  const auto call = [&](TensorType type, std::size_t size, Index out, Index in) {
    WeightView(type, std::span(bytes).first(size), out, in);
  };
  EXPECT_NO_THROW(call(TensorType::kQ8_0, 34 * 6, 3, 64));
  const ErrorCode shape = ErrorCode::kShape;
  const TensorType q8 = TensorType::kQ8_0;
  expect_error(shape, "must be positive, got 0 x 64", [&] { call(q8, 0, 0, 64); });
  expect_error(shape, "must be positive, got 3 x 0", [&] { call(q8, 0, 3, 0); });
  expect_error(shape, "must be positive, got -3 x 64", [&] { call(q8, 34 * 6, -3, 64); });
  expect_error(shape, "32 weights in a block of q8_0, got 48", [&] { call(q8, 34 * 6, 4, 48); });
  expect_error(shape, "256 weights in a block of q6_k, got 64",
               [&] { call(TensorType::kQ6_K, 210, 1, 64); });
  expect_error(shape, "3 x 64 weights of q8_0 must have 204 bytes, got 203",
               [&] { call(q8, 203, 3, 64); });
  expect_error(shape, "must have 170 bytes, got 204", [&] { call(q8, 204, 5, 32); });
  constexpr Index kLargest = std::numeric_limits<Index>::max();
  expect_error(ErrorCode::kCapacity, "WeightView", [&] { call(TensorType::kF32, 4, 1, kLargest); });
  expect_error(ErrorCode::kCapacity, "WeightView",
               [&] { call(TensorType::kF32, 4, kLargest / 4 + 1, 4); });
}

}  // namespace
}  // namespace kvick
