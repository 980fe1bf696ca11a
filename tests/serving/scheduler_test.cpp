// SPDX-License-Identifier: MIT
// Schedules worked by hand, one rule at a time. Random ones are in scheduler_model_test.cpp, bounds
// in scheduler_bounds_test.cpp.
#include "kvick/serving/scheduler.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/cache/block_manager.hpp"
#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/paged_kv_cache.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::expect_error;
using Tokens = std::vector<TokenId>;

static_assert(BlockRoom<BlockManager> && PrefixRoom<BlockManager> && ForkRoom<BlockManager>);
static_assert(BlockRoom<PagedKVStorage> && PrefixRoom<PagedKVStorage> && ForkRoom<PagedKVStorage>);
static_assert(SequenceRoom<ContiguousKVCache> && !BlockRoom<ContiguousKVCache>);

/// A prompt that shares nothing with another of a different `first`.
Tokens prompt(int count, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 10'000 * first);
  return tokens;
}

/// What a step computes: "request:tokens", with a '+' if it gives a token, and "-drafts".
std::string text(const Step& step) {
  std::string out;
  for (std::size_t i = 0; i < step.segments.size(); ++i) {
    const StepSegment& entry = step.segments[i];
    if (i > 0) out += ' ';
    out += std::to_string(entry.request) + ':' +
           std::to_string(step.batch.segments()[i].tokens.size());
    if (entry.num_rows > 0) out += '+';
    if (entry.num_drafts > 0) out += '-' + std::to_string(entry.num_drafts);
  }
  return out;
}

/// Completes the step with a token per row; what it computed.
template <class Room>
std::string run_step(Scheduler<Room>& scheduler, TokenId token = 5) {
  const Step step = scheduler.schedule();
  const std::string out = text(step);
  if (step) {
    scheduler.complete(step, Tokens(static_cast<std::size_t>(step.batch.num_logits()), token));
  }
  return out;
}

template <class Room>
void run_all(Scheduler<Room>& scheduler) {
  for (int i = 0; i < 100'000 && !run_step(scheduler).empty(); ++i) {
  }
  EXPECT_TRUE(scheduler.is_done());
}

BlockManager make_blocks(int num_blocks, int num_sequences = 8) {
  return BlockManager({.num_blocks = num_blocks,
                       .block_tokens = 16,
                       .num_sequences = num_sequences,
                       .max_seq_len = 1000});
}

TEST(Scheduler, ServesARequestInFourLines) {
  Scheduler scheduler({.max_batch_size = 4, .max_seq_len = 100, .max_num_batched_tokens = 8});
  const auto id = scheduler.add_request(Request{.prompt = prompt(20), .max_new_tokens = 3});
  Tokens seen;
  while (auto step = scheduler.schedule()) {
    const Segment& segment = step.batch.segments()[0];
    seen.insert(seen.end(), segment.tokens.begin(), segment.tokens.end());
    scheduler.complete(step, Tokens(static_cast<std::size_t>(step.batch.num_logits()), 5));
  }
  Tokens computed = prompt(20);
  computed.insert(computed.end(), {5, 5});  // the last token is never computed
  EXPECT_EQ(seen, computed);
  EXPECT_TRUE(scheduler.is_done());
  EXPECT_TRUE(scheduler.is_done(*id));
  EXPECT_EQ(scheduler.finish_reason(*id), FinishReason::kLength);
  const auto output = scheduler.output(*id);
  EXPECT_EQ(Tokens(output.begin(), output.end()), Tokens({5, 5, 5}));
}

TEST(Scheduler, MixesChunksOfPromptsWithDecodes) {
  Scheduler scheduler({.max_batch_size = 4, .max_seq_len = 100, .max_num_batched_tokens = 8});
  scheduler.add_request({.prompt = prompt(4), .max_new_tokens = 6});
  EXPECT_EQ(run_step(scheduler), "0:4+");
  scheduler.add_request({.prompt = prompt(16), .max_new_tokens = 2});
  EXPECT_EQ(run_step(scheduler), "0:1+ 1:7") << "decodes first, the prompt takes the rest";
  EXPECT_EQ(run_step(scheduler), "0:1+ 1:7");
  EXPECT_EQ(run_step(scheduler), "0:1+ 1:2+") << "logits with the last token of the prompt";
  EXPECT_EQ(run_step(scheduler), "0:1+ 1:1+");
  EXPECT_EQ(run_step(scheduler), "0:1+");
  EXPECT_EQ(run_step(scheduler), "");
}

