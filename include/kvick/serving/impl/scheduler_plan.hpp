// SPDX-License-Identifier: MIT
// Bodies of Scheduler: what the next step computes.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kvick/serving/scheduler.hpp"

namespace kvick::inline v0_1 {

template <SequenceRoom Room>
Step Scheduler<Room>::schedule() {
  detail::require(!is_open_, ErrorCode::kArgument, "Scheduler::schedule",
                  "a step must be completed or abandoned before the next");
  const double now = now_ms();
  expire(now);
  do {  // again only if a room that refused what it had granted has left the step without requests
    plan(now);
  } while (segments_.empty() && !is_done());
  is_open_ = !segments_.empty();
  if (is_open_) ++statistics_.num_steps;
  if (is_open_ && is_timed()) scheduled_ms_ = now_ms();
  return {batch_, segments_, statistics_.num_steps};
}

template <SequenceRoom Room>
void Scheduler<Room>::plan(double now) {
  batch_.clear();
  segments_.clear();
  in_step_.clear();
  shape_ = {};
  num_decode_tokens_ = 0;
  has_preempted_ = false;
  schedule_decodes(now);
  admit_waiting(now);
  schedule_drafts();
  schedule_prompts(now);
  build_batch(now);
}

template <SequenceRoom Room>
void Scheduler<Room>::expire(double now) {
  while (State* const state = book_.pop_expired(now)) end(*state, FinishReason::kTimeout, now);
}

/// One token for each request that has only its last one to compute. There is budget for all.
template <SequenceRoom Room>
void Scheduler<Room>::schedule_decodes(double now) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    State& state = *running_[i];
    // Without room `state` has left, and it was the last.
    if (state.num_left() != 1 || !make_room(state, now)) continue;
    state.num_granted = 1;
    ++num_decode_tokens_;
    shape_.add_decode(1, state.num_computed);
  }
}

/// Reserves the last token's position. Victims come after `state` in order, so none of them is in
/// the step yet.
template <SequenceRoom Room>
bool Scheduler<Room>::make_room(State& state, double now) {
  while (!slots_.room().reserve(state.slot, 1)) {
    State& victim = *running_.back();
    if (running_.size() == 1) {
      end(state, FinishReason::kLength, now);
      return false;
    }
    preempt(victim);
    if (&victim == &state) return false;
  }
  return true;
}

template <SequenceRoom Room>
void Scheduler<Room>::admit_waiting(double now) {
  const auto& waiting = book_.waiting();
  while (!waiting.empty() && !slots_.empty() && (!has_preempted_ || running_.empty())) {
    State& state = **waiting.begin();
    if (admit(state)) continue;
    if (!running_.empty()) break;
    end(state, FinishReason::kLength, now);  // alone it has grown beyond the room
  }
}

/// Blocks that stay free when another request is admitted: one for each running request that may
/// still need one, and the watermark, but never more than they all may still need, windows left
/// aside.
template <SequenceRoom Room>
int Scheduler<Room>::num_spare_blocks() const {
  if constexpr (BlockRoom<Room>) {
    const Room& room = slots_.room();
    std::int64_t num_needed = 0;
    int num_growing = 0;
    for (const State* const state : running_) {
      // The last token is never computed.
      const int longest = state->progress.num_prompt_tokens + state->request.max_new_tokens - 1;
      const int num_more = room.num_blocks_for(longest) - room.num_blocks_for(state->num_known());
      num_needed += num_more;
      num_growing += num_more > 0 ? 1 : 0;
    }
    const auto watermark = static_cast<int>(options_.watermark * room.num_blocks());
    return static_cast<int>(std::min<std::int64_t>(num_needed, num_growing + watermark));
  }
  return 0;
}

template <SequenceRoom Room>
bool Scheduler<Room>::admit(State& state) {
  const auto known = std::span<const TokenId>(state.tokens);
  const int num_spare = num_spare_blocks();
  typename detail::RoomSlots<Room>::Source source;
  if (const State* const sample = book_.find_source(state)) {
    source = {sample->slot, state.progress.num_prompt_tokens - 1};
  }
  const auto slot = slots_.begin(known, state.request.prefix_key, source, num_spare);
  if (!slot) return false;
  state.slot = *slot;
  state.num_computed = slots_.room().length(*slot);
  state.is_fresh = true;
  state.admitted_in = statistics_.num_steps;
  book_.start_running(state);
  running_.insert(
      std::upper_bound(running_.begin(), running_.end(), &state, detail::RequestOrder{}), &state);
  return true;
}

