// SPDX-License-Identifier: MIT
// Packed weights times float activations, for CPUs with AVX2.
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
#include "kvick/kernels/impl/avx2/packed_panel.hpp"
#include "kvick/kernels/impl/avx2/target.hpp"
#include "kvick/kernels/impl/strips.hpp"

namespace kvick::inline v0_1::detail::avx2 {

/// Inputs that are decoded at a time: 8 KiB of floats.
inline constexpr Index kFloatBlock = 128;

/// out[m] = fma(x[m][k], panel[k], .) for k ascending. 12 sums of 6 rows use 12 of 16 registers.
template <int kRows>
KVICK_AVX2 inline void multiply_float_tile(const float* panel, Index depth, const float* x,
                                           Index x_stride, float* out, Index out_stride) noexcept {
  __m256 sums[kRows][2];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    sums[m][0] = _mm256_load_ps(out + m * out_stride);
    sums[m][1] = _mm256_load_ps(out + m * out_stride + 8);
  }
  for (Index k = 0; k < depth; ++k, panel += kPanelWidth) {
    const __m256 low = _mm256_load_ps(panel);
    const __m256 high = _mm256_load_ps(panel + 8);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m256 value = _mm256_set1_ps(x[m * x_stride + k]);
      sums[m][0] = _mm256_fmadd_ps(value, low, sums[m][0]);
      sums[m][1] = _mm256_fmadd_ps(value, high, sums[m][1]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    _mm256_store_ps(out + m * out_stride, sums[m][0]);
    _mm256_store_ps(out + m * out_stride + 8, sums[m][1]);
  }
}

inline void multiply_float_rows(const float* panel, Index depth, const float* x, Index x_stride,
                                Index rows, float* out, Index out_stride) noexcept {
  Index m = 0;
  const auto tiles = [&]<int kRows>() {
    for (; m + kRows <= rows; m += kRows) {
      multiply_float_tile<kRows>(panel, depth, x + m * x_stride, x_stride, out + m * out_stride,
                                 out_stride);
    }
  };
  tiles.template operator()<6>();
  tiles.template operator()<4>();
  tiles.template operator()<2>();
  tiles.template operator()<1>();
}

/// Half or bf16 elements as floats.
KVICK_AVX2 inline void decode_elements(PackedFormat format, const std::byte* from, Index count,
                                       float* out) noexcept {
  for (Index i = 0; i < count; i += 8) {
    const std::byte* const lanes = from + 2 * i;
    if (i % 32 == 0) prefetch(lanes, 64);
    if (format == PackedFormat::kF16) {
      _mm256_store_ps(out + i, load_f16(lanes));
    } else {
      const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(lanes));
      const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
      _mm256_store_ps(out + i, _mm256_castsi256_ps(wide));
    }
  }
}

/// One unpacked group as floats [32][16].
KVICK_AVX2 inline void dequantize_group(const PackedLayout& layout, const UnpackedGroup& group,
                                        float* out) noexcept {
  const __m256i zero_point = _mm256_set1_epi32(layout.zero_point);
  for (int s = 0; s < kGroupSteps; ++s) {
    const bool use_second = layout.has_half_scales() && s >= kGroupSteps / 2;
    const float* const scales = use_second ? group.second : group.scale;
    for (int i = 0; i < kStepSize; ++i) {
      for (int lane = 0; lane < kPanelWidth; lane += 8, out += 8) {
        const __m256i four = load32(group.integers + s * kVectorBytes + lane * kStepSize);
        const __m256i byte = _mm256_and_si256(_mm256_srl_epi32(four, _mm_cvtsi32_si128(8 * i)),
                                              _mm256_set1_epi32(0xff));
        const __m256 integer = _mm256_cvtepi32_ps(_mm256_sub_epi32(byte, zero_point));
        const __m256 scale = _mm256_load_ps(scales + lane);
        _mm256_store_ps(out,
                        layout.has_minimum()
                            ? _mm256_fmadd_ps(scale, integer, _mm256_load_ps(group.second + lane))
                            : _mm256_mul_ps(scale, integer));
      }
    }
  }
}

/// Inputs [first, first + depth) of one panel as floats [depth][16]; whole groups are written.
inline void decode_panel(const PackedPanels& weights, Index panel, Index first, Index depth,
                         float* out) noexcept {
  const std::byte* const data = weights.data + panel * weights.panel_bytes;
  if (is_float(weights.format)) {
    decode_elements(weights.format, data + 2 * first * kPanelWidth, depth * kPanelWidth, out);
    return;
  }
  for_quantized_format(weights.format, [&]<PackedFormat format>() {
    for (Index k = 0; k < depth; k += kGroupSize) {
      UnpackedGroup group;
      unpack<format, false>(data, (first + k) / kGroupSize, 1, &group);
      if constexpr (is_per_channel(format)) {
        std::copy_n(weights.channel_scales + panel * kPanelWidth, kPanelWidth, group.scale);
      }
      dequantize_group(packed_layout(format), group, out + k * kPanelWidth);
    }
  });
}

inline void multiply_float(const PackedPanels& weights, const float* x, Index x_stride, Index rows,
                           float* out, std::byte* scratch) noexcept {
  auto* const decoded = reinterpret_cast<float*>(scratch);
  const Index out_stride = weights.num_panels * kPanelWidth;
  std::fill_n(out, rows * out_stride, 0.0f);
  for (Index p = 0; p < weights.num_panels; ++p) {
    for (Index first = 0; first < weights.in_features; first += kFloatBlock) {
      const Index depth = std::min(kFloatBlock, weights.in_features - first);
      const float* panel = decoded;
      if (weights.format == PackedFormat::kF32) {
        panel = reinterpret_cast<const float*>(weights.data + p * weights.panel_bytes) +
                first * kPanelWidth;
      } else {
        decode_panel(weights, p, first, depth, decoded);
      }
      multiply_float_rows(panel, depth, x + first, x_stride, rows, out + p * kPanelWidth,
                          out_stride);
    }
  }
}

}  // namespace kvick::inline v0_1::detail::avx2
