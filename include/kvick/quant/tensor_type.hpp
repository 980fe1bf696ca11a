// SPDX-License-Identifier: MIT
// The element types of stored tensors: GGUF's type ids with the size of their blocks.
//
// A quantized tensor is a sequence of blocks along its inputs: `block_size` weights in
// `block_bytes` bytes. Blocks are packed without padding and are not aligned.
//
// Source    GGUF format, tensor types (ggml_type).
// Layer     quant.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// Values are the ids that stand in a GGUF file.
enum class TensorType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct TensorTypeInfo {
  TensorType type;
  std::string_view name;     ///< lower case, as tools spell it: "q4_k"
  std::uint32_t block_size;  ///< weights in a block
  std::uint32_t block_bytes;
};

/// Every supported type, ascending by id.
constexpr std::span<const TensorTypeInfo> tensor_types() noexcept;

/// What is known of the type with this id in a GGUF file; nothing for an unsupported id.
constexpr std::optional<TensorTypeInfo> find_tensor_type(std::uint32_t id) noexcept;

/// Sizes and name of a supported type; Error(kUnsupported) for a value that is none.
constexpr const TensorTypeInfo& info(TensorType type);

// ---- Implementation: nothing below is API ----

namespace detail {

inline constexpr TensorTypeInfo kTensorTypes[] = {
    {TensorType::kF32, "f32", 1, 4},       {TensorType::kF16, "f16", 1, 2},
    {TensorType::kQ4_0, "q4_0", 32, 18},   {TensorType::kQ4_1, "q4_1", 32, 20},
    {TensorType::kQ5_0, "q5_0", 32, 22},   {TensorType::kQ5_1, "q5_1", 32, 24},
    {TensorType::kQ8_0, "q8_0", 32, 34},   {TensorType::kQ4_K, "q4_k", 256, 144},
    {TensorType::kQ5_K, "q5_k", 256, 176}, {TensorType::kQ6_K, "q6_k", 256, 210},
    {TensorType::kBF16, "bf16", 1, 2},
};

}  // namespace detail

constexpr std::span<const TensorTypeInfo> tensor_types() noexcept { return detail::kTensorTypes; }

constexpr std::optional<TensorTypeInfo> find_tensor_type(std::uint32_t id) noexcept {
  for (const TensorTypeInfo& entry : detail::kTensorTypes) {
    if (static_cast<std::uint32_t>(entry.type) == id) return entry;
  }
  return std::nullopt;
}

constexpr const TensorTypeInfo& info(TensorType type) {
  for (const TensorTypeInfo& entry : detail::kTensorTypes) {
    if (entry.type == type) return entry;
  }
  throw Error(ErrorCode::kUnsupported, "info",
              detail::concat("the tensor type must be one of tensor_types(), got id ",
                             static_cast<std::uint32_t>(type)));
}

}  // namespace kvick::inline v0_1
