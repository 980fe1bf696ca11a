// SPDX-License-Identifier: MIT
#include "kvick/bench/benchmark.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "bench/fake_model.hpp"
#include "cache/expect_error.hpp"
#include "kvick/model/transformer.hpp"
#include "support/tiny_model.hpp"

namespace kvick {
namespace {

using support::FakeClock;
using support::TimedModel;

const std::vector<std::vector<TokenId>> kPrompts = {{1, 2, 3}, {4, 5, 6, 7}, {8}};

TEST(Benchmark, ReportsTheHandComputedFigures) {
  FakeClock clock;
  TimedModel model(clock, [](const Batch&) { return 0.5; });
  const BenchmarkReport report =
      benchmark(model, kPrompts, {.max_tokens = 4, .num_repetitions = 2}, clock);
  // One after the other, each four passes of half a second.
  EXPECT_EQ(report.throughput(), 2);
  EXPECT_EQ(report.mean_latency(), 2);
  EXPECT_EQ(report.latency_per_token(), 0.5);
  EXPECT_EQ(report.num_prompt_tokens, 8u);
  EXPECT_EQ(report.num_output_tokens, 12u);
  EXPECT_EQ(report.repetitions.size(), 2u);
  EXPECT_EQ(report.repetitions[1].time_to_first_token.mean, 0.5);
  EXPECT_EQ(report.num_checked_tokens, 12u);

  const BenchmarkReport together =
      benchmark(model, kPrompts, {.max_tokens = 4, .batch_size = 3}, clock);
  EXPECT_EQ(together.throughput(), 6);
  EXPECT_EQ(together.mean_latency(), 2);
  EXPECT_EQ(together.digest, report.digest);
}

TEST(Benchmark, HasNoSpeedOfAWrongResult) {
  FakeClock clock;
  TimedModel model(clock, [](const Batch&) { return 0.5; });
  model.is_wrong_in_batches = true;
  const BenchmarkOptions batches{.max_tokens = 4, .batch_size = 3};
  support::expect_error(ErrorCode::kUnsupported, "at output 0 of request 0",
                        [&] { benchmark(model, kPrompts, batches, clock); });
  benchmark(model, kPrompts, {.max_tokens = 4}, clock);  // alone it is right
}

/// A model whose cache has no more than a LanguageModel's must.
class PlainModel : public TimedModel {
 public:
  class Cache : public support::TimedCache {
   public:
    using TimedCache::TimedCache;
    int num_sequences() const = delete;
  };
  using TimedModel::TimedModel;
  Cache make_cache(const CacheOptions& options) const { return Cache(options); }
};

TEST(Benchmark, TakesAnyLanguageModel) {
  static_assert(!SequenceRoom<PlainModel::Cache>);
  FakeClock clock;
  PlainModel model(clock, [](const Batch&) { return 0.5; });
  const BenchmarkReport report =
      benchmark(model, kPrompts, {.max_tokens = 4, .batch_size = 3}, clock);
  EXPECT_EQ(report.throughput(), 6);
  EXPECT_EQ(report.num_checked_tokens, 12u);
}

TEST(Benchmark, IgnoresWhatWouldEndATextEarly) {
  FakeClock clock;
  TimedModel model(clock, [](const Batch&) { return 0.5; });
  const BenchmarkOptions plain{.max_tokens = 20};
  BenchmarkOptions ending = plain;
  for (TokenId token = 0; token < 40; ++token) ending.sampling.end_tokens.push_back(token);
  ending.sampling.min_tokens = 10;
  EXPECT_EQ(benchmark(model, kPrompts, ending, clock).digest,
            benchmark(model, kPrompts, plain, clock).digest);
}

TEST(CheckOutputs, FindsASingleWrongTokenAndStopsWhereItIsTold) {
  FakeClock clock;
  TimedModel model(clock, [](const Batch&) { return 0.5; });
  BenchmarkReport report = benchmark(model, kPrompts, {.max_tokens = 200}, clock);
  Workload workload;
  for (const auto& prompt : kPrompts) workload.requests.push_back({.prompt = prompt});
  EXPECT_EQ(check_outputs(model, workload, report.outputs), 600u);
  EXPECT_EQ(check_outputs(model, workload, report.outputs, {.max_tokens = 204}), 400u);
  for (const std::size_t at : {0u, 1u, 125u, 127u, 128u, 199u}) {
    auto outputs = report.outputs;
    outputs[1][at] = (outputs[1][at] + 1) % 50;
    const std::string place = "at output " + std::to_string(at) + " of request 1";
    support::expect_error(ErrorCode::kUnsupported, place,
                          [&] { check_outputs(model, workload, outputs); });
  }
}

TEST(Benchmark, MeasuresARealModelFromText) {
  support::TinyModelOptions options;
  options.vocab_size = 29;
  options.tokenizer = true;
  Transformer model(support::TinyModel(options).file(), {.threads = 2});
  const Tokenizer tokenizer(model.file());
  const std::vector<std::string> prompts = {"abc", "b", "hello"};
  const BenchmarkReport alone = benchmark(model, tokenizer, prompts, {.max_tokens = 20});
  const BenchmarkReport batch =
      benchmark(model, tokenizer, prompts, {.max_tokens = 20, .batch_size = 3});
  EXPECT_EQ(alone.digest, batch.digest);
  EXPECT_EQ(alone.num_checked_tokens, 60u);
  EXPECT_EQ(alone.num_threads, 2);
  EXPECT_GT(alone.throughput(), 0);
  std::ostringstream text;
  text << batch;
  for (const char* part : {"throughput", "tokens/s", "mean latency", "latency per token", "TTFT",
                           "ITL", "peak memory", batch.digest.c_str()}) {
    EXPECT_NE(text.str().find(part), std::string::npos) << part << "\n" << text.str();
  }
}

TEST(Benchmark, RefusesOptionsOutOfRange) {
  FakeClock clock;
  TimedModel model(clock, [](const Batch&) { return 0.5; });
  support::expect_error(ErrorCode::kArgument, "prompts",
                        [&] { benchmark(model, std::vector<std::vector<TokenId>>(), {}, clock); });
  support::expect_error(ErrorCode::kArgument, "got 0, 1 and 3",
                        [&] { benchmark(model, kPrompts, {.max_tokens = 0}, clock); });
}

TEST(OutputDigest, IsTheOneOfTheBytes) {
  // FNV-1a of nothing, and of 16 bytes: a count of 2, then 1 and -1.
  EXPECT_EQ(OutputDigest().text(), "cbf29ce484222325");
  OutputDigest digest;
  digest.add(std::vector<TokenId>{1, -1});
  std::uint64_t expected = 0xcbf29ce484222325;
  for (const int byte : {2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255}) {
    expected = (expected ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
  }
  EXPECT_EQ(digest.value(), expected);
}

TEST(OutputDigest, TellsApartWhatDiffers) {
  using Outputs = std::vector<std::vector<TokenId>>;
  const std::string digest = digest_of(Outputs{{1, 2}, {3}});
  EXPECT_NE(digest, digest_of(Outputs{{1}, {2, 3}}));
  EXPECT_NE(digest, digest_of(Outputs{{2, 1}, {3}}));
  EXPECT_NE(digest, digest_of(Outputs{{1, 2}, {3}, {}}));
  EXPECT_EQ(digest, digest_of(Outputs{{1, 2}, {3}}));
  OutputDigest zero, minus_zero;
  zero.add(std::vector<float>{0.0f});
  minus_zero.add(std::vector<float>{-0.0f});
  EXPECT_NE(zero.value(), minus_zero.value());
}

}  // namespace
}  // namespace kvick
