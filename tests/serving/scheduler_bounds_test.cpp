// SPDX-License-Identifier: MIT
// What the scheduler promises of time: between tokens, until the first step, and of its own.
// Simulated, so that every figure is the same on every machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvick/cache/block_manager.hpp"
#include "kvick/core/random.hpp"
#include "kvick/serving/scheduler.hpp"
#include "serving/hash_model.hpp"
#include "support/scheduler_simulation.hpp"

namespace kvick {
namespace {

using support::MachineCost;
using support::SimulatedRequest;
using support::SimulationResult;
using support::Workload;
using Tokens = std::vector<TokenId>;

/// 26 ms to read the weights, then 1.8 ms a row; about TinyLlama's on two cores.
const MachineCost kMachine({{1, 26}, {16, 52}, {512, 960}}, {5e-4, 5e-4});

std::vector<SimulatedRequest> long_prompts_among_decodes() {
  return support::make_requests(support::ChatsAndLongPrompts{
      .num_chats = 600, .chats_per_s = 0.5, .num_prompts = 300, .prompts_per_s = 0.25});
}

const SchedulerOptions kUnchunked{
    .max_batch_size = 16, .max_seq_len = 2048, .max_num_batched_tokens = 16 * 2048};

TEST(SchedulerBounds, ChunksOfPromptsShortenTheWaitForTheNextToken) {
  const auto requests = long_prompts_among_decodes();
  SchedulerOptions chunked = kUnchunked;
  chunked.max_num_batched_tokens = 512;
  SchedulerOptions timed = kUnchunked;
  timed.max_step_ms = 150;
  const SimulationResult whole = support::simulate(requests, kUnchunked, kMachine);
  const SimulationResult chunks = support::simulate(requests, chunked, kMachine);
  const SimulationResult in_time = support::simulate(requests, timed, kMachine);
  EXPECT_EQ(whole.num_output_tokens, chunks.num_output_tokens);
  EXPECT_EQ(whole.num_output_tokens, in_time.num_output_tokens);
  EXPECT_GE(whole.num_mixed_decode_steps, whole.num_decode_steps / 20);
  // Half of a prompt, where two or more may come at once without chunks. More than that only a
  // budget in time gives: 512 tokens take this machine a second.
  EXPECT_LT(chunks.itl_ms.max(), kMachine.rows(512) + 512 * kMachine.attention(1100, 1) +
                                     16 * kMachine.attention(400, 1));
  EXPECT_LT(1.8 * chunks.itl_ms.percentile(0.99), whole.itl_ms.percentile(0.99));
  EXPECT_LT(10 * in_time.itl_ms.percentile(0.99), whole.itl_ms.percentile(0.99));
  EXPECT_LT(chunks.duration_ms, 1.05 * whole.duration_ms);
  EXPECT_LT(in_time.duration_ms, 1.05 * whole.duration_ms);
}

// Many prompts at once, before anything is known of what steps cost.
TEST(SchedulerBounds, TheFirstStepsKeepTheTimeBudgetToo) {
  std::vector<SimulatedRequest> requests(40, {0, 1024, 30});
  requests[0].num_prompt_tokens = 20;
  SchedulerOptions options = kUnchunked;
  options.max_num_batched_tokens = 2048;
  options.max_step_ms = 150;
  const SimulationResult result = support::simulate(requests, options, kMachine);
  EXPECT_LT(result.itl_ms.max(), 2 * 150);
}

// With a time budget T and the share s for prompts: max(T, decode time + s * T) per step, once
// costs are known, and prompts get their share in every step.
TEST(SchedulerBounds, AStepTakesNoLongerThanItsBudgetAllowsAndPromptsGetTheirShare) {
  SchedulerOptions options = kUnchunked;
  options.max_step_ms = 80;
  options.min_prefill_share = 0.25;
  int num_steps = 0, num_bound = 0, num_beyond_budget = 0;
  const auto requests = long_prompts_among_decodes();
  const auto check = [&](const Step& step, double from, double to) {
    if (++num_steps <= 300) return;  // learning
    double num_decodes = 0, attention_ms = 0, num_prompt_tokens = 0;
    bool leaves_tokens = false;
    for (std::size_t i = 0; i < step.segments.size(); ++i) {
      const Segment& segment = step.batch.segments()[i];
      if (step.segments[i].output_index > 0) {
        ++num_decodes;
        attention_ms += kMachine.attention(segment.first_position, 1);
      } else {
        num_prompt_tokens += static_cast<double>(segment.tokens.size());
        leaves_tokens |= step.segments[i].num_rows == 0;
      }
    }
    if (num_decodes == 0) return;  // nobody waits for a next token
    const double decode_ms = kMachine.rows(num_decodes) + attention_ms;
    const double bound = std::max(80.0, decode_ms + 0.25 * 80);
    // The fit to a machine with a kink errs: the bound is as good as costs are foreseen.
    EXPECT_LE(to - from, 1.1 * bound) << "step " << num_steps;
    ++num_bound;
    if (bound > 80) ++num_beyond_budget;
    // A token of a prompt takes at most 2.5 ms here.
    if (leaves_tokens) {
      EXPECT_GE(num_prompt_tokens * 2.5, 0.25 * 80 * 0.9) << "step " << num_steps;
    }
  };
  const SimulationResult result = support::simulate(requests, options, kMachine, check);
  EXPECT_GT(num_bound, 3000);
  EXPECT_LT(result.itl_ms.percentile(0.99), 90);
  const SimulationResult whole = support::simulate(requests, kUnchunked, kMachine);
  EXPECT_GT(whole.itl_ms.percentile(0.99), 10 * result.itl_ms.percentile(0.99));
}

/// Steps until the request of lowest priority starts while others keep coming.
struct Waiting {
  std::int64_t num_steps = 0;
  std::int64_t num_before = 0;  // requests before it in order
};

Waiting wait_of_the_lowest(double ageing_ms) {
  double now = 0;
  support::HashModel model(
      {.num_blocks = 16, .block_tokens = 16, .num_sequences = 4, .max_seq_len = 128});
  Scheduler scheduler({.max_batch_size = 4,
                       .max_num_batched_tokens = 16,
                       .ageing_ms = ageing_ms,
                       .clock_ms = [&now] { return now; }},
                      model);
  PhiloxStream random(7);
  const auto add = [&](int priority) {
    Tokens prompt(1 + random.next_below(60));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random.next_below(1000));
    return *scheduler.add_request({.prompt = std::move(prompt),
                                   .max_new_tokens = static_cast<int>(1 + random.next_below(60)),
                                   .priority = priority});
  };
  for (int i = 0; i < 10; ++i) add(2);
  const RequestId lowest = add(-2);
  Waiting waiting{.num_before = 10};
  while (std::isnan(scheduler.progress(lowest).first_step_ms)) {
    // Twice as many arrive as can be served.
    if (random.next_below(6) == 0) {
      add(2);
      if (now < 4 * ageing_ms) ++waiting.num_before;
    }
    const Step step = scheduler.schedule();
    now += 10;
    scheduler.complete(step, model.forward(step.batch));
    if (++waiting.num_steps == 50'000) break;
  }
  return waiting;
}

// S = 2 * max_seq_len / (least tokens of prompts) + max_new_tokens; here prompts get what three
// decodes at most leave of 16 tokens, the first in order half of it.
TEST(SchedulerBounds, NoRequestWaitsLongerThanStated) {
  constexpr std::int64_t kSteps = 2 * 128 / 13 + 60;
  const Waiting waiting = wait_of_the_lowest(1000);
  EXPECT_LE(waiting.num_steps, (waiting.num_before + 4) * kSteps);
  EXPECT_GT(waiting.num_steps, 400) << "4,000 ms: all others were before it until then";
  EXPECT_EQ(wait_of_the_lowest(1e6).num_steps, 50'000) << "without ageing the load starves it";
}

// A prompt among requests that decode gets on in each step, and they do in each of its steps.
TEST(SchedulerBounds, NeitherDecodesNorALongPromptStarveTheOther) {
  Scheduler scheduler({.max_batch_size = 4, .max_seq_len = 2000, .max_num_batched_tokens = 4});
  for (int i = 0; i < 3; ++i) {
    scheduler.add_request({.prompt = Tokens(1), .max_new_tokens = 1500});
  }
  const auto run = [&] {
    const Step step = scheduler.schedule();
    const auto num_segments = step.segments.size();
    scheduler.complete(step, Tokens(static_cast<std::size_t>(step.batch.num_logits())));
    return num_segments;
  };
  run();
  const auto id = scheduler.add_request({.prompt = Tokens(1000), .max_new_tokens = 1});
  int num_steps = 0;
  while (!scheduler.is_done(*id)) {
    ASSERT_EQ(run(), 4u);
    ++num_steps;
  }
  EXPECT_EQ(num_steps, 1000) << "one token in each, the least there is";
}

// Of what a step does, only the calls of the room are counted: they are the same.
TEST(SchedulerBounds, AStepDoesNoMoreWorkWhenMoreRequestsWait) {
  const auto num_calls = [](int num_waiting) {
    support::HashModel model({.num_blocks = 64, .num_sequences = 16, .max_seq_len = 1000});
    Scheduler scheduler({.max_batch_size = 16}, model);
    for (int i = 0; i < 16 + num_waiting; ++i) {
      scheduler.add_request({.prompt = Tokens(100, i % 1000), .max_new_tokens = 150});
    }
    for (int i = 0; i < 100; ++i) {
      const Step step = scheduler.schedule();
      scheduler.complete(step, model.forward(step.batch));
    }
    EXPECT_EQ(scheduler.statistics().num_waiting, num_waiting);
    return model.num_calls;
  };
  EXPECT_EQ(num_calls(10), num_calls(10'000));
}

// ---- The simulation itself

TEST(MachineCost, InterpolatesAndGoesOn) {
  EXPECT_DOUBLE_EQ(kMachine.rows(1), 26);
  EXPECT_DOUBLE_EQ(kMachine.rows(8.5), 39);
  EXPECT_DOUBLE_EQ(kMachine.rows(16), 52);
  EXPECT_DOUBLE_EQ(kMachine.rows(512 + 496), 960 + 908);
}

TEST(MachineCost, TokensSeeThemselvesAndAllBefore) {
  const MachineCost cost({{1, 10}, {2, 11}}, {.prompt = 0.5, .decode = 2});
  EXPECT_DOUBLE_EQ(cost.attention(10, 3), 0.5 * (11 + 12 + 13));
  EXPECT_DOUBLE_EQ(cost.attention(9, 1), 2 * 10);
}

TEST(SchedulerSimulation, ArrivalsFollowTheirLaw) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const auto requests = support::make_requests({.num_requests = 50'000,
                                                  .requests_per_s = 2,
                                                  .burstiness = burstiness,
                                                  .prompts = {16, 512, true},
                                                  .outputs = {5, 9}});
    double sum = 0, squares = 0, last = 0, log_lengths = 0, outputs = 0;
    for (const SimulatedRequest& request : requests) {
      const double gap = request.arrival_ms - last;
      last = request.arrival_ms;
      sum += gap;
      squares += gap * gap;
      log_lengths += std::log(request.num_prompt_tokens + 0.5);
      outputs += request.num_output_tokens;
      ASSERT_TRUE(request.num_prompt_tokens >= 16 && request.num_prompt_tokens <= 512);
      ASSERT_TRUE(request.num_output_tokens >= 5 && request.num_output_tokens <= 9);
    }
    const double n = static_cast<double>(requests.size());
    const double mean = sum / n;
    // Five standard errors: of the mean 500 / sqrt(b n), of variance / mean^2 = 1 / b about
    // sqrt((2 + 6 / b) / n) / b.
    EXPECT_NEAR(mean, 500, 5 * 500 / std::sqrt(burstiness * n));
    EXPECT_NEAR(squares / n / (mean * mean) - 1, 1 / burstiness,
                5 * std::sqrt((2 + 6 / burstiness) / n) / burstiness + 0.01);
    EXPECT_NEAR(log_lengths / n, (std::log(16) + std::log(513)) / 2, 0.03);
    EXPECT_NEAR(outputs / n, 7, 0.05);
  }
}

TEST(SchedulerSimulation, ChatsAndLongPromptsComeInOrderOfArrival) {
  const auto requests = long_prompts_among_decodes();
  ASSERT_EQ(requests.size(), 900u);
  EXPECT_TRUE(std::is_sorted(requests.begin(), requests.end(), [](const auto& a, const auto& b) {
    return a.arrival_ms < b.arrival_ms;
  }));
  EXPECT_EQ(
      std::count_if(requests.begin(), requests.end(),
                    [](const auto& r) { return r.num_prompt_tokens == support::kLongPrompt; }),
      300);
}

// Two requests in one batch, by hand: prompts of 3 and 5 tokens, outputs of 2 and 4.
TEST(SchedulerSimulation, StaticBatchesWaitForTheLongest) {
  const MachineCost cost({{1, 10}, {2, 11}}, {});
  const SimulationResult result =
      support::simulate_static({{0, 3, 2}, {0, 5, 4}, {1, 1, 1}}, 2, cost);
  // 2 * 5 rows: 19 ms; three steps of 11 ms; the third request alone: 10 ms.
  EXPECT_DOUBLE_EQ(result.duration_ms, 19 + 3 * 11 + 10);
  EXPECT_EQ(result.num_output_tokens, 7);
  EXPECT_EQ(result.itl_ms.num_values(), 4);
  EXPECT_NEAR(result.ttft_ms.max(), 19 + 33 + 10 - 1, 1e-9);
}

TEST(SchedulerSimulation, ContinuousBatchesReplaceTheFinished) {
  const MachineCost cost({{1, 10}, {2, 11}}, {});
  const SimulationResult result = support::simulate(
      {{0, 3, 2}, {0, 5, 4}, {1, 1, 1}}, {.max_batch_size = 2, .max_seq_len = 100}, cost);
  // 8 rows: 17 ms; 2 rows: 11; the third joins: 11; one row: 10.
  EXPECT_DOUBLE_EQ(result.duration_ms, 17 + 11 + 11 + 10);
  EXPECT_EQ(result.num_steps, 4);
  EXPECT_EQ(result.num_output_tokens, 7);
  EXPECT_EQ(result.num_decode_steps, 3);
  EXPECT_EQ(result.num_mixed_decode_steps, 1);
}

// Output lengths log-uniform in [16, 512]: the mean is 496 / ln 32 = 143, the expected longest of
// 16 about 420, so the batch of 16 does nearly three times the work when the finished leave.
TEST(SchedulerSimulation, ContinuousBatchingBeatsStaticBatching) {
  for (const bool is_log_uniform : {true, false}) {
    const auto requests = support::make_requests(
        {.num_requests = 1000, .prompts = {16, 64}, .outputs = {16, 512, is_log_uniform}});
    const double static_speed = support::simulate_static(requests, 16, kMachine).tokens_per_s();
    const double speed = support::simulate(requests, kUnchunked, kMachine).tokens_per_s();
    EXPECT_GT(speed, (is_log_uniform ? 2.3 : 1.6) * static_speed);
  }
}

}  // namespace
}  // namespace kvick
