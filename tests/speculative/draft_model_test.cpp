// SPDX-License-Identifier: MIT
// Draft models over fakes whose every row is known, and speculation with real models.
#include "kvick/speculative/draft_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/speculative/ngram_table.hpp"
#include "kvick/speculative/prompt_lookup.hpp"
#include "kvick/speculative/speculative.hpp"
#include "model/evaluate.hpp"
#include "speculative/fake_model.hpp"
#include "support/tiny_model.hpp"

namespace {

using namespace kvick;
using support::expect_error;
using support::FakeCache;
using support::FakeModel;
using support::TinyModel;
using Tokens = std::vector<TokenId>;

Tokens propose(DraftModel<FakeModel>& source, const Tokens& text, int max_tokens,
               SamplingOptions sampling = {}, std::uint64_t output_index = 0) {
  Sampler sampler(sampling);
  Draft draft;
  source.propose(
      {.tokens = text, .output_index = output_index, .max_tokens = max_tokens, .sampler = sampler},
      draft);
  return draft.tokens;
}

/// What the model says by itself.
Tokens continuation(FakeModel& model, const Tokens& text, int count) {
  return speculative_decode(NoDraft{}, model, text, count, 0).tokens;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The cache holds what is true of the next text, and never lacks the last drafted token.
TEST(DraftModel, FollowsTheTextWhateverWasAccepted) {
  FakeModel model({.vocab_size = 9});
  DraftModel source(model, model);
  Tokens text = {1, 2, 3};
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    const int k = static_cast<int>(rng() % 6) + 1;
    const Tokens want = continuation(model, text, k);
    ASSERT_EQ(propose(source, text, k), want) << "round " << round;
    const auto rows = source.cache().rows(0);
    const Tokens known = joined(text, want);
    ASSERT_EQ(rows.size(), text.size() + static_cast<std::size_t>(k) - 1);
    ASSERT_TRUE(std::equal(rows.begin(), rows.end(), known.begin()));
    // Some are accepted, perhaps all; then a token of the target, perhaps the drafted one.
    const auto accepted = static_cast<std::ptrdiff_t>(rng() % (static_cast<unsigned>(k) + 1));
    text.insert(text.end(), want.begin(), want.begin() + accepted);
    text.push_back(static_cast<TokenId>(rng() % 9));
    if (round % 20 == 19) text.resize(1 + rng() % text.size());  // another text
  }
}

TEST(DraftModel, EvaluatesNoTokenTwice) {
  FakeModel model({.vocab_size = 9});
  DraftModel source(model, model);
  Tokens text = {1, 2, 3};
  model.num_passes = 0;
  for (int round = 0; round < 10; ++round) {
    const Tokens drafts = propose(source, text, 4);
    text = joined(text, drafts);
    text.push_back(5);
  }
  EXPECT_EQ(model.num_passes, 40);  // one per drafted token, the first of each with those accepted
}

TEST(DraftModel, DrawsWithTheSameRandomNumbersAsTheTarget) {
  FakeModel model({.vocab_size = 9});
  DraftModel source(model, model);
  const SamplingOptions sampling{
      .temperature = 1.2f, .top_k = 6, .seed = 5, .frequency_penalty = 0.5f};
  const SpeculativeOptions options{.max_new_tokens = 40, .sampling = sampling};
  const Tokens text{1, 2, 3};
  const Tokens answer = speculative_decode(NoDraft{}, model, text, options).tokens;
  EXPECT_EQ(propose(source, text, 40, sampling), answer);
  const Tokens later = joined(text, Tokens(answer.begin(), answer.begin() + 7));
  EXPECT_EQ(propose(source, later, 33, sampling, 7), Tokens(answer.begin() + 7, answer.end()));
}

TEST(DraftModel, StopsAtAnEndToken) {
  FakeModel model({.vocab_size = 9});
  DraftModel source(model, model);
  const Tokens text{1, 2, 3}, answer = continuation(model, text, 20);
  const auto first = std::find(answer.begin(), answer.end(), answer[6]);
  EXPECT_EQ(propose(source, text, 20, {.end_tokens = {answer[6]}}),
            Tokens(answer.begin(), first + 1));
}

TEST(DraftModel, DraftsNothingBeyondItsCache) {
  FakeModel model({.vocab_size = 9});
  DraftModel source(model, model, {.max_seq_len = 5});
  EXPECT_EQ(propose(source, {1, 2, 3}, 8).size(), 3u);
  EXPECT_EQ(propose(source, {1, 2, 3, 4, 5}, 8).size(), 1u);
  EXPECT_EQ(propose(source, {1, 2, 3, 4, 5, 6}, 8).size(), 0u);
  EXPECT_EQ(propose(source, {1, 2, 3, 4}, 8).size(), 2u);
}

TEST(DraftModel, RefusesAnotherVocabulary) {
  FakeModel five({.vocab_size = 5}), six({.vocab_size = 6});
  expect_error(ErrorCode::kArgument, "must have the target's 6 tokens, got 5",
               [&] { DraftModel source(five, six); });
  expect_error(ErrorCode::kArgument, "must have the target's 6 tokens, got 5",
               [&] { speculative_decode(five, six, Tokens{1}, 5, 2); });
}

// ---- Real models

Transformer tiny(std::optional<TensorType> converted = {}, AttentionWindow window = {}) {
  return Transformer(TinyModel({.vocab_size = 90}).file(),
                     {.threads = 2, .weights = converted, .window = window});
}

struct OtherPieces {
  struct File {
    template <class T>
    std::optional<T> try_get(std::string_view) const {
      return T{"<unk>", "<s>", "</s>", "x", "b", "c", "d", "e", "f"};
    }
  };
  int vocab_size() const { return 9; }
  File file() const { return {}; }
};

TEST(DraftModel, ComparesThePiecesOfTokenizers) {
  const auto options = support::smallest_model("llama", TensorType::kF32);
  Transformer model(TinyModel(options).file()), same(TinyModel(options).file());
  check_same_vocabulary(same, model);
  expect_error(ErrorCode::kArgument, "token 3 must be 'a', got 'x'",
               [&] { check_same_vocabulary(OtherPieces{}, model); });
}

const SamplingOptions kSampling[] = {
    {},
    {.temperature = 0.3f, .top_k = 20},
    {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f},
    {.temperature = 1.5f,
     .top_p = 0.9f,
     .repetition_penalty = 1.1f,
     .presence_penalty = 0.2f,
     .logit_bias = {{5, 1.0f}},
     .banned_tokens = {6}},
};

/// Texts and caches of a decoder against those of plain decoding with the same options.
template <class Cache, class Source>
SpeculativeStatistics expect_as_plain(Transformer& model, Cache& plain_cache, Cache& cache,
                                      Source& source, const Tokens& prompt,
                                      const SpeculativeOptions& options) {
  plain_cache.release(0);
  cache.release(0);
  NoDraft none;
  SpeculativeDecoder plain(model, plain_cache, none, options);
  plain.append(prompt);
  while (plain.end() == SpeculativeEnd::kNone) plain.step();
  SpeculativeDecoder decoder(model, cache, source, options);
  decoder.append(prompt);
  while (decoder.end() == SpeculativeEnd::kNone) {
    decoder.step();
    EXPECT_EQ(static_cast<std::size_t>(cache.length(0)),
              decoder.tokens().size() - (decoder.end() == SpeculativeEnd::kEndToken ? 0 : 1));
  }
  EXPECT_EQ(decoder.tokens(), plain.tokens());
  EXPECT_EQ(decoder.end(), plain.end());
  // Keys and values are the same bits, whoever computed them in which batch.
  EXPECT_EQ(
      export_sequence(
          cache, 0, std::span(plain.tokens()).first(static_cast<std::size_t>(cache.length(0))), 0),
      export_sequence(
          plain_cache, 0,
          std::span(plain.tokens()).first(static_cast<std::size_t>(plain_cache.length(0))), 0));
  return decoder.statistics();
}

TEST(SpeculativeTransformer, GivesTheTokensAndKeysAndValuesOfPlainDecoding) {
  Transformer model = tiny(), four_bits = tiny(TensorType::kQ4_0);
  auto plain_cache = model.make_contiguous_cache({.max_seq_len = 120}),
       cache = model.make_contiguous_cache({.max_seq_len = 120});
  auto plain_paged = model.make_cache({.max_seq_len = 120, .block_tokens = 16}),
       paged = model.make_cache({.max_seq_len = 120, .block_tokens = 16});
  DraftModel draft(four_bits, model, {.max_seq_len = 120});
  PromptLookup lookup({.min_match = 1});
  std::int64_t num_accepted = 0;
  for (unsigned i = 0; i < 16; ++i) {
    SCOPED_TRACE(::testing::Message() << "prompt and draft tokens " << i);
    const Tokens prompt = support::random_tokens(static_cast<int>(1 + i % 30), 90, i);
    SpeculativeOptions options{.max_new_tokens = 30,
                               .draft_tokens = static_cast<int>(1 + i % 16),
                               .adapts = i % 3 == 0,
                               .sampling = kSampling[i % 4]};
    options.sampling.seed = i;
    num_accepted += expect_as_plain(model, plain_cache, cache, draft, prompt, options).num_accepted;
    expect_as_plain(model, plain_cache, cache, lookup, prompt, options);
    expect_as_plain(model, plain_paged, paged, draft, prompt, options);
  }
  EXPECT_GT(num_accepted, 100);
}

/// A rejection across the border of a block needs what the window has left behind.
TEST(SpeculativeTransformer, DraftsOfModelsWithAWindowMayBeRejected) {
  const AttentionWindow window{.size = 8};
  Transformer model = tiny({}, window), four_bits = tiny(TensorType::kQ4_0, window);
  DraftModel draft(four_bits, model, {.max_seq_len = 160, .block_tokens = 16});
  for (unsigned i = 0; i < 8; ++i) {
    SCOPED_TRACE(::testing::Message() << "prompt " << i);
    const Tokens prompt = support::random_tokens(static_cast<int>(20 + i), 90, i);
    const SpeculativeOptions options{.max_new_tokens = 90, .draft_tokens = 16, .adapts = false};
    const auto result = speculative_decode(draft, model, prompt, options);
    EXPECT_EQ(result.tokens, speculative_decode(NoDraft{}, model, prompt, options).tokens);
    EXPECT_LT(result.stats.num_accepted, result.stats.num_drafted);
  }
}

TEST(SpeculativeTransformer, ATextOfAModelWithAWindowMayBeTakenBack) {
  Transformer model = tiny({}, {.size = 8});
  const SpeculativeOptions options{.max_new_tokens = 40};
  auto cache = model.make_cache({.max_seq_len = 160, .block_tokens = 16});
  NoDraft none;
  SpeculativeDecoder decoder(model, cache, none, options);
  const Tokens prompt = support::random_tokens(50, 90, 1);
  decoder.append(prompt);
  while (decoder.end() == SpeculativeEnd::kNone) decoder.step();
  const Tokens first = decoder.tokens();
  decoder.truncate(prompt.size());
  decoder.append({});
  while (decoder.end() == SpeculativeEnd::kNone) decoder.step();
  EXPECT_EQ(decoder.tokens(), first);
}

/// The models that come with the sources.
class SpeculativeDemoModels : public ::testing::Test {
 protected:
  static Transformer load(const std::string& name, std::optional<TensorType> type = {}) {
    return Transformer(std::filesystem::path(KVICK_DEMO_MODEL_DIR) / name,
                       {.threads = 1, .weights = type});
  }
  Transformer model_ = load("kvick-stories-3m-q8_0.gguf");
  Transformer draft_ = load("kvick-stories-draft-q8_0.gguf");
};

TEST_F(SpeculativeDemoModels, TellTheStoriesOfPlainDecodingOver50Prompts) {
  Transformer four_bits = load("kvick-stories-3m-q8_0.gguf", TensorType::kQ4_0);
  auto plain_cache = model_.make_cache({.max_seq_len = 160}),
       cache = model_.make_cache({.max_seq_len = 160});
  NgramTable table({.vocab_size = model_.vocab_size()});
  DraftModel small(draft_, model_, {.max_seq_len = 160});
  DraftModel coarse(four_bits, model_, {.max_seq_len = 160});
  PromptLookup lookup;
  NgramDraft habits(table);
  CombinedDraft both(PromptLookup(), DraftModel(draft_, model_, {.max_seq_len = 160}));
  for (unsigned i = 0; i < 50; ++i) {
    SCOPED_TRACE(::testing::Message() << "prompt " << i);
    const Tokens prompt = support::random_tokens(static_cast<int>(1 + i % 5), 1024, i);
    SpeculativeOptions options{.max_new_tokens = 16,
                               .draft_tokens = static_cast<int>(1 + i % 16),
                               .adapts = i % 4 == 3,
                               .sampling = kSampling[i / 2 % 4]};
    options.sampling.seed = i;
    options.sampling.end_tokens = {2};
    const auto expect = [&](auto& source) {
      return expect_as_plain(model_, plain_cache, cache, source, prompt, options);
    };
    expect(small);
    expect(coarse);
    expect(lookup);
    expect(habits);
    expect(both);
    NoDraft none;
    table.learn(speculative_decode(none, model_, prompt, options).tokens);
  }
}

TEST_F(SpeculativeDemoModels, AcceptMostGreedyDrafts) {
  // "Once upon a time", as the tokenizer of the demo models writes it.
  const auto pieces = model_.file().get<std::vector<std::string>>("tokenizer.ggml.tokens");
  Tokens prompt{1};
  for (const std::string piece : {"▁Once", "▁upon", "▁a", "▁time"}) {
    const auto found = std::find(pieces.begin(), pieces.end(), piece);
    ASSERT_NE(found, pieces.end()) << piece;
    prompt.push_back(static_cast<TokenId>(found - pieces.begin()));
  }
  const auto stats = speculative_decode(draft_, model_, prompt, 150, 4).stats;
  // Their card says 94.7 % over many prompts; one story may be far from it.
  EXPECT_GT(stats.acceptance_rate, 0.5);
  EXPECT_GT(stats.mean_accepted_length, 3);
}

}  // namespace
