// SPDX-License-Identifier: MIT
#include "kvick/serving/sequence_room.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/cache/block_manager.hpp"

namespace kvick {
namespace {

using support::expect_error;
using Tokens = std::vector<TokenId>;

TEST(SlotRoom, HasMaxSeqLenPositionsInEachSlot) {
  SlotRoom room(2, 10);
  EXPECT_TRUE(room.reserve(0, 10));
  EXPECT_FALSE(room.reserve(0, 11));
  room.commit(0, Tokens(7));
  EXPECT_EQ(room.length(0), 7);
  EXPECT_FALSE(room.reserve(0, 4));
  EXPECT_TRUE(room.reserve(1, 10)) << "slots share nothing";
  room.truncate(0, 2);
  EXPECT_TRUE(room.reserve(0, 8));
  room.release(0);
  EXPECT_EQ(room.length(0), 0);
  expect_error(ErrorCode::kArgument, "sequence must be in [0, 2), got 2",
               [&] { static_cast<void>(room.length(2)); });
  expect_error(ErrorCode::kArgument, "must be at least 1, got 0 and 5", [] { SlotRoom(0, 5); });
}

BlockManager make_blocks(int num_blocks) {
  return BlockManager(
      {.num_blocks = num_blocks, .block_tokens = 16, .num_sequences = 4, .max_seq_len = 200});
}

Tokens prompt(int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i);
  return tokens;
}

TEST(RoomSlots, KeepsSpareBlocksFreeOrDoesNothing) {
  BlockManager blocks = make_blocks(5);
  detail::RoomSlots<BlockManager> slots(blocks, 4);
  EXPECT_FALSE(slots.begin(prompt(40), {}, {}, 3));
  EXPECT_EQ(blocks.num_free_blocks(), 5);
  const auto slot = slots.begin(prompt(40), {}, {}, 2);
  ASSERT_TRUE(slot.has_value());
  EXPECT_EQ(blocks.reserved(*slot), 40);
  EXPECT_FALSE(slots.begin(prompt(60), {}, {}, 0)) << "no room at all";
  EXPECT_EQ(blocks.num_free_blocks(), 2);
  slots.end(*slot);
  EXPECT_EQ(blocks.num_free_blocks(), 5);
}

TEST(RoomSlots, CountsWhatIsSharedAsRoom) {
  BlockManager blocks = make_blocks(4);
  detail::RoomSlots<BlockManager> slots(blocks, 4);
  const Tokens tokens = prompt(40);
  const int first = *slots.begin(tokens, {}, {}, 0);
  blocks.commit(first, tokens);
  // Two blocks of three are found: one more is needed, and none may be spared.
  EXPECT_FALSE(slots.begin(tokens, {}, {}, 1));
  const auto second = slots.begin(tokens, {}, {}, 0);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(blocks.length(*second), 32);
  slots.end(*second);
  // As a continuation of the first it has all but the last token, in a tail of its own.
  const auto third = slots.begin(tokens, {}, {first, 39}, 0);
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(blocks.length(*third), 39);
  EXPECT_EQ(blocks.num_free_blocks(), 0);
}

TEST(RoomSlots, BeginsAgainWithWhatHasBeenCachedSince) {
  BlockManager blocks = make_blocks(8);
  detail::RoomSlots<BlockManager> slots(blocks, 4);
  const Tokens tokens = prompt(40);
  const int first = *slots.begin(tokens, {}, {}, 0);
  const int second = *slots.begin(tokens, {}, {}, 0);
  EXPECT_TRUE(slots.begin_again(second, tokens, {}));
  EXPECT_EQ(blocks.length(second), 0);
  blocks.commit(first, tokens);
  EXPECT_TRUE(slots.begin_again(second, tokens, {}));
  EXPECT_EQ(blocks.length(second), 32);
  EXPECT_EQ(blocks.reserved(second), 40);
  EXPECT_EQ(blocks.num_free_blocks(), 4);
}

}  // namespace
}  // namespace kvick
