// SPDX-License-Identifier: MIT
// Stored tensors to floats and back: the block formats of GGUF.
//
// Accuracy  Every value is the format's exact value rounded once to float (ties to even). Most are
//           exact: a scale has 11 significant bits and is a multiple of 2^-24, so its product with
//           integers of up to 13 bits together fits the 24 bits of a float. The formats with a
//           minimum, x = scale * q + m, round in their one addition. Because the products are
//           exact, a compiler that contracts them into fma gives the same bits. An infinite or NaN
//           scale gives what IEEE arithmetic gives. How good encoding is: block_encoders.hpp.
// Guarantee The bytes that `quantize` gives depend on nothing but each block's values: not on the
//           caller's floating-point mode or on compiler flags.
// Errors    Error(kShape) unless bytes and values fit exactly; see each function.
// Threads   No shared state, no allocation.
// Source    GGUF format, tensor types (ggml_type). Letters as there: d scale, m minimum, q integer.
// Layer     quant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "kvick/core/fp_environment.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/version.hpp"
#include "kvick/quant/block_encoders.hpp"
#include "kvick/quant/block_layouts.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace kvick::inline v0_1 {

/// Decodes whole blocks of any supported type. Error(kShape) unless `blocks` is whole blocks and
/// `values` has exactly their number of values.
void dequantize(TensorType type, std::span<const std::byte> blocks, std::span<float> values);

/// Encodes to any supported type. kF32, kF16, kBF16: each value rounded to nearest even. kQ8_0: see
/// `quantize_q8_0`. Others: the scales with the least sum of squared errors that a search finds,
/// and the nearest integers to them.
/// Error(kShape) unless `values` is whole blocks and `blocks` has exactly their bytes;
/// Error(kArgument), with its index, for a value that is not finite or that no scale of a block
/// format can hold. The limit of Q4_1 and Q5_1 is 65504, of others 65504 times 8 (Q4_0),
/// 16 (Q5_0), 127 (Q8_0), 63 (Q4_K, Q5_K) or 4064 (Q6_K).
void quantize(TensorType type, std::span<const float> values, std::span<std::byte> blocks);

/// Encodes blocks of 32 values as one scale d and 32 integers in [-127, 127]:
/// d = max |x| / 127 rounded to f16, q = x / d rounded to nearest even. Dividing by d as stored
/// makes q * d the multiple of d nearest to x. A block whose d rounds to 0 is all zeros.
/// Errors as for `quantize`.
void quantize_q8_0(std::span<const float> values, std::span<std::byte> blocks);

// ---- Implementation: nothing below is API ----

namespace detail {

// The fifth bits of 32 values, spread to 0 or 16 each.
inline void spread_fifth_bits(const std::uint8_t (&qh)[4], std::uint8_t (&fifth)[32]) noexcept {
  for (int j = 0; j < 32; ++j) {
    fifth[j] = static_cast<std::uint8_t>(((qh[j / 8] >> (j % 8)) & 1) << 4);
  }
}

// All decoders: `out` has kBlockValues<Block> floats.

inline void decode(const BlockQ4_0& block, float* out) noexcept {
  const auto d = static_cast<float>(block.d);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((block.qs[j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((block.qs[j] >> 4) - 8);
  }
}

inline void decode(const BlockQ4_1& block, float* out) noexcept {
  const auto d = static_cast<float>(block.d);
  const auto m = static_cast<float>(block.m);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(block.qs[j] & 15) + m;  // 15 bits: exact product
    out[j + 16] = d * static_cast<float>(block.qs[j] >> 4) + m;
  }
}

inline void decode(const BlockQ5_0& block, float* out) noexcept {
  const auto d = static_cast<float>(block.d);
  std::uint8_t fifth[32];
  spread_fifth_bits(block.qh, fifth);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(((block.qs[j] & 15) | fifth[j]) - 16);
    out[j + 16] = d * static_cast<float>(((block.qs[j] >> 4) | fifth[j + 16]) - 16);
  }
}

inline void decode(const BlockQ5_1& block, float* out) noexcept {
  const auto d = static_cast<float>(block.d);
  const auto m = static_cast<float>(block.m);
  std::uint8_t fifth[32];
  spread_fifth_bits(block.qh, fifth);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((block.qs[j] & 15) | fifth[j]) + m;  // 16 bits: exact product
    out[j + 16] = d * static_cast<float>((block.qs[j] >> 4) | fifth[j + 16]) + m;
  }
}

