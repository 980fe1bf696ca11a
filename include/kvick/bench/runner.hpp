// SPDX-License-Identifier: MIT
// Runs a workload on anything that takes requests and computes in steps, and notes when each token
// came out.
//
// A target that computes in steps is driven from this thread: requests that have arrived are handed
// over between steps, so what a long step costs later arrivals is part of their latency, as it is
// for users. One that computes in a thread of its own gets them when they arrive.
//
// Units     Seconds on the given clock; timelines start at 0 when the run does.
// Errors    Error(kArgument) for a target that stops working before every request is done;
//           whatever the target throws.
// Layer     bench: may include core.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvick/bench/metrics.hpp"
#include "kvick/bench/workload.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"

namespace kvick::inline v0_1 {

/// Tokens that a step produced for a request.
struct StepOutput {
  std::size_t request = 0;  ///< the number it was submitted with
  std::vector<TokenId> tokens = {};
  bool is_finished = false;
  bool is_failed = false;
};

/// step() computes once and returns what came out.
template <class T>
concept SteppedTarget = requires(T target) {
  { target.step() } -> std::convertible_to<std::span<const StepOutput>>;
};

/// Computes by itself: wait() returns what came out meanwhile, after at most so many seconds.
template <class T>
concept RunningTarget = requires(T target) {
  { target.wait(1.0) } -> std::convertible_to<std::span<const StepOutput>>;
};

/// submit() may be called between any two steps.
template <class T>
concept ServingTarget = (SteppedTarget<T> ||
                         RunningTarget<T>)&&requires(T target, const WorkloadRequest& request) {
  target.submit(std::size_t{0}, request);
  { target.has_work() } -> std::convertible_to<bool>;
};

/// The system's monotonic clock.
struct SteadyClock {
  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void wait(double seconds) const {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
};

struct RunResult {
  double duration_seconds = 0;                ///< from the start to the last output
  std::vector<RequestTimeline> timelines;     ///< [requests]
  std::vector<std::vector<TokenId>> outputs;  ///< [requests]
};

/// `clock` has now() and wait(seconds). `progress(done, total)` is called after every step.
template <ServingTarget Target, class Clock, class Progress>
RunResult run_workload(Target& target, const Workload& workload, Clock&& clock,
                       Progress&& progress);

template <ServingTarget Target, class Clock = SteadyClock>
RunResult run_workload(Target& target, const Workload& workload, Clock&& clock = {}) {
  return run_workload(target, workload, clock, [](std::size_t, std::size_t) {});
}

// ---- Implementation: nothing below is API ----

namespace detail {

/// Hands requests over when their time has come.
template <class Target>
class WorkloadFeeder {
 public:
  WorkloadFeeder(Target& target, const Workload& workload, RunResult& result)
      : target_(target), workload_(workload), result_(result) {}

  bool has_more() const { return next_ < workload_.requests.size(); }
  double next_arrival() const { return workload_.requests[next_].arrival_seconds; }
  bool has_room() const {
    return workload_.max_concurrency == 0 ||
           num_under_way_ < static_cast<std::size_t>(workload_.max_concurrency);
  }

  /// Until there is a request to hand over, as far as is known.
  double seconds_to_next(double now) const {
    return has_more() && has_room() ? next_arrival() - now
                                    : std::numeric_limits<double>::infinity();
  }

  void feed(double now) {
    while (has_more() && has_room() && next_arrival() <= now) {
      const WorkloadRequest& request = workload_.requests[next_];
      // Without a limit it was sent when it came, even if a step kept us from noticing.
      const double sent = workload_.max_concurrency == 0 ? request.arrival_seconds : now;
      result_.timelines[next_] = {.arrival_seconds = request.arrival_seconds,
                                  .sent_seconds = sent,
                                  .num_prompt_tokens = static_cast<int>(request.prompt.size())};
      target_.submit(next_, request);
      ++next_;
      ++num_under_way_;
    }
  }

  void note_finished() { --num_under_way_; }

 private:
  Target& target_;
  const Workload& workload_;
  RunResult& result_;
  std::size_t next_ = 0;
  std::size_t num_under_way_ = 0;
};

template <class Target>
std::span<const StepOutput> next_outputs(Target& target, double max_seconds) {
  if constexpr (SteppedTarget<Target>) {
    return target.step();
  } else {
    return target.wait(max_seconds);
  }
}

}  // namespace detail

template <ServingTarget Target, class Clock, class Progress>
RunResult run_workload(Target& target, const Workload& workload, Clock&& clock,
                       Progress&& progress) {
  constexpr std::string_view kOperation = "run_workload";
  const std::size_t num_requests = workload.requests.size();
  RunResult result;
  result.timelines.resize(num_requests);
  result.outputs.resize(num_requests);
  detail::WorkloadFeeder<Target> feeder(target, workload, result);
  const double start = clock.now();
  std::size_t num_done = 0;
  while (num_done < num_requests) {
    double now = clock.now() - start;
    feeder.feed(now);
    if (!target.has_work()) {
      detail::require(feeder.has_more() && feeder.has_room(), ErrorCode::kArgument, kOperation,
                      "the target must have work until every request is finished, ",
                      num_requests - num_done, " are not");
      clock.wait(feeder.next_arrival() - now);
      continue;
    }
    const auto outputs = detail::next_outputs(target, feeder.seconds_to_next(now));
    now = clock.now() - start;
    for (const StepOutput& output : outputs) {
      detail::require(output.request < num_requests, ErrorCode::kArgument, kOperation,
                      "outputs must be of requests below ", num_requests, ", got ", output.request);
      RequestTimeline& timeline = result.timelines[output.request];
      std::vector<TokenId>& tokens = result.outputs[output.request];
      if (!output.tokens.empty()) {
        timeline.outputs.push_back({now, static_cast<int>(output.tokens.size())});
        tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
        result.duration_seconds = now;
      }
      timeline.is_failed = timeline.is_failed || output.is_failed;
      if (output.is_finished || output.is_failed) {
        ++num_done;
        feeder.note_finished();
      }
    }
    progress(num_done, num_requests);
  }
  return result;
}

}  // namespace kvick::inline v0_1
