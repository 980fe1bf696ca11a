// SPDX-License-Identifier: MIT
// Drafts in a batch: every request gets the tokens that it gets alone without any.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvick/serving/engine_core.hpp"
#include "serving/random_requests.hpp"
#include "serving/toy_draft.hpp"
#include "support/tiny_model.hpp"
#include "support/toy_model.hpp"

namespace {

using namespace kvick;
using support::lone_tokens;
using support::random_request;
using support::ToyDraft;
using support::ToyModel;

using Core = EngineCore<ToyModel>;

GenerationRequest request_of(std::vector<TokenId> prompt, GenerateOptions options = {}) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.options = std::move(options);
  return request;
}

template <class AnyCore>
void run_to_end(AnyCore& core) {
  while (core.step()) {
  }
}

void expect_all_back(const Core& core) {
  const BlockStatistics blocks = core.cache().statistics();
  EXPECT_EQ(blocks.num_used, 0);
  EXPECT_EQ(blocks.num_cached + blocks.num_empty, blocks.num_blocks);
  EXPECT_EQ(core.num_draft_sequences(), 0);
}

bool begins_with(const std::vector<TokenId>& whole, const std::vector<TokenId>& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

// ---- At random: all kinds of drafts, small caches, cancellations, deadlines, failing sources

/// Right, wrong or failing guesses, by what the request gets alone.
DraftFunction random_source(PhiloxStream& random, std::size_t num_prompt_tokens,
                            std::vector<TokenId> want, bool& fails) {
  const auto num_right = random.next_below(6);
  const std::size_t fails_at = random.next_below(4) == 0 ? random.next_below(20) : 1000;
  fails = fails_at < 1000;
  return [=](std::span<const TokenId> tokens, int max_drafts, std::vector<TokenId>& drafts) {
    const std::size_t begin = tokens.size() - num_prompt_tokens;
    if (begin >= fails_at) throw std::runtime_error("no draft");
    for (std::size_t i = begin; i < want.size() && std::cmp_less(drafts.size(), max_drafts); ++i) {
      drafts.push_back(drafts.size() < num_right ? want[i] : (want[i] + 1) % 50);
    }
  };
}

class EngineSpeculationOfBatchSize : public ::testing::TestWithParam<int> {};

TEST_P(EngineSpeculationOfBatchSize, GivesEachRequestTheTokensOfItsLonePlainRun) {
  constexpr int kNumRequests = 500;
  constexpr int kNumBlocks = 11;  // of 16 tokens: the longest request takes ten
  const int batch_size = GetParam();
  const auto seed = static_cast<std::uint64_t>(batch_size) + 100;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  PhiloxStream random(seed), noise(seed + 1);
  ToyModel model;
  ToyDraft draft(2);
  double now = 0;  // steps take now this long, now that long: all that an adaptive length sees
  Core core(model, {.scheduler = {.max_batch_size = batch_size,
                                  .max_seq_len = 160,
                                  .max_num_batched_tokens = std::max(24, batch_size),
                                  .watermark = 0.0,
                                  .clock_ms = [&] { return now += 0.01 * noise.next_below(100); }},
                    .cache = {.num_blocks = kNumBlocks, .block_tokens = 16},
                    .speculation = {.kind = DraftKind::kLookupThenModel, .adapts = false},
                    .draft_model = draft});

  struct Sent {
    GenerationRequest request;
    bool may_fail = false;
    GenerationHandle handle = {};
  };
  std::vector<Sent> sent;
  const auto submit = [&] {
    Sent one{random_request(random, model.vocab_size())};
    GenerateOptions& options = one.request.options;
    support::speculate_at_random(random, options);
    if (random.next_below(12) == 0) options.timeout_ms = 1 + random.next_below(3000);
    if (random.next_below(5) == 0) {
      options.num_samples = 1;
      one.request.propose_drafts = random_source(random, one.request.prompt.tokens()->size(),
                                                 lone_tokens(model, one.request, 0), one.may_fail);
    }
    one.handle = core.submit(one.request);
    sent.push_back(std::move(one));
  };
  bool goes_on = true;
  while (goes_on || sent.size() < kNumRequests) {
    while (sent.size() < kNumRequests && random.next_below(3) == 0) submit();
    if (!sent.empty() && random.next_below(25) == 0) {
      sent[random.next_below(static_cast<std::uint32_t>(sent.size()))].handle.cancel();
    }
    goes_on = core.step();
    const BlockStatistics blocks = core.cache().statistics();
    ASSERT_EQ(blocks.num_used + blocks.num_cached + blocks.num_empty, kNumBlocks);
    ASSERT_LE(core.metrics().num_step_tokens, std::max(24, batch_size));
    ASSERT_LE(core.num_draft_sequences(), batch_size);
  }

  std::vector<int> num_ended(kNumFinishReasons);
  std::int64_t num_drafted = 0, num_accepted = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    ASSERT_TRUE(sent[i].handle.is_done());
    int sample = 0;
    for (const Generation& generation : sent[i].handle.results()) {
      const auto want = lone_tokens(model, sent[i].request, sample++);
      ++num_ended[static_cast<std::size_t>(generation.finish_reason)];
      num_drafted += generation.metrics.num_draft_tokens;
      num_accepted += generation.metrics.num_accepted_tokens;
      ASSERT_TRUE(begins_with(want, generation.tokens)) << "sample " << sample - 1;
      if (generation.finish_reason == FinishReason::kError) {
        ASSERT_TRUE(sent[i].may_fail) << generation.error;
      } else if (generation.finish_reason == FinishReason::kLength ||
                 generation.finish_reason == FinishReason::kStop) {
        ASSERT_EQ(generation.tokens.size(), want.size()) << "sample " << sample - 1;
        const bool is_whole = std::cmp_equal(want.size(), sent[i].request.options.max_new_tokens);
        ASSERT_EQ(generation.finish_reason, is_whole ? FinishReason::kLength : FinishReason::kStop);
      }
    }
  }
  for (const FinishReason reason : {FinishReason::kCancelled, FinishReason::kTimeout,
                                    FinishReason::kError, FinishReason::kStop}) {
    EXPECT_GT(num_ended[static_cast<std::size_t>(reason)], 0) << name(reason);
  }
  const EngineMetrics metrics = core.metrics();
  EXPECT_EQ(metrics.num_draft_tokens, num_drafted);
  EXPECT_EQ(metrics.num_accepted_tokens, num_accepted);
  EXPECT_GT(num_accepted, 1000);
  EXPECT_LT(num_accepted, num_drafted);
  if (batch_size >= 8) {
    EXPECT_GT(metrics.num_preemptions, 50);
  }
  expect_all_back(core);
}