inline void decode(const BlockQ8_0& block, float* out) noexcept {
  const auto d = static_cast<float>(block.d);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(block.qs[j]);
}

inline void decode(const BlockQ4_K& block, float* out) noexcept {
  const auto d = static_cast<float>(block.d);
  const auto dmin = static_cast<float>(block.dmin);
  const KScales k = unpack_k_scales(block.scales);
  for (int i = 0; i < 8; ++i) {
    const float scale = d * static_cast<float>(k.scale[i]);  // 17 bits: exact, and 21 with q
    const float minimum = dmin * static_cast<float>(k.minimum[i]);
    const std::uint8_t* qs = block.qs + i / 2 * 32;
    const int shift = i % 2 * 4;
    for (int l = 0; l < 32; ++l) {
      out[i * 32 + l] = scale * static_cast<float>((qs[l] >> shift) & 15) - minimum;
    }
  }
}

inline void decode(const BlockQ5_K& block, float* out) noexcept {
  const auto d = static_cast<float>(block.d);
  const auto dmin = static_cast<float>(block.dmin);
  const KScales k = unpack_k_scales(block.scales);
  for (int i = 0; i < 8; ++i) {
    const float scale = d * static_cast<float>(k.scale[i]);  // 17 bits: exact, and 22 with q
    const float minimum = dmin * static_cast<float>(k.minimum[i]);
    const std::uint8_t* qs = block.qs + i / 2 * 32;
    const int shift = i % 2 * 4;
    for (int l = 0; l < 32; ++l) {
      const int q = ((qs[l] >> shift) & 15) | (((block.qh[l] >> i) & 1) << 4);
      out[i * 32 + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}

// Half h, quarter t of 32 values: low bits in nibble t / 2 of ql[64h + 32(t % 2) + l], high bits in
// bits 2t and 2t + 1 of qh[32h + l].
inline void decode(const BlockQ6_K& block, float* out) noexcept {
  const auto d = static_cast<float>(block.d);
  for (int group = 0; group < 16; ++group) {
    const int h = group / 8;
    const int t = group / 2 % 4;
    const int first = group % 2 * 16;
    const float scale = d * static_cast<float>(block.scales[group]);  // 18 bits, and 23 with q
    const std::uint8_t* ql = block.ql + h * 64 + t % 2 * 32 + first;
    const std::uint8_t* qh = block.qh + h * 32 + first;
    const int low_shift = t / 2 * 4;
    const int high_shift = t * 2;
    for (int l = 0; l < 16; ++l) {
      const int q = ((ql[l] >> low_shift) & 15) | (((qh[l] >> high_shift) & 3) << 4);
      out[group * 16 + l] = scale * static_cast<float>(q - 32);
    }
  }
}

template <class Block>
void decode_blocks(const std::byte* src, std::size_t num_blocks, float* dst) noexcept {
  static_assert(sizeof(Block) == info(Block::kType).block_bytes && alignof(Block) <= 2);
  for (std::size_t i = 0; i < num_blocks; ++i) {
    Block block;  // a copy: `src` is unaligned, and the compiler knows that `dst` is elsewhere
    std::memcpy(&block, src + i * sizeof(Block), sizeof(Block));
    decode(block, dst + i * kBlockValues<Block>);
  }
}

template <class Half>
void decode_halves(const std::byte* src, std::size_t count, float* dst) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    Half half;
    std::memcpy(&half, src + i * sizeof(Half), sizeof(Half));
    dst[i] = static_cast<float>(half);
  }
}

template <class Half>
void encode_halves(const float* src, std::size_t count, std::byte* dst) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const Half half(src[i]);
    std::memcpy(dst + i * sizeof(Half), &half, sizeof(Half));
  }
}

