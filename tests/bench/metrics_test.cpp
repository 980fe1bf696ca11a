// SPDX-License-Identifier: MIT
#include "kvick/bench/metrics.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace kvick {
namespace {

/// All times are multiples of 1/8 s, so every difference and mean below is exact.
std::vector<RequestTimeline> example() {
  return {
      // Sent when it came; three tokens.
      {.arrival_seconds = 0,
       .sent_seconds = 0,
       .num_prompt_tokens = 10,
       .outputs = {{1, 1}, {1.5, 1}, {2.5, 1}}},
      // Waited in the client's queue; an output of two tokens.
      {.arrival_seconds = 0.5,
       .sent_seconds = 1,
       .num_prompt_tokens = 20,
       .outputs = {{1.25, 1}, {2, 2}}},
      // One token only.
      {.arrival_seconds = 2, .sent_seconds = 2, .num_prompt_tokens = 5, .outputs = {{4, 1}}},
      {.arrival_seconds = 3,
       .sent_seconds = 3,
       .num_prompt_tokens = 7,
       .outputs = {{3.5, 1}},
       .is_failed = true},
  };
}

TEST(ServingMetrics, AreTheHandComputedOnes) {
  const ServingMetrics m = serving_metrics(example(), 4, LatencyLimits{});
  EXPECT_EQ(m.num_completed, 3u);
  EXPECT_EQ(m.num_failed, 1u);
  EXPECT_EQ(m.num_prompt_tokens, 35u);
  EXPECT_EQ(m.num_output_tokens, 7u);
  EXPECT_EQ(m.request_throughput, 0.75);
  EXPECT_EQ(m.output_throughput, 1.75);
  EXPECT_EQ(m.total_token_throughput, 10.5);
  EXPECT_EQ(m.request_goodput, 0.75);
  EXPECT_EQ(m.ttft_samples, (std::vector<double>{1, 0.25, 2}));
  EXPECT_EQ(m.tpot_samples, (std::vector<double>{0.75, 0.375}));
  EXPECT_EQ(m.itl_samples, (std::vector<double>{0.5, 1, 0.75}));
  EXPECT_EQ(m.e2el_samples, (std::vector<double>{2.5, 1, 2}));
  EXPECT_EQ(m.queue_samples, (std::vector<double>{0, 0.5, 0}));
  EXPECT_EQ(m.time_to_first_token.median, 1);
  EXPECT_EQ(m.inter_token_latency.mean, 0.75);
  EXPECT_EQ(m.inter_token_latency.standard_deviation, 0.25);
  EXPECT_EQ(m.end_to_end_latency.max, 2.5);
  EXPECT_FALSE(m.end_to_end_latency.p99);
  // The first two overlap on [1, 2); the third begins when the second ends, within the first.
  EXPECT_EQ(m.peak_concurrency, 2);
  EXPECT_EQ(m.peak_output_throughput, 3);  // of the second from 1 to 2, and of that from 2 to 3
}

TEST(ServingMetrics, GoodputCountsRequestsThatMeetEveryLimit) {
  const auto goodput = [](const LatencyLimits& limits) {
    return serving_metrics(example(), 4, limits).request_goodput.value() * 4;
  };
  EXPECT_EQ(goodput({.time_to_first_token = 1}), 2);
  EXPECT_EQ(goodput({.time_to_first_token = 0.5}), 1);
  EXPECT_EQ(goodput({.time_per_output_token = 0.5}), 2);  // one token takes no time per token
  EXPECT_EQ(goodput({.end_to_end_latency = 2}), 2);
  EXPECT_EQ(goodput({.time_to_first_token = 1, .end_to_end_latency = 2}), 1);
  EXPECT_FALSE(serving_metrics(example(), 4).request_goodput);
}

TEST(ServingMetrics, AreAbsentWhereNothingWasMeasured) {
  const ServingMetrics none = serving_metrics({}, 0);
  EXPECT_FALSE(none.output_throughput);
  EXPECT_FALSE(none.time_to_first_token.mean);
  EXPECT_EQ(none.num_completed, 0u);
  EXPECT_FALSE(none.peak_output_throughput);
  const RequestTimeline silent{};
  EXPECT_FALSE(silent.time_to_first_token());
  EXPECT_FALSE(silent.time_per_output_token());
  EXPECT_FALSE(silent.end_to_end_latency());
  const std::vector<RequestTimeline> requests{silent};
  EXPECT_EQ(serving_metrics(requests, 1).num_failed, 1u);
  EXPECT_EQ(serving_metrics(requests, 1).output_throughput, 0);
}

}  // namespace
}  // namespace kvick
