// SPDX-License-Identifier: MIT
// Engines without threads: what requests generate must be what each generates alone.
#include "kvick/serving/engine_core.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

#include "serving/random_requests.hpp"
#include "support/tiny_model.hpp"
#include "support/toy_model.hpp"

namespace {

using namespace kvick;
using support::lone_tokens;
using support::random_request;
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

/// The tokens of a request with the defaults alone.
std::vector<TokenId> greedy(const ToyModel& model, const std::vector<TokenId>& prompt, int count) {
  return model.generate(prompt, count, {});
}

void expect_all_blocks_back(const ToyModel::Cache& cache) {
  const BlockStatistics blocks = cache.statistics();
  EXPECT_EQ(blocks.num_used, 0);
  EXPECT_EQ(blocks.num_cached + blocks.num_empty, blocks.num_blocks);
}

// ---- Equal to lone runs

class EngineCoreOfBatchSize : public ::testing::TestWithParam<int> {};

TEST_P(EngineCoreOfBatchSize, GivesEachRequestTheTokensOfItsLoneRun) {
  constexpr int kNumRequests = 800;
  constexpr int kNumBlocks = 11;  // of 16 tokens: the longest request takes ten
  ToyModel model;
  const int batch_size = GetParam();
  Core core(model, {.scheduler = {.max_batch_size = batch_size,
                                  .max_seq_len = 160,
                                  .max_num_batched_tokens = std::max(24, batch_size),
                                  .watermark = 0.0},
                    .cache = {.num_blocks = kNumBlocks, .block_tokens = 16}});
  const auto seed = static_cast<std::uint64_t>(batch_size);
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  PhiloxStream random(seed);

  std::vector<GenerationRequest> requests;
  std::vector<GenerationHandle> handles;
  bool goes_on = true;
  while (goes_on || requests.size() < kNumRequests) {
    while (requests.size() < kNumRequests && random.next_below(3) == 0) {
      requests.push_back(random_request(random, model.vocab_size()));
      handles.push_back(core.submit(requests.back()));
    }
    if (!handles.empty() && random.next_below(20) == 0) {
      handles[random.next_below(static_cast<std::uint32_t>(handles.size()))].cancel();
    }
    goes_on = core.step();
    const BlockStatistics blocks = core.cache().statistics();
    ASSERT_EQ(blocks.num_used + blocks.num_cached + blocks.num_empty, kNumBlocks);
    ASSERT_LE(core.metrics().num_running, batch_size);
    ASSERT_LE(core.metrics().num_step_tokens, std::max(24, batch_size));
  }

  int num_samples = 0, num_ended = 0, num_cancelled = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(handles[i].is_done());
    int sample = 0;
    for (const Generation& generation : handles[i].results()) {
      const auto want = lone_tokens(model, requests[i], sample++);
      ++num_samples;
      if (generation.finish_reason == FinishReason::kCancelled) {
        ++num_cancelled;
        ASSERT_LE(generation.tokens.size(), want.size());
        ASSERT_TRUE(std::equal(generation.tokens.begin(), generation.tokens.end(), want.begin()));
        continue;
      }
      ASSERT_EQ(generation.tokens, want) << "request " << i << " sample " << sample - 1;
      const bool is_whole =
          want.size() == static_cast<std::size_t>(requests[i].options.max_new_tokens);
      ASSERT_EQ(generation.finish_reason, is_whole ? FinishReason::kLength : FinishReason::kStop);
    }
  }
  const EngineMetrics metrics = core.metrics();
  for (const std::int64_t count : metrics.num_finished_by) num_ended += static_cast<int>(count);
  EXPECT_EQ(num_ended, num_samples) << "every sample ends once";
  EXPECT_GT(num_cancelled, 0);
  EXPECT_EQ(metrics.num_running + metrics.num_waiting, 0);
  if (batch_size >= 8) {
    EXPECT_GT(metrics.num_preemptions, 200);
  }
  if (batch_size > 1) {
    EXPECT_GT(metrics.num_cached_tokens, 0);
  }
  expect_all_blocks_back(core.cache());
}

