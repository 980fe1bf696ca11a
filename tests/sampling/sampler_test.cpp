// SPDX-License-Identifier: MIT
#include "kvick/sampling/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "cache/expect_error.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::expect_error;
using Logits = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Logits random_logits(std::size_t count, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values(0, deviation);
  Logits logits(count);
  for (float& logit : logits) logit = values(random);
  return logits;
}

/// Logits whose softmax is this.
Logits logits_of(const std::vector<double>& probabilities) {
  Logits logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

/// Every token drawn in many draws of high temperature: those that truncation kept.
std::set<TokenId> kept(SamplingOptions options, const Logits& logits) {
  options.temperature = 1e6f;  // nearly uniform: among 8 tokens, 400 draws miss one at 1e-22
  Sampler sampler(options);
  std::set<TokenId> tokens;
  for (std::uint64_t i = 0; i < 400; ++i) tokens.insert(sampler.sample(logits, i));
  return tokens;
}

using Tokens = std::set<TokenId>;

// ---- The definition written out once more: sort everything, cut, compare every score.

/// Gumbel noise in extended precision from the words of the generator.
long double naive_noise(std::uint64_t seed, std::uint64_t index, TokenId token) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x & 0xffffffff); };
  const auto words =
      Philox4x32::generate({low(index), low(index >> 32), static_cast<std::uint32_t>(token), 0},
                           {low(seed), low(seed >> 32)});
  // The upper 52 of 64 bits, in the middle of their interval.
  const std::uint64_t n = ((static_cast<std::uint64_t>(words[0]) << 32) | words[1]) >> 12;
  const long double u = (2.0L * static_cast<long double>(n) + 1.0L) / 0x1p53L;
  return -std::log(-std::log(u));
}

TokenId naive_sample(const SamplingOptions& options, const Logits& logits, std::uint64_t index) {
  std::vector<TokenId> order;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -kInfinity) order.push_back(static_cast<TokenId>(i));
  }
  const auto logit = [&](TokenId t) {
    return static_cast<long double>(logits[static_cast<std::size_t>(t)]);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0 && order.size() > static_cast<std::size_t>(options.top_k)) {
    order.resize(static_cast<std::size_t>(options.top_k));
  }
  const auto weight = [&](TokenId t) { return std::exp(logit(t) - logit(order.front())); };
  if (options.top_p < 1) {
    long double total = 0, sum = 0;
    for (const TokenId t : order) total += weight(t);
    std::size_t count = 0;
    while (count < order.size()) {
      sum += weight(order[count++]);
      if (sum >= static_cast<long double>(options.top_p) * total) break;
    }
    order.resize(count);
  }
  std::erase_if(order,
                [&](TokenId t) { return weight(t) < static_cast<long double>(options.min_p); });
  const auto score = [&](TokenId t) {
    return logit(t) / static_cast<long double>(options.temperature) +
           naive_noise(options.seed, index, t);
  };
  return *std::max_element(order.begin(), order.end(),
                           [&](TokenId a, TokenId b) { return score(a) < score(b); });
}

// ---- Statistics

/// What a chi-square variable of so many degrees of freedom exceeds with probability 1e-6: where
/// the incomplete gamma function Q(degrees / 2, limit / 2) is 1e-6.
double chi_square_limit(std::size_t degrees) {
  const std::map<std::size_t, double> limits = {
      {2, 27.631}, {3, 30.665}, {5, 35.888}, {15, 56.493}};
  return limits.at(degrees);
}

/// Fails if counts deviate from probabilities more than one draw in a million would.
void expect_distribution(const std::map<TokenId, int>& counts, int num_draws,
                         const std::map<TokenId, double>& probabilities) {
  double chi_square = 0;
  int num_counted = 0;
  for (const auto& [token, p] : probabilities) {
    const double expected = p * num_draws;
    ASSERT_GE(expected, 5) << "too few draws for token " << token;
    const auto found = counts.find(token);
    const int count = found == counts.end() ? 0 : found->second;
    chi_square += (count - expected) * (count - expected) / expected;
    num_counted += count;
  }
  EXPECT_EQ(num_counted, num_draws) << "a token that truncation should have removed";
  EXPECT_LT(chi_square, chi_square_limit(probabilities.size() - 1));
}

