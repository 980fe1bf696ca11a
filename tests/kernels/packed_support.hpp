// SPDX-License-Identifier: MIT
// Random packed panels and activations for the tests of the kernels that read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_test_support.hpp"
#include "kvick/core/half.hpp"
#include "kvick/kernels/kernel_table.hpp"
#include "kvick/kernels/packed_format.hpp"

namespace kvick::kernel_test {

inline constexpr PackedFormat kPackedFormats[] = {
    PackedFormat::kF32,    PackedFormat::kF16,      PackedFormat::kBF16,    PackedFormat::kQ8_0,
    PackedFormat::kQ4_0,   PackedFormat::kQ4_1,     PackedFormat::kQ5_0,    PackedFormat::kQ5_1,
    PackedFormat::kQ4_K,   PackedFormat::kQ5_K,     PackedFormat::kQ6_K,    PackedFormat::kGroup8,
    PackedFormat::kGroup4, PackedFormat::kChannel8, PackedFormat::kChannel4};
static_assert(std::size(kPackedFormats) == kNumPackedFormats);

/// Inputs that a format can have: K-quants come in blocks of 256 and the other block formats of 32.
inline Index fitting_inputs(PackedFormat format, Index in_features) {
  const auto up = [&](Index step) { return (in_features + step - 1) / step * step; };
  switch (format) {
    case PackedFormat::kQ8_0:
    case PackedFormat::kQ4_0:
    case PackedFormat::kQ4_1:
    case PackedFormat::kQ5_0:
    case PackedFormat::kQ5_1: return up(32);
    case PackedFormat::kQ4_K:
    case PackedFormat::kQ5_K:
    case PackedFormat::kQ6_K: return up(256);
    default: return in_features;
  }
}

/// Panels of random integers and finite scales of either sign, some of them 0 or subnormal.
class RandomPanels {
 public:
  RandomPanels(PackedFormat format, Index in_features, Index num_panels, Random& random)
      : bytes_(static_cast<std::size_t>(num_panels * panel_bytes(format, in_features))) {
    panels_ = {format,     bytes_.data(), nullptr, panel_bytes(format, in_features),
               num_panels, in_features};
    for (std::byte& b : bytes_) b = static_cast<std::byte>(random.integer(0, 255));
    if (is_float(format)) {
      fill_elements(format, random);
    } else {
      fill_scales(packed_layout(format), random);
    }
    if (is_per_channel(format)) {
      channel_scales_ = random.spreads(num_panels * kPanelWidth, -10, 0);
      panels_.channel_scales = channel_scales_.data();
    }
  }
  RandomPanels(const RandomPanels&) = delete;
  RandomPanels& operator=(const RandomPanels&) = delete;

  const PackedPanels& panels() const { return panels_; }

 private:
  static float any_scale(Random& random) {
    if (random.integer(0, 15) == 0) return random.integer(0, 1) == 0 ? 0.0f : 0x1p-20f;
    return random.spread(-12, 2);
  }
  void store_f16(std::size_t at, float value) {
    const f16 half(value);
    std::memcpy(bytes_.data() + at, &half, sizeof half);
  }
  void fill_elements(PackedFormat format, Random& random) {
    for (std::size_t at = 0; at < bytes_.size(); at += format == PackedFormat::kF32 ? 4 : 2) {
      const float value = random.spread(-12, 2);
      const bf16 brain(value);
      if (format == PackedFormat::kF32) std::memcpy(bytes_.data() + at, &value, sizeof value);
      if (format == PackedFormat::kF16) store_f16(at, value);
      if (format == PackedFormat::kBF16) std::memcpy(bytes_.data() + at, &brain, sizeof brain);
    }
  }
  void fill_scales(const PackedLayout& layout, Random& random) {
    const auto unit_bytes = static_cast<std::size_t>(layout.unit_bytes());
    for (std::size_t unit = 0; unit + unit_bytes <= bytes_.size(); unit += unit_bytes) {
      if (layout.scales == PackedScales::kF32) {
        for (std::size_t j = 0; j < kPanelWidth; ++j) {
          const float scale = any_scale(random);
          std::memcpy(bytes_.data() + unit + 4 * j, &scale, sizeof scale);
        }
      } else if (layout.scales != PackedScales::kNone) {
        for (std::size_t j = 0; j < 2 * kPanelWidth; ++j) {
          store_f16(unit + 2 * j, any_scale(random));
        }
      }
    }
  }

  AlignedBuffer<std::byte> bytes_;
  AlignedBuffer<float> channel_scales_;
  PackedPanels panels_;
};

/// Rows of activations, quantized by the portable kernels. As many rows as the contract makes
/// readable; those beyond `rows` hold 0x55.
class QuantizedTestRows {
 public:
  QuantizedTestRows(const float* x, Index rows, Index in_features, bool whole_rows)
      : stride_(num_groups(in_features)),
        groups_(static_cast<std::size_t>((rows + kRowTile - 1) / kRowTile * kRowTile * stride_)),
        totals_(static_cast<std::size_t>((rows + kRowTile - 1) / kRowTile * kRowTile)) {
    std::memset(static_cast<void*>(groups_.data()), 0x55, groups_.size_bytes());
    std::memset(static_cast<void*>(totals_.data()), 0x55, totals_.size_bytes());
    for (Index m = 0; m < rows; ++m) {
      QuantizedGroup* const groups = groups_.data() + m * stride_;
      if (whole_rows) {
        totals_[static_cast<std::size_t>(m)] =
            portable().quantize_row(x + m * in_features, in_features, groups);
      } else {
        portable().quantize_groups(x + m * in_features, in_features, groups);
      }
    }
  }
  QuantizedRowsView view() const { return {groups_.data(), totals_.data(), stride_, stride_}; }

 private:
  Index stride_;
  AlignedBuffer<QuantizedGroup> groups_;
  AlignedBuffer<QuantizedRowTotal> totals_;
};

/// The product by one table: [rows][num_panels * 16].
inline std::vector<float> multiply_int8(const KernelTable& table, const PackedPanels& weights,
                                        const QuantizedTestRows& x, Index rows) {
  const Index width = weights.num_panels * kPanelWidth;
  AlignedBuffer<float> out = nans((rows + kRowTile - 1) / kRowTile * kRowTile * width);
  AlignedBuffer<std::byte> scratch(kMultiplyScratchBytes);
  table.multiply_int8(weights, x.view(), rows, out.data(), scratch.data());
  return {out.begin(), out.begin() + rows * width};
}

inline std::vector<float> multiply_float(const KernelTable& table, const PackedPanels& weights,
                                         const std::vector<float>& x, Index rows) {
  const Index width = weights.num_panels * kPanelWidth;
  AlignedBuffer<float> out = nans((rows + kRowTile - 1) / kRowTile * kRowTile * width);
  AlignedBuffer<std::byte> scratch(kMultiplyScratchBytes);
  table.multiply_float(weights, x.data(), weights.in_features, rows, out.data(), scratch.data());
  return {out.begin(), out.begin() + rows * width};
}

}  // namespace kvick::kernel_test
