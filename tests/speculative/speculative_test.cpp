// SPDX-License-Identifier: MIT
#include "kvick/speculative/speculative.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/sampling/logprobs.hpp"
#include "kvick/speculative/ngram_table.hpp"
#include "kvick/speculative/prompt_lookup.hpp"
#include "speculative/fake_model.hpp"
#include "support/allocation_counter.hpp"

namespace {

using namespace kvick;
using support::expect_error;
using support::FakeCache;
using support::FakeModel;
using Tokens = std::vector<TokenId>;

/// The definition, without any part of speculation: one pass per token.
struct Plain {
  Tokens tokens;
  SpeculativeEnd end = SpeculativeEnd::kNone;
  int cached = 0;
};
Plain decode_plainly(FakeModel& model, FakeCache& cache, const Tokens& prompt,
                     const SpeculativeOptions& options) {
  Plain plain;
  Sampler sampler(options.sampling);
  Tokens text = prompt;
  Matrix logits(1, model.vocab_size());
  const auto& ends = options.sampling.end_tokens;
  while (plain.end == SpeculativeEnd::kNone) {
    if (static_cast<int>(plain.tokens.size()) == options.max_new_tokens) {
      plain.end = SpeculativeEnd::kLength;
      break;
    }
    const auto next = std::span(text).subspan(static_cast<std::size_t>(cache.length(0)));
    if (!cache.reserve(0, static_cast<int>(next.size()))) {
      plain.end = SpeculativeEnd::kCacheFull;
      break;
    }
    model.forward(Batch({0, cache.length(0), next, 1}), cache, logits);
    cache.commit(0, next);
    const std::span<const float> row(logits.data(), static_cast<std::size_t>(logits.size()));
    const TokenId token = sampler.sample(row, plain.tokens.size(), text);
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      plain.end = SpeculativeEnd::kEndToken;
      break;
    }
    plain.tokens.push_back(token);
    text.push_back(token);
    if (options.on_token && !options.on_token({token, plain.tokens.size() - 1, false, row})) {
      plain.end = SpeculativeEnd::kCallback;
    }
  }
  plain.cached = cache.length(0);
  return plain;
}

/// Every kind of source, most of them usually wrong.
struct RandomDraft {
  explicit RandomDraft(int vocab_size, unsigned seed = 1) : token(0, vocab_size - 1), rng(seed) {}
  void propose(const DraftContext& context, Draft& draft) {
    const int count = std::uniform_int_distribution<int>(0, context.max_tokens)(rng);
    for (int i = 0; i < count; ++i) draft.tokens.push_back(token(rng));
  }
  std::uniform_int_distribution<TokenId> token;
  std::mt19937 rng;
};
/// What plain decoding will say, if it is told so, up to some errors.
struct OracleDraft {
  void propose(const DraftContext& context, Draft& draft) {
    for (int i = 0; i < context.max_tokens; ++i) {
      const std::size_t at = context.tokens.size() + static_cast<std::size_t>(i);
      if (at >= text.size()) return;
      draft.tokens.push_back(text[at]);
    }
  }
  Tokens text;  // prompt included
};

Tokens random_tokens(std::mt19937& rng, int vocab_size, int count) {
  std::uniform_int_distribution<TokenId> token(0, vocab_size - 1);
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(token(rng));
  return tokens;
}

