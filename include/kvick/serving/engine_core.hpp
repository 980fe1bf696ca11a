// SPDX-License-Identifier: MIT
// Many requests on one model, without threads: a scheduler, a cache and samplers, driven by step().
//
//   kvick::EngineCore core(model, tokenizer, {.scheduler = {.max_batch_size = 8}});
//   auto handle = core.submit({.prompt = "Once upon a time"});
//   while (core.step()) {}                      // one forward pass each
//   std::cout << handle.result().text;
//
// For a program that has a loop of its own; Engine adds a thread.
//
// Results   The tokens of a request depend on its prompt, its options and its seed only: not on
//           what else runs, when it came, or whether it was preempted. (A model keeps that promise
//           if its logits do, as Transformer's do.)
// Drafts    Requests may have their tokens drafted, by looking back in the text or by a draft model
//           of the engine: see SpeculationOptions. The model verifies the drafts of all, more or
//           fewer of each, in the step it takes anyway, as far as its budgets go. It changes no
//           result, only time.
// Ends      End tokens of the vocabulary, stop tokens, stop strings (found across tokens, and held
//           back until they cannot be one), length, cancellation, timeout: see FinishReason.
// Failures  What is wrong with one request ends that one, with kError and the message: a throwing
//           on_token or propose_drafts, logits that are NaN. If the model itself throws, those in
//           that step end so; if the draft model does, those that it was drafting for.
// Errors    submit() throws Error(kArgument) for options out of range and Error(kCapacity) for a
//           request that can never fit. A full queue is no error: the request ends at once with
//           kRejected.
// Threads   submit(), metrics() and handles: any. Everything else: one at a time.
// Layer     serving: may include core, cache, model, text, sampling, speculative.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/serving/engine_drafts.hpp"
#include "kvick/serving/engine_options.hpp"
#include "kvick/serving/generation.hpp"
#include "kvick/serving/generation_handle.hpp"
#include "kvick/serving/intake.hpp"
#include "kvick/serving/metrics.hpp"
#include "kvick/serving/sample_run.hpp"
#include "kvick/serving/scheduler.hpp"
#include "kvick/text/tokenizer.hpp"

namespace kvick::inline v0_1 {

/// Whether the limits of the queue apply to a request.
enum class QueueLimits { kApply, kIgnore };

template <LanguageModel Model>
class EngineCore {
 public:
  using Cache = typename Model::Cache;

  /// The model must outlive the engine. Without a tokenizer, prompts and results are tokens.
  explicit EngineCore(Model& model, const EngineOptions& options = {})
      : EngineCore(model, std::optional<Tokenizer>(), options) {}
  EngineCore(Model& model, std::optional<Tokenizer> tokenizer, const EngineOptions& options = {});
  /// Requests that have not ended are cancelled.
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  GenerationHandle submit(GenerationRequest request, QueueLimits limits = QueueLimits::kApply);

  /// Runs one step; whether there is more to do.
  bool step();
  /// Ends all requests that have not ended.
  void end_all(FinishReason reason, std::string_view error = {});
  /// From now on every request is refused.
  void close() { intake_.close(); }

  EngineMetrics metrics() const;

  const std::optional<Tokenizer>& tokenizer() const noexcept { return tokenizer_; }
  const Scheduler<Cache>& scheduler() const noexcept { return scheduler_; }
  const Cache& cache() const noexcept { return cache_; }
  /// Sequences that the draft model's cache holds.
  int num_draft_sequences() const noexcept { return drafts_.num_model_sequences(); }

 protected:
  detail::Intake& intake() noexcept { return intake_; }

 private:
  using Run = detail::SampleRun;

  double now_ms() const { return scheduler_.now_ms(); }
  std::vector<TokenId> prompt_tokens(const Prompt& prompt) const;
  void check_tokens(const GenerateOptions& options) const;
  std::vector<TokenId> end_tokens(const GenerateOptions& options) const;
  detail::Submission prepare(GenerationRequest request, GenerationHandle& handle);

  void accept_submissions();
  void apply_cancellations();
  void compute(const Step& step);
  void forward(const Step& step);
  void fail_step(const Step& step, std::string_view what);
  void finish_ended();
  void note_step(const Step& step, double end_ms);
  void publish(double now);
  void deliver_ended();
  double cache_usage() const;

  static SchedulerOptions scheduler_options(const EngineOptions& options, const Model& model);
  std::unique_ptr<detail::BatchDrafter> make_drafter(const EngineOptions& options) const;

  Model& model_;
  std::optional<Tokenizer> tokenizer_;
  SpeculationOptions speculation_;
  Cache cache_;
  Scheduler<Cache> scheduler_;
  detail::EngineDrafts drafts_;
  detail::Intake intake_;
  std::shared_ptr<detail::CancelQueue> cancel_queue_ = std::make_shared<detail::CancelQueue>();
  std::atomic<std::uint64_t> next_id_ = 1;
  double start_ms_;

  std::unordered_map<RequestId, std::unique_ptr<Run>> active_;
  std::unordered_map<std::uint64_t, RequestId> first_samples_;  // by the id of handles

  double step_start_ms_ = 0.0;
  double sampled_ms_ = 0.0;  // when the step's tokens were drawn
  double tail_ms_ = 0.0;     // what the last step took after that

  // Of the step; they only grow.
  Matrix logits_;
  std::vector<SegmentResult> results_;
  std::vector<std::unique_ptr<Run>> ended_;
  std::vector<detail::Submission> submissions_;
  std::vector<detail::Cancellation> cancellations_;

  mutable std::mutex metrics_mutex_;
  EngineMetrics metrics_;    // of the thread that steps
  EngineMetrics published_;  // guarded
};

}  // namespace kvick::inline v0_1

// ---- Implementation: nothing below is API ----

#include "kvick/serving/impl/engine_core.hpp"
