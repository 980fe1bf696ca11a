// SPDX-License-Identifier: MIT
// What the tuned kernels of every ISA share about packed formats.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <bit>

#include "kvick/kernels/packed_format.hpp"

namespace kvick::inline v0_1::detail {

/// Formats that are multiplied alike once they are unpacked.
enum class TileKind {
  kPlain,       ///< one scale per group
  kMinimums,    ///< and one minimum
  kHalfScales,  ///< two scales per group
  kPerChannel,  ///< integers only
};

constexpr TileKind tile_kind(PackedFormat format) noexcept {
  if (is_per_channel(format)) return TileKind::kPerChannel;
  if (packed_layout(format).has_half_scales()) return TileKind::kHalfScales;
  if (packed_layout(format).has_minimum()) return TileKind::kMinimums;
  return TileKind::kPlain;
}

/// The zero point as a shift; 0 where there is none.
constexpr int zero_point_shift(const PackedLayout& layout) noexcept {
  return layout.zero_point == 0 ? 0 : std::countr_zero(static_cast<unsigned>(layout.zero_point));
}

/// Calls body.operator()<format>() for a quantized format known at run time.
template <class Body>
void for_quantized_format(PackedFormat format, Body&& body) noexcept {
  switch (format) {
    case PackedFormat::kF32:
    case PackedFormat::kF16:
    case PackedFormat::kBF16: return;
    case PackedFormat::kQ8_0: return body.template operator()<PackedFormat::kQ8_0>();
    case PackedFormat::kQ4_0: return body.template operator()<PackedFormat::kQ4_0>();
    case PackedFormat::kQ4_1: return body.template operator()<PackedFormat::kQ4_1>();
    case PackedFormat::kQ5_0: return body.template operator()<PackedFormat::kQ5_0>();
    case PackedFormat::kQ5_1: return body.template operator()<PackedFormat::kQ5_1>();
    case PackedFormat::kQ4_K: return body.template operator()<PackedFormat::kQ4_K>();
    case PackedFormat::kQ5_K: return body.template operator()<PackedFormat::kQ5_K>();
    case PackedFormat::kQ6_K: return body.template operator()<PackedFormat::kQ6_K>();
    case PackedFormat::kGroup8: return body.template operator()<PackedFormat::kGroup8>();
    case PackedFormat::kGroup4: return body.template operator()<PackedFormat::kGroup4>();
    case PackedFormat::kChannel8: return body.template operator()<PackedFormat::kChannel8>();
    case PackedFormat::kChannel4: return body.template operator()<PackedFormat::kChannel4>();
  }
}

}  // namespace kvick::inline v0_1::detail