TEST(Scheduler, TheFinishedLeaveAndTheWaitingJoin) {
  Scheduler scheduler({.max_batch_size = 2, .max_seq_len = 100, .max_num_batched_tokens = 64});
  for (int i = 0; i < 3; ++i) {
    scheduler.add_request({.prompt = prompt(5), .max_new_tokens = i == 0 ? 2 : 4});
  }
  EXPECT_EQ(run_step(scheduler), "0:5+ 1:5+");
  EXPECT_EQ(run_step(scheduler), "0:1+ 1:1+");
  EXPECT_EQ(run_step(scheduler), "1:1+ 2:5+");
  EXPECT_EQ(run_step(scheduler), "1:1+ 2:1+");
  EXPECT_EQ(run_step(scheduler), "2:1+");
}

TEST(Scheduler, GivesEachPromptItsTurnAndShortOnesAHalf) {
  Scheduler scheduler({.max_batch_size = 8, .max_seq_len = 1000, .max_num_batched_tokens = 20});
  scheduler.add_request({.prompt = prompt(60), .max_new_tokens = 1});
  scheduler.add_request({.prompt = prompt(70), .max_new_tokens = 1});
  EXPECT_EQ(run_step(scheduler), "0:20") << "the later one is longer";
  scheduler.add_request({.prompt = prompt(5), .max_new_tokens = 1});
  EXPECT_EQ(run_step(scheduler), "0:15 2:5+") << "the short one needs less than its half";
  scheduler.add_request({.prompt = prompt(14), .max_new_tokens = 1});
  EXPECT_EQ(run_step(scheduler), "0:10 3:10") << "the first in order never gets less than half";
  EXPECT_EQ(run_step(scheduler), "0:15+ 1:1 3:4+");
  EXPECT_EQ(run_step(scheduler), "1:20");
}

TEST(Scheduler, ServesEqualsInTheOrderOfTheirArrival) {
  BlockManager blocks = make_blocks(12, 3);
  Scheduler scheduler({.max_batch_size = 3, .max_num_batched_tokens = 16}, blocks);
  for (TokenId i = 0; i < 40; ++i) {
    scheduler.add_request({.prompt = prompt(20, i), .max_new_tokens = 3 + i % 7});
  }
  run_all(scheduler);
  double last = -1;
  for (RequestId id = 0; id < 40; ++id) {
    EXPECT_GE(scheduler.progress(id).first_token_ms, last);
    last = scheduler.progress(id).first_token_ms;
  }
}

TEST(Scheduler, APriorityIsWorthItsWaiting) {
  double now = 0;
  Scheduler scheduler(
      {.max_batch_size = 1, .max_seq_len = 100, .ageing_ms = 100, .clock_ms = [&now] {
         return now;
       }});
  const auto add = [&](double at, int priority) {
    now = at;
    scheduler.add_request({.prompt = prompt(1), .max_new_tokens = 1, .priority = priority});
  };
  add(0, 0);    // 0: in order at 0
  add(10, -1);  // 1: at 110
  add(20, 2);   // 2: at -180
  add(90, 0);   // 3: at 90
  add(150, 0);  // 4: at 150
  add(250, 2);  // 5: at 50, before 3 although it came later, but not before 0
  std::string order;
  for (int i = 0; i < 6; ++i) order += run_step(scheduler) + " ";
  EXPECT_EQ(order, "2:1+ 0:1+ 5:1+ 3:1+ 1:1+ 4:1+ ");
}

// ---- Room

TEST(Scheduler, AdmitsOnlyWhatFitsWithItsWholePrompt) {
  BlockManager blocks = make_blocks(6);
  Scheduler scheduler({.max_batch_size = 8, .max_num_batched_tokens = 16}, blocks);
  scheduler.add_request({.prompt = prompt(48, 0), .max_new_tokens = 2});  // 3 blocks, perhaps 4
  scheduler.add_request({.prompt = prompt(40, 1), .max_new_tokens = 2});  // 3: one must stay free
  scheduler.add_request({.prompt = prompt(2, 2), .max_new_tokens = 2});   // would fit
  EXPECT_EQ(run_step(scheduler), "0:16");
  EXPECT_EQ(blocks.num_free_blocks(), 3) << "the whole prompt is reserved";
  EXPECT_EQ(run_step(scheduler), "0:16");
  EXPECT_EQ(run_step(scheduler), "0:16+");
  EXPECT_EQ(run_step(scheduler), "0:1+") << "nobody passes the one that waits for room";
  EXPECT_EQ(run_step(scheduler), "1:14 2:2+") << "half to the first, 2 to the shorter, the rest";
}

