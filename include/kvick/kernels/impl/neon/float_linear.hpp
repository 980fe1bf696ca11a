// SPDX-License-Identifier: MIT
// Packed weights times float activations, for AArch64 CPUs with dot products.
//
// Panels that are not f32 are decoded some inputs at a time to floats in the first-level cache,
// which every row then passes over.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/neon/math.hpp"
#include "kvick/kernels/impl/neon/packed_panel.hpp"
#include "kvick/kernels/impl/neon/target.hpp"
#include "kvick/kernels/impl/strips.hpp"

namespace kvick::inline v0_1::detail::neon {

/// acc[m][j] = fma(x[m][k], panel[k][j], acc[m][j]) for k ascending. 4 rows are 16 independent
/// chains, enough to hide the latency of the fma (4 cycles, two to four per cycle), and use 20 of
/// the 32 registers.
template <int kRows>
KVICK_NEON inline void accumulate_rows(const float* panel, Index depth, const float* x,
                                       Index x_stride, float* acc, Index acc_stride) noexcept {
  float32x4_t sums[kRows][kQuads];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuads; ++q) sums[m][q] = vld1q_f32(acc + m * acc_stride + 4 * q);
  }
  for (Index k = 0; k < depth; ++k, panel += kPanelWidth) {
    float32x4_t weights[kQuads];
#pragma GCC unroll 4
    for (int q = 0; q < kQuads; ++q) weights[q] = vld1q_f32(panel + 4 * q);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const float value = x[m * x_stride + k];
#pragma GCC unroll 4
      for (int q = 0; q < kQuads; ++q) sums[m][q] = vfmaq_n_f32(sums[m][q], weights[q], value);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int q = 0; q < kQuads; ++q) vst1q_f32(acc + m * acc_stride + 4 * q, sums[m][q]);
  }
}

/// The same for any number of rows.
inline void accumulate_panel(const float* panel, Index depth, const float* x, Index x_stride,
                             Index rows, float* acc, Index acc_stride) noexcept {
  Index m = 0;
  for (; m + 4 <= rows; m += 4) {
    accumulate_rows<4>(panel, depth, x + m * x_stride, x_stride, acc + m * acc_stride, acc_stride);
  }
  if (m + 2 <= rows) {
    accumulate_rows<2>(panel, depth, x + m * x_stride, x_stride, acc + m * acc_stride, acc_stride);
    m += 2;
  }
  if (m < rows) {
    accumulate_rows<1>(panel, depth, x + m * x_stride, x_stride, acc + m * acc_stride, acc_stride);
  }
}

/// Inputs that are decoded at a time: 16 KiB of floats.
inline constexpr Index kFloatBlock = 256;

/// Half or bf16 elements as floats.
KVICK_NEON inline void decode_elements(PackedFormat format, const std::byte* from, Index count,
                                       float* out) noexcept {
  for (Index i = 0; i < count; i += 8) {
    Floats8 values;
    if (format == PackedFormat::kF16) {
      values = load_f16(from + 2 * i);
    } else {
      const uint16x8_t upper = vld1q_u16(reinterpret_cast<const std::uint16_t*>(from + 2 * i));
      values = {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(upper), 16)),
                 vreinterpretq_f32_u32(vshll_high_n_u16(upper, 16))}};
    }
    vst1q_f32(out + i, values.val[0]);
    vst1q_f32(out + i + 4, values.val[1]);
  }
}

/// Four outputs of a step as floats: out[16 i + j] is input i of output j.
template <TileKind kind>
KVICK_NEON_INLINE void decode_step(int8x16_t values, float32x4_t scale, float32x4_t minimum,
                                   float* out) noexcept {
#pragma GCC unroll 4
  for (int i = 0; i < kStepSize; ++i) {
    const int32x4_t upper = vshlq_s32(vreinterpretq_s32_s8(values), vdupq_n_s32(24 - 8 * i));
    const float32x4_t integer = vcvtq_f32_s32(vshrq_n_s32(upper, 24));
    const float32x4_t weight = kind == TileKind::kMinimums ? vfmaq_f32(minimum, scale, integer)
                                                           : vmulq_f32(scale, integer);
    vst1q_f32(out + i * kPanelWidth, weight);
  }
}

/// An unpacked group as floats [32][16].
template <TileKind kind>
KVICK_NEON inline void decode_group(const UnpackedGroup& group, float* out) noexcept {
  for (int s = 0; s < kGroupSteps; ++s, out += kStepSize * kPanelWidth) {
    const bool use_second = kind == TileKind::kHalfScales && s >= kGroupSteps / 2;
    const float* const scale = use_second ? group.second : group.scale;
#pragma GCC unroll 4
    for (int j = 0; j < kPanelWidth; j += 4) {
      decode_step<kind>(vld1q_s8(group.integers + s * kVectorBytes + kStepSize * j),
                        vld1q_f32(scale + j), vld1q_f32(group.second + j), out + j);
    }
  }
}

/// Groups [first, first + count) of one panel as floats.
template <PackedFormat format>
inline void decode_groups(const PackedPanels& weights, Index panel, Index first, Index count,
                          float* out) noexcept {
  const std::byte* const data = weights.data + panel * weights.panel_bytes;
  for (Index g = 0; g < count; ++g) {
    UnpackedGroup group;
    unpack_group<format>(data, first + g, group);
    if constexpr (is_per_channel(format)) {
      std::copy_n(weights.channel_scales + panel * kPanelWidth, kPanelWidth, group.scale);
    }
    decode_group<tile_kind(format)>(group, out + g * kGroupSize * kPanelWidth);
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
  for (Index panel = 0; panel < weights.num_panels; ++panel) {
    for (Index first = 0; first < weights.in_features; first += kFloatBlock) {
      const Index depth = std::min(kFloatBlock, weights.in_features - first);
      const float* lanes = decoded;
      if (weights.format == PackedFormat::kF32) {
        const std::byte* const data = weights.data + panel * weights.panel_bytes;
        lanes = reinterpret_cast<const float*>(data) + first * kPanelWidth;
      } else {
        decode_panel(weights, panel, first, depth, decoded);
      }
      accumulate_panel(lanes, depth, x + first, x_stride, rows, out + panel * kPanelWidth,
                       out_stride);
    }
  }
}

}  // namespace kvick::inline v0_1::detail::neon
