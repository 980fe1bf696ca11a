// SPDX-License-Identifier: MIT
#include "kvick/nn/attention_plan.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <initializer_list>
#include <limits>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace kvick {
namespace {

AttentionPlan planned(const AttentionShape& shape, int num_threads,
                      std::initializer_list<AttentionSegment> segments) {
  AttentionPlan plan(shape, num_threads);
  plan.plan({segments.begin(), segments.size()});
  return plan;
}

TEST(AttentionPlan, BlocksCoverEveryTokenOfEveryHeadOnce) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {8, 2}, {14, 2}, {128, 1}}) {
    const AttentionShape shape = {heads, kv_heads, 16};
    const auto plan =
        planned(shape, 2,
                {{.sequence = 3, .first_position = 7, .first_row = 0, .num_tokens = 250},
                 {.sequence = 1, .first_position = 90, .first_row = 250, .num_tokens = 1}});
    std::set<std::tuple<int, int, int, Index>> seen;  // sequence, head, position, row
    for (const AttentionTask& task : plan.tasks()) {
      EXPECT_EQ(task.num_rows, task.num_tokens * heads / kv_heads);
      EXPECT_LE(task.num_rows, plan.max_rows());
      EXPECT_TRUE(task.num_rows <= AttentionPlan::kBlockRows || task.num_tokens == 1);
      for (int t = 0; t < task.num_tokens; ++t) {
        EXPECT_TRUE(
            seen.insert({task.sequence, task.kv_head, task.first_position + t, task.first_row + t})
                .second);
      }
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(251 * kv_heads));
    for (int head = 0; head < kv_heads; ++head) {
      EXPECT_TRUE(seen.count({3, head, 7 + 249, 249}));
      EXPECT_TRUE(seen.count({1, head, 90, 250}));
    }
  }
}

TEST(AttentionPlan, UnitsCoverEveryTaskOnceTheCostliestFirst) {
  const AttentionShape shape = {8, 2, 16};
  const auto plan = planned(shape, 3,
                            {{.first_position = 5000, .num_tokens = 1},
                             {.sequence = 1, .first_row = 1, .num_tokens = 300}});
  std::set<std::pair<std::size_t, int>> seen;
  Index last_cost = std::numeric_limits<Index>::max();
  for (const AttentionUnit& unit : plan.units()) {
    EXPECT_LE(unit.cost, last_cost);
    EXPECT_GT(unit.cost, 0);
    last_cost = unit.cost;
    EXPECT_TRUE(seen.insert({unit.task, unit.split}).second);
  }
  std::size_t num_units = 0;
  for (const AttentionTask& task : plan.tasks()) {
    num_units += task.is_cut() ? static_cast<std::size_t>(task.num_splits) : 1;
  }
  EXPECT_EQ(seen.size(), num_units);
}

TEST(AttentionPlan, CutsOneLongSequenceForSeveralThreadsOnly) {
  const AttentionShape shape = {8, 1, 64};
  const AttentionSegment step = {.first_position = 8000, .num_tokens = 1};
  EXPECT_EQ(planned(shape, 1, {step}).units().size(), 1u);
  const auto plan = planned(shape, 2, {step});
  EXPECT_EQ(plan.units().size(), 8u);  // 8,001 keys
  EXPECT_EQ(plan.num_cut(), 1);
  EXPECT_EQ(plan.num_partials(), 8 * 8);
  EXPECT_EQ(plan.grain(), 1);
  // A last split of one key is a split; 1,024 keys are one split, with nothing to cut.
  EXPECT_EQ(planned(shape, 2, {{.first_position = 1024, .num_tokens = 1}}).units().size(), 2u);
  EXPECT_EQ(planned(shape, 2, {{.first_position = 1023, .num_tokens = 1}}).units().size(), 1u);
}

TEST(AttentionPlan, LeavesTasksWholeWhereThereAreManyAnyway) {
  const AttentionShape shape = {8, 8, 64};
  std::vector<AttentionSegment> segments;
  for (int i = 0; i < 8; ++i) {
    segments.push_back({.sequence = i, .first_position = 4000, .first_row = i, .num_tokens = 1});
  }
  AttentionPlan plan(shape, 2);
  plan.plan(segments);
  EXPECT_EQ(plan.units().size(), 64u);
  EXPECT_EQ(plan.num_cut(), 0);
  EXPECT_EQ(plan.num_partials(), 0);
}

TEST(AttentionPlan, StatesOfCutTasksDoNotOverlap) {
  const AttentionShape shape = {6, 3, 8};
  const auto plan = planned(shape, 3, {{.first_position = 3000, .num_tokens = 2}});
  EXPECT_EQ(plan.num_cut(), 3);
  std::set<Index> states, counters;
  for (const AttentionTask& task : plan.tasks()) {
    ASSERT_TRUE(task.is_cut());
    counters.insert(task.cut_index);
    for (Index i = 0; i < Index{task.num_splits} * task.num_rows; ++i) {
      EXPECT_TRUE(states.insert(task.first_partial + i).second);
    }
  }
  EXPECT_EQ(counters, (std::set<Index>{0, 1, 2}));
  EXPECT_EQ(static_cast<Index>(states.size()), plan.num_partials());
  EXPECT_EQ(*states.rbegin(), plan.num_partials() - 1);
}

TEST(AttentionPlan, KeepsLittleWorkInOneThread) {
  const AttentionShape shape = {2, 2, 8};
  const auto small = planned(shape, 4, {{.first_position = 30, .num_tokens = 1}});
  EXPECT_EQ(small.grain(), 2);
  EXPECT_EQ(planned(shape, 4, {{.num_tokens = 900}}).grain(), 1);
}

// Positions that fit no cache are refused later; planning them must neither overflow nor ask for
// much memory.
TEST(AttentionPlan, BoundsWhatImpossiblePositionsCost) {
  constexpr int kMax = std::numeric_limits<int>::max(), kMin = std::numeric_limits<int>::min();
  const AttentionShape shape = {64, 1, 128};
  for (const int position : {kMax, kMin, -1, -5000}) {
    const auto plan = planned(shape, 2, {{.first_position = position, .num_tokens = 3}});
    EXPECT_LE(plan.num_partials() * AttentionState::stride(128) * 4,
              AttentionPlan::kMaxPartialBytes);
    EXPECT_GE(plan.units().size(), 1u);
    EXPECT_LE(plan.units().size(), 100000u);
  }
  EXPECT_TRUE(planned(shape, 2, {{.num_tokens = -1}}).units().empty());
  EXPECT_TRUE(planned(shape, 2, {}).units().empty());
}

}  // namespace
}  // namespace kvick
