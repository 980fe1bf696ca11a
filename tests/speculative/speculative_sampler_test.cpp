// SPDX-License-Identifier: MIT
// The two modes against distributions that are computed by hand.
#include "kvick/speculative/speculative_sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/speculative/prompt_lookup.hpp"
#include "kvick/speculative/speculative.hpp"
#include "speculative/fake_model.hpp"
#include "speculative/statistics.hpp"

namespace {

using namespace kvick;
using support::expect_distribution;
using support::expect_error;
using support::FakeCache;
using support::FakeModel;
using Tokens = std::vector<TokenId>;
using Row = std::vector<double>;

/// What the options make of logits, written out once more in extended precision.
Row naive_probabilities(const SamplingOptions& options, std::span<const float> logits) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (options.temperature == 0) order.resize(1);
  if (options.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  }
  const auto weight = [&](std::size_t t, double temperature) {
    return std::exp((static_cast<long double>(logits[t]) - logits[order[0]]) / temperature);
  };
  long double total = 0, sum = 0;
  for (const std::size_t t : order) total += weight(t, 1);
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || sum < options.top_p * total)) {
    sum += weight(order[count++], 1);
  }
  order.resize(count);
  std::erase_if(order, [&](std::size_t t) { return weight(t, 1) < options.min_p; });
  Row p(logits.size());
  if (options.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  total = 0;
  for (const std::size_t t : order) total += weight(t, options.temperature);
  for (const std::size_t t : order) {
    p[t] = static_cast<double>(weight(t, options.temperature) / total);
  }
  return p;
}

const SamplingOptions kSampling[] = {
    {.temperature = 0.3f},
    {.temperature = 0.8f, .top_k = 3},
    {.temperature = 1.5f, .top_p = 0.8f},
    {.temperature = 1.0f, .top_k = 3, .top_p = 0.9f, .min_p = 0.1f},
};

TEST(SamplerProbabilities, AreThoseOfTheOptions) {
  std::mt19937 rng(1);
  std::normal_distribution<float> value(0, 2);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(static_cast<std::size_t>(1 + round % 50));
    for (float& logit : logits) logit = value(rng);
    if (round % 3 == 0) logits.push_back(-std::numeric_limits<float>::infinity());
    for (const SamplingOptions& options : kSampling) {
      Row p(logits.size(), -1);
      Sampler sampler(options);
      sampler.probabilities(logits, 0, {}, p);
      const Row want = naive_probabilities(options, logits);
      for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(p[i], want[i], 1e-13);
    }
  }
}

TEST(SamplerProbabilities, ComeAfterBiasBansPenaltiesAndMinimumLength) {
  const std::vector<float> logits{1, 1, 1, 1};
  Sampler sampler({.temperature = 1.0f,
                   .presence_penalty = std::log(4.0f),
                   .logit_bias = {{0, std::log(2.0f)}},
                   .banned_tokens = {3},
                   .min_tokens = 1,
                   .end_tokens = {2}});
  Row p(4);
  const Tokens history{1};
  sampler.probabilities(logits, 0, history, p);  // weights 2, 1/4, -, -
  EXPECT_NEAR(p[0], 8.0 / 9, 1e-6);
  EXPECT_NEAR(p[1], 1.0 / 9, 1e-6);
  EXPECT_EQ(p[2], 0);
  EXPECT_EQ(p[3], 0);
  sampler.probabilities(logits, 1, history, p);  // 2, 1/4, 1, -
  EXPECT_NEAR(p[2], 4.0 / 13, 1e-6);
  EXPECT_EQ(p[3], 0);
  Row three(3);
  expect_error(ErrorCode::kShape, "a place per logit, 4, got 3",
               [&] { sampler.probabilities(logits, 1, history, three); });
}

TEST(SamplerProbabilities, OfGreedyChoiceAreOnePoint) {
  Sampler sampler;
  Row p(3, 7);
  sampler.probabilities(std::vector<float>{1, 2, 2}, 0, {}, p);
  EXPECT_EQ(p, (Row{0, 1, 0}));
}

// ---- The whole loop against the exact distribution of its texts

/// Probabilities of all texts of three tokens after `prompt`; the number of a text is its digits.
Row text_probabilities(const FakeModel& model, const SamplingOptions& options,
                       const Tokens& prompt) {
  const auto size = static_cast<std::size_t>(model.vocab_size());
  Row all(size * size * size);
  const std::function<void(Tokens&, std::size_t, double)> walk =
      [&](Tokens& text, std::size_t index, double probability) {
        if (text.size() == prompt.size() + 3) {
          all[index] = probability;
          return;
        }
        const Row p = naive_probabilities(options, model.logits(text));
        for (std::size_t t = 0; t < size; ++t) {
          text.push_back(static_cast<TokenId>(t));
          walk(text, index * size + t, probability * p[t]);
          text.pop_back();
        }
      };
  Tokens text = prompt;
  walk(text, 0, 1);
  return all;
}

