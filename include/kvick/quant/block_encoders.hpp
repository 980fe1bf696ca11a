// SPDX-License-Identifier: MIT
// Floats to the block formats of GGUF, with the least squared error that a search finds.
//
// Q8_0 has the scale of its largest magnitude (`quantize_q8_0`). The other formats choose scales
// and minimums by the searches of block_fit.hpp and super_block_fit.hpp; what is stored is never
// worse than the encoding without search.
//
// Accuracy  Every integer is the nearest for the scales as stored, so errors are at most half a
//           step inside the range of a group; outside they are what clipping leaves, where that
//           makes the sum of squares smaller. Of normal values, in dB of signal to noise and
//           in brackets without search: q4_0 21.9 (21.3), q4_1 23.2 (22.2), q4_k 23.1 (22.1),
//           q5_0 28.0 (27.4), q5_1 29.5 (28.5), q5_k 29.2 (28.4), q6_k 35.7 (34.5).
// Speed     50 to 90 ns for a value in one thread of a 2024 server, compiled for any x86-64: about
//           a minute for a model of 1.1 billion parameters in two threads.
// Limits    Magnitudes up to kMaxMagnitude<Block>: what an f16 scale of the largest integers, or an
//           f16 minimum, can hold.
// Layer     quant.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/version.hpp"
#include "kvick/quant/block_fit.hpp"
#include "kvick/quant/block_layouts.hpp"
#include "kvick/quant/super_block_fit.hpp"