INSTANTIATE_TEST_SUITE_P(Sequences, EngineCoreOfBatchSize, ::testing::Values(1, 2, 8, 32),
                         ::testing::PrintToStringParamName());

// ---- A model of one's own, over a cache that knows no blocks

/// The next token is 1 + all so far, of which the cache keeps the sum; modulo the vocabulary.
struct SumModel {
  struct Cache {
    std::vector<std::vector<int>> sums;  // [sequences][positions]
    int num_sequences() const { return static_cast<int>(sums.size()); }
    int max_seq_len() const { return 64; }
    int length(int s) const {
      return static_cast<int>(sums.at(static_cast<std::size_t>(s)).size());
    }
    bool reserve(int s, int count) { return length(s) + count <= max_seq_len(); }
    void commit(int s, std::span<const TokenId> tokens) {
      auto& sum = sums[static_cast<std::size_t>(s)];
      for (const TokenId token : tokens) sum.push_back((sum.empty() ? 0 : sum.back()) + token);
    }
    void truncate(int s, int count) {
      sums[static_cast<std::size_t>(s)].resize(static_cast<std::size_t>(count));
    }
    void release(int s) { truncate(s, 0); }
  };
  int vocab_size() const { return 10; }
  int max_seq_len() const { return 64; }
  Cache make_cache(const CacheOptions& options) const {
    return {std::vector<std::vector<int>>(static_cast<std::size_t>(options.num_sequences))};
  }
  void forward(const Batch& batch, Cache& cache, MatrixRef logits) {
    Index row = 0;
    for (const Segment& segment : batch.segments()) {
      const auto& before = cache.sums[static_cast<std::size_t>(segment.sequence)];
      int sum = before.empty() ? 1 : 1 + before.back();
      for (const TokenId token : segment.tokens) sum += token;
      if (segment.num_logits == 0) continue;
      logits.row(row).setZero();
      logits(row++, sum % 10) = 1.0f;
    }
  }
};

TEST(EngineCore, RunsAModelOfAFewLines) {
  SumModel model;
  EngineCore core(model, {.scheduler = {.max_batch_size = 2, .max_num_batched_tokens = 3}});
  auto first = core.submit(request_of({1, 2, 3, 4}, {.max_new_tokens = 4}));
  auto second = core.submit(request_of({9}, {.max_new_tokens = 3}));
  auto third = core.submit(request_of({5, 5}, {.max_new_tokens = 2}));
  run_to_end(core);
  EXPECT_EQ(first.result().tokens, (std::vector<TokenId>{1, 2, 4, 8}));
  EXPECT_EQ(second.result().tokens, (std::vector<TokenId>{0, 0, 0}));
  EXPECT_EQ(third.result().tokens, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(core.metrics().cache_usage, 0.0);
}

// ---- Ends

/// A toy model whose tokens are characters, </s> among them.
class EngineCoreWithText : public ::testing::Test {
 protected:
  static constexpr int kVocabSize = 29;  // <unk>, <s>, </s>, a ... z

  GenerationHandle run(GenerationRequest request) {
    auto handle = core_.submit(std::move(request));
    run_to_end(core_);
    return handle;
  }

  /// What `prompt` goes on with, without end tokens.
  Generation whole(int count) {
    return run(request_of(prompt_, {.max_new_tokens = count, .ignores_end_tokens = true})).result();
  }

  std::vector<TokenId> prompt_ = {5, 6, 7};
  ToyModel model_{{.vocab_size = kVocabSize}};
  Core core_{model_,
             Tokenizer(support::TinyModel({.vocab_size = kVocabSize, .tokenizer = true}).file())};
};

TEST_F(EngineCoreWithText, EndsBeforeAStopStringAcrossTokens) {
  const std::string text = whole(40).text;
  const std::string stop = text.substr(20, 3);
  std::string streamed;
  GenerationRequest request =
      request_of(prompt_, {.max_new_tokens = 40, .stop = {stop}, .ignores_end_tokens = true});
  request.on_token = [&](const Token& token) { streamed += token.text; };
  const Generation got = run(request).result();
  EXPECT_EQ(got.finish_reason, FinishReason::kStop);
  EXPECT_EQ(got.text, text.substr(0, text.find(stop)));
  EXPECT_EQ(streamed, got.text);
}

TEST_F(EngineCoreWithText, FreesWhatItHeldBackAtTheEnd) {
  const std::string text = whole(20).text;
  GenerationRequest request = request_of(prompt_, {.max_new_tokens = 20,
                                                   .stop = {text.substr(text.size() - 2) + "!"},
                                                   .ignores_end_tokens = true});
  auto handle = run(request);
  EXPECT_EQ(handle.result().text, text);
  EXPECT_EQ(handle.result().finish_reason, FinishReason::kLength);
  std::string streamed;
  std::optional<Token> last;
  while (auto token = handle.try_next()) {
    streamed += token->text;
    last = std::move(token);
  }
  EXPECT_EQ(streamed, text);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->id, -1);
  EXPECT_EQ(last->text, text.substr(text.size() - 2));
}

