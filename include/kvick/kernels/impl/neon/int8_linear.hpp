// SPDX-License-Identifier: MIT
// Packed weights times int8 activations, for AArch64 CPUs with dot products.
//
// Few rows multiply what they decode from the packed panel: memory is the limit. Many rows first
// unpack a panel to signed bytes and f32 scales, 1024 inputs at a time, so that it stays in the
// first-level cache while every row passes over it: the dot-product units are the limit.
//
// One vector of 16 activations serves four steps, each of which takes one of its lanes.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/neon/math.hpp"
#include "kvick/kernels/impl/neon/packed_panel.hpp"
#include "kvick/kernels/impl/neon/target.hpp"
#include "kvick/kernels/impl/strips.hpp"

namespace kvick::inline v0_1::detail::neon {

// ---- One group, packed or unpacked, of 8 or 16 outputs

/// What undoes the zero point of the integers that met activations of this sum. Unsigned, because
/// rows beyond the last may hold anything.
template <std::uint32_t zero_point>
KVICK_NEON_INLINE int32x4_t undo_zero_point(std::uint32_t minus_sum) noexcept {
  return vdupq_n_s32(std::bit_cast<std::int32_t>(minus_sum * zero_point));
}

template <int kRows, int kWidth>
KVICK_NEON_INLINE void fill_row(int32x4_t value, int m, int32x4_t (&dots)[kRows][kWidth]) noexcept {
#pragma GCC unroll 4
  for (int q = 0; q < kWidth; ++q) dots[m][q] = value;
}

template <int step, int kRows, int kWidth, class Group>
KVICK_NEON_INLINE void dot_step(const Group& weights, const int8x16_t (&x)[kRows],
                                int32x4_t (&dots)[kRows][kWidth]) noexcept {
#pragma GCC unroll 4
  for (int q = 0; q < kWidth; ++q) {
    const int8x16_t lanes = weights.template step_of<step>(q);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) dots[m][q] = dot_lane<step % 4>(dots[m][q], lanes, x[m]);
  }
}

/// dots[m][q] += the products of the first or second 16 inputs.
template <int half, int kRows, int kWidth, class Group>
KVICK_NEON_INLINE void dot_half(const Group& weights, const QuantizedGroup* x, Index x_stride,
                                int32x4_t (&dots)[kRows][kWidth]) noexcept {
  int8x16_t values[kRows];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) values[m] = vld1q_s8(x[m * x_stride].values + 16 * half);
  dot_step<4 * half + 0>(weights, values, dots);
  dot_step<4 * half + 1>(weights, values, dots);
  dot_step<4 * half + 2>(weights, values, dots);
  dot_step<4 * half + 3>(weights, values, dots);
}

/// sums[m][q] = fma(weight scale * activation scale, float(dots[m][q]), sums[m][q]) of quads
/// [first, first + 2).
template <int kRows, int kWidth>
KVICK_NEON_INLINE void add_scaled(Floats8 scale, int first, const QuantizedGroup* x, Index x_stride,
                                  const int32x4_t (&dots)[kRows][kWidth],
                                  float32x4_t (&sums)[kRows][kWidth]) noexcept {
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int q = 0; q < 2; ++q) {
      sums[m][first + q] =
          vfmaq_f32(sums[m][first + q], vmulq_n_f32(scale.val[q], x[m * x_stride].scale),
                    vcvtq_f32_s32(dots[m][first + q]));
    }
  }
}

template <int kRows, int kWidth>
KVICK_NEON_INLINE void add_minimums(Floats8 minimum, int first, const QuantizedGroup* x,
                                    Index x_stride, float32x4_t (&sums)[kRows][kWidth]) noexcept {
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int q = 0; q < 2; ++q) {
      sums[m][first + q] =
          vfmaq_n_f32(sums[m][first + q], minimum.val[q], x[m * x_stride].scaled_sum);
    }
  }
}

