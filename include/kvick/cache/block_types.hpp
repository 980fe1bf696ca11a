// SPDX-License-Identifier: MIT
// What a BlockManager is made with, and what it tells.
//
// Layer     cache: may include core, kernels.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvick/cache/block_pool.hpp"
#include "kvick/core/checked.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/version.hpp"
#include "kvick/kernels/attention_window.hpp"

namespace kvick::inline v0_1 {

struct BlockManagerOptions {
  int num_blocks = 0;
  int block_tokens = 64;  ///< 16, 32 or 64
  int num_sequences = 1;
  int max_seq_len = 0;          ///< positions per sequence
  bool reuses_prefixes = true;  ///< without, attach_prefix() finds nothing
  AttentionWindow window = {};
};

/// The first rows of one block that another must hold before anything is written to that.
struct BlockCopy {
  BlockId from = kNoBlock;
  BlockId to = kNoBlock;
  int num_tokens = 0;
};

/// What is cached of a prompt.
struct PrefixHit {
  int num_tokens = 0;  ///< that need not be computed
  int num_blocks = 0;  ///< that hold them
  int num_free_blocks =
      0;  ///< of these, the ones without holder: attaching takes them from the pool
};

struct BlockStatistics {
  int num_blocks = 0;
  int num_used = 0;                    ///< held by sequences
  int num_shared = 0;                  ///< of the used ones, held by more than one
  int num_cached = 0;                  ///< held by none but findable
  int num_empty = 0;                   ///< held by none, without content
  std::int64_t num_unused_slots = 0;   ///< positions of sequences' blocks beyond their lengths
  std::int64_t num_prompt_tokens = 0;  ///< given to attach_prefix() so far
  std::int64_t num_hit_tokens = 0;     ///< of these, found
  std::uint64_t num_evictions = 0;     ///< findable blocks that gave way so far
  std::uint64_t num_copies = 0;        ///< blocks copied on write so far

  /// Share of the positions in used blocks that hold no committed token, shared ones counted for
  /// each holder.
  double fragmentation = 0.0;
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline const BlockManagerOptions& checked_options(const BlockManagerOptions& options) {
  constexpr std::string_view kOperation = "BlockManager";
  const auto at_least = [&](int least, std::string_view option, int value) {
    require(value >= least, ErrorCode::kArgument, kOperation, option, " must be at least ", least,
            ", got ", value);
  };
  at_least(1, "num_blocks", options.num_blocks);
  at_least(1, "num_sequences", options.num_sequences);
  at_least(1, "max_seq_len", options.max_seq_len);
  at_least(0, "window size", options.window.size);
  at_least(0, "num_sinks", options.window.num_sinks);
  const int block = options.block_tokens;
  require(block == 16 || block == 32 || block == 64, ErrorCode::kArgument, kOperation,
          "block_tokens must be 16, 32 or 64, got ", block);
  checked_product({static_cast<std::uint64_t>(options.num_sequences),
                   static_cast<std::uint64_t>(options.max_seq_len)},
                  kOperation);
  return options;
}

}  // namespace detail

}  // namespace kvick::inline v0_1