TEST_F(EngineCoreWithText, EndsAtAnEndTokenWhichIsNoPartOfTheResult) {
  constexpr TokenId kEnd = 2;
  const auto all = greedy(model_, prompt_, 200);
  const auto end = std::find(all.begin(), all.end(), kEnd);
  ASSERT_NE(end, all.end());
  const Generation got = run(request_of(prompt_, {.max_new_tokens = 200})).result();
  EXPECT_EQ(got.tokens, std::vector<TokenId>(all.begin(), end));
  EXPECT_EQ(got.finish_reason, FinishReason::kStop);
  EXPECT_EQ(got.metrics.num_generated_tokens, static_cast<int>(got.tokens.size()) + 1);
}

TEST_F(EngineCoreWithText, ChoosesNoEndTokenBeforeMinTokens) {
  const Generation early = run(request_of(prompt_, {.max_new_tokens = 100})).result();
  const int num_tokens = static_cast<int>(early.tokens.size()) + 5;
  const Generation got =
      run(request_of(prompt_, {.max_new_tokens = 100, .min_tokens = num_tokens})).result();
  EXPECT_GE(static_cast<int>(got.tokens.size()), num_tokens);
  EXPECT_TRUE(std::equal(early.tokens.begin(), early.tokens.end(), got.tokens.begin()));
}

TEST_F(EngineCoreWithText, TakesTextAndGivesTextBack) {
  const auto tokens = core_.tokenizer()->encode("abc");
  const Generation of_text = run({.prompt = "abc", .options = {.max_new_tokens = 5}}).result();
  EXPECT_EQ(of_text.tokens, run(request_of(tokens, {.max_new_tokens = 5})).result().tokens);
  EXPECT_EQ(of_text.text, core_.tokenizer()->decode(of_text.tokens, {.continues_text = true}));
}

// ---- Samples, seeds, logprobs

TEST(EngineCore, SharesThePromptAmongSamplesOfSeedsInARow) {
  ToyModel model;
  Core core(model);
  const std::vector<TokenId> prompt(100, 3);
  auto handle = core.submit(
      request_of(prompt, {.max_new_tokens = 20, .temperature = 1.0f, .seed = 7, .num_samples = 4}));
  run_to_end(core);
  ASSERT_EQ(handle.results().size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const auto seed = 7 + static_cast<std::uint64_t>(i);
    EXPECT_EQ(handle.result(i).seed, seed);
    EXPECT_EQ(handle.result(i).tokens,
              model.generate(prompt, 20, {.temperature = 1.0f, .seed = seed}));
  }
  // The prompt once, its last token for each sample, and all but the last of their own tokens.
  EXPECT_LE(core.metrics().num_batched_tokens, 100 + 3 + 4 * 19);
}

