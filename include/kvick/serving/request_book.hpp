// SPDX-License-Identifier: MIT
// Who waits, in which order and until when: the requests of a Scheduler, from arrival until their
// outputs are taken.
//
// Order     By arrival_ms - priority * ageing_ms, then by id: a step up in priority is worth as
//           much waiting, whenever two requests are compared, so order never changes and ageing
//           costs nothing. Equal priorities are served first come, first served.
// Samples   Of several continuations of a prompt one computes it; the others are held back until it
//           has, or until it has ended, when the next takes its place.
// Threads   One at a time. Nothing allocates per token.
// Layer     serving: may include core, cache, model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/serving/request.hpp"
#include "kvick/serving/scheduler_types.hpp"
#include "kvick/serving/sequence_room.hpp"

namespace kvick::inline v0_1 {
namespace detail {

enum class RequestPlace { kHeld, kWaiting, kRunning, kFinished };

struct RequestState {
  RequestId id = 0;
  Request request;  // without its prompt, which is in tokens
  RequestProgress progress;
  RequestPlace place = RequestPlace::kHeld;
  double order = 0;
  double timer_ms = kNoTimeout;
  RequestId first_sample = 0;
  std::optional<FinishReason> reason;

  std::vector<TokenId> tokens;  // prompt, output, and during a step its drafts
  std::vector<TokenId> drafts;  // for the next step

  // While it runs:
  int slot = kNoSlot;
  int num_computed = 0;          // committed to the slot
  int num_granted = 0;           // known tokens in the step
  int num_step_drafts = 0;       // behind them
  std::int64_t admitted_in = 0;  // number of the step
  bool is_fresh = false;         // nothing computed since it was admitted

  int num_known() const noexcept { return progress.num_prompt_tokens + progress.num_output_tokens; }
  int num_left() const noexcept { return num_known() - num_computed; }
  /// The last token that may come is never a draft's successor.
  int num_useful_drafts() const noexcept {
    return request.max_new_tokens - progress.num_output_tokens - 1;
  }
  bool is_in_step() const noexcept { return num_granted > 0; }
  int sample() const noexcept { return static_cast<int>(id - first_sample); }
};

struct RequestOrder {
  bool operator()(const RequestState* a, const RequestState* b) const noexcept {
    return std::tie(a->order, a->id) < std::tie(b->order, b->id);
  }
};

class RequestBook {
 public:
  explicit RequestBook(const SchedulerOptions& options) : options_(options) {}

  bool has_room(std::int64_t num_prompt_tokens, int num_samples) const noexcept;
  /// The id of the first sample. The request is checked.
  RequestId add(Request request, double now);

  /// The request, unless its output was taken. Throws if there was none of that id.
  RequestState* find(RequestId id, std::string_view operation);
  const RequestState* find(RequestId id, std::string_view operation) const {
    return const_cast<RequestBook*>(this)->find(id, operation);
  }

  /// All that may be admitted, first the one to be served first.
  const std::set<RequestState*, RequestOrder>& waiting() const noexcept { return waiting_; }
  int num_waiting() const noexcept { return num_waiting_; }
  std::int64_t num_waiting_tokens() const noexcept { return num_waiting_tokens_; }
  bool is_idle() const noexcept { return num_live_ == 0; }

  void start_running(RequestState& state) noexcept;
  void wait_again(RequestState& state);
  /// Its first tokens are in a step: the time limit of the queue no longer counts.
  void start_computing(RequestState& state, double now);
  /// The prompt is computed: others may share it.
  void let_samples_go(const RequestState& state);
  /// A running sample of the same prompt that has all of it computed.
  const RequestState* find_source(const RequestState& state) const noexcept;

  void finish(RequestState& state, FinishReason reason, double now);
  /// One whose time is over, each once.
  RequestState* pop_expired(double now) noexcept;

  std::vector<RequestOutput> take_finished();
  std::int64_t num_added() const noexcept { return next_id_; }
  std::int64_t num_finished() const noexcept { return num_finished_; }

 private:
  void set_place(RequestState& state, RequestPlace place);
  void count_waiting(const RequestState& state, int sign) noexcept;
  void set_timer(RequestState& state, double timer_ms);
  template <class Visit>
  void visit_samples(const RequestState& state, Visit&& visit) const;

