// SPDX-License-Identifier: MIT
// Runs a workload on the engine that serves: an EngineCore, which is driven step by step, or an
// Engine, whose thread computes meanwhile.
//
//   kvick::EngineCore core(model, {.scheduler = {.max_batch_size = 8}});
//   kvick::EngineTarget target(core);
//   const auto result = kvick::run_workload(target, workload);
//
// Every request gets the tokens that the workload says, whatever the model says about the end.
//
// Errors    What submit() throws. A request that the engine refuses or ends with an error is a
//           failed one of the run.
// Threads   One at a time; an Engine's own thread beside.
// Layer     bench: may include core, serving.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kvick/bench/runner.hpp"
#include "kvick/bench/workload.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/sampling/sampling_options.hpp"
#include "kvick/serving/generation.hpp"
#include "kvick/serving/generation_handle.hpp"

namespace kvick::inline v0_1 {

/// Something that takes requests.
template <class E>
concept GenerationEngine = requires(E engine, GenerationRequest request) {
  { engine.submit(std::move(request)) } -> std::same_as<GenerationHandle>;
};

/// One that computes when it is told to.
template <class E>
concept SteppedEngine = GenerationEngine<E> && requires(E engine) {
  engine.step();
};

/// A ServingTarget.
template <GenerationEngine Engine>
class EngineTarget {
 public:
  /// The engine must outlive it. `options` are those of every request; its length and seed are the
  /// workload's.
  explicit EngineTarget(Engine& engine, GenerateOptions options = {})
      : engine_(engine), options_(std::move(options)) {}

  void submit(std::size_t id, const WorkloadRequest& request);
  bool has_work() const noexcept { return !active_.empty(); }

  /// One step of the engine; the outputs are valid until the next.
  std::span<const StepOutput> step() requires SteppedEngine<Engine> {
    engine_.step();
    return collect();
  }
  /// What has come out, after at most so many seconds.
  std::span<const StepOutput> wait(double max_seconds) requires(!SteppedEngine<Engine>);

 private:
  /// Where the engine's thread leaves tokens.
  struct Inbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::pair<std::size_t, TokenId>> tokens;
  };
  struct Active {
    std::size_t id;
    std::size_t num_left;  // tokens
    GenerationHandle handle;
  };

  std::span<const StepOutput> collect();

  Engine& engine_;
  GenerateOptions options_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::vector<Active> active_;  // in order of arrival
  std::vector<std::pair<std::size_t, TokenId>> tokens_;
  std::vector<StepOutput> outputs_;
};

/// Serves in the way of engines without continuous batching: so many requests start together, and
/// the next ones when all of them are done.
template <ServingTarget Target>
class StaticBatches {
 public:
  /// The target must outlive it.
  StaticBatches(Target& target, int batch_size)
      : target_(target), batch_size_(static_cast<std::size_t>(std::max(batch_size, 1))) {}

  void submit(std::size_t id, const WorkloadRequest& request) {
    waiting_.emplace_back(id, request);
  }
  bool has_work() const { return !waiting_.empty() || target_.has_work(); }
  std::span<const StepOutput> step();

 private:
  Target& target_;
  std::size_t batch_size_;
  std::vector<std::pair<std::size_t, WorkloadRequest>> waiting_;
};

/// The options of requests that draw as a Sampler with these does. End tokens, and the least number
/// of tokens before one, are left out: in a benchmark nothing ends before its time.
inline GenerateOptions generate_options(const SamplingOptions& sampling);

// ---- Implementation: nothing below is API ----

template <GenerationEngine Engine>
void EngineTarget<Engine>::submit(std::size_t id, const WorkloadRequest& request) {
  GenerationRequest wanted{.prompt = request.prompt, .options = options_};
  wanted.options.max_new_tokens = request.num_output_tokens;
  wanted.options.seed = request.seed;
  wanted.options.ignores_end_tokens = true;
  wanted.on_token = [id, inbox = inbox_](const Token& token) {
    if (token.id < 0) return;  // text without a token
    {
      const std::scoped_lock lock(inbox->mutex);
      inbox->tokens.emplace_back(id, token.id);
    }
    inbox->changed.notify_one();
  };
  active_.push_back({id, static_cast<std::size_t>(request.num_output_tokens), {}});
  try {
    active_.back().handle = engine_.submit(std::move(wanted));
  } catch (...) {
    active_.pop_back();
    throw;
  }
}

template <GenerationEngine Engine>
std::span<const StepOutput> EngineTarget<Engine>::wait(double max_seconds) requires(
    !SteppedEngine<Engine>) {
  // Nothing is told of requests that fail: they are looked for so often.
  constexpr double kLongestSeconds = 0.02;
  {
    std::unique_lock lock(inbox_->mutex);
    inbox_->changed.wait_for(
        lock, std::chrono::duration<double>(std::clamp(max_seconds, 0.0, kLongestSeconds)),
        [&] { return !inbox_->tokens.empty(); });
  }
  return collect();
}

/// A request is done with its last token: an engine in a thread says so a moment later.
template <GenerationEngine Engine>
std::span<const StepOutput> EngineTarget<Engine>::collect() {
  outputs_.clear();
  std::vector<bool> has_ended;
  has_ended.reserve(active_.size());
  // Before the tokens are taken: what has ended gave all of them.
  for (const Active& request : active_) has_ended.push_back(request.handle.is_done());
  tokens_.clear();
  {
    const std::scoped_lock lock(inbox_->mutex);
    tokens_.swap(inbox_->tokens);
  }
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Active& request = active_[i];
    StepOutput output{.request = request.id};
    for (const auto& [id, token] : tokens_) {
      if (id == request.id) output.tokens.push_back(token);
    }
    request.num_left -= output.tokens.size();
    output.is_finished = request.num_left == 0;
    output.is_failed = has_ended[i] && !output.is_finished;
    if (!output.tokens.empty() || output.is_failed) outputs_.push_back(std::move(output));
  }
  std::erase_if(active_, [&](const Active& request) {
    return std::any_of(outputs_.begin(), outputs_.end(), [&](const StepOutput& output) {
      return output.request == request.id && (output.is_finished || output.is_failed);
    });
  });
  return outputs_;
}

template <ServingTarget Target>
std::span<const StepOutput> StaticBatches<Target>::step() {
  if (!target_.has_work()) {
    const std::size_t count = std::min(batch_size_, waiting_.size());
    for (std::size_t i = 0; i < count; ++i) target_.submit(waiting_[i].first, waiting_[i].second);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return target_.step();
}

inline GenerateOptions generate_options(const SamplingOptions& sampling) {
  return {.temperature = sampling.temperature,
          .top_k = sampling.top_k,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .seed = sampling.seed,
          .repetition_penalty = sampling.repetition_penalty,
          .frequency_penalty = sampling.frequency_penalty,
          .presence_penalty = sampling.presence_penalty,
          .penalty_window = sampling.penalty_window,
          .logit_bias = sampling.logit_bias,
          .banned_tokens = sampling.banned_tokens};
}

}  // namespace kvick::inline v0_1
