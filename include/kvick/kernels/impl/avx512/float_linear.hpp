// SPDX-License-Identifier: MIT
// Packed weights times float activations, for CPUs with AVX-512.
//
// Panels that are not f32 are decoded some inputs at a time to floats in the first-level cache,
// which every row then passes over.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/avx512/int8_linear.hpp"
#include "kvick/kernels/impl/avx512/math.hpp"
#include "kvick/kernels/impl/avx512/packed_panel.hpp"
#include "kvick/kernels/impl/avx512/target.hpp"
#include "kvick/kernels/impl/strips.hpp"

namespace kvick::inline v0_1::detail::avx512 {

/// Inputs that are decoded at a time: with three panels 24 KiB of floats.
inline constexpr Index kFloatBlock = 128;
inline constexpr int kFloatStripPanels = 3;

/// Where the weights of input k and panel p of a strip are: data + p * panel_stride + 16 k.
struct FloatStrip {
  const float* data;
  Index panel_stride;
};

/// sums[m][p] = fma(x[m][k], w[p][k], .) for k ascending. Tiles of 8 rows and 3 panels use 24 of
/// the 32 registers.
template <int kRows, int kPanels>
KVICK_AVX512 inline void multiply_float_tile(const FloatStrip& weights, Index depth, const float* x,
                                             Index x_stride, float* out,
                                             Index out_stride) noexcept {
  __m512 sums[kRows][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      sums[m][p] = _mm512_load_ps(out + m * out_stride + p * kPanelWidth);
    }
  }
  const float* panel = weights.data;
  for (Index k = 0; k < depth; ++k, panel += kPanelWidth) {
    __m512 lanes[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) lanes[p] = _mm512_load_ps(panel + p * weights.panel_stride);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m512 value = _mm512_set1_ps(x[m * x_stride + k]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) sums[m][p] = _mm512_fmadd_ps(value, lanes[p], sums[m][p]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      _mm512_store_ps(out + m * out_stride + p * kPanelWidth, sums[m][p]);
    }
  }
}

template <int kPanels>
inline void multiply_float_rows(const FloatStrip& weights, Index depth, const float* x,
                                Index x_stride, Index rows, float* out, Index out_stride) noexcept {
  Index m = 0;
  const auto tiles = [&]<int kRows>() {
    for (; m + kRows <= rows; m += kRows) {
      multiply_float_tile<kRows, kPanels>(weights, depth, x + m * x_stride, x_stride,
                                          out + m * out_stride, out_stride);
    }
  };
  tiles.template operator()<8>();
  tiles.template operator()<4>();
  tiles.template operator()<2>();
  tiles.template operator()<1>();
}

/// Half or bf16 elements as floats.
KVICK_AVX512 inline void decode_elements(PackedFormat format, const std::byte* from, Index count,
                                         float* out) noexcept {
  for (Index i = 0; i < count; i += kPanelWidth) {
    const std::byte* const lanes = from + 2 * i;
    if (i % (2 * kPanelWidth) == 0) {
      _mm_prefetch(reinterpret_cast<const char*>(lanes) + kPrefetchBytes, _MM_HINT_T0);
    }
    const __m512 value =
        format == PackedFormat::kF16
            ? load_f16(lanes)
            : _mm512_castsi512_ps(_mm512_maskz_slli_epi32(
                  kAllLanes,
                  _mm512_maskz_cvtepu16_epi32(
                      kAllLanes, _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes))),
                  16));
    _mm512_store_ps(out + i, value);
  }
}

/// Groups [first, first + count) of one panel as floats.
template <PackedFormat format>
KVICK_AVX512 inline void decode_groups(const PackedPanels& weights, Index panel, Index first,
                                       Index count, float* out) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  const std::byte* const units = weights.data + panel * weights.panel_bytes;
  const __m512i zero_point = _mm512_set1_epi32(kLayout.zero_point);
  for (Index g = first; g < first + count; ++g) {
    const auto index = static_cast<int>(g % kLayout.groups_per_unit);
    const std::byte* const unit = units + g / kLayout.groups_per_unit * kLayout.unit_bytes();
    if (index == 0) prefetch(unit, kLayout.unit_bytes());
    __m512i steps[kGroupSteps];
    load_integers<kLayout.integers>(unit + kLayout.scale_bytes + index * kLayout.group_bytes(),
                                    steps);
    GroupScales scales = load_scales<kLayout.scales>(unit, index);
    if constexpr (is_per_channel(format)) {
      scales.scale = _mm512_load_ps(weights.channel_scales + panel * kPanelWidth);
    }
#pragma GCC unroll 8
    for (int s = 0; s < kGroupSteps; ++s) {
#pragma GCC unroll 4
      for (int i = 0; i < kStepSize; ++i, out += kPanelWidth) {
        const __m512i bytes = _mm512_and_si512(
            _mm512_maskz_srli_epi32(kAllLanes, steps[s], static_cast<unsigned>(8 * i)),
            _mm512_set1_epi32(0xff));
        const __m512 integer = to_float(_mm512_sub_epi32(bytes, zero_point));
        const bool use_second = kLayout.has_half_scales() && s >= kGroupSteps / 2;
        const __m512 scale = use_second ? scales.second : scales.scale;
        _mm512_store_ps(out, kLayout.has_minimum() ? _mm512_fmadd_ps(scale, integer, scales.second)
                                                   : _mm512_mul_ps(scale, integer));
      }
    }
  }
}

/// Inputs [first, first + depth) of one panel as floats [depth][16]; whole groups are written.
inline void decode_panel(const PackedPanels& weights, Index panel, Index first, Index depth,
                         float* out) noexcept {
  if (is_float(weights.format)) {
    decode_elements(weights.format,
                    weights.data + panel * weights.panel_bytes + 2 * first * kPanelWidth,
                    depth * kPanelWidth, out);
    return;
  }
  for_quantized_format(weights.format, [&]<PackedFormat format>() {
    decode_groups<format>(weights, panel, first / kGroupSize, num_groups(depth), out);
  });
}

inline void multiply_float(const PackedPanels& weights, const float* x, Index x_stride, Index rows,
                           float* out, std::byte* scratch) noexcept {
  auto* const decoded = reinterpret_cast<float*>(scratch);
  const Index out_stride = weights.num_panels * kPanelWidth;
  std::fill_n(out, rows * out_stride, 0.0f);
  for (Index panel = 0; panel < weights.num_panels; panel += kFloatStripPanels) {
    const Index panels = std::min<Index>(kFloatStripPanels, weights.num_panels - panel);
    for (Index first = 0; first < weights.in_features; first += kFloatBlock) {
      const Index depth = std::min(kFloatBlock, weights.in_features - first);
      FloatStrip strip{decoded, kFloatBlock * kPanelWidth};
      if (weights.format == PackedFormat::kF32) {
        const std::byte* const data = weights.data + panel * weights.panel_bytes;
        strip = {reinterpret_cast<const float*>(data) + first * kPanelWidth,
                 weights.panel_bytes / static_cast<Index>(sizeof(float))};
      } else {
        for (Index p = 0; p < panels; ++p) {
          decode_panel(weights, panel + p, first, depth, decoded + p * strip.panel_stride);
        }
      }
      const auto multiply = panels == 3   ? multiply_float_rows<3>
                            : panels == 2 ? multiply_float_rows<2>
                                          : multiply_float_rows<1>;
      multiply(strip, depth, x + first, x_stride, rows, out + panel * kPanelWidth, out_stride);
    }
  }
}

}  // namespace kvick::inline v0_1::detail::avx512
