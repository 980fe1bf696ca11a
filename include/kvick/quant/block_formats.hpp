// SPDX-License-Identifier: MIT
// Stored tensors to floats and back: the block formats of GGUF.
//
// Layouts   `detail::Block...` are the blocks byte for byte: no padding, little-endian, at most
//           2-byte alignment. Stored blocks are not aligned, so they are copied out, never cast.
// Accuracy  Every value is the format's exact value rounded once to float (ties to even). Most are
//           exact: a scale has 11 significant bits and is a multiple of 2^-24, so its product with
//           integers of up to 13 bits together fits the 24 bits of a float. The formats with a
//           minimum, x = scale * q + m, round in their one addition. Because the products are
//           exact, a compiler that contracts them into fma gives the same bits. An infinite or NaN
//           scale gives what IEEE arithmetic gives.
// Errors    Error(kShape) unless bytes and values fit exactly; see each function.
// Threads   No shared state, no allocation.
// Source    GGUF format, tensor types (ggml_type). Letters as there: d scale, m minimum, q integer.
// Layer     quant.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/version.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace kvick::inline v0_1 {

/// Decodes whole blocks of any supported type. Error(kShape) unless `blocks` is whole blocks and
/// `values` has exactly their number of values.
void dequantize(TensorType type, std::span<const std::byte> blocks, std::span<float> values);

/// Encodes to kF32, kF16, kBF16 (each value rounded to nearest even) or kQ8_0 (`quantize_q8_0`).
/// Error(kUnsupported) for other types; Error(kShape) unless `values` is whole blocks and `blocks`
/// has exactly their bytes.
void quantize(TensorType type, std::span<const float> values, std::span<std::byte> blocks);

/// Encodes blocks of 32 values as one scale d and 32 integers in [-127, 127]:
/// d = max |x| / 127 rounded to f16, q = x / d rounded to nearest even. Dividing by d as stored
/// makes q * d the multiple of d nearest to x. A block whose d rounds to 0 is all zeros.
/// Error(kShape) as for `quantize`; Error(kArgument) for a NaN or a magnitude beyond 127 * 65504.
void quantize_q8_0(std::span<const float> values, std::span<std::byte> blocks);

// ---- Implementation: nothing below is API ----