/// sums[m] of one group, or of the integers alone where scales are per channel.
template <TileKind kind, int kRows, int kWidth, class Group>
KVICK_NEON_INLINE void add_group(const Group& weights, const QuantizedGroup* x, Index x_stride,
                                 int32x4_t (&dots)[kRows][kWidth],
                                 float32x4_t (&sums)[kRows][kWidth]) noexcept {
  constexpr std::uint32_t kZeroPoint = Group::kZeroPoint;
  if constexpr (kind == TileKind::kPerChannel) {
    dot_half<0>(weights, x, x_stride, dots);
    dot_half<1>(weights, x, x_stride, dots);
  } else if constexpr (kind == TileKind::kHalfScales) {
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const auto low = static_cast<std::uint32_t>(x[m * x_stride].minus_low_sum);
      fill_row(undo_zero_point<kZeroPoint>(low), m, dots);
    }
    dot_half<0>(weights, x, x_stride, dots);
#pragma GCC unroll 2
    for (int i = 0; i < kWidth / 2; ++i) {
      add_scaled(weights.scales(i).scale, 2 * i, x, x_stride, dots, sums);
    }
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const QuantizedGroup& group = x[m * x_stride];
      const auto high = static_cast<std::uint32_t>(group.minus_sum) -
                        static_cast<std::uint32_t>(group.minus_low_sum);
      fill_row(undo_zero_point<kZeroPoint>(high), m, dots);
    }
    dot_half<1>(weights, x, x_stride, dots);
#pragma GCC unroll 2
    for (int i = 0; i < kWidth / 2; ++i) {
      add_scaled(weights.scales(i).second, 2 * i, x, x_stride, dots, sums);
    }
  } else {
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const auto all = static_cast<std::uint32_t>(x[m * x_stride].minus_sum);
      fill_row(undo_zero_point<kZeroPoint>(all), m, dots);
    }
    dot_half<0>(weights, x, x_stride, dots);
    dot_half<1>(weights, x, x_stride, dots);
#pragma GCC unroll 2
    for (int i = 0; i < kWidth / 2; ++i) {
      const GroupScales scales = weights.scales(i);
      add_scaled(scales.scale, 2 * i, x, x_stride, dots, sums);
      if constexpr (kind == TileKind::kMinimums) {
        add_minimums(scales.second, 2 * i, x, x_stride, sums);
      }
    }
  }
}

/// Exact integer sums of whole rows to four outputs.
KVICK_NEON_INLINE float32x4_t scale_channels(const float* channel_scales, float scale,
                                             int32x4_t dots) noexcept {
  return vmulq_f32(vmulq_n_f32(vld1q_f32(channel_scales), scale), vcvtq_f32_s32(dots));
}

// ---- Few rows

/// Octets [octet, octet + kOctets) of one panel times kRows rows. 4 rows of one octet, or 2 rows of
/// two, use 8 integer and 8 float accumulators of the 32 registers.
template <PackedFormat format, int kRows, int kOctets>
KVICK_NEON inline void multiply_few(const PackedPanels& weights, Index panel, int octet,
                                    const QuantizedRowsView& x, float* out) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  constexpr int kWidth = 2 * kOctets;
  constexpr std::uint32_t kZeroPoint = PackedGroup<format>::kZeroPoint;
  const Index first_output = panel * kPanelWidth + 8 * octet;
  const Index out_stride = weights.num_panels * kPanelWidth;
  const std::byte* unit = weights.data + panel * weights.panel_bytes;
  const QuantizedGroup* group = x.groups;
  float32x4_t sums[kRows][kWidth];
  int32x4_t dots[kRows][kWidth];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    fill_row(vdupq_n_s32(0), m, dots);
#pragma GCC unroll 4
    for (int q = 0; q < kWidth; ++q) sums[m][q] = vdupq_n_f32(0.0f);
  }
  for (Index left = x.num_groups; left > 0; unit += kLayout.unit_bytes()) {
    const std::byte* integers = unit + kLayout.scale_bytes;
    for (int i = 0; i < kLayout.groups_per_unit && left > 0; ++i, --left, ++group) {
      add_group<tile_kind(format)>(PackedGroup<format>{unit, integers, i, octet}, group,
                                   x.row_stride, dots, sums);
      integers += kLayout.group_bytes();
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int q = 0; q < kWidth; ++q) {
      if constexpr (is_per_channel(format)) {
        const QuantizedRowTotal& total = x.totals[m];
        const int32x4_t undo =
            undo_zero_point<kZeroPoint>(static_cast<std::uint32_t>(total.minus_sum));
        sums[m][q] = scale_channels(weights.channel_scales + first_output + 4 * q, total.scale,
                                    vaddq_s32(dots[m][q], undo));
      }
      vst1q_f32(out + m * out_stride + first_output + 4 * q, sums[m][q]);
    }
  }
}

// ---- Many rows

/// Groups of a panel that are unpacked at a time: 20 KiB.
inline constexpr Index kBlockGroups = 32;
inline constexpr int kTileRows = 4;
static_assert(sizeof(UnpackedGroup) * kBlockGroups <= kMultiplyScratchBytes);