std::map<TokenId, double> softmax(const Logits& logits, const Tokens& tokens, double temperature) {
  std::map<TokenId, double> probabilities;
  double total = 0;
  for (const TokenId t : tokens) {
    probabilities[t] =
        std::exp(static_cast<double>(logits[static_cast<std::size_t>(t)]) / temperature);
    total += probabilities[t];
  }
  for (auto& [token, p] : probabilities) p /= total;
  return probabilities;
}

// ---- Greedy

TEST(Argmax, IsTheLargestLogitAndTheLowestIdOfEquals) {
  EXPECT_EQ(argmax(Logits{1}), 0);
  EXPECT_EQ(argmax(Logits{1, 3, 2}), 1);
  EXPECT_EQ(argmax(Logits{-3, -1, -2}), 1);
  EXPECT_EQ(argmax(Logits{1, 5, 5, 2, 5}), 1);
  EXPECT_EQ(argmax(Logits{-kInfinity, -1e30f, -kInfinity}), 1);
  EXPECT_EQ(argmax(Logits{-0.0f, 0.0f}), 0);        // equal
  EXPECT_EQ(argmax(Logits{0, 1e-44f, 1e-45f}), 1);  // subnormal
}

TEST(Sampler, IsGreedyWithoutTemperature) {
  Sampler sampler;
  EXPECT_EQ(sampler.options().temperature, 0.0f);
  const Logits logits = random_logits(1000, 3, 1);
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(sampler.sample(logits, i), argmax(logits));
  Sampler tuned({.temperature = 0, .top_k = 5, .top_p = 0.5f, .min_p = 0.1f, .seed = 3});
  EXPECT_EQ(tuned.sample(Logits{1, 5, 5, 2}, 0), 1);
}

TEST(Sampler, TinyTemperatureIsGreedyToo) {
  Sampler sampler({.temperature = 1e-30f});
  const Logits logits = random_logits(1000, 3, 2);
  for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(sampler.sample(logits, i), argmax(logits));
}

// ---- Truncation

TEST(SamplerTopK, KeepsTheLargestAndTheLowestIdsOfEquals) {
  const Logits logits = {1, 4, 2, 4, 3, 2};
  EXPECT_EQ(kept({.top_k = 1}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.top_k = 2}, logits), (Tokens{1, 3}));
  EXPECT_EQ(kept({.top_k = 3}, logits), (Tokens{1, 3, 4}));
  EXPECT_EQ(kept({.top_k = 4}, logits), (Tokens{1, 2, 3, 4}));  // a tie at the cut: 2, not 5
  EXPECT_EQ(kept({.top_k = 5}, logits), (Tokens{1, 2, 3, 4, 5}));
  for (const int all : {0, 6, 7, 1000}) {
    EXPECT_EQ(kept({.top_k = all}, logits), (Tokens{0, 1, 2, 3, 4, 5})) << all;
  }
}

TEST(SamplerTopP, KeepsTheFewestWithThatMuchProbability) {
  const Logits logits = logits_of({0.1, 0.5, 0.15, 0.25});  // sorted: 0.5, 0.75, 0.9, 1
  EXPECT_EQ(kept({.top_p = 0}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.top_p = 0.3f}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.top_p = 0.49f}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.top_p = 0.51f}, logits), (Tokens{1, 3}));  // the one that crosses is kept
  EXPECT_EQ(kept({.top_p = 0.74f}, logits), (Tokens{1, 3}));
  EXPECT_EQ(kept({.top_p = 0.76f}, logits), (Tokens{1, 2, 3}));
  EXPECT_EQ(kept({.top_p = 0.91f}, logits), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.top_p = 1}, logits), (Tokens{0, 1, 2, 3}));
}

TEST(SamplerTopP, TiesKeepTheLowestIds) {
  const Logits equal(8, 2.5f);                               // an eighth each: sums are exact
  EXPECT_EQ(kept({.top_p = 0.25f}, equal), (Tokens{0, 1}));  // reached, not crossed
  EXPECT_EQ(kept({.top_p = 0.26f}, equal), (Tokens{0, 1, 2}));
  EXPECT_EQ(kept({.top_p = 0.5f}, equal), (Tokens{0, 1, 2, 3}));
}

