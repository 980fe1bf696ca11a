// SPDX-License-Identifier: MIT
// Engines used by many threads at once.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvick/serving/engine.hpp"
#include "serving/random_requests.hpp"
#include "support/tiny_model.hpp"
#include "support/toy_model.hpp"

namespace {

using namespace kvick;
using support::lone_tokens;
using support::random_request;
using support::ToyModel;

GenerationRequest request_of(std::vector<TokenId> prompt, int max_new_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.options.max_new_tokens = max_new_tokens;
  return request;
}

/// A toy model that waits in a step until it may go on.
struct GatedModel : ToyModel {
  std::mutex gate;
  void forward(const Batch& batch, Cache& cache, MatrixRef logits) {
    const std::scoped_lock lock(gate);
    ToyModel::forward(batch, cache, logits);
  }
};

/// What one thread does with its requests, all at once: wait, read, be called, or cancel.
void use(Engine<ToyModel>& engine, const ToyModel& model, std::uint64_t seed, int num_requests) {
  PhiloxStream random(seed);
  std::vector<GenerationRequest> requests;
  std::vector<GenerationHandle> handles;
  std::vector<std::vector<TokenId>> called(static_cast<std::size_t>(num_requests));
  for (int i = 0; i < num_requests; ++i) {
    GenerationRequest request = random_request(random, model.vocab_size());
    if (i % 4 == 1) {
      request.options.num_samples = 1;
      request.on_token = [&tokens = called[static_cast<std::size_t>(i)]](const Token& token) {
        tokens.push_back(token.id);
      };
    }
    requests.push_back(request);
    handles.push_back(engine.submit(std::move(request)));
    if (i % 4 == 2) handles.back().cancel();
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    std::vector<std::vector<TokenId>> read(3);
    if (i % 4 == 3) {
      while (const auto token = handles[i].next()) {
        read[static_cast<std::size_t>(token->sample)].push_back(token->id);
      }
    }
    int sample = 0;
    for (const Generation& generation : handles[i].results()) {
      const auto want = lone_tokens(model, requests[i], sample);
      if (generation.finish_reason == FinishReason::kCancelled) {
        EXPECT_EQ(i % 4, 2u);
        EXPECT_LE(generation.tokens.size(), want.size());
      } else {
        EXPECT_EQ(generation.tokens, want) << "seed " << seed << ", request " << i;
      }
      if (i % 4 == 1) {
        EXPECT_EQ(called[i], want);
      }
      if (i % 4 == 3) {
        EXPECT_EQ(read[static_cast<std::size_t>(sample)], want);
      }
      ++sample;
    }
  }
}

TEST(EngineThreads, GiveEachRequestTheTokensOfItsLoneRun) {
  constexpr int kNumThreads = 8, kNumRequests = 64;
  ToyModel model;
  Engine engine(model, {.scheduler = {.max_batch_size = 16,
                                      .max_seq_len = 160,
                                      .max_num_batched_tokens = 32,
                                      .watermark = 0.0},
                        .cache = {.num_blocks = 11, .block_tokens = 16}});
  std::vector<std::thread> threads;
  std::atomic<bool> is_over = false;
  std::thread watcher([&] {
    while (!is_over) {
      EXPECT_LE(engine.metrics().num_running, 16);
      EXPECT_FALSE(engine.metrics_prometheus().empty());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (int i = 0; i < kNumThreads; ++i) {
    threads.emplace_back(
        [&, i] { use(engine, model, 100 + static_cast<std::uint64_t>(i), kNumRequests); });
  }
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  watcher.join();
  const EngineMetrics metrics = engine.metrics();
  std::int64_t num_ended = 0;
  for (const std::int64_t count : metrics.num_finished_by) num_ended += count;
  EXPECT_EQ(num_ended, metrics.num_added);
  EXPECT_GE(num_ended, kNumThreads * kNumRequests);
  EXPECT_GT(metrics.num_preemptions, 100);
  EXPECT_EQ(metrics.num_running + metrics.num_waiting, 0);
  EXPECT_EQ(metrics.cache_usage, 0.0);
}

TEST(EngineThreads, DrainToTheLastTokenAndRefuseWhatComesAfter) {
  ToyModel model;
  Engine engine(model);
  std::vector<GenerationHandle> handles;
  for (int i = 0; i < 40; ++i) handles.push_back(engine.submit(request_of({i}, 50)));
  engine.drain();
  for (int i = 0; i < 40; ++i) {
    const auto& handle = handles[static_cast<std::size_t>(i)];
    ASSERT_TRUE(handle.is_done());
    EXPECT_EQ(handle.result().tokens, model.generate(std::vector<TokenId>{i}, 50, {}));
  }
  auto late = engine.submit(request_of({1}, 5));
  ASSERT_TRUE(late.is_done());
  EXPECT_EQ(late.result().finish_reason, FinishReason::kRejected);
  EXPECT_EQ(late.result().error, "the engine must not be closed to take a request");
}

TEST(EngineThreads, ShutDownWakesEveryoneWhoWaits) {
  GatedModel model;
  std::unique_lock closed_gate(model.gate);
  Engine<GatedModel> engine(model);
  auto running = engine.submit(request_of({1}, 500));
  auto queued = engine.submit(request_of({2}, 500));
  EXPECT_FALSE(running.wait_for(std::chrono::milliseconds(5)));
  std::thread reader([&] {
    while (running.next()) {
    }
  });
  std::thread waiter([&] { queued.wait(); });
  std::thread stopper([&] { engine.shutdown(); });
  closed_gate.unlock();
  for (std::thread* thread : {&reader, &waiter, &stopper}) thread->join();
  EXPECT_TRUE(running.is_done());
  EXPECT_TRUE(queued.is_done());
  engine.shutdown();
  EXPECT_EQ(engine.submit(request_of({1}, 5)).result().finish_reason, FinishReason::kRejected);
}

TEST(EngineThreads, ADeafReaderHoldsNobodyUp) {
  ToyModel model;
  Engine engine(model);
  auto unread = engine.submit(request_of({1}, 400));
  auto read = engine.submit(request_of({2}, 400));
  int num_read = 0;
  while (read.next()) ++num_read;
  EXPECT_EQ(num_read, 400);
  EXPECT_EQ(unread.result().tokens.size(), 400u);
}

TEST(EngineThreads, MaySubmitFromOnToken) {
  ToyModel model;
  Engine engine(model);
  GenerationHandle inner;
  GenerationRequest outer = request_of({1}, 3);
  outer.on_token = [&](const Token& token) {
    if (token.index == 0) inner = engine.submit(request_of({2}, 4));
  };
  engine.submit(outer).wait();
  EXPECT_EQ(inner.result().tokens, model.generate(std::vector<TokenId>{2}, 4, {}));
}

TEST(EngineThreads, RunMoreRequestsThanMayWait) {
  ToyModel model;
  Engine engine(model, {.scheduler = {.max_batch_size = 2, .max_waiting_requests = 1}});
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 20; ++i) requests.push_back(request_of({i}, 5));
  const auto generations = engine.run(requests);
  ASSERT_EQ(generations.size(), 20u);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(generations[static_cast<std::size_t>(i)].tokens,
              model.generate(std::vector<TokenId>{i}, 5, {}));
  }
  requests[7].options.max_new_tokens = 0;
  EXPECT_THROW(engine.run(requests), Error);
  EXPECT_EQ(engine.run(request_of({3}, 5)).tokens, model.generate(std::vector<TokenId>{3}, 5, {}));
}

TEST(EngineThreads, GenerateTextsInTheirOrder) {
  ToyModel model({.vocab_size = 29});
  const Tokenizer tokenizer(support::TinyModel({.vocab_size = 29, .tokenizer = true}).file());
  Engine engine(model, tokenizer);
  const GenerateOptions options{.max_new_tokens = 12, .ignores_end_tokens = true};
  const auto texts = engine.generate({"abc", "xyz", "abc"}, options);
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0], engine.generate("abc", options));
  EXPECT_EQ(texts[1], engine.generate("xyz", options));
  EXPECT_EQ(texts[2], texts[0]);
  EXPECT_NE(texts[1], texts[0]);
  EXPECT_THROW(engine.generate("abc", {.temperature = -1.0f}), Error);
}

}  // namespace
