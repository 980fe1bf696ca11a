// SPDX-License-Identifier: MIT
// Read-only view of the keys or the values that one layer of a KVCache holds.
//
// Shapes    [batch][kv_heads][length][head_dim]. Rows of head_dim elements are adjacent; the rows
//           of different heads are farther apart than `length`, as a cache leaves room to grow.
// Errors    None: indices must be in range (asserted).
// Threads   Does not own. Valid until the cache is destroyed or moved; rows that are truncated
//           and written again show their new content.
// Layer     cache: may include core.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <span>
#include <type_traits>

#include "kvick/core/element_type.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// The rows of one head: [length][head_dim].
template <Element T>
class KVRows {
 public:
  KVRows(const T* data, Index length, Index head_dim, Index row_stride) noexcept
      : data_(data), length_(length), head_dim_(head_dim), row_stride_(row_stride) {}

  Index rows() const noexcept { return length_; }
  Index cols() const noexcept { return head_dim_; }

  std::span<const T> row(Index token) const noexcept {
    assert(token >= 0 && token < length_);
    return {data_ + token * row_stride_, static_cast<std::size_t>(head_dim_)};
  }

 private:
  const T* data_;
  Index length_;
  Index head_dim_;
  Index row_stride_;
};

template <Element T>
class KVView {
 public:
  using value_type = T;

  /// What head() gives: an Eigen matrix over floats, rows as spans over the other types.
  using Head = std::conditional_t<std::is_same_v<T, float>, Eigen::Map<const Matrix>, KVRows<T>>;

  /// `data` is the first row; rows are `row_stride` elements apart, and heads `head_rows` rows, in
  /// [batch][kv_heads] order. `scales` are those of integers, one per row.
  KVView(const T* data, std::array<Index, 4> shape, Index row_stride, Index head_rows,
         const float* scales = nullptr) noexcept
      : data_(data),
        shape_(shape),
        row_stride_(row_stride),
        head_rows_(head_rows),
        scales_(scales) {}

  /// {batch, kv_heads, length, head_dim}
  const std::array<Index, 4>& shape() const noexcept { return shape_; }

  T operator()(Index sequence, Index kv_head, Index token, Index dim) const noexcept {
    assert(token >= 0 && token < shape_[2] && dim >= 0 && dim < shape_[3]);
    return first_row(sequence, kv_head)[token * row_stride_ + dim];
  }

  /// What the elements of a row are to be multiplied by: 1 unless they are integers.
  float scale(Index sequence, Index kv_head, Index token) const noexcept {
    assert(token >= 0 && token < shape_[2]);
    if (scales_ == nullptr) return 1.0f;
    return scales_[(sequence * shape_[1] + kv_head) * head_rows_ + token];
  }

  /// The rows of one head: [length][head_dim].
  Head head(Index sequence, Index kv_head) const noexcept {
    if constexpr (std::is_same_v<T, float>) {
      return Head(first_row(sequence, kv_head), shape_[2], shape_[3]);
    } else {
      return Head(first_row(sequence, kv_head), shape_[2], shape_[3], row_stride_);
    }
  }

 private:
  const T* first_row(Index sequence, Index kv_head) const noexcept {
    assert(sequence >= 0 && sequence < shape_[0] && kv_head >= 0 && kv_head < shape_[1]);
    return data_ + (sequence * shape_[1] + kv_head) * head_rows_ * row_stride_;
  }

  const T* data_;
  std::array<Index, 4> shape_;
  Index row_stride_;
  Index head_rows_;
  const float* scales_;
};

/// Keys and values of one layer; unpack with `auto [keys, values] = cache.get(layer)`.
template <Element T>
struct KVPair {
  KVView<T> keys;
  KVView<T> values;
};

}  // namespace kvick::inline v0_1
