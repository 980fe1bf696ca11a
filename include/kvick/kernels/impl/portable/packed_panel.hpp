// SPDX-License-Identifier: MIT
// Reading one group of a packed panel, in plain C++: the definition of the packed formats.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvick/core/half.hpp"
#include "kvick/kernels/packed_format.hpp"

namespace kvick::inline v0_1::detail::portable {

/// The group that holds inputs [32 g, 32 g + 32) of a panel: weight = scale * value + minimum.
struct PanelGroup {
  std::int16_t values[kGroupSize][kPanelWidth];  ///< the zero point is gone
  float scale[2][kPanelWidth];                   ///< of the first and second 16 inputs
  float minimum[kPanelWidth];                    ///< zeros without minimums
};

inline std::uint8_t byte_at(const std::byte* from, Index i) noexcept {
  return std::to_integer<std::uint8_t>(from[i]);
}

inline float f16_at(const std::byte* from, Index i) noexcept {
  f16 half;
  std::memcpy(&half, from + 2 * i, sizeof half);
  return static_cast<float>(half);
}

/// The stored integer of input k (of 32) and output j.
inline int stored_integer(PackedIntegers kind, const std::byte* group, int k, int j) noexcept {
  const int step = k / kStepSize;
  const int lane = j * kStepSize + k % kStepSize;
  if (kind == PackedIntegers::kBytes) return byte_at(group, step * kVectorBytes + lane);
  const int pair = byte_at(group, (step % 4) * kVectorBytes + lane);
  const int low = step < 4 ? pair & 15 : pair >> 4;
  const std::byte* const high = group + 4 * kVectorBytes;
  if (kind == PackedIntegers::kNibblesPlus1Bit) {
    return low | ((byte_at(high, lane) >> step) & 1) << 4;
  }
  if (kind == PackedIntegers::kNibblesPlus2Bits) {
    const int bits = byte_at(high, (step / 4) * kVectorBytes + lane);
    return low | ((bits >> (2 * (step % 4))) & 3) << 4;
  }
  return low;
}

/// 6-bit scale and minimum `group` (of 8) of output j, see unpack_k_scales.
struct Scale6Bit {
  int scale;
  int minimum;
};
inline Scale6Bit scale_6bit(const std::byte* planes, int group, int j) noexcept {
  const auto plane = [&](int i) -> int { return byte_at(planes, i * kPanelWidth + j); };
  if (group < 4) return {plane(group) & 63, plane(group + 4) & 63};
  const int nibbles = plane(group + 4);
  return {(nibbles & 15) | (plane(group - 4) >> 6) << 4, (nibbles >> 4) | (plane(group) >> 6) << 4};
}

/// What turns the integers of one output and group into weights.
struct LaneScales {
  float first = 1.0f;
  float second = 1.0f;
  float minimum = 0.0f;
};

/// Scales and minimum of output j; `group` counts within the unit.
inline LaneScales lane_scales(PackedScales kind, const std::byte* unit, int group, int j) noexcept {
  switch (kind) {
    case PackedScales::kNone: break;
    case PackedScales::kF16: {
      const float scale = f16_at(unit, group * kPanelWidth + j);
      return {scale, scale, 0.0f};
    }
    case PackedScales::kF32: {
      float scale;
      std::memcpy(&scale, unit + 4 * j, sizeof scale);
      return {scale, scale, 0.0f};
    }
    case PackedScales::kF16WithMinimum: {
      const float scale = f16_at(unit, j);
      return {scale, scale, f16_at(unit, kPanelWidth + j)};
    }
    case PackedScales::kPacked6Bit: {
      const Scale6Bit bits = scale_6bit(unit + 64, group, j);
      const float scale = f16_at(unit, j) * static_cast<float>(bits.scale);
      return {scale, scale, -f16_at(unit, kPanelWidth + j) * static_cast<float>(bits.minimum)};
    }
    case PackedScales::kInt8: {
      const std::byte* const planes = unit + 64 + 2 * group * kPanelWidth;
      const auto scale = [&](Index i) {
        return f16_at(unit, j) * static_cast<float>(std::bit_cast<std::int8_t>(planes[i]));
      };
      return {scale(j), scale(kPanelWidth + j), 0.0f};
    }
  }
  return {};
}

/// Where a group's unit and integers are in a panel.
struct GroupPlace {
  const std::byte* unit;
  const std::byte* integers;
  int index;  ///< of the group in its unit
};
inline GroupPlace find_group(const PackedLayout& layout, const std::byte* panel,
                             Index group) noexcept {
  const auto index = static_cast<int>(group % layout.groups_per_unit);
  const std::byte* const unit = panel + group / layout.groups_per_unit * layout.unit_bytes();
  return {unit, unit + layout.scale_bytes + index * layout.group_bytes(), index};
}

inline void read_group(const PackedLayout& layout, const std::byte* panel, Index group,
                       PanelGroup& out) noexcept {
  const GroupPlace place = find_group(layout, panel, group);
  for (int k = 0; k < kGroupSize; ++k) {
    for (int j = 0; j < kPanelWidth; ++j) {
      out.values[k][j] = static_cast<std::int16_t>(
          stored_integer(layout.integers, place.integers, k, j) - layout.zero_point);
    }
  }
  for (int j = 0; j < kPanelWidth; ++j) {
    const LaneScales scales = lane_scales(layout.scales, place.unit, place.index, j);
    out.scale[0][j] = scales.first;
    out.scale[1][j] = scales.second;
    out.minimum[j] = scales.minimum;
  }
}

/// The weight that an integer stands for.
inline float weight(const PackedLayout& layout, float scale, float minimum, int value) noexcept {
  const auto integer = static_cast<float>(value);
  return layout.has_minimum() ? std::fma(scale, integer, minimum) : scale * integer;
}

/// Inputs [32 group, 32 group + count) of output j; `channel_scale` replaces those of the panel
/// where it has none.
inline void read_lane(const PackedLayout& layout, const std::byte* panel, Index group, int j,
                      float channel_scale, int count, float* out) noexcept {
  const GroupPlace place = find_group(layout, panel, group);
  LaneScales scales = lane_scales(layout.scales, place.unit, place.index, j);
  if (layout.scales == PackedScales::kNone) scales.first = scales.second = channel_scale;
  for (int k = 0; k < count; ++k) {
    const int value = stored_integer(layout.integers, place.integers, k, j) - layout.zero_point;
    out[k] =
        weight(layout, k < kGroupSize / 2 ? scales.first : scales.second, scales.minimum, value);
  }
}

}  // namespace kvick::inline v0_1::detail::portable
