// SPDX-License-Identifier: MIT
#include "kvick/bench/runner.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "bench/fake_model.hpp"
#include "cache/expect_error.hpp"
#include "kvick/bench/metrics.hpp"
#include "kvick/bench/plain_batcher.hpp"
#include "kvick/bench/workload.hpp"

namespace kvick {
namespace {

using support::FakeClock;
using support::TimedModel;

/// 1/4 s per pass and 1/16 s per token of it: sums of these are exact.
double seconds_of(const Batch& batch) {
  return 0.25 + 0.0625 * static_cast<double>(batch.num_tokens());
}

WorkloadRequest request(double arrival, std::vector<TokenId> prompt, int num_output_tokens) {
  return {arrival, std::move(prompt), num_output_tokens, 0};
}

std::vector<TokenId> lone_output(std::vector<TokenId> tokens, int count) {
  std::vector<TokenId> output;
  for (int i = 0; i < count; ++i) {
    output.push_back(TimedModel::next(tokens));
    tokens.push_back(output.back());
  }
  return output;
}

std::vector<double> times(const RequestTimeline& timeline) {
  std::vector<double> seconds;
  for (const TimedOutput& output : timeline.outputs) seconds.push_back(output.seconds);
  return seconds;
}

TEST(RunWorkload, NotesTheTimesOfAFakeClockExactly) {
  FakeClock clock;
  TimedModel model(clock, seconds_of);
  PlainBatcher batcher(model, {.max_batch_size = 2, .max_seq_len = 64});
  const Workload workload{
      {request(0, {1, 2, 3, 4}, 3), request(0.75, {5, 6}, 2), request(5, {7}, 1)}};
  const RunResult result = run_workload(batcher, workload, clock);
  // Pass 1: 4 tokens, 0.5 s. Pass 2, from 0.5: 1 token, 0.3125 s, to 0.8125. The second request
  // came meanwhile: pass 3 has 1 + 2 tokens, 0.4375 s, to 1.25; pass 4 its last, to 1.5625.
  EXPECT_EQ(times(result.timelines[0]), (std::vector<double>{0.5, 0.8125, 1.25}));
  EXPECT_EQ(times(result.timelines[1]), (std::vector<double>{1.25, 1.5625}));
  // Nothing to do until 5.
  EXPECT_EQ(times(result.timelines[2]), (std::vector<double>{5.3125}));
  EXPECT_EQ(result.duration_seconds, 5.3125);

  const ServingMetrics metrics = serving_metrics(result.timelines, result.duration_seconds);
  EXPECT_EQ(metrics.ttft_samples, (std::vector<double>{0.5, 0.5, 0.3125}));  // queue included
  EXPECT_EQ(metrics.tpot_samples, (std::vector<double>{0.375, 0.3125}));
  EXPECT_EQ(metrics.itl_samples, (std::vector<double>{0.3125, 0.4375, 0.3125}));
  EXPECT_EQ(metrics.e2el_samples, (std::vector<double>{1.25, 0.8125, 0.3125}));
  EXPECT_EQ(metrics.output_throughput, 6 / 5.3125);
  EXPECT_EQ(metrics.queue_samples, (std::vector<double>{0, 0, 0}));
}

TEST(RunWorkload, KeepsTheConcurrencyOfAClosedLoop) {
  FakeClock clock;
  TimedModel model(clock, [](const Batch&) { return 1.0; });
  PlainBatcher batcher(model, {.max_batch_size = 4, .max_seq_len = 64});
  Workload workload{{}, 2};
  for (const int length : {3, 1, 2, 1}) workload.requests.push_back(request(0, {1}, length));
  const RunResult result = run_workload(batcher, workload, clock);
  std::vector<double> sent;
  for (const RequestTimeline& timeline : result.timelines) sent.push_back(timeline.sent_seconds);
  EXPECT_EQ(sent, (std::vector<double>{0, 0, 1, 3}));
  const ServingMetrics metrics = serving_metrics(result.timelines, result.duration_seconds);
  EXPECT_EQ(metrics.peak_concurrency, 2);
  EXPECT_EQ(metrics.queue_samples, (std::vector<double>{0, 0, 1, 3}));
  EXPECT_EQ(metrics.e2el_samples, (std::vector<double>{3, 1, 2, 1}));
}

/// Answers wrongly in every way that a runner must not accept or must count.
struct OddTarget {
  std::vector<StepOutput> outputs;
  bool works = true;

