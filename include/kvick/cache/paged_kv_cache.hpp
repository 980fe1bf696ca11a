// SPDX-License-Identifier: MIT
// A cache of keys and values in blocks that sequences share: a BlockManager with the memory of its
// blocks.
//
//   kvick::PagedKVCache<kvick::f16> cache({.num_layers = 22, .num_sequences = 16, .num_kv_heads =
//   4,
//                                          .max_seq_len = 4096, .head_dim = 64, .num_blocks =
//                                          400});
//   const int cached = cache.attach_prefix(0, prompt);   // computed before, for any sequence
//
// The rest is as for every cache: reserve(), the forward pass, commit(). See BlockManager on
// sharing, prefixes, windows and eviction.
//
// Memory    Rows [layers][blocks][kv_heads][block_tokens], fixed at construction.
// Accuracy  Rows are those of the contiguous cache, and attention reads them in the same order, so
//           results are the same bits, whatever the size of blocks and whoever computed a block.
// Errors    Those of BlockManager and KVStorage; Error(kCapacity) if the memory is refused.
// Threads   write() and run() as KVStorage says; everything else alone. No call allocates after
//           construction.
// Layer     cache: may include core, kernels.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "kvick/cache/block_manager.hpp"
#include "kvick/cache/kv_storage.hpp"
#include "kvick/core/checked.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

struct PagedKVCacheOptions {
  int num_layers = 0;
  int num_sequences = 1;
  int num_kv_heads = 0;
  int max_seq_len = 0;  ///< positions per sequence
  int head_dim = 0;
  int num_blocks = 0;     ///< 0: as many as all sequences at full length take
  int block_tokens = 64;  ///< 16, 32 or 64
  bool reuses_prefixes = true;
  AttentionWindow window = {};
  bool touches_memory = false;  ///< all pages at construction, not when first written
};

/// The cache for an element type that is chosen at run time.
class PagedKVStorage : public KVStorage {
 public:
  PagedKVStorage(ElementType element_type, const PagedKVCacheOptions& options);

  /// Tables, free blocks and statistics.
  const BlockManager& blocks() const noexcept { return blocks_; }

  int num_blocks() const noexcept { return blocks_.num_blocks(); }
  int num_free_blocks() const noexcept { return blocks_.num_free_blocks(); }
  int num_blocks_for(int num_tokens) const noexcept { return blocks_.num_blocks_for(num_tokens); }

  int length(int sequence) const override { return blocks_.length(sequence); }
  int reserved(int sequence) const override { return blocks_.reserved(sequence); }

  PrefixHit find_prefix(std::span<const TokenId> prompt, const PrefixKey& key = {}) const noexcept {
    return blocks_.find_prefix(prompt, key);
  }
  int attach_prefix(int sequence, std::span<const TokenId> prompt, const PrefixKey& key = {}) {
    return blocks_.attach_prefix(sequence, prompt, key);
  }

  [[nodiscard]] bool reserve(int sequence, int num_tokens);
  void write(int layer, int sequence, int position, ConstMatrixRef keys,
             ConstMatrixRef values) override;
  void commit(int sequence, std::span<const TokenId> tokens) { blocks_.commit(sequence, tokens); }
  bool can_truncate(int sequence, int length) const {
    return blocks_.can_truncate(sequence, length);
  }
  void truncate(int sequence, int length) { blocks_.truncate(sequence, length); }
  void release(int sequence) { blocks_.release(sequence); }
  void fork(int from, int to) { blocks_.fork(from, to); }
  void forget_prefixes() noexcept { blocks_.forget_prefixes(); }

  /// Runs end with their block. The position must be one that the window keeps.
  KVRun run(int layer, int sequence, int kv_head, int position) const noexcept override;

  /// The same to restore rows that were stored once; of one sequence's own, [length, reserved).
  MutableKVRun mutable_run(int layer, int sequence, int kv_head, int position) noexcept;

  /// Bytes of keys and values together.
  std::size_t memory_bytes() const noexcept { return rows_.memory_bytes(); }

 private:
  /// A row, and how many of its sequence follow adjacent to it, itself included.
  struct Place {
    std::size_t row;
    int num_tokens;
  };

  std::size_t row(int layer, BlockId block, int kv_head) const noexcept;
  Place place(int layer, int sequence, int kv_head, int position) const noexcept;

  BlockManager blocks_;
  RowStore rows_;
};

