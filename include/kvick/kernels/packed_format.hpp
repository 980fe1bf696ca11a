// SPDX-License-Identifier: MIT
// Weights as the kernels read them: panels of 16 outputs, whose inputs follow one another.
//
// A panel holds the weights of 16 outputs. Lane j of every vector belongs to output j, so a kernel
// walks the inputs upwards and never adds across lanes. Float panels are plain [inputs][16].
// Quantized panels are made of *units* of one, two or eight *groups* of 32 inputs:
//
//   unit    | scales of every group | integers of group 0 | integers of group 1 | ...
//   bytes   8 vectors of 64: byte 4 j + i of vector s is input 4 s + i of output j, the four inputs
//           that one dot-product instruction adds up in lane j
//   nibbles 4 vectors of 64: vector s has step s in its low nibbles and step s + 4 in its high ones
//   +1 bit  nibbles, then 64 bytes: bit s of each is the fifth bit of step s
//   +2 bits nibbles, then 2 x 64 bytes: bits 2 (s mod 4) and up of vector s / 4 are bits 4, 5 of s
//
// Integers are stored unsigned, `zero_point` above their value. Scales of a unit, by format:
//
//   kQ8_0 kQ4_0 kQ5_0   16 f16 of group 0, 16 f16 of group 1
//   kGroup8 kGroup4     16 f32
//   kQ4_1 kQ5_1         16 f16 scales, 16 f16 minimums
//   kQ4_K kQ5_K         16 f16 d, 16 f16 dmin, then the 12 bytes of packed 6-bit scales and
//   minimums
//                       of the block, byte by byte, 16 outputs each (see unpack_k_scales)
//   kQ6_K               16 f16 d, 32 bytes unused, then 16 int8 scales, 16 outputs each
//   kChannel8 kChannel4 none: one f32 per output, beside the panels
//
// Nothing is lost against the stored formats, and nothing grows but for padding: outputs to 16
// (scale 0) and inputs to a unit (never read).
//
// Units     Sizes in bytes unless a name says otherwise. Every vector is 64-byte aligned.
// Source    Interleaving four inputs per output: ik_llama.cpp's and llama.cpp's repacked types.
// Layer     kernels: may include core.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvick/core/element_type.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/kernels/lanes.hpp"

namespace kvick::inline v0_1 {

/// Inputs that share a scale of the activations, and the least that share one of the weights.
inline constexpr int kGroupSize = 32;

/// Inputs of one output that a dot-product instruction adds up; a group has eight such steps.
inline constexpr int kStepSize = 4;
inline constexpr int kGroupSteps = kGroupSize / kStepSize;

/// Inputs up to which a sum of products of int8 fits 32 bits.
inline constexpr Index kMaxChannelInputs = 131072;

/// Magnitude below which a group of activations counts as zero: 127 / a would overflow.
inline constexpr float kTinyActivation = 0x1p-100f;

/// Bytes of one step of a panel, and of one vector.
inline constexpr int kVectorBytes = kPanelWidth * kStepSize;

enum class PackedFormat {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kGroup8,    ///< 8 bits, f32 scale per group
  kGroup4,    ///< 4 bits, f32 scale per group
  kChannel8,  ///< 8 bits, f32 scale per output
  kChannel4,  ///< 4 bits, f32 scale per output
};

inline constexpr int kNumPackedFormats = 15;

/// How the integers of a group are stored.
enum class PackedIntegers { kNone, kBytes, kNibbles, kNibblesPlus1Bit, kNibblesPlus2Bits };

/// How the scales of a unit are stored.
enum class PackedScales { kNone, kF16, kF32, kF16WithMinimum, kPacked6Bit, kInt8 };

struct PackedLayout {
  PackedIntegers integers = PackedIntegers::kNone;
  PackedScales scales = PackedScales::kNone;
  int zero_point = 0;  ///< a power of two, or 0 where minimums shift the integers
  int groups_per_unit = 1;
  int scale_bytes = 0;  ///< of a unit

