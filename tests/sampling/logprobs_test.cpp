// SPDX-License-Identifier: MIT
#include "kvick/sampling/logprobs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace kvick;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Logprobs, AreTheLogarithmsOfTheSoftmax) {
  // Weights 1 : 2 : 5 of a sum of 8.
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  const Logprobs result = logprobs(logits, 1, 2);
  // The logits are rounded to float: their errors of up to 2^-24 pass through unchanged.
  EXPECT_NEAR(result.chosen.logprob, std::log(2.0 / 8.0), 3e-7);
  EXPECT_EQ(result.chosen.token, 1);
  ASSERT_EQ(result.top.size(), 2u);
  EXPECT_EQ(result.top[0].token, 2);
  EXPECT_NEAR(result.top[0].logprob, std::log(5.0 / 8.0), 3e-7);
  EXPECT_EQ(result.top[1].token, 1);
  EXPECT_EQ(result.top[1].logprob, result.chosen.logprob);
}

TEST(Logprobs, EqualTokensAreListedAscending) {
  const Logprobs result = logprobs(std::vector<float>{1, 2, 2, 0, 2}, 0, 3);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].token, 1);
  EXPECT_EQ(result.top[1].token, 2);
  EXPECT_EQ(result.top[2].token, 4);
}

TEST(Logprobs, ListsAtMostTheVocabulary) {
  EXPECT_EQ(logprobs(std::vector<float>{1, 2}, 0, 10).top.size(), 2u);
  EXPECT_TRUE(logprobs(std::vector<float>{1, 2}, 0, 0).top.empty());
}

TEST(Logprobs, ImpossibleTokensHaveMinusInfinity) {
  EXPECT_EQ(logprobs(std::vector<float>{1, -kInfinity}, 1, 0).chosen.logprob,
            -std::numeric_limits<double>::infinity());
}

TEST(Logprobs, HugeLogitsLoseNothing) {
  EXPECT_NEAR(logprobs(std::vector<float>{3e38f, 3e38f}, 0, 0).chosen.logprob, -std::log(2.0),
              1e-12);
}

TEST(Logprobs, AgreeWithLongDouble) {
  const unsigned seed = 5;
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = normal(rng);
  long double sum = 0.0L;
  for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
  const auto expected = static_cast<double>(std::log(sum));
  // 1000 additions of 2^-53 relative error each, and a few roundings of numbers below 32.
  EXPECT_NEAR(LogSoftmax(logits)(0.0f), -expected, 1000 * 0x1p-53 + 4 * 0x1p-48);
}

TEST(Logprobs, RefuseWhatHasNoDistribution) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(logprobs(std::vector<float>{1, nan}, 0, 0), Error);
  EXPECT_THROW(logprobs(std::vector<float>{kInfinity, 1}, 0, 0), Error);
  EXPECT_THROW(logprobs(std::vector<float>{-kInfinity, -kInfinity}, 0, 0), Error);
  EXPECT_THROW(logprobs(std::vector<float>{}, 0, 0), Error);
  EXPECT_THROW(logprobs(std::vector<float>{1, 2}, 2, 0), Error);
  EXPECT_THROW(logprobs(std::vector<float>{1, 2}, -1, 0), Error);
  EXPECT_THROW(logprobs(std::vector<float>{1, 2}, 0, -1), Error);
}

}  // namespace
