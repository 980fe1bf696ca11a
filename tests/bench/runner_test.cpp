// SPDX-License-Identifier: MIT
#include "kvick/bench/runner.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "bench/fake_model.hpp"
#include "cache/expect_error.hpp"
#include "kvick/bench/engine_target.hpp"
#include "kvick/bench/metrics.hpp"
#include "kvick/bench/workload.hpp"
#include "kvick/serving/engine_core.hpp"

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

std::vector<double> times(const RequestTimeline& timeline) {
  std::vector<double> seconds;
  for (const TimedOutput& output : timeline.outputs) seconds.push_back(output.seconds);
  return seconds;
}

TEST(RunWorkload, NotesTheTimesOfAFakeClockExactly) {
  FakeClock clock;
  TimedModel model(clock, seconds_of);
  EngineCore engine(model, {.scheduler = {.max_batch_size = 2, .max_seq_len = 64}});
  EngineTarget target(engine);
  const Workload workload{
      {request(0, {1, 2, 3, 4}, 3), request(0.75, {5, 6}, 2), request(5, {7}, 1)}};
  const RunResult result = run_workload(target, workload, clock);
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
  EngineCore engine(model, {.scheduler = {.max_batch_size = 4, .max_seq_len = 64}});
  EngineTarget target(engine);
  Workload workload{{}, 2};
  for (const int length : {3, 1, 2, 1}) workload.requests.push_back(request(0, {1}, length));
  const RunResult result = run_workload(target, workload, clock);
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

}  // namespace
}  // namespace kvick
