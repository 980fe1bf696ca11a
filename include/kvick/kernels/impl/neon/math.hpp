// SPDX-License-Identifier: MIT
// Functions of whole vectors that the kernels share, for AArch64 CPUs with dot products.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <arm_neon.h>

#include <limits>

#include "kvick/core/math.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/neon/target.hpp"

namespace kvick::inline v0_1::detail::neon {

/// Registers of four lanes that hold the 16 lanes of the contract.
inline constexpr int kQuads = 4;

/// acc[j] += w[4 j .. 4 j + 3] . x[4 lane .. 4 lane + 3] in each of the four lanes.
template <int lane>
KVICK_NEON_INLINE int32x4_t dot_lane(int32x4_t acc, int8x16_t w, int8x16_t x) noexcept {
#if defined(__clang__)
  // clang 14 and 15 declare the intrinsic only if the whole file is compiled for the extension.
  __asm__("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(acc) : "w"(w), "w"(x), "i"(lane));
  return acc;
#else
  return vdotq_laneq_s32(acc, w, x, lane);
#endif
}

/// exp of 4 lanes: the sequence of math::exp(float), lane by lane.
KVICK_NEON_INLINE float32x4_t exp4(float32x4_t x) noexcept {
  const float32x4_t shift = vdupq_n_f32(math::kExpShift);
  const float32x4_t t = vfmaq_f32(shift, x, vdupq_n_f32(math::kExpLog2E));
  const float32x4_t n = vsubq_f32(t, shift);
  float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(math::kExpLn2High));
  r = vfmsq_f32(r, n, vdupq_n_f32(math::kExpLn2Low));
  float32x4_t p = vdupq_n_f32(math::kExpCoefficients[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) {
    p = vfmaq_f32(vdupq_n_f32(math::kExpCoefficients[static_cast<unsigned>(i)]), p, r);
  }
  p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
  const uint32x4_t exponent = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
  float32x4_t y = vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), exponent));
  const float32x4_t infinity = vdupq_n_f32(std::numeric_limits<float>::infinity());
  y = vbslq_f32(vcgtq_f32(x, vdupq_n_f32(math::kExpMax)), infinity, y);
  y = vbslq_f32(vcltq_f32(x, vdupq_n_f32(math::kExpMin)), vdupq_n_f32(0.0f), y);
  return vbslq_f32(vceqq_f32(x, x), y, x);
}

/// The fixed tree over 16 partial sums.
KVICK_NEON_INLINE float join(const float32x4_t (&sums)[kQuads]) noexcept {
  const float32x4_t by4 = vaddq_f32(vaddq_f32(sums[0], sums[2]), vaddq_f32(sums[1], sums[3]));
  const float32x2_t by2 = vadd_f32(vget_low_f32(by4), vget_high_f32(by4));
  return vget_lane_f32(by2, 0) + vget_lane_f32(by2, 1);
}

}  // namespace kvick::inline v0_1::detail::neon
