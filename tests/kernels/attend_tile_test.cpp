// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kernel_test_support.hpp"
#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/math.hpp"
#include "kvick/kernels/kernel_table.hpp"
#include "support/fp_mode.hpp"

namespace kvick {
namespace {

using namespace kernel_test;

class AttendTileOnEveryIsa : public OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, AttendTileOnEveryIsa, ::testing::ValuesIn(supported_isas()),
                         isa_name);

TEST(AttentionState, RowsStayAligned) {
  for (int head_dim = 1; head_dim <= 300; ++head_dim) {
    EXPECT_GE(padded_head_dim(head_dim), head_dim);
    EXPECT_LT(padded_head_dim(head_dim), head_dim + 16);
    EXPECT_EQ(padded_head_dim(head_dim) % 16, 0);
    EXPECT_EQ(AttentionState::stride(head_dim) % 16, 0);
    EXPECT_GT(AttentionState::stride(head_dim), AttentionState::max_offset(head_dim));
    EXPECT_EQ(AttentionState::max_offset(head_dim), 16 + padded_head_dim(head_dim));
  }
}

constexpr int kRowLengths[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 33, 40, 64, 80, 96, 112, 256};
constexpr int kHeadDims[] = {8, 16, 40, 64, 80, 96, 112, 128, 256};

struct TileData {
  int head_dim;
  std::vector<float> keys;    // [head_dim][64]
  std::vector<float> values;  // [64][padded]

