// SPDX-License-Identifier: MIT
// A linear layer's weights, packed once for the kernels: same values, same size, another order.
//
// Shapes    [out_features][in_features].
// Accuracy  Lossless from every stored format and from QuantizedMatrix: dequantize_row() gives the
//           floats of the source, bit for bit (of its NaNs, that they are NaN), whatever the
//           caller's floating-point mode.
// Memory    The bytes of the source, rounded up to 16 outputs and to units of the format; integers
//           of 2, 3, 5, 6 and 7 bits take a byte each. On huge pages from 2 MiB on.
// Errors    Error(kShape) for empty weights, and for more than kMaxChannelInputs inputs where a
//           scale covers a whole output; Error(kCapacity) for memory that is not to be had.
// Threads   Immutable after construction, which uses the pool it is given.
// Layer     quant: may include core, kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/checked.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/kernels/impl/portable/packed_panel.hpp"
#include "kvick/kernels/packed_format.hpp"
#include "kvick/quant/pack_blocks.hpp"
#include "kvick/quant/quantized_matrix.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "kvick/quant/weight_view.hpp"

namespace kvick::inline v0_1 {

class PackedWeights {
 public:
  PackedWeights() = default;

  /// From a stored tensor of any format.
  PackedWeights(const WeightView& weights, ThreadPool& pool);

  /// From quantized values: kGroup8 or kGroup4 per group, kChannel8 or kChannel4 otherwise.
  PackedWeights(const QuantizedMatrix& weights, ThreadPool& pool);

  /// From floats, kept as f32.
  PackedWeights(const ConstMatrixRef& weights, ThreadPool& pool);

  PackedFormat format() const noexcept { return format_; }
  Index out_features() const noexcept { return out_features_; }
  Index in_features() const noexcept { return in_features_; }
  Index num_panels() const noexcept { return (out_features_ + kPanelWidth - 1) / kPanelWidth; }
  bool empty() const noexcept { return out_features_ == 0; }
  std::size_t size_bytes() const noexcept { return data_.size() + channel_scales_.size_bytes(); }

  /// Panels [first, first + count) as an operand of the kernels.
  PackedPanels panels(Index first, Index count) const noexcept;

  /// The in_features weights of one output.
  void dequantize_row(Index output, float* values) const noexcept;

 private:
  PackedWeights(PackedFormat format, Index out_features, Index in_features);

  std::byte* panel(Index index) noexcept { return data_.data() + index * panel_bytes_; }

  void pack_stored(const WeightView& weights, ThreadPool& pool);

  /// dequantize_row() in the floating-point mode it is called in.
  void read_row(Index output, float* values) const noexcept;

  /// Calls pack_row(output, lane, panel) for every output.
  template <class PackRow>
  void pack(ThreadPool& pool, PackRow&& pack_row);

