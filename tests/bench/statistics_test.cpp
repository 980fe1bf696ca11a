// SPDX-License-Identifier: MIT
#include "kvick/bench/statistics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/bench/variates.hpp"
#include "kvick/core/random.hpp"

namespace kvick {
namespace {

std::vector<double> random_samples(std::size_t count, std::uint64_t seed, double scale = 1) {
  PhiloxStream stream(seed);
  std::vector<double> samples;
  for (std::size_t i = 0; i < count; ++i) samples.push_back(scale * (1 + stream.next_uniform()));
  return samples;
}

TEST(RunningMoments, AreThoseOfTwoPasses) {
  // At 2^40 from 0, sums of squares have lost every digit.
  for (const double offset : {0.0, 0x1p40}) {
    RunningMoments moments;
    double sum = 0;
    const auto samples = random_samples(1000, 3);
    for (const double sample : samples) {
      moments.add(offset + sample);
      sum += sample;
    }
    const double mean = sum / 1000;
    double squares = 0;
    for (const double sample : samples) squares += (sample - mean) * (sample - mean);
    // At 2^40 a double has steps of 2^-12: 1.2e-4 of rounding per value, far less on average.
    const double tolerance = offset == 0 ? 1e-12 : 2e-4;
    EXPECT_NEAR(moments.mean() - offset, mean, tolerance);
    EXPECT_NEAR(moments.standard_deviation().value(), std::sqrt(squares / 999), tolerance);
    EXPECT_EQ(moments.count(), 1000u);
  }
}

TEST(RunningMoments, SayNothingThatTheyDoNotKnow) {
  RunningMoments moments;
  EXPECT_TRUE(std::isnan(moments.mean()));
  moments.add(7);
  EXPECT_EQ(moments.mean(), 7);
  EXPECT_FALSE(moments.standard_deviation());
}

/// Definition 7 of Hyndman and Fan, from a list that is sorted by selection.
double reference_quantile(std::vector<double> samples, double fraction) {
  const double h = static_cast<double>(samples.size() - 1) * fraction;
  const auto nth = [&](std::size_t n) {
    std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(n),
                     samples.end());
    return samples[n];
  };
  const double low = nth(static_cast<std::size_t>(std::floor(h)));
  const double high = nth(static_cast<std::size_t>(std::ceil(h)));
  return low + (h - std::floor(h)) * (high - low);
}

TEST(SampleSummary, PercentilesAreThoseOfASortedReference) {
  for (const std::size_t count : {100u, 101u, 777u, 5000u}) {
    SCOPED_TRACE(count);
    const auto samples = random_samples(count, count);
    const SampleSummary summary = summarize(samples);
    EXPECT_DOUBLE_EQ(*summary.median, reference_quantile(samples, 0.5));
    EXPECT_DOUBLE_EQ(*summary.p90, reference_quantile(samples, 0.9));
    EXPECT_DOUBLE_EQ(*summary.p95, reference_quantile(samples, 0.95));
    EXPECT_DOUBLE_EQ(*summary.p99, reference_quantile(samples, 0.99));
    EXPECT_EQ(*summary.min, *std::min_element(samples.begin(), samples.end()));
    EXPECT_EQ(*summary.max, *std::max_element(samples.begin(), samples.end()));
  }
}

TEST(SampleSummary, LeavesOutWhatTooFewSamplesCannotCarry) {
  const auto of = [](std::size_t count) { return summarize(random_samples(count, 1)); };
  EXPECT_FALSE(of(0).mean);
  EXPECT_FALSE(of(0).median);
  EXPECT_TRUE(of(1).median);
  EXPECT_FALSE(of(1).standard_deviation);
  EXPECT_TRUE(of(2).standard_deviation);
  EXPECT_FALSE(of(9).p90);
  EXPECT_TRUE(of(10).p90);
  EXPECT_FALSE(of(19).p95);
  EXPECT_TRUE(of(20).p95);
  EXPECT_FALSE(of(99).p99);
  EXPECT_TRUE(of(100).p99);
  EXPECT_EQ(percentile(random_samples(100, 1), 0.99), of(100).p99);
  EXPECT_FALSE(percentile(random_samples(99, 1), 0.99));
}

TEST(Spread, HasInterpolatedQuartiles) {
  const Spread spread = spread_of({40, 10, 30, 20});
  EXPECT_EQ(spread.median, 25);
  EXPECT_EQ(spread.lower_quartile, 17.5);
  EXPECT_EQ(spread.upper_quartile, 32.5);
  EXPECT_EQ(spread.min, 10);
  EXPECT_EQ(spread.max, 40);
  support::expect_error(ErrorCode::kArgument, "empty", [] { spread_of({}); });
}

TEST(EstimateRatio, KnowsTheIntervalsOfSmallSamples) {
  // Of four and four samples, one order in 70 has all of one side first: 2.9 % for both ends.
  const std::vector<double> four{8, 9, 10, 11}, other{4, 4.5, 5, 5.5};
  const RatioEstimate ratio = estimate_ratio(four, other);
  EXPECT_EQ(ratio.low, 8 / 5.5);
  EXPECT_EQ(ratio.high, 11 / 4.0);
  EXPECT_NEAR(ratio.ratio, 2, 0.05);
  EXPECT_FALSE(ratio.is_noise());
  // Of three and three, one in 20: 10 % for both, more than the 5 % allowed.
  const RatioEstimate three =
      estimate_ratio(std::vector<double>{8, 9, 10}, std::vector<double>{1, 2, 3});
  EXPECT_FALSE(three.has_interval());
  EXPECT_TRUE(three.is_noise());
  // Tables of the U test: two-sided 5 % for 5 and 5 is U <= 2, for 8 and 6 it is 8, for 10 and 10
  // it is 23.
  EXPECT_EQ(detail::mann_whitney_cut(5, 5), 2);
  EXPECT_EQ(detail::mann_whitney_cut(8, 6), 8);
  EXPECT_EQ(detail::mann_whitney_cut(10, 10), 23);
}

TEST(EstimateRatio, IntervalsHoldTheTruthAsOftenAsTheySay) {
  constexpr double kTrueRatio = 1.25;
  constexpr int kTrials = 2000;
  for (const std::size_t count : {5u, 11u}) {
    int num_misses = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const auto seed = static_cast<std::uint64_t>(trial);
      const auto samples = random_samples(count, 2 * seed, kTrueRatio);
      const RatioEstimate ratio = estimate_ratio(samples, random_samples(count, 2 * seed + 1));
      if (*ratio.low > kTrueRatio || *ratio.high < kTrueRatio) ++num_misses;
    }
    // 5 % or less, and three standard errors of 0.5 %.
    EXPECT_LT(num_misses, kTrials * 0.065) << count;
    EXPECT_GT(num_misses, kTrials * 0.01) << count;  // nor is it wider than it need be
  }
}