TEST(EngineCore, ReportsTheSeedItChose) {
  ToyModel model;
  Core core(model);
  const GenerateOptions options{.max_new_tokens = 30, .temperature = 1.0f};
  auto first = core.submit(request_of({1, 2}, options));
  auto second = core.submit(request_of({1, 2}, options));
  run_to_end(core);
  EXPECT_NE(first.result().seed, second.result().seed);
  EXPECT_EQ(first.result().tokens,
            model.generate(std::vector<TokenId>{1, 2}, 30,
                           {.temperature = 1.0f, .seed = first.result().seed}));
}

TEST(EngineCore, GivesLogprobsOfEachToken) {
  ToyModel model;
  Core core(model);
  auto handle = core.submit(request_of({1, 2}, {.max_new_tokens = 6, .num_logprobs = 3}));
  run_to_end(core);
  const Generation& got = handle.result();
  ASSERT_EQ(got.logprobs.size(), got.tokens.size());
  for (std::size_t i = 0; i < got.tokens.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].chosen.token, got.tokens[i]);
    ASSERT_EQ(got.logprobs[i].top.size(), 3u);
    EXPECT_EQ(got.logprobs[i].top[0].token, got.tokens[i]) << "greedy";
    EXPECT_LT(got.logprobs[i].chosen.logprob, 0.0);
  }
}

// ---- Failures stay where they are

/// A toy model with a fault: NaN after a prompt that begins with kBad, or an exception.
struct FaultyModel : ToyModel {
  static constexpr TokenId kBad = 49;
  std::function<void()> before_forward = [] {};

  void forward(const Batch& batch, Cache& cache, MatrixRef logits) {
    before_forward();
    ToyModel::forward(batch, cache, logits);
    Index row = 0;
    for (const Segment& segment : batch.segments()) {
      for (int i = 0; i < segment.num_logits; ++i, ++row) {
        if (cache.token(segment.sequence, 0) == kBad) {
          logits.row(row).setConstant(std::numeric_limits<float>::quiet_NaN());
        }
      }
    }
  }
};

TEST(EngineCore, EndsOnlyTheRequestThatFails) {
  FaultyModel model;
  EngineCore core(model);
  GenerationRequest throwing = request_of({1, 2, 3}, {.max_new_tokens = 20});
  throwing.on_token = [](const Token& token) {
    if (token.index == 5) throw std::runtime_error("the reader has gone");
  };
  auto good = core.submit(request_of({1, 2, 3}, {.max_new_tokens = 20}));
  auto bad_reader = core.submit(throwing);
  throwing.on_token = [](const Token&) { throw 1; };
  auto strange_reader = core.submit(throwing);
  auto bad_logits = core.submit(request_of({FaultyModel::kBad, 2}, {.max_new_tokens = 20}));
  run_to_end(core);
  EXPECT_EQ(good.result().tokens, greedy(model, {1, 2, 3}, 20));
  EXPECT_EQ(good.result().finish_reason, FinishReason::kLength);
  EXPECT_EQ(bad_reader.result().finish_reason, FinishReason::kError);
  EXPECT_EQ(bad_reader.result().error, "the reader has gone");
  EXPECT_EQ(strange_reader.result().finish_reason, FinishReason::kError);
  EXPECT_EQ(bad_logits.result().finish_reason, FinishReason::kError);
  EXPECT_NE(bad_logits.result().error.find("Sampler::sample"), std::string::npos)
      << bad_logits.result().error;
  expect_all_blocks_back(core.cache());
}