TEST(Scheduler, NoRoomIsKeptFreeThatRunningRequestsCannotNeed) {
  BlockManager blocks = make_blocks(4);  // each stays within a block
  Scheduler scheduler({.max_batch_size = 4, .watermark = 0.5}, blocks);
  for (TokenId i = 0; i < 4; ++i) {
    scheduler.add_request({.prompt = prompt(8, i), .max_new_tokens = 8});
  }
  EXPECT_EQ(run_step(scheduler), "0:8+ 1:8+ 2:8+ 3:8+");
}

TEST(Scheduler, TakesRoomFromTheLastInOrderWhichGoesOnLater) {
  BlockManager blocks = make_blocks(5);
  Scheduler scheduler({.max_batch_size = 8, .max_num_batched_tokens = 64}, blocks);
  scheduler.add_request({.prompt = prompt(30, 0), .max_new_tokens = 20});  // 2 blocks
  scheduler.add_request({.prompt = prompt(26, 1), .max_new_tokens = 10});  // 2
  EXPECT_EQ(run_step(scheduler), "0:30+ 1:26+");
  // Request 0 takes the fifth block for its position 32; request 1 needs one for 32 too.
  for (int i = 0; i < 6; ++i) EXPECT_EQ(run_step(scheduler), "0:1+ 1:1+") << i;
  EXPECT_EQ(blocks.num_free_blocks(), 0);
  EXPECT_EQ(run_step(scheduler), "0:1+");
  EXPECT_EQ(scheduler.progress(1).num_preemptions, 1);
  EXPECT_EQ(scheduler.output(1).size(), 7u) << "kept";
  // It has 33 tokens now; request 0 will take the second of its two blocks, the deeper one.
  while (!scheduler.is_done(0)) EXPECT_EQ(run_step(scheduler), "0:1+");
  EXPECT_EQ(run_step(scheduler), "1:17+") << "its first block is found again";
  EXPECT_EQ(run_step(scheduler), "1:1+");
  EXPECT_EQ(run_step(scheduler), "1:1+");
  EXPECT_EQ(run_step(scheduler), "");
  EXPECT_EQ(scheduler.output(1).size(), 10u);
  EXPECT_EQ(scheduler.statistics().num_preemptions, 1);
  EXPECT_EQ(blocks.num_free_blocks(), 5);
}

TEST(Scheduler, TheLowestPriorityGivesWayFirst) {
  BlockManager blocks = make_blocks(5);
  Scheduler scheduler({.max_batch_size = 8, .max_num_batched_tokens = 64}, blocks);
  scheduler.add_request({.prompt = prompt(30, 0), .max_new_tokens = 20, .priority = -3});
  scheduler.add_request({.prompt = prompt(26, 1), .max_new_tokens = 20});
  while (scheduler.statistics().num_preemptions == 0) run_step(scheduler);
  EXPECT_EQ(scheduler.progress(0).num_preemptions, 1) << "the older one";
  run_all(scheduler);
  EXPECT_EQ(scheduler.progress(1).num_preemptions, 0);
}

TEST(Scheduler, AloneWithoutRoomARequestEndsByLength) {
  BlockManager blocks = make_blocks(2);
  Scheduler scheduler({.max_batch_size = 8}, blocks);
  const auto id = scheduler.add_request({.prompt = prompt(20), .max_new_tokens = 500});
  scheduler.add_request({.prompt = prompt(3, 1), .max_new_tokens = 2});
  run_all(scheduler);
  EXPECT_EQ(scheduler.finish_reason(*id), FinishReason::kLength);
  EXPECT_EQ(scheduler.output(*id).size(), 13u) << "32 positions, and one token more";
  EXPECT_EQ(scheduler.output(*id + 1).size(), 2u) << "the next one is not touched";
}

