// SPDX-License-Identifier: MIT
// The block formats of GGUF, byte for byte: what decoders read and encoders write.
//
// Layouts   No padding, little-endian, at most 2-byte alignment. Stored blocks are not aligned, so
//           they are copied, never cast. Letters as in GGUF: d scale, m minimum, q integer.
// Source    GGUF format, tensor types (ggml_type).
// Layer     quant.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/version.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace kvick::inline v0_1 {

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

/// The inverse; scales and minimums are below 64.
constexpr void pack_k_scales(const KScales& k, std::uint8_t (&packed)[12]) noexcept {
  for (int i = 0; i < 4; ++i) {
    const unsigned low_scale = k.scale[i], low_minimum = k.minimum[i];
    const unsigned high_scale = k.scale[i + 4], high_minimum = k.minimum[i + 4];
    packed[i] = static_cast<std::uint8_t>(low_scale | ((high_scale >> 4) << 6));
    packed[i + 4] = static_cast<std::uint8_t>(low_minimum | ((high_minimum >> 4) << 6));
    packed[i + 8] = static_cast<std::uint8_t>((high_scale & 15) | ((high_minimum & 15) << 4));
  }
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

}  // namespace kvick::inline v0_1
