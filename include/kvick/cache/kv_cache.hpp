// SPDX-License-Identifier: MIT
// The textbook cache of keys and values: update a layer with the rows of new tokens, get all rows.
//
//   kvick::KVCache<float> cache({.num_layers = 22, .batch_size = 4, .num_kv_heads = 4,
//                                .max_seq_len = 4096, .head_dim = 64});
//   cache.update(layer, k, v);                  // in every layer, in any order: one step
//   auto [keys, values] = cache.get(layer);     // everything so far, the new rows included
//
// A step gives every layer the same number of new tokens. All its layers write at the same offset,
// length(), which moves once: when the last layer has been updated.
//
// It is also a ContiguousKVCache, and may be driven per sequence (reserve, write, commit). The
// functions of this class need all sequences at one length; they say so when that is not given.
//
// Shapes    k and v: [batch][kv_heads][new_tokens][head_dim] floats.
// Accuracy  Rows are stored as T, rounded to nearest, ties to even; std::int8_t with a scale per
//           token and KV head, see RowStore.
// Errors    Error(kShape) for operands that do not fit, Error(kCapacity) when max_seq_len would be
//           passed, Error(kArgument) for the rest. A refused call changes nothing.
// Threads   One at a time. No call allocates after construction.
// Layer     cache: may include core, kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/kv_storage.hpp"
#include "kvick/cache/kv_view.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// T is float, f16, bf16 or std::int8_t.
template <Element T>
class KVCache : public ContiguousKVCache {
 public:
  explicit KVCache(const KVCacheOptions& options);

  /// Appends the rows of a step's new tokens to one layer. The first update of a step decides their
  /// number, every layer is updated once.
  void update(int layer, std::span<const float> k, std::span<const float> v);

  /// The same from Eigen: [batch * kv_heads * new_tokens, head_dim], or, for one new token,
  /// [batch, kv_heads * head_dim] as a projection yields it (a column vector counts as one row).
  template <class K, class V>
  void update(int layer, const Eigen::MatrixBase<K>& k, const Eigen::MatrixBase<V>& v);

  /// Views [batch][kv_heads][layer_length(layer)][head_dim].
  KVPair<T> get(int layer) const;

  /// Tokens of every sequence; does not count those of an unfinished step.
  int length() const;

  /// Tokens that get(layer) shows: length(), and the new ones if this layer has them already.
  int layer_length(int layer) const;

  /// Forgets all rows from `length` on, in all sequences, and an unfinished step with them:
  /// truncate(length()) abandons just the step. At most length().
  void truncate(int length);

  /// Empties all sequences and abandons an unfinished step, whatever their lengths.
  void clear();

  using ContiguousKVCache::length;    // (sequence)
  using ContiguousKVCache::truncate;  // (sequence, length)

 private:
  // The first float of a row [head_dim] of the input is at
  //   data + sequence * sequence_stride + kv_head * head_stride + token * token_stride.
  struct Rows {
    const float* data;
    Index sequence_stride;
    Index head_stride;
    Index token_stride;
    Index num_tokens;
  };

  static constexpr std::string_view kUpdate = "KVCache::update";

  Rows packed_rows(const float* data, Index num_rows, Index row_stride) const;
  Rows matrix_rows(const ConstMatrixRef& matrix) const;
  void update_rows(int layer, const Rows& k, const Rows& v);
  void check_update(int layer, Index num_tokens) const;
  int common_length(std::string_view operation) const;
  void end_step() noexcept;

  // The unfinished step; step_tokens_ is 0 when there is none.
  int step_start_ = 0;
  int step_tokens_ = 0;
  int num_updated_ = 0;
  std::vector<unsigned char> updated_;  // [layers]
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// A column vector as one row; any other matrix as it is.
template <class M>
decltype(auto) as_rows(const Eigen::MatrixBase<M>& matrix) {
  if constexpr (M::ColsAtCompileTime == 1) {
    return matrix.transpose();
  } else {
    return matrix.derived();
  }
}

}  // namespace detail

template <Element T>
KVCache<T>::KVCache(const KVCacheOptions& options)
    : ContiguousKVCache(element_type_of<T>, options),
      updated_(static_cast<std::size_t>(options.num_layers)) {}

