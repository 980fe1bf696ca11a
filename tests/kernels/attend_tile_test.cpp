// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kernel_test_support.hpp"
#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/math.hpp"
#include "kvick/kernels/kernel_table.hpp"

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

constexpr int kHeadDims[] = {8, 16, 40, 64, 80, 128, 256};

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

}  // namespace
}  // namespace kvick