template <class Source>
void expect_as_plain(FakeModel& model, Source& source, const Tokens& prompt,
                     const SpeculativeOptions& options, int max_seq_len = 4096, int room = -1) {
  FakeCache plain_cache(1, max_seq_len), cache(1, max_seq_len);
  plain_cache.room = cache.room = room;
  const Plain want = decode_plainly(model, plain_cache, prompt, options);
  SpeculativeDecoder decoder(model, cache, source, options);
  decoder.append(prompt);
  Tokens tokens;
  while (decoder.end() == SpeculativeEnd::kNone) {
    const auto drawn = decoder.step();
    tokens.insert(tokens.end(), drawn.begin(), drawn.end());
    // After each round: all tokens but the last, and at an end token all of them.
    const bool is_all =
        decoder.end() == SpeculativeEnd::kEndToken || decoder.end() == SpeculativeEnd::kCacheFull;
    const std::size_t length = decoder.tokens().size() - (is_all ? 0 : 1);
    if (decoder.end() != SpeculativeEnd::kCacheFull) {
      ASSERT_EQ(static_cast<std::size_t>(cache.length(0)), length);
      ASSERT_EQ(cache.reserved(0), cache.length(0)) << "room of rejected tokens was kept";
    }
    ASSERT_TRUE(std::equal(cache.rows(0).begin(), cache.rows(0).end(), decoder.tokens().begin()));
  }
  ASSERT_EQ(tokens, want.tokens);
  EXPECT_EQ(decoder.end(), want.end);
  EXPECT_EQ(cache.length(0), want.cached);
  EXPECT_EQ(static_cast<std::size_t>(decoder.statistics().num_generated), want.tokens.size());
}

/// Calls test(source, name) for a source of each kind; `text` is what an oracle knows.
template <class Test>
void for_each_source(FakeModel& model, const Tokens& text, Test&& test) {
  const int vocab_size = model.vocab_size();
  {
    NoDraft source;
    test(source, "none");
  }
  {
    RandomDraft source(vocab_size);
    test(source, "random");
  }
  {
    OracleDraft source{text};
    test(source, "oracle");
  }
  {
    PromptLookup source({.min_match = 1});
    test(source, "lookup");
  }
  NgramTable table({.vocab_size = vocab_size});
  table.learn(text);
  {
    NgramDraft source(table);
    test(source, "table");
  }
  FakeModel small({.vocab_size = vocab_size, .noise = 0.5f});
  {
    DraftModel source(small, model);
    test(source, "model");
  }
  {
    CombinedDraft source(PromptLookup({.min_match = 4}), DraftModel(small, model));
    test(source, "lookup, then model");
  }
}

const SamplingOptions kSampling[] = {
    {},
    {.temperature = 0.3f, .seed = 3},
    {.temperature = 0.8f, .top_k = 5, .top_p = 0.9f, .seed = 4},
    {.temperature = 1.5f, .top_p = 0.95f, .min_p = 0.05f, .seed = 5},
    {.temperature = 1.0f,
     .seed = 6,
     .repetition_penalty = 1.3f,
     .frequency_penalty = 0.2f,
     .presence_penalty = 0.1f,
     .penalty_window = 7,
     .logit_bias = {{1, 2.0f}, {2, -1.0f}},
     .banned_tokens = {0}},
    {.temperature = 0.8f, .seed = 7, .min_tokens = 5, .end_tokens = {1, 4}},
};

// ---- The same text as plain decoding