template <Element T>
void KVCache<T>::update(int layer, std::span<const float> k, std::span<const float> v) {
  const std::size_t token_size = static_cast<std::size_t>(num_sequences()) *
                                 static_cast<std::size_t>(num_kv_heads()) *
                                 static_cast<std::size_t>(head_dim());
  detail::require(k.size() == v.size() && k.size() % token_size == 0, ErrorCode::kShape, kUpdate,
                  "k and v must hold new_tokens * ", num_sequences(), " sequences * ",
                  num_kv_heads(), " KV heads * ", head_dim(), " floats, got ", k.size(), " and ",
                  v.size());
  const auto num_rows = static_cast<Index>(k.size()) / head_dim();
  update_rows(layer, packed_rows(k.data(), num_rows, head_dim()),
              packed_rows(v.data(), num_rows, head_dim()));
}

template <Element T>
template <class K, class V>
void KVCache<T>::update(int layer, const Eigen::MatrixBase<K>& k, const Eigen::MatrixBase<V>& v) {
  const auto& k_rows = detail::as_rows(k);  // the views below must not outlive an expression
  const auto& v_rows = detail::as_rows(v);
  const ConstMatrixRef k_view(k_rows);
  const ConstMatrixRef v_view(v_rows);
  update_rows(layer, matrix_rows(k_view), matrix_rows(v_view));
}

/// Rows in the order [batch][kv_heads][new_tokens].
template <Element T>
auto KVCache<T>::packed_rows(const float* data, Index num_rows, Index row_stride) const -> Rows {
  const Index num_heads = Index{num_sequences()} * num_kv_heads();
  const Index num_tokens = num_rows / num_heads;
  const Index head_stride = num_tokens * row_stride;
  return {data, num_kv_heads() * head_stride, head_stride, row_stride, num_tokens};
}

template <Element T>
auto KVCache<T>::matrix_rows(const ConstMatrixRef& matrix) const -> Rows {
  const Index num_heads = Index{num_sequences()} * num_kv_heads();
  const Index width = Index{num_kv_heads()} * head_dim();
  if (matrix.cols() == head_dim() && matrix.rows() % num_heads == 0) {
    return packed_rows(matrix.data(), matrix.rows(), matrix.outerStride());
  }
  detail::require(matrix.rows() == num_sequences() && matrix.cols() == width, ErrorCode::kShape,
                  kUpdate, "k and v must be [new_tokens * ", num_heads, ", ", head_dim(),
                  "] or, for one new token, [", num_sequences(), ", ", width, "], got [",
                  matrix.rows(), ", ", matrix.cols(), "]");
  return {matrix.data(), matrix.outerStride(), head_dim(), 0, 1};
}

template <Element T>
void KVCache<T>::update_rows(int layer, const Rows& k, const Rows& v) {
  detail::require(k.num_tokens == v.num_tokens, ErrorCode::kShape, kUpdate,
                  "k and v must hold the same new tokens, got ", k.num_tokens, " and ",
                  v.num_tokens);
  check_update(layer, k.num_tokens);
  if (step_tokens_ == 0) {
    step_start_ = length();
    step_tokens_ = static_cast<int>(k.num_tokens);
    // Cannot fail: check_update() has seen that there is room.
    for (int s = 0; s < num_sequences(); ++s) std::ignore = reserve(s, step_tokens_);
  }
  const ScopedFpEnvironment fp_environment;  // quantizing rounds
  for (int s = 0; s < num_sequences(); ++s) {
    for (int h = 0; h < num_kv_heads(); ++h) {
      const float* const key = k.data + s * k.sequence_stride + h * k.head_stride;
      const float* const value = v.data + s * v.sequence_stride + h * v.head_stride;
      for (int t = 0; t < step_tokens_; ++t) {
        rows().store(row(layer, s, h, step_start_ + t), key + t * k.token_stride,
                     value + t * v.token_stride);
      }
    }
  }
  updated_[static_cast<std::size_t>(layer)] = 1;
  if (++num_updated_ == num_layers()) {
    for (int s = 0; s < num_sequences(); ++s) advance(s, step_tokens_);
    end_step();
  }
}