TEST(EstimateRatio, ManySamplesAreCountedAsIfNormal) {
  const auto samples = random_samples(150, 1, 1.5);
  const auto others = random_samples(150, 2);
  const RatioEstimate ratio = estimate_ratio(samples, others);
  EXPECT_NEAR(ratio.ratio, 1.5, 0.1);
  EXPECT_LT(*ratio.low, 1.5);
  EXPECT_GT(*ratio.high, 1.5);
  EXPECT_LT(*ratio.high - *ratio.low, 0.25);
  EXPECT_TRUE(estimate_ratio(others, random_samples(150, 3)).is_noise());
}

TEST(EstimateRatio, RefusesWhatHasNoRatio) {
  const std::vector<double> one{1};
  support::expect_error(ErrorCode::kArgument, "0 and 1", [&] { estimate_ratio({}, one); });
  support::expect_error(ErrorCode::kArgument, "positive, got 0",
                        [&] { estimate_ratio(std::vector<double>{0}, one); });
}

TEST(Variates, HaveTheMomentsOfTheirDistributions) {
  constexpr int kCount = 200'000;
  const auto moments = [](auto&& draw) {
    PhiloxStream stream(11);
    RunningMoments result;
    for (int i = 0; i < kCount; ++i) result.add(draw(stream));
    return result;
  };
  // Five standard errors: of the mean deviation / sqrt(n), of the deviation that times
  // sqrt((kurtosis - 1) / 4), where the kurtosis of a gamma variate is 3 + 6 / shape.
  const double root = std::sqrt(kCount);
  const auto normal = moments([](auto& stream) { return next_normal(stream); });
  EXPECT_NEAR(normal.mean(), 0, 5 / root);
  EXPECT_NEAR(*normal.standard_deviation(), 1, 5 / root * std::sqrt(0.5));
  const auto exponential = moments([](auto& stream) { return next_exponential(stream); });
  EXPECT_NEAR(exponential.mean(), 1, 5 / root);
  EXPECT_NEAR(*exponential.standard_deviation(), 1, 5 / root * std::sqrt(2));
  for (const double shape : {0.1, 0.5, 1.0, 2.5, 30.0}) {
    SCOPED_TRACE(shape);
    const auto gamma = moments([&](auto& stream) { return next_gamma(stream, shape); });
    const double deviation = std::sqrt(shape);
    EXPECT_NEAR(gamma.mean(), shape, 5 * deviation / root);
    EXPECT_NEAR(*gamma.standard_deviation(), deviation,
                5 * deviation / root * std::sqrt((2 + 6 / shape) / 4));
  }
}

}  // namespace
}  // namespace kvick
