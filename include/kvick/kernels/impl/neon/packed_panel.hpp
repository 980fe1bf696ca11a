// SPDX-License-Identifier: MIT
// Reading one group of a packed panel into registers, for AArch64 CPUs with dot products.
//
// Dot products are of signed bytes here. Stored bytes become signed by inverting their highest bit,
// which takes their zero point away as well; all other integers are below 64 and signed as they
// are.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kvick/kernels/impl/neon/math.hpp"
#include "kvick/kernels/impl/neon/target.hpp"
#include "kvick/kernels/packed_format.hpp"

namespace kvick::inline v0_1::detail::neon {

KVICK_NEON_INLINE uint8x16_t load_bytes(const std::byte* from) noexcept {
  return vld1q_u8(reinterpret_cast<const std::uint8_t*>(from));
}

/// Bits `from`, ... of every byte moved to bits `to`, ...
template <int from, int to>
KVICK_NEON_INLINE uint8x16_t move_bits(uint8x16_t v) noexcept {
  if constexpr (from > to) {
    return vshrq_n_u8(v, from - to);
  } else if constexpr (from < to) {
    return vshlq_n_u8(v, to - from);
  } else {
    return v;
  }
}

/// Four outputs of one step; `group` is where the integers of the group begin for these outputs.
template <PackedIntegers kind, int step>
KVICK_NEON_INLINE int8x16_t load_step(const std::byte* group) noexcept {
  if constexpr (kind == PackedIntegers::kBytes) {
    return vreinterpretq_s8_u8(veorq_u8(load_bytes(group + step * kVectorBytes), vdupq_n_u8(0x80)));
  } else {
    const uint8x16_t pair = load_bytes(group + step % 4 * kVectorBytes);
    uint8x16_t value = step < 4 ? vandq_u8(pair, vdupq_n_u8(0x0f)) : vshrq_n_u8(pair, 4);
    const std::byte* const planes = group + 4 * kVectorBytes;
    if constexpr (kind == PackedIntegers::kNibblesPlus1Bit) {
      const uint8x16_t bits = move_bits<step, 4>(load_bytes(planes));
      value = vorrq_u8(value, vandq_u8(bits, vdupq_n_u8(0x10)));
    }
    if constexpr (kind == PackedIntegers::kNibblesPlus2Bits) {
      const uint8x16_t bits =
          move_bits<step % 4 * 2, 4>(load_bytes(planes + step / 4 * kVectorBytes));
      value = vorrq_u8(value, vandq_u8(bits, vdupq_n_u8(0x30)));
    }
    return vreinterpretq_s8_u8(value);
  }
}

/// Floats of 8 outputs.
using Floats8 = float32x4x2_t;

KVICK_NEON_INLINE Floats8 load_f32(const std::byte* from) noexcept {
  const auto* const floats = reinterpret_cast<const float*>(from);
  return {{vld1q_f32(floats), vld1q_f32(floats + 4)}};
}

KVICK_NEON_INLINE Floats8 load_f16(const std::byte* from) noexcept {
  const float16x8_t halves =
      vreinterpretq_f16_u16(vld1q_u16(reinterpret_cast<const std::uint16_t*>(from)));
  return {{vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)}};
}

KVICK_NEON_INLINE uint8x8_t load_plane(const std::byte* from) noexcept {
  return vld1_u8(reinterpret_cast<const std::uint8_t*>(from));
}

/// scale * value, the scales of formats that have a factor per block.
KVICK_NEON_INLINE Floats8 scale_integers(Floats8 scale, int16x8_t value) noexcept {
  const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(value)));
  const float32x4_t high = vcvtq_f32_s32(vmovl_high_s16(value));
  return {{vmulq_f32(scale.val[0], low), vmulq_f32(scale.val[1], high)}};
}
KVICK_NEON_INLINE Floats8 scale_integers(Floats8 scale, uint8x8_t value) noexcept {
  return scale_integers(scale, vreinterpretq_s16_u16(vmovl_u8(value)));
}
KVICK_NEON_INLINE Floats8 scale_integers(Floats8 scale, int8x8_t value) noexcept {
  return scale_integers(scale, vmovl_s8(value));
}

/// What turns a group's integers of 8 outputs into weights: first and second scale of formats with
/// half scales, scale and minimum of formats with minimums, otherwise only a scale.
struct GroupScales {
  Floats8 scale;
  Floats8 second;
};

/// 6-bit scales and minimums of 8 outputs, see portable::scale_6bit. `unit` and `planes` are where
/// those of these outputs begin.
KVICK_NEON_INLINE GroupScales load_packed_6bit(const std::byte* unit, const std::byte* planes,
                                               int group) noexcept {
  uint8x8_t scale;
  uint8x8_t minimum;
  if (group < 4) {
    const uint8x8_t six = vdup_n_u8(63);
    scale = vand_u8(load_plane(planes + kPanelWidth * group), six);
    minimum = vand_u8(load_plane(planes + kPanelWidth * (group + 4)), six);
  } else {
    const uint8x8_t nibbles = load_plane(planes + kPanelWidth * (group + 4));
    const uint8x8_t scale_bits = load_plane(planes + kPanelWidth * (group - 4));
    const uint8x8_t minimum_bits = load_plane(planes + kPanelWidth * group);
    const uint8x8_t top = vdup_n_u8(0x30);
    scale = vorr_u8(vand_u8(nibbles, vdup_n_u8(15)), vand_u8(vshr_n_u8(scale_bits, 2), top));
    minimum = vorr_u8(vshr_n_u8(nibbles, 4), vand_u8(vshr_n_u8(minimum_bits, 2), top));
  }
  const Floats8 dmin = load_f16(unit + 2 * kPanelWidth);
  const Floats8 minus_dmin = {{vnegq_f32(dmin.val[0]), vnegq_f32(dmin.val[1])}};
  return {scale_integers(load_f16(unit), scale), scale_integers(minus_dmin, minimum)};
}

