// SPDX-License-Identifier: MIT
// What weights of any format are made of, weight by weight: the oracle's side of the tests of
// packed weights and of products with them.
//
// Stored formats are taken apart by the public decoder alone: with every scale set to one it gives
// the integers, with every integer set to one the scales, and with every integer set to zero the
// minimums. QuantizedMatrix tells its parts itself.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kvick/kernels/packed_format.hpp"
#include "kvick/quant/packed_weights.hpp"
#include "kvick/quant/quantized_matrix.hpp"
#include "nn/compute.hpp"

namespace support {

/// weight = scale * integer + minimum; all [out][in].
struct WeightParts {
  kvick::Matrix weights;
  kvick::Matrix integers;  ///< the zero point is gone; empty where weights are floats
  kvick::Matrix scales;
  kvick::Matrix minimums;  ///< empty without minimums
  bool has_half_scales = false;
  bool is_per_channel = false;
};

/// Where the fields of a block are, and the bytes that make every integer one.
struct BlockFields {
  std::size_t scale;  ///< f16 d, and right after it the minimum, if any
  bool has_minimum;
  std::size_t sub_scales, num_sub_scales;  ///< of Q4_K, Q5_K and Q6_K
  std::size_t low, num_low;                ///< bytes of the low bits
  std::uint8_t low_one;
  std::size_t high, num_high;  ///< bytes of the high bits
  std::uint8_t high_one;
};

inline BlockFields block_fields(kvick::TensorType type) {
  using kvick::TensorType;
  switch (type) {
    case TensorType::kQ4_0: return {0, false, 0, 0, 2, 16, 0x99, 0, 0, 0};
    case TensorType::kQ4_1: return {0, true, 0, 0, 4, 16, 0x11, 0, 0, 0};
    case TensorType::kQ5_0: return {0, false, 0, 0, 6, 16, 0x11, 2, 4, 0xff};
    case TensorType::kQ5_1: return {0, true, 0, 0, 8, 16, 0x11, 4, 4, 0};
    case TensorType::kQ8_0: return {0, false, 0, 0, 2, 32, 1, 0, 0, 0};
    case TensorType::kQ4_K: return {0, true, 4, 12, 16, 128, 0x11, 0, 0, 0};
    case TensorType::kQ5_K: return {0, true, 4, 12, 48, 128, 0x11, 16, 32, 0};
    case TensorType::kQ6_K: return {208, false, 192, 16, 0, 128, 0x11, 128, 64, 0xaa};
    default: return {};
  }
}

/// The decoded weights after change(block) of every block.
template <class Change>
kvick::Matrix decode_changed(const StoredWeights& weights, Change&& change) {
  StoredWeights changed{weights.bytes, weights.view};
  const std::size_t block_bytes = kvick::info(weights.view.type()).block_bytes;
  for (std::size_t at = 0; at < changed.bytes.size(); at += block_bytes) {
    change(changed.bytes.data() + at);
  }
  return changed.dequantized();
}

inline WeightParts parts_of(const StoredWeights& weights) {
  using kvick::f16;
  WeightParts parts;
  parts.weights = weights.dequantized();
  const kvick::TensorType type = weights.view.type();
  const BlockFields fields = block_fields(type);
  if (kvick::info(type).block_size == 1) return parts;

  const auto set = [](std::byte* block, std::size_t at, std::size_t count, int value) {
    std::memset(block + at, value, count);
  };
  const auto set_integers = [&](std::byte* block, bool to_one) {
    set(block, fields.low, fields.num_low, to_one ? fields.low_one : 0);
    set(block, fields.high, fields.num_high, to_one ? fields.high_one : 0);
  };
  parts.integers = decode_changed(weights, [&](std::byte* block) {
    const f16 one(1.0f);
    std::memcpy(block + fields.scale, &one, 2);
    if (fields.has_minimum) set(block, fields.scale + 2, 2, 0);
    set(block, fields.sub_scales, fields.num_sub_scales, 1);
    // Bytes 4 to 7 of packed 6-bit scales are minimums; a 1 in byte 8 and on is a scale.
  });
  parts.scales = decode_changed(weights, [&](std::byte* block) {
    if (fields.has_minimum) set(block, fields.scale + 2, 2, 0);
    set_integers(block, true);
  });
  if (fields.has_minimum) {
    parts.minimums = decode_changed(weights, [&](std::byte* block) { set_integers(block, false); });
  }
  parts.has_half_scales = type == kvick::TensorType::kQ6_K;
  return parts;
}

inline WeightParts parts_of(const kvick::QuantizedMatrix& matrix) {
  WeightParts parts;
  parts.weights = kvick::dequantize(matrix);
  const bool is_grouped = matrix.scheme().granularity() == kvick::Granularity::kGroup;
  parts.is_per_channel = !is_grouped;
  parts.integers.resize(matrix.rows(), matrix.cols());
  parts.scales.resize(matrix.rows(), matrix.cols());
  for (kvick::Index o = 0; o < matrix.rows(); ++o) {
    for (kvick::Index k = 0; k < matrix.cols(); ++k) {
      parts.integers(o, k) = static_cast<float>(matrix.value(o, k));
      parts.scales(o, k) = matrix.scale(o, is_grouped ? k / matrix.scheme().group_size() : 0);
    }
  }
  return parts;
}

/// Integers over their whole range, scales of the order of 2^-6.
inline kvick::QuantizedMatrix random_quantized(const kvick::QuantizationScheme& scheme,
                                               kvick::Index out_features, kvick::Index in_features,
                                               unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> integers(scheme.min_value(), scheme.max_value());
  std::uniform_real_distribution<float> scales(0x1p-10f, 0x1p-6f);
  kvick::Int8Matrix values = kvick::Int8Matrix::NullaryExpr(
      out_features, in_features, [&] { return static_cast<std::int8_t>(integers(random)); });
  values(0, 0) = static_cast<std::int8_t>(scheme.min_value());
  const bool is_per_tensor = scheme.granularity() == kvick::Granularity::kTensor;
  kvick::Matrix some_scales =
      kvick::Matrix::NullaryExpr(is_per_tensor ? 1 : out_features, scheme.num_groups(in_features),
                                 [&] { return scales(random); });
  return {scheme, std::move(values), std::move(some_scales)};
}

/// Every granularity at one number of bits, with and without the full range.
inline std::vector<kvick::QuantizationScheme> schemes_of(int num_bits) {
  std::vector<kvick::QuantizationScheme> schemes;
  for (const bool full_range : {false, true}) {
    const kvick::QuantizeOptions options = {.num_bits = num_bits, .full_range = full_range};
    schemes.push_back(kvick::per_tensor(options));
    schemes.push_back(kvick::per_channel(options));
    for (const int size : {32, 64, 128}) schemes.push_back(kvick::per_group(size, options));
  }
  return schemes;
}

/// Activations as the contract quantizes them.
struct ContractActivations {
  std::vector<int> values;
  std::vector<float> scales;       ///< of each group of 32
  std::vector<float> scaled_sums;  ///< scale * float(sum of values)
};

/// Quantizes `count` values with the scale of their largest magnitude.
inline void quantize_activations(const float* x, kvick::Index count, float max,
                                 ContractActivations& out) {
  const bool is_finite = std::isfinite(max);
  const bool is_zero = !is_finite || max < 0x1p-100f;
  const float scale = !is_finite ? std::nanf("") : is_zero ? 0.0f : max / 127.0f;
  int sum = 0;
  for (kvick::Index k = 0; k < count; ++k) {
    const volatile float scaled = is_zero ? 0.0f : x[k] * (127.0f / max);
    const auto value = static_cast<int>(std::nearbyint(static_cast<float>(scaled)));
    // In double: no other integer is nearer, but for the roundings of 127 / max, the product, the
    // scale (each 2^-24 of at most 127 steps).
    if (!is_zero) {
      EXPECT_LE(std::abs(static_cast<double>(x[k]) / static_cast<double>(scale) - value),
                0.5 + 4 * 127 * kFloatRounding);
    }
    out.values.push_back(value);
    sum += value;
  }
  out.scales.push_back(scale);
  out.scaled_sums.push_back(scale * static_cast<float>(sum));
}

inline ContractActivations quantize_activations(const kvick::Matrix& x, kvick::Index row,
                                                bool whole_row) {
  ContractActivations out;
  const auto max_of = [&](kvick::Index first, kvick::Index count) {
    float max = 0.0f;
    for (kvick::Index k = first; k < first + count; ++k) {
      if (!std::isfinite(x(row, k))) return std::nanf("");
      max = std::max(max, std::abs(x(row, k)));
    }
    return max;
  };
  for (kvick::Index first = 0; first < x.cols(); first += 32) {
    const kvick::Index count = std::min<kvick::Index>(32, x.cols() - first);
    const float max = whole_row ? max_of(0, x.cols()) : max_of(first, count);
    quantize_activations(&x(row, first), count, max, out);
  }
  return out;
}

/// The sums that products with int8 activations promise, to the bit.
inline kvick::Matrix contract_int8(const WeightParts& w, const kvick::Matrix& x) {
  using kvick::Index;
  kvick::Matrix y(x.rows(), w.weights.rows());
  const Index in = x.cols();
  for (Index m = 0; m < x.rows(); ++m) {
    const ContractActivations a = quantize_activations(x, m, w.is_per_channel);
    const auto dot = [&](Index o, Index first, Index count) {
      std::int64_t sum = 0;
      for (Index k = first; k < std::min(first + count, in); ++k) {
        sum += static_cast<std::int64_t>(w.integers(o, k)) * a.values[static_cast<std::size_t>(k)];
      }
      return static_cast<float>(sum);
    };
    for (Index o = 0; o < w.weights.rows(); ++o) {
      float sum = 0.0f;
      const Index part = w.has_half_scales ? 16 : 32;
      for (Index first = 0; first < in && !w.is_per_channel; first += part) {
        const auto g = static_cast<std::size_t>(first / 32);
        const float scale = w.scales(o, first) * a.scales[g];
        sum = std::fma(scale, dot(o, first, part), sum);
        if (w.minimums.size() != 0) sum = std::fma(w.minimums(o, first), a.scaled_sums[g], sum);
      }
      if (w.is_per_channel) sum = (w.scales(o, 0) * a.scales[0]) * dot(o, 0, in);
      y(m, o) = sum;
    }
  }
  return y;
}

}  // namespace support
