// SPDX-License-Identifier: MIT
// What the tests of layers share: compute contexts per ISA, comparison to the bit, random weights.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kvick/core/half.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/kernels/compute_context.hpp"
#include "kvick/kernels/kernel_table.hpp"
#include "kvick/quant/block_formats.hpp"
#include "kvick/quant/weight_view.hpp"
#include "reference/operands.hpp"  // IWYU pragma: export

namespace support {

/// Half a unit in the last place of 1: what one rounding to float costs, relatively.
inline constexpr double kFloatRounding = 0x1p-24;

/// A pool with the kernels of one ISA.
struct Compute {
  explicit Compute(kvick::Isa isa, int num_threads = 1)
      : pool(num_threads), context{pool, kvick::kernel_table(isa)} {}
  kvick::ThreadPool pool;
  kvick::ComputeContext context;
};

/// Suites run once for each ISA of this CPU, which must be the one that computes.
class OnEveryIsa : public ::testing::TestWithParam<kvick::Isa> {
 protected:
  void SetUp() override { ASSERT_EQ(kvick::kernel_table(GetParam()).isa, GetParam()); }
};

inline std::string isa_name(const ::testing::TestParamInfo<kvick::Isa>& info) {
  return std::string(kvick::name(info.param));
}

/// Whether two matrices hold the same bits (so +0 is not -0).
inline ::testing::AssertionResult same_bits(const kvick::ConstMatrixRef& a,
                                            const kvick::ConstMatrixRef& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) {
    return ::testing::AssertionFailure() << "sizes differ";
  }
  for (kvick::Index i = 0; i < a.rows(); ++i) {
    for (kvick::Index j = 0; j < a.cols(); ++j) {
      if (std::bit_cast<std::uint32_t>(a(i, j)) != std::bit_cast<std::uint32_t>(b(i, j))) {
        return ::testing::AssertionFailure()
               << "[" << i << ", " << j << "]: " << std::hexfloat << a(i, j) << " and " << b(i, j);
      }
    }
  }
  return ::testing::AssertionSuccess();
}

inline kvick::Matrix random_floats(kvick::Index rows, kvick::Index cols, unsigned seed) {
  return random_matrix<float>(rows, cols, seed);
}

/// Weights of one format in memory, with a view of them.
struct StoredWeights {
  std::vector<std::byte> bytes;
  kvick::WeightView view;

  /// All weights, by the public decoder of whole tensors.
  kvick::Matrix dequantized() const {
    kvick::Matrix values(view.out_features(), view.in_features());
    kvick::dequantize(view.type(), bytes, {values.data(), static_cast<std::size_t>(values.size())});
    return values;
  }
};

/// Random values where the format holds floats; elsewhere random bytes with scales of about 2^-6,
/// so that weights are of the order of 1.
inline StoredWeights random_weights(kvick::TensorType type, kvick::Index out_features,
                                    kvick::Index in_features, unsigned seed) {
  using kvick::TensorType;
  const kvick::TensorTypeInfo& format = kvick::info(type);
  const auto count = static_cast<std::size_t>(out_features * in_features);
  StoredWeights weights;
  weights.bytes.resize(count / format.block_size * format.block_bytes);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  if (format.block_size == 1) {
    std::vector<float> floats(count);
    for (float& value : floats) value = values(random);
    kvick::quantize(type, floats, weights.bytes);
  } else {
    for (std::byte& byte : weights.bytes) byte = static_cast<std::byte>(random() & 255);
    const bool has_minimum = type == TensorType::kQ4_1 || type == TensorType::kQ5_1 ||
                             type == TensorType::kQ4_K || type == TensorType::kQ5_K;
    const std::size_t scale_offset = type == TensorType::kQ6_K ? 208 : 0;
    for (std::size_t block = 0; block < weights.bytes.size(); block += format.block_bytes) {
      const kvick::f16 scales[2] = {kvick::f16(0x1p-6f * values(random)),
                                    kvick::f16(0x1p-6f * values(random))};
      std::memcpy(weights.bytes.data() + block + scale_offset, scales, has_minimum ? 4 : 2);
    }
  }
  weights.view = kvick::WeightView(type, weights.bytes, out_features, in_features);
  return weights;
}

/// The sums that linear layers promise: one fma after another, inputs ascending.
inline kvick::Matrix fma_chains(const kvick::Matrix& weights, const kvick::Matrix& x) {
  kvick::Matrix y(x.rows(), weights.rows());
  for (kvick::Index m = 0; m < x.rows(); ++m) {
    for (kvick::Index n = 0; n < weights.rows(); ++n) {
      float sum = 0.0f;
      for (kvick::Index k = 0; k < x.cols(); ++k) sum = std::fma(x(m, k), weights(n, k), sum);
      y(m, n) = sum;
    }
  }
  return y;
}

}  // namespace support
