// SPDX-License-Identifier: MIT
// How long drafts are, by a clock that the models move.
#include "kvick/serving/engine_drafts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvick/serving/engine_core.hpp"
#include "serving/toy_draft.hpp"
#include "support/toy_model.hpp"

namespace {

using namespace kvick;
using support::ToyDraft;
using support::ToyModel;

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

struct SimulatedRun {
  double ms = 0;
  EngineMetrics metrics;
};

/// A pass takes `target_ms` or `draft_ms`, and a twentieth of that for each token in it.
SimulatedRun simulate(int batch_size, int num_wrong, double draft_ms, DraftKind kind) {
  double now = 0;
  struct TimedModel : ToyModel {
    double& now;
    explicit TimedModel(double& clock) : now(clock) {}
    void forward(const Batch& batch, Cache& cache, MatrixRef logits) {
      ToyModel::forward(batch, cache, logits);
      now += 100 + 5 * static_cast<double>(batch.num_tokens());
    }
  } model(now);
  ToyDraft draft(num_wrong);
  draft.on_forward = [&](const Batch& batch) {
    now += draft_ms * (1 + 0.05 * static_cast<double>(batch.num_tokens()));
  };
  EngineCore core(model,
                  {.scheduler = {.max_batch_size = batch_size, .clock_ms = [&] { return now; }},
                   .speculation = {.kind = kind, .draft_tokens = 8},
                   .draft_model = draft});
  for (TokenId i = 0; i < batch_size; ++i) core.submit(request_of({i}, {.max_new_tokens = 300}));
  run_to_end(core);
  return {now, core.metrics()};
}

TEST(EngineDrafts, AdaptToWhatDraftsGainAndCost) {
  for (const int batch_size : {1, 8}) {
    SCOPED_TRACE(::testing::Message() << "batch " << batch_size);
    const double plain_ms = simulate(batch_size, 0, 10, DraftKind::kNone).ms;
    const SimulatedRun good = simulate(batch_size, 0, 10, DraftKind::kModel);
    EXPECT_LT(good.ms, plain_ms / 2);
    EXPECT_GT(good.metrics.draft_seconds, 0.0);
    EXPECT_LE(good.metrics.draft_seconds, good.metrics.busy_seconds);
    const SimulatedRun wrong = simulate(batch_size, 8, 10, DraftKind::kModel);
    EXPECT_LT(wrong.ms, plain_ms * 1.05);
    EXPECT_LT(wrong.metrics.num_draft_tokens, batch_size * 60);
    const SimulatedRun dear = simulate(batch_size, 0, 120, DraftKind::kModel);
    EXPECT_LT(dear.ms, plain_ms * 1.05);
  }
}

}  // namespace