/// out[m] += num_groups unpacked groups of 8 outputs times kTileRows rows; integers where `kind`
/// says so.
template <TileKind kind>
KVICK_NEON inline void multiply_tile(const UnpackedGroup* weights, Index num_groups, int octet,
                                     const QuantizedGroup* x, Index x_stride, float* out,
                                     Index out_stride) noexcept {
  float32x4_t sums[kTileRows][2];
  int32x4_t dots[kTileRows][2];
#pragma GCC unroll 4
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 2
    for (int q = 0; q < 2; ++q) {
      sums[m][q] = vld1q_f32(out + m * out_stride + 4 * q);
      dots[m][q] = vreinterpretq_s32_f32(sums[m][q]);
    }
  }
  for (Index g = 0; g < num_groups; ++g, ++x) {
    add_group<kind>(UnpackedOctet{weights + g, octet}, x, x_stride, dots, sums);
  }
#pragma GCC unroll 4
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 2
    for (int q = 0; q < 2; ++q) {
      if constexpr (kind == TileKind::kPerChannel) sums[m][q] = vreinterpretq_f32_s32(dots[m][q]);
      vst1q_f32(out + m * out_stride + 4 * q, sums[m][q]);
    }
  }
}

/// Every row times an unpacked panel.
template <TileKind kind>
inline void multiply_rows(const UnpackedGroup* weights, Index num_groups, const QuantizedGroup* x,
                          Index x_stride, Index rows, float* out, Index out_stride) noexcept {
  for (Index m = 0; m < rows; m += kTileRows) {
    for (int octet = 0; octet < 2; ++octet) {
      multiply_tile<kind>(weights, num_groups, octet, x + m * x_stride, x_stride,
                          out + m * out_stride + 8 * octet, out_stride);
    }
  }
}

/// Integer sums in `out` to outputs.
KVICK_NEON inline void scale_all_channels(const PackedPanels& weights, const QuantizedRowsView& x,
                                          Index rows, float* out) noexcept {
  const Index out_stride = weights.num_panels * kPanelWidth;
  for (Index m = 0; m < rows; ++m, out += out_stride) {
    for (Index j = 0; j < out_stride; j += 4) {
      const int32x4_t dots = vreinterpretq_s32_f32(vld1q_f32(out + j));
      vst1q_f32(out + j, scale_channels(weights.channel_scales + j, x.totals[m].scale, dots));
    }
  }
}

template <PackedFormat format>
inline void multiply_many(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                          float* out, std::byte* scratch) noexcept {
  auto* const unpacked = reinterpret_cast<UnpackedGroup*>(scratch);
  const Index out_stride = weights.num_panels * kPanelWidth;
  std::fill_n(out, (rows + kTileRows - 1) / kTileRows * kTileRows * out_stride, 0.0f);
  for (Index panel = 0; panel < weights.num_panels; ++panel) {
    const std::byte* const data = weights.data + panel * weights.panel_bytes;
    for (Index first = 0; first < x.num_groups; first += kBlockGroups) {
      const Index count = std::min(kBlockGroups, x.num_groups - first);
      for (Index g = 0; g < count; ++g) unpack_group<format>(data, first + g, unpacked[g]);
      multiply_rows<tile_kind(format)>(unpacked, count, x.groups + first, x.row_stride, rows,
                                       out + panel * kPanelWidth, out_stride);
    }
  }
  if constexpr (is_per_channel(format)) scale_all_channels(weights, x, rows, out);
}

// ---- All formats

template <PackedFormat format>
inline void multiply_format(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                            float* out, std::byte* scratch) noexcept {
  if (rows > 4) return multiply_many<format>(weights, x, rows, out, scratch);
  for (Index p = 0; p < weights.num_panels; ++p) {
    if (rows == 1) {
      multiply_few<format, 1, 2>(weights, p, 0, x, out);
    } else if (rows == 2) {
      multiply_few<format, 2, 2>(weights, p, 0, x, out);
    } else {
      multiply_few<format, 4, 1>(weights, p, 0, x, out);
      multiply_few<format, 4, 1>(weights, p, 1, x, out);
    }
  }
}

inline void multiply_int8(const PackedPanels& weights, const QuantizedRowsView& x, Index rows,
                          float* out, std::byte* scratch) noexcept {
  if (rows <= 0) return;
  for_quantized_format(weights.format, [&]<PackedFormat format>() {
    multiply_format<format>(weights, x, rows, out, scratch);
  });
}

}  // namespace kvick::inline v0_1::detail::neon