  void submit(std::size_t, const WorkloadRequest&) {}
  bool has_work() const { return works; }
  std::span<const StepOutput> step() { return outputs; }
};

TEST(RunWorkload, RefusesTargetsThatStopOrAnswerForOthers) {
  FakeClock clock;
  const Workload workload{{request(0, {1}, 1)}};
  OddTarget idle{{}, false};
  support::expect_error(ErrorCode::kArgument, "1 are not",
                        [&] { run_workload(idle, workload, clock); });
  OddTarget stranger{{{7, {1}, true}}};
  support::expect_error(ErrorCode::kArgument, "below 1, got 7",
                        [&] { run_workload(stranger, workload, clock); });
}

TEST(RunWorkload, CountsFailedRequestsApart) {
  FakeClock clock;
  OddTarget failing{{{0, {}, false, true}}};
  const RunResult result = run_workload(failing, {{request(0, {1}, 1)}}, clock);
  EXPECT_EQ(serving_metrics(result.timelines, 1).num_failed, 1u);
}

TEST(PlainBatcher, StaticBatchesStartAndEndTogether) {
  const auto end_times = [](bool is_static) {
    FakeClock clock;
    TimedModel model(clock, [](const Batch&) { return 1.0; });
    PlainBatcher batcher(model, {.max_batch_size = 2, .max_seq_len = 64, .is_static = is_static});
    Workload workload;
    for (const int length : {4, 1, 1, 2}) workload.requests.push_back(request(0, {1}, length));
    std::vector<double> ends;
    for (const RequestTimeline& t : run_workload(batcher, workload, clock).timelines) {
      ends.push_back(t.outputs.back().seconds);
    }
    return ends;
  };
  EXPECT_EQ(end_times(true), (std::vector<double>{4, 1, 5, 6}));
  EXPECT_EQ(end_times(false), (std::vector<double>{4, 1, 2, 4}));
}

TEST(PlainBatcher, ChunksPromptsWithinTheBudgetAndDecodesFirst) {
  FakeClock clock;
  std::vector<std::vector<std::size_t>> passes;
  TimedModel model(clock, [&](const Batch& batch) {
    auto& sizes = passes.emplace_back();
    for (const Segment& segment : batch.segments()) sizes.push_back(segment.tokens.size());
    return 1.0;
  });
  PlainBatcher batcher(model,
                       {.max_batch_size = 2, .max_seq_len = 64, .max_num_batched_tokens = 4});
  const Workload workload{{request(0, {1, 2}, 4), request(0, std::vector<TokenId>(9, 3), 2)}};
  const RunResult result = run_workload(batcher, workload, clock);
  EXPECT_EQ(passes, (std::vector<std::vector<std::size_t>>{{2, 2}, {1, 3}, {1, 3}, {1, 1}, {1}}));
  EXPECT_EQ(times(result.timelines[1]), (std::vector<double>{4, 5}));
}

TEST(PlainBatcher, GivesEveryRequestItsLoneOutput) {
  for (const int max_batch_size : {1, 3, 8}) {
    for (const int budget : {8, 16, 512}) {
      for (const bool is_static : {false, true}) {
        FakeClock clock;
        TimedModel model(clock, seconds_of);
        PlainBatcher batcher(model, {.max_batch_size = max_batch_size,
                                     .max_num_batched_tokens = budget,
                                     .is_static = is_static});
        const Workload workload = make_workload({.num_requests = 30,
                                                 .prompt_tokens = uniform_length(1, 40),
                                                 .output_tokens = uniform_length(1, 20),
                                                 .request_rate = 2,
                                                 .vocab_size = 50});
        const RunResult result = run_workload(batcher, workload, clock);
        for (std::size_t i = 0; i < workload.requests.size(); ++i) {
          const WorkloadRequest& r = workload.requests[i];
          ASSERT_EQ(result.outputs[i], lone_output(r.prompt, r.num_output_tokens)) << i;
        }
      }
    }
  }
}

TEST(PlainBatcher, RefusesWhatItCannotServe) {
  FakeClock clock;
  TimedModel model(clock, seconds_of);
  PlainBatcher batcher(model, {.max_batch_size = 1, .max_seq_len = 8});
  batcher.submit(0, request(0, {1, 2, 3, 4}, 5));  // the last token need not be cached
  support::expect_error(ErrorCode::kCapacity, "8 tokens of a slot", [&] {
    batcher.submit(1, request(0, {1, 2, 3, 4}, 6));
  });
  support::expect_error(ErrorCode::kArgument, "a prompt",
                        [&] { batcher.submit(1, request(0, {}, 1)); });
  support::expect_error(ErrorCode::kArgument, "at least max_batch_size 4", [&] {
    PlainBatcher small(model, {.max_batch_size = 4, .max_num_batched_tokens = 3});
  });
}

}  // namespace
}  // namespace kvick
