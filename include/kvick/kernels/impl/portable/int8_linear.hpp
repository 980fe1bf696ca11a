// SPDX-License-Identifier: MIT
// Quantized activations, and packed weights times them, in plain C++: the definition that every
// other implementation must equal.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/portable/packed_panel.hpp"

namespace kvick::inline v0_1::detail::portable {

/// max |x|, or NaN if any value is not finite. Magnitudes compare like their bits.
inline float finite_max(const float* x, Index count) noexcept {
  std::uint32_t max = 0;
  for (Index i = 0; i < count; ++i) {
    max = std::max(max, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  }
  return max < 0x7f800000u ? std::bit_cast<float>(max) : std::numeric_limits<float>::quiet_NaN();
}

/// Quantizes `count` (at most 32) values of which `max` is the largest magnitude.
inline void quantize_group(const float* x, Index count, float max, QuantizedGroup& out) noexcept {
  const bool is_zero = !(max >= kTinyActivation);  // also where it is NaN
  const float inverse = is_zero ? 0.0f : 127.0f / max;
  std::int32_t low = 0;
  std::int32_t sum = 0;
  for (Index i = 0; i < kGroupSize; ++i) {
    const float scaled = i < count && !is_zero ? x[i] * inverse : 0.0f;
    out.values[i] = static_cast<std::int8_t>(std::clamp(std::nearbyint(scaled), -127.0f, 127.0f));
    sum += out.values[i];
    if (i < kGroupSize / 2) low += out.values[i];
  }
  out.scale = max < kTinyActivation ? 0.0f : max / 127.0f;
  out.minus_sum = -sum;
  out.scaled_sum = out.scale * static_cast<float>(sum);
  out.minus_low_sum = -low;
}

inline void quantize_groups(const float* x, Index count, QuantizedGroup* groups) noexcept {
  for (Index k = 0; k < count; k += kGroupSize) {
    const Index size = std::min<Index>(kGroupSize, count - k);
    quantize_group(x + k, size, finite_max(x + k, size), groups[k / kGroupSize]);
  }
}

inline QuantizedRowTotal quantize_row(const float* x, Index count,
                                      QuantizedGroup* groups) noexcept {
  const float max = finite_max(x, count);
  QuantizedRowTotal total{max < kTinyActivation ? 0.0f : max / 127.0f, 0};
  for (Index k = 0; k < count; k += kGroupSize) {
    QuantizedGroup& group = groups[k / kGroupSize];
    quantize_group(x + k, std::min<Index>(kGroupSize, count - k), max, group);
    total.minus_sum += group.minus_sum;
  }
  return total;
}

/// Exact sum of products of inputs [first, first + count) of a group, for every output.
inline void dot_lanes(const PanelGroup& weights, const QuantizedGroup& x, int first, int count,
                      std::int32_t (&dots)[kPanelWidth]) noexcept {
  for (int k = first; k < first + count; ++k) {
    for (int j = 0; j < kPanelWidth; ++j) dots[j] += weights.values[k][j] * x.values[k];
  }
}

inline void add_group(const PackedLayout& layout, const PanelGroup& weights,
                      const QuantizedGroup& x, float* sums) noexcept {
  const int num_parts = layout.has_half_scales() ? 2 : 1;
  const int part_size = kGroupSize / num_parts;
  for (int part = 0; part < num_parts; ++part) {
    std::int32_t dots[kPanelWidth] = {};
    dot_lanes(weights, x, part * part_size, part_size, dots);
    for (int j = 0; j < kPanelWidth; ++j) {
      const float scale = weights.scale[part][j] * x.scale;
      sums[j] = std::fma(scale, static_cast<float>(dots[j]), sums[j]);
    }
  }
  if (layout.has_minimum()) {
    for (int j = 0; j < kPanelWidth; ++j) {
      sums[j] = std::fma(weights.minimum[j], x.scaled_sum, sums[j]);
    }
  }
}

/// One panel of a format with scales per group.
inline void multiply_groups(const PackedLayout& layout, const std::byte* panel,
                            const QuantizedRowsView& x, Index rows, float* out,
                            Index out_stride) noexcept {
  for (Index m = 0; m < rows; ++m) std::fill_n(out + m * out_stride, kPanelWidth, 0.0f);
  for (Index g = 0; g < x.num_groups; ++g) {
    PanelGroup weights;
    read_group(layout, panel, g, weights);
    for (Index m = 0; m < rows; ++m) {
      add_group(layout, weights, x.groups[m * x.row_stride + g], out + m * out_stride);
    }
  }
}

/// One panel of a format with one scale per output. Rows are taken a few at a time because their
/// integer sums are kept aside.
inline void multiply_channels(const PackedLayout& layout, const std::byte* panel,
                              const float* channel_scales, const QuantizedRowsView& x, Index rows,
                              float* out, Index out_stride) noexcept {
  constexpr Index kRows = 16;
  for (Index first = 0; first < rows; first += kRows) {
    std::int32_t dots[kRows][kPanelWidth] = {};
    const Index count = std::min(kRows, rows - first);
    for (Index g = 0; g < x.num_groups; ++g) {
      PanelGroup weights;
      read_group(layout, panel, g, weights);
      for (Index m = 0; m < count; ++m) {
        dot_lanes(weights, x.groups[(first + m) * x.row_stride + g], 0, kGroupSize, dots[m]);
      }
    }
    for (Index m = 0; m < count; ++m) {
      float* const sums = out + (first + m) * out_stride;
      for (int j = 0; j < kPanelWidth; ++j) {
        const float scale = channel_scales[j] * x.totals[first + m].scale;
        sums[j] = scale * static_cast<float>(dots[m][j]);
      }
    }
  }
}

inline void multiply_int8(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                          float* out, std::byte* /*scratch*/) noexcept {
  const PackedLayout layout = packed_layout(weights.format);
  const Index out_stride = weights.num_panels * kPanelWidth;
  for (Index p = 0; p < weights.num_panels; ++p) {
    const std::byte* const panel = weights.data + p * weights.panel_bytes;
    if (is_per_channel(weights.format)) {
      multiply_channels(layout, panel, weights.channel_scales + p * kPanelWidth, x, rows,
                        out + p * kPanelWidth, out_stride);
    } else {
      multiply_groups(layout, panel, x, rows, out + p * kPanelWidth, out_stride);
    }
  }
}

}  // namespace kvick::inline v0_1::detail::portable