  AttentionTile view() const { return {keys.data(), values.data(), head_dim}; }
  float& key(int d, int j) { return keys[static_cast<std::size_t>(d * kAttentionTile + j)]; }
  float key(int d, int j) const { return keys[static_cast<std::size_t>(d * kAttentionTile + j)]; }
  float value(int j, int d) const {
    return values[static_cast<std::size_t>(j * padded_head_dim(head_dim) + d)];
  }
};

TileData random_tile(Random& random, int head_dim) {
  const AlignedBuffer<float> keys = random.normals(Index{head_dim} * kAttentionTile);
  const AlignedBuffer<float> values =
      random.normals(Index{kAttentionTile} * padded_head_dim(head_dim));
  return {head_dim, {keys.begin(), keys.end()}, {values.begin(), values.end()}};
}

AlignedBuffer<float> fresh_states(int head_dim, int rows) {
  const auto stride = static_cast<std::size_t>(AttentionState::stride(head_dim));
  AlignedBuffer<float> states(stride * static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    states[row * stride + static_cast<std::size_t>(AttentionState::max_offset(head_dim))] =
        -kInfinity;
  }
  return states;
}

struct Range {
  int first, end;
};

/// What one call of attend_tile sees: a tile and the keys each row may see.
struct Step {
  TileData tile;
  std::vector<Range> ranges;  // [rows]
};

/// Rows of queries, [rows][head_dim], walk the steps in order; the states at the end.
AlignedBuffer<float> attend(const KernelTable& table, std::span<const float> queries,
                            std::span<const Step> steps) {
  const int head_dim = steps.front().tile.head_dim;
  const auto num_rows = steps.front().ranges.size();
  AlignedBuffer<float> states = fresh_states(head_dim, static_cast<int>(num_rows));
  for (const Step& step : steps) {
    std::vector<AttentionRow> rows;
    for (std::size_t r = 0; r < num_rows; ++r) {
      rows.push_back(
          {queries.data() + r * static_cast<std::size_t>(head_dim),
           states.data() + r * static_cast<std::size_t>(AttentionState::stride(head_dim)),
           step.ranges[r].first, step.ranges[r].end});
    }
    table.attend_tile(step.tile.view(), rows.data(), static_cast<Index>(rows.size()));
  }
  return states;
}

void expect_attention_equals_portable(const KernelTable& table, std::span<const float> queries,
                                      std::span<const Step> steps) {
  expect_same_bits(attend(table, queries, steps).span(), attend(portable(), queries, steps).span());
}

Range random_range(Random& random) {
  const int first = random.integer(0, kAttentionTile - 1);
  return {first, random.integer(first + 1, kAttentionTile)};
}

std::vector<Step> random_steps(Random& random, int head_dim, int rows, int num_steps) {
  std::vector<Step> steps;
  for (int s = 0; s < num_steps; ++s) {
    steps.push_back({random_tile(random, head_dim), {}});
    for (int r = 0; r < rows; ++r) steps.back().ranges.push_back(random_range(random));
  }
  return steps;
}

TEST_P(AttendTileOnEveryIsa, EqualsPortableForEveryVisibleRange) {
  Random random(11);
  constexpr int kHeadDim = 8;
  const AlignedBuffer<float> query = random.normals(kHeadDim);
  std::vector<Step> steps = {{random_tile(random, kHeadDim), {{0, 1}}}};
  for (int first = 0; first < kAttentionTile; ++first) {
    for (int end = first + 1; end <= kAttentionTile; ++end) {
      SCOPED_TRACE(::testing::Message() << "keys " << first << " to " << end);
      steps[0].ranges[0] = {first, end};
      expect_attention_equals_portable(table(), query.span(), steps);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttendTileOnEveryIsa, EqualsPortableOverRowsAndTiles) {
  for (const int head_dim : kHeadDims) {
    for (const float scale : {0.1f, 1.0f, 20.0f}) {
      Random random(static_cast<std::uint32_t>(12 + head_dim));
      SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", scale " << scale);
      constexpr int kRows = 5;
      AlignedBuffer<float> queries = random.normals(Index{head_dim} * kRows);
      for (float& q : queries) q *= scale;
      std::vector<Step> steps = random_steps(random, head_dim, kRows, 4);
      steps[1].ranges = {{0, 64}, {0, 64}, {0, 1}, {63, 64}, {15, 17}};  // whole tiles and edges
      expect_attention_equals_portable(table(), queries.span(), steps);
      if (HasFatalFailure()) return;
    }
  }
}

// Rows are taken in blocks and chunks of several sizes; what they see together and what only some
// of them see are added apart.
TEST_P(AttendTileOnEveryIsa, EqualsPortableForEveryNumberOfRows) {
  Random random(21);
  for (const int head_dim : {8, 40, 64, 80}) {
    for (int rows = 1; rows <= 50; ++rows) {
      SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", rows " << rows);
      const AlignedBuffer<float> queries = random.normals(Index{head_dim} * rows);
      std::vector<Step> steps = random_steps(random, head_dim, rows, 3);
      for (int r = 0; r < rows; ++r) {
        const auto row = static_cast<std::size_t>(r);
        steps[0].ranges[row] = {0, kAttentionTile};                               // a whole tile
        steps[1].ranges[row] = {0, std::min(kAttentionTile, 1 + 63 * r / rows)};  // a causal one
      }
      expect_attention_equals_portable(table(), queries.span(), steps);
      if (HasFatalFailure()) return;
    }
  }
}

// A neighbour's range decides how rows are blocked, but not what a row computes.
TEST_P(AttendTileOnEveryIsa, RowsDoNotDependOnTheirNeighbours) {
  Random random(22);
  constexpr int kHeadDim = 48, kRows = 31;
  const AlignedBuffer<float> queries = random.normals(kHeadDim * kRows);
  const std::vector<Step> steps = random_steps(random, kHeadDim, kRows, 3);
  const AlignedBuffer<float> together = attend(table(), queries.span(), steps);
  const auto stride = static_cast<std::size_t>(AttentionState::stride(kHeadDim));
  for (std::size_t r = 0; r < kRows; ++r) {
    std::vector<Step> alone;
    for (const Step& step : steps) alone.push_back({step.tile, {step.ranges[r]}});
    const AlignedBuffer<float> got =
        attend(table(), queries.span().subspan(r * kHeadDim, kHeadDim), alone);
    expect_same_bits(got.span(), together.span().subspan(r * stride, stride));
    if (HasFatalFailure()) return;
  }
}

// Every row of a block has invisible keys of its own, which are visible to others.
TEST_P(AttendTileOnEveryIsa, GarbageReachesOnlyTheRowsThatSeeIt) {
  Random random(23);
  for (const int head_dim : {16, 80}) {
    for (int rows = 2; rows <= 30; ++rows) {
      const AlignedBuffer<float> queries = random.normals(Index{head_dim} * rows);
      std::vector<Step> steps = random_steps(random, head_dim, rows, 1);
      for (int r = 0; r < rows; ++r) {
        steps[0].ranges[static_cast<std::size_t>(r)] = {r % 7, 20 + r};
      }
      // Key and value 20 + rows - 1 - 1 are seen by the last row only, what follows by none.
      const AlignedBuffer<float> clean = attend(table(), queries.span(), steps);
      const int padded = padded_head_dim(head_dim);
      for (int j = 20 + rows - 2; j < kAttentionTile; ++j) {
        for (int d = 0; d < head_dim; ++d) steps[0].tile.key(d, j) = kNaN;
        std::fill_n(steps[0].tile.values.data() + j * padded, padded, kNaN);
      }
      const AlignedBuffer<float> got = attend(table(), queries.span(), steps);
      const auto others = static_cast<std::size_t>(AttentionState::stride(head_dim) * (rows - 1));
      expect_same_bits(got.span().first(others), clean.span().first(others));
      if (HasFatalFailure()) return;
      EXPECT_TRUE(std::isnan(got[others + AttentionState::kOutput])) << rows;
    }
  }
}

// Zeros of both signs, subnormals and infinities as operands and as sums.
TEST_P(AttendTileOnEveryIsa, EqualsPortableOnExtremeValues) {
  Random random(24);
  const float extremes[] = {0.0f,  -0.0f,   0x1p-149f, -0x1p-149f, 0x1p-126f, -0x1p-130f, 1.0f,
                            -1.0f, 0x1p60f, -0x1p60f,  0x1p127f,   kInfinity, -kInfinity};
  const auto pick = [&](int count) {
    return extremes[static_cast<std::size_t>(random.integer(0, count - 1))];
  };
  for (const int num_kinds : {8, 10, 13}) {  // up to small values, large finite ones, infinities
    for (int trial = 0; trial < 60; ++trial) {
      SCOPED_TRACE(::testing::Message() << num_kinds << " kinds, trial " << trial);
      constexpr int kHeadDim = 24, kRows = 8;
      AlignedBuffer<float> queries = random.normals(kHeadDim * kRows);
      for (float& q : queries) q = random.integer(0, 1) == 0 ? q : pick(num_kinds);
      std::vector<Step> steps = random_steps(random, kHeadDim, kRows, 2);
      for (Step& step : steps) {
        for (float& k : step.tile.keys) k = pick(num_kinds);
        for (float& v : step.tile.values) v = pick(num_kinds);
      }
      expect_attention_equals_portable(table(), queries.span(), steps);
      if (HasFatalFailure()) return;
    }
  }
}

// An output of -0 stays one: invisible keys must not add +0 to it.
TEST_P(AttendTileOnEveryIsa, KeepsOutputsOfMinusZero) {
  constexpr int kHeadDim = 16;
  Random random(25);
  for (int rows = 1; rows <= 9; ++rows) {
    const AlignedBuffer<float> queries = random.normals(kHeadDim * rows);
    std::vector<Step> steps = random_steps(random, kHeadDim, rows, 1);
    AlignedBuffer<float> states = fresh_states(kHeadDim, rows);
    const auto stride = static_cast<std::size_t>(AttentionState::stride(kHeadDim));
    std::vector<AttentionRow> attended;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      std::fill_n(states.data() + r * stride + AttentionState::kOutput, kHeadDim, -0.0f);
      states[r * stride + static_cast<std::size_t>(AttentionState::max_offset(kHeadDim))] = 0.0f;
      attended.push_back(
          {queries.data() + r * kHeadDim, states.data() + r * stride, 5, 6 + static_cast<int>(r)});
    }
    for (float& v : steps[0].tile.values) v = -0.0f;
    for (int j = 6 + rows - 1; j < kAttentionTile; ++j) {
      std::fill_n(steps[0].tile.values.data() + j * kHeadDim, kHeadDim, 1.0f);
    }
    table().attend_tile(steps[0].tile.view(), attended.data(), rows);
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      for (std::size_t d = 0; d < kHeadDim; ++d) {
        ASSERT_TRUE(same_bits(states[r * stride + AttentionState::kOutput + d], -0.0f)) << rows;
      }
    }
  }
}

