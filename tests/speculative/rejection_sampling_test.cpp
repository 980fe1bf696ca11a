// SPDX-License-Identifier: MIT
#include "kvick/speculative/rejection_sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/core/random.hpp"
#include "speculative/statistics.hpp"

namespace {

using namespace kvick;
using support::expect_distribution;
using support::expect_error;
using Row = std::vector<double>;

constexpr int kNumSamples = 1'000'000;

struct Pair {
  const char* name;
  Row p, q;
};

const Pair kPairs[] = {
    {"Identical", {0.5, 0.3, 0.2}, {0.5, 0.3, 0.2}},
    {"Near", {0.5, 0.3, 0.2}, {0.4, 0.35, 0.25}},
    {"Far", {0.05, 0.15, 0.8}, {0.7, 0.25, 0.05}},
    {"Disjoint", {0.25, 0.75, 0, 0}, {0, 0, 0.5, 0.5}},
    {"Overlapping", {0.2, 0.5, 0.3, 0}, {0, 0.3, 0.3, 0.4}},
    {"OnePointDraft", {0.2, 0.5, 0.3}, {0, 1, 0}},
    {"OnePointTarget", {0, 0, 1}, {0.3, 0.4, 0.3}},
    {"OnePointBoth", {0, 1, 0}, {0, 1, 0}},
    {"OnePointEach", {0, 1, 0}, {1, 0, 0}},
    {"Uniform",
     {0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125},
     {0.3, 0.3, 0.1, 0.1, 0.1, 0.05, 0.05, 0}},
    {"Small", {1e-5, 1 - 3e-5, 2e-5}, {0.5, 0.25, 0.25}},
};

class RejectionSampling : public ::testing::TestWithParam<Pair> {};

TEST_P(RejectionSampling, FollowsTheTargetAndAcceptsAsOftenAsAnyMethodCan) {
  const auto& [name, p, q] = GetParam();
  PhiloxStream rng(1), draft_rng(2);
  std::vector<std::int64_t> counts(p.size());
  std::int64_t num_accepted = 0;
  for (int i = 0; i < kNumSamples; ++i) {
    const TokenId x = sample_from(q, draft_rng.next_uniform());
    const TokenId y = rejection_sample(p, q, x, rng);
    ++counts[static_cast<std::size_t>(y)];
    num_accepted += x == y ? 1 : 0;
  }
  expect_distribution(counts, p);
  double overlap = 0;
  for (std::size_t i = 0; i < p.size(); ++i) overlap += std::min(p[i], q[i]);
  // Six standard deviations of a share of a million.
  EXPECT_NEAR(static_cast<double>(num_accepted) / kNumSamples, overlap, 0.003);
}

// Drafts of two tokens and one more, each from distributions that depend on the token before.
TEST_P(RejectionSampling, FollowsTheJointTargetOverTriples) {
  const auto& [name, p0, q0] = GetParam();
  const std::size_t size = std::min<std::size_t>(p0.size(), 3);
  const auto shifted = [size](const Row& row, std::size_t by) {
    Row result(size);
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum += result[i] = row[(i + by) % row.size()];
    for (double& x : result) sum > 0 ? x /= sum : x = 1.0 / static_cast<double>(size);
    return result;
  };
  // The distribution after `previous`.
  std::vector<Row> p, q;
  for (std::size_t previous = 0; previous <= size; ++previous) {
    p.push_back(shifted(p0, previous));
    q.push_back(shifted(q0, 2 * previous));
  }
  PhiloxStream rng(3), draft_rng(4);
  std::vector<std::int64_t> counts(size * size * size);
  std::vector<double> want(counts.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const std::size_t a = i / size / size, b = i / size % size, c = i % size;
    want[i] = p[size][a] * p[a][b] * p[b][c];
  }
  std::vector<TokenId> triple;
  std::vector<double> p_rows, q_rows;
  for (int i = 0; i < kNumSamples; ++i) {
    triple.clear();
    while (triple.size() < 3) {
      const std::size_t begin = triple.empty() ? size : static_cast<std::size_t>(triple.back());
      std::vector<TokenId> drafts;
      p_rows.assign(p[begin].begin(), p[begin].end());
      q_rows.clear();
      std::size_t at = begin;
      for (int k = 0; k < 2; ++k) {
        q_rows.insert(q_rows.end(), q[at].begin(), q[at].end());
        drafts.push_back(sample_from(q[at], draft_rng.next_uniform()));
        at = static_cast<std::size_t>(drafts.back());
        p_rows.insert(p_rows.end(), p[at].begin(), p[at].end());
      }
      for (const TokenId token : rejection_sample_run(p_rows, q_rows, drafts, rng)) {
        triple.push_back(token);
      }
    }
    const auto of = [&](std::size_t j) { return static_cast<std::size_t>(triple[j]); };
    ++counts[(of(0) * size + of(1)) * size + of(2)];
  }
  expect_distribution(counts, want);
}

INSTANTIATE_TEST_SUITE_P(Pairs, RejectionSampling, ::testing::ValuesIn(kPairs),
                         [](const auto& pair) { return std::string(pair.param.name); });

TEST(RejectionSample, DecidesByHandWorkedThresholds) {
  const Row p{0.2, 0.5, 0.3}, q{0.4, 0.4, 0.2};
  // Token 0 is accepted up to p / q = 1/2; the residual is {0, 0.1, 0.1}.
  EXPECT_EQ(rejection_sample(p, q, 0, 0.5, 0.1), 0);
  EXPECT_EQ(rejection_sample(p, q, 0, 0.501, 0.1), 1);
  EXPECT_EQ(rejection_sample(p, q, 0, 0.501, 0.49), 1);
  EXPECT_EQ(rejection_sample(p, q, 0, 0.501, 0.51), 2);
  EXPECT_EQ(rejection_sample(p, q, 0, 1.0, 1.0), 2);
  // Tokens that q underrates are always accepted.
  EXPECT_EQ(rejection_sample(p, q, 1, 1.0, 0.1), 1);
  EXPECT_EQ(rejection_sample(p, q, 2, 1.0, 0.1), 2);
}

TEST(RejectionSample, NeverReturnsATokenOfProbabilityZero) {
  const double least = std::numeric_limits<double>::denorm_min();
  // The product of u and q rounds to 0 = p.
  const Row p{0, 1}, q{least, 1};
  EXPECT_EQ(rejection_sample(p, q, 0, 1e-10, 0.5), 1);
  // Not drawn from q: rejected, and replaced by what q lacks.
  const Row half{0.5, 0.5, 0};
  EXPECT_EQ(rejection_sample(half, Row{1, 0, 0}, 2, 0.001, 0.001), 1);
  // The residual of equal distributions is 0 everywhere: then p stands in.
  EXPECT_EQ(rejection_sample(Row{0, 1}, Row{0, 1}, 0, 0.5, 0.5), 1);
  for (const double u : {0x1p-53, 0.5, 1.0 - 0x1p-53, 1.0}) {
    EXPECT_EQ(sample_from(Row{0, 0, 1, 0}, u), 2) << u;
  }
}

TEST(RejectionSample, TakesFloatsAndAnyGenerator) {
  std::mt19937 words(1);
  std::mt19937_64 wide(1);
  const std::vector<float> p{0.25f, 0.75f}, q{0.75f, 0.25f};
  int num_ones = 0;
  for (int i = 0; i < 10000; ++i) {
    num_ones += rejection_sample(p, q, i % 4 == 0 ? 1 : 0, words);
    num_ones += rejection_sample(p, q, i % 4 == 0 ? 1 : 0, wide);
  }
  EXPECT_NEAR(num_ones / 20000.0, 0.75, 0.02);  // six standard deviations
}

TEST(RejectionSample, RefusesWhatIsNoDistribution) {
  PhiloxStream rng(1);
  const Row p{0.5, 0.5};
  const auto sample = [&](const Row& a, const Row& b, TokenId x) {
    rejection_sample(a, b, x, rng);
  };
  expect_error(ErrorCode::kShape, "p and q must be of the same tokens, got 2 and 3", [&] {
    sample(p, {0.2, 0.3, 0.5}, 0);
  });
  expect_error(ErrorCode::kShape, "p must not be empty", [&] { sample({}, {}, 0); });
  expect_error(ErrorCode::kArgument, "p must be finite and at least 0, got -0.5 for token 1", [&] {
    sample({1.5, -0.5}, p, 0);
  });
  expect_error(ErrorCode::kArgument, "q must be finite", [&] { sample(p, {std::nan(""), 1}, 0); });
  expect_error(ErrorCode::kArgument, "q must sum to 1, got 1.1", [&] { sample(p, {0.6, 0.5}, 0); });
  expect_error(ErrorCode::kArgument, "draft_token must be in [0, 2), got 2",
               [&] { sample(p, p, 2); });
  expect_error(ErrorCode::kArgument, "draft_token must be in [0, 2), got -1",
               [&] { sample(p, p, -1); });
  expect_error(ErrorCode::kShape, "q must have as many rows and p one more, got 2 and 2", [&] {
    const std::vector<TokenId> drafts{0};
    rejection_sample_run(p, p, drafts, rng);
  });
}

}  // namespace
