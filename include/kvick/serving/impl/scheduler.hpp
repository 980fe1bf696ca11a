// SPDX-License-Identifier: MIT
// Bodies of Scheduler: requests come, are looked at, get their results and leave.
#pragma once

#include <limits>

#include "kvick/serving/scheduler.hpp"

namespace kvick::inline v0_1 {

template <SequenceRoom Room>
Scheduler<Room>::Scheduler(const SchedulerOptions& options) requires std::is_same_v<Room, SlotRoom>
    : options_(detail::checked_options(options, std::numeric_limits<int>::max(),
                                       std::numeric_limits<int>::max())),
      own_room_(std::in_place, options.max_batch_size, options.max_seq_len),
      slots_(*own_room_, options_.max_batch_size),
      book_(options_) {}

template <SequenceRoom Room>
Scheduler<Room>::Scheduler(const SchedulerOptions& options, Room& room)
    : options_(detail::checked_options(options, room.num_sequences(), room.max_seq_len())),
      slots_(room, options_.max_batch_size),
      book_(options_) {}

template <SequenceRoom Room>
Scheduler<Room>::~Scheduler() {
  for (State* const state : running_) slots_.end(state->slot);
}

template <SequenceRoom Room>
double Scheduler<Room>::now_ms() const {
  if (options_.clock_ms) return options_.clock_ms();
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// ---- Requests

template <SequenceRoom Room>
void Scheduler<Room>::check(const Request& request, std::string_view operation) const {
  detail::check_request(request, options_, operation);
  if constexpr (BlockRoom<Room>) {
    const Room& room = slots_.room();
    const auto num_tokens = static_cast<int>(request.prompt.size());
    detail::require(room.num_blocks_for(num_tokens) <= room.num_blocks(), ErrorCode::kCapacity,
                    operation, "a prompt must fit the cache of ", room.num_blocks(),
                    " blocks, got ", num_tokens, " tokens in ", room.num_blocks_for(num_tokens),
                    " blocks");
  }
}

template <SequenceRoom Room>
std::optional<RequestId> Scheduler<Room>::add_request(Request request) {
  check(request);
  const auto num_prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  if (!book_.has_room(num_prompt_tokens, request.num_samples)) {
    ++statistics_.num_refused;
    return std::nullopt;
  }
  return book_.add(std::move(request), now_ms());
}

template <SequenceRoom Room>
const detail::RequestState* Scheduler<Room>::at(RequestId id) const {
  const State* const state = book_.find(id, "Scheduler");
  detail::require(state != nullptr, ErrorCode::kArgument, "Scheduler",
                  "the output of a request must not have been taken, got id ", id);
  return state;
}

template <SequenceRoom Room>
std::optional<FinishReason> Scheduler<Room>::finish_reason(RequestId id) const {
  const State* const state = book_.find(id, "Scheduler");
  return state != nullptr ? state->reason : std::nullopt;
}

template <SequenceRoom Room>
std::span<const TokenId> Scheduler<Room>::tokens(RequestId id) const {
  const State* const state = at(id);
  return std::span(state->tokens).first(static_cast<std::size_t>(state->num_known()));
}

template <SequenceRoom Room>
std::span<const TokenId> Scheduler<Room>::output(RequestId id) const {
  return tokens(id).subspan(static_cast<std::size_t>(at(id)->progress.num_prompt_tokens));
}

template <SequenceRoom Room>
const RequestProgress& Scheduler<Room>::progress(RequestId id) const {
  return at(id)->progress;
}

template <SequenceRoom Room>
int Scheduler<Room>::num_useful_drafts(RequestId id) const {
  const State* const state = at(id);
  const bool decodes = state->place == detail::RequestPlace::kRunning && state->num_left() == 1;
  if (!decodes || state->reason) return 0;
  return std::min(state->num_useful_drafts(), options_.max_num_batched_tokens - 1);
}

template <SequenceRoom Room>
void Scheduler<Room>::set_drafts(RequestId id, std::span<const TokenId> drafts) {
  State* const state = book_.find(id, "Scheduler::set_drafts");
  if (state == nullptr || state->reason) return;
  state->drafts.assign(drafts.begin(), drafts.end());
}

template <SequenceRoom Room>
bool Scheduler<Room>::finish(RequestId id, FinishReason reason) {
  State* const state = book_.find(id, "Scheduler::finish");
  if (state == nullptr || state->reason) return false;
  if (state->is_in_step()) {
    state->reason = reason;  // its slot may be written until the step is completed
  } else {
    end(*state, reason, now_ms());
  }
  return true;
}

template <SequenceRoom Room>
SchedulerStatistics Scheduler<Room>::statistics() const noexcept {
  SchedulerStatistics statistics = statistics_;
  statistics.num_running = static_cast<int>(running_.size());
  statistics.num_waiting = book_.num_waiting();
  statistics.num_waiting_tokens = book_.num_waiting_tokens();
  statistics.num_added = book_.num_added();
  statistics.num_finished = book_.num_finished();
  return statistics;
}

// ---- Leaving

template <SequenceRoom Room>
void Scheduler<Room>::leave_slot(State& state) {
  slots_.end(state.slot);
  running_.erase(std::find(running_.begin(), running_.end(), &state));
  state.slot = detail::kNoSlot;
  state.num_computed = 0;
  state.drafts.clear();
}

template <SequenceRoom Room>
void Scheduler<Room>::preempt(State& state) {
  leave_slot(state);
  book_.wait_again(state);
  ++state.progress.num_preemptions;
  ++statistics_.num_preemptions;
  has_preempted_ = true;
}

template <SequenceRoom Room>
void Scheduler<Room>::end(State& state, FinishReason reason, double now) {
  if (state.slot != detail::kNoSlot) leave_slot(state);
  book_.finish(state, reason, now);
}

// ---- What came of it

template <SequenceRoom Room>
void Scheduler<Room>::check_step(const Step& step, std::string_view operation) const {
  detail::require(is_open_ && step.number == statistics_.num_steps, ErrorCode::kArgument, operation,
                  "the step must be the open one");
}

template <SequenceRoom Room>
void Scheduler<Room>::check_result(const StepSegment& segment, const State& state,
                                   const SegmentResult& result) const {
  constexpr std::string_view kOperation = "Scheduler::complete";
  if (state.reason) return;
  const auto count = static_cast<Index>(result.tokens.size());
  const Index least = segment.num_rows > 0 && !result.finish ? 1 : 0;
  detail::require(count >= least && count <= segment.num_rows, ErrorCode::kArgument, kOperation,
                  "a segment of ", segment.num_rows, " rows must give ", least, " to ",
                  segment.num_rows, " tokens, got ", count, " for request ", segment.request);
  if (count == 0) return;
  const auto drafts = std::span(state.tokens).last(static_cast<std::size_t>(segment.num_drafts));
  const auto accepted = result.tokens.first(static_cast<std::size_t>(count - 1));
  detail::require(std::equal(accepted.begin(), accepted.end(), drafts.begin()),
                  ErrorCode::kArgument, kOperation,
                  "all tokens but the last must be drafts, got others for request ",
                  segment.request);
}

template <SequenceRoom Room>
void Scheduler<Room>::complete(const Step& step, std::span<const TokenId> tokens) {
  constexpr std::string_view kOperation = "Scheduler::complete";
  check_step(step, kOperation);
  detail::require(static_cast<Index>(tokens.size()) == batch_.num_logits(), ErrorCode::kArgument,
                  kOperation, "there must be a token for each of the ", batch_.num_logits(),
                  " rows of logits, got ", tokens.size());
  results_.clear();
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const StepSegment& segment = segments_[i];
    const auto drawn = tokens.subspan(static_cast<std::size_t>(segment.first_row),
                                      static_cast<std::size_t>(segment.num_rows));
    const auto drafts =
        std::span(in_step_[i]->tokens).last(static_cast<std::size_t>(segment.num_drafts));
    const auto differs = std::mismatch(drafts.begin(), drafts.end(), drawn.begin()).first;
    const auto num_accepted = static_cast<std::size_t>(differs - drafts.begin());
    results_.push_back({.tokens = drawn.first(segment.num_rows == 0 ? 0 : num_accepted + 1)});
  }
  complete(step, results_);
}

template <SequenceRoom Room>
void Scheduler<Room>::complete(const Step& step, std::span<const SegmentResult> results) {
  constexpr std::string_view kOperation = "Scheduler::complete";
  check_step(step, kOperation);
  detail::require(results.size() == segments_.size(), ErrorCode::kArgument, kOperation,
                  "there must be a result for each of the ", segments_.size(), " segments, got ",
                  results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    check_result(segments_[i], *in_step_[i], results[i]);
  }
  const double now = now_ms();
  if (is_timed()) cost_model_.observe(shape_, now - scheduled_ms_);
  for (std::size_t i = 0; i < results.size(); ++i) apply(*in_step_[i], results[i], now);
  close_step();
}

/// Commits what the segment computed of known and accepted tokens, and hands over those that were
/// emitted, up to the first that ends the request.
template <SequenceRoom Room>
void Scheduler<Room>::apply(State& state, const SegmentResult& result, double now) {
  const int num_drafts = std::exchange(state.num_step_drafts, 0);
  const int num_granted = std::exchange(state.num_granted, 0);
  state.tokens.resize(static_cast<std::size_t>(state.num_known()));
  if (state.reason) {  // ended during the step
    const FinishReason reason = *state.reason;
    end(state, reason, now);
    return;
  }
  const Request& request = state.request;
  RequestProgress& progress = state.progress;
  const int num_before = progress.num_output_tokens;
  std::optional<FinishReason> finish;
  for (const TokenId token : result.tokens) {
    state.tokens.push_back(token);
    ++progress.num_output_tokens;
    const bool is_stop = std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) !=
                         request.stop_tokens.end();
    if (is_stop && progress.num_output_tokens > request.min_new_tokens) {
      finish = FinishReason::kStop;
    } else if (progress.num_output_tokens == request.max_new_tokens) {
      finish = FinishReason::kLength;
    }
    if (finish) break;
  }
  const int num_emitted = progress.num_output_tokens - num_before;
  const int num_accepted = std::max(0, num_emitted - 1);
  const int num_computed = num_granted + num_accepted;
  const auto computed = std::span<const TokenId>(state.tokens)
                            .subspan(static_cast<std::size_t>(state.num_computed),
                                     static_cast<std::size_t>(num_computed));
  slots_.room().commit(state.slot, computed);
  state.num_computed += num_computed;
  if (num_drafts > num_accepted) slots_.room().truncate(state.slot, state.num_computed);