TEST(SamplerMinP, KeepsAShareOfTheBest) {
  const Logits logits = logits_of({0.1, 0.5, 0.15, 0.25});  // shares 0.2, 1, 0.3, 0.5
  EXPECT_EQ(kept({.min_p = 0}, logits), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.min_p = 0.19f}, logits), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(kept({.min_p = 0.21f}, logits), (Tokens{1, 2, 3}));
  EXPECT_EQ(kept({.min_p = 0.31f}, logits), (Tokens{1, 3}));
  EXPECT_EQ(kept({.min_p = 0.51f}, logits), (Tokens{1}));
  EXPECT_EQ(kept({.min_p = 1}, Logits{3, 7, 7, 1}), (Tokens{1, 2}));  // equals of the best
}

TEST(Sampler, TruncatesInOrder) {
  const Logits logits = logits_of({0.4, 0.3, 0.2, 0.1});
  // Top-p sees the softmax of what top-k kept: 0.4 / 0.7 = 0.571.
  EXPECT_EQ(kept({.top_p = 0.5f}, logits), (Tokens{0, 1}));
  EXPECT_EQ(kept({.top_k = 2, .top_p = 0.5f}, logits), (Tokens{0}));
  EXPECT_EQ(kept({.top_k = 3, .top_p = 0.5f}, logits), (Tokens{0, 1}));
  // Min-p comes after and compares with the best, whatever was cut: 0.2 / 0.4 is kept at 0.45.
  EXPECT_EQ(kept({.top_p = 0.95f, .min_p = 0.45f}, logits), (Tokens{0, 1, 2}));
  EXPECT_EQ(kept({.top_p = 0.6f, .min_p = 0.2f}, logits), (Tokens{0, 1}));
  EXPECT_EQ(kept({.top_k = 2, .min_p = 0.1f}, logits), (Tokens{0, 1}));
}

// Temperature comes last: `kept` draws at a million, where the softmax is nearly flat and 0.3 of
// its probability would be two of four tokens.
TEST(Sampler, TruncatesBeforeTemperature) {
  EXPECT_EQ(kept({.top_p = 0.3f}, logits_of({0.4, 0.3, 0.2, 0.1})), (Tokens{0}));
  EXPECT_EQ(kept({.min_p = 0.8f}, logits_of({0.4, 0.3, 0.2, 0.1})), (Tokens{0}));
}

TEST(Sampler, NeverDrawsATokenOfLogitMinusInfinity) {
  const Logits logits = {-kInfinity, 1, -kInfinity, 0.5f};
  EXPECT_EQ(kept({}, logits), (Tokens{1, 3}));
  EXPECT_EQ(kept({.top_k = 3}, logits), (Tokens{1, 3}));
  EXPECT_EQ(kept({.top_p = 0.999f}, logits), (Tokens{1, 3}));
}

// ---- The draw

TEST(GumbelNoise, IsTheFormulaOfItsWords) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t seed = random(), index = random() >> (i % 64);
    const auto token = static_cast<TokenId>(random() >> 33);
    const auto want = static_cast<double>(naive_noise(seed, index, token));
    // A relative error e of the inner logarithm moves the outer one by e; both have 0.55 ulp.
    const double u = detail::keyed_uniform(seed, index, token, detail::Draw::kGumbel);
    const double noise = detail::gumbel_noise(u);
    ASSERT_NEAR(noise, want, 0x1p-52 * (1 + std::fabs(want))) << "seed 3, number " << i;
    ASSERT_LT(noise, detail::kMaxGumbelNoise);
    ASSERT_FALSE(detail::is_noise_below(noise - 1e-12, u)) << "seed 3, number " << i;
  }
}

TEST(GumbelNoise, BoundHoldsForTheLargestUniform) {
  const double largest = uniform_open(0xffffffff, 0xffffffff);
  EXPECT_LT(detail::gumbel_noise(largest), detail::kMaxGumbelNoise);
  EXPECT_FALSE(detail::is_noise_below(detail::gumbel_noise(largest) - 1e-12, largest));
}

