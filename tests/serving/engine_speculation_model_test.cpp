// SPDX-License-Identifier: MIT
// Drafts in a batch of real models: tokens and log probabilities of plain decoding, to the bit.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "kvick/core/random.hpp"
#include "kvick/serving/engine.hpp"
#include "kvick/serving/engine_core.hpp"
#include "serving/random_requests.hpp"
#include "serving/toy_draft.hpp"
#include "support/tiny_model.hpp"

namespace {

using namespace kvick;

template <class AnyCore>
void run_to_end(AnyCore& core) {
  while (core.step()) {
  }
}

void expect_same(const Generation& got, const Generation& want) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.text, want.text);
  EXPECT_EQ(got.finish_reason, want.finish_reason);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (std::size_t t = 0; t < got.logprobs.size(); ++t) {
    EXPECT_EQ(got.logprobs[t].chosen.logprob, want.logprobs[t].chosen.logprob);
  }
}

/// The draft is the model itself with its weights quantized to 4 bits.
TEST(EngineSpeculationModel, GivesTheTokensAndLogprobsOfTinyModelsToTheBit) {
  const support::TinyModelOptions tiny{.num_layers = 1, .embedding_dim = 64, .ffn_dim = 64};
  Transformer model(support::TinyModel(tiny).file(), {.threads = 2});
  Transformer draft(support::TinyModel(tiny).file(), {.threads = 2, .weights = TensorType::kQ4_0});
  const SchedulerOptions scheduler{
      .max_batch_size = 6, .max_seq_len = 160, .max_num_batched_tokens = 40};
  EngineCore plain(model, {.scheduler = scheduler});
  EngineCore core(model, {.scheduler = scheduler,
                          .cache = {.num_blocks = 14, .block_tokens = 16},
                          .draft_model = draft});
  constexpr std::uint64_t kSeed = 8;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  PhiloxStream random(kSeed);
  std::vector<GenerationHandle> want, got;
  for (int i = 0; i < 24; ++i) {
    GenerationRequest request = support::random_request(random, model.vocab_size());
    support::speculate_at_random(random, request.options);
    request.options.num_logprobs = 1;
    got.push_back(core.submit(request));
    request.options.speculation.reset();
    want.push_back(plain.submit(std::move(request)));
  }
  run_to_end(plain);
  run_to_end(core);
  EXPECT_EQ(plain.metrics().num_draft_tokens, 0);
  EXPECT_GT(core.metrics().num_accepted_tokens, 100);
  EXPECT_GT(core.metrics().num_preemptions, 0);
  EXPECT_EQ(core.num_draft_sequences(), 0);
  for (std::size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    for (std::size_t sample = 0; sample < want[i].results().size(); ++sample) {
      expect_same(got[i].results()[sample], want[i].results()[sample]);
    }
  }
}

TEST(EngineSpeculationModel, TellsTheDemoModelsStoriesInABatchOfEight) {
  const std::filesystem::path folder = KVICK_DEMO_MODEL_DIR;
  EngineOptions options{
      .threads = 2, .scheduler = {.max_batch_size = 8}, .cache = {.max_seq_len = 192}};
  const std::vector<std::string> prompts = {
      "Once upon a time", "One day, a girl", "There was a dog", "The king",
      "In the garden",    "Tom and Mia",     "The cat",         "A boy"};
  const auto requests = [&](bool is_mixed) {
    constexpr DraftKind kKinds[] = {DraftKind::kModel, DraftKind::kLookupThenModel,
                                    DraftKind::kLookup};
    std::vector<GenerationRequest> all;
    for (std::size_t i = 0; i < 2 * prompts.size(); ++i) {
      GenerateOptions generate{.max_new_tokens = 60, .seed = i, .num_logprobs = 0};
      if (i % 2 == 1) generate.temperature = 0.8f;
      if (is_mixed && i % 8 != 7) {
        generate.speculation = {.kind = kKinds[i % 3],
                                .draft_tokens = static_cast<int>(1 + i % 6),
                                .adapts = i % 5 == 0};
      }
      all.push_back({.prompt = prompts[i % prompts.size()], .options = generate});
    }
    return all;
  };
  Engine plain(folder / "kvick-stories-3m-q8_0.gguf", options);
  options.draft_path = folder / "kvick-stories-draft-q8_0.gguf";
  Engine engine(folder / "kvick-stories-3m-q8_0.gguf", options);
  const auto want = plain.run(requests(false));
  const auto got = engine.run(requests(true));
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    EXPECT_GT(want[i].tokens.size(), 10u);
    expect_same(got[i], want[i]);
  }
  engine.drain();
  const EngineMetrics metrics = engine.metrics();
  std::cout << "accepted " << metrics.num_accepted_tokens << " of " << metrics.num_draft_tokens
            << " drafts, " << metrics.num_steps << " steps for " << plain.metrics().num_steps
            << "\n";
  EXPECT_GT(metrics.num_accepted_tokens, 100);
}

}  // namespace
