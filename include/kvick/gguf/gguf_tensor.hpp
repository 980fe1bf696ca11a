// SPDX-License-Identifier: MIT
// One tensor of a GGUF file, and the rules every tensor keeps.
//
// Shapes    dims[0] is the fastest dimension (a linear layer's inputs), dims[1] its rows (outputs).
//           Rows follow each other without padding; a row is dims[0] / block_size blocks.
// Source    GGUF format, tensor infos and block sizes (ggml_type).
// Layer     gguf: may include core, quant.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvick/core/checked.hpp"
#include "kvick/core/error.hpp"
#include "kvick/gguf/byte_cursor.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace kvick::inline v0_1 {

/// A view of a tensor inside its GgufFile, valid as long as that. A file may align its data to as
/// little as one byte, and blocks are not aligned anyway: read elements with memcpy.
struct GgufTensor {
  std::string_view name;
  /// The type id in the file. Only a type for which `is_supported()` holds may go to `info()`.
  TensorType type = TensorType::kF32;
  std::array<std::uint64_t, 4> dims = {1, 1, 1, 1};  ///< all > 0, unused ones are 1
  int num_dims = 1;                                  ///< 1 to 4
  std::span<const std::byte> data;
  std::uint64_t offset = 0;  ///< of `data` in bytes from the start of its file
  int part = 0;              ///< index of the file among the parts of a split model

  /// Fits std::int64_t.
  std::uint64_t num_elements() const noexcept { return dims[0] * num_rows(); }
  std::uint64_t num_rows() const noexcept { return dims[1] * dims[2] * dims[3]; }
  std::uint64_t row_bytes() const noexcept { return data.size() / num_rows(); }
  /// Whether this library can compute with `type`; other known types can only be inspected and
  /// copied.
  bool is_supported() const noexcept;
  /// "q4_k", also for known types that are not supported.
  std::string_view type_name() const noexcept;
};

// ---- Implementation: nothing below is API ----

namespace detail {

struct TensorLayout {
  std::uint32_t id;
  std::string_view name;
  std::uint32_t block_size;
  std::uint32_t block_bytes;
};

/// Types whose size is known, so that files which use them can be checked and listed.
inline constexpr TensorLayout kInspectableTypes[] = {
    {9, "q8_1", 32, 36},      {10, "q2_k", 256, 84},    {11, "q3_k", 256, 110},
    {15, "q8_k", 256, 292},   {16, "iq2_xxs", 256, 66}, {17, "iq2_xs", 256, 74},
    {18, "iq3_xxs", 256, 98}, {19, "iq1_s", 256, 50},   {20, "iq4_nl", 32, 18},
    {21, "iq3_s", 256, 110},  {22, "iq2_s", 256, 82},   {23, "iq4_xs", 256, 136},
    {24, "i8", 1, 1},         {25, "i16", 1, 2},        {26, "i32", 1, 4},
    {27, "i64", 1, 8},        {28, "f64", 1, 8},        {29, "iq1_m", 256, 56},
    {34, "tq1_0", 256, 54},   {35, "tq2_0", 256, 66},   {39, "mxfp4", 32, 17},
    {40, "nvfp4", 64, 36},
};

constexpr std::optional<TensorLayout> find_tensor_layout(std::uint32_t id) noexcept {
  if (const auto known = find_tensor_type(id)) {
    return TensorLayout{id, known->name, known->block_size, known->block_bytes};
  }
  for (const TensorLayout& layout : kInspectableTypes) {
    if (layout.id == id) return layout;
  }
  return std::nullopt;
}

/// Ids that stood for types which the format has dropped (Q4_2, Q4_3 and repacked layouts).
constexpr bool is_removed_tensor_type(std::uint32_t id) noexcept {
  return id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38);
}

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr std::string_view kAlignmentKey = "general.alignment";
inline constexpr std::uint32_t kDefaultGgufAlignment = 32;
inline constexpr std::size_t kMaxTensorDims = 4;
/// ggml keeps names in 64 bytes with a NUL and refuses longer ones; so do we.
inline constexpr std::size_t kMaxTensorNameBytes = 63;

inline void check_gguf_alignment(const RuleContext& context, std::uint64_t alignment) {
  context.require(std::has_single_bit(alignment) && alignment <= UINT32_MAX,
                  "general.alignment must be a power of two in 32 bits, got ", alignment);
}

inline void check_tensor_name(const RuleContext& context, std::string_view name) {
  context.require(!name.empty() && name.size() <= kMaxTensorNameBytes, Item{"tensor", name},
                  " must have a name of 1 to ", kMaxTensorNameBytes, " bytes, got ", name.size());
}

inline void check_num_dims(const RuleContext& context, const Item& item, std::uint64_t num_dims) {
  context.require(num_dims >= 1 && num_dims <= kMaxTensorDims, item, " must have 1 to ",
                  kMaxTensorDims, " dimensions, got ", num_dims);
}

/// Bytes of a tensor's data by its type and dims, after checking those.
inline std::uint64_t checked_tensor_bytes(const RuleContext& context, const GgufTensor& tensor) {
  const Item item{"tensor", tensor.name};
  const auto id = static_cast<std::uint32_t>(tensor.type);
  context.require(!is_removed_tensor_type(id), item, " has type ", id,
                  ", which was removed from the format");
  const auto layout = find_tensor_layout(id);
  if (!layout) {
    context.fail(ErrorCode::kUnsupported, item, " has type ", id,
                 ", which this version does not know; known are 0 to 40");
  }

  std::uint64_t num_elements = 1;
  bool fits = true;
  for (const std::uint64_t dim : tensor.dims) {
    context.require(dim > 0, item, " must have dimensions > 0, got 0");
    fits = fits && try_multiply(num_elements, dim, num_elements);
  }
  std::uint64_t bytes = 0;
  fits = fits && num_elements <= static_cast<std::uint64_t>(INT64_MAX) &&
         try_multiply(num_elements / layout->block_size, layout->block_bytes, bytes);
  context.require(fits, item, " must have a size that fits in 64 bits, got dimensions ",
                  tensor.dims[0], " x ", tensor.dims[1], " x ", tensor.dims[2], " x ",
                  tensor.dims[3]);
  context.require(tensor.dims[0] % layout->block_size == 0, item, " of type ", layout->name,
                  " must have a first dimension that is a multiple of ", layout->block_size,
                  ", got ", tensor.dims[0]);
  return bytes;
}

}  // namespace detail

inline bool GgufTensor::is_supported() const noexcept {
  return find_tensor_type(static_cast<std::uint32_t>(type)).has_value();
}

inline std::string_view GgufTensor::type_name() const noexcept {
  const auto layout = detail::find_tensor_layout(static_cast<std::uint32_t>(type));
  return layout ? layout->name : "unknown";
}

}  // namespace kvick::inline v0_1
