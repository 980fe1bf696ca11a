// SPDX-License-Identifier: MIT
// The demo models that come with the sources, and the programs that use one when none is named.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "demo_model/demo_vocabulary.hpp"
#include "demo_model/story_grammar.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/sampling/evaluation.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/subprocess.hpp"

namespace {

using support::run_program;

const std::filesystem::path kFolder = KVICK_DEMO_MODEL_DIR;
const std::string kTarget = kFolder / "kvick-stories-3m-q8_0.gguf";
const std::string kDraft = kFolder / "kvick-stories-draft-q8_0.gguf";

/// Nats per token over stories that no training saw, as text and its probability.
struct HeldOut {
  double loss = 0;
  double entropy = 0;
};

HeldOut measure(const std::string& path) {
  constexpr std::uint64_t kSeed = 1000;
  constexpr std::uint64_t kNumStories = 30;
  kvick::Transformer model(path, {.threads = 2});
  const kvick::Tokenizer tokenizer(model.file());
  HeldOut sum;
  double num_tokens = 0;
  for (std::uint64_t i = 0; i < kNumStories; ++i) {
    const demo_model::Story story = demo_model::make_story(kSeed, i);
    const auto tokens = tokenizer.encode(story.text, {.add_bos = true, .add_eos = true});
    for (const double nll : kvick::negative_log_likelihoods(model, tokens)) sum.loss += nll;
    sum.entropy -= story.log_probability;
    num_tokens += static_cast<double>(tokens.size() - 1);
  }
  return {sum.loss / num_tokens, sum.entropy / num_tokens};
}

TEST(DemoModels, HaveTheVocabularyThatTheirSourcesMake) {
  const kvick::Vocabulary expected = demo_model::make_vocabulary(1024);
  for (const std::string& path : {kTarget, kDraft}) {
    const kvick::Vocabulary found = kvick::read_vocabulary(kvick::GgufFile(path));
    EXPECT_EQ(found.pieces, expected.pieces) << path;
    EXPECT_EQ(found.scores, expected.scores) << path;
  }
}

TEST(DemoModels, PredictStoriesThatTheyNeverSaw) {
  const HeldOut target = measure(kTarget), draft = measure(kDraft);
  EXPECT_LT(draft.loss, draft.entropy + 0.25);
  EXPECT_LT(target.loss, target.entropy + 0.05);
  EXPECT_LT(target.loss, draft.loss) << "the larger model must predict better";
  EXPECT_GT(target.loss, target.entropy) << "less than the entropy: the stories were known";
}

TEST(DemoModels, AreSmall) {
  EXPECT_LT(std::filesystem::file_size(kTarget), 4u << 20);
  EXPECT_LT(std::filesystem::file_size(kDraft), 1u << 19);
}

TEST(DemoModels, AreTheDefaultOfThePrograms) {
  const auto expect_same = [](const std::string& program, std::vector<std::string> arguments,
                              const std::vector<std::string>& naming) {
    const auto without = run_program(program, arguments);
    EXPECT_EQ(without.exit_code, 0) << without.err;
    arguments.insert(arguments.begin(), naming.begin(), naming.end());
    EXPECT_EQ(without.out, run_program(program, arguments).out) << program;
    EXPECT_GT(without.out.size(), 10u);
  };
  expect_same("kvick-generate", {"-p", "Once upon a time", "-n", "16", "--temp", "0"},
              {"-m", kTarget});
  expect_same("kvick-tokenize", {"-p", "Once upon a time"}, {"-m", kTarget});
  expect_same("kvick-inspect", {}, {kTarget});
}

}  // namespace
