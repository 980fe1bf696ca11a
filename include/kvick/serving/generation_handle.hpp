// SPDX-License-Identifier: MIT
// A request that was submitted: its tokens as they come, its end, and a way to cancel it.
//
// Tokens wait in a queue until they are read, if the request has no on_token. A slow reader never
// holds up the engine; the queue is bounded by the tokens that the request may generate.
//
// Threads   Any number of threads may use copies of a handle, which are the same request. Whoever
//           waits needs another thread that runs the engine: on_token must not. The request goes
//           on if nobody holds a handle.
// Layer     serving: may include core.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/serving/generation.hpp"

namespace kvick::inline v0_1 {

namespace detail {
class GenerationState;
class CancelQueue;
}  // namespace detail

class GenerationHandle {
 public:
  GenerationHandle() = default;  ///< of no request: only to be assigned to
  GenerationHandle(std::shared_ptr<detail::GenerationState> state,
                   std::weak_ptr<detail::CancelQueue> cancel_queue);

  std::uint64_t id() const noexcept;

  /// The next token of any sample; waits for it. Nothing once all are read and the request has
  /// ended.
  std::optional<Token> next();
  /// The next token, if there is one now.
  std::optional<Token> try_next();

  /// Whether every sample has ended.
  bool is_done() const;
  void wait() const;
  /// Whether it was done in time.
  bool wait_for(std::chrono::duration<double> timeout) const;

  /// Asks for the end of all samples, or of one. Those that have ended stay as they are.
  void cancel();
  void cancel(int sample);

  /// What became of a sample; waits for the end of the request. The reference lives as long as a
  /// handle does.
  const Generation& result(int sample = 0) const;
  /// Of all samples.
  std::span<const Generation> results() const;

 private:
  detail::GenerationState& state(std::string_view operation) const;

  std::shared_ptr<detail::GenerationState> state_;
  std::weak_ptr<detail::CancelQueue> cancel_queue_;
};

// ---- Implementation: nothing below is API ----

namespace detail {

struct Cancellation {
  std::uint64_t request = 0;
  int sample = 0;
};

/// Cancellations that the engine has not seen yet.
class CancelQueue {
 public:
  void add(Cancellation cancellation) {
    const std::scoped_lock lock(mutex_);
    cancellations_.push_back(cancellation);
  }

  /// Moves all to `cancellations`, whose content goes.
  void take(std::vector<Cancellation>& cancellations) {
    cancellations.clear();
    const std::scoped_lock lock(mutex_);
    cancellations.swap(cancellations_);
  }

 private:
  std::mutex mutex_;
  std::vector<Cancellation> cancellations_;
};

/// What the engine writes and handles read.
class GenerationState {
 public:
  GenerationState(std::uint64_t id, int num_samples, std::function<void(const Token&)> on_token)
      : id_(id),
        on_token_(std::move(on_token)),
        results_(static_cast<std::size_t>(num_samples)),
        num_unfinished_(num_samples) {}

  std::uint64_t id() const noexcept { return id_; }
  int num_samples() const noexcept { return static_cast<int>(results_.size()); }

  /// Hands a token over. Throws what on_token throws.
  void push(Token token) {
    if (on_token_) {
      on_token_(token);
      return;
    }
    {
      const std::scoped_lock lock(mutex_);
      tokens_.push_back(std::move(token));
    }
    changed_.notify_all();
  }

  /// Whether it was the last sample.
  bool finish(int sample, Generation generation) {
    bool is_last;
    {
      const std::scoped_lock lock(mutex_);
      results_[static_cast<std::size_t>(sample)] = std::move(generation);
      is_last = --num_unfinished_ == 0;
    }
    changed_.notify_all();
    return is_last;
  }

  std::optional<Token> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !tokens_.empty() || num_unfinished_ == 0; });
    return take();
  }

  std::optional<Token> try_next() {
    const std::scoped_lock lock(mutex_);
    return take();
  }

  bool is_done() const {
    const std::scoped_lock lock(mutex_);
    return num_unfinished_ == 0;
  }

  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_unfinished_ == 0; });
  }

  bool wait_for(std::chrono::duration<double> timeout) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return num_unfinished_ == 0; });
  }

  /// Once done.
  std::span<const Generation> results() const noexcept { return results_; }

 private:
  std::optional<Token> take() {
    if (tokens_.empty()) return std::nullopt;
    std::optional<Token> token = std::move(tokens_.front());
    tokens_.pop_front();
    return token;
  }

  const std::uint64_t id_;
  const std::function<void(const Token&)> on_token_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Token> tokens_;
  std::vector<Generation> results_;
  int num_unfinished_;
};

}  // namespace detail

inline GenerationHandle::GenerationHandle(std::shared_ptr<detail::GenerationState> state,
                                          std::weak_ptr<detail::CancelQueue> cancel_queue)
    : state_(std::move(state)), cancel_queue_(std::move(cancel_queue)) {}

inline detail::GenerationState& GenerationHandle::state(std::string_view operation) const {
  detail::require(state_ != nullptr, ErrorCode::kArgument, operation,
                  "a handle must be of a request, got an empty one");
  return *state_;
}

inline std::uint64_t GenerationHandle::id() const noexcept { return state_ ? state_->id() : 0; }

inline std::optional<Token> GenerationHandle::next() {
  return state("GenerationHandle::next").next();
}

inline std::optional<Token> GenerationHandle::try_next() {
  return state("GenerationHandle::try_next").try_next();
}

inline bool GenerationHandle::is_done() const {
  return state("GenerationHandle::is_done").is_done();
}

inline void GenerationHandle::wait() const { state("GenerationHandle::wait").wait(); }

inline bool GenerationHandle::wait_for(std::chrono::duration<double> timeout) const {
  return state("GenerationHandle::wait_for").wait_for(timeout);
}

inline void GenerationHandle::cancel() {
  const int num_samples = state("GenerationHandle::cancel").num_samples();
  for (int sample = 0; sample < num_samples; ++sample) cancel(sample);
}

inline void GenerationHandle::cancel(int sample) {
  constexpr std::string_view kOperation = "GenerationHandle::cancel";
  const int num_samples = state(kOperation).num_samples();
  detail::require(sample >= 0 && sample < num_samples, ErrorCode::kArgument, kOperation,
                  "sample must be in [0, ", num_samples, "), got ", sample);
  if (const auto queue = cancel_queue_.lock()) queue->add({id(), sample});
}

inline const Generation& GenerationHandle::result(int sample) const {
  constexpr std::string_view kOperation = "GenerationHandle::result";
  const auto all = results();
  detail::require(sample >= 0 && static_cast<std::size_t>(sample) < all.size(),
                  ErrorCode::kArgument, kOperation, "sample must be in [0, ", all.size(), "), got ",
                  sample);
  return all[static_cast<std::size_t>(sample)];
}

inline std::span<const Generation> GenerationHandle::results() const {
  const detail::GenerationState& request = state("GenerationHandle::results");
  request.wait();
  return request.results();
}

}  // namespace kvick::inline v0_1