TEST_P(AttendTileOnEveryIsa, IgnoresWhatARowDoesNotSee) {
  Random random(13);
  for (const int head_dim : {16, 80}) {
    const AlignedBuffer<float> query = random.normals(head_dim);
    std::vector<Step> steps = {{random_tile(random, head_dim), {{10, 50}}}};
    const AlignedBuffer<float> want = attend(table(), query.span(), steps);
    for (int j = 0; j < kAttentionTile; ++j) {
      if (j >= 10 && j < 50) continue;
      for (int d = 0; d < head_dim; ++d) steps[0].tile.key(d, j) = j % 2 == 0 ? kNaN : kInfinity;
      float* const values = steps[0].tile.values.data() + j * padded_head_dim(head_dim);
      std::fill_n(values, padded_head_dim(head_dim), kNaN);
    }
    const AlignedBuffer<float> got = attend(table(), query.span(), steps);
    expect_same_bits(got.span(), want.span());
    EXPECT_TRUE(std::none_of(got.begin(), got.end(), [](float v) { return std::isnan(v); }));
  }
}

// Scores of -inf before, in and after ordinary tiles; a query of huge values overflows them.
TEST_P(AttendTileOnEveryIsa, TakesScoresOfMinusInfinity) {
  Random random(14);
  constexpr int kHeadDim = 40;
  AlignedBuffer<float> query = random.normals(kHeadDim);
  query[0] = 0x1p100f;
  // Key element 0 decides: 0 leaves an ordinary score, -2^100 overflows it to -inf.
  const auto tile_with = [&](auto is_minus_infinity) {
    TileData tile = random_tile(random, kHeadDim);
    for (int j = 0; j < kAttentionTile; ++j) tile.key(0, j) = is_minus_infinity(j) ? -0x1p100f : 0;
    return tile;
  };
  const auto all = [&] { return tile_with([](int) { return true; }); };
  const auto some = [&] { return tile_with([](int j) { return j % 3 != 0; }); };
  const auto none = [&] { return tile_with([](int) { return false; }); };
  const auto run = [&](std::vector<TileData> tiles) {
    std::vector<Step> steps;
    for (TileData& tile : tiles) steps.push_back({std::move(tile), {{1, 62}}});
    AlignedBuffer<float> states = attend(table(), query.span(), steps);
    expect_same_bits(states.span(), attend(portable(), query.span(), steps).span());
    EXPECT_TRUE(std::none_of(states.begin(), states.end(), [](float v) { return std::isnan(v); }));
    return states;
  };
  const auto list = [](auto... tiles) {
    std::vector<TileData> result;
    (result.push_back(std::move(tiles)), ...);
    return result;
  };
  const AlignedBuffer<float> nothing = run(list(all(), all()));
  expect_same_bits(nothing.span(), fresh_states(kHeadDim, 1).span());
  run(list(some()));
  run(list(all(), none()));
  run(list(none(), all()));
  run(list(all(), some(), all(), none()));
}

TEST_P(AttendTileOnEveryIsa, AgreesOnNaNAndInfinityInVisibleKeys) {
  Random random(15);
  constexpr int kHeadDim = 16;
  const AlignedBuffer<float> query = random.normals(kHeadDim);
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    for (const int at : {0, 7, 8, 31, 63}) {
      std::vector<Step> steps = random_steps(random, kHeadDim, 1, 2);
      steps[0].ranges[0] = {0, 64};
      steps[0].tile.key(3, at) = bad;
      expect_attention_equals_portable(table(), query.span(), steps);
    }
  }
}

