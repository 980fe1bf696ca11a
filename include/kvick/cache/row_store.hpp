// SPDX-License-Identifier: MIT
// The memory of a cache: one key and one value per row, as elements of some type.
//
// Rows of integers have a scale each: row r is about scale[r] * elements, with scale = max |x| /
// 127 and elements = round_to_even(x * (127 / max |x|)), or zeros if max |x| < 2^-100. A row with a
// NaN or an infinity gets scale NaN and zeros.
//
// Memory    Exactly bytes_per_row() times the rows, in up to four buffers. Large buffers are mapped
//           as huge pages that are zero and take memory when first touched, or at construction if
//           so asked: then no page is missing later.
// Errors    Error(kUnsupported) for integers with heads above kMaxInt8HeadDim; otherwise those of
//           AlignedBuffer. Rows are not checked.
// Threads   Different rows may be stored at once.
// Layer     cache: may include core, kernels.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/checked.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/kernels/kernel_table.hpp"

namespace kvick::inline v0_1 {

/// Consecutive rows of one head, `stride_bytes` apart; elements of a row are adjacent.
struct KVRun {
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  std::ptrdiff_t stride_bytes = 0;
  int num_tokens = 0;
  const float* key_scales = nullptr;  ///< one per token; null where elements have no scales
  const float* value_scales = nullptr;
};

/// The same for who restores rows as they were stored; rows are adjacent.
struct MutableKVRun {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  int num_tokens = 0;
  float* key_scales = nullptr;
  float* value_scales = nullptr;
};

/// Longest head of an int8 cache.
inline constexpr int kMaxInt8HeadDim = 1024;

/// Bytes from one row of elements to the next: integers are padded to whole groups of four.
constexpr std::size_t element_row_bytes(ElementType type, int head_dim) noexcept {
  if (type == ElementType::kInt8) {
    return static_cast<std::size_t>(num_int8_groups(head_dim)) * kInt8Group;
  }
  return static_cast<std::size_t>(head_dim) * size_bytes(type);
}

class RowStore {
 public:
  RowStore(ElementType type, std::size_t num_rows, int head_dim, bool touches_memory);

  /// Of a key and a value together, with their scales.
  static std::size_t bytes_per_row(ElementType type, int head_dim) noexcept {
    return 2 *
           (element_row_bytes(type, head_dim) + (type == ElementType::kInt8 ? sizeof(float) : 0));
  }

  std::size_t memory_bytes() const noexcept;

  /// Converts and stores one row from floats [head_dim].
  void store(std::size_t row, const float* key, const float* value) noexcept;

  KVRun run(std::size_t row, int num_tokens) const noexcept;
  MutableKVRun mutable_run(std::size_t row, int num_tokens) noexcept;

  void copy(std::size_t from, std::size_t to, std::size_t num_rows) noexcept;

 private:
  void store_half(const float* from, std::byte* to, float* scale) noexcept;

  ElementType type_;
  int head_dim_;
  std::size_t row_bytes_;
  const KernelTable* kernels_;  // every ISA stores the same bits, so the fastest one serves
  AlignedBuffer<std::byte> keys_;
  AlignedBuffer<std::byte> values_;
  AlignedBuffer<float> key_scales_;
  AlignedBuffer<float> value_scales_;
};

// ---- Implementation: nothing below is API ----

inline RowStore::RowStore(ElementType type, std::size_t num_rows, int head_dim, bool touches_memory)
    : type_(type),
      head_dim_(head_dim),
      row_bytes_(element_row_bytes(type, head_dim)),
      kernels_(&kernel_table(best_isa())) {
  const bool has_scales = type == ElementType::kInt8;
  detail::require(!has_scales || head_dim <= kMaxInt8HeadDim, ErrorCode::kUnsupported, "KVCache",
                  "head_dim of an int8 cache must be at most ", kMaxInt8HeadDim, ", got ",
                  head_dim);
  const std::size_t num_bytes = checked_product({num_rows, row_bytes_}, "KVCache");
  keys_ = AlignedBuffer<std::byte>(num_bytes);
  values_ = AlignedBuffer<std::byte>(num_bytes);
  if (has_scales) {
    key_scales_ = AlignedBuffer<float>(num_rows);
    value_scales_ = AlignedBuffer<float>(num_rows);
  }
  if (!touches_memory) return;
  std::fill(keys_.begin(), keys_.end(), std::byte{0});
  std::fill(values_.begin(), values_.end(), std::byte{0});
  std::fill(key_scales_.begin(), key_scales_.end(), 0.0f);
  std::fill(value_scales_.begin(), value_scales_.end(), 0.0f);
}

inline std::size_t RowStore::memory_bytes() const noexcept {
  return keys_.size_bytes() + values_.size_bytes() + key_scales_.size_bytes() +
         value_scales_.size_bytes();
}

inline void RowStore::store(std::size_t row, const float* key, const float* value) noexcept {
  const bool has_scales = type_ == ElementType::kInt8;
  const std::size_t offset = row * row_bytes_;
  store_half(key, keys_.data() + offset, has_scales ? key_scales_.data() + row : nullptr);
  store_half(value, values_.data() + offset, has_scales ? value_scales_.data() + row : nullptr);
}

inline void RowStore::store_half(const float* from, std::byte* to, float* scale) noexcept {
  if (scale == nullptr) {
    kernels_->store_elements(type_, from, head_dim_, to);
    return;
  }
  QuantizedGroup groups[kMaxInt8HeadDim / kGroupSize];
  *scale = kernels_->quantize_row(from, head_dim_, groups).scale;
  const QuantizedGroup* group = groups;
  for (int left = head_dim_; left > 0; left -= kGroupSize, to += kGroupSize, ++group) {
    std::memcpy(to, group->values, static_cast<std::size_t>(std::min(left, kGroupSize)));
  }
}

inline KVRun RowStore::run(std::size_t row, int num_tokens) const noexcept {
  const std::size_t offset = row * row_bytes_;
  const bool has_scales = type_ == ElementType::kInt8;
  return {.keys = keys_.data() + offset,
          .values = values_.data() + offset,
          .stride_bytes = static_cast<std::ptrdiff_t>(row_bytes_),
          .num_tokens = num_tokens,
          .key_scales = has_scales ? key_scales_.data() + row : nullptr,
          .value_scales = has_scales ? value_scales_.data() + row : nullptr};
}

inline MutableKVRun RowStore::mutable_run(std::size_t row, int num_tokens) noexcept {
  const std::size_t offset = row * row_bytes_;
  const bool has_scales = type_ == ElementType::kInt8;
  return {.keys = keys_.data() + offset,
          .values = values_.data() + offset,
          .num_tokens = num_tokens,
          .key_scales = has_scales ? key_scales_.data() + row : nullptr,
          .value_scales = has_scales ? value_scales_.data() + row : nullptr};
}

inline void RowStore::copy(std::size_t from, std::size_t to, std::size_t num_rows) noexcept {
  if (num_rows == 0) return;
  const auto copy_rows = [&](auto* data, std::size_t row_size) {
    std::memcpy(data + to * row_size, data + from * row_size, num_rows * row_size * sizeof(*data));
  };
  copy_rows(keys_.data(), row_bytes_);
  copy_rows(values_.data(), row_bytes_);
  if (type_ != ElementType::kInt8) return;
  copy_rows(key_scales_.data(), 1);
  copy_rows(value_scales_.data(), 1);
}

}  // namespace kvick::inline v0_1