INSTANTIATE_TEST_SUITE_P(Sequences, EngineSpeculationOfBatchSize, ::testing::Values(1, 2, 8, 32),
                         ::testing::PrintToStringParamName());

// ---- All that a reader sees

/// Everything about a result but its times.
void expect_same(const Generation& got, const Generation& want) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.text, want.text);
  EXPECT_EQ(got.finish_reason, want.finish_reason);
  EXPECT_EQ(got.metrics.num_generated_tokens, want.metrics.num_generated_tokens);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (std::size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].chosen.logprob, want.logprobs[i].chosen.logprob);
    ASSERT_EQ(got.logprobs[i].top.size(), want.logprobs[i].top.size());
    for (std::size_t k = 0; k < got.logprobs[i].top.size(); ++k) {
      EXPECT_EQ(got.logprobs[i].top[k].token, want.logprobs[i].top[k].token);
    }
  }
}

TEST(EngineSpeculation, ChangesNothingThatAReaderSeesWithAnySamplingOption) {
  constexpr int kVocabSize = 29;
  const support::ToyModelOptions size{.vocab_size = kVocabSize};
  ToyModel model(size);
  ToyDraft draft(2, size);
  const Tokenizer tokenizer(
      support::TinyModel({.vocab_size = kVocabSize, .tokenizer = true}).file());
  Core plain(model, tokenizer, {.scheduler = {.max_batch_size = 1, .max_seq_len = 160}});
  Core core(model, tokenizer,
            {.scheduler = {.max_batch_size = 8, .max_seq_len = 160},
             .cache = {.num_blocks = 15, .block_tokens = 16},
             .draft_model = draft});
  constexpr std::uint64_t kSeed = 5;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  PhiloxStream random(kSeed);
  const auto one_in = [&](std::uint32_t n) { return random.next_below(n) == 0; };
  std::vector<GenerationHandle> with, without;
  std::vector<std::vector<std::string>> streams(240);
  for (std::size_t i = 0; i < 120; ++i) {
    GenerationRequest request = random_request(random, kVocabSize);
    GenerateOptions& options = request.options;
    options.temperature = one_in(3) ? 0.0f : 1.5f;
    options.top_p = one_in(3) ? 0.9f : 1.0f;
    options.min_p = one_in(3) ? 0.05f : 0.0f;
    options.frequency_penalty = one_in(3) ? 0.3f : 0.0f;
    options.presence_penalty = one_in(3) ? 0.3f : 0.0f;
    options.penalty_window = one_in(2) ? -1 : 16;
    options.min_tokens = one_in(3) ? static_cast<int>(random.next_below(20)) : 0;
    if (one_in(4)) options.logit_bias = {{4, 1.5f}, {5, -2.0f}};
    if (one_in(4)) options.banned_tokens = {6, 7};
    if (one_in(3)) options.stop = {"ab", "q"};
    if (one_in(2)) options.num_logprobs = static_cast<int>(random.next_below(4));
    options.ignores_end_tokens = one_in(2);
    const auto record = [&](std::vector<std::string>& stream) {
      request.on_token = [&stream](const Token& token) {
        stream.push_back(detail::concat(token.sample, " ", token.index, " ", token.id, token.text));
      };
    };
    record(streams[2 * i]);
    without.push_back(plain.submit(request));
    run_to_end(plain);
    const auto bias = options.logit_bias;
    support::speculate_at_random(random, options);
    options.logit_bias = bias;
    record(streams[2 * i + 1]);
    with.push_back(core.submit(request));
  }
  run_to_end(core);
  for (std::size_t i = 0; i < with.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    for (std::size_t sample = 0; sample < with[i].results().size(); ++sample) {
      expect_same(with[i].results()[sample], without[i].results()[sample]);
    }
    // Samples of one request come in another order: each in its own, and together the same.
    std::sort(streams[2 * i].begin(), streams[2 * i].end());
    std::sort(streams[2 * i + 1].begin(), streams[2 * i + 1].end());
    EXPECT_EQ(streams[2 * i + 1], streams[2 * i]);
  }
  EXPECT_GT(core.metrics().num_accepted_tokens, 100);
  expect_all_back(core);
}