  const SchedulerOptions& options_;
  std::unordered_map<RequestId, RequestState> requests_;
  std::set<RequestState*, RequestOrder> waiting_;
  std::set<std::pair<double, RequestId>> timers_;
  std::vector<RequestId> finished_;
  RequestId next_id_ = 0;
  std::int64_t num_finished_ = 0;
  std::int64_t num_live_ = 0;
  std::int64_t num_waiting_tokens_ = 0;
  int num_waiting_ = 0;  // held ones included
};

inline bool RequestBook::has_room(std::int64_t num_prompt_tokens, int num_samples) const noexcept {
  return num_samples <= options_.max_waiting_requests - num_waiting_ &&
         num_prompt_tokens <= (options_.max_waiting_tokens - num_waiting_tokens_) / num_samples;
}

inline RequestId RequestBook::add(Request request, double now) {
  const RequestId first = next_id_;
  std::vector<TokenId> prompt = std::move(request.prompt);
  request.prompt = {};
  for (int sample = 0; sample < request.num_samples; ++sample) {
    const RequestId id = next_id_++;
    RequestState& state = requests_[id];
    state.id = id;
    state.first_sample = first;
    state.request = request;
    state.tokens = prompt;
    state.progress.num_prompt_tokens = static_cast<int>(prompt.size());
    state.progress.arrival_ms = now;
    state.order = now - request.priority * options_.ageing_ms;
    ++num_live_;
    count_waiting(state, 1);
    if (sample == 0) set_place(state, RequestPlace::kWaiting);
    set_timer(state, now + std::min(request.timeout_ms, options_.max_waiting_ms));
  }
  return first;
}

inline RequestState* RequestBook::find(RequestId id, std::string_view operation) {
  require(id >= 0 && id < next_id_, ErrorCode::kArgument, operation,
          "the request must have been added, got id ", id);
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : &found->second;
}

inline void RequestBook::count_waiting(const RequestState& state, int sign) noexcept {
  num_waiting_ += sign;
  num_waiting_tokens_ += sign * state.progress.num_prompt_tokens;
}

inline void RequestBook::set_place(RequestState& state, RequestPlace place) {
  const auto waits = [](RequestPlace p) {
    return p == RequestPlace::kHeld || p == RequestPlace::kWaiting;
  };
  if (state.place == RequestPlace::kWaiting) waiting_.erase(&state);
  if (place == RequestPlace::kWaiting) waiting_.insert(&state);
  if (waits(state.place) != waits(place)) count_waiting(state, waits(place) ? 1 : -1);
  state.place = place;
}

inline void RequestBook::set_timer(RequestState& state, double timer_ms) {
  if (state.timer_ms != kNoTimeout) timers_.erase({state.timer_ms, state.id});
  state.timer_ms = timer_ms;
  if (timer_ms != kNoTimeout) timers_.emplace(timer_ms, state.id);
}

inline void RequestBook::start_running(RequestState& state) noexcept {
  set_place(state, RequestPlace::kRunning);
}

inline void RequestBook::wait_again(RequestState& state) {
  set_place(state, RequestPlace::kWaiting);
}

inline void RequestBook::start_computing(RequestState& state, double now) {
  state.progress.first_step_ms = now;
  set_timer(state, state.progress.arrival_ms + state.request.timeout_ms);
}

template <class Visit>
void RequestBook::visit_samples(const RequestState& state, Visit&& visit) const {
  for (int sample = 0; sample < state.request.num_samples; ++sample) {
    const auto found = requests_.find(state.first_sample + sample);
    if (found != requests_.end()) visit(const_cast<RequestState&>(found->second));
  }
}

inline void RequestBook::let_samples_go(const RequestState& state) {
  if (state.request.num_samples == 1) return;
  visit_samples(state, [&](RequestState& other) {
    if (other.place == RequestPlace::kHeld) set_place(other, RequestPlace::kWaiting);
  });
}

inline const RequestState* RequestBook::find_source(const RequestState& state) const noexcept {
  const RequestState* source = nullptr;
  if (state.request.num_samples == 1) return source;
  visit_samples(state, [&](const RequestState& other) {
    const bool has_prompt = other.num_computed >= other.progress.num_prompt_tokens;
    if (other.place == RequestPlace::kRunning && has_prompt && source == nullptr) source = &other;
  });
  return source;
}

inline void RequestBook::finish(RequestState& state, FinishReason reason, double now) {
  set_place(state, RequestPlace::kFinished);
  set_timer(state, kNoTimeout);
  state.reason = reason;
  state.progress.finish_ms = now;
  finished_.push_back(state.id);
  ++num_finished_;
  --num_live_;
  RequestState* next = nullptr;  // to compute the prompt, if this one was to
  bool is_computing = false;
  if (state.request.num_samples == 1) return;
  visit_samples(state, [&](RequestState& other) {
    if (other.place == RequestPlace::kHeld && next == nullptr) next = &other;
    is_computing |= other.place == RequestPlace::kWaiting || other.place == RequestPlace::kRunning;
  });
  if (next != nullptr && !is_computing) set_place(*next, RequestPlace::kWaiting);
}

inline RequestState* RequestBook::pop_expired(double now) noexcept {
  if (timers_.empty() || timers_.begin()->first > now) return nullptr;
  RequestState& state = requests_.find(timers_.begin()->second)->second;
  timers_.erase(timers_.begin());
  state.timer_ms = kNoTimeout;
  return &state;
}

inline std::vector<RequestOutput> RequestBook::take_finished() {
  std::vector<RequestOutput> outputs;
  outputs.reserve(finished_.size());
  for (const RequestId id : finished_) {
    const auto found = requests_.find(id);
    RequestState& state = found->second;
    state.tokens.erase(state.tokens.begin(),
                       state.tokens.begin() + state.progress.num_prompt_tokens);
    outputs.push_back({.id = id,
                       .sample = state.sample(),
                       .reason = *state.reason,
                       .tokens = std::move(state.tokens),
                       .progress = state.progress});
    requests_.erase(found);
  }
  finished_.clear();
  return outputs;
}

}  // namespace detail
}  // namespace kvick::inline v0_1