/// Decodes three tokens from 60,000 seeds. Fails if the texts do not follow the distribution; the
/// share of drafted tokens that were accepted.
template <class Source>
double expect_texts(FakeModel& model, Source& source, SpeculativeOptions options) {
  const Tokens prompt{1, 0, 2, 1, 0};
  const auto size = static_cast<std::size_t>(model.vocab_size());
  std::vector<std::int64_t> counts(size * size * size);
  std::int64_t num_drafted = 0, num_accepted = 0;
  options.max_new_tokens = 3;
  options.adapts = false;
  for (std::uint64_t seed = 0; seed < 60'000; ++seed) {
    options.sampling.seed = seed;
    FakeCache cache(1, 16);
    SpeculativeDecoder decoder(model, cache, source, options);
    decoder.append(prompt);
    while (decoder.end() == SpeculativeEnd::kNone) decoder.step();
    std::size_t index = 0;
    for (std::size_t i = 5; i < 8; ++i) {
      index = index * size + static_cast<std::size_t>(decoder.tokens()[i]);
    }
    ++counts[index];
    num_drafted += decoder.statistics().num_drafted;
    num_accepted += decoder.statistics().num_accepted;
  }
  expect_distribution(counts, text_probabilities(model, options.sampling, prompt));
  return static_cast<double>(num_accepted) / static_cast<double>(num_drafted);
}

class WholeLoop : public ::testing::TestWithParam<SamplingOptions> {
 protected:
  FakeModel model_{{.vocab_size = 4}};
  FakeModel small_{{.vocab_size = 4, .noise = 0.7f}};
};

TEST_P(WholeLoop, FollowsTheDistributionOfTextsInBothModes) {
  for (const auto mode : {SpeculationMode::kSeedExact, SpeculationMode::kDistributionExact}) {
    SCOPED_TRACE(static_cast<int>(mode));
    DraftModel draft(small_, model_);
    const double rate =
        expect_texts(model_, draft, {.draft_tokens = 2, .mode = mode, .sampling = GetParam()});
    EXPECT_GT(rate, 0.4);
    EXPECT_LT(rate, 0.98);
  }
}

TEST_P(WholeLoop, FollowsTheDistributionOfTextsWithDraftsThatAreCertain) {
  PromptLookup lookup({.min_match = 1});
  expect_texts(
      model_, lookup,
      {.draft_tokens = 2, .mode = SpeculationMode::kDistributionExact, .sampling = GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Options, WholeLoop, ::testing::ValuesIn(kSampling));

// ---- How often drafts agree

TEST(SpeculativeSampler, AcceptsAsOftenAsItsModePromises) {
  std::mt19937 rng(4);
  std::normal_distribution<float> value(0, 1.5f), change(0, 1);
  for (const float noise : {0.0f, 0.1f, 0.5f, 2.0f}) {
    for (const SamplingOptions& base : kSampling) {
      std::vector<float> target(12), draft(12);
      for (std::size_t i = 0; i < 12; ++i) {
        target[i] = value(rng);
        draft[i] = target[i] + noise * change(rng);
      }
      const Row p = naive_probabilities(base, target), q = naive_probabilities(base, draft);
      double distance = 0;
      for (std::size_t i = 0; i < 12; ++i) distance += std::fabs(p[i] - q[i]) / 2;

      constexpr int kNumTrials = 20'000;
      int num_agreed = 0, num_accepted = 0;
      SpeculativeSampler coupled(base), rejecting(base, SpeculationMode::kDistributionExact);
      for (std::uint64_t i = 0; i < kNumTrials; ++i) {
        Draft proposal;
        proposal.tokens = {coupled.sampler().sample(draft, i)};
        num_agreed += coupled.sample(target, i, {}, proposal, 0) == proposal.tokens[0] ? 1 : 0;
        proposal.tokens = {sample_from(q, detail::keyed_uniform(0, i, 0, detail::Draw::kDraft))};
        proposal.probabilities = q;
        num_accepted += rejecting.sample(target, i, {}, proposal, 0) == proposal.tokens[0] ? 1 : 0;
      }
      // Five standard deviations of a share of 20,000.
      EXPECT_GE(num_agreed / double{kNumTrials}, (1 - distance) / (1 + distance) - 0.018)
          << "distance " << distance;
      EXPECT_NEAR(num_accepted / double{kNumTrials}, 1 - distance, 0.018);
      if (noise == 0) {
        EXPECT_EQ(num_agreed, kNumTrials);
      }
    }
  }
}

TEST(SpeculativeSampler, DrawsWithoutADraftWhatTheSamplerDraws) {
  const std::vector<float> logits{0.1f, 0.5f, 0.2f, 0.9f};
  const SamplingOptions options{.temperature = 1.0f, .seed = 9};
  Sampler sampler(options);
  SpeculativeSampler speculative(options);
  for (std::uint64_t i = 0; i < 100; ++i) {
    Draft draft{.tokens = {static_cast<TokenId>(i % 4)}};
    const TokenId want = sampler.sample(logits, i);
    EXPECT_EQ(speculative.sample(logits, i, {}, {}, 0), want);
    EXPECT_EQ(speculative.sample(logits, i, {}, draft, 0), want);
    EXPECT_EQ(speculative.sample(logits, i, {}, draft, 1), want);
  }
}

}  // namespace
