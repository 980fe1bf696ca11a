// SPDX-License-Identifier: MIT
// Conversions between the element types of caches and the f32 tiles of attention, in plain C++: the
// definition that every other implementation must equal.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kvick/core/element_type.hpp"
#include "kvick/core/half.hpp"
#include "kvick/kernels/contract.hpp"

namespace kvick::inline v0_1::detail::portable {

template <class T>
void transpose_keys(const ElementRows& keys, float* lanes) noexcept {
  for (int j = 0; j < keys.num_rows; ++j) {
    const auto* const row = reinterpret_cast<const T*>(keys.data + j * keys.stride_bytes);
    for (int d = 0; d < keys.head_dim; ++d) {
      lanes[d * kAttentionTile + j] = static_cast<float>(row[d]);
    }
  }
}

inline void transpose_groups(const ElementRows& keys, std::byte* lanes) noexcept {
  for (int j = 0; j < keys.num_rows; ++j) {
    const std::byte* const row = keys.data + j * keys.stride_bytes;
    for (int g = 0; g < num_int8_groups(keys.head_dim); ++g) {
      std::memcpy(lanes + (g * kAttentionTile + j) * kInt8Group, row + g * kInt8Group, kInt8Group);
    }
  }
}

inline void load_keys(const ElementRows& keys, float* lanes) noexcept {
  switch (keys.type) {
    case ElementType::kF32: return transpose_keys<float>(keys, lanes);
    case ElementType::kF16: return transpose_keys<f16>(keys, lanes);
    case ElementType::kBF16: return transpose_keys<bf16>(keys, lanes);
    case ElementType::kInt8: return transpose_groups(keys, reinterpret_cast<std::byte*>(lanes));
  }
}

inline void load_values(const ElementRows& rows, float* values) noexcept {
  const int padded = padded_head_dim(rows.head_dim);
  for (int j = 0; j < rows.num_rows; ++j, values += padded) {
    load_elements(rows.type, rows.data + j * rows.stride_bytes, rows.head_dim, values);
    if (rows.type == ElementType::kInt8) {
      for (int d = 0; d < rows.head_dim; ++d) values[d] *= rows.scales[j];
    }
    std::fill(values + rows.head_dim, values + padded, 0.0f);
  }
}

template <class T>
void store_as(const float* from, Index count, std::byte* to) noexcept {
  T* const elements = reinterpret_cast<T*>(to);
  for (Index i = 0; i < count; ++i) elements[i] = T(from[i]);
}

inline void store_elements(ElementType type, const float* from, Index count,
                           std::byte* to) noexcept {
  switch (type) {
    case ElementType::kF32: return store_as<float>(from, count, to);
    case ElementType::kF16: return store_as<f16>(from, count, to);
    case ElementType::kBF16: return store_as<bf16>(from, count, to);
    case ElementType::kInt8: return;  // excluded by the contract
  }
}

}  // namespace kvick::inline v0_1::detail::portable