// Not exact, but useful: at 10, where 4.5e-5 of the noise lies above, it tells all but 1 in 2000.
TEST(GumbelNoise, NearlyAllIsToldToBeBelowAHighLimit) {
  int num_open = 0;
  for (TokenId token = 0; token < 100'000; ++token) {
    num_open +=
        !detail::is_noise_below(10, detail::keyed_uniform(1, 2, token, detail::Draw::kGumbel));
  }
  EXPECT_LT(num_open, 50);
  EXPECT_GT(num_open, 0);
  for (const double limit : {0.0, -1.0}) EXPECT_FALSE(detail::is_noise_below(limit, 0.5));
}

TEST(Sampler, DrawsTheSoftmaxOfWhatIsKept) {
  const Logits logits = {2, 1, 0.5f, 0, -1, -2};
  const Tokens all = {0, 1, 2, 3, 4, 5};
  const struct {
    SamplingOptions options;
    Tokens survivors;
  } cases[] = {{{}, all},
               {{.top_k = 4}, {0, 1, 2, 3}},
               {{.top_p = 0.8f}, {0, 1, 2}},      // 0.557, 0.762, 0.887
               {{.min_p = 0.1f}, {0, 1, 2, 3}}};  // exp(-2) = 0.135, exp(-3) = 0.050
  constexpr int kDraws = 100'000;
  std::uint64_t seed = 1234;
  for (const auto& [options, survivors] : cases) {
    for (const float temperature : {0.7f, 1.0f, 2.5f}) {
      SamplingOptions all_options = options;
      all_options.temperature = temperature;
      all_options.seed = ++seed;
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", temperature " << temperature);
      Sampler sampler(all_options);
      std::map<TokenId, int> counts;
      for (int i = 0; i < kDraws; ++i) {
        ++counts[sampler.sample(logits, static_cast<std::uint64_t>(i))];
      }
      expect_distribution(counts, kDraws,
                          softmax(logits, survivors, static_cast<double>(temperature)));
    }
  }
}

// Pairs of neighbouring indices, of neighbouring seeds, and of far-away ones are independent: the
// joint counts follow the product.
TEST(Sampler, DrawsAreIndependent) {
  const Logits logits = {1, 0.5f, 0, -0.5f};
  const auto single = softmax(logits, {0, 1, 2, 3}, 1);
  std::map<TokenId, double> joint;
  for (const auto& [a, p] : single) {
    for (const auto& [b, q] : single) joint[a * 4 + b] = p * q;
  }
  constexpr int kDraws = 50'000;
  const auto draw = [&](std::uint64_t seed, std::uint64_t index) {
    return Sampler({.temperature = 1, .seed = seed}).sample(logits, index);
  };
  const auto expect_independent = [&](const std::function<TokenId(std::uint64_t)>& a,
                                      const std::function<TokenId(std::uint64_t)>& b) {
    std::map<TokenId, int> counts;
    for (std::uint64_t i = 0; i < kDraws; ++i) ++counts[a(i) * 4 + b(i)];
    expect_distribution(counts, kDraws, joint);
  };
  const auto at = [&](std::uint64_t i) { return draw(77, i); };
  const auto of_seed = [&](std::uint64_t i) { return draw(i, 5); };
  expect_independent([&](auto i) { return at(2 * i); }, [&](auto i) { return at(2 * i + 1); });
  expect_independent([&](auto i) { return of_seed(2 * i); },
                     [&](auto i) { return of_seed(2 * i + 1); });
  expect_independent(at, [&](auto i) { return draw(77, i + (std::uint64_t{1} << 32)); });
  expect_independent(of_seed, [&](auto i) { return draw(i + (std::uint64_t{1} << 32), 5); });
}