TEST(SpeculativeDecoder, GivesTheTokensAndTheCacheOfPlainDecodingWithEverySourceAndOption) {
  std::mt19937 rng(1);
  FakeModel model({.vocab_size = 7});
  for (int prompt_index = 0; prompt_index < 50; ++prompt_index) {
    const Tokens prompt = random_tokens(rng, 7, 1 + prompt_index % 9);
    for (const SamplingOptions& sampling : kSampling) {
      SpeculativeOptions options{.max_new_tokens = 30, .sampling = sampling};
      options.sampling.seed += static_cast<std::uint64_t>(prompt_index) << 40;
      FakeCache cache(1, 100);
      Tokens text = prompt;
      const Tokens answer = decode_plainly(model, cache, prompt, options).tokens;
      text.insert(text.end(), answer.begin(), answer.end());
      for_each_source(model, text, [&](auto& source, const char* name) {
        SCOPED_TRACE(::testing::Message() << "prompt " << prompt_index << ", " << name
                                          << ", temperature " << sampling.temperature);
        options.adapts = prompt_index % 2 == 0;
        options.draft_tokens = prompt_index % 17;
        expect_as_plain(model, source, prompt, options);
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SpeculativeDecoder, DraftsFromOneToSixtyFourTokens) {
  FakeModel model({.vocab_size = 6});
  std::mt19937 rng(2);
  const Tokens prompt = random_tokens(rng, 6, 5);
  for (int k = 1; k <= kMaxDraftTokens; ++k) {
    SpeculativeOptions options{.max_new_tokens = 70, .draft_tokens = k, .adapts = false};
    FakeCache cache(1, 100);
    Tokens text = prompt;
    for (const TokenId t : decode_plainly(model, cache, prompt, options).tokens) text.push_back(t);
    OracleDraft oracle{text};
    expect_as_plain(model, oracle, prompt, options);
    text[20] = (text[20] + 1) % 6;
    OracleDraft erring{text};
    expect_as_plain(model, erring, prompt, options);
    const int passes = model.num_passes;
    speculative_decode(oracle, model, prompt, options);
    EXPECT_LE(model.num_passes - passes, 70 / (k + 1) + 2) << "drafts were not used, k = " << k;
  }
}

TEST(SpeculativeDecoder, EndsInsideOfAnAcceptedRunAsPlainDecodingDoes) {
  FakeModel model({.vocab_size = 9, .spread = 0.3f});
  const Tokens prompt = {1, 2, 3};
  const SamplingOptions sampling{.temperature = 1.0f, .seed = 11};
  FakeCache cache(1, 200);
  const Tokens answer =
      decode_plainly(model, cache, prompt, {.max_new_tokens = 40, .sampling = sampling}).tokens;
  Tokens text = prompt;
  text.insert(text.end(), answer.begin(), answer.end());
  OracleDraft oracle{text};
  for (int k : {3, 7, 8, 40}) {
    SpeculativeOptions options{
        .max_new_tokens = 40, .draft_tokens = k, .adapts = false, .sampling = sampling};
    for (int i = 0; i < 20; ++i) {
      SCOPED_TRACE(::testing::Message() << "k " << k << ", token " << i);
      SpeculativeOptions by_token = options;  // the first of its kind ends the text
      by_token.sampling.end_tokens = {answer[static_cast<std::size_t>(i)]};
      expect_as_plain(model, oracle, prompt, by_token);
      by_token.sampling.min_tokens = i;
      expect_as_plain(model, oracle, prompt, by_token);

      SpeculativeOptions by_length = options;
      by_length.max_new_tokens = i;
      expect_as_plain(model, oracle, prompt, by_length);

      SpeculativeOptions by_callback = options;  // as stop strings and cancellation do
      by_callback.on_token = [i](const SpeculativeToken& token) {
        EXPECT_LE(token.output_index, static_cast<std::uint64_t>(i)) << "called after the end";
        return token.output_index != static_cast<std::uint64_t>(i);
      };
      expect_as_plain(model, oracle, prompt, by_callback);

      // A cache, or a pool, that is full there.
      expect_as_plain(model, oracle, prompt, options, 3 + i);
      expect_as_plain(model, oracle, prompt, options, 4096, 3 + i);
    }
  }
}

TEST(SpeculativeDecoder, GivesTheLogitsOfEveryTokensOwnPosition) {
  FakeModel model({.vocab_size = 8}), small({.vocab_size = 8, .noise = 0.3f});
  DraftModel draft(small, model);
  const Tokens prompt = {1, 2};
  const auto record = [&](auto& out) {
    return [&out](const SpeculativeToken& token) {
      const auto [chosen, top] = logprobs(token.logits, token.token, 3);
      out.push_back(chosen.logprob);
      for (const auto& entry : top) out.push_back(entry.logprob + entry.token);
      return true;
    };
  };
  std::vector<double> want, got;
  SpeculativeOptions options{
      .max_new_tokens = 60,
      .adapts = false,
      .sampling = {.temperature = 1.2f, .seed = 2, .presence_penalty = 0.4f}};
  options.on_token = record(want);
  FakeCache cache(1, 100);
  decode_plainly(model, cache, prompt, options);
  options.on_token = record(got);
  const auto result = speculative_decode(draft, model, prompt, options);
  EXPECT_EQ(got, want);
  EXPECT_GT(result.stats.num_accepted, 10);
}

TEST(SpeculativeDecoder, MarksWhatWasDrafted) {
  FakeModel model({.vocab_size = 5});
  Tokens text = {1};
  for (const TokenId t : speculative_decode(NoDraft{}, model, text, 20, 0).tokens) {
    text.push_back(t);
  }
  OracleDraft oracle{text};
  std::string marks;
  SpeculativeOptions options{.max_new_tokens = 12, .draft_tokens = 3, .adapts = false};
  options.on_token = [&](const SpeculativeToken& token) {
    marks += token.is_drafted ? 'd' : '.';
    return true;
  };
  const auto stats = speculative_decode(oracle, model, Tokens{1}, options).stats;
  EXPECT_EQ(marks, "ddd.ddd.ddd.");
  EXPECT_EQ(stats.num_rounds, 3);
  EXPECT_EQ(stats.num_draft_rounds, 3);
  EXPECT_EQ(stats.num_drafted, 9);
  EXPECT_EQ(stats.num_accepted, 9);
  EXPECT_EQ(stats.num_generated, 12);
  EXPECT_EQ(stats.acceptance_rate, 1.0);
  EXPECT_EQ(stats.mean_accepted_length, 4.0);
  EXPECT_EQ(stats.acceptance_at(2), 1.0);
  EXPECT_EQ(stats.acceptance_at(3), 0.0);
}

TEST(SpeculativeDecoder, GoesOnAfterMoreTokensAreAppendedAndAfterTruncation) {
  FakeModel model({.vocab_size = 7}), small({.vocab_size = 7, .noise = 0.5f});
  const SpeculativeOptions options{
      .max_new_tokens = 15, .draft_tokens = 4, .adapts = false, .sampling = {.temperature = 0.9f}};
  const auto converse = [&](auto& source, bool truncates) {
    FakeCache cache(1, 1000);
    SpeculativeDecoder decoder(model, cache, source, options);
    for (const Tokens& message : {Tokens{1, 2, 3}, Tokens{4}, Tokens{5, 6, 1, 2}}) {
      decoder.append(message);
      while (decoder.end() == SpeculativeEnd::kNone) {
        if (truncates) cache.truncate(0, cache.length(0) / 2);
        decoder.step();
      }
    }
    return decoder.tokens();
  };
  NoDraft none;
  const Tokens want = converse(none, false);
  EXPECT_EQ(want.size(), 3u + 1 + 4 + 45);
  DraftModel model_draft(small, model);
  EXPECT_EQ(converse(model_draft, false), want);
  EXPECT_EQ(converse(model_draft, true), want);
  PromptLookup lookup;
  EXPECT_EQ(converse(lookup, true), want);
}

TEST(SpeculativeDecoder, TheTextMayBeTakenBackAndGoOnOtherwise) {
  FakeModel model({.vocab_size = 7}), small({.vocab_size = 7, .noise = 0.5f});
  const SpeculativeOptions options{.max_new_tokens = 15, .draft_tokens = 4, .adapts = false};
  const auto last = [](const SpeculativeDecoder<FakeModel, FakeCache, PromptLookup>& decoder) {
    return Tokens(decoder.tokens().end() - 15, decoder.tokens().end());
  };
  PromptLookup lookup({.min_match = 1});
  FakeCache cache(1, 100);
  SpeculativeDecoder decoder(model, cache, lookup, options);
  decoder.append(Tokens{1, 2, 3});
  while (decoder.end() == SpeculativeEnd::kNone) decoder.step();
  for (const std::size_t num_kept : {std::size_t{9}, std::size_t{2}, std::size_t{0}}) {
    decoder.truncate(num_kept);
    EXPECT_EQ(decoder.tokens().size(), num_kept);
    EXPECT_LE(cache.length(0), static_cast<int>(num_kept));
    EXPECT_NE(decoder.end(), SpeculativeEnd::kNone);
    EXPECT_TRUE(decoder.step().empty());
    Tokens prompt = decoder.tokens();
    prompt.insert(prompt.end(), {6, 5});
    decoder.append(Tokens{6, 5});
    while (decoder.end() == SpeculativeEnd::kNone) decoder.step();
    EXPECT_EQ(last(decoder), speculative_decode(NoDraft{}, model, prompt, options).tokens);
  }
  decoder.truncate(decoder.tokens().size());  // all of them may stay
  decoder.append({}, 1);
  EXPECT_EQ(decoder.step().size(), 1u);
  expect_error(ErrorCode::kArgument, "num_tokens must be in [0, 18], got 19",
               [&] { decoder.truncate(19); });
}

TEST(SpeculativeDecoder, BeginsWithTheLogitsOfAPrefill) {
  FakeModel model({.vocab_size = 7});
  const SpeculativeOptions options{
      .max_new_tokens = 15, .draft_tokens = 4, .adapts = false, .sampling = {.temperature = 0.9f}};
  const Tokens prompt{1, 2, 3};
  const Tokens want = speculative_decode(NoDraft{}, model, prompt, options).tokens;
  PromptLookup lookup({.min_match = 1});
  FakeCache cache(1, 100);
  SpeculativeDecoder decoder(model, cache, lookup, options);
  decoder.append(prompt);
  EXPECT_TRUE(decoder.prefill());
  EXPECT_EQ(cache.length(0), 3);
  EXPECT_TRUE(std::equal(decoder.logits().data(), decoder.logits().data() + 7,
                         model.logits(prompt).begin()));
  const int passes = model.num_passes;
  EXPECT_EQ(decoder.step().size(), 1u);
  EXPECT_EQ(model.num_passes, passes) << "the prompt was evaluated again";
  while (decoder.end() == SpeculativeEnd::kNone) decoder.step();
  EXPECT_EQ(Tokens(decoder.tokens().begin() + 3, decoder.tokens().end()), want);
  // With what is cached as a whole, too: as after an end token.
  EXPECT_TRUE(decoder.prefill());
  decoder.append({}, 1);
  cache.truncate(0, 10);
  EXPECT_TRUE(decoder.prefill());
  EXPECT_TRUE(decoder.prefill());
  EXPECT_EQ(decoder.step().size(), 1u);
  FakeCache small(1, 2);
  SpeculativeDecoder full(model, small, lookup, options);
  full.append(prompt);
  EXPECT_FALSE(full.prefill());
  EXPECT_EQ(full.end(), SpeculativeEnd::kCacheFull);
}

TEST(SpeculativeDecoder, MayGoOnAfterEndTokens) {
  FakeModel model({.vocab_size = 4});
  SpeculativeOptions options{.max_new_tokens = 30,
                             .sampling = {.temperature = 1.0f, .min_tokens = 3, .end_tokens = {1}}};
  PromptLookup lookup({.min_match = 1});
  EXPECT_EQ(speculative_decode(lookup, model, Tokens{2}, options).end, SpeculativeEnd::kEndToken);
  options.ends_at_end_tokens = false;
  const Tokens tokens = speculative_decode(lookup, model, Tokens{2}, options).tokens;
  EXPECT_EQ(tokens.size(), 30u);
  EXPECT_GE(std::find(tokens.begin(), tokens.end(), 1) - tokens.begin(), 3);
  EXPECT_NE(std::find(tokens.begin(), tokens.end(), 1), tokens.end());

  // A text that has ended may be asked for more.
  options.ends_at_end_tokens = true;
  FakeCache cache(1, 100);
  SpeculativeDecoder decoder(model, cache, lookup, options);
  decoder.append(Tokens{2});
  for (int i = 0; i < 3; ++i) {
    while (decoder.end() == SpeculativeEnd::kNone) decoder.step();
    EXPECT_EQ(decoder.end(), SpeculativeEnd::kEndToken);
    decoder.append({});
  }
}

TEST(SpeculativeDecoder, EvaluatesLongPromptsInChunks) {
  FakeModel model({.vocab_size = 11});
  std::mt19937 rng(3);
  for (int size : {511, 512, 513, 517, 1024, 1500}) {
    SCOPED_TRACE(size);
    const Tokens prompt = random_tokens(rng, 11, size);
    PromptLookup lookup({.min_match = 1});
    expect_as_plain(model, lookup, prompt,
                    {.max_new_tokens = 20, .sampling = {.temperature = 0.5f}});
  }
}

TEST(SpeculativeDecoder, DecodesOneSequenceOfSeveralInACache) {
  FakeModel model({.vocab_size = 7});
  FakeCache cache(3, 100);
  const SpeculativeOptions options{.max_new_tokens = 20, .sampling = {.temperature = 1.0f}};
  PromptLookup a({.min_match = 1}), b({.min_match = 1});
  SpeculativeDecoder first(model, cache, a, options, 2), second(model, cache, b, options, 0);
  first.append(Tokens{1, 2});
  second.append(Tokens{3});
  while (first.end() == SpeculativeEnd::kNone || second.end() == SpeculativeEnd::kNone) {
    first.step();
    second.step();
  }
  const auto alone = [&](const Tokens& prompt) {
    Tokens text = prompt;
    for (const TokenId t : speculative_decode(NoDraft{}, model, prompt, options).tokens) {
      text.push_back(t);
    }
    return text;
  };
  EXPECT_EQ(first.tokens(), alone({1, 2}));
  EXPECT_EQ(second.tokens(), alone({3}));
  EXPECT_EQ(cache.length(1), 0);
}

TEST(SpeculativeDecoder, AllocatesNothingPerRoundAfterTheFirst) {
  FakeModel model({.vocab_size = 16}), small({.vocab_size = 16, .noise = 0.5f});
  DraftModel source(small, model);
  FakeCache cache(1, 4096);
  ASSERT_TRUE(cache.reserve(0, 2000));  // the fake grows, real caches do not
  ASSERT_TRUE(cache.reserve(0, 2000));
  SpeculativeDecoder decoder(
      model, cache, source,
      {.max_new_tokens = 1000, .adapts = false, .sampling = {.temperature = 0.8f, .top_p = 0.9f}});
  decoder.append(Tokens{1, 2, 3});
  std::size_t before = 0;
  std::int64_t num_rounds_without = 0, num_rounds = 0;
  while (decoder.end() == SpeculativeEnd::kNone) {
    before = support::num_allocations();
    decoder.step();
    num_rounds_without += support::num_allocations() == before ? 1 : 0;
    ++num_rounds;
  }
  // Texts of tokens grow by doubling: few rounds allocate for that.
  EXPECT_GE(num_rounds_without, num_rounds - 60) << num_rounds;
  EXPECT_GT(num_rounds, 200);
}

// ---- Wrong use and failures

TEST(SpeculativeDecoder, RefusesOptionsAndDraftsOutOfRange) {
  FakeModel model;
  FakeCache cache(1, 100);
  NoDraft none;
  const auto make = [&](const SpeculativeOptions& options) {
    SpeculativeDecoder decoder(model, cache, none, options);
  };
  expect_error(ErrorCode::kArgument, "max_new_tokens must be at least 0, got -1",
               [&] { make({.max_new_tokens = -1}); });
  expect_error(ErrorCode::kArgument, "draft_tokens must be in [0, 64], got 65",
               [&] { make({.draft_tokens = 65}); });
  expect_error(ErrorCode::kArgument, "draft_tokens must be in [0, 64], got -1",
               [&] { make({.draft_tokens = -1}); });
  expect_error(ErrorCode::kArgument, "temperature",
               [&] { make({.sampling = {.temperature = -1.0f}}); });
  expect_error(ErrorCode::kArgument, "at least one token, got none",
               [&] { speculative_decode(none, model, Tokens{}, {}); });

  struct Wrong {
    void propose(const DraftContext&, Draft& draft) const { draft = what; }
    Draft what;
  };
  const auto propose = [&](const Draft& draft) {
    speculative_decode(Wrong{draft}, model, Tokens{1}, 10, 2);
  };
  expect_error(ErrorCode::kArgument, "drafted tokens must be in [0, 4), got 4", [&] {
    propose({{1, 4}, {}});
  });
  expect_error(ErrorCode::kArgument, "drafted tokens must be in [0, 4), got -1", [&] {
    propose({{-1}, {}});
  });
  expect_error(ErrorCode::kArgument, "at most 2 tokens, got 3", [&] { propose({{1, 1, 1}, {}}); });
  expect_error(ErrorCode::kShape, "no probabilities or 8, got 3", [&] {
    propose({{1, 1}, {0.5, 0.5, 0}});
  });
}

TEST(SpeculativeDecoder, SaysThatAPromptIsLongerThanTheCache) {
  FakeModel model({.max_seq_len = 10});
  const auto result = speculative_decode(NoDraft{}, model, Tokens(11, 1), {});
  EXPECT_EQ(result.end, SpeculativeEnd::kCacheFull);
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(speculative_decode(NoDraft{}, model, Tokens(10, 1), {}).tokens.size(), 1u);
}

TEST(SpeculativeDecoder, GoesOnAfterAnError) {
  FakeModel model({.vocab_size = 7});
  const Tokens prompt = {1, 2, 3};
  SpeculativeOptions options{.max_new_tokens = 40,
                             .draft_tokens = 6,
                             .adapts = false,
                             .sampling = {.temperature = 1.0f, .seed = 1}};
  const Tokens want = speculative_decode(NoDraft{}, model, prompt, options).tokens;
  Tokens text = prompt;
  text.insert(text.end(), want.begin(), want.end());
  OracleDraft oracle{text};
  int num_calls = 0;
  options.on_token = [&](const SpeculativeToken&) {
    if (++num_calls % 4 == 0) throw std::runtime_error("no more");
    return true;
  };
  FakeCache cache(1, 100);
  SpeculativeDecoder decoder(model, cache, oracle, options);
  decoder.append(prompt);
  int num_errors = 0;
  while (decoder.end() == SpeculativeEnd::kNone) {
    try {
      decoder.step();
    } catch (const std::runtime_error&) {
      ++num_errors;
    }
  }
  EXPECT_EQ(decoder.tokens(), text);
  EXPECT_EQ(num_errors, 10);
}

TEST(SpeculativeDecode, IsOneCallForModelsAndSources) {
  FakeModel target({.vocab_size = 6}), draft({.vocab_size = 6, .noise = 0.2f});
  const Tokens prompt = {1, 2, 3};
  const SpeculativeResult plain = speculative_decode(NoDraft{}, target, prompt, 50, 0);
  EXPECT_EQ(plain.tokens.size(), 50u);
  EXPECT_EQ(plain.end, SpeculativeEnd::kLength);
  const SpeculativeResult result = speculative_decode(draft, target, prompt, 50, 4);
  EXPECT_EQ(result.tokens, plain.tokens);
  EXPECT_GT(result.stats.acceptance_rate, 0.3);
  EXPECT_LT(result.stats.num_rounds, 35);
  const auto looked_up =
      speculative_decode(PromptLookup{}, target, prompt, {.max_new_tokens = 50, .draft_tokens = 5});
  EXPECT_EQ(looked_up.tokens, plain.tokens);
}

}  // namespace
