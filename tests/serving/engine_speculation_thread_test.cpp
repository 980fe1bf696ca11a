// SPDX-License-Identifier: MIT
// Engines that speculate, used by many threads at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "kvick/serving/engine.hpp"
#include "serving/random_requests.hpp"
#include "serving/toy_draft.hpp"
#include "support/toy_model.hpp"

namespace {

using namespace kvick;
using support::ToyDraft;
using support::ToyModel;

/// Sends all its requests at once, cancels some, and compares the results.
void use(Engine<ToyModel>& engine, const ToyModel& model, std::uint64_t seed, int num_requests) {
  PhiloxStream random(seed);
  std::vector<GenerationRequest> requests;
  std::vector<GenerationHandle> handles;
  for (int i = 0; i < num_requests; ++i) {
    GenerationRequest request = support::random_request(random, model.vocab_size());
    support::speculate_at_random(random, request.options);
    requests.push_back(request);
    handles.push_back(engine.submit(std::move(request)));
    if (i % 4 == 2) handles.back().cancel();
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    int sample = 0;
    for (const Generation& generation : handles[i].results()) {
      const auto want = support::lone_tokens(model, requests[i], sample++);
      if (generation.finish_reason == FinishReason::kCancelled) {
        EXPECT_LE(generation.tokens.size(), want.size());
      } else {
        EXPECT_EQ(generation.tokens, want) << "seed " << seed << ", request " << i;
      }
    }
  }
}

TEST(EngineSpeculationThreads, GiveEachRequestTheTokensOfItsLonePlainRun) {
  constexpr int kNumThreads = 6, kNumRequests = 48;
  ToyModel model;
  ToyDraft draft(2);
  Engine engine(model, {.scheduler = {.max_batch_size = 16,
                                      .max_seq_len = 160,
                                      .max_num_batched_tokens = 48,
                                      .watermark = 0.0},
                        .cache = {.num_blocks = 11, .block_tokens = 16},
                        .speculation = {.kind = DraftKind::kModel},
                        .draft_model = draft});
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumThreads; ++i) {
    threads.emplace_back(
        [&, i] { use(engine, model, 300 + static_cast<std::uint64_t>(i), kNumRequests); });
  }
  for (std::thread& thread : threads) thread.join();
  engine.drain();
  const EngineMetrics metrics = engine.metrics();
  EXPECT_GT(metrics.num_accepted_tokens, 100);
  EXPECT_GE(metrics.num_draft_tokens, metrics.num_accepted_tokens);
  EXPECT_EQ(metrics.num_running + metrics.num_waiting, 0);
  EXPECT_EQ(metrics.cache_usage, 0.0);
}

}  // namespace