// Products that underflow give scores of -0 and +0, whose maximum depends on the order of a search.
TEST_P(AttendTileOnEveryIsa, StoresOneSignOfAZeroMaximum) {
  constexpr int kHeadDim = 8;
  Random random(16);
  AlignedBuffer<float> query(kHeadDim);
  query[kHeadDim - 1] = 0x1p-100f;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<Step> steps = random_steps(random, kHeadDim, 1, 1);
    for (int j = 0; j < kAttentionTile; ++j) {
      for (int d = 0; d < kHeadDim; ++d) steps[0].tile.key(d, j) = 0.0f;
      // The last step is fma(query, key, +0) of a product of 2^-200, which rounds to a zero.
      steps[0].tile.key(kHeadDim - 1, j) = random.integer(0, 1) == 0 ? 0x1p-100f : -0x1p-100f;
    }
    expect_attention_equals_portable(table(), query.span(), steps);
    const AlignedBuffer<float> state = attend(table(), query.span(), steps);
    const float max = state[static_cast<std::size_t>(AttentionState::max_offset(kHeadDim))];
    EXPECT_TRUE(same_bits(max, 0.0f));
  }
}

// KernelTable::attend_tile's own words, one row at a time.
void attend_as_documented(const TileData& tile, std::span<const float> query, Range range,
                          float* state) {
  const int padded = padded_head_dim(tile.head_dim);
  float* const sums = state;
  float* const output = state + 16;
  float& m = state[16 + padded];
  std::array<float, 64> s;
  s.fill(-kInfinity);
  for (int j = range.first; j < range.end; ++j) {
    float& score = s[static_cast<std::size_t>(j)];
    score = 0.0f;
    for (int d = 0; d < tile.head_dim; ++d) {
      score = std::fma(query[static_cast<std::size_t>(d)], tile.key(d, j), score);
    }
  }
  const float new_m = std::max(m, *std::max_element(s.begin(), s.end())) + 0.0f;
  const float a = math::exp(m - new_m);
  std::array<float, 64> p;
  for (std::size_t j = 0; j < 64; ++j) p[j] = math::exp(s[j] - new_m);
  for (std::size_t i = 0; i < 16; ++i) {
    sums[i] = std::fma(sums[i], a, (p[i] + p[i + 16]) + (p[i + 32] + p[i + 48]));
  }
  for (int d = 0; d < padded; ++d) {
    output[d] = output[d] * a;
    for (int j = range.first; j < range.end; ++j) {
      output[d] = std::fma(p[static_cast<std::size_t>(j)], tile.value(j, d), output[d]);
    }
  }
  m = new_m;
}

TEST_P(AttendTileOnEveryIsa, FollowsTheDocumentedOrder) {
  for (const int head_dim : {8, 80, 128}) {
    Random random(static_cast<std::uint32_t>(17 + head_dim));
    const AlignedBuffer<float> query = random.normals(head_dim);
    const std::vector<Step> steps = random_steps(random, head_dim, 1, 3);
    AlignedBuffer<float> want = fresh_states(head_dim, 1);
    for (const Step& step : steps) {
      attend_as_documented(step.tile, query.span(), step.ranges[0], want.data());
    }
    expect_same_bits(attend(table(), query.span(), steps).span(), want.span());
  }
}

// Exact softmax attention in double, and how far f32 in the documented steps may be from it.
struct Oracle {
  std::vector<double> output;     // [head_dim]
  std::vector<double> magnitude;  // sum of weight |value|
  double relative_bound = 0.0;    // |error| <= relative_bound * magnitude + underflow
};

