// SPDX-License-Identifier: MIT
// Quantized activations, for AArch64 CPUs with dot products.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/neon/target.hpp"

namespace kvick::inline v0_1::detail::neon {

/// Where 32 values may be read: at x, or where fewer are left in `copy`, filled up with zeros.
inline const float* whole_group(const float* x, Index count, float (&copy)[kGroupSize]) noexcept {
  if (count >= kGroupSize) return x;
  std::fill_n(copy, kGroupSize, 0.0f);
  std::memcpy(copy, x, static_cast<std::size_t>(count) * sizeof(float));
  return copy;
}

/// The largest magnitudes of 32 values, lane by lane, as bits: they compare like the magnitudes,
/// and those of NaNs lie above infinity's.
KVICK_NEON_INLINE uint32x4_t max_bits(uint32x4_t max, const float* x) noexcept {
#pragma GCC unroll 8
  for (int i = 0; i < kGroupSize; i += 4) {
    max = vmaxq_u32(max, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
  }
  return max;
}

/// The largest magnitude, or NaN if any was not finite.
KVICK_NEON_INLINE float finite_max(uint32x4_t max) noexcept {
  const std::uint32_t bits = vmaxvq_u32(max);
  return bits < 0x7f800000u ? std::bit_cast<float>(bits) : std::numeric_limits<float>::quiet_NaN();
}

/// 4 values times `inverse`, rounded to nearest even.
KVICK_NEON_INLINE int32x4_t round4(const float* x, float inverse) noexcept {
  return vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inverse));
}

/// 16 values times `inverse`, rounded to nearest even and clamped.
KVICK_NEON_INLINE int8x16_t quantize16(const float* x, float inverse) noexcept {
  const int16x8_t low =
      vcombine_s16(vqmovn_s32(round4(x, inverse)), vqmovn_s32(round4(x + 4, inverse)));
  const int16x8_t high =
      vcombine_s16(vqmovn_s32(round4(x + 8, inverse)), vqmovn_s32(round4(x + 12, inverse)));
  return vmaxq_s8(vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)), vdupq_n_s8(-127));
}

KVICK_NEON_INLINE float activation_scale(float max) noexcept {
  return max < kTinyActivation ? 0.0f : max / 127.0f;
}

/// Quantizes 32 values.
KVICK_NEON_INLINE void quantize_group(const float* x, float max, float scale,
                                      QuantizedGroup& out) noexcept {
  int8x16_t low = vdupq_n_s8(0);
  int8x16_t high = vdupq_n_s8(0);
  if (max >= kTinyActivation) {  // not NaN either
    const float inverse = 127.0f / max;
    low = quantize16(x, inverse);
    high = quantize16(x + 16, inverse);
  }
  vst1q_s8(out.values, low);
  vst1q_s8(out.values + 16, high);
  const std::int32_t low_sum = vaddlvq_s8(low);
  const std::int32_t sum = low_sum + vaddlvq_s8(high);
  out.scale = scale;
  out.minus_sum = -sum;
  out.scaled_sum = scale * static_cast<float>(sum);
  out.minus_low_sum = -low_sum;
}

KVICK_NEON inline void quantize_groups(const float* x, Index count,
                                       QuantizedGroup* groups) noexcept {
  float copy[kGroupSize];
  for (Index k = 0; k < count; k += kGroupSize, ++groups) {
    const float* const values = whole_group(x + k, count - k, copy);
    const float max = finite_max(max_bits(vdupq_n_u32(0), values));
    quantize_group(values, max, activation_scale(max), *groups);
  }
}

KVICK_NEON inline QuantizedRowTotal quantize_row(const float* x, Index count,
                                                 QuantizedGroup* groups) noexcept {
  float copy[kGroupSize];
  uint32x4_t bits = vdupq_n_u32(0);
  for (Index k = 0; k < count; k += kGroupSize) {
    bits = max_bits(bits, whole_group(x + k, count - k, copy));
  }
  const float max = finite_max(bits);
  QuantizedRowTotal total{activation_scale(max), 0};
  for (Index k = 0; k < count; k += kGroupSize, ++groups) {
    quantize_group(whole_group(x + k, count - k, copy), max, total.scale, *groups);
    total.minus_sum += groups->minus_sum;
  }
  return total;
}

}  // namespace kvick::inline v0_1::detail::neon