  PackedFormat format_ = PackedFormat::kF32;
  Index out_features_ = 0;
  Index in_features_ = 0;
  Index panel_bytes_ = 0;
  AlignedBuffer<std::byte> data_;
  AlignedBuffer<float> channel_scales_;  // [num_panels * 16], of per-channel formats
};

// ---- Implementation: nothing below is API ----

namespace detail {

constexpr PackedFormat packed_format(TensorType type) noexcept {
  switch (type) {
    case TensorType::kF32: return PackedFormat::kF32;
    case TensorType::kF16: return PackedFormat::kF16;
    case TensorType::kBF16: return PackedFormat::kBF16;
    case TensorType::kQ4_0: return PackedFormat::kQ4_0;
    case TensorType::kQ4_1: return PackedFormat::kQ4_1;
    case TensorType::kQ5_0: return PackedFormat::kQ5_0;
    case TensorType::kQ5_1: return PackedFormat::kQ5_1;
    case TensorType::kQ8_0: return PackedFormat::kQ8_0;
    case TensorType::kQ4_K: return PackedFormat::kQ4_K;
    case TensorType::kQ5_K: return PackedFormat::kQ5_K;
    case TensorType::kQ6_K: return PackedFormat::kQ6_K;
  }
  return PackedFormat::kF32;
}

inline PackedFormat packed_format(const QuantizationScheme& scheme) noexcept {
  const bool is_nibble = scheme.num_bits() == 4;
  if (scheme.granularity() == Granularity::kGroup) {
    return is_nibble ? PackedFormat::kGroup4 : PackedFormat::kGroup8;
  }
  return is_nibble ? PackedFormat::kChannel4 : PackedFormat::kChannel8;
}

/// One row of floats of `size` bytes each as lane j of a float panel.
inline void pack_float_row(const std::byte* row, Index count, Index size, int j,
                           std::byte* panel) noexcept {
  const auto bytes = static_cast<std::size_t>(size);
  for (Index k = 0; k < count; ++k) {
    std::memcpy(panel + (k * kPanelWidth + j) * size, row + k * size, bytes);
  }
}

/// One row of integers as lane j of a panel, with the scale of each group.
inline void pack_integer_row(const PackedLayout& layout, const QuantizedMatrix& weights,
                             Index output, int j, std::byte* panel) {
  std::vector<std::int8_t> values(
      static_cast<std::size_t>(num_groups(weights.cols()) * kGroupSize));
  weights.unpack_row(output, values.data());
  const int scheme_group = weights.scheme().group_size();
  for (Index g = 0; g < num_groups(weights.cols()); ++g) {
    const portable::GroupPlace place = portable::find_group(layout, panel, g);
    auto* const unit = const_cast<std::byte*>(place.unit);  // the panel is ours to write
    GroupWords words;
    std::uint8_t integers[kGroupSize];
    for (Index k = 0; k < kGroupSize; ++k) {
      integers[k] = static_cast<std::uint8_t>(values[static_cast<std::size_t>(g * kGroupSize + k)] +
                                              layout.zero_point);
    }
    std::memcpy(words.data(), integers, sizeof integers);
    store_words(layout.integers, words, j, unit + (place.integers - place.unit));
    if (layout.scales == PackedScales::kF32) {
      const float scale = weights.scale(output, g * kGroupSize / scheme_group);
      std::memcpy(unit + 4 * j, &scale, sizeof scale);
    }
  }
}

}  // namespace detail

inline PackedWeights::PackedWeights(PackedFormat format, Index out_features, Index in_features)
    : format_(format), out_features_(out_features), in_features_(in_features) {
  constexpr const char* kOperation = "PackedWeights";
  detail::require(out_features > 0 && in_features > 0, ErrorCode::kShape, kOperation,
                  "weights must have at least one output and input, got ", out_features, " x ",
                  in_features);
  // At most 64 bytes per input of a panel, and whole units of at most 256 inputs.
  checked_product({static_cast<std::uint64_t>(out_features) + kPanelWidth,
                   static_cast<std::uint64_t>(in_features) + 256, 8},
                  kOperation);
  detail::require(!is_per_channel(format) || in_features <= kMaxChannelInputs, ErrorCode::kShape,
                  kOperation, "weights with one scale per output must have at most ",
                  kMaxChannelInputs, " inputs, got ", in_features);
  panel_bytes_ = panel_bytes(format, in_features);
  data_ = AlignedBuffer<std::byte>(static_cast<std::size_t>(num_panels() * panel_bytes_));
}

template <class PackRow>
void PackedWeights::pack(ThreadPool& pool, PackRow&& pack_row) {
  pool.parallel_for(num_panels(), [&](Index begin, Index end) {
    for (Index output = begin * kPanelWidth; output < std::min(end * kPanelWidth, out_features_);
         ++output) {
      pack_row(output, static_cast<int>(output % kPanelWidth), panel(output / kPanelWidth));
    }
  });
}

inline PackedWeights::PackedWeights(const WeightView& weights, ThreadPool& pool)
    : PackedWeights(detail::packed_format(weights.type()), weights.out_features(),
                    weights.in_features()) {
  pack_stored(weights, pool);
}

inline void PackedWeights::pack_stored(const WeightView& weights, ThreadPool& pool) {
  const PackedLayout layout = packed_layout(format_);
  const auto row_bytes = static_cast<Index>(weights.data().size()) / out_features_;
  const auto pack_blocks = [&]<class Block>() {
    const Index num_blocks = row_bytes / static_cast<Index>(sizeof(Block));
    pack(pool, [&](Index output, int lane, std::byte* panel) {
      detail::pack_row<Block>(layout, weights.data().data() + output * row_bytes, num_blocks, lane,
                              panel);
    });
  };
  switch (weights.type()) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      return pack(pool, [&](Index output, int lane, std::byte* panel) {
        detail::pack_float_row(weights.data().data() + output * row_bytes, in_features_,
                               row_bytes / in_features_, lane, panel);
      });
    case TensorType::kQ4_0: return pack_blocks.template operator()<detail::BlockQ4_0>();
    case TensorType::kQ4_1: return pack_blocks.template operator()<detail::BlockQ4_1>();
    case TensorType::kQ5_0: return pack_blocks.template operator()<detail::BlockQ5_0>();
    case TensorType::kQ5_1: return pack_blocks.template operator()<detail::BlockQ5_1>();
    case TensorType::kQ8_0: return pack_blocks.template operator()<detail::BlockQ8_0>();
    case TensorType::kQ4_K: return pack_blocks.template operator()<detail::BlockQ4_K>();
    case TensorType::kQ5_K: return pack_blocks.template operator()<detail::BlockQ5_K>();
    case TensorType::kQ6_K: return pack_blocks.template operator()<detail::BlockQ6_K>();
  }
}

