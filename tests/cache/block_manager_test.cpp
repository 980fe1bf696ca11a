// SPDX-License-Identifier: MIT
#include "kvick/cache/block_manager.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/model/language_model.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::expect_error;
using Tokens = std::vector<TokenId>;

static_assert(SequenceCache<BlockManager>, "schedulers are tested against it without tensors");

constexpr int kBlock = 16;

Tokens iota(int count, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

BlockManager make_blocks(int num_blocks, AttentionWindow window = {}) {
  return BlockManager({.num_blocks = num_blocks,
                       .block_tokens = kBlock,
                       .num_sequences = 4,
                       .max_seq_len = 1000,
                       .window = window});
}

void append(BlockManager& blocks, int sequence, const Tokens& tokens) {
  ASSERT_TRUE(blocks.reserve(sequence, static_cast<int>(tokens.size())));
  blocks.commit(sequence, tokens);
}

/// Computes a whole prompt, with whatever is cached of it; how much that was.
int run(BlockManager& blocks, int sequence, const Tokens& prompt, const PrefixKey& key = {}) {
  const int cached = blocks.attach_prefix(sequence, prompt, key);
  EXPECT_TRUE(blocks.reserve(sequence, static_cast<int>(prompt.size()) - cached));
  blocks.commit(sequence, std::span(prompt).subspan(static_cast<std::size_t>(cached)));
  return cached;
}

std::vector<BlockId> table(const BlockManager& blocks, int sequence) {
  const auto entries = blocks.table(sequence);
  return {entries.begin(), entries.end()};
}

TEST(BlockManager, ReservesWholeBlocksAllOrNothing) {
  BlockManager blocks = make_blocks(4);
  EXPECT_TRUE(blocks.reserve(0, 17));
  EXPECT_EQ(blocks.table(0).size(), 2u);
  EXPECT_EQ(blocks.reserved(0), 17);
  EXPECT_EQ(blocks.num_free_blocks(), 2);
  EXPECT_FALSE(blocks.reserve(1, 33));
  EXPECT_EQ(blocks.num_free_blocks(), 2) << "a refusal takes nothing";
  EXPECT_EQ(blocks.reserved(1), 0);
  EXPECT_TRUE(blocks.reserve(1, 32));
  EXPECT_FALSE(blocks.reserve(2, 1));
  EXPECT_TRUE(blocks.reserve(0, 32)) << "the second block has room";
  EXPECT_TRUE(blocks.reserve(0, 5));
  EXPECT_EQ(blocks.reserved(0), 32) << "an earlier, larger reservation stays";
  EXPECT_FALSE(blocks.reserve(0, std::numeric_limits<int>::max()));
  blocks.commit(0, iota(10));
  blocks.truncate(0, 10);
  EXPECT_EQ(blocks.reserved(0), 10);
  EXPECT_EQ(blocks.num_free_blocks(), 1);
}

TEST(BlockManager, NeverPassesTheLengthLimit) {
  BlockManager blocks({.num_blocks = 10, .block_tokens = 16, .max_seq_len = 20});
  EXPECT_FALSE(blocks.reserve(0, 21));
  EXPECT_TRUE(blocks.reserve(0, 20));
  blocks.commit(0, iota(20));
  EXPECT_FALSE(blocks.reserve(0, 1));
  EXPECT_TRUE(blocks.reserve(0, 0));
}

TEST(BlockManager, ForksShareAllBlocksAndCopyTheOneThatIsWritten) {
  BlockManager blocks = make_blocks(6);
  append(blocks, 0, iota(40));
  blocks.fork(0, 1);
  EXPECT_EQ(table(blocks, 1), table(blocks, 0));
  EXPECT_EQ(blocks.length(1), 40);
  EXPECT_EQ(blocks.statistics().num_used, 3);
  EXPECT_EQ(blocks.statistics().num_shared, 3);

  std::optional<BlockCopy> copy;
  ASSERT_TRUE(blocks.reserve(1, 1, copy));
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ(copy->from, blocks.table(0)[2]);
  EXPECT_EQ(copy->to, blocks.table(1)[2]);
  EXPECT_NE(copy->from, copy->to);
  EXPECT_EQ(copy->num_tokens, 40 % kBlock);
  EXPECT_EQ(blocks.table(1)[1], blocks.table(0)[1]);
  EXPECT_EQ(blocks.statistics().num_shared, 2);
  EXPECT_EQ(blocks.statistics().num_copies, 1u);

  ASSERT_TRUE(blocks.reserve(0, 1, copy));
  EXPECT_FALSE(copy.has_value()) << "the first one is alone with its tail now";
}

TEST(BlockManager, CountsTheBlockToCopyAsRoom) {
  BlockManager blocks = make_blocks(3);
  append(blocks, 0, iota(40));
  blocks.fork(0, 1);
  EXPECT_FALSE(blocks.reserve(1, 1));
  EXPECT_EQ(table(blocks, 1), table(blocks, 0));
  blocks.release(0);
  EXPECT_TRUE(blocks.reserve(1, 1)) << "no longer shared";
}

TEST(BlockManager, AForkOnABlockBoundaryCopiesNothing) {
  BlockManager blocks = make_blocks(6);
  append(blocks, 0, iota(32));
  blocks.fork(0, 1);
  std::optional<BlockCopy> copy;
  ASSERT_TRUE(blocks.reserve(1, 3, copy));
  EXPECT_FALSE(copy.has_value());
}

// Who reserved before the fork goes on in place; the fork sees only what was committed.
TEST(BlockManager, AnOpenReservationStaysWithItsSequence) {
  BlockManager blocks = make_blocks(6);
  append(blocks, 0, iota(5));
  ASSERT_TRUE(blocks.reserve(0, 6));
  blocks.fork(0, 1);
  EXPECT_EQ(blocks.reserved(1), 5);
  std::optional<BlockCopy> copy;
  ASSERT_TRUE(blocks.reserve(0, 20, copy));
  EXPECT_FALSE(copy.has_value());
  ASSERT_TRUE(blocks.reserve(1, 1, copy));
  EXPECT_TRUE(copy.has_value());
  EXPECT_EQ(copy->num_tokens, 5);
}

TEST(BlockManager, SaysWhatItCanTruncateTo) {
  for (const AttentionWindow window : {AttentionWindow{}, AttentionWindow{.size = 20},
                                       AttentionWindow{.size = 20, .num_sinks = 5}}) {
    BlockManager blocks = make_blocks(20, window);
    for (int i = 0; i < 10; ++i) append(blocks, 0, iota(10, 10 * i));
    int num_possible = 0;
    for (int length = -1; length <= 101; ++length) {
      BlockManager copy = blocks;
      bool is_done = true;
      try {
        copy.truncate(0, length);
      } catch (const Error&) {
        is_done = false;
      }
      EXPECT_EQ(blocks.can_truncate(0, length), is_done) << length;
      num_possible += is_done ? 1 : 0;
    }
    EXPECT_EQ(num_possible == 101, !window.is_bounded());
  }
}

// ---- Prefixes

TEST(BlockManager, FindsCommittedBlocksOfRunningAndOfFinishedSequences) {
  BlockManager blocks = make_blocks(8);
  const Tokens prompt = iota(40);
  EXPECT_EQ(run(blocks, 0, prompt), 0);
  EXPECT_EQ(run(blocks, 1, prompt), 32) << "while it runs";
  EXPECT_EQ(blocks.table(1)[0], blocks.table(0)[0]);
  EXPECT_EQ(blocks.table(1)[1], blocks.table(0)[1]);
  EXPECT_NE(blocks.table(1)[2], blocks.table(0)[2]);
  blocks.release(0);
  blocks.release(1);
  EXPECT_EQ(blocks.statistics().num_cached, 2);
  EXPECT_EQ(run(blocks, 2, prompt), 32) << "after the end";
  EXPECT_EQ(blocks.statistics().num_hit_tokens, 64);
  EXPECT_EQ(blocks.statistics().num_prompt_tokens, 120);
}

TEST(BlockManager, FindsOnlyWhatIsCommitted) {
  BlockManager blocks = make_blocks(8);
  const Tokens prompt = iota(40);
  ASSERT_TRUE(blocks.reserve(0, 40));
  EXPECT_EQ(blocks.find_prefix(prompt).num_tokens, 0);
  blocks.commit(0, std::span(prompt).first(31));
  EXPECT_EQ(blocks.find_prefix(prompt).num_tokens, 16) << "the second block lacks a token";
  blocks.commit(0, std::span(prompt).subspan(31, 1));
  EXPECT_EQ(blocks.find_prefix(prompt).num_tokens, 32);
}

TEST(BlockManager, AFullHitLeavesTheLastTokenToCompute) {
  BlockManager blocks = make_blocks(8);
  const Tokens prompt = iota(32);
  run(blocks, 0, prompt);
  EXPECT_EQ(blocks.attach_prefix(1, prompt), 31);
  std::optional<BlockCopy> copy;
  ASSERT_TRUE(blocks.reserve(1, 1, copy));
  EXPECT_TRUE(copy.has_value()) << "the other sequence holds the block too";
  EXPECT_EQ(copy->num_tokens, 15);
  blocks.commit(1, std::span(prompt).last(1));
  blocks.release(0);
  blocks.release(1);

  EXPECT_EQ(blocks.attach_prefix(2, prompt), 31);
  ASSERT_TRUE(blocks.reserve(2, 1, copy));
  EXPECT_FALSE(copy.has_value()) << "nobody else holds it";
  EXPECT_EQ(blocks.find_prefix(prompt).num_tokens, 16) << "being written";
  blocks.commit(2, std::span(prompt).last(1));
  EXPECT_EQ(blocks.find_prefix(prompt).num_tokens, 31);
}

// The block is the same again, so what continues it is still found.
TEST(BlockManager, RecomputingABlockKeepsItsContinuations) {
  BlockManager blocks = make_blocks(8);
  const Tokens conversation = iota(64);
  const Tokens prompt = iota(32);
  run(blocks, 0, conversation);
  blocks.release(0);
  EXPECT_EQ(run(blocks, 1, prompt), 31);
  EXPECT_EQ(blocks.find_prefix(conversation).num_tokens, 63);
  blocks.truncate(1, 20);
  append(blocks, 1, iota(12, 500));
  EXPECT_EQ(blocks.find_prefix(conversation).num_tokens, 16) << "its second block is gone";
  EXPECT_EQ(blocks.find_prefix(iota(20) + iota(12, 500)).num_tokens, 31);
}

TEST(BlockManager, SequencesThatComputedTheSameAreContinuedAsOne) {
  BlockManager blocks = make_blocks(8);
  const Tokens prompt = iota(32);
  ASSERT_TRUE(blocks.reserve(0, 32));
  ASSERT_TRUE(blocks.reserve(1, 32));  // both begin before either has committed
  blocks.commit(0, std::span(prompt).first(16));
  blocks.commit(1, prompt);
  EXPECT_NE(blocks.table(0)[0], blocks.table(1)[0]);
  EXPECT_EQ(blocks.find_prefix(prompt).num_tokens, 31)
      << "the first block of one, the second of the other";
}

TEST(BlockManager, DifferentKeysShareNothing) {
  BlockManager blocks = make_blocks(16);
  const Tokens prompt = iota(40);
  const PrefixKey keys[] = {
      {}, {.adapter = 7}, {.salt = 7}, {.adapter = 7, .salt = 7}, {.adapter = 8}};
  for (const PrefixKey& key : keys) {
    EXPECT_EQ(run(blocks, 0, prompt, key), 0);
    blocks.release(0);
  }
  for (const PrefixKey& key : keys) EXPECT_EQ(blocks.find_prefix(prompt, key).num_tokens, 32);
}

TEST(BlockManager, AForkAndWhatFollowsBelongToTheKeyOfTheirSequence) {
  BlockManager blocks = make_blocks(16);
  const PrefixKey key{.salt = 3};
  run(blocks, 0, iota(20), key);
  blocks.fork(0, 1);
  append(blocks, 1, iota(12, 20));
  EXPECT_EQ(blocks.find_prefix(iota(33), key).num_tokens, 32);
  EXPECT_EQ(blocks.find_prefix(iota(33)).num_tokens, 0);
  blocks.release(1);
  append(blocks, 1, iota(32));
  EXPECT_EQ(blocks.find_prefix(iota(33)).num_tokens, 32) << "released sequences have no key";
}

// Equal tokens after unequal ones are another prefix.
TEST(BlockManager, TheSameTokensElsewhereAreNoHit) {
  BlockManager blocks = make_blocks(16);
  run(blocks, 0, iota(16) + iota(16, 100));
  EXPECT_EQ(blocks.find_prefix(iota(16, 100) + iota(16)).num_tokens, 0);
  EXPECT_EQ(blocks.find_prefix(iota(16, 1) + iota(16, 100)).num_tokens, 0);
  EXPECT_EQ(blocks.find_prefix(iota(16) + iota(16, 101)).num_tokens, 16);
}

TEST(BlockManager, EvictsTheLeastRecentlyReleasedAndOfOneSequenceTheDeepest) {
  BlockManager blocks = make_blocks(6);
  const Tokens a = iota(49), b = iota(33, 100);
  for (const Tokens& prompt : {a, b}) {  // each releases an unfinished block too
    run(blocks, 0, prompt);
    blocks.release(0);
  }
  EXPECT_EQ(blocks.statistics().num_cached, 5);
  EXPECT_EQ(blocks.statistics().num_empty, 1);
  const auto found = [&] {
    return std::pair(blocks.find_prefix(a).num_tokens, blocks.find_prefix(b).num_tokens);
  };
  ASSERT_TRUE(blocks.reserve(1, 16));
  EXPECT_EQ(found(), std::pair(48, 32)) << "blocks without content go first";
  ASSERT_TRUE(blocks.reserve(1, 32));
  EXPECT_EQ(found(), std::pair(32, 32));
  ASSERT_TRUE(blocks.reserve(1, 64));
  EXPECT_EQ(found(), std::pair(0, 32));
  ASSERT_TRUE(blocks.reserve(1, 80));
  EXPECT_EQ(found(), std::pair(0, 16));
  EXPECT_EQ(blocks.statistics().num_evictions, 4u);
}

TEST(BlockManager, AHitIsHeldBeforeAnythingIsTaken) {
  BlockManager blocks = make_blocks(3);
  const Tokens prompt = iota(33);
  run(blocks, 0, prompt);
  blocks.release(0);
  const PrefixHit hit = blocks.find_prefix(prompt);
  EXPECT_EQ(hit.num_blocks, 2);
  EXPECT_EQ(hit.num_free_blocks, 2) << "they count as free until attached";
  EXPECT_EQ(blocks.attach_prefix(1, prompt), 32);
  EXPECT_EQ(blocks.num_free_blocks(), 1);
  EXPECT_FALSE(blocks.reserve(2, 17));
  EXPECT_TRUE(blocks.reserve(1, 1));
}

TEST(BlockManager, AHitMakesABlockRecentAgain) {
  BlockManager blocks = make_blocks(2);
  const Tokens a = iota(17), b = iota(17, 100);
  append(blocks, 0, iota(16));
  append(blocks, 1, iota(16, 100));
  blocks.release(0);
  blocks.release(1);
  EXPECT_EQ(blocks.attach_prefix(2, a), 16);
  blocks.release(2);
  ASSERT_TRUE(blocks.reserve(3, 1));
  EXPECT_EQ(blocks.find_prefix(a).num_tokens, 16);
  EXPECT_EQ(blocks.find_prefix(b).num_tokens, 0);
}

// Of two sequences that hold a block, one truncates into it and goes on differently.
TEST(BlockManager, TruncationNeverChangesWhatOthersHold) {
  BlockManager blocks = make_blocks(8);
  run(blocks, 0, iota(32));
  blocks.fork(0, 1);
  blocks.truncate(1, 20);
  std::optional<BlockCopy> copy;
  ASSERT_TRUE(blocks.reserve(1, 12, copy));
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ(copy->num_tokens, 4);
  blocks.commit(1, iota(12, 900));
  EXPECT_EQ(blocks.find_prefix(iota(33)).num_tokens, 32);
  EXPECT_EQ(blocks.find_prefix(iota(20) + iota(12, 900)).num_tokens, 31);
}

TEST(BlockManager, TruncationGivesBackBlocksAndKeepsThemFindable) {
  BlockManager blocks = make_blocks(8);
  run(blocks, 0, iota(64));
  blocks.truncate(0, 17);
  EXPECT_EQ(blocks.table(0).size(), 2u);
  EXPECT_EQ(blocks.find_prefix(iota(64)).num_tokens, 63);
  append(blocks, 0, iota(15, 700));
  EXPECT_EQ(blocks.find_prefix(iota(64)).num_tokens, 16);
  EXPECT_EQ(blocks.find_prefix(iota(17) + iota(16, 700)).num_tokens, 32);
}

TEST(BlockManager, ForgetsPrefixesWhenWeightsChange) {
  BlockManager blocks = make_blocks(8);
  run(blocks, 0, iota(33));
  run(blocks, 1, iota(20, 50));
  blocks.release(0);
  blocks.forget_prefixes();
  EXPECT_EQ(blocks.find_prefix(iota(33)).num_tokens, 0);
  EXPECT_EQ(blocks.find_prefix(iota(20, 50)).num_tokens, 0);
  append(blocks, 1, iota(20, 70));
  EXPECT_EQ(blocks.find_prefix(iota(40, 50)).num_tokens, 0) << "it began with other weights";
  run(blocks, 0, iota(33));
  EXPECT_EQ(blocks.find_prefix(iota(33)).num_tokens, 32);
  EXPECT_EQ(blocks.statistics().num_used + blocks.num_free_blocks(), 8);
}

TEST(BlockManager, FindsNothingWhereReuseIsOff) {
  BlockManager blocks(
      {.num_blocks = 8, .block_tokens = 16, .max_seq_len = 100, .reuses_prefixes = false});
  run(blocks, 0, iota(33));
  blocks.release(0);
  EXPECT_EQ(run(blocks, 0, iota(33)), 0);
  EXPECT_EQ(blocks.statistics().num_cached, 0);
}

TEST(BlockManager, PromptsBeyondTheLengthLimitAreFoundUpToIt) {
  BlockManager blocks({.num_blocks = 8, .block_tokens = 16, .num_sequences = 2, .max_seq_len = 40});
  run(blocks, 0, iota(40));
  EXPECT_EQ(blocks.attach_prefix(1, iota(100)), 32);
  blocks.release(1);
  EXPECT_EQ(blocks.attach_prefix(1, {}), 0);
}

// ---- Windows

TEST(BlockManager, GivesBackBlocksThatTheWindowHasLeft) {
  BlockManager blocks = make_blocks(8, {.size = 20});
  append(blocks, 0, iota(36));  // the next token, at 36, sees 17 to 36: block 0 is not seen
  EXPECT_EQ(blocks.table(0)[0], kNoBlock);
  EXPECT_NE(blocks.table(0)[1], kNoBlock);
  append(blocks, 0, iota(15, 36));  // at 51: from 32 on
  EXPECT_EQ(blocks.table(0)[1], kNoBlock);
  EXPECT_NE(blocks.table(0)[2], kNoBlock);
  EXPECT_EQ(blocks.statistics().num_used, 2);
  for (int i = 0; i < 60; ++i) append(blocks, 0, iota(15, i));
  EXPECT_EQ(blocks.length(0), 951) << "far beyond the pool's 128 positions";
  EXPECT_LE(blocks.statistics().num_used, 3);
}

TEST(BlockManager, SinksStay) {
  BlockManager blocks = make_blocks(8, {.size = 20, .num_sinks = 17});
  for (int i = 0; i < 10; ++i) append(blocks, 0, iota(16, 16 * i));
  const auto entries = table(blocks, 0);
  for (int i = 0; i < 10; ++i) {
    const bool is_kept = i < 2 || i >= 8;  // at 160: from 141 on
    EXPECT_EQ(entries[static_cast<std::size_t>(i)] != kNoBlock, is_kept) << i;
  }
}

TEST(BlockManager, TruncatesOnlyToWhereTheWindowIsWhole) {
  BlockManager blocks = make_blocks(10, {.size = 20, .num_sinks = 16});
  append(blocks, 0, iota(100));  // at 100: from 81 on; blocks 1 to 4, up to 80, are gone
  expect_error(ErrorCode::kArgument,
               "length must be at least 99 or at most 16, because the window has left positions "
               "before 80, got 98",
               [&] { blocks.truncate(0, 98); });
  blocks.truncate(0, 99);
  blocks.fork(0, 1);
  blocks.truncate(0, 16);
  append(blocks, 0, iota(20));
  EXPECT_EQ(blocks.length(0), 36);
  EXPECT_EQ(blocks.table(1)[0], blocks.table(0)[0]);
  blocks.release(0);
  blocks.release(1);
  EXPECT_EQ(blocks.num_free_blocks(), 10);
}

// ---- Errors and accounts

TEST(BlockManager, CountsUnusedPositions) {
  BlockManager blocks = make_blocks(8);
  EXPECT_EQ(blocks.statistics().fragmentation, 0.0);
  append(blocks, 0, iota(20));
  EXPECT_EQ(blocks.statistics().num_unused_slots, 12);
  EXPECT_EQ(blocks.statistics().fragmentation, 12.0 / 32.0);
  blocks.fork(0, 1);
  EXPECT_EQ(blocks.statistics().num_unused_slots, 24) << "shared blocks count for each holder";
}

TEST(BlockManager, RefusesOptionsThatMakeNoSense) {
  const auto refused = [](const std::string& part, const BlockManagerOptions& options) {
    expect_error(ErrorCode::kArgument, part, [&] { BlockManager blocks(options); });
  };
  refused("num_blocks must be at least 1, got 0", {.max_seq_len = 10});
  refused("max_seq_len must be at least 1, got -1", {.num_blocks = 1, .max_seq_len = -1});
  refused("num_sequences must be at least 1, got 0",
          {.num_blocks = 1, .num_sequences = 0, .max_seq_len = 1});
  for (const int size : {0, 1, 8, 17, 48, 128, -16}) {
    refused("block_tokens must be 16, 32 or 64, got " + std::to_string(size),
            {.num_blocks = 1, .block_tokens = size, .max_seq_len = 1});
  }
  refused("window size must be at least 0, got -1",
          {.num_blocks = 1, .max_seq_len = 1, .window = {.size = -1}});
}

TEST(BlockManager, RefusesBadCallsAndStaysAsItWas) {
  BlockManager blocks = make_blocks(8);
  append(blocks, 0, iota(20));
  const auto before = table(blocks, 0);
  const auto argument = [](const std::string& part, auto&& call) {
    expect_error(ErrorCode::kArgument, part, call);
  };
  for (const int bad : {-1, 4}) {
    const std::string part = "sequence must be in [0, 4), got " + std::to_string(bad);
    argument(part, [&] { blocks.length(bad); });
    argument(part, [&] { blocks.reserved(bad); });
    argument(part, [&] { blocks.table(bad); });
    argument(part, [&] { std::ignore = blocks.reserve(bad, 1); });
    argument(part, [&] { blocks.commit(bad, {}); });
    argument(part, [&] { blocks.truncate(bad, 0); });
    argument(part, [&] { blocks.release(bad); });
    argument(part, [&] { blocks.fork(bad, 1); });
    argument(part, [&] { blocks.fork(0, bad); });
    argument(part, [&] { blocks.attach_prefix(bad, iota(3)); });
  }
  argument("num_tokens must be at least 0, got -1", [&] { std::ignore = blocks.reserve(0, -1); });
  argument("length must be in [0, 20] of sequence 0, got 21", [&] { blocks.truncate(0, 21); });
  argument("sequence 0 must be empty, got 20 tokens", [&] { blocks.fork(0, 0); });
  argument("sequence 0 must be empty, got 20 tokens", [&] { blocks.attach_prefix(0, iota(3)); });
  expect_error(ErrorCode::kCapacity, "got 1 with 0 reserved in sequence 0",
               [&] { blocks.commit(0, iota(1)); });
  EXPECT_EQ(blocks.length(0), 20);
  EXPECT_EQ(table(blocks, 0), before);
}

TEST(BlockManager, DoesNotAllocateAfterConstruction) {
  BlockManager blocks = make_blocks(8);
  const Tokens prompt = iota(40);
  const auto before = support::num_allocations();
  for (int i = 0; i < 5; ++i) {
    const int cached = blocks.attach_prefix(0, prompt);
    std::ignore = blocks.reserve(0, 40 - cached);
    blocks.commit(0, std::span(prompt).subspan(static_cast<std::size_t>(cached)));
    blocks.fork(0, 1);
    std::ignore = blocks.reserve(1, 100);
    std::ignore = blocks.reserve(1, 30);
    blocks.truncate(1, 10);
    blocks.release(1);
    blocks.release(0);
  }
  EXPECT_EQ(support::num_allocations(), before);
}

}  // namespace
}  // namespace kvick