Oracle exact_attention(std::span<const float> query, std::span<const Step> steps) {
  const int head_dim = steps.front().tile.head_dim;
  std::vector<double> scores;
  double largest = 0.0, score_error = 0.0, num_keys = 0.0;
  for (const Step& step : steps) {
    for (int j = step.ranges[0].first; j < step.ranges[0].end; ++j) {
      double score = 0.0, magnitude = 0.0;
      for (int d = 0; d < head_dim; ++d) {
        const double product =
            double{query[static_cast<std::size_t>(d)]} * double{step.tile.key(d, j)};
        score += product;
        magnitude += std::fabs(product);
      }
      scores.push_back(score);
      largest = std::max(largest, std::fabs(score));
      score_error = std::max(score_error, head_dim * kUnitRoundoff * magnitude);
      num_keys += 1.0;
    }
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  Oracle oracle;
  oracle.output.assign(static_cast<std::size_t>(head_dim), 0.0);
  oracle.magnitude.assign(static_cast<std::size_t>(head_dim), 0.0);
  double total = 0.0;
  std::size_t key = 0;
  for (const Step& step : steps) {
    for (int j = step.ranges[0].first; j < step.ranges[0].end; ++j) {
      const double weight = std::exp(scores[key++] - max);
      total += weight;
      for (std::size_t d = 0; d < oracle.output.size(); ++d) {
        const double term = weight * double{step.tile.value(j, static_cast<int>(d))};
        oracle.output[d] += term;
        oracle.magnitude[d] += std::fabs(term);
      }
    }
  }
  for (double& value : oracle.output) value /= total;
  for (double& value : oracle.magnitude) value /= total;
  // A weight is a product of one exp and a rescale per later tile. Each argument is a difference of
  // scores, rounded once (2 largest), and exp itself is within 1.784 roundings. Maxima cancel.
  const auto tiles = static_cast<double>(steps.size());
  const double weight_error = score_error + tiles * (2.0 * largest + 1.784) * kUnitRoundoff;
  // Then one fma per key and one product per tile for the output; one fma and two additions per
  // tile and four to join them for the total.
  const double output_error = weight_error + (num_keys + tiles) * kUnitRoundoff;
  const double total_error = weight_error + (3.0 * tiles + 4.0) * kUnitRoundoff;
  oracle.relative_bound = kSlack * (output_error + total_error);
  return oracle;
}

TEST(PortableAttendTile, StaysInsideItsBoundOfExactAttention) {
  for (const int head_dim : kHeadDims) {
    for (const float scale : {0.1f, 1.0f}) {
      Random random(static_cast<std::uint32_t>(18 + head_dim));
      AlignedBuffer<float> query = random.normals(head_dim);
      for (float& q : query) q *= scale;
      const std::vector<Step> steps = random_steps(random, head_dim, 1, 5);
      AlignedBuffer<float> state = attend(portable(), query.span(), steps);
      double total = 0.0;
      for (std::size_t i = 0; i < 16; ++i) total += double{state[i]};
      const Oracle oracle = exact_attention(query.span(), steps);
      for (std::size_t d = 0; d < oracle.output.size(); ++d) {
        const double got = double{state[16 + d]} / total;
        // Weights below 2^-126 become 0: they are less than 1e-35 of the values together.
        ASSERT_NEAR(got, oracle.output[d], oracle.relative_bound * oracle.magnitude[d] + 1e-35)
            << "head_dim " << head_dim << ", scale " << scale << ", element " << d;
      }
    }
  }
}

// With one key far ahead of the others the answer is that key's value, readable by hand.
TEST_P(AttendTileOnEveryIsa, ReturnsTheValueOfADominantKey) {
  constexpr int kHeadDim = 8;
  for (int dominant = 0; dominant < kAttentionTile; ++dominant) {
    TileData tile{kHeadDim, std::vector<float>(kHeadDim * kAttentionTile),
                  std::vector<float>(kAttentionTile * 16)};
    for (int j = 0; j < kAttentionTile; ++j) {
      tile.key(2, j) = j == dominant ? 1.0f : -1.0f;
      for (int d = 0; d < kHeadDim; ++d) {
        tile.values[static_cast<std::size_t>(j * 16 + d)] = static_cast<float>(100 * j + d);
      }
    }
    std::vector<float> query(kHeadDim, 0.0f);
    query[2] = 50.0f;  // scores 50 and -50: the others weigh e^-100, which counts as 0
    std::vector<Step> steps;
    steps.push_back({std::move(tile), {{0, kAttentionTile}}});
    const AlignedBuffer<float> state = attend(table(), query, steps);
    for (int d = 0; d < kHeadDim; ++d) {
      EXPECT_EQ(state[static_cast<std::size_t>(16 + d)], static_cast<float>(100 * dominant + d));
    }
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(state[static_cast<std::size_t>(i)], i == dominant % 16 ? 1.0f : 0.0f);
    }
    EXPECT_EQ(state[static_cast<std::size_t>(AttentionState::max_offset(kHeadDim))], 50.0f);
  }
}

// ---- int8 keys ----

/// Keys of a tile and queries, with all that the kernel takes of them.
struct Int8Data {
  int head_dim;
  TileData tile;                     // for its values
  std::vector<std::int8_t> keys;     // [groups][64][4]
  std::vector<float> key_scales;     // [64]
  std::vector<std::int8_t> queries;  // [rows][groups * 4]
  std::vector<Int8Query> rows;

  int stride() const { return num_int8_groups(head_dim) * kInt8Group; }
  AttentionTile view() const {
    return {nullptr, tile.values.data(), head_dim, keys.data(), key_scales.data()};
  }
  int dot(std::size_t row, int key) const {
    int sum = 0;
    for (int d = 0; d < head_dim; ++d) {
      sum += keys[static_cast<std::size_t>((d / 4 * kAttentionTile + key) * 4 + d % 4)] *
             queries[row * static_cast<std::size_t>(stride()) + static_cast<std::size_t>(d)];
    }
    return sum;
  }
};

/// Elements at random, or all of the largest magnitude.
Int8Data random_int8(Random& random, int head_dim, int num_rows, bool is_extreme) {
  Int8Data data{head_dim, random_tile(random, head_dim), {}, {}, {}, {}};
  const auto element = [&] {
    const int value = is_extreme ? 127 : random.integer(0, 127);
    return static_cast<std::int8_t>(random.integer(0, 1) == 0 ? value : -value);
  };
  data.keys.resize(static_cast<std::size_t>(data.stride() * kAttentionTile));
  data.queries.resize(static_cast<std::size_t>(data.stride() * num_rows));
  for (int d = 0; d < head_dim; ++d) {
    for (int j = 0; j < kAttentionTile; ++j) {
      data.keys[static_cast<std::size_t>((d / 4 * kAttentionTile + j) * 4 + d % 4)] = element();
    }
    for (int r = 0; r < num_rows; ++r) {
      data.queries[static_cast<std::size_t>(r * data.stride() + d)] = element();
    }
  }
  for (int j = 0; j < kAttentionTile; ++j) data.key_scales.push_back(random.uniform(0.0f, 0.1f));
  for (int r = 0; r < num_rows; ++r) {
    const std::int8_t* const values = data.queries.data() + r * data.stride();
    const int sum = std::accumulate(values, values + data.stride(), 0);
    data.rows.push_back({values, random.uniform(0.0f, 0.01f), -sum});
  }
  return data;
}

