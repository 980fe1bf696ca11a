// SPDX-License-Identifier: MIT
// A preallocated cache of keys and values in which every sequence owns room for max_seq_len tokens.
//
// The driver of a model calls, per step: reserve() for each sequence, the forward pass, commit()
// for each sequence. Room for speculated tokens is reserved alike; only the accepted ones are
// committed, and truncate() takes back what was committed too early.
//
// Memory    Rows [layers][sequences][kv_heads][max_seq_len]. A head's rows are adjacent, so one run
//           covers a whole sequence.
// Errors    Error(kArgument) for indices and lengths out of range, Error(kCapacity) for a cache
//           that does not fit in memory or a commit beyond what is reserved; the state is then
//           unchanged. Too little room for a reservation is not an error: reserve() returns false.
// Threads   write() and run() as KVStorage says; everything else alone. No call allocates after
//           construction.
// Layer     cache: may include core, kernels.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/cache/kv_storage.hpp"
#include "kvick/core/checked.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

class ContiguousKVCache : public KVStorage {
 public:
  ContiguousKVCache(ElementType element_type, const KVCacheOptions& options);

  int length(int sequence) const override;
  int reserved(int sequence) const override;

  /// Makes room for `num_tokens` beyond the committed ones. Without that much room it returns false
  /// and changes nothing. An earlier, larger reservation stays.
  [[nodiscard]] bool reserve(int sequence, int num_tokens);

  void write(int layer, int sequence, int position, ConstMatrixRef keys,
             ConstMatrixRef values) override;

  /// Lets the length grow by `tokens`, whose rows must be reserved and written in every layer. This
  /// layout keeps no tokens; layouts that share prefixes learn them here.
  void commit(int sequence, std::span<const TokenId> tokens);

  /// Forgets all rows from `length` on, and the reservation. Takes constant time.
  void truncate(int sequence, int length);

  /// Empties a sequence.
  void release(int sequence);

  /// Makes the empty sequence `to` continue from the committed tokens of `from`, by copying them.
  void fork(int from, int to);

  KVRun run(int layer, int sequence, int kv_head, int position) const noexcept override;

  /// The same to restore rows that were stored once; of one sequence's own, [length, reserved).
  MutableKVRun mutable_run(int layer, int sequence, int kv_head, int position) noexcept;

  /// Bytes of keys and values together.
  std::size_t memory_bytes() const noexcept { return rows_.memory_bytes(); }

 protected:
  /// Number of a row among all.
  std::size_t row(int layer, int sequence, int kv_head, int position) const noexcept;
  const RowStore& rows() const noexcept { return rows_; }
  RowStore& rows() noexcept { return rows_; }

  /// The unchecked core of commit().
  void advance(int sequence, int num_tokens) noexcept;

 private:
  struct Extent {
    int length = 0;
    int reserved = 0;
  };

  const Extent& extent(int sequence, std::string_view operation) const;
  Extent& extent(int sequence, std::string_view operation);

  RowStore rows_;
  std::vector<Extent> extents_;  // [sequences]
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// The error of a cache that is too large, with the arithmetic behind its size.
inline Error cache_too_large(ElementType type, const KVCacheOptions& sizes) {
  return Error(ErrorCode::kCapacity, "KVCache",
               concat("keys and values must fit in memory, got 2 * ", sizes.num_layers,
                      " layers * ", sizes.batch_size, " sequences * ", sizes.num_kv_heads,
                      " KV heads * ", sizes.max_seq_len, " positions * ", sizes.head_dim,
                      " elements * ", size_bytes(type), " bytes"));
}

inline RowStore allocate_rows(ElementType type, const KVCacheOptions& sizes) {
  try {
    const auto factor = [](int size) { return static_cast<std::uint64_t>(size); };
    const std::size_t num_rows =
        checked_product({factor(sizes.num_layers), factor(sizes.batch_size),
                         factor(sizes.num_kv_heads), factor(sizes.max_seq_len)},
                        "KVCache");
    return RowStore(type, num_rows, sizes.head_dim, sizes.touches_memory);
  } catch (const Error& error) {  // overflow or refusal: both name less than the user needs
    if (error.code() != ErrorCode::kCapacity) throw;
    throw cache_too_large(type, sizes);
  }
}

}  // namespace detail

inline ContiguousKVCache::ContiguousKVCache(ElementType element_type, const KVCacheOptions& options)
    : KVStorage(element_type, options, "KVCache"),
      rows_(detail::allocate_rows(element_type, options)),
      extents_(static_cast<std::size_t>(options.batch_size)) {}

inline const ContiguousKVCache::Extent& ContiguousKVCache::extent(
    int sequence, std::string_view operation) const {
  check_sequence(sequence, operation);
  return extents_[static_cast<std::size_t>(sequence)];
}

