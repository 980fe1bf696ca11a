// SPDX-License-Identifier: MIT
// The two 16-bit float formats of weights and caches: storage and conversion, no arithmetic.
//
//   f16    IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits.
//   bf16   The upper half of an IEEE binary32: 1 sign, 8 exponent (bias 127), 7 fraction bits.
//
// Accuracy  To float is exact. From float is rounded to nearest, ties to even, subnormal results
//           included; beyond the largest finite value (65504 for f16) it rounds to infinity as IEEE
//           prescribes. A NaN stays a NaN of the same sign with the top of its payload and becomes
//           quiet. These are the bits of x86's F16C instructions as well.
//           Integer operations only, so the caller's rounding mode and flush-to-zero do not matter.
// Threads   Values; no state.
// Source    IEEE 754-2019, 3.4 (interchange formats) and 4.3.1 (rounding).
// Layer     core.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// IEEE half precision. Trivial: a default-constructed value is uninitialised.
struct f16 {
  std::uint16_t bits;

  f16() = default;
  constexpr explicit f16(float value) noexcept;
  constexpr explicit operator float() const noexcept;

  static constexpr f16 from_bits(std::uint16_t bits) noexcept;

  /// Equality of bits: +0 and -0 differ, a NaN equals itself.
  friend constexpr bool operator==(f16, f16) noexcept = default;
};

/// The upper half of a float. Trivial: a default-constructed value is uninitialised.
struct bf16 {
  std::uint16_t bits;

  bf16() = default;
  constexpr explicit bf16(float value) noexcept;
  constexpr explicit operator float() const noexcept;

  static constexpr bf16 from_bits(std::uint16_t bits) noexcept;

  /// Equality of bits: +0 and -0 differ, a NaN equals itself.
  friend constexpr bool operator==(bf16, bf16) noexcept = default;
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline constexpr std::uint32_t kFloatInfinity = 0x7f800000;
inline constexpr std::uint32_t kFloatQuietBit = 0x00400000;

constexpr float float_from_f16(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  // All three cases are computed and one is selected, which compilers turn into vector blends.
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);  // bias 15 -> 127
  const std::uint32_t special =
      kFloatInfinity | (magnitude << 13) | (magnitude > 0x7c00 ? kFloatQuietBit : 0);
  // A subnormal counts units of 2^-24. At most 10 bits: the conversion and the product are exact.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  const std::uint32_t finite = magnitude < 0x0400 ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00 ? special : finite));
}

constexpr std::uint16_t f16_from_float(float value) noexcept {
  constexpr std::uint32_t kLeastNormal = 113u << 23;  // 2^-14
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  std::uint32_t rounded = 0;
  if (magnitude > kFloatInfinity) {
    rounded = 0x7e00 | ((magnitude >> 13) & 0x03ff);
  } else if (magnitude >= kLeastNormal) {
    // Adding half a unit less one, plus the bit that decides a tie, carries exactly when RNE rounds
    // up; a carry out of the fraction is the next exponent, as it should be.
    const std::uint32_t odd = (magnitude >> 13) & 1;
    rounded = std::min((magnitude - (112u << 23) + 0x0fff + odd) >> 13, 0x7c00u);
  } else {
    // Units of 2^-24: shift the 24-bit significand right by 126 - exponent, at least 14. From 26
    // on less than a quarter of a unit is left, which rounds to zero, as do float's subnormals.
    const std::uint32_t shift = std::min(126 - (magnitude >> 23), 26u);
    const std::uint32_t significand = (magnitude & 0x007fffff) | 0x00800000;
    const std::uint32_t odd = (significand >> shift) & 1;
    rounded = (significand + (1u << (shift - 1)) - 1 + odd) >> shift;
  }
  return static_cast<std::uint16_t>(sign | rounded);
}

constexpr float float_from_bf16(std::uint16_t half) noexcept {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  const bool is_nan = (bits & 0x7fffffff) > kFloatInfinity;
  return std::bit_cast<float>(bits | (is_nan ? kFloatQuietBit : 0));
}

constexpr std::uint16_t bf16_from_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffff) > kFloatInfinity;
  const std::uint32_t odd = (bits >> 16) & 1;
  return static_cast<std::uint16_t>((is_nan ? bits | kFloatQuietBit : bits + 0x7fff + odd) >> 16);
}

}  // namespace detail

constexpr f16::f16(float value) noexcept : bits(detail::f16_from_float(value)) {}
constexpr f16::operator float() const noexcept { return detail::float_from_f16(bits); }
constexpr f16 f16::from_bits(std::uint16_t bits) noexcept { return std::bit_cast<f16>(bits); }

constexpr bf16::bf16(float value) noexcept : bits(detail::bf16_from_float(value)) {}
constexpr bf16::operator float() const noexcept { return detail::float_from_bf16(bits); }
constexpr bf16 bf16::from_bits(std::uint16_t bits) noexcept { return std::bit_cast<bf16>(bits); }

}  // namespace kvick::inline v0_1
