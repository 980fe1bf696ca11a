// SPDX-License-Identifier: MIT
#include "kvick/bench/engine_target.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bench/fake_model.hpp"
#include "cache/expect_error.hpp"
#include "kvick/bench/metrics.hpp"
#include "kvick/bench/workload.hpp"
#include "kvick/serving/engine.hpp"
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

std::vector<TokenId> lone_output(std::vector<TokenId> tokens, int count) {
  std::vector<TokenId> output;
  for (int i = 0; i < count; ++i) {
    output.push_back(TimedModel::next(tokens));
    tokens.push_back(output.back());
  }
  return output;
}

void expect_lone_outputs(const Workload& workload, const RunResult& result) {
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const WorkloadRequest& r = workload.requests[i];
    EXPECT_EQ(result.outputs[i], lone_output(r.prompt, r.num_output_tokens)) << "request " << i;
  }
}

Workload random_workload(int num_requests) {
  return make_workload({.num_requests = num_requests,
                        .prompt_tokens = uniform_length(1, 40),
                        .output_tokens = uniform_length(1, 20),
                        .request_rate = 2,
                        .vocab_size = 50});
}

/// Two slots, 1 s per step: when each request got its last token.
std::vector<double> end_times(bool is_static) {
  FakeClock clock;
  TimedModel model(clock, [](const Batch&) { return 1.0; });
  EngineCore engine(model, {.scheduler = {.max_batch_size = 2, .max_seq_len = 64}});
  EngineTarget target(engine);
  StaticBatches batches(target, 2);
  Workload workload;
  for (const int length : {4, 1, 1, 2}) workload.requests.push_back(request(0, {1}, length));
  const RunResult result =
      is_static ? run_workload(batches, workload, clock) : run_workload(target, workload, clock);
  std::vector<double> ends;
  for (const RequestTimeline& t : result.timelines) ends.push_back(t.outputs.back().seconds);
  return ends;
}

TEST(StaticBatches, StartTogetherAndWaitForTheLongest) {
  EXPECT_EQ(end_times(true), (std::vector<double>{4, 1, 5, 6}));
  EXPECT_EQ(end_times(false), (std::vector<double>{4, 1, 2, 4}));
}

TEST(EngineTarget, TimesAreThoseThatTheEngineItselfMeasures) {
  FakeClock clock;
  TimedModel model(clock, seconds_of);
  EngineCore engine(model, {.scheduler = {.max_batch_size = 2, .max_seq_len = 64, .clock_ms = [&] {
                                            return 1000 * clock.now();
                                          }}});
  EngineTarget target(engine);
  const Workload workload{{request(0, {1, 2, 3, 4}, 3), request(0, {5, 6}, 2), request(0, {7}, 1)}};
  const RunResult result = run_workload(target, workload, clock);
  const ServingMetrics ours = serving_metrics(result.timelines, result.duration_seconds);
  // Pass 1: 6 tokens, 0.625 s; pass 2: 2 tokens, 0.375 s, to 1. Then the third has a slot: pass 3
  // has 1 + 1 tokens, to 1.375.
  EXPECT_EQ(ours.ttft_samples, (std::vector<double>{0.625, 0.625, 1.375}));
  EXPECT_EQ(ours.e2el_samples, (std::vector<double>{1.375, 1, 1.375}));
  const EngineMetrics theirs = engine.metrics();
  EXPECT_EQ(theirs.ttft_seconds.sum(), 0.625 + 0.625 + 1.375);
  EXPECT_EQ(theirs.e2el_seconds.sum(), 1.375 + 1 + 1.375);
  EXPECT_EQ(theirs.itl_seconds.count(), 3);
  EXPECT_EQ(theirs.num_output_tokens, 6);
  expect_lone_outputs(workload, result);
}

