// SPDX-License-Identifier: MIT
// Continuous batching: which tokens of which requests the next forward pass computes. Policy only,
// no tensors, no threads.
//
//   kvick::Scheduler scheduler({.max_batch_size = 16, .max_num_batched_tokens = 512}, cache);
//   const auto id = scheduler.add_request(kvick::Request{.prompt = tokens, .max_new_tokens = 128});
//   while (auto step = scheduler.schedule()) {             // prompts and decodes in one batch
//     model.forward(step.batch, cache, logits);
//     scheduler.complete(step, sample(logits));            // a token for each row of logits
//   }
//   scheduler.output(*id);
//
// schedule() reserves what the step writes, in the room it was given, and complete() commits it: to
// the driver, the room is a cache that it only passes to forward(). Slots [0, max_batch_size) are
// the scheduler's. Without a room (max_seq_len is then required), the driver's cache is its own
// affair: it has a slot of max_seq_len positions for each sequence of the batch.
//
// Order     First come, first served among equal priorities; see RequestBook. Requests that
//           decode come first, one token each. What is left of the budgets goes to prompts, in
//           chunks: half to the first in order; of the other half, prompts with less to compute
//           than that one are served before it, so that a long prompt does not hold up short ones;
//           what remains, in order.
// Admission In order, as slots and room allow, with room for the whole prompt. One that does not
//           fit stops those behind it. A block for each running request that may still need one,
//           and the watermark, stay free, but never more than what those running may still need
//           (windows left aside).
// Preemption A request that decodes and finds no room takes it from the last in order, which waits
//           again and is later computed anew from all its tokens: its output goes on. Alone and
//           without room a request ends with kLength. To swap instead, export the sequence (see
//           sequence_state.hpp), which pays only where reading is faster than computing.
// Bounds    Between two tokens of a request lies one step, unless it is preempted. With max_step_ms
//           a step takes at most max(max_step_ms, decode time + min_prefill_share * max_step_ms),
//           as far as costs are foreseen; without, the time of max_num_batched_tokens. Prompts get
//           at least min_prefill_share of that time, or all tokens that decodes leave, but one at
//           least, and the first in order half of it. So the first in order is done after at most
//           S = 2 * max_seq_len / (least tokens of prompts per step) + max_new_tokens steps, and it
//           is never preempted. A request starts after at most (k + max_batch_size) * S steps,
//           k being those before it in order: those that came before it, and those that come
//           within ageing_ms for each priority step above its own.
// Drafts    set_drafts() proposes tokens for a request that decodes: the next step verifies them
//           behind its last one, as far as budgets allow. Rejected ones leave nothing behind, and
//           none is ever findable as a prefix.
// Errors    Error(kArgument) for options and calls out of range; Error(kCapacity) for a request
//           that can never fit. A full queue is none: add_request() returns nothing.
// Threads   One at a time. Steps do not allocate once buffers have grown, except that preempting,
//           and committing beyond a vector's capacity, may.
// Source    Iteration-level scheduling: Yu et al. 2022 (Orca). Preemption by recomputation: Kwon et
//           al. 2023 (vLLM). Chunked prefill: Agrawal et al. 2024 (Sarathi-Serve).
// Layer     serving: may include core, cache, model.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/serving/request.hpp"  // IWYU pragma: export
#include "kvick/serving/request_book.hpp"
#include "kvick/serving/scheduler_types.hpp"  // IWYU pragma: export
#include "kvick/serving/sequence_room.hpp"    // IWYU pragma: export
#include "kvick/serving/step_cost.hpp"        // IWYU pragma: export

