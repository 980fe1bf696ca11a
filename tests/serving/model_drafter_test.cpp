// SPDX-License-Identifier: MIT
// The draft model of an engine: its passes, its cache, and what it drafts.
#include "kvick/serving/model_drafter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvick/serving/engine_core.hpp"
#include "kvick/serving/prometheus.hpp"
#include "kvick/speculative/draft_model.hpp"
#include "serving/toy_draft.hpp"
#include "support/toy_model.hpp"

namespace {

using namespace kvick;
using support::ToyDraft;
using support::ToyModel;

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

TEST(ModelDrafter, ComputesATextOnceForDraftsOfAllRequestsInOnePass) {
  ToyModel model;
  ToyDraft draft(0);
  std::int64_t num_passes = 0, num_tokens = 0;
  draft.on_forward = [&](const Batch& batch) {
    ++num_passes;
    num_tokens += batch.num_tokens();
  };
  EngineCore core(model,
                  {.speculation = {.kind = DraftKind::kModel, .draft_tokens = 4, .adapts = false},
                   .draft_model = draft});
  constexpr int kNumRequests = 6, kNumPrompt = 20;
  std::vector<GenerationHandle> handles;
  for (TokenId i = 0; i < kNumRequests; ++i) {
    handles.push_back(core.submit(
        request_of(std::vector<TokenId>(kNumPrompt, i), {.max_new_tokens = 5 * 8 + 1})));
  }
  run_to_end(core);
  // One token with the prompts, then five in each step, four of them drafted.
  EXPECT_EQ(core.metrics().num_steps, 1 + 8);
  EXPECT_EQ(core.metrics().acceptance_rate(), 1.0);
  EXPECT_EQ(core.metrics().num_draft_rounds, kNumRequests * 8);
  EXPECT_EQ(num_passes, 8 * 4);
  // All tokens but the last draft of the last round and what came after it.
  EXPECT_EQ(num_tokens, kNumRequests * (kNumPrompt + 41 - 2));
  for (const auto& handle : handles) {
    EXPECT_EQ(handle.result().metrics.num_draft_rounds, 8);
    EXPECT_EQ(handle.result().metrics.num_draft_tokens, 32);
    EXPECT_EQ(handle.result().metrics.acceptance_rate(), 1.0);
  }
  const std::string text = to_prometheus(core.metrics());
  EXPECT_NE(text.find("kvick_draft_tokens_total 192"), std::string::npos) << text;
  EXPECT_NE(text.find("kvick_accepted_tokens_total 192"), std::string::npos);
  EXPECT_NE(text.find("kvick_draft_rounds_total 48"), std::string::npos);
}

TEST(ModelDrafter, ReadsALongPromptInPartsWhileOthersDraft) {
  ToyModel model;
  ToyDraft draft(0);
  Index most = 0;
  draft.on_forward = [&](const Batch& batch) { most = std::max(most, batch.num_tokens()); };
  EngineCore core(model,
                  {.scheduler = {.max_batch_size = 2, .max_num_batched_tokens = 32},
                   .speculation = {.kind = DraftKind::kModel, .draft_tokens = 3, .adapts = false},
                   .draft_model = draft});
  const std::vector<TokenId> long_prompt(300, 9);
  auto first = core.submit(request_of({1}, {.max_new_tokens = 100}));
  auto second = core.submit(request_of(long_prompt, {.max_new_tokens = 100}));
  run_to_end(core);
  EXPECT_EQ(most, 32);
  EXPECT_EQ(first.result().tokens, model.generate(std::vector<TokenId>{1}, 100, {}));
  EXPECT_EQ(second.result().tokens, model.generate(long_prompt, 100, {}));
  EXPECT_EQ(first.result().metrics.num_accepted_tokens, 74);
  EXPECT_GT(second.result().metrics.num_accepted_tokens, 60);
}

/// What a draft model of one text drafts for it.
std::vector<TokenId> lone_drafts(ToyDraft& model, std::span<const TokenId> tokens,
                                 std::uint64_t output_index, int max_tokens, Sampler& sampler) {
  DraftModel lone(model, model, {.max_seq_len = 400});
  Draft draft;
  lone.propose({.tokens = tokens,
                .output_index = output_index,
                .max_tokens = max_tokens,
                .sampler = sampler},
               draft);
  return draft.tokens;
}

struct Text {
  std::vector<TokenId> tokens;
  std::uint64_t output_index = 0;
  Sampler sampler;
  std::vector<TokenId> drafts = {};
};

/// Texts of random turns, more than there are slots and blocks for, go on by some of their drafts.
TEST(ModelDrafter, DraftsForEachTextWhatItsOwnDraftModelWould) {
  constexpr std::uint64_t kSeed = 11;
  constexpr int kNumTexts = 7, kNumSlots = 4, kMaxLength = 96;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  PhiloxStream random(kSeed);
  ToyDraft model(3);
  detail::ModelDrafter<ToyDraft> drafter(model, {.cache = {.num_sequences = kNumSlots,
                                                           .max_seq_len = kMaxLength,
                                                           .num_blocks = 14,
                                                           .block_tokens = 16},
                                                 .max_pass_tokens = 24,
                                                 .clock_ms = [] { return 0.0; }});
  const auto token = [&] { return static_cast<TokenId>(random.next_below(50)); };
  const PrefixKey key;
  std::vector<Text> texts;
  for (std::uint64_t i = 0; i < kNumTexts; ++i) {
    texts.push_back({.tokens = {token()}, .sampler = Sampler({.temperature = 0.6f, .seed = i})});
  }
  int num_drafted = 0, num_too_long = 0, num_not_yet = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<detail::DraftJob> jobs;
    for (std::size_t i = 0; i < texts.size() && jobs.size() < kNumSlots; ++i) {
      Text& text = texts[i];
      if (random.next_below(40) == 0) {  // its request has ended, and another has come
        drafter.forget(static_cast<RequestId>(i));
        text.tokens.assign(1 + random.next_below(40), token());
        text.output_index = 0;
      }
      if (random.next_below(2) == 0) continue;
      text.drafts.clear();
      jobs.push_back({.request = static_cast<RequestId>(i),
                      .tokens = text.tokens,
                      .prefix_key = &key,
                      .output_index = text.output_index,
                      .max_tokens = 1 + static_cast<int>(random.next_below(9)),
                      .sampler = &text.sampler,
                      .drafts = &text.drafts});
    }
    drafter.propose(jobs);
    ASSERT_LE(drafter.num_sequences(), kNumSlots);
    for (const detail::DraftJob& job : jobs) {
      ASSERT_FALSE(job.error) << *job.error;
      Text& text = texts[static_cast<std::size_t>(job.request)];
      auto want = lone_drafts(model, text.tokens, text.output_index, job.max_tokens, text.sampler);
      num_too_long += text.tokens.size() > kMaxLength ? 1 : 0;
      if (text.drafts.size() < want.size()) {  // no room, or not there yet
        ++num_not_yet;
        want.resize(text.drafts.size());
      }
      ASSERT_EQ(text.drafts, want) << "round " << round << ", text " << job.request;
      const std::size_t most = std::max<std::size_t>(kMaxLength + 1, text.tokens.size());
      ASSERT_LE(text.tokens.size() + text.drafts.size(), most);
      num_drafted += static_cast<int>(want.size());
      // Some are accepted, and others follow, perhaps in rounds without drafts.
      const auto num_accepted = random.next_below(static_cast<std::uint32_t>(want.size()) + 1);
      text.tokens.insert(text.tokens.end(), want.begin(), want.begin() + num_accepted);
      const auto num_others = 1 + random.next_below(3);
      for (std::uint32_t n = 0; n < num_others; ++n) text.tokens.push_back(token());
      text.output_index += num_accepted + num_others;
    }
  }
  EXPECT_GT(num_drafted, 1000);
  EXPECT_GT(num_too_long, 0);
  EXPECT_GT(num_not_yet, 0);
}

