// SPDX-License-Identifier: MIT
// Adaptation on a simulated clock.
#include "kvick/speculative/adaptive_draft.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>

#include "cache/expect_error.hpp"

namespace {

using namespace kvick;
using support::expect_error;

/// A machine, a draft and a text. Times are in plain steps.
struct World {
  double per_verified = 0.05;  ///< what a drafted token adds to a pass of the target
  double per_drafted = 0;
  double jitter = 0;  ///< standard deviation of a step's time
  int found = 64;     ///< most that the source proposes
  /// Whether the token at `index` is accepted, if those drafted before it were.
  std::function<bool(int index, std::mt19937& rng)> accepts = {};
};

/// Speed against plain decoding over so many tokens.
double speed_up(const World& world, int num_tokens, int max_tokens = 8, unsigned seed = 1) {
  AdaptiveDraft adaptive({.max_tokens = max_tokens});
  std::mt19937 rng(seed);
  std::normal_distribution<double> noise(1, world.jitter);
  double time = 0;
  int done = 0;
  while (done < num_tokens) {
    const int k = std::min(adaptive.choose(), world.found);
    EXPECT_GE(k, 0);
    EXPECT_LE(k, max_tokens);
    DraftRound round{.num_drafted = k};
    while (round.num_accepted < k && world.accepts(done + round.num_accepted, rng)) {
      ++round.num_accepted;
    }
    const double slow = std::max(0.2, noise(rng));
    round.draft_seconds = world.per_drafted * k * slow * 0.026;
    round.verify_seconds = (1 + world.per_verified * k) * slow * 0.026;
    time += (round.draft_seconds + round.verify_seconds) / 0.026;
    done += 1 + round.num_accepted;
    adaptive.record(round);
  }
  return done / time;
}

auto always() {
  return [](int, std::mt19937&) { return true; };
}
auto never() {
  return [](int, std::mt19937&) { return false; };
}
auto with_probability(double p) {
  return [p](int, std::mt19937& rng) { return std::bernoulli_distribution(p)(rng); };
}

TEST(AdaptiveDraft, NeverLosesMoreThanAFewPerCent) {
  for (const double per_drafted : {0.0, 0.1, 0.3, 1.0}) {
    for (const double per_verified : {0.02, 0.2, 1.0}) {
      for (const double p : {0.0, 0.2, 0.5, 0.8}) {
        for (unsigned seed = 1; seed <= 5; ++seed) {
          SCOPED_TRACE(::testing::Message()
                       << per_drafted << ", " << per_verified << ", " << p << ", seed " << seed);
          const World world{.per_verified = per_verified,
                            .per_drafted = per_drafted,
                            .accepts = with_probability(p)};
          // 1.5 % and 1.5 steps, and an estimate of the first round that may be wrong.
          EXPECT_GE(speed_up(world, 300, 8, seed), 0.965);
          EXPECT_GE(speed_up(world, 3000, 16, seed), 0.98);
        }
      }
    }
  }
}

TEST(AdaptiveDraft, NeverLosesMuchWhenTextsTurnAndTimesJitter) {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    World world{.per_verified = 0.1, .per_drafted = 0.2, .jitter = 0.2};
    world.accepts = [](int index, std::mt19937&) { return index / 50 % 2 == 0; };
    EXPECT_GE(speed_up(world, 1000, 8, seed), 1.0);  // half of the text is copied
    world.accepts = never();
    EXPECT_GE(speed_up(world, 1000, 8, seed), 0.96);
  }
}

TEST(AdaptiveDraft, GainsWhatThereIsToGain) {
  // All accepted, at 5 % per token: 9 tokens in 1.4 steps is 6.4.
  EXPECT_GE(speed_up({.accepts = always()}, 400), 5.5);
  EXPECT_GE(speed_up({.jitter = 0.2, .accepts = always()}, 400), 5.0);
  // A draft of a tenth of the price, accepted with 80 %: the best is 8 tokens in 2.2 steps... of
  // which (1 - 0.8^9) / 0.2 = 4.3 are kept: 1.97.
  EXPECT_GE(speed_up({.per_drafted = 0.1, .accepts = with_probability(0.8)}, 2000), 1.8);
  // With 50 % one token is best: 1.5 in 1.15, or two, 1.75 in 1.3: 1.35.
  EXPECT_GE(speed_up({.per_drafted = 0.1, .accepts = with_probability(0.5)}, 2000), 1.22);
}

