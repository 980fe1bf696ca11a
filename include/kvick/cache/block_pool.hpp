// SPDX-License-Identifier: MIT
// A fixed pool of cache blocks: who holds each, which are free, and which full ones can be found
// again by the tokens they were computed from. No tensors.
//
// A block is held by any number of tables (its reference count). Without holder it is free. A free
// block that was published stays findable until it is taken for something else: blocks without
// content go first, then published ones, least recently released first.
//
// Prefixes  Keys and values at a position depend on all tokens up to it, so a block is named by a
//           *node*: a number for (node of the block before, key, tokens of this block). Numbers are
//           never given twice, and a node is only found by comparing all three, so equal nodes
//           prove equal prefixes by induction. The hash merely says where to look.
// Errors    None: indices and counts are the caller's promise (asserted).
// Threads   One at a time. No call allocates after construction.
// Layer     cache: may include core.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

using BlockId = std::int32_t;
inline constexpr BlockId kNoBlock = -1;

/// What keys and values depend on beside the tokens. Prefixes are shared within equal keys only;
/// the two kinds never stand for one another.
struct PrefixKey {
  std::uint64_t adapter = 0;  ///< of the weights in use; 0: none
  std::uint64_t salt = 0;     ///< separates users who must not learn of each other; 0: none

  friend bool operator==(const PrefixKey&, const PrefixKey&) = default;
};

using PrefixNode = std::uint64_t;
inline constexpr PrefixNode kNoNode = 0;    ///< a block that is not full, or whose past is unknown
inline constexpr PrefixNode kRootNode = 1;  ///< before the first block

class BlockPool {
 public:
  BlockPool(int num_blocks, int block_tokens);

  int num_blocks() const noexcept { return static_cast<int>(blocks_.size()); }
  int block_tokens() const noexcept { return block_tokens_; }
  /// Blocks without holder: those that allocate() can give.
  int num_free() const noexcept { return empty_.size + cached_.size; }
  /// Of those, the published ones.
  int num_cached() const noexcept { return cached_.size; }
  /// Blocks with more than one holder.
  int num_shared() const noexcept { return num_shared_; }
  /// Published blocks that gave way to new content so far.
  std::uint64_t num_evictions() const noexcept { return num_evictions_; }

  int ref_count(BlockId block) const noexcept { return at(block).ref_count; }
  bool is_published(BlockId block) const noexcept { return at(block).is_published; }
  PrefixNode node(BlockId block) const noexcept { return at(block).node; }
  /// What record() last stored; a full block's tokens if it has a node.
  std::span<const TokenId> tokens(BlockId block) const noexcept;

  /// A block with one holder and no content. Requires num_free() > 0.
  BlockId allocate() noexcept;
  /// One more holder; of a free block, the first.
  void acquire(BlockId block) noexcept;
  /// One holder less. The last one frees the block.
  void release(BlockId block) noexcept;

  /// Tokens of the positions from `offset` on. A block with a node keeps it only while they are
  /// those that it had.
  void record(BlockId block, int offset, std::span<const TokenId> tokens) noexcept;

  /// Copies what is known of the tokens of `from`, not who holds it or whether it can be found.
  void copy_tokens(BlockId from, BlockId to) noexcept;

  /// Names a full block, which continues `parent`, and lets find() see it unless an equal one is
  /// seen already. Without a parent it does nothing.
  void publish(BlockId block, PrefixNode parent, const PrefixKey& key) noexcept;

  /// Hides the block from find(): it is about to be written.
  void withdraw(BlockId block) noexcept;

  /// The published block with these tokens (block_tokens() of them) after `parent`, or kNoBlock.
  BlockId find(PrefixNode parent, const PrefixKey& key,
               std::span<const TokenId> tokens) const noexcept;

  /// Hides all blocks and takes their nodes: what they hold is no longer valid.
  void forget_nodes() noexcept;