TEST(ModelDrafter, EndsOnlyTheJobWhoseLogitsAreNoNumbers) {
  struct BadRow : ToyDraft {
    using ToyDraft::ToyDraft;
    void forward(const Batch& batch, Cache& cache, MatrixRef logits) {
      ToyDraft::forward(batch, cache, logits);
      logits.row(1).setConstant(std::numeric_limits<float>::quiet_NaN());
    }
  } model(0);
  detail::ModelDrafter<BadRow> drafter(
      model, {.cache = {.num_sequences = 3, .max_seq_len = 64}, .clock_ms = [] { return 0.0; }});
  const PrefixKey key;
  std::vector<Text> texts;
  std::vector<detail::DraftJob> jobs;
  for (TokenId i = 0; i < 3; ++i) texts.push_back({.tokens = {i}, .sampler = Sampler()});
  for (Text& text : texts) {
    jobs.push_back({.request = static_cast<RequestId>(jobs.size()),
                    .tokens = text.tokens,
                    .prefix_key = &key,
                    .sampler = &text.sampler,
                    .drafts = &text.drafts});
  }
  drafter.propose(jobs);
  EXPECT_TRUE(jobs[1].error);
  EXPECT_TRUE(texts[1].drafts.empty());
  for (const std::size_t i : {0u, 2u}) {
    EXPECT_FALSE(jobs[i].error);
    EXPECT_EQ(texts[i].drafts, model.generate(texts[i].tokens, 1, {}));
  }
  EXPECT_EQ(drafter.num_sequences(), 2);
}

}  // namespace