TEST(Sampler, ADrawDependsOnNothingButItsKeyAndLogits) {
  const Logits logits = random_logits(500, 2, 4);
  const SamplingOptions options = {.temperature = 1, .top_k = 100, .top_p = 0.9f, .seed = 9};
  std::vector<TokenId> in_order;
  Sampler sampler(options);
  for (std::uint64_t i = 0; i < 50; ++i) in_order.push_back(sampler.sample(logits, i));
  EXPECT_GT(std::set(in_order.begin(), in_order.end()).size(), 10u);
  Sampler other(options);
  for (std::uint64_t i = 50; i-- > 0;) {
    other.sample(random_logits(1 + i * 20, 5, static_cast<unsigned>(i)), 1000 + i);
    EXPECT_EQ(other.sample(logits, i), in_order[i]) << i;
    EXPECT_EQ(Sampler(options).sample(logits, i), in_order[i]) << i;
  }
}

// A token's score is its own affair: more tokens take a draw away only by winning it.
TEST(Sampler, OtherTokensChangeNothingUnlessTheyWin) {
  int num_lost = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Logits logits = random_logits(50, 2, seed);
    const auto first_new = static_cast<TokenId>(logits.size());
    Sampler sampler({.temperature = 1.5f, .seed = seed});
    const TokenId before = sampler.sample(logits, seed);
    logits.resize(logits.size() + 200, -4);
    const TokenId after = sampler.sample(logits, seed);
    EXPECT_TRUE(after == before || after >= first_new) << seed;
    num_lost += after != before;
    logits.resize(50);
    logits.resize(10'000, -80);  // at most e^-50 of the probability
    EXPECT_EQ(sampler.sample(logits, seed), before) << seed;
  }
  EXPECT_GT(num_lost, 0);
  EXPECT_LT(num_lost, 300);
}

// Truncation changes nothing either unless it removes the winner.
TEST(Sampler, TruncationKeepsAWinnerThatSurvives) {
  int num_kept = 0, num_removed = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Logits logits = random_logits(100, 1, seed);
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
    const TokenId winner = Sampler({.temperature = 1, .seed = seed}).sample(logits, 0);
    const bool survives = std::find(order.begin(), order.begin() + 30,
                                    static_cast<std::size_t>(winner)) != order.begin() + 30;
    const TokenId drawn = Sampler({.temperature = 1, .top_k = 30, .seed = seed}).sample(logits, 0);
    EXPECT_EQ(drawn == winner, survives) << seed;
    ++(survives ? num_kept : num_removed);
  }
  EXPECT_GT(num_kept, 50);
  EXPECT_GT(num_removed, 50);
}

TEST(Sampler, SeedAndIndexMatterInAllTheirBits) {
  const Logits logits(1000, 0.0f);
  std::set<TokenId> by_seed, by_index;
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t value = std::uint64_t{1} << bit;
    by_seed.insert(Sampler({.temperature = 1, .seed = value}).sample(logits, 0));
    by_index.insert(Sampler({.temperature = 1}).sample(logits, value));
  }
  // 64 of 1000: two on average fall together; fewer than 50 distinct ones have probability 1e-9.
  EXPECT_GE(by_seed.size(), 50u);
  EXPECT_GE(by_index.size(), 50u);
}

// Sorting in steps, pruned draws and weights in double against everything spelled out.
TEST(Sampler, EqualsTheDefinition) {
  constexpr unsigned kSeed = 5;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const auto pick = [&](auto... values) {
    const std::vector<float> choices = {static_cast<float>(values)...};
    return choices[random() % choices.size()];
  };
  for (unsigned trial = 0; trial < 3000; ++trial) {
    const auto count = static_cast<std::size_t>(pick(1, 2, 10, 63, 64, 65, 300, 2000));
    Logits logits = random_logits(count, pick(0, 0.1, 2, 10, 30), trial);
    if (random() % 2 == 0) {
      for (float& logit : logits) logit = std::round(logit);  // many ties
    }
    if (random() % 4 == 0) logits[random() % count] = -kInfinity;
    if (count == 1) logits[0] = 0;
    const SamplingOptions options = {.temperature = pick(0, 1e-20, 0.01, 0.5, 1, 1.7, 100),
                                     .top_k = static_cast<int>(pick(0, 1, 5, 40, 64, 500)),
                                     .top_p = pick(1, 0.99, 0.9, 0.61, 0.2, 0),
                                     .min_p = pick(0, 0, 0.02, 0.13),
                                     .seed = random()};
    const std::uint64_t index = random();
    ASSERT_EQ(Sampler(options).sample(logits, index), naive_sample(options, logits, index))
        << "trial " << trial << ": " << count << " logits, temperature " << options.temperature
        << ", top_k " << options.top_k << ", top_p " << options.top_p << ", min_p "
        << options.min_p;
  }
}