 private:
  struct Block {
    int ref_count = 0;
    bool is_published = false;
    BlockId previous = kNoBlock, next = kNoBlock;  // in empty_ or cached_
    BlockId next_in_bucket = kNoBlock;
    PrefixNode node = kNoNode;
    PrefixNode parent = kNoNode;
    PrefixKey key;
  };

  /// Free blocks in the order in which they will be taken.
  struct List {
    BlockId first = kNoBlock, last = kNoBlock;
    int size = 0;
  };

  Block& at(BlockId block) noexcept;
  const Block& at(BlockId block) const noexcept;
  List& list_of(const Block& block) noexcept { return block.is_published ? cached_ : empty_; }
  void append(List& list, BlockId id) noexcept;
  void unlink(List& list, BlockId id) noexcept;
  std::span<TokenId> stored_tokens(BlockId block) noexcept;
  std::size_t bucket(PrefixNode parent, const PrefixKey& key,
                     std::span<const TokenId> tokens) const noexcept;

  int block_tokens_;
  std::vector<Block> blocks_;
  std::vector<TokenId> tokens_;   // [blocks][block_tokens]
  std::vector<BlockId> buckets_;  // first block of each chain, a power of two of them
  List empty_;
  List cached_;
  int num_shared_ = 0;
  std::uint64_t num_evictions_ = 0;
  PrefixNode next_node_ = kRootNode + 1;  // one a nanosecond would last 580 years
};

// ---- Implementation: nothing below is API ----

inline BlockPool::BlockPool(int num_blocks, int block_tokens)
    : block_tokens_(block_tokens),
      blocks_(static_cast<std::size_t>(num_blocks)),
      tokens_(static_cast<std::size_t>(num_blocks) * static_cast<std::size_t>(block_tokens)),
      buckets_(std::bit_ceil(2 * static_cast<std::size_t>(num_blocks)), kNoBlock) {
  for (BlockId id = 0; id < num_blocks; ++id) append(empty_, id);
}

inline BlockPool::Block& BlockPool::at(BlockId block) noexcept {
  assert(block >= 0 && block < num_blocks());
  return blocks_[static_cast<std::size_t>(block)];
}

inline const BlockPool::Block& BlockPool::at(BlockId block) const noexcept {
  assert(block >= 0 && block < num_blocks());
  return blocks_[static_cast<std::size_t>(block)];
}

inline std::span<TokenId> BlockPool::stored_tokens(BlockId block) noexcept {
  const auto size = static_cast<std::size_t>(block_tokens_);
  return std::span(tokens_).subspan(static_cast<std::size_t>(block) * size, size);
}

inline std::span<const TokenId> BlockPool::tokens(BlockId block) const noexcept {
  const auto size = static_cast<std::size_t>(block_tokens_);
  return std::span(tokens_).subspan(static_cast<std::size_t>(block) * size, size);
}

inline void BlockPool::append(List& list, BlockId id) noexcept {
  Block& block = at(id);
  block.previous = list.last;
  block.next = kNoBlock;
  (list.last == kNoBlock ? list.first : at(list.last).next) = id;
  list.last = id;
  ++list.size;
}

inline void BlockPool::unlink(List& list, BlockId id) noexcept {
  const Block& block = at(id);
  (block.previous == kNoBlock ? list.first : at(block.previous).next) = block.next;
  (block.next == kNoBlock ? list.last : at(block.next).previous) = block.previous;
  --list.size;
}

inline BlockId BlockPool::allocate() noexcept {
  assert(num_free() > 0);
  const BlockId id = empty_.size > 0 ? empty_.first : cached_.first;
  Block& block = at(id);
  unlink(list_of(block), id);
  if (block.is_published) {
    withdraw(id);
    ++num_evictions_;
  }
  block.ref_count = 1;
  block.node = kNoNode;
  return id;
}

inline void BlockPool::acquire(BlockId id) noexcept {
  Block& block = at(id);
  if (block.ref_count == 0) unlink(list_of(block), id);
  if (++block.ref_count == 2) ++num_shared_;
}

