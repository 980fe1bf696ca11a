// SPDX-License-Identifier: MIT
// What a Scheduler is made with, gives and takes.
//
// Units     Times in milliseconds.
// Layer     serving: may include core, cache, model.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/serving/request.hpp"

namespace kvick::inline v0_1 {

struct SchedulerOptions {
  int max_batch_size = 16;  ///< requests that run at once, in slots [0, max_batch_size) of the room
  int max_seq_len = 0;      ///< of prompt and output; 0: the room's
  int max_num_batched_tokens = 512;  ///< per step; at least max_batch_size

  /// A step takes about so long at most while requests decode, by what steps took so far. 0: tokens
  /// alone count.
  double max_step_ms = 0.0;
  /// Of both budgets, what prompts get at least while there are any. In (0, 1].
  double min_prefill_share = 0.25;
  /// Waiting that a step up in priority is worth.
  double ageing_ms = 1000.0;
  /// Share of all blocks that stays free when a request is admitted beside others, beyond a block
  /// for each that may still need one; never more than those may still need. In [0, 1).
  double watermark = 0.01;

  int max_waiting_requests = std::numeric_limits<int>::max();
  std::int64_t max_waiting_tokens = std::numeric_limits<std::int64_t>::max();  ///< of prompts
  double max_waiting_ms = kNoTimeout;  ///< from arrival to the first step
  int vocab_size = 0;  ///< tokens of prompts must be below; 0: they are not looked at

  std::function<double()> clock_ms = {};  ///< never goes back; empty: std::chrono::steady_clock
};

/// Who a segment of a step's batch belongs to, and where its logits are.
struct StepSegment {
  RequestId request = 0;
  int output_index = 0;  ///< of the token that the first row decides: tokens emitted so far
  Index first_row = 0;   ///< of logits
  int num_rows = 0;      ///< 1 + num_drafts, or none in the middle of a prompt
  int num_drafts = 0;    ///< the last tokens of the segment
};

/// What to compute next.
struct Step {
  /// In slots of the room, which has reserved all of it. Valid until the step is completed.
  const Batch& batch;
  /// One for each segment of the batch, in its order. Valid until the next step.
  std::span<const StepSegment> segments;
  std::int64_t number = 0;

  explicit operator bool() const noexcept { return !segments.empty(); }
};

/// What came of a segment.
struct SegmentResult {
  /// Emitted, in order: at least one unless the segment has no rows or `finish` says why. All but
  /// the last must be the segment's drafts.
  std::span<const TokenId> tokens = {};
  /// Ends the request after these tokens.
  std::optional<FinishReason> finish = std::nullopt;
};

struct SchedulerStatistics {
  int num_running = 0;
  int num_waiting = 0;                  ///< preempted ones included
  std::int64_t num_waiting_tokens = 0;  ///< of their prompts
  std::int64_t num_steps = 0;
  std::int64_t num_added = 0;
  std::int64_t num_refused = 0;  ///< by the limits of the queue
  std::int64_t num_finished = 0;
  std::int64_t num_preemptions = 0;
  std::int64_t num_batched_tokens = 0;  ///< computed, of prompts and outputs
  std::int64_t num_prompt_tokens = 0;   ///< of requests that have started
  std::int64_t num_cached_tokens = 0;   ///< of these, found or shared
  std::int64_t num_output_tokens = 0;
  std::int64_t num_draft_rounds = 0;  ///< drafts of one request in one step
  std::int64_t num_draft_tokens = 0;
  std::int64_t num_accepted_tokens = 0;
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// The options, with the room's limits in place of those that were left open.
inline SchedulerOptions checked_options(SchedulerOptions options, int num_slots, int room_seq_len) {
  constexpr std::string_view kOperation = "Scheduler";
  const auto check = [&](bool ok, const auto&... parts) {
    require(ok, ErrorCode::kArgument, kOperation, parts...);
  };
  check(options.max_batch_size >= 1 && options.max_batch_size <= num_slots,
        "max_batch_size must be in [1, ", num_slots, "], the sequences of the cache, got ",
        options.max_batch_size);
  check(options.max_seq_len >= 0 && options.max_seq_len <= room_seq_len,
        "max_seq_len must be at most the cache's ", room_seq_len, ", got ", options.max_seq_len);
  if (options.max_seq_len == 0) options.max_seq_len = room_seq_len;
  check(options.max_num_batched_tokens >= options.max_batch_size,
        "max_num_batched_tokens must be at least max_batch_size = ", options.max_batch_size,
        ", or requests that run would starve each other, got ", options.max_num_batched_tokens);
  check(std::isfinite(options.max_step_ms) && options.max_step_ms >= 0,
        "max_step_ms must be at least 0, got ", options.max_step_ms);
  check(options.min_prefill_share > 0 && options.min_prefill_share <= 1,
        "min_prefill_share must be in (0, 1], got ", options.min_prefill_share);
  check(std::isfinite(options.ageing_ms) && options.ageing_ms >= 0,
        "ageing_ms must be at least 0, got ", options.ageing_ms);
  check(options.watermark >= 0 && options.watermark < 1, "watermark must be in [0, 1), got ",
        options.watermark);
  check(options.max_waiting_requests >= 1, "max_waiting_requests must be at least 1, got ",
        options.max_waiting_requests);
  check(options.max_waiting_tokens >= 1, "max_waiting_tokens must be at least 1, got ",
        options.max_waiting_tokens);
  check(options.max_waiting_ms > 0, "max_waiting_ms must be positive, got ",
        options.max_waiting_ms);
  check(options.vocab_size >= 0, "vocab_size must be at least 0, got ", options.vocab_size);
  return options;
}

inline void check_request(const Request& request, const SchedulerOptions& options,
                          std::string_view operation) {
  const auto check = [&](bool ok, const auto&... parts) {
    require(ok, ErrorCode::kArgument, operation, parts...);
  };
  const auto num_prompt_tokens = static_cast<Index>(request.prompt.size());
  check(num_prompt_tokens > 0, "a prompt must have tokens, got none");
  check(request.max_new_tokens >= 1, "max_new_tokens must be at least 1, got ",
        request.max_new_tokens);
  check(request.min_new_tokens >= 0, "min_new_tokens must be at least 0, got ",
        request.min_new_tokens);
  check(request.num_samples >= 1, "num_samples must be at least 1, got ", request.num_samples);
  check(request.priority >= -kMaxPriority && request.priority <= kMaxPriority,
        "priority must be in [", -kMaxPriority, ", ", kMaxPriority, "], got ", request.priority);
  check(request.timeout_ms > 0, "timeout_ms must be positive, got ", request.timeout_ms);
  require(num_prompt_tokens <= options.max_seq_len &&
              request.max_new_tokens <= options.max_seq_len - num_prompt_tokens,
          ErrorCode::kCapacity, operation,
          "prompt and max_new_tokens must fit max_seq_len = ", options.max_seq_len, ", got ",
          num_prompt_tokens, " + ", request.max_new_tokens, " tokens");
  if (options.vocab_size == 0) return;
  for (const TokenId token : request.prompt) {
    check(token >= 0 && token < options.vocab_size, "tokens must be in [0, ", options.vocab_size,
          "), got ", token);
  }
}

}  // namespace detail

}  // namespace kvick::inline v0_1