/// Drafts take what decodes and the least share of prompts leave, in order.
template <SequenceRoom Room>
void Scheduler<Room>::schedule_drafts() {
  const double share = options_.min_prefill_share;
  const auto has_prompt = [](const State* state) { return state->num_granted == 0; };
  const bool has_prompts = std::any_of(running_.begin(), running_.end(), has_prompt);
  Index left = options_.max_num_batched_tokens - num_decode_tokens_;
  double left_ms = options_.max_step_ms - step_cost()(shape_);
  if (has_prompts) {
    left -= std::max<Index>(1, static_cast<Index>(share * options_.max_num_batched_tokens));
    left_ms -= share * options_.max_step_ms;
  }
  for (State* const state : running_) {
    if (state->num_granted == 0 || state->drafts.empty()) continue;
    const Index useful = state->num_useful_drafts();
    Index count = std::min({static_cast<Index>(state->drafts.size()), left, useful});
    const double row_ms = step_cost().row + step_cost().row_depth * state->num_known();
    if (is_timed() && row_ms > 0) {
      count = std::min(count, static_cast<Index>(std::max(0.0, left_ms) / row_ms));
    }
    count = std::max<Index>(count, 0);
    while (count > 0 && !slots_.room().reserve(state->slot, static_cast<int>(1 + count))) {
      count /= 2;
    }
    state->num_step_drafts = static_cast<int>(count);
    state->tokens.insert(state->tokens.end(), state->drafts.begin(), state->drafts.begin() + count);
    state->drafts.clear();
    num_decode_tokens_ += count;
    left -= count;
    left_ms -= row_ms * static_cast<double>(count);
    shape_.add_decode(static_cast<int>(count), state->num_known());
  }
}

template <SequenceRoom Room>
typename Scheduler<Room>::Budget Scheduler<Room>::prompt_budget() const {
  Budget budget{.num_tokens = options_.max_num_batched_tokens - num_decode_tokens_};
  // Time only matters to those that decode: alone, prompts are fastest in large chunks.
  if (!is_timed() || num_decode_tokens_ == 0) {
    budget.ms = std::numeric_limits<double>::infinity();
    return budget;
  }
  budget.num_tokens = std::min<Index>(budget.num_tokens, cost_model_.max_prefill_tokens());
  budget.ms = std::max(options_.max_step_ms - step_cost()(shape_),
                       options_.min_prefill_share * options_.max_step_ms);
  return budget;
}

template <SequenceRoom Room>
void Scheduler<Room>::schedule_prompts(double now) {
  prompts_.clear();
  for (State* const state : running_) {
    if (!state->is_in_step()) prompts_.push_back(state);
  }
  if (prompts_.empty()) return;
  Budget budget = prompt_budget();
  State& first = *prompts_.front();
  grant(first, budget, now, 0.5, 1);
  const int rest = first.num_left() - first.num_granted;
  for (State* const state : prompts_) {
    if (state != &first && state->num_left() < rest) grant(*state, budget, now);
  }
  for (State* const state : prompts_) grant(*state, budget, now);
}

/// Others may have computed the same prefix since the request was admitted.
template <SequenceRoom Room>
void Scheduler<Room>::find_prefix_again(State& state, double now) {
  if (!std::exchange(state.is_fresh, false) || state.admitted_in == statistics_.num_steps) return;
  const auto known = std::span<const TokenId>(state.tokens);
  if (slots_.begin_again(state.slot, known, state.request.prefix_key)) {
    state.num_computed = slots_.room().length(state.slot);
  } else if (running_.size() > 1) {  // a room that does not take what it has just given back
    preempt(state);
  } else {
    end(state, FinishReason::kLength, now);
  }
}

/// Tokens of the prompt, from a part of the budget and at least so many.
template <SequenceRoom Room>
void Scheduler<Room>::grant(State& state, Budget& budget, double now, double part, int least) {
  if (budget.num_tokens == 0 || state.slot == detail::kNoSlot) return;
  find_prefix_again(state, now);
  if (state.slot == detail::kNoSlot) return;
  const int first = state.num_computed + state.num_granted;
  const auto tokens = std::ceil(part * static_cast<double>(budget.num_tokens));
  const int most = std::min(state.num_left() - state.num_granted, static_cast<int>(tokens));
  const int count = std::min(
      most, std::max(least, step_cost().num_prefill_tokens(part * budget.ms, first, most)));
  if (count == 0) return;
  state.num_granted += count;
  shape_.add_prefill(count, first);
  budget.num_tokens -= count;
  budget.ms -= step_cost().prefill_ms(count, first);
}

template <SequenceRoom Room>
void Scheduler<Room>::build_batch(double now) {
  for (State* const state : running_) {
    if (!state->is_in_step()) continue;
    const bool is_whole = state->num_granted == state->num_left();
    const int num_rows = is_whole ? 1 + state->num_step_drafts : 0;
    const int num_step_tokens = state->num_granted + state->num_step_drafts;
    const auto num_tokens = static_cast<std::size_t>(num_step_tokens);
    const auto first = static_cast<std::size_t>(state->num_computed);
    segments_.push_back({.request = state->id,
                         .output_index = state->progress.num_output_tokens,
                         .first_row = batch_.num_logits(),
                         .num_rows = num_rows,
                         .num_drafts = state->num_step_drafts});
    batch_.add({.sequence = state->slot,
                .first_position = state->num_computed,
                .tokens = std::span<const TokenId>(state->tokens).subspan(first, num_tokens),
                .num_logits = num_rows});
    in_step_.push_back(state);
    if (std::isnan(state->progress.first_step_ms)) {
      state->progress.num_cached_tokens = state->num_computed;
      statistics_.num_prompt_tokens += state->progress.num_prompt_tokens;
      statistics_.num_cached_tokens += state->num_computed;
      book_.start_computing(*state, now);
    }
  }
  statistics_.num_batched_tokens += batch_.num_tokens();
}

}  // namespace kvick::inline v0_1
