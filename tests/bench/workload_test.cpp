// SPDX-License-Identifier: MIT
#include "kvick/bench/workload.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/bench/statistics.hpp"

namespace kvick {
namespace {

std::vector<double> gaps_of(const std::vector<double>& times) {
  std::vector<double> gaps;
  double last = 0;
  for (const double time : times) {
    gaps.push_back(time - last);
    last = time;
  }
  return gaps;
}

/// The largest distance between the distribution of the samples and `cdf`, times sqrt(n): above
/// 1.95 once in a thousand samples of the distribution itself (Kolmogorov).
double kolmogorov_smirnov(std::vector<double> samples, const std::function<double(double)>& cdf) {
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  double distance = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double expected = cdf(samples[i]);
    const auto at = static_cast<double>(i);
    distance = std::max({distance, expected - at / n, (at + 1) / n - expected});
  }
  return distance * std::sqrt(n);
}

TEST(ArrivalTimes, OfBurstinessOneAreAPoissonProcess) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    constexpr double kRate = 4;
    const auto gaps = gaps_of(arrival_times(20'000, kRate, 1, seed));
    EXPECT_LT(kolmogorov_smirnov(gaps, [](double gap) { return 1 - std::exp(-kRate * gap); }),
              1.95);
    // The test can tell: gaps of a regular or bursty process are no exponential ones.
    for (const double burstiness : {0.9, 1.1}) {
      const auto other = gaps_of(arrival_times(20'000, kRate, burstiness, seed));
      EXPECT_GT(kolmogorov_smirnov(other, [](double gap) { return 1 - std::exp(-kRate * gap); }),
                1.95);
    }
    // Independent: numbers of arrivals in windows vary as they should, variance = mean.
    const auto times = arrival_times(20'000, kRate, 1, seed);
    std::vector<double> counts(1000, 0);
    for (const double time : times) {
      const auto window = static_cast<std::size_t>(time / 5);
      if (window < counts.size()) ++counts[window];
    }
    RunningMoments moments;
    for (const double count : counts) moments.add(count);
    EXPECT_NEAR(moments.mean(), 20, 0.1);  // the last request comes at 5,000 s
    const double variance = std::pow(*moments.standard_deviation(), 2);
    EXPECT_NEAR(variance / 20, 1, 5 * std::sqrt(2.0 / 1000));
  }
}

TEST(ArrivalTimes, GapsHaveTheVariationOfTheirBurstiness) {
  for (const double burstiness : {0.25, 1.0, 4.0, 100.0}) {
    SCOPED_TRACE(burstiness);
    RunningMoments moments;
    for (const double gap : gaps_of(arrival_times(50'000, 10, burstiness, 5))) moments.add(gap);
    EXPECT_NEAR(moments.mean(), 0.1, 1e-9);
    EXPECT_NEAR(*moments.standard_deviation() / moments.mean(), 1 / std::sqrt(burstiness),
                0.05 / std::sqrt(burstiness));
  }
}

TEST(ArrivalTimes, EndWhenTheRateSays) {
  for (const double burstiness : {0.001, 0.5, 1.0, 7.0}) {
    const auto times = arrival_times(37, 2.0, burstiness, 9);
    ASSERT_EQ(times.size(), 37u);
    EXPECT_DOUBLE_EQ(times.back(), 18.5);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_GE(times.front(), 0.0);
  }
  const auto at_once = arrival_times(3, std::numeric_limits<double>::infinity(), 1, 9);
  EXPECT_EQ(at_once, (std::vector<double>{0, 0, 0}));
}

TEST(ArrivalTimes, RefusesRatesThatAreNone) {
  support::expect_error(ErrorCode::kArgument, "request_rate must be positive, got 0",
                        [] { arrival_times(1, 0, 1, 0); });
  support::expect_error(ErrorCode::kArgument, "burstiness must be positive, got -1",
                        [] { arrival_times(1, 1, -1, 0); });
}

TEST(LengthDistribution, StaysInItsRangeAndHasItsShape) {
  PhiloxStream stream(3);
  const LengthDistribution uniform = uniform_length(3, 7);
  std::vector<int> counts(8, 0);
  for (int i = 0; i < 50'000; ++i) ++counts.at(static_cast<std::size_t>(uniform.draw(stream)));
  EXPECT_EQ(counts[0] + counts[1] + counts[2], 0);
  for (int length = 3; length <= 7; ++length) {
    // Binomial: 10,000 with a deviation of 89.
    EXPECT_NEAR(counts[static_cast<std::size_t>(length)], 10'000, 450) << length;
  }
  const LengthDistribution log_normal = log_normal_length(64, 0.6, 1, 4096);
  std::vector<double> logarithms;
  for (int i = 0; i < 20'000; ++i) logarithms.push_back(std::log(log_normal.draw(stream)));
  const SampleSummary summary = summarize(logarithms);
  EXPECT_NEAR(*summary.median, std::log(64), 0.03);
  EXPECT_NEAR(*summary.standard_deviation, 0.6, 0.02);
  const LengthDistribution cut = log_normal_length(64, 3, 10, 100);
  std::set<int> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(cut.draw(stream));
  EXPECT_EQ(*seen.begin(), 10);
  EXPECT_EQ(*seen.rbegin(), 100);
  EXPECT_EQ(fixed_length(5).draw(stream), 5);
}

bool same(const Workload& a, const Workload& b) {
  return std::equal(a.requests.begin(), a.requests.end(), b.requests.begin(), b.requests.end(),
                    [](const WorkloadRequest& x, const WorkloadRequest& y) {
                      return x.arrival_seconds == y.arrival_seconds && x.prompt == y.prompt &&
                             x.num_output_tokens == y.num_output_tokens && x.seed == y.seed;
                    });
}

WorkloadOptions typical() {
  return {.num_requests = 50,
          .prompt_tokens = uniform_length(8, 40),
          .output_tokens = log_normal_length(20, 0.5, 1, 64),
          .request_rate = 5,
          .num_prefixes = 3,
          .prefix_tokens = 16,
          .seed = 42,
          .vocab_size = 1000,
          .min_token = 3};
}

TEST(Workload, OneSeedGivesTheSameRequests) {
  const Workload workload = make_workload(typical());
  EXPECT_TRUE(same(workload, make_workload(typical())));
  WorkloadOptions other = typical();
  other.seed = 43;
  EXPECT_FALSE(same(workload, make_workload(other)));
  // Lengths and tokens stay when only the rate changes.
  WorkloadOptions faster = typical();
  faster.request_rate = 10;
  const Workload fast = make_workload(faster);
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(fast.requests[i].prompt, workload.requests[i].prompt);
    EXPECT_DOUBLE_EQ(fast.requests[i].arrival_seconds, workload.requests[i].arrival_seconds / 2);
  }
}

TEST(Workload, SharesPrefixesAndNothingElse) {
  const Workload workload = make_workload(typical());
  std::set<std::vector<TokenId>> prefixes, rests;
  for (const WorkloadRequest& request : workload.requests) {
    ASSERT_GE(request.prompt.size(), 16u + 8u);
    ASSERT_LE(request.prompt.size(), 16u + 40u);
    prefixes.emplace(request.prompt.begin(), request.prompt.begin() + 16);
    rests.emplace(request.prompt.begin() + 16, request.prompt.end());
    for (const TokenId token : request.prompt) {
      EXPECT_GE(token, 3);
      EXPECT_LT(token, 1000);
    }
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(rests.size(), 50u);
}

TEST(Workload, ClosedLoopsSendWhenTheyMayAndTracesAreKept) {
  WorkloadOptions closed = typical();
  closed.max_concurrency = 4;
  const Workload loop = make_workload(closed);
  EXPECT_EQ(loop.max_concurrency, 4);
  EXPECT_EQ(loop.requests.back().arrival_seconds, 0);

  WorkloadOptions options = typical();
  options.num_prefixes = 0;
  options.trace = parse_trace("arrival_seconds,prompt_tokens,output_tokens\n0,5,2\n\n1.5,7,3\r\n");
  const Workload trace = make_workload(options);
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[1].arrival_seconds, 1.5);
  EXPECT_EQ(trace.requests[1].prompt.size(), 7u);
  EXPECT_EQ(trace.requests[1].num_output_tokens, 3);
}

TEST(ParseTrace, NamesTheLineThatIsWrong) {
  const auto refused = [](const char* text, const char* part) {
    SCOPED_TRACE(text);
    support::expect_error(ErrorCode::kFormat, part, [&] { parse_trace(text); });
  };
  refused("0,5\n", "line 1");
  refused("0,5,2\nx,5,2\n", "line 2");
  refused("2,5,2\n1,5,2\n", "line 2");
  refused("0,0,2\n", "'0'");
  refused("nan,1,2\n", "'nan'");
  refused("0,5,99999999999\n", "'99999999999'");
}

TEST(Workload, RefusesOptionsOutOfRange) {
  const auto refused = [](auto change, const char* part) {
    WorkloadOptions options = typical();
    change(options);
    support::expect_error(ErrorCode::kArgument, part, [&] { make_workload(options); });
  };
  refused([](auto& o) { o.num_requests = 0; }, "num_requests");
  refused([](auto& o) { o.prompt_tokens = uniform_length(5, 4); }, "prompt_tokens");
  refused([](auto& o) { o.output_tokens = log_normal_length(0, 1, 1, 9); }, "output_tokens");
  refused([](auto& o) { o.vocab_size = 3; }, "vocab_size");
  refused([](auto& o) { o.max_concurrency = -1; }, "max_concurrency");
}

}  // namespace
}  // namespace kvick