inline ContiguousKVCache::Extent& ContiguousKVCache::extent(int sequence,
                                                            std::string_view operation) {
  check_sequence(sequence, operation);
  return extents_[static_cast<std::size_t>(sequence)];
}

inline int ContiguousKVCache::length(int sequence) const {
  return extent(sequence, "ContiguousKVCache::length").length;
}

inline int ContiguousKVCache::reserved(int sequence) const {
  return extent(sequence, "ContiguousKVCache::reserved").reserved;
}

inline bool ContiguousKVCache::reserve(int sequence, int num_tokens) {
  constexpr std::string_view kOperation = "ContiguousKVCache::reserve";
  Extent& rows = extent(sequence, kOperation);
  detail::require(num_tokens >= 0, ErrorCode::kArgument, kOperation,
                  "num_tokens must be at least 0, got ", num_tokens);
  if (num_tokens > max_seq_len() - rows.length) return false;
  rows.reserved = std::max(rows.reserved, rows.length + num_tokens);
  return true;
}

inline void ContiguousKVCache::write(int layer, int sequence, int position, ConstMatrixRef keys,
                                     ConstMatrixRef values) {
  check_write(layer, sequence, position, keys, values, "ContiguousKVCache::write");
  const ScopedFpEnvironment fp_environment;  // quantizing rounds
  for (int token = 0; token < static_cast<int>(keys.rows()); ++token) {
    const float* const key = keys.row(token).data();
    const float* const value = values.row(token).data();
    for (int head = 0; head < num_kv_heads(); ++head) {
      const Index column = Index{head} * head_dim();
      rows_.store(row(layer, sequence, head, position + token), key + column, value + column);
    }
  }
}

inline void ContiguousKVCache::commit(int sequence, std::span<const TokenId> tokens) {
  constexpr std::string_view kOperation = "ContiguousKVCache::commit";
  const Extent& rows = extent(sequence, kOperation);
  const int room = rows.reserved - rows.length;
  detail::require(tokens.size() <= static_cast<std::size_t>(room), ErrorCode::kCapacity, kOperation,
                  "tokens must be reserved before, got ", tokens.size(), " with ", room,
                  " reserved in sequence ", sequence);
  advance(sequence, static_cast<int>(tokens.size()));
}

inline void ContiguousKVCache::truncate(int sequence, int length) {
  constexpr std::string_view kOperation = "ContiguousKVCache::truncate";
  Extent& rows = extent(sequence, kOperation);
  detail::require(length >= 0 && length <= rows.length, ErrorCode::kArgument, kOperation,
                  "length must be in [0, ", rows.length, "] of sequence ", sequence, ", got ",
                  length);
  rows = {.length = length, .reserved = length};
}

inline void ContiguousKVCache::release(int sequence) {
  extent(sequence, "ContiguousKVCache::release") = {};
}

inline void ContiguousKVCache::fork(int from, int to) {
  constexpr std::string_view kOperation = "ContiguousKVCache::fork";
  const Extent& source = extent(from, kOperation);
  Extent& target = extent(to, kOperation);
  detail::require(target.reserved == 0, ErrorCode::kArgument, kOperation, "sequence ", to,
                  " must be empty, got ", target.length, " tokens and ",
                  target.reserved - target.length, " reserved");
  for (int layer = 0; layer < num_layers(); ++layer) {
    for (int head = 0; head < num_kv_heads(); ++head) {
      rows_.copy(row(layer, from, head, 0), row(layer, to, head, 0),
                 static_cast<std::size_t>(source.length));
    }
  }
  target = {.length = source.length, .reserved = source.length};
}

inline KVRun ContiguousKVCache::run(int layer, int sequence, int kv_head,
                                    int position) const noexcept {
  assert(layer >= 0 && layer < num_layers() && kv_head >= 0 && kv_head < num_kv_heads());
  assert(sequence >= 0 && sequence < num_sequences());
  const Extent& extent = extents_[static_cast<std::size_t>(sequence)];
  assert(position >= 0 && position < extent.reserved);
  return rows_.run(row(layer, sequence, kv_head, position), extent.reserved - position);
}

inline MutableKVRun ContiguousKVCache::mutable_run(int layer, int sequence, int kv_head,
                                                   int position) noexcept {
  const int num_tokens = run(layer, sequence, kv_head, position).num_tokens;
  return rows_.mutable_run(row(layer, sequence, kv_head, position), num_tokens);
}

inline std::size_t ContiguousKVCache::row(int layer, int sequence, int kv_head,
                                          int position) const noexcept {
  // The whole product was checked when the memory was allocated.
  const auto head = (Index{layer} * num_sequences() + sequence) * num_kv_heads() + kv_head;
  return static_cast<std::size_t>(head * max_seq_len() + position);
}

inline void ContiguousKVCache::advance(int sequence, int num_tokens) noexcept {
  extents_[static_cast<std::size_t>(sequence)].length += num_tokens;
}

}  // namespace kvick::inline v0_1