/// Scales of outputs [8 octet, 8 octet + 8); `group` counts within the unit.
template <PackedScales kind>
KVICK_NEON_INLINE GroupScales load_scales(const std::byte* unit, int group, int octet) noexcept {
  const std::byte* const halves = unit + 16 * octet;
  const std::byte* const planes = unit + 64 + 8 * octet;
  const Floats8 none = {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
  if constexpr (kind == PackedScales::kF16) {
    return {load_f16(halves + 2 * kPanelWidth * group), none};
  } else if constexpr (kind == PackedScales::kF32) {
    return {load_f32(unit + 32 * octet), none};
  } else if constexpr (kind == PackedScales::kF16WithMinimum) {
    return {load_f16(halves), load_f16(halves + 2 * kPanelWidth)};
  } else if constexpr (kind == PackedScales::kPacked6Bit) {
    return load_packed_6bit(halves, planes, group);
  } else if constexpr (kind == PackedScales::kInt8) {
    const Floats8 d = load_f16(halves);
    const std::byte* const pair = planes + 2 * kPanelWidth * group;
    return {scale_integers(d, vreinterpret_s8_u8(load_plane(pair))),
            scale_integers(d, vreinterpret_s8_u8(load_plane(pair + kPanelWidth)))};
  } else {
    return {none, none};
  }
}

/// A group of a packed panel as the multiplications read it, from output 8 octet on.
template <PackedFormat format>
struct PackedGroup {
  static constexpr PackedLayout kLayout = packed_layout(format);
  /// By how much the integers that step() gives are too large.
  static constexpr std::uint32_t kZeroPoint = kLayout.integers == PackedIntegers::kBytes
                                                  ? 0
                                                  : static_cast<std::uint32_t>(kLayout.zero_point);

  const std::byte* unit;
  const std::byte* integers;
  int index;  ///< of the group in its unit
  int octet;

  /// Outputs [8 octet + 4 quad, + 4) of a step.
  template <int step>
  KVICK_NEON_INLINE int8x16_t step_of(int quad) const noexcept {
    return load_step<kLayout.integers, step>(integers + 32 * octet + 16 * quad);
  }
  /// Scales of outputs [8 (octet + i), + 8).
  KVICK_NEON_INLINE GroupScales scales(int i) const noexcept {
    return load_scales<kLayout.scales>(unit, index, octet + i);
  }
};

/// A group of one panel, unpacked: values without zero points and f32 scales.
struct alignas(64) UnpackedGroup {
  std::int8_t integers[kGroupSteps * kVectorBytes];
  float scale[kPanelWidth];
  float second[kPanelWidth];
};

/// The same for an unpacked group.
struct UnpackedOctet {
  static constexpr std::uint32_t kZeroPoint = 0;

  const UnpackedGroup* group;
  int octet;

  template <int step>
  KVICK_NEON_INLINE int8x16_t step_of(int quad) const noexcept {
    return vld1q_s8(group->integers + step * kVectorBytes + 32 * octet + 16 * quad);
  }
  KVICK_NEON_INLINE GroupScales scales(int i) const noexcept {
    const int first = 8 * (octet + i);
    return {{{vld1q_f32(group->scale + first), vld1q_f32(group->scale + first + 4)}},
            {{vld1q_f32(group->second + first), vld1q_f32(group->second + first + 4)}}};
  }
};

template <int step, PackedFormat format>
KVICK_NEON_INLINE void unpack_step(const PackedGroup<format>& group, UnpackedGroup& out) noexcept {
  const int8x16_t zero_point = vdupq_n_s8(static_cast<std::int8_t>(group.kZeroPoint));
#pragma GCC unroll 4
  for (int q = 0; q < kQuads; ++q) {
    vst1q_s8(out.integers + step * kVectorBytes + 16 * q,
             vsubq_s8(group.template step_of<step>(q), zero_point));
  }
}

/// Group `index` of a panel.
template <PackedFormat format>
KVICK_NEON inline void unpack_group(const std::byte* panel, Index index,
                                    UnpackedGroup& out) noexcept {
  constexpr PackedLayout kLayout = packed_layout(format);
  const auto in_unit = static_cast<int>(index % kLayout.groups_per_unit);
  const std::byte* const unit = panel + index / kLayout.groups_per_unit * kLayout.unit_bytes();
  const PackedGroup<format> group{
      unit, unit + kLayout.scale_bytes + in_unit * kLayout.group_bytes(), in_unit, 0};
  unpack_step<0>(group, out);
  unpack_step<1>(group, out);
  unpack_step<2>(group, out);
  unpack_step<3>(group, out);
  unpack_step<4>(group, out);
  unpack_step<5>(group, out);
  unpack_step<6>(group, out);
  unpack_step<7>(group, out);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const GroupScales scales = group.scales(i);
#pragma GCC unroll 2
    for (int q = 0; q < 2; ++q) {
      vst1q_f32(out.scale + 8 * i + 4 * q, scales.scale.val[q]);
      vst1q_f32(out.second + 8 * i + 4 * q, scales.second.val[q]);
    }
  }
}

}  // namespace kvick::inline v0_1::detail::neon