TEST(EngineCore, EndsTheStepThatTheModelFailedAndGoesOn) {
  FaultyModel model;
  EngineCore core(model, {.scheduler = {.max_batch_size = 2}});
  int num_steps = 0;
  model.before_forward = [&] {
    if (++num_steps == 4) throw std::runtime_error("no memory");
  };
  const auto options = GenerateOptions{.max_new_tokens = 10};
  auto first = core.submit(request_of({1}, options));
  auto second = core.submit(request_of({2}, options));
  auto third = core.submit(request_of({3}, options));
  run_to_end(core);
  for (const auto& handle : {first, second}) {
    EXPECT_EQ(handle.result().finish_reason, FinishReason::kError);
    EXPECT_EQ(handle.result().error, "no memory");
    EXPECT_EQ(handle.result().tokens.size(), 3u);
  }
  EXPECT_EQ(third.result().tokens, greedy(model, {3}, 10));
  expect_all_blocks_back(core.cache());
}

TEST(EngineCore, RefusesRequestsThatCannotBeRun) {
  ToyModel model;
  Core core(model, {.scheduler = {.max_seq_len = 64}});
  const auto refused = [&](const GenerationRequest& request) -> std::optional<ErrorCode> {
    try {
      core.submit(request);
    } catch (const Error& error) {
      return error.code();
    }
    return std::nullopt;
  };
  const auto with = [&](GenerateOptions options) { return request_of({1}, std::move(options)); };
  EXPECT_EQ(refused(request_of({})), ErrorCode::kArgument);
  EXPECT_EQ(refused(request_of({50}, {.max_new_tokens = 1})), ErrorCode::kArgument);
  EXPECT_EQ(refused(request_of({-1}, {.max_new_tokens = 1})), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 64})), ErrorCode::kCapacity);
  EXPECT_EQ(refused(with({.max_new_tokens = 0})), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 5, .temperature = -1.0f})), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 5, .logit_bias = {{50, 1.0f}}})), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 5, .stop = {"x"}})), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 5, .stop_tokens = {-2}})), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 5, .num_samples = 0})), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 5, .num_samples = 1 << 30})), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 5, .num_logprobs = -1})), ErrorCode::kArgument);
  GenerationRequest text;
  text.prompt = "text";
  EXPECT_EQ(refused(text), ErrorCode::kArgument);
  EXPECT_EQ(refused(with({.max_new_tokens = 63})), std::nullopt);
}

TEST(EngineCore, RejectsWhatTheQueueHasNoRoomFor) {
  ToyModel model;
  Core core(model, {.scheduler = {
                        .max_batch_size = 1, .max_waiting_requests = 3, .max_waiting_tokens = 20}});
  const auto submit = [&](std::size_t num_tokens) {
    return core.submit(request_of(std::vector<TokenId>(num_tokens, 1), {.max_new_tokens = 5}));
  };
  auto first = submit(2);
  EXPECT_TRUE(core.step());  // it runs now
  auto second = submit(10);
  auto long_one = submit(11);
  ASSERT_TRUE(long_one.is_done());
  EXPECT_EQ(long_one.result().finish_reason, FinishReason::kRejected);
  EXPECT_EQ(long_one.result().error, "at most 20 tokens of prompts may wait, got 11 while 10 wait");
  submit(1);
  submit(1);
  EXPECT_EQ(submit(1).result().error, "at most 3 requests may wait, got 1 while 3 wait");
  EXPECT_EQ(core.metrics().num_rejected, 2);
  run_to_end(core);
  EXPECT_EQ(first.result().tokens.size(), 5u);
  EXPECT_EQ(second.result().tokens.size(), 5u);
  EXPECT_FALSE(submit(11).is_done()) << "the queue is empty again";
}

// ---- Cancellation and time

