// SPDX-License-Identifier: MIT
// Bodies of EngineCore's members.
#pragma once

#include <limits>

#include "kvick/serving/engine_core.hpp"

namespace kvick::inline v0_1 {

/// The queue is bounded where requests come in, not a second time.
template <LanguageModel Model>
SchedulerOptions EngineCore<Model>::scheduler_options(const EngineOptions& options,
                                                      const Model& model) {
  SchedulerOptions scheduler = options.scheduler;
  scheduler.max_waiting_requests = std::numeric_limits<int>::max();
  scheduler.max_waiting_tokens = std::numeric_limits<std::int64_t>::max();
  scheduler.vocab_size = model.vocab_size();
  return scheduler;
}

template <LanguageModel Model>
EngineCore<Model>::EngineCore(Model& model, std::optional<Tokenizer> tokenizer,
                              const EngineOptions& options)
    : model_(model),
      tokenizer_(std::move(tokenizer)),
      speculation_(options.speculation),
      cache_(std::as_const(model).make_cache(
          detail::serving_cache_options(std::as_const(model), options))),
      scheduler_(scheduler_options(options, model), cache_),
      drafts_({.vocab_size = model.vocab_size(),
               .max_step_tokens = options.scheduler.max_num_batched_tokens,
               .clock_ms = [this] { return now_ms(); }},
              make_drafter(options)),
      intake_(options.scheduler.max_waiting_requests, options.scheduler.max_waiting_tokens),
      start_ms_(now_ms()) {
  detail::require(!tokenizer_ || tokenizer_->vocab_size() <= model.vocab_size(),
                  ErrorCode::kArgument, "EngineCore",
                  "the tokenizer's vocabulary must be the model's of ", model.vocab_size(),
                  " tokens, got ", tokenizer_ ? tokenizer_->vocab_size() : 0);
  detail::check_speculation(speculation_, drafts_.has_model(), "EngineCore");
}

template <LanguageModel Model>
std::unique_ptr<detail::BatchDrafter> EngineCore<Model>::make_drafter(
    const EngineOptions& options) const {
  detail::require(options.draft_path.empty(), ErrorCode::kArgument, "EngineCore",
                  "draft_path is for engines that load their models, got ",
                  detail::in_quotes(options.draft_path.string()));
  if (!options.draft_model) return nullptr;
  options.draft_model.check(std::as_const(model_));
  return options.draft_model.make(
      {.cache = detail::serving_cache_options(std::as_const(model_), options),
       .max_pass_tokens = options.scheduler.max_num_batched_tokens,
       .clock_ms = [this] { return now_ms(); }});
}

template <LanguageModel Model>
EngineCore<Model>::~EngineCore() {
  intake_.close();
  end_all(FinishReason::kCancelled);
}

// ---- Requests: in the thread that submits

template <LanguageModel Model>
std::vector<TokenId> EngineCore<Model>::prompt_tokens(const Prompt& prompt) const {
  if (prompt.tokens() != nullptr) return *prompt.tokens();
  detail::require(tokenizer_.has_value(), ErrorCode::kArgument, "Engine::submit",
                  "a prompt must be tokens where there is no tokenizer, got text");
  return tokenizer_->encode(*prompt.text(), {.add_eos = false});
}

template <LanguageModel Model>
void EngineCore<Model>::check_tokens(const GenerateOptions& options) const {
  const int vocab_size = model_.vocab_size();
  const auto check = [&](TokenId token, std::string_view option) {
    detail::require(token >= 0 && token < vocab_size, ErrorCode::kArgument, "Engine::submit",
                    "tokens of ", option, " must be in [0, ", vocab_size, "), got ", token);
  };
  for (const LogitBias& entry : options.logit_bias) check(entry.token, "logit_bias");
  for (const TokenId token : options.banned_tokens) check(token, "banned_tokens");
  for (const TokenId token : options.stop_tokens) check(token, "stop_tokens");
}

/// Ascending.
template <LanguageModel Model>
std::vector<TokenId> EngineCore<Model>::end_tokens(const GenerateOptions& options) const {
  std::vector<TokenId> tokens = options.stop_tokens;
  if (tokenizer_ && !options.ignores_end_tokens) {
    const auto ends = tokenizer_->end_of_generation_ids();
    tokens.insert(tokens.end(), ends.begin(), ends.end());
  }
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

template <LanguageModel Model>
detail::Submission EngineCore<Model>::prepare(GenerationRequest request, GenerationHandle& handle) {
  constexpr std::string_view kOperation = "Engine::submit";
  constexpr int kMaxNumSamples = 128;
  const GenerateOptions& options = request.options;
  const double arrival_ms = now_ms();
  const int vocab_size = model_.vocab_size();
  detail::require(options.num_samples >= 1 && options.num_samples <= kMaxNumSamples,
                  ErrorCode::kArgument, kOperation, "num_samples must be in [1, ", kMaxNumSamples,
                  "], got ", options.num_samples);
  detail::require(
      options.num_logprobs.value_or(0) >= 0 && options.num_logprobs.value_or(0) <= vocab_size,
      ErrorCode::kArgument, kOperation, "num_logprobs must be in [0, ", vocab_size, "], got ",
      options.num_logprobs.value_or(0));
  detail::require(tokenizer_ || options.stop.empty(), ErrorCode::kArgument, kOperation,
                  "stop strings need a tokenizer, got ", options.stop.size(), " without one");
  check_tokens(options);
  const SpeculationOptions speculation = options.speculation.value_or(speculation_);
  detail::check_speculation(speculation, drafts_.has_model(), kOperation);

  detail::Submission submission{.request = {.prompt = prompt_tokens(request.prompt),
                                            .max_new_tokens = options.max_new_tokens,
                                            .num_samples = options.num_samples,
                                            .priority = options.priority,
                                            .timeout_ms = options.timeout_ms,
                                            .prefix_key = options.prefix_key},
                                .arrival_ms = arrival_ms,
                                .speculation = speculation};
  scheduler_.check(submission.request, kOperation);

  const std::uint64_t seed = options.seed ? *options.seed : std::random_device()();
  const auto state =
      std::make_shared<detail::GenerationState>(next_id_.fetch_add(1, std::memory_order_relaxed),
                                                options.num_samples, std::move(request.on_token));
  const auto ends = end_tokens(options);
  for (int sample = 0; sample < options.num_samples; ++sample) {
    submission.samples.push_back(std::make_unique<Run>(
        state, sample, submission.request.prompt, options,
        seed + static_cast<std::uint64_t>(sample), ends, tokenizer_ ? &*tokenizer_ : nullptr,
        request.propose_drafts, arrival_ms));
  }
  handle = GenerationHandle(state, cancel_queue_);
  return submission;
}

template <LanguageModel Model>
GenerationHandle EngineCore<Model>::submit(GenerationRequest request, QueueLimits limits) {
  GenerationHandle handle;
  detail::Submission submission = prepare(std::move(request), handle);
  const auto refusal = intake_.offer(submission, limits == QueueLimits::kApply);
  if (!refusal) return handle;
  for (const auto& sample : submission.samples) {
    sample->reject(*refusal);
    sample->deliver();
  }
  return handle;
}

// ---- Steps: in the thread that runs the model

template <LanguageModel Model>
bool EngineCore<Model>::step() {
  step_start_ms_ = now_ms();
  accept_submissions();
  apply_cancellations();
  drafts_.propose(scheduler_);
  const Step step = scheduler_.schedule();
  if (step) compute(step);
  finish_ended();
  note_step(step, now_ms());
  deliver_ended();
  if (step) tail_ms_ = now_ms() - sampled_ms_;
  return !scheduler_.is_done() || !intake_.is_empty();
}

/// Times count from submission, so what the request has waited for this step is taken off.
template <LanguageModel Model>
void EngineCore<Model>::accept_submissions() {
  intake_.take(submissions_);
  for (detail::Submission& submission : submissions_) {
    Request& request = submission.request;
    const double waited_ms = now_ms() - submission.arrival_ms;
    request.timeout_ms = std::max(request.timeout_ms - waited_ms, 1e-6);
    const PrefixKey prefix_key = request.prefix_key;
    const RequestId first = *scheduler_.add_request(std::move(request));
    first_samples_.emplace(submission.samples.front()->request_id(), first);
    for (std::size_t i = 0; i < submission.samples.size(); ++i) {
      const RequestId id = first + static_cast<RequestId>(i);
      Run& run = *submission.samples[i];
      if (run.has_draft_source() || submission.speculation.kind != DraftKind::kNone) {
        drafts_.add(id, run, submission.speculation, prefix_key);
      }
      active_.emplace(id, std::move(submission.samples[i]));
    }
  }
}

template <LanguageModel Model>
void EngineCore<Model>::apply_cancellations() {
  cancel_queue_->take(cancellations_);
  for (const auto& [request, sample] : cancellations_) {
    const auto found = first_samples_.find(request);
    if (found != first_samples_.end()) scheduler_.cancel(found->second + sample);
  }
}

template <LanguageModel Model>
void EngineCore<Model>::compute(const Step& step) {
  try {
    forward(step);
    scheduler_.complete(step, results_);
  } catch (const std::exception& error) {
    fail_step(step, error.what());
  } catch (...) {
    fail_step(step, "the model threw something that is no std::exception");
  }
}

template <LanguageModel Model>
void EngineCore<Model>::forward(const Step& step) {
  const Index num_rows = step.batch.num_logits();
  if (logits_.rows() < num_rows) logits_.resize(num_rows, model_.vocab_size());
  model_.forward(step.batch, cache_, logits_.topRows(num_rows));
  results_.clear();
  const double computed_ms = now_ms();
  for (std::size_t i = 0; i < step.segments.size(); ++i) {
    const StepSegment& segment = step.segments[i];
    results_.emplace_back();
    if (segment.num_rows == 0) continue;
    const auto drafts =
        step.batch.segments()[i].tokens.last(static_cast<std::size_t>(segment.num_drafts));
    Run& run = *active_.at(segment.request);
    results_.back() = run.advance(logits_.middleRows(segment.first_row, segment.num_rows), drafts,
                                  segment.output_index);
    run.note_time(computed_ms, metrics_);
  }
  sampled_ms_ = now_ms();
  drafts_.learn(step, results_, computed_ms - step_start_ms_ + tail_ms_);
}

/// Ends everyone in the step, which leaves nothing behind.
template <LanguageModel Model>
void EngineCore<Model>::fail_step(const Step& step, std::string_view what) {
  for (const StepSegment& segment : step.segments) {
    active_.at(segment.request)->fail(what);
    scheduler_.finish(segment.request, FinishReason::kError);
  }
  scheduler_.abandon(step);
}

template <LanguageModel Model>
void EngineCore<Model>::finish_ended() {
  for (const RequestOutput& output : scheduler_.take_finished()) {
    const auto found = active_.find(output.id);
    ended_.push_back(std::move(found->second));
    active_.erase(found);
    drafts_.remove(output.id);
    ended_.back()->finish(output, metrics_);
  }
}

/// Who learns of an end finds it in the metrics.
template <LanguageModel Model>
void EngineCore<Model>::deliver_ended() {
  for (const auto& run : ended_) {
    if (!run->deliver()) continue;
    first_samples_.erase(run->request_id());
    intake_.count_finished();
  }
  ended_.clear();
}

template <LanguageModel Model>
double EngineCore<Model>::cache_usage() const {
  if constexpr (BlockRoom<Cache>) {
    return 1.0 - static_cast<double>(cache_.num_free_blocks()) / cache_.num_blocks();
  } else {
    return static_cast<double>(metrics_.num_running) / cache_.num_sequences();
  }
}

template <LanguageModel Model>
void EngineCore<Model>::note_step(const Step& step, double end_ms) {
  if (step) {
    metrics_.batch_size = static_cast<int>(step.segments.size());
    metrics_.num_step_tokens = static_cast<int>(step.batch.num_tokens());
    metrics_.busy_seconds += (end_ms - step_start_ms_) / 1000.0;
    metrics_.step_seconds.add((end_ms - step_start_ms_) / 1000.0);
    metrics_.batch_sizes.add(metrics_.batch_size);
    metrics_.step_tokens.add(metrics_.num_step_tokens);
  }
  publish(end_ms);
}

template <LanguageModel Model>
void EngineCore<Model>::publish(double now) {
  static_cast<SchedulerStatistics&>(metrics_) = scheduler_.statistics();
  intake_.set_waiting(metrics_.num_waiting, metrics_.num_waiting_tokens);
  metrics_.cache_usage = cache_usage();
  metrics_.draft_seconds = drafts_.draft_ms() / 1000.0;
  metrics_.uptime_seconds = (now - start_ms_) / 1000.0;
  const std::scoped_lock lock(metrics_mutex_);
  published_ = metrics_;
}

template <LanguageModel Model>
EngineMetrics EngineCore<Model>::metrics() const {
  EngineMetrics metrics;
  {
    const std::scoped_lock lock(metrics_mutex_);
    metrics = published_;
  }
  metrics.num_rejected = intake_.num_rejected();
  return metrics;
}

template <LanguageModel Model>
void EngineCore<Model>::end_all(FinishReason reason, std::string_view error) {
  accept_submissions();
  for (const auto& [id, run] : active_) {
    if (reason == FinishReason::kError) run->fail(error);
    scheduler_.finish(id, reason);
  }
  finish_ended();
  publish(now_ms());
  deliver_ended();
}

}  // namespace kvick::inline v0_1