inline void BlockPool::release(BlockId id) noexcept {
  Block& block = at(id);
  assert(block.ref_count > 0);
  if (--block.ref_count == 1) --num_shared_;
  if (block.ref_count == 0) append(list_of(block), id);
}

inline void BlockPool::record(BlockId id, int offset, std::span<const TokenId> tokens) noexcept {
  assert(offset >= 0 && tokens.size() <= static_cast<std::size_t>(block_tokens_ - offset));
  const auto stored = stored_tokens(id).subspan(static_cast<std::size_t>(offset), tokens.size());
  if (std::equal(tokens.begin(), tokens.end(), stored.begin())) return;
  assert(!at(id).is_published);
  at(id).node = kNoNode;
  std::copy(tokens.begin(), tokens.end(), stored.begin());
}

inline void BlockPool::copy_tokens(BlockId from, BlockId to) noexcept {
  const auto tokens = stored_tokens(from);
  std::copy(tokens.begin(), tokens.end(), stored_tokens(to).begin());
  at(to).node = at(from).node;
  at(to).parent = at(from).parent;
  at(to).key = at(from).key;
}

inline void BlockPool::publish(BlockId id, PrefixNode parent, const PrefixKey& key) noexcept {
  Block& block = at(id);
  if (block.is_published) return;
  if (parent == kNoNode) {
    block.node = kNoNode;
    return;
  }
  if (const BlockId same = find(parent, key, tokens(id)); same != kNoBlock) {
    block.node = at(same).node;  // what follows this block continues the other one as well
    block.parent = parent;
    block.key = key;
    return;
  }
  // Written again with the tokens it had: blocks that continue it are still its continuation.
  const bool is_same = block.node != kNoNode && block.parent == parent && block.key == key;
  if (!is_same) block.node = next_node_++;
  block.parent = parent;
  block.key = key;
  BlockId& first = buckets_[bucket(parent, key, tokens(id))];
  block.next_in_bucket = first;
  first = id;
  block.is_published = true;
}

inline void BlockPool::withdraw(BlockId id) noexcept {
  Block& block = at(id);
  if (!block.is_published) return;
  BlockId* link = &buckets_[bucket(block.parent, block.key, tokens(id))];
  while (*link != id) link = &at(*link).next_in_bucket;
  *link = block.next_in_bucket;
  block.is_published = false;
}

inline BlockId BlockPool::find(PrefixNode parent, const PrefixKey& key,
                               std::span<const TokenId> tokens) const noexcept {
  assert(tokens.size() == static_cast<std::size_t>(block_tokens_));
  BlockId id = buckets_[bucket(parent, key, tokens)];
  for (; id != kNoBlock; id = at(id).next_in_bucket) {
    const Block& block = at(id);
    if (block.parent != parent || block.key != key) continue;
    if (std::equal(tokens.begin(), tokens.end(), this->tokens(id).begin())) break;
  }
  return id;
}

inline void BlockPool::forget_nodes() noexcept {
  for (BlockId id = 0; id < num_blocks(); ++id) {
    Block& block = at(id);
    const bool is_cached = block.ref_count == 0 && block.is_published;
    if (is_cached) unlink(cached_, id);
    withdraw(id);
    if (is_cached) append(empty_, id);
    block.node = kNoNode;
  }
}

/// Spreads; whoever finds two equal ones gains a slower search and nothing else.
inline std::size_t BlockPool::bucket(PrefixNode parent, const PrefixKey& key,
                                     std::span<const TokenId> tokens) const noexcept {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  const auto mix = [&hash](std::uint64_t value) {  // a round of SplitMix64
    hash = (hash ^ value) * 0xbf58476d1ce4e5b9u;
    hash ^= hash >> 29;
  };
  mix(parent);
  mix(key.adapter);
  mix(key.salt);
  for (const TokenId token : tokens) mix(static_cast<std::uint32_t>(token));
  return static_cast<std::size_t>(hash) & (buckets_.size() - 1);
}

}  // namespace kvick::inline v0_1