TEST(EngineCore, CancelsAtAnyMoment) {
  ToyModel model;
  Core core(model, {.scheduler = {.max_batch_size = 2}});
  const auto submit = [&](int num_samples = 1) {
    return core.submit(request_of({1, 2}, {.max_new_tokens = 30, .num_samples = num_samples}));
  };
  auto running = submit();
  auto other = submit();
  auto queued = submit();
  core.step();
  core.step();
  running.cancel();
  queued.cancel();
  core.step();
  EXPECT_TRUE(running.is_done());
  EXPECT_TRUE(queued.is_done());
  EXPECT_EQ(running.result().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(running.result().tokens, greedy(model, {1, 2}, 2)) << "what it has got stays";
  EXPECT_TRUE(queued.result().tokens.empty());
  auto samples = submit(3);
  auto unborn = submit();
  unborn.cancel();
  samples.cancel(1);
  run_to_end(core);
  other.cancel();
  EXPECT_FALSE(core.step());
  EXPECT_EQ(other.result().tokens, greedy(model, {1, 2}, 30));
  EXPECT_EQ(other.result().finish_reason, FinishReason::kLength);
  EXPECT_EQ(unborn.result().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(samples.result(0).finish_reason, FinishReason::kLength);
  EXPECT_EQ(samples.result(1).finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(samples.result(2).finish_reason, FinishReason::kLength);
  EXPECT_EQ(core.metrics().num_finished_by[static_cast<std::size_t>(FinishReason::kCancelled)], 4);
  expect_all_blocks_back(core.cache());
}

/// A toy model whose steps take 10 ms of a clock that stands still otherwise.
struct TimedModel : ToyModel {
  double now_ms = 1000.0;
  void forward(const Batch& batch, Cache& cache, MatrixRef logits) {
    now_ms += 10.0;
    ToyModel::forward(batch, cache, logits);
  }
};

TEST(EngineCore, EndsARequestWhoseTimeIsOver) {
  TimedModel model;
  EngineCore core(model,
                  {.scheduler = {.max_batch_size = 1, .clock_ms = [&] { return model.now_ms; }}});
  auto running = core.submit(request_of({1}, {.max_new_tokens = 50, .timeout_ms = 95.0}));
  auto queued = core.submit(request_of({2}, {.max_new_tokens = 50, .timeout_ms = 25.0}));
  auto patient = core.submit(request_of({3}, {.max_new_tokens = 5}));
  run_to_end(core);
  EXPECT_EQ(running.result().finish_reason, FinishReason::kTimeout);
  EXPECT_EQ(running.result().tokens, greedy(model, {1}, 10));
  EXPECT_EQ(queued.result().finish_reason, FinishReason::kTimeout);
  EXPECT_TRUE(queued.result().tokens.empty());
  EXPECT_EQ(patient.result().finish_reason, FinishReason::kLength);
}

TEST(EngineCore, MeasuresByItsClock) {
  TimedModel model;
  EngineCore core(model, {.scheduler = {.max_batch_size = 1,
                                        .max_num_batched_tokens = 8,
                                        .clock_ms = [&] { return model.now_ms; }},
                          .cache = {.max_seq_len = 100}});
  auto first = core.submit(request_of(std::vector<TokenId>(20, 1), {.max_new_tokens = 4}));
  model.now_ms += 5.0;
  auto second = core.submit(request_of({2}, {.max_new_tokens = 1}));
  run_to_end(core);
  const RequestMetrics& a = first.result().metrics;
  EXPECT_EQ(a.queued_ms, 5.0);
  EXPECT_EQ(a.ttft_ms, 35.0) << "three chunks of 8 tokens";
  EXPECT_EQ(a.itl_ms, (std::vector<float>{10.0f, 10.0f, 10.0f}));
  EXPECT_EQ(a.tpot_ms, 10.0);
  EXPECT_EQ(a.e2el_ms, 65.0);
  EXPECT_EQ(a.num_prompt_tokens, 20);
  EXPECT_EQ(a.num_generated_tokens, 4);
  const RequestMetrics& b = second.result().metrics;
  EXPECT_EQ(b.queued_ms, 60.0);
  EXPECT_EQ(b.ttft_ms, 70.0);
  EXPECT_EQ(b.e2el_ms, 70.0);
  EXPECT_EQ(b.tpot_ms, 0.0);
  const EngineMetrics all = core.metrics();
  EXPECT_EQ(all.num_steps, 7);
  EXPECT_EQ(all.num_batched_tokens, 20 + 3 + 1);
  EXPECT_EQ(all.num_output_tokens, 5);
  EXPECT_EQ(all.ttft_seconds.count(), 2u);
  EXPECT_DOUBLE_EQ(all.ttft_seconds.sum(), 0.105);
  EXPECT_EQ(all.itl_seconds.count(), 3u);
  EXPECT_DOUBLE_EQ(all.busy_seconds, 0.07);
  EXPECT_DOUBLE_EQ(all.uptime_seconds, 0.075);
  EXPECT_EQ(all.num_running, 0);
  EXPECT_EQ(all.cache_usage, 0.0);
}

// ---- Drafts

TEST(EngineCore, GivesTheSameTokensWithDraftsRightOrWrong) {
  ToyModel model;
  const SamplingOptions sampling{
      .temperature = 0.8f, .seed = 3, .repetition_penalty = 1.3f, .penalty_window = -1};
  const std::vector<TokenId> prompt = {4, 5, 6};
  const auto want = model.generate(prompt, 40, sampling);
  for (const int num_right : {0, 1, 3, 100}) {
    SCOPED_TRACE(::testing::Message() << num_right << " right drafts at a time");
    Core core(model);
    GenerationRequest request = request_of(prompt, {.max_new_tokens = 40,
                                                    .temperature = 0.8f,
                                                    .seed = 3,
                                                    .repetition_penalty = 1.3f,
                                                    .penalty_window = -1});
    request.propose_drafts = [&](std::span<const TokenId> tokens, int max_drafts,
                                 std::vector<TokenId>& drafts) {
      const std::size_t begin = tokens.size() - prompt.size();
      for (std::size_t i = begin; i < want.size() && std::cmp_less(drafts.size(), max_drafts);
           ++i) {
        const bool is_right = std::cmp_less(drafts.size(), num_right);
        drafts.push_back(is_right ? want[i] : (want[i] + 1) % 50);
      }
      drafts.push_back(1 << 20);  // no token: the guesses end there
    };
    auto handle = core.submit(request);
    auto neighbour = core.submit(request_of({9}, {.max_new_tokens = 30}));
    run_to_end(core);
    EXPECT_EQ(handle.result().tokens, want);
    EXPECT_EQ(neighbour.result().tokens, greedy(model, {9}, 30));
    const RequestMetrics& metrics = handle.result().metrics;
    EXPECT_GT(metrics.num_draft_tokens, 0);
    if (num_right == 0) {
      EXPECT_EQ(metrics.num_accepted_tokens, 0);
    }
    if (num_right == 100) {
      EXPECT_EQ(metrics.num_accepted_tokens, metrics.num_draft_tokens);
    }
    if (num_right == 3) {
      EXPECT_EQ(metrics.itl_ms.size(), 39u);
    }
    expect_all_blocks_back(core.cache());
  }
}

TEST(EngineCore, EndsARequestWhoseDraftSourceFails) {
  ToyModel model;
  Core core(model);
  GenerationRequest request = request_of({1}, {.max_new_tokens = 9});
  request.propose_drafts = [](auto, int, auto&) { throw std::runtime_error("no draft"); };
  auto bad = core.submit(request);
  auto good = core.submit(request_of({2}, {.max_new_tokens = 9}));
  run_to_end(core);
  EXPECT_EQ(bad.result().finish_reason, FinishReason::kError);
  EXPECT_EQ(bad.result().error, "no draft");
  EXPECT_EQ(good.result().tokens, greedy(model, {2}, 9));
}

// ---- The end of an engine

TEST(EngineCore, CancelsWhatHasNotEndedWhenItGoes) {
  ToyModel model;
  GenerationHandle handle;
  {
    Core core(model);
    handle = core.submit(request_of({1}, {.max_new_tokens = 9}));
    core.step();
  }
  EXPECT_EQ(handle.result().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(handle.result().tokens.size(), 1u);
  handle.cancel();  // of an engine that has gone
}

}  // namespace
