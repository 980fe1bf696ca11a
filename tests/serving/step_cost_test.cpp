// SPDX-License-Identifier: MIT
#include "kvick/serving/step_cost.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kvick/core/random.hpp"

namespace kvick {
namespace {

/// About a model of 1.1 billion weights of 8 bits on two cores.
constexpr StepCost kMachine{
    .base = 25, .row = 1.2, .row_depth = 4e-4, .token = 1.8, .token_depth = 5e-4};

/// Up to 16 decodes, and in one of three steps a chunk of a prompt.
StepShape random_step(PhiloxStream& random) {
  StepShape shape;
  const int num_decodes = static_cast<int>(1 + random.next_below(16));
  for (int i = 0; i < num_decodes; ++i) {
    shape.add_decode(1, static_cast<int>(random.next_below(4000)));
  }
  if (random.next_below(3) == 0) {
    shape.add_prefill(static_cast<int>(1 + random.next_below(512)),
                      static_cast<int>(random.next_below(4000)));
  }
  return shape;
}

/// The largest relative error over steps that were not observed.
double worst_error(const StepCost& cost, const StepCost& machine) {
  PhiloxStream random(99);
  double worst = 0;
  for (int i = 0; i < 200; ++i) {
    const StepShape shape = random_step(random);
    worst = std::max(worst, std::abs(cost(shape) / machine(shape) - 1));
  }
  return worst;
}

TEST(StepShape, AddsThePositionsThatTokensSee) {
  StepShape shape;
  shape.add_decode(1, 9);    // sees 10
  shape.add_decode(3, 4);    // 5 + 6 + 7
  shape.add_prefill(4, 0);   // 1 + 2 + 3 + 4
  shape.add_prefill(2, 10);  // 11 + 12
  EXPECT_EQ(shape.num_decode_rows, 4);
  EXPECT_EQ(shape.decode_depth, 28);
  EXPECT_EQ(shape.num_prefill_tokens, 6);
  EXPECT_EQ(shape.prefill_depth, 33);
}

TEST(StepCost, GivesTheMostTokensThatATimeAllows) {
  for (const StepCost& cost : {kMachine, StepCost{.token = 2}, StepCost{.token_depth = 0.01}}) {
    for (const int first : {0, 1, 500, 4000}) {
      for (const double ms : {0.001, 1.0, 3.7, 50.0, 1000.0}) {
        const int count = cost.num_prefill_tokens(ms, first, 100'000);
        // A part in 10^9 for rounding: the root is found in double.
        EXPECT_LE(cost.prefill_ms(count, first), ms * (1 + 1e-9));
        EXPECT_GE(cost.prefill_ms(count + 1, first), ms * (1 - 1e-9));
      }
    }
  }
  EXPECT_EQ(kMachine.num_prefill_tokens(1e9, 0, 77), 77);
  EXPECT_EQ(kMachine.num_prefill_tokens(0, 0, 77), 0);
  EXPECT_EQ(kMachine.num_prefill_tokens(-1, 0, 77), 0);
  EXPECT_EQ(StepCost{}.num_prefill_tokens(1, 0, 77), 77) << "what is not known costs nothing";
}

TEST(StepCostModel, FindsTheTermsOfExactSteps) {
  StepCostModel model;
  PhiloxStream random(1);
  for (int i = 0; i < 300; ++i) {
    const StepShape shape = random_step(random);
    model.observe(shape, kMachine(shape));
  }
  EXPECT_LT(worst_error(model.cost(), kMachine), 0.01);
  EXPECT_NEAR(model.cost().base, kMachine.base, 0.05 * kMachine.base);
  EXPECT_NEAR(model.cost().token, kMachine.token, 0.02 * kMachine.token);
  EXPECT_NEAR(model.cost().token_depth, kMachine.token_depth, 0.02 * kMachine.token_depth);
}

TEST(StepCostModel, AveragesNoiseAndShrugsOffInterruptions) {
  StepCostModel model;
  PhiloxStream random(2);
  for (int i = 0; i < 1000; ++i) {
    const StepShape shape = random_step(random);
    double ms = kMachine(shape) * (0.95 + 0.1 * random.next_uniform());
    if (i > 50 && random.next_below(20) == 0) ms *= 10;
    model.observe(shape, ms);
  }
  // Noise of 5 % over a memory of 200 steps and 5 terms: about 1 %; interruptions add their weight,
  // 1/20 of the steps times 2.5 spreads.
  EXPECT_LT(worst_error(model.cost(), kMachine), 0.05);
}

TEST(StepCostModel, FollowsAMachineThatBecomesSlower) {
  StepCostModel model;
  PhiloxStream random(3);
  for (int i = 0; i < 500; ++i) {
    const StepShape shape = random_step(random);
    model.observe(shape, kMachine(shape) * (0.98 + 0.04 * random.next_uniform()));
  }
  StepCost slower = kMachine;
  for (double* term :
       {&slower.base, &slower.row, &slower.row_depth, &slower.token, &slower.token_depth}) {
    *term *= 2;
  }
  for (int i = 0; i < 60; ++i) {
    const StepShape shape = random_step(random);
    model.observe(shape, slower(shape) * (0.98 + 0.04 * random.next_uniform()));
  }
  EXPECT_LT(worst_error(model.cost(), slower), 0.15);
}

TEST(StepCostModel, LearnsWhatPromptsCostFromTheFirstOnes) {
  StepCostModel model;
  StepShape decode;
  decode.add_decode(1, 100);
  for (int i = 0; i < 1000; ++i) model.observe(decode, kMachine(decode));
  EXPECT_EQ(model.cost().token, 0);
  StepShape prompt = decode;
  prompt.add_prefill(32, 0);
  for (int i = 0; i < 2; ++i) model.observe(prompt, kMachine(prompt));
  EXPECT_NEAR(model.cost()(prompt), kMachine(prompt), 0.05 * kMachine(prompt));
  EXPECT_NEAR(model.cost()(decode), kMachine(decode), 0.05 * kMachine(decode));
  for (int i = 0; i < 5000; ++i) model.observe(decode, kMachine(decode));
  EXPECT_NEAR(model.cost()(prompt), kMachine(prompt), 0.05 * kMachine(prompt)) << "not forgotten";
}

TEST(StepCostModel, NeverHasNegativeTermsNorTakesNonsense) {
  StepCostModel model;
  PhiloxStream random(4);
  for (int i = 0; i < 2000; ++i) {
    model.observe(random_step(random), 1 + 100 * random.next_uniform());  // nothing to find
    const StepCost& cost = model.cost();
    for (const double term : {cost.base, cost.row, cost.row_depth, cost.token, cost.token_depth}) {
      ASSERT_TRUE(std::isfinite(term) && term >= 0) << term;
    }
  }
  const StepShape shape = random_step(random);
  const double before = model.cost()(shape);
  for (const double ms : {0.0, -5.0, std::nan(""), HUGE_VAL}) model.observe(shape, ms);
  EXPECT_EQ(model.cost()(shape), before);
}

TEST(StepCostModel, DoublesTheTokensOfPromptsThatItTrustsItselfWith) {
  StepCostModel model;
  EXPECT_EQ(model.max_prefill_tokens(), 32);
  StepShape alone;
  alone.add_prefill(1000, 0);
  model.observe(alone, 2000);
  EXPECT_EQ(model.max_prefill_tokens(), 32) << "says nothing of steps that decode";
  for (const int count : {10, 32, 64, 1}) {
    StepShape shape;
    shape.add_decode(1, 0);
    shape.add_prefill(count, 0);
    model.observe(shape, 100);
  }
  EXPECT_EQ(model.max_prefill_tokens(), 128);
}

}  // namespace
}  // namespace kvick