  constexpr bool has_minimum() const noexcept {
    return scales == PackedScales::kF16WithMinimum || scales == PackedScales::kPacked6Bit;
  }
  /// Each half of a group, 16 inputs, has a scale of its own.
  constexpr bool has_half_scales() const noexcept { return scales == PackedScales::kInt8; }
  /// Bytes of the integers of one group.
  constexpr int group_bytes() const noexcept {
    switch (integers) {
      case PackedIntegers::kNone: return 0;
      case PackedIntegers::kBytes: return 8 * kVectorBytes;
      case PackedIntegers::kNibbles: return 4 * kVectorBytes;
      case PackedIntegers::kNibblesPlus1Bit: return 5 * kVectorBytes;
      case PackedIntegers::kNibblesPlus2Bits: return 6 * kVectorBytes;
    }
    return 0;
  }
  constexpr int unit_bytes() const noexcept {
    return scale_bytes + groups_per_unit * group_bytes();
  }
};

/// The layout of a quantized format; of a float format, one without integers and scales.
constexpr PackedLayout packed_layout(PackedFormat format) noexcept {
  using I = PackedIntegers;
  using S = PackedScales;
  switch (format) {
    case PackedFormat::kF32:
    case PackedFormat::kF16:
    case PackedFormat::kBF16: return {};
    case PackedFormat::kQ8_0: return {I::kBytes, S::kF16, 128, 2, 64};
    case PackedFormat::kQ4_0: return {I::kNibbles, S::kF16, 8, 2, 64};
    case PackedFormat::kQ4_1: return {I::kNibbles, S::kF16WithMinimum, 0, 1, 64};
    case PackedFormat::kQ5_0: return {I::kNibblesPlus1Bit, S::kF16, 16, 2, 64};
    case PackedFormat::kQ5_1: return {I::kNibblesPlus1Bit, S::kF16WithMinimum, 0, 1, 64};
    case PackedFormat::kQ4_K: return {I::kNibbles, S::kPacked6Bit, 0, 8, 256};
    case PackedFormat::kQ5_K: return {I::kNibblesPlus1Bit, S::kPacked6Bit, 0, 8, 256};
    case PackedFormat::kQ6_K: return {I::kNibblesPlus2Bits, S::kInt8, 32, 8, 320};
    case PackedFormat::kGroup8: return {I::kBytes, S::kF32, 128, 1, 64};
    case PackedFormat::kGroup4: return {I::kNibbles, S::kF32, 8, 1, 64};
    case PackedFormat::kChannel8: return {I::kBytes, S::kNone, 128, 1, 0};
    case PackedFormat::kChannel4: return {I::kNibbles, S::kNone, 8, 1, 0};
  }
  return {};
}

constexpr bool is_float(PackedFormat format) noexcept { return format <= PackedFormat::kBF16; }

/// The elements of a float format.
constexpr ElementType element_type(PackedFormat format) noexcept {
  return format == PackedFormat::kF16    ? ElementType::kF16
         : format == PackedFormat::kBF16 ? ElementType::kBF16
                                         : ElementType::kF32;
}

/// One f32 scale per output, and one activation scale per row.
constexpr bool is_per_channel(PackedFormat format) noexcept {
  return format >= PackedFormat::kChannel8;
}

/// Groups of 32 that hold `in_features` inputs; the last may be shorter.
constexpr Index num_groups(Index in_features) noexcept {
  return (in_features + kGroupSize - 1) / kGroupSize;
}

/// Bytes of the panel of 16 outputs: whole units, or floats padded to 64 bytes.
constexpr Index panel_bytes(PackedFormat format, Index in_features) noexcept {
  if (is_float(format)) {
    const Index bytes = in_features * kPanelWidth * (format == PackedFormat::kF32 ? 4 : 2);
    return (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  }
  const PackedLayout layout = packed_layout(format);
  const Index units =
      (num_groups(in_features) + layout.groups_per_unit - 1) / layout.groups_per_unit;
  return units * layout.unit_bytes();
}

/// Adjacent panels as an operand of a kernel.
struct PackedPanels {
  PackedFormat format = PackedFormat::kF32;
  const std::byte* data = nullptr;        ///< of the first panel
  const float* channel_scales = nullptr;  ///< [num_panels * 16], of formats that are per channel
  Index panel_bytes = 0;
  Index num_panels = 0;
  Index in_features = 0;
};

/// Activations of one group: x[k] is about scale * values[k].
struct QuantizedGroup {
  std::int8_t values[kGroupSize];  ///< in [-127, 127]
  float scale;
  std::int32_t minus_sum;      ///< -(sum of values)
  float scaled_sum;            ///< scale * float(sum of values), one rounding
  std::int32_t minus_low_sum;  ///< -(sum of the first 16 values)
};
static_assert(sizeof(QuantizedGroup) == 48);

/// A whole row with one scale: what its groups have in common.
struct QuantizedRowTotal {
  float scale;
  std::int32_t minus_sum;
};

/// Rows of quantized activations as an operand of a kernel.
struct QuantizedRowsView {
  const QuantizedGroup* groups = nullptr;     ///< [rows][row_stride]
  const QuantizedRowTotal* totals = nullptr;  ///< [rows]; only where rows have one scale
  Index row_stride = 0;                       ///< in groups, at least num_groups
  Index num_groups = 0;
};

}  // namespace kvick::inline v0_1