AlignedBuffer<float> attend_int8(const KernelTable& table, const Int8Data& data,
                                 std::span<const Range> ranges) {
  AlignedBuffer<float> states = fresh_states(data.head_dim, static_cast<int>(ranges.size()));
  std::vector<AttentionRow> rows;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    rows.push_back(
        {nullptr,
         states.data() + r * static_cast<std::size_t>(AttentionState::stride(data.head_dim)),
         ranges[r].first, ranges[r].end, data.rows[r]});
  }
  table.attend_tile(data.view(), rows.data(), static_cast<Index>(rows.size()));
  return states;
}

TEST_P(AttendTileOnEveryIsa, EqualsPortableWithInt8Keys) {
  Random random(32);
  for (const int head_dim : {1, 5, 8, 40, 64, 80, 128, 256}) {
    for (const int num_rows : {1, 2, 3, 4, 5, 6, 7, 13, 30}) {
      for (const bool is_extreme : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", rows " << num_rows);
        const Int8Data data = random_int8(random, head_dim, num_rows, is_extreme);
        std::vector<Range> ranges;
        for (int r = 0; r < num_rows; ++r) ranges.push_back(random_range(random));
        expect_same_bits(attend_int8(table(), data, ranges).span(),
                         attend_int8(portable(), data, ranges).span());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// One visible key: its score is the maximum, and the output its value.
TEST_P(AttendTileOnEveryIsa, ScoresOfInt8KeysAreExactDotsTimesBothScales) {
  Random random(33);
  for (const int head_dim : {3, 64, 256}) {
    const Int8Data data = random_int8(random, head_dim, 3, head_dim == 256);
    for (int j = 0; j < kAttentionTile; ++j) {
      const Range ranges[] = {{j, j + 1}, {j, j + 1}, {j, j + 1}};
      const AlignedBuffer<float> states = attend_int8(table(), data, ranges);
      for (std::size_t r = 0; r < 3; ++r) {
        const float scale = data.rows[r].scale * data.key_scales[static_cast<std::size_t>(j)];
        const float want = static_cast<float>(data.dot(r, j)) * scale + 0.0f;
        const auto state = r * static_cast<std::size_t>(AttentionState::stride(head_dim));
        EXPECT_EQ(states[state + static_cast<std::size_t>(AttentionState::max_offset(head_dim))],
                  want);
        EXPECT_EQ(states[state + AttentionState::kOutput], data.tile.value(j, 0));
      }
    }
  }
}

TEST_P(AttendTileOnEveryIsa, LoadsInt8KeysByGroupsOfFour) {
  Random random(34);
  for (const int length : {1, 4, 7, 16, 40, 64, 100}) {
    for (const int num_rows : {1, 8, 15, 33, 64}) {
      const int stride = num_int8_groups(length) * kInt8Group;
      std::vector<std::byte> bytes(static_cast<std::size_t>(stride * num_rows));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.integer(0, 255));
      const int first = random.integer(0, kAttentionTile - num_rows);
      std::vector<float> lanes(static_cast<std::size_t>(stride / 4 * kAttentionTile), 1.0f);
      table().load_keys({ElementType::kInt8, bytes.data(), stride, num_rows, length},
                        lanes.data() + first);
      const auto* const got = reinterpret_cast<const std::byte*>(lanes.data());
      for (int j = 0; j < num_rows; ++j) {
        for (int d = 0; d < stride; ++d) {
          ASSERT_EQ(got[(d / 4 * kAttentionTile + first + j) * 4 + d % 4],
                    bytes[static_cast<std::size_t>(j * stride + d)])
              << length << ", " << num_rows << ": " << j << ", " << d;
        }
      }
      if (num_rows == kAttentionTile) continue;
      EXPECT_EQ(lanes[static_cast<std::size_t>(first > 0 ? 0 : num_rows)], 1.0f) << "another lane";
    }
  }
}

TEST_P(AttendTileOnEveryIsa, LoadsInt8ValuesTimesTheirScale) {
  Random random(35);
  for (const int length : kRowLengths) {
    for (const int num_rows : {1, 3, 64}) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(length * num_rows));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.integer(0, 255));
      std::vector<float> scales;
      for (int j = 0; j < num_rows; ++j) scales.push_back(random.uniform(0.0f, 1.0f));
      scales.back() = kNaN;  // of a row that was not finite; its padding is zeros still
      ElementRows rows{ElementType::kInt8, bytes.data(), length, num_rows, length};
      rows.scales = scales.data();
      const int padded = padded_head_dim(length);
      AlignedBuffer<float> values = nans(Index{num_rows} * padded);
      table().load_values(rows, values.data());
      for (int j = 0; j < num_rows; ++j) {
        for (int d = 0; d < padded; ++d) {
          const auto integer =
              d < length ? static_cast<std::int8_t>(bytes[static_cast<std::size_t>(j * length + d)])
                         : std::int8_t{0};
          const float want =
              d < length ? static_cast<float>(integer) * scales[static_cast<std::size_t>(j)] : 0.0f;
          ASSERT_TRUE(same_bits(values[static_cast<std::size_t>(j * padded + d)], want))
              << length << ": " << j << ", " << d;
        }
      }
    }
  }
}

// ---- merge_states ----

