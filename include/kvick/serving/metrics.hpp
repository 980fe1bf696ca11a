// SPDX-License-Identifier: MIT
// What an engine measures, of one request and of all.
//
// Terms are the field's: TTFT, time to first token, from submission to the first new token; ITL,
// inter-token latency, the gap between two; TPOT, time per output token, (E2EL - TTFT) / (new
// tokens - 1); E2EL, end-to-end latency, from submission to the end.
//
// Units     Of one request milliseconds, of the engine seconds, as Prometheus has them.
// Threads   Plain data.
// Layer     serving: may include core, cache, model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvick/core/version.hpp"
#include "kvick/serving/histogram.hpp"
#include "kvick/serving/request.hpp"
#include "kvick/serving/scheduler_types.hpp"

namespace kvick::inline v0_1 {

/// Of one sample of a request. What it did not get to is 0.
struct RequestMetrics {
  double queued_ms = 0.0;  ///< from submission until the first step with a part of it
  double ttft_ms = 0.0;    ///< 0 without tokens
  double tpot_ms = 0.0;    ///< 0 with fewer than two tokens
  double e2el_ms = 0.0;
  std::vector<float> itl_ms{};  ///< of every token after the first

  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;     ///< of the prompt, found in the cache or shared with a sample
  int num_generated_tokens = 0;  ///< with the end token
  int num_draft_rounds = 0;      ///< steps that verified drafts of it
  int num_draft_tokens = 0;      ///< proposed by a draft source and verified
  int num_accepted_tokens = 0;   ///< of these, generated
  int num_preemptions = 0;

  /// Share of drafted tokens that were generated; 0 if there were none.
  double acceptance_rate() const noexcept {
    return num_draft_tokens == 0 ? 0.0
                                 : static_cast<double>(num_accepted_tokens) / num_draft_tokens;
  }
};

/// Of a whole engine, since it was made; what the scheduler counts is as of the last step. Each
/// sample counts as a request.
struct EngineMetrics : SchedulerStatistics {
  double uptime_seconds = 0.0;
  double busy_seconds = 0.0;      ///< spent in steps
  double draft_seconds = 0.0;     ///< of these, in draft sources
  int batch_size = 0;             ///< sequences in the last step
  int num_step_tokens = 0;        ///< tokens in the last step
  double cache_usage = 0.0;       ///< share of the cache that running requests hold, in [0, 1]
  std::int64_t num_rejected = 0;  ///< because the queue was full or the engine is closing
  std::array<std::int64_t, kNumFinishReasons> num_finished_by{};  ///< by FinishReason

  Histogram queued_seconds = Histogram::of_seconds();
  Histogram ttft_seconds = Histogram::of_seconds();
  Histogram itl_seconds = Histogram::of_seconds();
  Histogram tpot_seconds = Histogram::of_seconds();
  Histogram e2el_seconds = Histogram::of_seconds();
  Histogram step_seconds = Histogram::of_seconds();
  Histogram batch_sizes = Histogram::of_counts();
  Histogram step_tokens = Histogram::of_counts();

  /// Share of prompt tokens that were found in the cache.
  double prefix_hit_rate() const noexcept {
    return num_prompt_tokens == 0
               ? 0.0
               : static_cast<double>(num_cached_tokens) / static_cast<double>(num_prompt_tokens);
  }

  /// Share of drafted tokens that were generated.
  double acceptance_rate() const noexcept {
    return num_draft_tokens == 0
               ? 0.0
               : static_cast<double>(num_accepted_tokens) / static_cast<double>(num_draft_tokens);
  }
};

}  // namespace kvick::inline v0_1