namespace kvick::inline v0_1 {

template <SequenceRoom Room = SlotRoom>
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options) requires std::is_same_v<Room, SlotRoom>;
  /// The room must outlive the scheduler.
  Scheduler(const SchedulerOptions& options, Room& room);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  const SchedulerOptions& options() const noexcept { return options_; }

  /// Throws unless the request is one that add_request() takes or puts off. Reads only what never
  /// changes, so any thread may call it at any time.
  void check(const Request& request, std::string_view operation = "Scheduler::add_request") const;
  /// The id of the first sample; none if the queue is full.
  std::optional<RequestId> add_request(Request request);
  /// Whether a request would be taken, before its prompt is known.
  bool has_queue_room(std::int64_t num_prompt_tokens, int num_samples = 1) const noexcept {
    return num_prompt_tokens >= 0 && num_samples >= 1 &&
           book_.has_room(num_prompt_tokens, num_samples);
  }

  /// The next step; false if no request is left. Throws if the last one is open.
  Step schedule();

  /// A token for each row of logits, the one that the request's own sampler draws there. Drafts are
  /// accepted as long as they are what was drawn.
  void complete(const Step& step, std::span<const TokenId> tokens);
  /// What came of each segment. If it throws, the step is still open.
  void complete(const Step& step, std::span<const SegmentResult> results);
  /// The step was not computed: it leaves nothing behind.
  void abandon(const Step& step);

  /// Proposes tokens for the next step; kept until the request is in one.
  void set_drafts(RequestId id, std::span<const TokenId> drafts);
  /// How many the request could use: 0 unless it decodes.
  int num_useful_drafts(RequestId id) const;

  /// Ends a request, whatever it does; false if it has ended. During a step its results are
  /// dropped.
  bool finish(RequestId id, FinishReason reason);
  bool cancel(RequestId id) { return finish(id, FinishReason::kCancelled); }

  bool is_done() const noexcept { return book_.is_idle(); }
  bool is_done(RequestId id) const {
    const State* const state = book_.find(id, "Scheduler");
    return state == nullptr || state->reason.has_value();
  }
  /// None while the request goes on, or after take_finished().
  std::optional<FinishReason> finish_reason(RequestId id) const;

  // Until take_finished(); spans until the next call that is not const.

  /// Prompt and output.
  std::span<const TokenId> tokens(RequestId id) const;
  std::span<const TokenId> output(RequestId id) const;
  const RequestProgress& progress(RequestId id) const;

  /// Ended requests in the order in which they ended, each once. Until then they take memory.
  std::vector<RequestOutput> take_finished() { return book_.take_finished(); }

  SchedulerStatistics statistics() const noexcept;
  /// By the options' clock, or a steady one.
  double now_ms() const;
  /// What steps cost, learnt between schedule() and complete() if there is a max_step_ms.
  const StepCost& step_cost() const noexcept { return cost_model_.cost(); }

 private:
  using State = detail::RequestState;

  /// What is left for prompts in a step.
  struct Budget {
    Index num_tokens = 0;
    double ms = 0;
  };

  const State* at(RequestId id) const;
  bool is_timed() const noexcept { return options_.max_step_ms > 0; }

  void expire(double now);
  void plan(double now);
  void schedule_decodes(double now);
  bool make_room(State& state, double now);
  void schedule_drafts();
  void admit_waiting(double now);
  int num_spare_blocks() const;
  bool admit(State& state);
  void schedule_prompts(double now);
  Budget prompt_budget() const;
  void find_prefix_again(State& state, double now);
  void grant(State& state, Budget& budget, double now, double part = 1.0, int least = 0);
  void build_batch(double now);

  void check_step(const Step& step, std::string_view operation) const;
  void check_result(const StepSegment& segment, const State& state,
                    const SegmentResult& result) const;
  void apply(State& state, const SegmentResult& result, double now);
  void close_step();
  void leave_slot(State& state);
  void preempt(State& state);
  void end(State& state, FinishReason reason, double now);

  SchedulerOptions options_;
  std::optional<SlotRoom> own_room_;
  detail::RoomSlots<Room> slots_;
  detail::RequestBook book_;
  std::vector<State*> running_;  // in order
  StepCostModel cost_model_;
  SchedulerStatistics statistics_;

  // The step:
  bool is_open_ = false;
  bool has_preempted_ = false;
  Index num_decode_tokens_ = 0;  // granted, drafts included
  StepShape shape_;
  double scheduled_ms_ = 0;
  Batch batch_;
  std::vector<State*> prompts_;  // running_ that have more than one token to compute, in order
  std::vector<State*> in_step_;  // one for each segment
  std::vector<StepSegment> segments_;
  std::vector<SegmentResult> results_;
};

Scheduler(const SchedulerOptions&)->Scheduler<SlotRoom>;
template <class Room>
Scheduler(const SchedulerOptions&, Room&) -> Scheduler<Room>;

}  // namespace kvick::inline v0_1

// ---- Implementation: nothing below is API ----

#include "kvick/serving/impl/scheduler.hpp"
#include "kvick/serving/impl/scheduler_plan.hpp"