template <Element T>
void KVCache<T>::check_update(int layer, Index num_tokens) const {
  check_layer(layer, kUpdate);
  detail::require(num_tokens >= 1, ErrorCode::kShape, kUpdate,
                  "k and v must hold at least one new token, got none");
  const int start = common_length(kUpdate);
  detail::require(num_tokens <= max_seq_len() - start, ErrorCode::kCapacity, kUpdate, "length ",
                  start, " + ", num_tokens, " new tokens exceeds max_seq_len ", max_seq_len());
  if (step_tokens_ == 0) return;

  detail::require(num_tokens == step_tokens_, ErrorCode::kShape, kUpdate,
                  "every layer of a step must get the same number of new tokens, got ", num_tokens,
                  " in layer ", layer, " after ", step_tokens_);
  detail::require(updated_[static_cast<std::size_t>(layer)] == 0, ErrorCode::kArgument, kUpdate,
                  "every layer must be updated once per step, got layer ", layer, " again with ",
                  num_layers() - num_updated_, " layers to go");
}

template <Element T>
KVPair<T> KVCache<T>::get(int layer) const {
  constexpr std::string_view kOperation = "KVCache::get";
  check_layer(layer, kOperation);
  common_length(kOperation);
  const std::array<Index, 4> shape{num_sequences(), num_kv_heads(), layer_length(layer),
                                   head_dim()};
  const KVRun all = rows().run(row(layer, 0, 0, 0), max_seq_len());
  const auto row_stride = all.stride_bytes / static_cast<std::ptrdiff_t>(sizeof(T));
  const auto view = [&](const std::byte* data, const float* scales) {
    return KVView<T>(reinterpret_cast<const T*>(data), shape, row_stride, max_seq_len(), scales);
  };
  return {.keys = view(all.keys, all.key_scales), .values = view(all.values, all.value_scales)};
}

template <Element T>
int KVCache<T>::length() const {
  return common_length("KVCache::length");
}

template <Element T>
int KVCache<T>::layer_length(int layer) const {
  constexpr std::string_view kOperation = "KVCache::layer_length";
  check_layer(layer, kOperation);
  const bool is_updated = updated_[static_cast<std::size_t>(layer)] != 0;
  return common_length(kOperation) + (is_updated ? step_tokens_ : 0);
}

template <Element T>
void KVCache<T>::truncate(int length) {
  constexpr std::string_view kOperation = "KVCache::truncate";
  for (int s = 0; s < num_sequences(); ++s) {
    detail::require(length >= 0 && length <= this->length(s), ErrorCode::kArgument, kOperation,
                    "length must be in [0, ", this->length(s), "] of sequence ", s, ", got ",
                    length);
  }
  for (int s = 0; s < num_sequences(); ++s) truncate(s, length);
  end_step();
}

template <Element T>
void KVCache<T>::clear() {
  truncate(0);
}

/// The length of all sequences, which an unfinished step must find as it left them.
template <Element T>
int KVCache<T>::common_length(std::string_view operation) const {
  const int common = step_tokens_ == 0 ? length(0) : step_start_;
  const int end = common + step_tokens_;
  for (int s = 0; s < num_sequences(); ++s) {
    if (step_tokens_ == 0) {
      detail::require(length(s) == common, ErrorCode::kArgument, operation,
                      "all sequences must have one length, got ", common, " in sequence 0 and ",
                      length(s), " in sequence ", s);
    } else {
      detail::require(length(s) == common && reserved(s) >= end, ErrorCode::kArgument, operation,
                      "sequence ", s, " must stay at length ", common, " with positions below ",
                      end, " reserved until the step is complete or abandoned (truncate), got ",
                      length(s), " and ", reserved(s));
    }
  }
  return common;
}

template <Element T>
void KVCache<T>::end_step() noexcept {
  step_start_ = step_tokens_ = num_updated_ = 0;
  std::fill(updated_.begin(), updated_.end(), static_cast<unsigned char>(0));
}

}  // namespace kvick::inline v0_1
