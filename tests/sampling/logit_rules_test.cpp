// SPDX-License-Identifier: MIT
#include "kvick/sampling/logit_rules.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kvick/sampling/sampler.hpp"

namespace {

using namespace kvick;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> apply(const SamplingOptions& options, std::vector<float> logits,
                         std::uint64_t output_index = 0, std::vector<TokenId> history = {}) {
  LogitRules rules(options);
  rules.apply(logits, output_index, history);
  return logits;
}

using Logits = std::vector<float>;

TEST(LogitRules, DefaultsChangeNothing) {
  const LogitRules rules{SamplingOptions{}};
  EXPECT_FALSE(rules.any(0));
  EXPECT_EQ(apply({}, {1, -2, 3}, 0, {0, 1, 2}), (Logits{1, -2, 3}));
}

TEST(LogitRules, RepetitionPenaltyDividesPositiveAndMultipliesOtherLogits) {
  EXPECT_EQ(apply({.repetition_penalty = 2.0f}, {3, -3, 0, 5}, 0, {0, 1, 2}),
            (Logits{1.5f, -6, 0, 5}));
}

TEST(LogitRules, RepetitionPenaltyCountsATokenOnce) {
  EXPECT_EQ(apply({.repetition_penalty = 2.0f}, {3, 1}, 0, {0, 0, 0}), (Logits{1.5f, 1}));
}

TEST(LogitRules, FrequencyPenaltyCountsEveryTime) {
  EXPECT_EQ(apply({.frequency_penalty = 0.5f}, {3, 1, 2}, 0, {0, 2, 0, 0}),
            (Logits{1.5f, 1, 1.5f}));
}

TEST(LogitRules, PresencePenaltyCountsOnce) {
  EXPECT_EQ(apply({.presence_penalty = 0.25f}, {3, 1, 2}, 0, {0, 2, 0, 0}),
            (Logits{2.75f, 1, 1.75f}));
}

TEST(LogitRules, RepetitionComesBeforeFrequencyAndPresence) {
  // 8 / 2 - (3 * 0.5 + 0.25) = 2.25; -8 * 2 - (1 * 0.5 + 0.25) = -16.75.
  EXPECT_EQ(
      apply({.repetition_penalty = 2.0f, .frequency_penalty = 0.5f, .presence_penalty = 0.25f},
            {8, -8, 1}, 0, {0, 0, 1, 0}),
      (Logits{2.25f, -16.75f, 1}));
}

TEST(LogitRules, PenaltiesSeeOnlyTheWindow) {
  const std::vector<TokenId> history = {0, 1, 2, 2};
  const Logits logits = {4, 4, 4, 4};
  EXPECT_EQ(apply({.presence_penalty = 1.0f, .penalty_window = 2}, logits, 0, history),
            (Logits{4, 4, 3, 4}));
  EXPECT_EQ(apply({.presence_penalty = 1.0f, .penalty_window = 3}, logits, 0, history),
            (Logits{4, 3, 3, 4}));
  EXPECT_EQ(apply({.presence_penalty = 1.0f, .penalty_window = -1}, logits, 0, history),
            (Logits{3, 3, 3, 4}));
  EXPECT_EQ(apply({.presence_penalty = 1.0f, .penalty_window = 0}, logits, 0, history), logits);
}

TEST(LogitRules, BiasIsAddedBeforePenalties) {
  // (1 + 3) / 2 = 2; dividing first would give 3.5.
  EXPECT_EQ(apply({.repetition_penalty = 2.0f, .logit_bias = {{0, 3.0f}}}, {1, 1}, 0, {0}),
            (Logits{2, 1}));
}

TEST(LogitRules, BansTokens) {
  EXPECT_EQ(apply({.logit_bias = {{2, -kInfinity}}, .banned_tokens = {0}}, {1, 2, 3}),
            (Logits{-kInfinity, 2, -kInfinity}));
}

TEST(LogitRules, EndTokensAreForbiddenBelowMinTokens) {
  const SamplingOptions options = {.min_tokens = 2, .end_tokens = {1}};
  EXPECT_EQ(apply(options, {1, 9}, 0), (Logits{1, -kInfinity}));
  EXPECT_EQ(apply(options, {1, 9}, 1), (Logits{1, -kInfinity}));
  EXPECT_EQ(apply(options, {1, 9}, 2), (Logits{1, 9}));
  EXPECT_FALSE(LogitRules(options).any(2));
}

TEST(LogitRules, RefusesTokensBeyondTheVocabulary) {
  EXPECT_THROW(apply({.logit_bias = {{3, 1.0f}}}, {1, 2, 3}), Error);
  EXPECT_THROW(apply({.banned_tokens = {3}}, {1, 2, 3}), Error);
  EXPECT_THROW(apply({.min_tokens = 1, .end_tokens = {3}}, {1, 2, 3}), Error);
  EXPECT_THROW(apply({.presence_penalty = 1.0f}, {1, 2, 3}, 0, {3}), Error);
  EXPECT_THROW(apply({.presence_penalty = 1.0f}, {1, 2, 3}, 0, {-1}), Error);
}

TEST(LogitRules, RefusesOptionsOutOfRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<SamplingOptions> bad = {
      {.repetition_penalty = 0.0f},
      {.repetition_penalty = -1.0f},
      {.repetition_penalty = nan},
      {.repetition_penalty = kInfinity},
      {.frequency_penalty = nan},
      {.presence_penalty = kInfinity},
      {.penalty_window = -2},
      {.logit_bias = {{0, nan}}},
      {.logit_bias = {{0, kInfinity}}},
      {.logit_bias = {{-1, 1.0f}}},
      {.banned_tokens = {-1}},
      {.min_tokens = -1},
      {.end_tokens = {-5}},
  };
  for (const SamplingOptions& options : bad) EXPECT_THROW(LogitRules{options}, Error);
}

TEST(SamplerWithRules, GreedyChoiceFollowsTheRules) {
  const Logits logits = {5, 4, 3};
  const std::vector<TokenId> history = {0, 1};
  EXPECT_EQ(Sampler().sample(logits, 0, history), 0);
  EXPECT_EQ(Sampler({.banned_tokens = {0}}).sample(logits, 0, history), 1);
  EXPECT_EQ(Sampler({.presence_penalty = 3.0f}).sample(logits, 0, history), 2);
  EXPECT_EQ(Sampler({.min_tokens = 1, .end_tokens = {0}}).sample(logits, 0, history), 1);
  EXPECT_EQ(Sampler({.min_tokens = 1, .end_tokens = {0}}).sample(logits, 1, history), 0);
  EXPECT_EQ(Sampler({.logit_bias = {{2, 2.5f}}}).sample(logits, 0, history), 2);
}

TEST(SamplerWithRules, RulesComeBeforeTruncation) {
  // Token 0 is the best until it is penalized; top-k then keeps token 1 alone.
  Sampler sampler({.temperature = 1.0f, .top_k = 1, .presence_penalty = 3.0f});
  const std::vector<TokenId> history = {0};
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sampler.sample(Logits{5, 4, 1}, i, history), 1);
  }
}

TEST(SamplerWithRules, ReportsWhenEveryTokenIsBanned) {
  Sampler sampler({.temperature = 1.0f, .banned_tokens = {0, 1}});
  EXPECT_THROW(sampler.sample(Logits{1, 2}, 0), Error);
}

}  // namespace
