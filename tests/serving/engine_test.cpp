// SPDX-License-Identifier: MIT
// Engines of a Transformer, in a file or not.
#include "kvick/serving/engine.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kvick/core/random.hpp"
#include "kvick/serving/engine_core.hpp"
#include "serving/random_requests.hpp"
#include "support/tiny_model.hpp"

namespace {

using namespace kvick;
using support::random_request;

template <class AnyCore>
void run_to_end(AnyCore& core) {
  while (core.step()) {
  }
}

TEST(Engine, GivesTheTransformersTokensAndLogprobsOfALoneRunToTheBit) {
  Transformer model(support::TinyModel().file(), {.threads = 2});
  const EngineOptions alone{.scheduler = {.max_batch_size = 1, .max_seq_len = 160}};
  EngineCore lone(model, alone);
  EngineCore crowded(
      model, {.scheduler = {.max_batch_size = 6, .max_seq_len = 160, .max_num_batched_tokens = 20},
              .cache = {.num_blocks = 11, .block_tokens = 16}});
  PhiloxStream random(1);
  std::vector<GenerationHandle> together;
  std::vector<GenerationHandle> each;
  for (int i = 0; i < 12; ++i) {
    GenerationRequest request = random_request(random, model.vocab_size());
    request.options.num_logprobs = 2;
    each.push_back(lone.submit(request));
    run_to_end(lone);
    together.push_back(crowded.submit(request));
  }
  run_to_end(crowded);
  EXPECT_GT(crowded.metrics().num_preemptions, 0);
  for (std::size_t i = 0; i < each.size(); ++i) {
    for (std::size_t sample = 0; sample < each[i].results().size(); ++sample) {
      const Generation& want = each[i].result(static_cast<int>(sample));
      const Generation& got = together[i].result(static_cast<int>(sample));
      EXPECT_EQ(got.tokens, want.tokens) << i;
      ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
      for (std::size_t t = 0; t < got.logprobs.size(); ++t) {
        EXPECT_EQ(got.logprobs[t].chosen.logprob, want.logprobs[t].chosen.logprob);
        ASSERT_EQ(got.logprobs[t].top.size(), 2u);
        EXPECT_EQ(got.logprobs[t].top[1].logprob, want.logprobs[t].top[1].logprob);
      }
    }
  }
}

const std::filesystem::path kDemoModel =
    std::filesystem::path(KVICK_DEMO_MODEL_DIR) / "kvick-stories-3m-q8_0.gguf";

TEST(Engine, ContinuesTextsWithAModelFile) {
  Engine engine(kDemoModel, {.threads = 2, .cache = {.max_seq_len = 128}});
  const GenerateOptions options{
      .max_new_tokens = 24, .temperature = 0.8f, .seed = 7, .ignores_end_tokens = true};
  const std::string alone = engine.generate("Once upon a time", options);
  EXPECT_GT(alone.size(), 24u);
  const auto texts = engine.generate({"The king", "Once upon a time", "One day"}, options);
  EXPECT_EQ(texts[1], alone);

  const std::string stop = alone.substr(30, 6);
  GenerateOptions stopping = options;
  stopping.stop = {stop};
  EXPECT_EQ(engine.generate("Once upon a time", stopping), alone.substr(0, alone.find(stop)));
}

}  // namespace
