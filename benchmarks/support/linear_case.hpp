// SPDX-License-Identifier: MIT
// One linear layer to be measured: packed weights of random values, an input, and a check.
//
// Weights rotate over several copies that together are more than caches hold, so that few rows are
// measured against memory and not against the cache.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/kernels/kernel_table.hpp"
#include "kvick/quant/packed_linear.hpp"
#include "kvick/quant/packed_weights.hpp"
#include "kvick/quant/quantize.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "kvick/quant/weight_view.hpp"
#include "kvick/reference/linear.hpp"

namespace measure {

using kvick::Index;
using kvick::Matrix;

inline Matrix random_floats(Index rows, Index columns, unsigned seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  Matrix values(rows, columns);
  for (Index i = 0; i < values.size(); ++i) values.data()[i] = uniform(random);
  return values;
}

/// Blocks of random bits with scales of about 2^-6: weights of the order of 1.
inline std::vector<std::byte> random_blocks(kvick::TensorType type, Index num_weights) {
  const kvick::TensorTypeInfo& format = kvick::info(type);
  std::vector<std::byte> bytes(static_cast<std::size_t>(num_weights) / format.block_size *
                               format.block_bytes);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-0x1p-6f, 0x1p-6f);
  for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    const auto bits = static_cast<std::uint32_t>(random());
    std::memcpy(bytes.data() + i, &bits, sizeof bits);
  }
  const std::size_t scale_offset = type == kvick::TensorType::kQ6_K ? 208 : 0;
  const bool has_minimum = type == kvick::TensorType::kQ4_1 || type == kvick::TensorType::kQ5_1 ||
                           type == kvick::TensorType::kQ4_K || type == kvick::TensorType::kQ5_K;
  for (std::size_t at = 0; at < bytes.size(); at += format.block_bytes) {
    const kvick::f16 scales[2] = {kvick::f16(uniform(random)), kvick::f16(uniform(random))};
    std::memcpy(bytes.data() + at + scale_offset, scales, has_minimum ? 4 : 2);
  }
  return bytes;
}

/// Names of what can be measured: stored types, "group8", "group4", "channel8", "channel4".
inline kvick::PackedWeights random_weights(std::string_view format, Index out_features,
                                           Index in_features, kvick::ThreadPool& pool) {
  if (format.starts_with("group") || format.starts_with("channel")) {
    const kvick::QuantizeOptions bits{.num_bits = format.back() - '0'};
    const auto scheme =
        format.starts_with("group") ? kvick::per_group(32, bits) : kvick::per_channel(bits);
    return {kvick::quantize(random_floats(out_features, in_features, 2), scheme), pool};
  }
  if (format == "f32") return {random_floats(out_features, in_features, 2), pool};
  for (const kvick::TensorTypeInfo& type : kvick::tensor_types()) {
    if (format != type.name) continue;
    if (type.block_size == 1) {
      const Matrix values = random_floats(out_features, in_features, 2);
      std::vector<std::byte> bytes(static_cast<std::size_t>(values.size()) * type.block_bytes);
      kvick::quantize(type.type, {values.data(), static_cast<std::size_t>(values.size())}, bytes);
      return {kvick::WeightView(type.type, bytes, out_features, in_features), pool};
    }
    const std::vector<std::byte> blocks = random_blocks(type.type, out_features * in_features);
    return {kvick::WeightView(type.type, blocks, out_features, in_features), pool};
  }
  throw std::invalid_argument(kvick::detail::concat("there is no format '", format, "'"));
}

class LinearCase {
 public:
  /// Copies of the weights together have at least `memory_bytes`.
  LinearCase(std::string_view format, Index out_features, Index in_features, Index rows,
             kvick::ActivationType activations, kvick::Isa isa, kvick::ThreadPool& pool,
             std::size_t memory_bytes)
      : pool_(pool),
        kernels_(kvick::kernel_table(isa)),
        activations_(activations),
        x_(random_floats(rows, in_features, 3)),
        y_(rows, out_features),
        workspace_(pool.num_threads()) {
    std::size_t bytes = 0;
    do {
      copies_.push_back(random_weights(format, out_features, in_features, pool));
      bytes += copies_.back().size_bytes();
    } while (bytes < memory_bytes);
  }

  double num_operations() const {
    return 2.0 * static_cast<double>(x_.rows()) * static_cast<double>(x_.cols()) *
           static_cast<double>(y_.cols());
  }
  double num_bytes() const { return static_cast<double>(copies_.front().size_bytes()); }

  void run(Index num_calls) {
    for (Index i = 0; i < num_calls; ++i) {
      const kvick::LinearProduct product{copies_[next_], y_};
      kvick::multiply({&product, 1}, x_, activations_, workspace_, {pool_, kernels_});
      next_ = (next_ + 1) % copies_.size();
    }
  }

  /// Throws unless some rows agree with Eigen's product of the dequantized weights: to 1e-4 of the
  /// largest output, and with int8 activations to 2 %.
  void check() {
    run(1);
    const kvick::PackedWeights& weights = copies_.front();
    Matrix dequantized(weights.out_features(), weights.in_features());
    for (Index n = 0; n < dequantized.rows(); ++n) {
      weights.dequantize_row(n, dequantized.row(n).data());
    }
    const Index rows = std::min<Index>(x_.rows(), 4);
    const Matrix expected = kvick::reference::linear(x_.topRows(rows), dequantized);
    const float error = (y_.topRows(rows) - expected).cwiseAbs().maxCoeff();
    const bool is_exact =
        kvick::is_float(weights.format()) || activations_ == kvick::ActivationType::kF32;
    const float bound = (is_exact ? 1e-4f : 2e-2f) * expected.cwiseAbs().maxCoeff();
    if (!(error <= bound)) {
      throw std::runtime_error(kvick::detail::concat("a product must be within ", bound,
                                                     " of the reference, got ", error));
    }
  }

 private:
  kvick::ThreadPool& pool_;
  const kvick::KernelTable& kernels_;
  kvick::ActivationType activations_;
  std::vector<kvick::PackedWeights> copies_;
  std::size_t next_ = 0;
  Matrix x_;
  Matrix y_;
  kvick::LinearWorkspace workspace_;
};

}  // namespace measure
