// SPDX-License-Identifier: MIT
// Kernels along rows: sums of squares, SiLU, for AArch64 CPUs with dot products.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstring>

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/neon/math.hpp"
#include "kvick/kernels/impl/neon/target.hpp"

namespace kvick::inline v0_1::detail::neon {

KVICK_NEON_INLINE void add_squares(const float* x, float32x4_t (&sums)[kQuads]) noexcept {
#pragma GCC unroll 4
  for (int q = 0; q < kQuads; ++q) {
    const float32x4_t v = vld1q_f32(x + 4 * q);
    sums[q] = vfmaq_f32(sums[q], v, v);
  }
}

KVICK_NEON inline float sum_of_squares(const float* x, Index count) noexcept {
  const float32x4_t zero = vdupq_n_f32(0.0f);
  float32x4_t sums[kQuads] = {zero, zero, zero, zero};
  Index i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) add_squares(x + i, sums);
  if (i < count) {
    float tail[kPartialSums] = {};
    std::memcpy(tail, x + i, static_cast<std::size_t>(count - i) * sizeof(float));
    add_squares(tail, sums);
  }
  return join(sums);
}

KVICK_NEON_INLINE float32x4_t silu_multiply4(float32x4_t gate, float32x4_t up) noexcept {
  const float32x4_t denominator = vaddq_f32(vdupq_n_f32(1.0f), exp4(vnegq_f32(gate)));
  return vmulq_f32(vdivq_f32(gate, denominator), up);
}

KVICK_NEON inline void silu_multiply(const float* gate, const float* up, float* out,
                                     Index count) noexcept {
  Index i = 0;
  for (; i + 4 <= count; i += 4) {
    vst1q_f32(out + i, silu_multiply4(vld1q_f32(gate + i), vld1q_f32(up + i)));
  }
  if (i < count) {
    const std::size_t tail_bytes = static_cast<std::size_t>(count - i) * sizeof(float);
    float g[4] = {};
    float u[4] = {};
    std::memcpy(g, gate + i, tail_bytes);
    std::memcpy(u, up + i, tail_bytes);
    vst1q_f32(g, silu_multiply4(vld1q_f32(g), vld1q_f32(u)));
    std::memcpy(out + i, g, tail_bytes);
  }
}

}  // namespace kvick::inline v0_1::detail::neon
