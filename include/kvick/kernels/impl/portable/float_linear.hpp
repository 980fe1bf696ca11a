// SPDX-License-Identifier: MIT
// Packed weights times float activations, in plain C++: the definition that every other
// implementation must equal.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kvick/core/element_type.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/portable/packed_panel.hpp"

namespace kvick::inline v0_1::detail::portable {

/// Inputs [first, first + count) of a panel as floats [count][16]; `first` is a multiple of 32 and
/// count at most 32.
inline void dequantize_panel(const PackedPanels& weights, Index panel, Index first, Index count,
                             float* out) noexcept {
  const std::byte* const data = weights.data + panel * weights.panel_bytes;
  const PackedFormat format = weights.format;
  if (is_float(format)) {
    const ElementType type = element_type(format);
    const auto element = static_cast<Index>(size_bytes(type));
    load_elements(type, data + first * kPanelWidth * element, count * kPanelWidth, out);
    return;
  }
  const PackedLayout layout = packed_layout(format);
  PanelGroup group;
  read_group(layout, data, first / kGroupSize, group);
  for (Index k = 0; k < count; ++k) {
    for (int j = 0; j < kPanelWidth; ++j) {
      const float scale = is_per_channel(format) ? weights.channel_scales[panel * kPanelWidth + j]
                                                 : group.scale[k / (kGroupSize / 2)][j];
      out[k * kPanelWidth + j] = weight(layout, scale, group.minimum[j], group.values[k][j]);
    }
  }
}

inline void multiply_float(const PackedPanels& weights, const float* x, Index x_stride, Index rows,
                           float* out, std::byte* /*scratch*/) noexcept {
  const Index out_stride = weights.num_panels * kPanelWidth;
  std::fill_n(out, rows * out_stride, 0.0f);
  for (Index p = 0; p < weights.num_panels; ++p) {
    for (Index first = 0; first < weights.in_features; first += kGroupSize) {
      const Index count = std::min<Index>(kGroupSize, weights.in_features - first);
      float panel[kGroupSize * kPanelWidth];
      dequantize_panel(weights, p, first, count, panel);
      for (Index m = 0; m < rows; ++m) {
        float* const sums = out + m * out_stride + p * kPanelWidth;
        for (Index k = 0; k < count; ++k) {
          const float value = x[m * x_stride + first + k];
          for (int j = 0; j < kPanelWidth; ++j) {
            sums[j] = std::fma(value, panel[k * kPanelWidth + j], sums[j]);
          }
        }
      }
    }
  }
}

}  // namespace kvick::inline v0_1::detail::portable