// As passes over packed weights are: 8 rows at a time.
TEST(AdaptiveDraft, StaysBelowAStepInThePrice) {
  AdaptiveDraft adaptive({.max_tokens = 16});
  double time = 0;
  int tokens = 0;
  for (int i = 0; i < 400; ++i) {
    const int k = adaptive.choose();
    const double steps = k < 8 ? 1 + 0.05 * k : 2.7;
    adaptive.record({.num_drafted = k, .num_accepted = k, .verify_seconds = 0.02 * steps});
    time += steps;
    tokens += 1 + k;
  }
  // The best is 17 tokens in 2.7 steps, 6.3, then 8 in 1.35, 5.9.
  EXPECT_GT(tokens / time, 5.5);
  AdaptiveDraft small({.max_tokens = 8});
  time = 0;
  tokens = 0;
  for (int i = 0; i < 400; ++i) {
    const int k = small.choose();
    const double steps = k < 8 ? 1 + 0.05 * k : 2.7;
    small.record({.num_drafted = k, .num_accepted = k, .verify_seconds = 0.02 * steps});
    time += steps;
    tokens += 1 + k;
  }
  EXPECT_GT(tokens / time, 5.2);  // 9 in 2.7 would be 3.3
}

TEST(AdaptiveDraft, FindsOutThatDraftsHaveBecomeGood) {
  World world{.per_drafted = 0.05};
  world.accepts = [](int index, std::mt19937&) { return index > 500; };
  // At worst 500 tokens in 510 steps and 1,500 in 2,000 / 5.
  EXPECT_GE(speed_up(world, 2000), 2.0);
}

TEST(AdaptiveDraft, TakesPlainStepsFirstAndFewTokensThen) {
  AdaptiveDraft adaptive({.max_tokens = 16});
  EXPECT_EQ(adaptive.choose(), 0);
  adaptive.record({.verify_seconds = 1});  // a page fault, perhaps
  EXPECT_EQ(adaptive.choose(), 0);
  adaptive.record({.verify_seconds = 0.01});
  EXPECT_EQ(adaptive.choose(), 3);
  EXPECT_DOUBLE_EQ(adaptive.seconds(0), 0.01);
}

TEST(AdaptiveDraft, LearnsThePriceOfAPass) {
  AdaptiveDraft adaptive;
  for (int i = 0; i < 200; ++i) {
    const int k = i % 5;
    adaptive.record({.num_drafted = k, .num_accepted = k, .verify_seconds = 0.02 + 0.003 * k});
  }
  for (int k = 0; k <= 8; ++k) {
    EXPECT_NEAR(adaptive.seconds(k), 0.02 + 0.003 * k, 1e-6) << k;
  }
  EXPECT_GT(adaptive.expected_tokens(4), 4.5);
  EXPECT_DOUBLE_EQ(adaptive.expected_tokens(0), 1);
  // One interruption of a second is no measure.
  adaptive.record({.verify_seconds = 1});
  EXPECT_NEAR(adaptive.seconds(0), 0.02, 1e-6);
}

TEST(AdaptiveDraft, DraftsNothingIfNothingIsAllowed) {
  EXPECT_NEAR(speed_up({.accepts = always()}, 100, 0), 1, 1e-9);
  EXPECT_GE(speed_up({.found = 0, .accepts = always()}, 100), 0.999);
}

TEST(AdaptiveDraft, RefusesOptionsOutOfRange) {
  expect_error(ErrorCode::kArgument, "max_tokens must be at least 0, got -1",
               [] { AdaptiveDraft adaptive({.max_tokens = -1}); });
  expect_error(ErrorCode::kArgument, "largest_loss must be in [0, 1], got 2",
               [] { AdaptiveDraft adaptive({.largest_loss = 2}); });
  expect_error(ErrorCode::kArgument, "initial_steps must be at least 0, got -1",
               [] { AdaptiveDraft adaptive({.initial_steps = -1}); });
}

}  // namespace