namespace kvick::inline v0_1 {

// ---- Implementation: nothing below is API ----

namespace detail {

// ---- Formats of 32 values ----

/// Calls put(j, q) for each value with its integer minus the least one, so q >= 0.
template <class Put>
void put_integers(const float* x, int count, float scale, float offset, const IntegerLimits& limits,
                  const Put& put) noexcept {
  const float inverse_scale = inverse(scale);
  for (int j = 0; j < count; ++j) {
    const float q = nearest_integer(x[j], offset, inverse_scale, limits) - limits.least;
    put(j, static_cast<unsigned>(q));
  }
}

inline void put_nibble(std::uint8_t (&qs)[16], int j, unsigned q) noexcept {
  qs[j % 16] = static_cast<std::uint8_t>(qs[j % 16] | ((q & 15) << (j / 16 * 4)));
}

inline void put_fifth_bit(std::uint8_t (&qh)[4], int j, unsigned q) noexcept {
  qh[j / 8] = static_cast<std::uint8_t>(qh[j / 8] | ((q >> 4) << (j % 8)));
}

// All encoders: `x` has kBlockValues<Block> finite floats of at most kMaxMagnitude<Block>.

inline void encode(const float* x, BlockQ4_0& block) noexcept {
  constexpr IntegerLimits kLimits{-8.0f, 7.0f};
  const auto scale = static_cast<float>(fit_f16_scale(ValueGroup<32>(x), kLimits).scale);
  block = {.d = f16(scale), .qs = {}};
  put_integers(x, 32, scale, 0.0f, kLimits, [&](int j, unsigned q) { put_nibble(block.qs, j, q); });
}

inline void encode(const float* x, BlockQ5_0& block) noexcept {
  constexpr IntegerLimits kLimits{-16.0f, 15.0f};
  const auto scale = static_cast<float>(fit_f16_scale(ValueGroup<32>(x), kLimits).scale);
  block = {.d = f16(scale), .qh = {}, .qs = {}};
  put_integers(x, 32, scale, 0.0f, kLimits, [&](int j, unsigned q) {
    put_nibble(block.qs, j, q);
    put_fifth_bit(block.qh, j, q);
  });
}

inline void encode(const float* x, BlockQ4_1& block) noexcept {
  constexpr IntegerLimits kLimits{0.0f, 15.0f};
  const GroupFit fit = fit_f16_scale_and_offset(ValueGroup<32>(x), kLimits);
  const auto scale = static_cast<float>(fit.scale);
  const auto offset = static_cast<float>(fit.offset);
  block = {.d = f16(scale), .m = f16(offset), .qs = {}};
  put_integers(x, 32, scale, offset, kLimits,
               [&](int j, unsigned q) { put_nibble(block.qs, j, q); });
}

inline void encode(const float* x, BlockQ5_1& block) noexcept {
  constexpr IntegerLimits kLimits{0.0f, 31.0f};
  const GroupFit fit = fit_f16_scale_and_offset(ValueGroup<32>(x), kLimits);
  const auto scale = static_cast<float>(fit.scale);
  const auto offset = static_cast<float>(fit.offset);
  block = {.d = f16(scale), .m = f16(offset), .qh = {}, .qs = {}};
  put_integers(x, 32, scale, offset, kLimits, [&](int j, unsigned q) {
    put_nibble(block.qs, j, q);
    put_fifth_bit(block.qh, j, q);
  });
}

inline void encode(const float* x, BlockQ8_0& block) noexcept {
  const f16 d(ValueGroup<32>(x).max_abs() / 127.0f);
  const auto scale = static_cast<float>(d);
  block = {.d = d, .qs = {}};
  if (scale == 0.0f) return;
  for (int j = 0; j < 32; ++j) {
    // Only a scale rounded down among f16's subnormals can need the clamp.
    const float q = std::clamp(std::nearbyint(x[j] / scale), -127.0f, 127.0f);
    block.qs[j] = static_cast<std::int8_t>(q);
  }
}

// ---- Formats of 256 values ----

inline void encode(const float* x, BlockQ4_K& block) noexcept {
  constexpr IntegerLimits kLimits{0.0f, 15.0f};
  const auto scales = AffineSuperBlock(x, kLimits).best_scales();
  block = {.d = scales.d, .dmin = scales.dmin, .scales = {}, .qs = {}};
  pack_k_scales(scales.k, block.scales);
  for (int i = 0; i < 8; ++i) {
    put_integers(x + 32 * i, 32, scales.scale(i), scales.offset(i), kLimits,
                 [&](int l, unsigned q) {
                   std::uint8_t& byte = block.qs[i / 2 * 32 + l];
                   byte = static_cast<std::uint8_t>(byte | (q << (i % 2 * 4)));
                 });
  }
}

inline void encode(const float* x, BlockQ5_K& block) noexcept {
  constexpr IntegerLimits kLimits{0.0f, 31.0f};
  const auto scales = AffineSuperBlock(x, kLimits).best_scales();
  block = {.d = scales.d, .dmin = scales.dmin, .scales = {}, .qh = {}, .qs = {}};
  pack_k_scales(scales.k, block.scales);
  for (int i = 0; i < 8; ++i) {
    put_integers(x + 32 * i, 32, scales.scale(i), scales.offset(i), kLimits,
                 [&](int l, unsigned q) {
                   std::uint8_t& byte = block.qs[i / 2 * 32 + l];
                   byte = static_cast<std::uint8_t>(byte | ((q & 15) << (i % 2 * 4)));
                   block.qh[l] = static_cast<std::uint8_t>(block.qh[l] | ((q >> 4) << i));
                 });
  }
}

inline void encode(const float* x, BlockQ6_K& block) noexcept {
  const auto scales = SymmetricSuperBlock(x).best_scales();
  block = {.ql = {}, .qh = {}, .scales = {}, .d = scales.d};
  for (int group = 0; group < 16; ++group) {
    const auto i = static_cast<std::size_t>(group);
    block.scales[group] = scales.k[i];
    const int h = group / 8;  // half and quarter, as in decode()
    const int t = group / 2 % 4;
    const int first = group % 2 * 16;
    std::uint8_t* const ql = block.ql + h * 64 + t % 2 * 32 + first;
    std::uint8_t* const qh = block.qh + h * 32 + first;
    put_integers(x + 16 * group, 16, scales.scale(i), 0.0f, SymmetricSuperBlock::kLimits,
                 [&](int l, unsigned q) {
                   ql[l] = static_cast<std::uint8_t>(ql[l] | ((q & 15) << (t / 2 * 4)));
                   qh[l] = static_cast<std::uint8_t>(qh[l] | ((q >> 4) << (t * 2)));
                 });
  }
}

// ---- Sequences of blocks ----

inline constexpr float kMaxF16 = 65504.0f;

template <class Block>
inline constexpr float kMaxMagnitude = kMaxF16;  // Q4_1, Q5_1: a minimum
template <>
inline constexpr float kMaxMagnitude<BlockQ4_0> = 8.0f * kMaxF16;
template <>
inline constexpr float kMaxMagnitude<BlockQ5_0> = 16.0f * kMaxF16;
template <>
inline constexpr float kMaxMagnitude<BlockQ8_0> = 127.0f * kMaxF16;
template <>
inline constexpr float kMaxMagnitude<BlockQ4_K> = 63.0f * kMaxF16;  // a minimum
template <>
inline constexpr float kMaxMagnitude<BlockQ5_K> = 63.0f * kMaxF16;
template <>
inline constexpr float kMaxMagnitude<BlockQ6_K> = 32.0f * 127.0f * kMaxF16;

/// `first` is the position of x[0] among all values, for the message.
template <class Block>
void require_encodable(const float* x, std::size_t first, std::string_view operation) {
  for (std::size_t j = 0; j < kBlockValues<Block>; ++j) {
    require(std::fabs(x[j]) <= kMaxMagnitude<Block>, ErrorCode::kArgument, operation,
            info(Block::kType).name, " holds finite values of at most ", kMaxMagnitude<Block>,
            " in magnitude, got ", x[j], " at index ", first + j);
  }
}

template <class Block>
void encode_blocks(const float* src, std::size_t num_blocks, std::byte* dst,
                   std::string_view operation) {
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const float* const x = src + i * kBlockValues<Block>;
    require_encodable<Block>(x, i * kBlockValues<Block>, operation);
    Block block;
    encode(x, block);
    std::memcpy(dst + i * sizeof(Block), &block, sizeof(Block));
  }
}

}  // namespace detail

}  // namespace kvick::inline v0_1
