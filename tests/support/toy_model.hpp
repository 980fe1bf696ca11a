// SPDX-License-Identifier: MIT
// A language model without weights, over a cache of blocks: fast enough for thousands of requests.
//
// Its cache holds the tokens themselves, and the logits after a position are a hash of all tokens
// that the cache holds up to there. So a request that reads a block of another, a stale one, or one
// that was not copied in time, gets other tokens than alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvick/cache/block_manager.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/random.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/sampling/sampler.hpp"

namespace support {

struct ToyModelOptions {
  int vocab_size = 50;
  int max_seq_len = 1000;
};

class ToyModel {
 public:
  /// A BlockManager with a token for each position of each block.
  class Cache : public kvick::BlockManager {
   public:
    explicit Cache(const kvick::BlockManagerOptions& options)
        : BlockManager(options),
          tokens_(static_cast<std::size_t>(options.num_blocks * options.block_tokens), -1) {}

    [[nodiscard]] bool reserve(int sequence, int num_tokens) {
      std::optional<kvick::BlockCopy> copy;
      if (!BlockManager::reserve(sequence, num_tokens, copy)) return false;
      for (int i = 0; copy && i < copy->num_tokens; ++i) {
        tokens_[row(copy->to, i)] = tokens_[row(copy->from, i)];
      }
      return true;
    }

    kvick::TokenId& token(int sequence, int position) {
      const auto blocks = table(sequence);
      const auto block = blocks[static_cast<std::size_t>(position / block_tokens())];
      return tokens_[row(block, position % block_tokens())];
    }

   private:
    std::size_t row(kvick::BlockId block, int offset) const {
      return static_cast<std::size_t>(block * block_tokens() + offset);
    }

    std::vector<kvick::TokenId> tokens_;
  };

  explicit ToyModel(const ToyModelOptions& options = {}) : options_(options) {}

  int vocab_size() const { return options_.vocab_size; }
  int max_seq_len() const { return options_.max_seq_len; }

  Cache make_cache(const kvick::CacheOptions& options) const {
    const int length = options.max_seq_len == 0 ? max_seq_len() : options.max_seq_len;
    const int per_sequence = (length + options.block_tokens - 1) / options.block_tokens;
    return Cache({.num_blocks = options.num_blocks == 0 ? per_sequence * options.num_sequences
                                                        : options.num_blocks,
                  .block_tokens = options.block_tokens,
                  .num_sequences = options.num_sequences,
                  .max_seq_len = length,
                  .reuses_prefixes = options.reuses_prefixes});
  }

  void forward(const kvick::Batch& batch, Cache& cache, kvick::MatrixRef logits) {
    kvick::Index row = 0;
    for (const kvick::Segment& segment : batch.segments()) {
      const int num_tokens = static_cast<int>(segment.tokens.size());
      for (int i = 0; i < num_tokens; ++i) {
        cache.token(segment.sequence, segment.first_position + i) =
            segment.tokens[static_cast<std::size_t>(i)];
      }
      std::uint64_t hash = 0;
      for (int i = 0; i < segment.first_position + num_tokens; ++i) {
        hash = next_hash(hash, cache.token(segment.sequence, i));
        if (i >= segment.first_position + num_tokens - segment.num_logits) {
          write_logits(hash, logits.row(row++).data());
        }
      }
    }
  }

  /// What a request generates alone, told without a cache or an engine.
  std::vector<kvick::TokenId> generate(std::span<const kvick::TokenId> prompt, int max_new_tokens,
                                       const kvick::SamplingOptions& sampling,
                                       bool ends_at_end_tokens = true) const {
    kvick::Sampler sampler(sampling);
    std::vector<kvick::TokenId> tokens(prompt.begin(), prompt.end());
    std::vector<float> logits(static_cast<std::size_t>(vocab_size()));
    std::uint64_t hash = 0;
    for (const kvick::TokenId token : prompt) hash = next_hash(hash, token);
    for (int i = 0; i < max_new_tokens; ++i) {
      write_logits(hash, logits.data());
      const kvick::TokenId token = sampler.sample(logits, static_cast<std::uint64_t>(i), tokens);
      if (ends_at_end_tokens &&
          std::count(sampling.end_tokens.begin(), sampling.end_tokens.end(), token) != 0) {
        break;
      }
      tokens.push_back(token);
      hash = next_hash(hash, token);
    }
    return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
  }

 private:
  static std::array<std::uint32_t, 4> words(std::uint64_t hash, std::uint32_t purpose,
                                            std::uint32_t token) {
    return kvick::Philox4x32::generate(
        {purpose, token, 0, 0},
        {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)});
  }

  static std::uint64_t next_hash(std::uint64_t hash, kvick::TokenId token) {
    const auto bits = words(hash, 1, static_cast<std::uint32_t>(token));
    return (std::uint64_t{bits[0]} << 32) | bits[1];
  }

  /// In [0, 4).
  void write_logits(std::uint64_t hash, float* logits) const {
    for (int token = 0; token < vocab_size(); ++token) {
      logits[token] =
          static_cast<float>(words(hash, 2, static_cast<std::uint32_t>(token))[0] >> 8) * 0x1p-22f;
    }
  }

  ToyModelOptions options_;
};

}  // namespace support
