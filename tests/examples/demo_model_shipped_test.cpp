// SPDX-License-Identifier: MIT
// The demo models that come with the sources, and the programs that use one when none is named.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "demo_model/demo_vocabulary.hpp"
#include "demo_model/story_grammar.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/sampling/evaluation.hpp"
#include "kvick/sampling/sampler.hpp"
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

/// The greedy choice after any text, of which it computes what is new.
class GreedyModel {
 public:
  explicit GreedyModel(const std::string& path)
      : model_(path, {.threads = 1}),
        cache_(model_.make_cache()),
        logits_(1, model_.vocab_size()) {}

  const kvick::Transformer& model() const { return model_; }

  kvick::TokenId next(std::span<const kvick::TokenId> text) {
    const auto differs = std::mismatch(cached_.begin(), cached_.end(), text.begin(), text.end());
    const auto num_equal = static_cast<std::size_t>(differs.first - cached_.begin());
    const std::size_t num_kept = std::min(num_equal, text.size() - 1);
    cache_.truncate(0, static_cast<int>(num_kept));
    const auto rest = text.subspan(num_kept);
    EXPECT_TRUE(cache_.reserve(0, static_cast<int>(rest.size())));
    model_.forward(kvick::Batch({0, static_cast<int>(num_kept), rest, 1}), cache_, logits_);
    cache_.commit(0, rest);
    cached_.assign(text.begin(), text.end());
    return kvick::argmax({logits_.data(), static_cast<std::size_t>(logits_.cols())});
  }

  /// `text` and `count` tokens more.
  std::vector<kvick::TokenId> continued(std::vector<kvick::TokenId> text, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) text.push_back(next(text));
    return text;
  }

 private:
  kvick::Transformer model_;
  kvick::Transformer::Cache cache_;
  kvick::Matrix logits_;
  std::vector<kvick::TokenId> cached_;
};

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

TEST(DemoModels, TheLargeOneAcceptsMostOfWhatTheSmallOneDrafts) {
  constexpr std::uint64_t kSeed = 1001;
  constexpr std::size_t kNumPromptTokens = 30, kNumNewTokens = 120, kNumDrafts = 4;
  GreedyModel target(kTarget), draft(kDraft);
  const kvick::Tokenizer tokenizer(target.model().file());
  std::size_t num_drafted = 0, num_accepted = 0;
  for (std::uint64_t i = 0; i < 10; ++i) {
    auto prompt = tokenizer.encode(demo_model::make_story(kSeed, i).text, {.add_bos = true});
    prompt.resize(kNumPromptTokens);
    const auto text = target.continued(prompt, kNumNewTokens);
    // Each round drafts behind what is accepted; the token after that is the target's own.
    for (std::size_t at = kNumPromptTokens; at + kNumDrafts < text.size();) {
      const auto end = text.begin() + static_cast<std::ptrdiff_t>(at);
      const auto drafted = draft.continued({text.begin(), end}, kNumDrafts);
      const auto differs = std::mismatch(drafted.begin(), drafted.end(), text.begin());
      const auto num_equal = static_cast<std::size_t>(differs.first - drafted.begin()) - at;
      num_drafted += kNumDrafts;
      num_accepted += num_equal;
      at += num_equal + 1;
    }
  }
  const double rate = static_cast<double>(num_accepted) / static_cast<double>(num_drafted);
  std::cout << "accepted: " << num_accepted << " of " << num_drafted << "\n";
  EXPECT_GT(rate, 0.6);
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