  progress.num_draft_rounds += num_drafts > 0 ? 1 : 0;
  statistics_.num_draft_rounds += num_drafts > 0 ? 1 : 0;
  progress.num_draft_tokens += num_drafts;
  progress.num_accepted_tokens += num_accepted;
  statistics_.num_draft_tokens += num_drafts;
  statistics_.num_accepted_tokens += num_accepted;
  statistics_.num_output_tokens += num_emitted;
  if (num_before == 0 && num_emitted > 0) {
    progress.first_token_ms = now;
    book_.let_samples_go(state);
  }
  const bool is_all = num_emitted == static_cast<int>(result.tokens.size());
  if (result.finish && is_all) finish = result.finish;  // the caller knows best
  if (finish) end(state, *finish, now);
}

template <SequenceRoom Room>
void Scheduler<Room>::abandon(const Step& step) {
  check_step(step, "Scheduler::abandon");
  const double now = now_ms();
  for (State* const state : in_step_) {
    state->num_granted = 0;
    state->tokens.resize(static_cast<std::size_t>(state->num_known()));
    if (std::exchange(state->num_step_drafts, 0) > 0) {
      slots_.room().truncate(state->slot, state->num_computed);
    }
    // complete() may have ended it before it failed.
    const bool has_left = state->place != detail::RequestPlace::kRunning;
    if (state->reason && !has_left) end(*state, FinishReason(*state->reason), now);
  }
  close_step();
}

template <SequenceRoom Room>
void Scheduler<Room>::close_step() {
  is_open_ = false;
  in_step_.clear();
}

}  // namespace kvick::inline v0_1