namespace detail {

static_assert(std::endian::native == std::endian::little, "GGUF blocks are read as little-endian");

struct BlockQ4_0 {
  static constexpr TensorType kType = TensorType::kQ4_0;
  f16 d;
  std::uint8_t qs[16];  // low nibbles: values 0..15, high nibbles: values 16..31
};

struct BlockQ4_1 {
  static constexpr TensorType kType = TensorType::kQ4_1;
  f16 d;
  f16 m;
  std::uint8_t qs[16];
};

struct BlockQ5_0 {
  static constexpr TensorType kType = TensorType::kQ5_0;
  f16 d;
  std::uint8_t qh[4];  // bit j: the fifth bit of value j
  std::uint8_t qs[16];
};

struct BlockQ5_1 {
  static constexpr TensorType kType = TensorType::kQ5_1;
  f16 d;
  f16 m;
  std::uint8_t qh[4];
  std::uint8_t qs[16];
};

struct BlockQ8_0 {
  static constexpr TensorType kType = TensorType::kQ8_0;
  f16 d;
  std::int8_t qs[32];
};

// The K formats: 256 values in 8 groups of 32, each with a 6-bit scale and minimum of its own.
struct BlockQ4_K {
  static constexpr TensorType kType = TensorType::kQ4_K;
  f16 d;
  f16 dmin;
  std::uint8_t scales[12];  // see KScales
  std::uint8_t qs[128];     // bytes 32a..32a+31: low nibbles group 2a, high nibbles group 2a + 1
};

struct BlockQ5_K {
  static constexpr TensorType kType = TensorType::kQ5_K;
  f16 d;
  f16 dmin;
  std::uint8_t scales[12];
  std::uint8_t qh[32];  // bit i of byte l: the fifth bit of value l of group i
  std::uint8_t qs[128];
};

// 256 values in 16 groups of 16 with an 8-bit scale each.
struct BlockQ6_K {
  static constexpr TensorType kType = TensorType::kQ6_K;
  std::uint8_t ql[128];  // the low four bits
  std::uint8_t qh[64];   // the high two bits
  std::int8_t scales[16];
  f16 d;
};

template <class Block>
inline constexpr std::size_t kBlockValues = info(Block::kType).block_size;

/// The 6-bit scales and minimums of the eight groups of a Q4_K or Q5_K block.
struct KScales {
  std::uint8_t scale[8];
  std::uint8_t minimum[8];
};

/// Groups 0..3 have the low six bits of bytes 0..3 (scales) and 4..7 (minimums). Groups 4..7 have
/// the nibbles of bytes 8..11, and their top two bits are the top two bits of bytes 0..7.
constexpr KScales unpack_k_scales(const std::uint8_t (&packed)[12]) noexcept {
  KScales result{};
  for (int i = 0; i < 4; ++i) {
    const unsigned s = packed[i];
    const unsigned m = packed[i + 4];
    const unsigned nibbles = packed[i + 8];
    result.scale[i] = static_cast<std::uint8_t>(s & 63);
    result.minimum[i] = static_cast<std::uint8_t>(m & 63);
    result.scale[i + 4] = static_cast<std::uint8_t>((nibbles & 15) | ((s >> 6) << 4));
    result.minimum[i + 4] = static_cast<std::uint8_t>((nibbles >> 4) | ((m >> 6) << 4));
  }
  return result;
}

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

inline BlockQ8_0 encode_q8_0(std::span<const float, 32> values) {
  float amax = 0;
  bool is_finite = true;
  for (const float x : values) {
    is_finite = is_finite && std::isfinite(x);
    amax = std::max(amax, std::fabs(x));
  }
  const f16 d(amax / 127.0f);
  const auto scale = static_cast<float>(d);
  require(is_finite && std::isfinite(scale), ErrorCode::kArgument, "quantize_q8_0",
          "values must be finite and at most 127 * 65504 in magnitude, got a block with maximum ",
          amax, is_finite ? "" : " and a NaN or infinity");
  BlockQ8_0 block{.d = d, .qs = {}};
  if (scale == 0) return block;
  for (std::size_t j = 0; j < values.size(); ++j) {
    // Only a scale rounded down among f16's subnormals can need the clamp.
    const float q = std::clamp(std::nearbyint(values[j] / scale), -127.0f, 127.0f);
    block.qs[j] = static_cast<std::int8_t>(q);
  }
  return block;
}

// The number of blocks, if `num_bytes` and `num_values` describe the same whole blocks.
inline std::size_t require_whole_blocks(TensorType type, std::size_t num_bytes,
                                        std::size_t num_values, std::string_view operation) {
  const TensorTypeInfo& format = info(type);
  const std::size_t num_blocks = num_bytes / format.block_bytes;
  require(num_bytes % format.block_bytes == 0 && num_values % format.block_size == 0 &&
              num_values / format.block_size == num_blocks,
          ErrorCode::kShape, operation, format.name, " needs ", format.block_bytes,
          " bytes for each ", format.block_size, " values, got ", num_bytes, " bytes and ",
          num_values, " values");
  return num_blocks;
}

}  // namespace detail

inline void dequantize(TensorType type, std::span<const std::byte> blocks,
                       std::span<float> values) {
  const std::size_t num_blocks =
      detail::require_whole_blocks(type, blocks.size(), values.size(), "dequantize");
  detail::dequantize_blocks(type, blocks.data(), num_blocks, values.data());
}

inline void quantize_q8_0(std::span<const float> values, std::span<std::byte> blocks) {
  const std::size_t num_blocks = detail::require_whole_blocks(TensorType::kQ8_0, blocks.size(),
                                                              values.size(), "quantize_q8_0");
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const detail::BlockQ8_0 block = detail::encode_q8_0(values.subspan(i * 32).first<32>());
    std::memcpy(blocks.data() + i * sizeof(block), &block, sizeof(block));
  }
}

inline void quantize(TensorType type, std::span<const float> values, std::span<std::byte> blocks) {
  if (type == TensorType::kQ8_0) return quantize_q8_0(values, blocks);
  detail::require(type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16,
                  ErrorCode::kUnsupported, "quantize", "type must be f32, f16, bf16 or q8_0, got ",
                  info(type).name);
  const std::size_t count =
      detail::require_whole_blocks(type, blocks.size(), values.size(), "quantize");
  if (type == TensorType::kF16) {
    detail::encode_halves<f16>(values.data(), count, blocks.data());
  } else if (type == TensorType::kBF16) {
    detail::encode_halves<bf16>(values.data(), count, blocks.data());
  } else if (count != 0) {
    std::memcpy(blocks.data(), values.data(), count * sizeof(float));
  }
}

}  // namespace kvick::inline v0_1