/// `dequantize` without its check: `src` has `num_blocks` blocks, `dst` room for their values.
inline void dequantize_blocks(TensorType type, const std::byte* src, std::size_t num_blocks,
                              float* dst) noexcept {
  switch (type) {
    case TensorType::kF32:
      if (num_blocks != 0) std::memcpy(dst, src, num_blocks * sizeof(float));
      return;
    case TensorType::kF16: return decode_halves<f16>(src, num_blocks, dst);
    case TensorType::kBF16: return decode_halves<bf16>(src, num_blocks, dst);
    case TensorType::kQ4_0: return decode_blocks<BlockQ4_0>(src, num_blocks, dst);
    case TensorType::kQ4_1: return decode_blocks<BlockQ4_1>(src, num_blocks, dst);
    case TensorType::kQ5_0: return decode_blocks<BlockQ5_0>(src, num_blocks, dst);
    case TensorType::kQ5_1: return decode_blocks<BlockQ5_1>(src, num_blocks, dst);
    case TensorType::kQ8_0: return decode_blocks<BlockQ8_0>(src, num_blocks, dst);
    case TensorType::kQ4_K: return decode_blocks<BlockQ4_K>(src, num_blocks, dst);
    case TensorType::kQ5_K: return decode_blocks<BlockQ5_K>(src, num_blocks, dst);
    case TensorType::kQ6_K: return decode_blocks<BlockQ6_K>(src, num_blocks, dst);
  }
}

/// `quantize` without its check of sizes. Not inlined, so that no arithmetic leaves the guard of
/// the callers.
[[gnu::noinline]] inline void quantize_blocks(TensorType type, const float* src,
                                              std::size_t num_blocks, std::byte* dst,
                                              std::string_view operation) {
  switch (type) {
    case TensorType::kF32:
      if (num_blocks != 0) std::memcpy(dst, src, num_blocks * sizeof(float));
      return;
    case TensorType::kF16: return encode_halves<f16>(src, num_blocks, dst);
    case TensorType::kBF16: return encode_halves<bf16>(src, num_blocks, dst);
    case TensorType::kQ4_0: return encode_blocks<BlockQ4_0>(src, num_blocks, dst, operation);
    case TensorType::kQ4_1: return encode_blocks<BlockQ4_1>(src, num_blocks, dst, operation);
    case TensorType::kQ5_0: return encode_blocks<BlockQ5_0>(src, num_blocks, dst, operation);
    case TensorType::kQ5_1: return encode_blocks<BlockQ5_1>(src, num_blocks, dst, operation);
    case TensorType::kQ8_0: return encode_blocks<BlockQ8_0>(src, num_blocks, dst, operation);
    case TensorType::kQ4_K: return encode_blocks<BlockQ4_K>(src, num_blocks, dst, operation);
    case TensorType::kQ5_K: return encode_blocks<BlockQ5_K>(src, num_blocks, dst, operation);
    case TensorType::kQ6_K: return encode_blocks<BlockQ6_K>(src, num_blocks, dst, operation);
  }
}

inline void quantize(TensorType type, std::span<const float> values, std::span<std::byte> blocks,
                     std::string_view operation) {
  const std::size_t num_blocks =
      require_whole_blocks(type, blocks.size(), values.size(), operation);
  const ScopedFpEnvironment fp_environment;
  quantize_blocks(type, values.data(), num_blocks, blocks.data(), operation);
}

}  // namespace detail

inline void dequantize(TensorType type, std::span<const std::byte> blocks,
                       std::span<float> values) {
  const std::size_t num_blocks =
      detail::require_whole_blocks(type, blocks.size(), values.size(), "dequantize");
  detail::dequantize_blocks(type, blocks.data(), num_blocks, values.data());
}

inline void quantize(TensorType type, std::span<const float> values, std::span<std::byte> blocks) {
  detail::quantize(type, values, blocks, "quantize");
}

inline void quantize_q8_0(std::span<const float> values, std::span<std::byte> blocks) {
  detail::quantize(TensorType::kQ8_0, values, blocks, "quantize_q8_0");
}

}  // namespace kvick::inline v0_1