/// T is float, f16, bf16 or std::int8_t.
template <Element T>
class PagedKVCache : public PagedKVStorage {
 public:
  explicit PagedKVCache(const PagedKVCacheOptions& options)
      : PagedKVStorage(element_type_of<T>, options) {}
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline KVCacheOptions storage_sizes(const PagedKVCacheOptions& options) {
  return {.num_layers = options.num_layers,
          .batch_size = options.num_sequences,
          .num_kv_heads = options.num_kv_heads,
          .max_seq_len = options.max_seq_len,
          .head_dim = options.head_dim};
}

/// Blocks for all sequences at full length, unless told otherwise.
inline int num_blocks(const PagedKVCacheOptions& options) {
  if (options.num_blocks != 0 || options.block_tokens < 1) return options.num_blocks;
  const std::int64_t per_sequence =
      (std::int64_t{options.max_seq_len} + options.block_tokens - 1) / options.block_tokens;
  const std::int64_t all = per_sequence * options.num_sequences;
  require(all <= std::numeric_limits<BlockId>::max(), ErrorCode::kCapacity, "PagedKVCache",
          "blocks must be fewer than 2^31, got ", all);
  return static_cast<int>(all);
}

inline BlockManagerOptions block_options(const PagedKVCacheOptions& options) {
  return {.num_blocks = num_blocks(options),
          .block_tokens = options.block_tokens,
          .num_sequences = options.num_sequences,
          .max_seq_len = options.max_seq_len,
          .reuses_prefixes = options.reuses_prefixes,
          .window = options.window};
}

inline RowStore allocate_blocks(ElementType type, const PagedKVCacheOptions& options) {
  const int blocks = num_blocks(options);
  const auto factor = [](int size) { return static_cast<std::uint64_t>(size); };
  try {
    const std::size_t num_rows =
        checked_product({factor(options.num_layers), factor(blocks), factor(options.num_kv_heads),
                         factor(options.block_tokens)},
                        "PagedKVCache");
    return RowStore(type, num_rows, options.head_dim, options.touches_memory);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCapacity) throw;
    throw Error(
        ErrorCode::kCapacity, "PagedKVCache",
        concat("keys and values must fit in memory, got ", options.num_layers, " layers * ", blocks,
               " blocks * ", options.num_kv_heads, " KV heads * ", options.block_tokens,
               " tokens * ", RowStore::bytes_per_row(type, options.head_dim), " bytes"));
  }
}

}  // namespace detail

inline PagedKVStorage::PagedKVStorage(ElementType element_type, const PagedKVCacheOptions& options)
    : KVStorage(element_type, detail::storage_sizes(options), "PagedKVCache", options.window),
      blocks_(detail::block_options(options)),
      rows_(detail::allocate_blocks(element_type, options)) {}

/// First row of a block in a layer, of the head.
inline std::size_t PagedKVStorage::row(int layer, BlockId block, int kv_head) const noexcept {
  // The whole product was checked when the memory was allocated.
  const Index head = (Index{layer} * blocks_.num_blocks() + block) * num_kv_heads() + kv_head;
  return static_cast<std::size_t>(head * blocks_.block_tokens());
}

inline bool PagedKVStorage::reserve(int sequence, int num_tokens) {
  std::optional<BlockCopy> copy;
  if (!blocks_.reserve(sequence, num_tokens, copy)) return false;
  if (!copy) return true;
  for (int layer = 0; layer < num_layers(); ++layer) {
    for (int head = 0; head < num_kv_heads(); ++head) {
      rows_.copy(row(layer, copy->from, head), row(layer, copy->to, head),
                 static_cast<std::size_t>(copy->num_tokens));
    }
  }
  return true;
}

inline void PagedKVStorage::write(int layer, int sequence, int position, ConstMatrixRef keys,
                                  ConstMatrixRef values) {
  check_write(layer, sequence, position, keys, values, "PagedKVCache::write");
  const ScopedFpEnvironment fp_environment;  // quantizing rounds
  const auto table = blocks_.table(sequence);
  for (int token = 0; token < static_cast<int>(keys.rows()); ++token) {
    const int at = position + token;
    const BlockId block = table[static_cast<std::size_t>(at / blocks_.block_tokens())];
    const auto offset = static_cast<std::size_t>(at % blocks_.block_tokens());
    const float* const key = keys.row(token).data();
    const float* const value = values.row(token).data();
    for (int head = 0; head < num_kv_heads(); ++head) {
      const Index column = Index{head} * head_dim();
      rows_.store(row(layer, block, head) + offset, key + column, value + column);
    }
  }
}

inline PagedKVStorage::Place PagedKVStorage::place(int layer, int sequence, int kv_head,
                                                   int position) const noexcept {
  assert(layer >= 0 && layer < num_layers() && kv_head >= 0 && kv_head < num_kv_heads());
  const int size = blocks_.block_tokens();
  const BlockId block = blocks_.table(sequence)[static_cast<std::size_t>(position / size)];
  assert(block != kNoBlock);
  const int offset = position % size;
  return {row(layer, block, kv_head) + static_cast<std::size_t>(offset),
          std::min(size - offset, blocks_.reserved(sequence) - position)};
}

inline KVRun PagedKVStorage::run(int layer, int sequence, int kv_head,
                                 int position) const noexcept {
  const Place at = place(layer, sequence, kv_head, position);
  return rows_.run(at.row, at.num_tokens);
}

inline MutableKVRun PagedKVStorage::mutable_run(int layer, int sequence, int kv_head,
                                                int position) noexcept {
  const Place at = place(layer, sequence, kv_head, position);
  return rows_.mutable_run(at.row, at.num_tokens);
}

}  // namespace kvick::inline v0_1
