// SPDX-License-Identifier: MIT
// Where threads leave requests for the one that runs the model, within the limits of the queue.
//
// Private to the engine.
//
// Threads   Any number.
// Layer     serving: may include core.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/serving/request.hpp"
#include "kvick/serving/sample_run.hpp"

namespace kvick::inline v0_1::detail {

/// A request that nothing is wrong with.
struct Submission {
  Request request;
  std::vector<std::unique_ptr<SampleRun>> samples = {};
  double arrival_ms = 0.0;
  SpeculationOptions speculation = {};
};

class Intake {
 public:
  Intake(int max_requests, std::int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  /// Takes it, or says why not and leaves it as it is.
  std::optional<std::string> offer(Submission& submission, bool is_limited) {
    {
      const std::scoped_lock lock(mutex_);
      auto refusal = why_not(submission.request, is_limited);
      if (refusal) {
        num_rejected_ += submission.request.num_samples;
        return refusal;
      }
      num_waiting_ += submission.request.num_samples;
      num_waiting_tokens_ += num_tokens(submission.request);
      ++num_unfinished_;
      submissions_.push_back(std::move(submission));
    }
    changed_.notify_all();
    return std::nullopt;
  }

  /// Moves all to `submissions`, whose content goes. They count as waiting until set_waiting().
  void take(std::vector<Submission>& submissions) {
    submissions.clear();
    const std::scoped_lock lock(mutex_);
    submissions.swap(submissions_);
  }

  /// What waits in the scheduler.
  void set_waiting(int num_requests, std::int64_t num_prompt_tokens) {
    const std::scoped_lock lock(mutex_);
    num_waiting_ = num_requests;
    num_waiting_tokens_ = num_prompt_tokens;
    for (const Submission& submission : submissions_) {
      num_waiting_ += submission.request.num_samples;
      num_waiting_tokens_ += num_tokens(submission.request);
    }
  }

  /// A request has ended.
  void count_finished() {
    {
      const std::scoped_lock lock(mutex_);
      --num_unfinished_;
    }
    changed_.notify_all();
  }

  /// From now on every request is refused.
  void close() {
    const std::scoped_lock lock(mutex_);
    is_closed_ = true;
  }

  /// Ends wait(), now and for ever.
  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      is_closed_ = is_stopped_ = true;
    }
    changed_.notify_all();
  }

  bool is_stopped() const {
    const std::scoped_lock lock(mutex_);
    return is_stopped_;
  }

  bool is_empty() const {
    const std::scoped_lock lock(mutex_);
    return submissions_.empty();
  }

  std::int64_t num_rejected() const {
    const std::scoped_lock lock(mutex_);
    return num_rejected_;
  }

  /// For something to take.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_stopped_ || !submissions_.empty(); });
  }

  /// Until every request that was taken has ended.
  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_unfinished_ == 0; });
  }

 private:
  static std::int64_t num_tokens(const Request& request) {
    return static_cast<std::int64_t>(request.prompt.size()) * request.num_samples;
  }

  std::optional<std::string> why_not(const Request& request, bool is_limited) const {
    if (is_closed_) return "the engine must not be closed to take a request";
    if (!is_limited) return std::nullopt;
    if (request.num_samples > max_requests_ - num_waiting_) {
      return concat("at most ", max_requests_, " requests may wait, got ", request.num_samples,
                    " while ", num_waiting_, " wait");
    }
    if (num_tokens(request) > max_tokens_ - num_waiting_tokens_) {
      return concat("at most ", max_tokens_, " tokens of prompts may wait, got ",
                    num_tokens(request), " while ", num_waiting_tokens_, " wait");
    }
    return std::nullopt;
  }

  const int max_requests_;
  const std::int64_t max_tokens_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Submission> submissions_;
  int num_waiting_ = 0;  // samples, those in submissions_ included
  std::int64_t num_waiting_tokens_ = 0;
  std::int64_t num_unfinished_ = 0;
  std::int64_t num_rejected_ = 0;
  bool is_closed_ = false;
  bool is_stopped_ = false;
};

}  // namespace kvick::inline v0_1::detail