TEST(EngineSpeculation, EndsAFullCacheInAnAcceptedRunAsPlainDecodingDoes) {
  for (const int num_blocks : {2, 3, 5}) {
    for (const int draft_tokens : {1, 4, 12}) {
      SCOPED_TRACE(::testing::Message() << num_blocks << " blocks, " << draft_tokens << " drafts");
      ToyModel model;
      ToyDraft draft(0);  // always right
      const EngineOptions options{.scheduler = {.max_batch_size = 2, .max_seq_len = 200},
                                  .cache = {.num_blocks = num_blocks, .block_tokens = 16},
                                  .draft_model = draft};
      GenerationRequest request = request_of({1, 2, 3}, {.max_new_tokens = 150});
      Core plain(model, options), core(model, options);
      auto want = plain.submit(request);
      run_to_end(plain);
      request.options.speculation = {
          .kind = DraftKind::kModel, .draft_tokens = draft_tokens, .adapts = false};
      auto got = core.submit(request);
      run_to_end(core);
      EXPECT_EQ(want.result().finish_reason, FinishReason::kLength);
      EXPECT_EQ(std::ssize(want.result().tokens), num_blocks * 16 - 3 + 1);
      expect_same(got.result(), want.result());
      EXPECT_GT(got.result().metrics.num_accepted_tokens, 4);
      EXPECT_LT(core.metrics().num_steps, plain.metrics().num_steps);
      expect_all_back(core);
    }
  }
}

// ---- Failures

TEST(EngineSpeculation, EndsOnlyTheRequestsThatAFailingDraftModelWasDraftingFor) {
  ToyModel model;
  ToyDraft draft(0);
  draft.on_forward = [num_passes = 0](const Batch&) mutable {
    if (++num_passes == 4) throw std::runtime_error("the draft model broke");
  };
  Core core(model, {.draft_model = draft});
  const SpeculationOptions drafted{.kind = DraftKind::kModel, .adapts = false};
  auto bad = core.submit(request_of({1}, {.max_new_tokens = 30, .speculation = drafted}));
  auto good = core.submit(request_of({2}, {.max_new_tokens = 30}));
  run_to_end(core);
  EXPECT_EQ(bad.result().finish_reason, FinishReason::kError);
  EXPECT_EQ(bad.result().error, "the draft model broke");
  EXPECT_EQ(good.result().tokens, model.generate(std::vector<TokenId>{2}, 30, {}));
  auto next = core.submit(request_of({1}, {.max_new_tokens = 30, .speculation = drafted}));
  run_to_end(core);
  EXPECT_EQ(next.result().tokens, model.generate(std::vector<TokenId>{1}, 30, {}));
  EXPECT_GT(next.result().metrics.num_accepted_tokens, 15);
  expect_all_back(core);
}

TEST(EngineSpeculation, RefusesWhatItHasNoModelFor) {
  ToyModel model;
  ToyDraft other(0, {.vocab_size = 51});
  EXPECT_THROW(Core(model, {.draft_model = other}), Error);
  EXPECT_THROW(Core(model, {.speculation = {.kind = DraftKind::kModel}}), Error);
  EXPECT_THROW(Core(model, {.draft_path = "draft.gguf"}), Error);
  Core core(model);
  const auto submit = [&](const SpeculationOptions& speculation) {
    core.submit(request_of({1}, {.speculation = speculation}));
  };
  EXPECT_THROW(submit({.kind = DraftKind::kLookupThenModel}), Error);
  EXPECT_THROW(submit({.kind = DraftKind::kLookup, .draft_tokens = -1}), Error);
  EXPECT_THROW(submit({.kind = DraftKind::kLookup, .draft_tokens = kMaxDraftTokens + 1}), Error);
}

}  // namespace