TEST_P(AttendTileOnEveryIsa, MergesAsDocumented) {
  Random random(26);
  for (const int head_dim : {1, 16, 40, 128}) {
    const auto size = static_cast<std::size_t>(AttentionState::stride(head_dim));
    const auto max_at = static_cast<std::size_t>(AttentionState::max_offset(head_dim));
    for (const float max_a : {-kInfinity, -500.0f, -1.0f, 0.0f, 0.3f, 80.0f}) {
      for (const float max_b : {-kInfinity, -500.0f, -1.1f, 0.0f, 0.7f, 80.0f}) {
        AlignedBuffer<float> a = random.normals(static_cast<Index>(size));
        AlignedBuffer<float> b = random.normals(static_cast<Index>(size));
        a[max_at] = max_a;
        b[max_at] = max_b;
        AlignedBuffer<float> want = copy(a.span());
        const float m = std::max(max_a, max_b), r = m == -kInfinity ? 0.0f : m;
        const float u = math::exp(max_a - r), v = math::exp(max_b - r);
        for (std::size_t i = 0; i < max_at; ++i) {
          const float scaled = a[i] * u;
          want[i] = std::fma(b[i], v, scaled);
        }
        want[max_at] = m;
        table().merge_states(a.data(), b.data(), head_dim);
        expect_same_bits(a.span(), want.span());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// ---- Conversions ----

constexpr ElementType kElementTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16};

/// Rows of random elements; the buffer ends with the last element.
struct StoredRows {
  ElementType type;
  int num_rows, head_dim;
  std::ptrdiff_t stride_bytes;
  std::vector<std::byte> bytes;

  StoredRows(Random& random, ElementType element_type, int rows, int length, int gap)
      : type(element_type),
        num_rows(rows),
        head_dim(length),
        stride_bytes((length + gap) * static_cast<std::ptrdiff_t>(size_bytes(element_type))) {
    bytes.resize(static_cast<std::size_t>((rows - 1) * stride_bytes) +
                 static_cast<std::size_t>(length) * size_bytes(type));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.integer(0, 255));
  }

  ElementRows view() const { return {type, bytes.data(), stride_bytes, num_rows, head_dim}; }

  float at(int row, int element) const {
    float value = 0.0f;
    load_elements(
        type,
        bytes.data() + row * stride_bytes + element * static_cast<std::ptrdiff_t>(size_bytes(type)),
        1, &value);
    return value;
  }
};

TEST_P(AttendTileOnEveryIsa, LoadsKeysIntoTheirLanesOnly) {
  Random random(27);
  for (const ElementType type : kElementTypes) {
    for (const int length : kRowLengths) {
      for (const int num_rows : {1, 2, 7, 8, 9, 15, 16, 17, 31, 48, 64}) {
        for (const int gap : {0, 1, 13}) {
          const int first = random.integer(0, kAttentionTile - num_rows);
          SCOPED_TRACE(::testing::Message() << name(type) << ", " << num_rows << " rows of "
                                            << length << " + " << gap << ", from key " << first);
          const StoredRows rows(random, type, num_rows, length, gap);
          constexpr float kUntouched = 123.0f;
          AlignedBuffer<float> lanes(static_cast<std::size_t>(length) * kAttentionTile);
          std::fill(lanes.begin(), lanes.end(), kUntouched);
          table().load_keys(rows.view(), lanes.data() + first);
          for (int d = 0; d < length; ++d) {
            for (int j = 0; j < kAttentionTile; ++j) {
              const bool is_loaded = j >= first && j < first + num_rows;
              const float want = is_loaded ? rows.at(j - first, d) : kUntouched;
              const float got = lanes[static_cast<std::size_t>(d * kAttentionTile + j)];
              ASSERT_TRUE(same_bits(got, want)) << d << ", " << j << ": " << got << ", " << want;
            }
          }
        }
      }
    }
  }
}

TEST_P(AttendTileOnEveryIsa, LoadsValuesAndZeroesTheirPadding) {
  Random random(28);
  for (const ElementType type : kElementTypes) {
    for (const int length : kRowLengths) {
      for (const int num_rows : {1, 2, 5, 64}) {
        for (const int gap : {0, 1, 13}) {
          SCOPED_TRACE(::testing::Message()
                       << name(type) << ", " << num_rows << " rows of " << length << " + " << gap);
          const StoredRows rows(random, type, num_rows, length, gap);
          const int padded = padded_head_dim(length);
          AlignedBuffer<float> values = nans(Index{num_rows} * padded);
          table().load_values(rows.view(), values.data());
          for (int j = 0; j < num_rows; ++j) {
            for (int d = 0; d < padded; ++d) {
              const float want = d < length ? rows.at(j, d) : 0.0f;
              ASSERT_TRUE(same_bits(values[static_cast<std::size_t>(j * padded + d)], want))
                  << j << ", " << d;
            }
          }
        }
      }
    }
  }
}

// Where rows that come soon are said to lie changes nothing, and need not be memory.
TEST_P(AttendTileOnEveryIsa, NeverReadsUpcomingRows) {
  Random random(29);
  const StoredRows rows(random, ElementType::kF16, 20, 40, 0);
  ElementRows view = rows.view();
  AlignedBuffer<float> keys(40 * kAttentionTile), want_keys(40 * kAttentionTile);
  AlignedBuffer<float> values(20 * 48), want_values(20 * 48);
  table().load_keys(view, want_keys.data());
  table().load_values(view, want_values.data());
  for (const std::uintptr_t address : {std::uintptr_t{64}, ~std::uintptr_t{0} - 100}) {
    view.upcoming = reinterpret_cast<const std::byte*>(address);
    table().load_keys(view, keys.data());
    table().load_values(view, values.data());
    expect_same_bits(keys.span(), want_keys.span());
    expect_same_bits(values.span(), want_values.span());
  }
}

// All 65,536 patterns, as values and as keys.
TEST_P(AttendTileOnEveryIsa, LoadsEveryHalf) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    std::vector<float> want(patterns.size()), values(patterns.size()), keys(patterns.size());
    const auto* const bytes = reinterpret_cast<const std::byte*>(patterns.data());
    load_elements(type, bytes, static_cast<std::ptrdiff_t>(patterns.size()), want.data());
    table().load_values({type, bytes, 2 * 1024, 64, 1024}, values.data());
    expect_same_bits(values, want);
    table().load_keys({type, bytes, 2 * 1024, 64, 1024}, keys.data());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSERT_TRUE(same_bits(keys[i % 1024 * kAttentionTile + i / 1024], want[i])) << i;
    }
  }
}