TEST(EngineTarget, GivesEveryRequestItsLoneOutput) {
  for (const int max_batch_size : {1, 3, 8}) {
    for (const int budget : {8, 16, 512}) {
      for (const bool is_static : {false, true}) {
        FakeClock clock;
        TimedModel model(clock, seconds_of);
        EngineCore engine(model, {.scheduler = {.max_batch_size = max_batch_size,
                                                .max_num_batched_tokens = budget}});
        EngineTarget target(engine);
        StaticBatches batches(target, max_batch_size);
        const Workload workload = random_workload(30);
        expect_lone_outputs(workload, is_static ? run_workload(batches, workload, clock)
                                                : run_workload(target, workload, clock));
      }
    }
  }
}

TEST(EngineTarget, DrivesAnEngineInAThreadOfItsOwn) {
  FakeClock ignored;  // time is real here
  TimedModel model(ignored, [](const Batch&) { return 0.0; });
  Engine engine(model, {.scheduler = {.max_batch_size = 4, .max_num_batched_tokens = 16}});
  EngineTarget target(engine);
  Workload workload = random_workload(40);
  for (WorkloadRequest& r : workload.requests) r.arrival_seconds /= 1000;
  const RunResult result = run_workload(target, workload);
  expect_lone_outputs(workload, result);
  for (const RequestTimeline& timeline : result.timelines) {
    EXPECT_FALSE(timeline.is_failed);
    EXPECT_LE(timeline.sent_seconds, timeline.outputs.front().seconds);
  }
}

TEST(EngineTarget, ThreadedEngineGetsRequestsWhileItComputes) {
  FakeClock ignored;
  TimedModel model(ignored, [](const Batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0.0;
  });
  Engine engine(model, {.scheduler = {.max_batch_size = 2, .max_seq_len = 2000}});
  EngineTarget target(engine);
  // The second comes while the first, which takes at least 0.4 s, is under way.
  const Workload workload{{request(0, {1}, 400), request(0.01, {2}, 1)}};
  const RunResult result = run_workload(target, workload);
  EXPECT_LT(result.timelines[1].outputs.back().seconds, result.timelines[0].outputs.back().seconds);
}

TEST(EngineTarget, CountsWhatTheEngineRefusesAsFailed) {
  FakeClock clock;
  TimedModel model(clock, [](const Batch&) { return 1.0; });
  EngineCore engine(model, {.scheduler = {.max_batch_size = 1, .max_waiting_requests = 2}});
  EngineTarget target(engine);
  Workload workload;
  for (int i = 0; i < 4; ++i) workload.requests.push_back(request(0, {1}, 2));
  const RunResult result = run_workload(target, workload, clock);
  const ServingMetrics metrics = serving_metrics(result.timelines, result.duration_seconds);
  EXPECT_EQ(metrics.num_completed, 2u);
  EXPECT_EQ(metrics.num_failed, 2u);
  EXPECT_TRUE(result.outputs[3].empty());
}

TEST(EngineTarget, CountsWhatTheModelFailsAsFailed) {
  FakeClock clock;
  int num_passes = 0;
  TimedModel model(clock, [&](const Batch&) {
    if (++num_passes == 3) throw std::runtime_error("out of order");
    return 1.0;
  });
  EngineCore engine(model, {.scheduler = {.max_batch_size = 1}});
  EngineTarget target(engine);
  const Workload workload{{request(0, {1}, 2), request(0, {1}, 3), request(0, {1}, 3)}};
  const RunResult result = run_workload(target, workload, clock);
  const ServingMetrics metrics = serving_metrics(result.timelines, result.duration_seconds);
  EXPECT_EQ(metrics.num_completed, 2u);
  EXPECT_EQ(metrics.num_failed, 1u);
  EXPECT_EQ(result.outputs[2].size(), 3u);
}

TEST(EngineTarget, RefusesWhatCanNeverFit) {
  FakeClock clock;
  TimedModel model(clock, seconds_of);
  EngineCore engine(model, {.scheduler = {.max_batch_size = 1, .max_seq_len = 8}});
  EngineTarget target(engine);
  support::expect_error(ErrorCode::kCapacity, "8", [&] {
    target.submit(0, request(0, {1, 2, 3, 4}, 5));
  });
  EXPECT_FALSE(target.has_work());
}

}  // namespace
}  // namespace kvick
