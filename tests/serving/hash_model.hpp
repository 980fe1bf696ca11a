// SPDX-License-Identifier: MIT
// A model whose keys and values are hashes of prefixes, in the blocks of a BlockManager.
//
// The value at a position is a hash of the one before it in its sequence's table and of the token,
// and decides the next token. So whatever a driver shares, copies, recomputes, rolls back or
// overwrites wrongly gives other tokens than the request alone, which continuation() computes
// without any cache.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "kvick/cache/block_manager.hpp"
#include "kvick/model/batch.hpp"

namespace support {

class HashModel {
 public:
  static constexpr int kVocabSize = 1000;

  static std::uint64_t hash(std::uint64_t prefix, kvick::TokenId token) {
    std::uint64_t h = (prefix + 1) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(token);
    h ^= h >> 31;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ (h >> 29);
  }
  static kvick::TokenId next_token(std::uint64_t prefix) {
    return static_cast<kvick::TokenId>(prefix % kVocabSize);
  }

  /// The first tokens after a prompt.
  static std::vector<kvick::TokenId> continuation(std::span<const kvick::TokenId> prompt,
                                                  int num_tokens) {
    std::uint64_t prefix = 0;
    for (const kvick::TokenId token : prompt) prefix = hash(prefix, token);
    std::vector<kvick::TokenId> tokens;
    for (int i = 0; i < num_tokens; ++i) {
      tokens.push_back(next_token(prefix));
      prefix = hash(prefix, tokens.back());
    }
    return tokens;
  }

  explicit HashModel(const kvick::BlockManagerOptions& options)
      : blocks_(options),
        values_(static_cast<std::size_t>(options.num_blocks * options.block_tokens), ~0u) {}

  const kvick::BlockManager& blocks() const { return blocks_; }

  // A room of the scheduler:
  int num_sequences() const { return blocks_.num_sequences(); }
  int max_seq_len() const { return blocks_.max_seq_len(); }
  int num_blocks() const { return blocks_.num_blocks(); }
  int num_free_blocks() const { return blocks_.num_free_blocks(); }
  int num_blocks_for(int num_tokens) const { return blocks_.num_blocks_for(num_tokens); }
  int length(int sequence) const { return blocks_.length(sequence); }
  kvick::PrefixHit find_prefix(std::span<const kvick::TokenId> prompt,
                               const kvick::PrefixKey& key) const {
    ++num_calls;
    return blocks_.find_prefix(prompt, key);
  }
  int attach_prefix(int sequence, std::span<const kvick::TokenId> prompt,
                    const kvick::PrefixKey& key) {
    ++num_calls;
    return blocks_.attach_prefix(sequence, prompt, key);
  }
  [[nodiscard]] bool reserve(int sequence, int num_tokens) {
    ++num_calls;
    std::optional<kvick::BlockCopy> copy;
    if (!blocks_.reserve(sequence, num_tokens, copy)) return false;
    for (int i = 0; copy && i < copy->num_tokens; ++i) {
      values_[place(copy->to, i)] = values_[place(copy->from, i)];
    }
    return true;
  }
  void commit(int sequence, std::span<const kvick::TokenId> tokens) {
    ++num_calls;
    blocks_.commit(sequence, tokens);
  }
  bool can_truncate(int sequence, int length) const {
    return blocks_.can_truncate(sequence, length);
  }
  void truncate(int sequence, int length) { blocks_.truncate(sequence, length); }
  void release(int sequence) { blocks_.release(sequence); }
  void fork(int from, int to) { blocks_.fork(from, to); }

  /// The next token of each row of logits.
  std::vector<kvick::TokenId> forward(const kvick::Batch& batch) {
    std::vector<kvick::TokenId> next;
    for (const kvick::Segment& segment : batch.segments()) {
      EXPECT_EQ(segment.first_position, blocks_.length(segment.sequence));
      const int end = segment.first_position + static_cast<int>(segment.tokens.size());
      EXPECT_LE(end, blocks_.reserved(segment.sequence));
      for (int p = segment.first_position; p < end; ++p) {
        const std::uint64_t before = p == 0 ? 0 : value(segment.sequence, p - 1);
        const auto i = static_cast<std::size_t>(p - segment.first_position);
        value(segment.sequence, p) = hash(before, segment.tokens[i]);
        if (p >= end - segment.num_logits) next.push_back(next_token(value(segment.sequence, p)));
      }
    }
    return next;
  }

  /// Free and held blocks are all blocks, and the holders of each are the tables that name it.
  void check_blocks() const {
    std::map<kvick::BlockId, int> num_holders;
    for (int sequence = 0; sequence < num_sequences(); ++sequence) {
      for (const kvick::BlockId block : blocks_.table(sequence)) ++num_holders[block];
    }
    ASSERT_EQ(static_cast<int>(num_holders.size()) + num_free_blocks(), num_blocks());
    for (const auto& [block, count] : num_holders) {
      ASSERT_EQ(blocks_.pool().ref_count(block), count);
    }
  }

  mutable std::int64_t num_calls = 0;

 private:
  std::size_t place(kvick::BlockId block, int offset) const {
    return static_cast<std::size_t>(block * blocks_.block_tokens() + offset);
  }
  std::uint64_t& value(int sequence, int position) {
    const auto i = static_cast<std::size_t>(position / blocks_.block_tokens());
    return values_[place(blocks_.table(sequence)[i], position % blocks_.block_tokens())];
  }

  kvick::BlockManager blocks_;
  std::vector<std::uint64_t> values_;
};

}  // namespace support
