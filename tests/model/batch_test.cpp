// SPDX-License-Identifier: MIT
#include "kvick/model/batch.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cache/expect_error.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::expect_error;

const std::vector<TokenId> kTokens = {5, 6, 7, 8};

std::span<const TokenId> tokens(std::size_t count) { return std::span(kTokens).first(count); }

TEST(Batch, StartsEmpty) {
  const Batch batch;
  EXPECT_TRUE(batch.empty());
  EXPECT_TRUE(batch.segments().empty());
  EXPECT_EQ(batch.num_tokens(), 0);
  EXPECT_EQ(batch.num_logits(), 0);
}

TEST(Batch, CountsTokensAndLogitsOfItsSegmentsInOrder) {
  Batch batch;
  batch.add({.sequence = 4, .tokens = tokens(4)});  // a chunk of a prompt
  batch.add({.sequence = 0, .first_position = 9, .tokens = tokens(1), .num_logits = 1});
  batch.add({.sequence = 2, .first_position = 3, .tokens = tokens(3), .num_logits = 3});
  EXPECT_FALSE(batch.empty());
  EXPECT_EQ(batch.num_tokens(), 8);
  EXPECT_EQ(batch.num_logits(), 4);
  ASSERT_EQ(batch.segments().size(), 3u);
  EXPECT_EQ(batch.segments()[0].sequence, 4);
  EXPECT_EQ(batch.segments()[1].first_position, 9);
  EXPECT_EQ(batch.segments()[2].tokens.data(), kTokens.data());
  EXPECT_EQ(batch.segments()[2].tokens.size(), 3u);
  EXPECT_EQ(batch.segments()[2].num_logits, 3);
}

TEST(Batch, MayBeMadeOfOneSegment) {
  const Batch batch({.sequence = 1, .tokens = tokens(2), .num_logits = 1});
  EXPECT_EQ(batch.segments().size(), 1u);
  EXPECT_EQ(batch.num_tokens(), 2);
  EXPECT_EQ(batch.num_logits(), 1);
}

TEST(Batch, ClearEmptiesItAndKeepsItsMemory) {
  Batch batch;
  const auto fill = [&] {
    for (int sequence = 0; sequence < 20; ++sequence) {
      batch.add({.sequence = sequence, .tokens = tokens(2), .num_logits = 1});
    }
  };
  fill();
  batch.clear();
  EXPECT_TRUE(batch.empty());
  EXPECT_EQ(batch.num_tokens(), 0);
  EXPECT_EQ(batch.num_logits(), 0);
  const std::size_t before = support::num_allocations();
  fill();  // the same sequences again
  EXPECT_EQ(support::num_allocations(), before);
  EXPECT_EQ(batch.num_tokens(), 40);
}

TEST(Batch, TellsManySequencesApart) {
  Batch batch;
  // Adjacent slots, and some that fall on one place in every table of a power of two.
  std::vector<int> sequences;
  for (int i = 0; i < 300; ++i) sequences.push_back(i);
  for (int i = 1; i < 40; ++i) sequences.push_back(i << 20);
  for (int round = 0; round < 2; ++round) {
    for (const int sequence : sequences) {
      ASSERT_NO_THROW(batch.add({.sequence = sequence, .tokens = tokens(1)})) << sequence;
    }
    for (const int sequence : sequences) {
      ASSERT_THROW(batch.add({.sequence = sequence, .tokens = tokens(1)}), Error) << sequence;
    }
    EXPECT_EQ(batch.segments().size(), sequences.size());
    batch.clear();
  }
}

TEST(Batch, RejectsSegmentsThatNoModelCouldCompute) {
  Batch batch({.sequence = 3, .tokens = tokens(2), .num_logits = 1});
  const auto rejected = [&](const char* part, const Segment& segment) {
    expect_error(ErrorCode::kArgument, part, [&] { batch.add(segment); });
    expect_error(ErrorCode::kArgument, part, [&] {
      batch.add(segment);  // again: the first attempt left nothing behind
    });
  };
  rejected("got -1 and 0", {.sequence = -1, .tokens = tokens(1)});
  rejected("got 0 and -1", {.first_position = -1, .tokens = tokens(1)});
  rejected("got none for sequence 5", {.sequence = 5});
  rejected("num_logits must be in [0, 2], got 3", {.tokens = tokens(2), .num_logits = 3});
  rejected("num_logits must be in [0, 2], got -1", {.tokens = tokens(2), .num_logits = -1});
  rejected("got two of sequence 3", {.sequence = 3, .first_position = 2, .tokens = tokens(1)});
  constexpr int kLargest = std::numeric_limits<int>::max();
  rejected("positions must be below 2^31, got 4 tokens from position 2147483645",
           {.first_position = kLargest - 2, .tokens = tokens(4)});
  EXPECT_EQ(batch.segments().size(), 1u);
  EXPECT_EQ(batch.num_tokens(), 2);
  EXPECT_EQ(batch.num_logits(), 1);
  EXPECT_NO_THROW(batch.add({.first_position = kLargest - 4, .tokens = tokens(4)}));
}

}  // namespace
}  // namespace kvick