inline PackedWeights::PackedWeights(const QuantizedMatrix& weights, ThreadPool& pool)
    : PackedWeights(detail::packed_format(weights.scheme()), weights.rows(), weights.cols()) {
  const PackedLayout layout = packed_layout(format_);
  pack(pool, [&](Index output, int lane, std::byte* panel) {
    detail::pack_integer_row(layout, weights, output, lane, panel);
  });
  if (is_per_channel(format_)) {
    channel_scales_ = AlignedBuffer<float>(static_cast<std::size_t>(num_panels() * kPanelWidth));
    for (Index output = 0; output < out_features_; ++output) {
      channel_scales_[static_cast<std::size_t>(output)] = weights.scale(output, 0);
    }
  }
}

inline PackedWeights::PackedWeights(const ConstMatrixRef& weights, ThreadPool& pool)
    : PackedWeights(PackedFormat::kF32, weights.rows(), weights.cols()) {
  pack(pool, [&](Index output, int lane, std::byte* panel) {
    const float* const row = weights.data() + output * weights.outerStride();
    detail::pack_float_row(reinterpret_cast<const std::byte*>(row), in_features_, sizeof(float),
                           lane, panel);
  });
}

inline PackedPanels PackedWeights::panels(Index first, Index count) const noexcept {
  return {format_,
          data_.data() + first * panel_bytes_,
          channel_scales_.empty() ? nullptr : channel_scales_.data() + first * kPanelWidth,
          panel_bytes_,
          count,
          in_features_};
}

inline void PackedWeights::dequantize_row(Index output, float* values) const noexcept {
  const ScopedFpEnvironment fp_environment;
  read_row(output, values);
}

// Not inlined, so that no arithmetic leaves the guard of the caller.
[[gnu::noinline]] inline void PackedWeights::read_row(Index output, float* values) const noexcept {
  const std::byte* const panel = data_.data() + output / kPanelWidth * panel_bytes_;
  const auto lane = static_cast<int>(output % kPanelWidth);
  if (is_float(format_)) {
    const ElementType type = element_type(format_);
    const auto size = static_cast<Index>(kvick::size_bytes(type));
    for (Index k = 0; k < in_features_; ++k) {
      load_elements(type, panel + (k * kPanelWidth + lane) * size, 1, values + k);
    }
    return;
  }
  const PackedLayout layout = packed_layout(format_);
  const float channel_scale =
      channel_scales_.empty() ? 0.0f : channel_scales_[static_cast<std::size_t>(output)];
  for (Index g = 0; g < num_groups(in_features_); ++g) {
    const Index first = g * kGroupSize;
    detail::portable::read_lane(layout, panel, g, lane, channel_scale,
                                static_cast<int>(std::min<Index>(kGroupSize, in_features_ - first)),
                                values + first);
  }
}

}  // namespace kvick::inline v0_1