TEST(Scheduler, RefusesWhatCanNeverFitWithTheNumbers) {
  BlockManager blocks = make_blocks(4);
  Scheduler scheduler({.max_batch_size = 8, .max_seq_len = 900, .vocab_size = 50'000}, blocks);
  expect_error(ErrorCode::kCapacity, "must fit max_seq_len = 900, got 800 + 128 tokens",
               [&] { scheduler.add_request({.prompt = prompt(800)}); });
  expect_error(ErrorCode::kCapacity, "cache of 4 blocks, got 65 tokens in 5 blocks",
               [&] { scheduler.add_request({.prompt = prompt(65)}); });
  const auto refused = [&](const char* part, const Request& request) {
    expect_error(ErrorCode::kArgument, part, [&] { scheduler.add_request(request); });
  };
  constexpr int kLeast = std::numeric_limits<int>::min();
  refused("a prompt must have tokens", {});
  refused("max_new_tokens must be at least 1, got 0", {.prompt = {1}, .max_new_tokens = 0});
  refused("max_new_tokens must be at least 1, got -2147483648",
          {.prompt = {1}, .max_new_tokens = kLeast});
  refused("min_new_tokens must be at least 0", {.prompt = {1}, .min_new_tokens = -1});
  refused("num_samples must be at least 1, got -2", {.prompt = {1}, .num_samples = -2});
  refused("priority must be in [-100, 100], got 101", {.prompt = {1}, .priority = 101});
  refused("timeout_ms must be positive, got nan", {.prompt = {1}, .timeout_ms = std::nan("")});
  refused("tokens must be in [0, 50000), got 50000", {.prompt = {1, 50'000}});
  refused("tokens must be in [0, 50000), got -1", {.prompt = {-1}});
  expect_error(ErrorCode::kCapacity, "got 1 + 2147483647", [&] {
    scheduler.add_request({.prompt = {1}, .max_new_tokens = std::numeric_limits<int>::max()});
  });
  EXPECT_TRUE(scheduler.is_done()) << "nothing of them is left";
  EXPECT_EQ(scheduler.statistics().num_added, 0);
}

TEST(Scheduler, RefusesOptionsThatCannotWork) {
  BlockManager blocks = make_blocks(4, 8);
  const auto refused = [&](const char* part, const SchedulerOptions& options) {
    expect_error(ErrorCode::kArgument, part, [&] { Scheduler scheduler(options, blocks); });
  };
  refused("max_batch_size must be in [1, 8], the sequences of the cache, got 16", {});
  refused("got 0", {.max_batch_size = 0});
  refused("max_seq_len must be at most the cache's 1000, got 1001",
          {.max_batch_size = 8, .max_seq_len = 1001});
  refused("max_num_batched_tokens must be at least max_batch_size = 8",
          {.max_batch_size = 8, .max_num_batched_tokens = 7});
  refused("max_step_ms", {.max_batch_size = 8, .max_step_ms = -1});
  refused("min_prefill_share must be in (0, 1]", {.max_batch_size = 8, .min_prefill_share = 0});
  refused("ageing_ms", {.max_batch_size = 8, .ageing_ms = HUGE_VAL});
  refused("watermark", {.max_batch_size = 8, .watermark = 1});
  refused("max_waiting_requests", {.max_batch_size = 8, .max_waiting_requests = 0});
  refused("max_waiting_tokens", {.max_batch_size = 8, .max_waiting_tokens = 0});
  refused("max_waiting_ms", {.max_batch_size = 8, .max_waiting_ms = 0});
  refused("vocab_size", {.max_batch_size = 8, .vocab_size = -1});
  EXPECT_THROW(Scheduler(SchedulerOptions{}), Error) << "without a room, max_seq_len is required";
}

TEST(Scheduler, LimitsItsQueueByRequestsAndTokens) {
  Scheduler scheduler({.max_batch_size = 1,
                       .max_seq_len = 1000,
                       .max_waiting_requests = 3,
                       .max_waiting_tokens = 100});
  EXPECT_FALSE(scheduler.has_queue_room(101));
  EXPECT_FALSE(scheduler.has_queue_room(51, 2)) << "samples count each";
  EXPECT_FALSE(scheduler.add_request({.prompt = prompt(1), .num_samples = 4}));
  EXPECT_TRUE(scheduler.add_request({.prompt = prompt(60)}));
  EXPECT_FALSE(scheduler.add_request({.prompt = prompt(41)}));
  EXPECT_TRUE(scheduler.add_request({.prompt = prompt(20)}));
  EXPECT_TRUE(scheduler.add_request({.prompt = prompt(20)}));
  EXPECT_FALSE(scheduler.has_queue_room(0));
  EXPECT_FALSE(scheduler.add_request({.prompt = prompt(1)}));
  EXPECT_EQ(scheduler.statistics().num_waiting_tokens, 100);
  EXPECT_EQ(scheduler.statistics().num_refused, 3);
  run_step(scheduler);  // the first one runs
  EXPECT_TRUE(scheduler.has_queue_room(60));
  EXPECT_TRUE(scheduler.add_request({.prompt = prompt(60)}));
}

// ---- Ends

TEST(Scheduler, StopTokensEndARequestAndAreItsLast) {
  Scheduler scheduler({.max_batch_size = 4, .max_seq_len = 100});
  scheduler.add_request({.prompt = prompt(3), .max_new_tokens = 9, .stop_tokens = {7, 8}});
  scheduler.add_request(
      {.prompt = prompt(3), .max_new_tokens = 9, .stop_tokens = {8}, .min_new_tokens = 2});
  run_step(scheduler, 5);
  run_step(scheduler, 8);
  EXPECT_EQ(scheduler.finish_reason(0), FinishReason::kStop);
  EXPECT_EQ(scheduler.output(0).back(), 8);
  EXPECT_FALSE(scheduler.is_done(1)) << "too early for it";
  run_step(scheduler, 8);
  EXPECT_EQ(scheduler.finish_reason(1), FinishReason::kStop);
  EXPECT_EQ(scheduler.output(1).size(), 3u);
}

TEST(Scheduler, CancelsAtAnyMoment) {
  BlockManager blocks = make_blocks(20);
  Scheduler scheduler({.max_batch_size = 2, .max_num_batched_tokens = 16}, blocks);
  for (TokenId i = 0; i < 4; ++i) {
    scheduler.add_request({.prompt = prompt(20, i), .max_new_tokens = 9});
  }
  EXPECT_TRUE(scheduler.cancel(3)) << "waiting";
  const Step step = scheduler.schedule();  // request 0 in its prompt
  EXPECT_TRUE(scheduler.cancel(0));
  EXPECT_FALSE(scheduler.cancel(0)) << "once";
  EXPECT_TRUE(scheduler.is_done(0));
  EXPECT_GT(blocks.reserved(step.batch.segments()[0].sequence), 0)
      << "the model may still write there";
  EXPECT_TRUE(scheduler.cancel(1)) << "admitted, but not in the step";
  scheduler.complete(step, Tokens{});
  EXPECT_EQ(blocks.num_free_blocks(), 20);
  EXPECT_EQ(run_step(scheduler), "2:16");
  EXPECT_EQ(run_step(scheduler), "2:4+");
  const Step last = scheduler.schedule();
  scheduler.cancel(2);
  scheduler.complete(last, Tokens{6});
  EXPECT_EQ(scheduler.output(2).size(), 1u) << "what came after is dropped";
  EXPECT_EQ(blocks.num_free_blocks(), 20);
  EXPECT_TRUE(scheduler.is_done());
  std::vector<RequestId> order;
  for (const RequestOutput& output : scheduler.take_finished()) {
    EXPECT_EQ(output.reason, FinishReason::kCancelled);
    order.push_back(output.id);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{3, 1, 0, 2}));
  EXPECT_FALSE(scheduler.cancel(2));
  EXPECT_TRUE(scheduler.is_done(2));
  expect_error(ErrorCode::kArgument, "must have been added, got id 4",
               [&] { scheduler.cancel(4); });
  expect_error(ErrorCode::kArgument, "must not have been taken", [&] { scheduler.output(2); });
}

TEST(Scheduler, EndsRequestsWhoseTimeIsOver) {
  double now = 1000;
  Scheduler scheduler(
      {.max_batch_size = 1, .max_seq_len = 100, .max_waiting_ms = 50, .clock_ms = [&now] {
         return now;
       }});
  scheduler.add_request({.prompt = prompt(3), .max_new_tokens = 90, .timeout_ms = 100});
  scheduler.add_request({.prompt = prompt(3), .max_new_tokens = 90});  // has waited too long
  scheduler.add_request({.prompt = prompt(3), .max_new_tokens = 90, .timeout_ms = 20});
  run_step(scheduler);
  now = 1019;
  run_step(scheduler);
  EXPECT_EQ(scheduler.statistics().num_waiting, 2);
  now = 1020;
  run_step(scheduler);
  EXPECT_EQ(scheduler.finish_reason(2), FinishReason::kTimeout);
  now = 1050;
  run_step(scheduler);
  EXPECT_EQ(scheduler.finish_reason(1), FinishReason::kTimeout);
  now = 1099;
  EXPECT_EQ(run_step(scheduler), "0:1+") << "the limit of the queue is not for those that run";
  now = 1100;
  EXPECT_EQ(run_step(scheduler), "");
  EXPECT_EQ(scheduler.finish_reason(0), FinishReason::kTimeout);
  EXPECT_EQ(scheduler.output(0).size(), 5u) << "what came until then";
  EXPECT_EQ(scheduler.progress(0).finish_ms, 1100);
}

TEST(Scheduler, TheCallerMayEndARequestWithItsResult) {
  Scheduler scheduler({.max_batch_size = 4, .max_seq_len = 100});
  for (int i = 0; i < 3; ++i) scheduler.add_request({.prompt = prompt(3), .max_new_tokens = 1});
  const Step step = scheduler.schedule();
  const Tokens token{5};
  const std::vector<SegmentResult> results{{.tokens = token, .finish = FinishReason::kStop},
                                           {.finish = FinishReason::kError},
                                           {.tokens = token}};
  scheduler.complete(step, results);
  EXPECT_EQ(scheduler.finish_reason(0), FinishReason::kStop) << "the caller knows best";
  EXPECT_EQ(scheduler.finish_reason(1), FinishReason::kError);
  EXPECT_TRUE(scheduler.output(1).empty());
  EXPECT_EQ(scheduler.finish_reason(2), FinishReason::kLength);
}

TEST(Scheduler, KeepsAStepOpenUntilItsResultsFit) {
  Scheduler scheduler({.max_batch_size = 4, .max_seq_len = 200});
  scheduler.add_request({.prompt = prompt(3)});
  scheduler.add_request({.prompt = prompt(3)});
  const Step step = scheduler.schedule();
  const auto refused = [](const char* part, auto&& call) {
    expect_error(ErrorCode::kArgument, part, call);
  };
  refused("completed or abandoned", [&] { scheduler.schedule(); });
  refused("each of the 2 rows of logits, got 1", [&] { scheduler.complete(step, Tokens{1}); });
  const Tokens two{1, 2};
  using Results = std::vector<SegmentResult>;
  refused("each of the 2 segments, got 1",
          [&] { scheduler.complete(step, Results{{.tokens = two}}); });
  refused("must give 1 to 1 tokens, got 2 for request 0", [&] {
    scheduler.complete(step, Results{{.tokens = two}, {}});
  });
  refused("must give 1 to 1 tokens, got 0 for request 0", [&] {
    scheduler.complete(step, Results{{}, {}});
  });
  scheduler.complete(step, two);
  EXPECT_EQ(scheduler.output(0).size(), 1u);
  EXPECT_EQ(scheduler.output(1).front(), 2);
  refused("the open one", [&] { scheduler.complete(step, two); });
  refused("the open one", [&] { scheduler.abandon(step); });
}

TEST(Scheduler, AnAbandonedStepLeavesNothingBehind) {
  BlockManager blocks = make_blocks(8);
  Scheduler scheduler({.max_batch_size = 4, .max_num_batched_tokens = 16}, blocks);
  scheduler.add_request({.prompt = prompt(20)});
  for (const char* expected : {"0:16", "0:4+", "0:1+"}) {
    for (int i = 0; i < 2; ++i) {
      const Step step = scheduler.schedule();
      EXPECT_EQ(text(step), expected);
      scheduler.abandon(step);
    }
    run_step(scheduler);
  }
  EXPECT_EQ(scheduler.output(0).size(), 2u);
}

// ---- Drafts

TEST(Scheduler, VerifiesDraftsAndRollsBackTheRejected) {
  BlockManager blocks = make_blocks(8);
  Scheduler scheduler({.max_batch_size = 4}, blocks);
  scheduler.add_request({.prompt = prompt(14), .max_new_tokens = 30, .stop_tokens = {99}});
  scheduler.set_drafts(0, Tokens{1, 2, 3});
  EXPECT_EQ(scheduler.num_useful_drafts(0), 0) << "it waits";
  EXPECT_EQ(run_step(scheduler, 1), "0:14+") << "not behind a prompt";
  EXPECT_EQ(scheduler.num_useful_drafts(0), 28);
  scheduler.set_drafts(0, Tokens{2, 3, 4, 5, 6});  // in two blocks
  const Step first = scheduler.schedule();
  EXPECT_EQ(text(first), "0:6+-5");
  EXPECT_EQ(first.segments[0].num_rows, 6);
  EXPECT_EQ(first.segments[0].output_index, 1);
  EXPECT_EQ(blocks.num_free_blocks(), 6);
  scheduler.complete(first, Tokens{2, 3, 40, 5, 6, 7});  // 4 was wrong: all after it is void
  const auto output = scheduler.output(0);
  EXPECT_EQ(Tokens(output.begin(), output.end()), Tokens({1, 2, 3, 40}));
  EXPECT_EQ(blocks.length(0), 17) << "14, the first token, and two drafts; 40 is to be computed";
  EXPECT_EQ(blocks.reserved(0), 17);

  scheduler.set_drafts(0, Tokens{99, 8});
  const Step second = scheduler.schedule();
  scheduler.complete(second, Tokens{99, 8, 9});
  EXPECT_EQ(scheduler.finish_reason(0), FinishReason::kStop) << "inside the accepted ones";
  EXPECT_EQ(scheduler.output(0).size(), 5u);
  EXPECT_EQ(scheduler.progress(0).num_draft_tokens, 7);
  EXPECT_EQ(scheduler.progress(0).num_accepted_tokens, 2);
  EXPECT_EQ(blocks.num_free_blocks(), 8);
  Tokens rejected = prompt(14);
  rejected.insert(rejected.end(), {1, 2, 3, 4, 5});
  EXPECT_EQ(blocks.find_prefix(rejected).num_tokens, 16) << "no more than was accepted";
}

TEST(Scheduler, TakesResultsOfOtherRulesOfAcceptance) {
  Scheduler scheduler({.max_batch_size = 4, .max_seq_len = 200});
  scheduler.add_request({.prompt = prompt(4)});
  run_step(scheduler);
  scheduler.set_drafts(0, Tokens{6, 7});
  const Step step = scheduler.schedule();
  const auto complete = [&](const Tokens& tokens) {
    scheduler.complete(step, std::vector<SegmentResult>{{.tokens = tokens}});
  };
  expect_error(ErrorCode::kArgument, "all tokens but the last must be drafts", [&] {
    complete({5, 7});
  });
  complete({6, 70});  // the second one was rejected
  EXPECT_EQ(scheduler.output(0).size(), 3u);
  const Step next = scheduler.schedule();
  EXPECT_EQ(next.batch.segments()[0].first_position, 6);
  EXPECT_EQ(next.batch.segments()[0].tokens.front(), 70);
  scheduler.abandon(next);
}

TEST(Scheduler, DraftsTakeNoMoreThanTheBudgetsLeave) {
  Scheduler scheduler({.max_batch_size = 4,
                       .max_seq_len = 200,
                       .max_num_batched_tokens = 12,
                       .min_prefill_share = 0.25});
  scheduler.add_request({.prompt = prompt(4), .max_new_tokens = 20});
  scheduler.add_request({.prompt = prompt(4), .max_new_tokens = 5});
  run_step(scheduler);
  const Tokens drafts(9, 1);
  scheduler.set_drafts(0, drafts);
  scheduler.set_drafts(1, drafts);
  const Step alone = scheduler.schedule();
  EXPECT_EQ(text(alone), "0:10+-9 1:2+-1") << "12 tokens in all";
  scheduler.abandon(alone);
  scheduler.add_request({.prompt = prompt(40)});
  scheduler.set_drafts(0, drafts);
  scheduler.set_drafts(1, drafts);
  const Step beside = scheduler.schedule();
  EXPECT_EQ(text(beside), "0:8+-7 1:1+ 2:3") << "a quarter is for prompts";
  scheduler.abandon(beside);
  scheduler.cancel(0);
  scheduler.cancel(2);
  scheduler.set_drafts(1, drafts);
  EXPECT_EQ(run_step(scheduler, 2), "1:4+-3") << "of 4 tokens that may come, 3 drafts and one more";
}

// ---- Samples

TEST(Scheduler, SamplesShareThePromptThatIsComputedOnce) {
  BlockManager blocks = make_blocks(20);
  Scheduler scheduler({.max_batch_size = 8, .max_num_batched_tokens = 24}, blocks);
  const auto first =
      scheduler.add_request({.prompt = prompt(40), .max_new_tokens = 4, .num_samples = 3});
  EXPECT_EQ(*first, 0);
  EXPECT_EQ(scheduler.statistics().num_waiting, 3);
  EXPECT_EQ(run_step(scheduler), "0:24");
  EXPECT_EQ(run_step(scheduler), "0:16+");
  EXPECT_EQ(run_step(scheduler), "0:1+ 1:1+ 2:1+") << "the others compute its last token again";
  // Two full blocks in common, and a tail for each.
  EXPECT_EQ(20 - blocks.num_free_blocks(), 2 + 3);
  EXPECT_EQ(blocks.statistics().num_shared, 2);
  EXPECT_EQ(scheduler.progress(2).num_cached_tokens, 39);
  run_all(scheduler);
  for (const RequestOutput& output : scheduler.take_finished()) {
    EXPECT_EQ(output.sample, output.id);
    EXPECT_EQ(output.tokens.size(), 4u);
  }
  EXPECT_EQ(blocks.num_free_blocks(), 20);
}

TEST(Scheduler, SamplesMayBeMoreThanSlotsAndOutliveEachOther) {
  BlockManager blocks = make_blocks(20, 2);
  Scheduler scheduler({.max_batch_size = 2, .max_num_batched_tokens = 16}, blocks);
  scheduler.add_request({.prompt = prompt(40), .max_new_tokens = 3, .num_samples = 5});
  run_step(scheduler);
  scheduler.cancel(0);  // in the middle of the prompt: the next one goes on with it
  EXPECT_EQ(run_step(scheduler), "1:16") << "from what was committed";
  EXPECT_EQ(run_step(scheduler), "1:8+");
  scheduler.cancel(3);
  run_all(scheduler);
  for (const RequestId id : {1, 2, 4}) {
    EXPECT_EQ(scheduler.finish_reason(id), FinishReason::kLength);
    EXPECT_EQ(scheduler.output(id).size(), 3u);
  }
  EXPECT_EQ(scheduler.progress(4).num_cached_tokens, 39);
}

TEST(Scheduler, FindsPrefixesOfTheSameKeyAgain) {
  BlockManager blocks = make_blocks(20);
  Scheduler scheduler({.max_batch_size = 8, .max_num_batched_tokens = 40}, blocks);
  const PrefixKey key{.salt = 7};
  scheduler.add_request({.prompt = prompt(40), .max_new_tokens = 1, .prefix_key = key});
  scheduler.add_request({.prompt = prompt(40), .max_new_tokens = 1, .prefix_key = key});
  EXPECT_EQ(run_step(scheduler), "0:40+");
  EXPECT_EQ(run_step(scheduler), "1:8+") << "admitted before the blocks were there, yet found";
  scheduler.add_request({.prompt = prompt(40), .max_new_tokens = 1, .prefix_key = {.salt = 8}});
  EXPECT_EQ(run_step(scheduler), "2:40+");
  EXPECT_EQ(scheduler.progress(1).num_cached_tokens, 32);
  EXPECT_EQ(scheduler.statistics().num_cached_tokens, 32);
  EXPECT_EQ(scheduler.statistics().num_prompt_tokens, 120);
}

// A contiguous cache has neither blocks nor prefixes nor forks.
TEST(Scheduler, TakesAContiguousCacheToo) {
  ContiguousKVCache cache(
      ElementType::kF32,
      {.num_layers = 1, .batch_size = 2, .num_kv_heads = 1, .max_seq_len = 50, .head_dim = 4});
  {
    Scheduler scheduler({.max_batch_size = 2}, cache);
    scheduler.add_request({.prompt = prompt(40), .max_new_tokens = 10, .num_samples = 3});
    EXPECT_EQ(run_step(scheduler), "0:40+");
    EXPECT_EQ(run_step(scheduler), "0:1+ 1:40+");
    EXPECT_EQ(cache.length(1), 40);
    EXPECT_EQ(cache.length(0), 41);
  }
  EXPECT_EQ(cache.length(0), 0) << "the slots are given back";
}

// ---- Cost

TEST(Scheduler, StepsDoNotAllocateOnceBuffersHaveGrown) {
  BlockManager blocks({.num_blocks = 400, .num_sequences = 32, .max_seq_len = 600});
  Scheduler scheduler({.max_batch_size = 32, .max_step_ms = 100}, blocks);
  for (TokenId i = 0; i < 32; ++i) {
    scheduler.add_request({.prompt = prompt(10, i), .max_new_tokens = 500});
  }
  Tokens tokens(32, 5);
  const auto run = [&](int num_steps) {
    for (int i = 0; i < num_steps; ++i) {
      const Step step = scheduler.schedule();
      scheduler.complete(
          step, std::span(tokens).first(static_cast<std::size_t>(step.batch.num_logits())));
    }
  };
  run(260);  // the vectors of tokens have doubled to 320 and more
  const std::size_t before = support::num_allocations();
  run(30);
  EXPECT_EQ(support::num_allocations(), before);
}

}  // namespace
}  // namespace kvick
