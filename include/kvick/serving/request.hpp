// SPDX-License-Identifier: MIT
// What is asked of a scheduler, and what came of it.
//
// Units     Times in milliseconds of the scheduler's clock, from any origin.
// Layer     serving: may include core, cache.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "kvick/cache/block_pool.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// Given in order of arrival, never twice by one scheduler.
using RequestId = std::int64_t;

inline constexpr double kNoTimeout = std::numeric_limits<double>::infinity();
inline constexpr int kMaxPriority = 100;  ///< bounds how long others can be held up

struct Request {
  std::vector<TokenId> prompt = {};       ///< at least one token
  int max_new_tokens = 128;               ///< at least 1; with the prompt at most max_seq_len
  std::vector<TokenId> stop_tokens = {};  ///< any of them ends the output, as its last token
  int min_new_tokens = 0;                 ///< stop tokens among the first so many end nothing

  /// Continuations of the one prompt, which is computed once. Each is a request of its own with the
  /// same fields; their ids follow one another.
  int num_samples = 1;

  /// In [-kMaxPriority, kMaxPriority]; a step up is worth SchedulerOptions::ageing_ms of waiting.
  int priority = 0;
  double timeout_ms = kNoTimeout;  ///< from arrival until it is ended, wherever it is then
  PrefixKey prefix_key = {};       ///< prefixes are shared with requests of the same key only
};

enum class FinishReason {
  kStop,       ///< a stop token, or what the caller takes for an end
  kLength,     ///< max_new_tokens, or no room for more even alone
  kCancelled,  ///< by the caller
  kTimeout,    ///< timeout_ms or the time limit of the queue
  kError,      ///< the caller could not go on with this one
  kRejected,   ///< never begun: no queue had room for it
};
inline constexpr int kNumFinishReasons = 6;

constexpr std::string_view name(FinishReason reason) noexcept;

/// How far a request is, or how it went. Times are NaN until it is so far.
struct RequestProgress {
  static constexpr double kNotYet = std::numeric_limits<double>::quiet_NaN();

  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;  ///< of the prompt, found in the cache or shared when it first started
  int num_output_tokens = 0;
  int num_draft_rounds = 0;     ///< steps with drafts
  int num_draft_tokens = 0;     ///< computed to be verified
  int num_accepted_tokens = 0;  ///< of those, emitted
  int num_preemptions = 0;
  double arrival_ms = kNotYet;
  double first_step_ms = kNotYet;   ///< the first step with tokens of it: waiting ended
  double first_token_ms = kNotYet;  ///< TTFT ended
  double finish_ms = kNotYet;
};

/// A request that has ended.
struct RequestOutput {
  RequestId id = 0;
  int sample = 0;  ///< index in [0, num_samples)
  FinishReason reason = FinishReason::kStop;
  std::vector<TokenId> tokens = {};  ///< without the prompt
  RequestProgress progress = {};
};

// ---- Implementation: nothing below is API ----

constexpr std::string_view name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kTimeout: return "timeout";
    case FinishReason::kError: return "error";
    case FinishReason::kRejected: return "rejected";
  }
  return "unknown";
}

}  // namespace kvick::inline v0_1