TEST(Sampler, EqualsTheDefinitionOnALargeVocabulary) {
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 0.8f, .top_p = 0.95f},
        SamplingOptions{.temperature = 1.2f, .top_k = 40},
        SamplingOptions{.temperature = 1, .top_p = 0.999f, .min_p = 1e-5f}}) {
    Sampler sampler(options);
    for (unsigned i = 0; i < 3; ++i) {
      const Logits logits = random_logits(150'000, 2.5f, i);
      EXPECT_EQ(sampler.sample(logits, i), naive_sample(options, logits, i)) << i;
    }
  }
}

TEST(Sampler, DoesNotAllocateOnceWarm) {
  const Logits logits = random_logits(5000, 3, 6);
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 1},
        SamplingOptions{.temperature = 1, .top_k = 40, .top_p = 0.9f, .min_p = 0.01f},
        SamplingOptions{.temperature = 1, .top_p = 0.999f}}) {
    Sampler sampler(options);
    sampler.sample(logits, 0);
    const std::size_t before = support::num_allocations();
    for (std::uint64_t i = 1; i < 5; ++i) sampler.sample(logits, i);
    EXPECT_EQ(support::num_allocations(), before);
  }
}

TEST(Sampler, DoesNotDependOnTheRoundingModeOfTheCaller) {
  const Logits logits = random_logits(1000, 2, 7);
  Sampler sampler({.temperature = 0.9f, .top_p = 0.95f, .seed = 8});
  const int mode = std::fegetround();
  for (std::uint64_t i = 0; i < 50; ++i) {
    const TokenId want = sampler.sample(logits, i);
    std::fesetround(FE_UPWARD);
    const TokenId upward = sampler.sample(logits, i);
    const bool mode_kept = std::fegetround() == FE_UPWARD;
    std::fesetround(mode);
    EXPECT_EQ(upward, want);
    EXPECT_TRUE(mode_kept);
  }
}

// ---- Errors

TEST(Sampler, RejectsOptionsOutOfRange) {
  const auto rejected = [](const char* part, const SamplingOptions& options) {
    expect_error(ErrorCode::kArgument, part, [&] { Sampler sampler(options); });
  };
  for (const float bad : {-0.1f, kNan, kInfinity}) {
    rejected("temperature must be at least 0", {.temperature = bad});
  }
  rejected("top_k must be at least 0, got -1", {.top_k = -1});
  for (const float bad : {-0.1f, 1.1f, kNan, kInfinity}) {
    rejected("top_p must be in [0, 1]", {.top_p = bad});
    rejected("min_p must be in [0, 1]", {.min_p = bad});
  }
}

TEST(Sampler, RejectsLogitsWithoutADistribution) {
  Sampler greedy, warm({.temperature = 1}), cut({.temperature = 1, .top_k = 1});
  const auto rejected = [&](const char* part, const Logits& logits) {
    expect_error(ErrorCode::kArgument, part, [&] { argmax(logits); });
    for (Sampler* sampler : {&greedy, &warm, &cut}) {
      expect_error(ErrorCode::kArgument, part, [&] { sampler->sample(logits, 0); });
    }
  };
  rejected("must not be empty", {});
  rejected("got nan for token 2", {1, 2, kNan, 3});
  rejected("got nan for token 0", {kNan});
  rejected("got inf for token 1", {1, kInfinity, -kInfinity});
  rejected("got -inf for all 3 tokens", {-kInfinity, -kInfinity, -kInfinity});
  EXPECT_EQ(warm.sample(Logits{0}, 0), 0);  // still usable
}

}  // namespace
}  // namespace kvick