/// Halves and the ways between them: exact, ties, just beside ties, of both signs, and extremes.
std::vector<float> floats_to_round(ElementType type) {
  std::vector<float> floats = {kInfinity, -kInfinity, kNaN, -kNaN, 0x1.fffffep127f, 0x1p-149f};
  for (const std::uint32_t nan :
       {0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7fc12345u, 0xffa54321u}) {
    floats.push_back(std::bit_cast<float>(nan));
  }
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i), next = static_cast<std::uint16_t>(i + 1);
    const bool is_f16 = type == ElementType::kF16;
    const float a = is_f16 ? static_cast<float>(f16::from_bits(half))
                           : static_cast<float>(bf16::from_bits(half));
    const float b = is_f16 ? static_cast<float>(f16::from_bits(next))
                           : static_cast<float>(bf16::from_bits(next));
    floats.push_back(a);
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    const auto tie = static_cast<float>((double{a} + double{b}) / 2);
    for (const float x : {tie, std::nextafter(tie, kInfinity), std::nextafter(tie, -kInfinity)}) {
      floats.push_back(x);
    }
  }
  return floats;
}

std::vector<std::byte> store(const KernelTable& table, ElementType type,
                             std::span<const float> floats) {
  std::vector<std::byte> stored(floats.size() * size_bytes(type));
  table.store_elements(type, floats.data(), static_cast<Index>(floats.size()), stored.data());
  return stored;
}

// The bits of f16(x) and bf16(x) even of NaNs: caches are compared byte by byte.
TEST_P(AttendTileOnEveryIsa, StoresTheBitsOfTheElementTypes) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    const std::vector<float> floats = floats_to_round(type);
    const std::vector<std::byte> stored = store(table(), type, floats);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const std::uint16_t want =
          type == ElementType::kF16 ? f16(floats[i]).bits : bf16(floats[i]).bits;
      std::uint16_t got;
      std::memcpy(&got, stored.data() + 2 * i, 2);
      ASSERT_EQ(got, want) << name(type) << ", " << std::hexfloat << floats[i];
    }
  }
  Random random(30);
  const AlignedBuffer<float> floats = random.normals(70);
  const std::vector<std::byte> same = store(table(), ElementType::kF32, floats.span());
  EXPECT_EQ(std::memcmp(same.data(), floats.data(), same.size()), 0);
}

TEST_P(AttendTileOnEveryIsa, StoresAsManyElementsAsAsked) {
  Random random(31);
  for (const ElementType type : kElementTypes) {
    for (Index count = 0; count <= 70; ++count) {
      const AlignedBuffer<float> normals = random.normals(count);
      const std::vector<float> floats(normals.begin(), normals.end());
      const std::size_t size = floats.size() * size_bytes(type);
      std::vector<std::byte> stored(size + 64, std::byte{0x5a});
      table().store_elements(type, floats.data(), count, stored.data());
      std::vector<std::byte> want(size + 64, std::byte{0x5a});
      portable().store_elements(type, floats.data(), count, want.data());
      ASSERT_EQ(stored, want) << name(type) << ", " << count;
    }
  }
}

// A cache may be written outside of any ScopedFpEnvironment.
TEST_P(AttendTileOnEveryIsa, ConvertsAlikeInEveryFloatingPointMode) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    const std::vector<float> floats = floats_to_round(type);
    const std::vector<std::byte> want = store(table(), type, floats);
    const ElementRows rows{type, want.data(), 2 * 1024, 64, 1024};
    AlignedBuffer<float> want_values(65536), values(65536), want_keys(65536), keys(65536);
    table().load_values(rows, want_values.data());
    table().load_keys(rows, want_keys.data());
    for (const support::FpMode mode : support::foreign_fp_modes()) {
      std::vector<std::byte> got;
      {
        const support::ScopedFpMode scope(mode);
        got = store(table(), type, floats);
        table().load_values(rows, values.data());
        table().load_keys(rows, keys.data());
      }
      EXPECT_EQ(got, want) << name(type) << ", " << mode;
      expect_same_bits(values.span(), want_values.span());
      expect_same_bits(keys.span(), want_keys.span());
    }
  }
}

}  // namespace
}  // namespace kvick
