// SPDX-License-Identifier: MIT
#include "kvick/serving/scheduler.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "kvick/cache/block_manager.hpp"
#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/paged_kv_cache.hpp"

namespace kvick {
namespace {

using Tokens = std::vector<TokenId>;

static_assert(BlockRoom<BlockManager> && PrefixRoom<BlockManager> && ForkRoom<BlockManager>);
static_assert(BlockRoom<PagedKVStorage> && PrefixRoom<PagedKVStorage> && ForkRoom<PagedKVStorage>);
static_assert(SequenceRoom<ContiguousKVCache> && !BlockRoom<ContiguousKVCache>);

TEST(Scheduler, TextbookUse) {
  Scheduler scheduler({.max_batch_size = 4, .max_seq_len = 100, .max_num_batched_tokens = 8});
  const auto id = scheduler.add_request(Request{.prompt = Tokens(20, 7), .max_new_tokens = 3});
  int steps = 0;
  while (auto step = scheduler.schedule()) {
    scheduler.complete(step, Tokens(static_cast<std::size_t>(step.batch.num_logits()), 5));
    ++steps;
  }
  EXPECT_TRUE(scheduler.is_done());
  EXPECT_TRUE(scheduler.is_done(*id));
  EXPECT_EQ(steps, 5);
  EXPECT_EQ(scheduler.output(*id).size(), 3u);
}

TEST(Scheduler, TextbookUseWithBlocks) {
  BlockManager blocks(
      {.num_blocks = 10, .block_tokens = 16, .num_sequences = 4, .max_seq_len = 100});
  Scheduler scheduler({.max_batch_size = 4, .max_num_batched_tokens = 8}, blocks);
  const auto id = scheduler.add_request(
      Request{.prompt = Tokens(20, 7), .max_new_tokens = 3, .num_samples = 3});
  while (auto step = scheduler.schedule()) {
    scheduler.complete(step, Tokens(static_cast<std::size_t>(step.batch.num_logits()), 5));
  }
  EXPECT_EQ(scheduler.output(*id + 2).size(), 3u);
  EXPECT_EQ(blocks.num_free_blocks(), 10);
}

}  // namespace
}  // namespace kvick
