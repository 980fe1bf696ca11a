// SPDX-License-Identifier: MIT
// The drafts of an engine's requests: who wants some, how many, from where, and what they gained.
//
// Private to the engine. Each request that speculates has its own index of its text and its own
// account of what drafting brings (AdaptiveDraft); the draft model is shared.
//
// Of the time of a step, a request is charged what its rows took and an equal part of what the
// step takes anyway (the weights are read once for all), by a StepCostModel that learns from the
// steps of the engine. What a row costs so is stated in plain steps of the same batch: the account
// then holds when others join or leave.
//
// Layer     serving: may include core, cache, model, sampling, speculative.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvick/cache/block_pool.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/serving/model_drafter.hpp"
#include "kvick/serving/request.hpp"
#include "kvick/serving/sample_run.hpp"
#include "kvick/serving/scheduler_types.hpp"
#include "kvick/serving/speculation.hpp"
#include "kvick/serving/step_cost.hpp"
#include "kvick/speculative/adaptive_draft.hpp"
#include "kvick/speculative/draft_source.hpp"
#include "kvick/speculative/prompt_lookup.hpp"

namespace kvick::inline v0_1::detail {

class EngineDrafts {
 public:
  struct Options {
    int vocab_size = 0;
    int max_step_tokens = 0;
    std::function<double()> clock_ms = {};
  };

  /// The model may be none.
  EngineDrafts(Options options, std::unique_ptr<BatchDrafter> model)
      : options_(std::move(options)), model_(std::move(model)) {}

  bool has_model() const noexcept { return model_ != nullptr; }
  /// Sequences in the cache of the draft model.
  int num_model_sequences() const noexcept { return model_ ? model_->num_sequences() : 0; }

  /// A request that speculates; `run` lives until remove().
  void add(RequestId id, SampleRun& run, const SpeculationOptions& options, const PrefixKey& key);
  /// Of any request.
  void remove(RequestId id);

  /// Gives the scheduler drafts for its next step, and ends requests whose source failed.
  template <class Scheduler>
  void propose(Scheduler& scheduler);

  /// What came of a step that took so long with the drafts of the last propose(), but without what
  /// each new token takes however it came: sampling, and its reader.
  void learn(const Step& step, std::span<const SegmentResult> results, double step_ms);

  /// Spent in propose() so far.
  double draft_ms() const noexcept { return draft_ms_; }

 private:
  struct Entry {
    SampleRun* run = nullptr;
    SpeculationOptions options;
    PrefixKey key;
    PromptLookup lookup = PromptLookup();
    AdaptiveDraft adaptive;
    // Of the step:
    Draft draft = {};
    double draft_ms = 0;
    bool is_measure = true;
    bool has_failed = false;
  };

  int num_wanted(const Entry& entry) const noexcept;
  void ask(RequestId id, Entry& entry, int max_tokens);
  void look_up(Entry& entry, int max_tokens);
  void ask_model();
  static StepShape shape_of(const Segment& segment, int num_rows) noexcept;

  Options options_;
  std::unique_ptr<BatchDrafter> model_;
  std::map<RequestId, Entry> entries_;  // those that came first are asked first
  std::vector<DraftJob> jobs_;
  std::vector<Entry*> job_entries_;
  StepCostModel cost_;
  double round_ms_ = 0;  // of the last propose()
  double draft_ms_ = 0;
};

// ---- Implementation: nothing below is API ----

inline void EngineDrafts::add(RequestId id, SampleRun& run, const SpeculationOptions& options,
                              const PrefixKey& key) {
  entries_.emplace(id, Entry{.run = &run,
                             .options = options,
                             .key = key,
                             .adaptive = AdaptiveDraft({.max_tokens = options.draft_tokens})});
}

inline void EngineDrafts::remove(RequestId id) {
  if (entries_.erase(id) > 0 && model_) model_->forget(id);
}

/// A function of the caller's knows best itself.
inline int EngineDrafts::num_wanted(const Entry& entry) const noexcept {
  if (entry.run->has_draft_source()) return options_.max_step_tokens;
  return entry.options.adapts ? entry.adaptive.choose() : entry.options.draft_tokens;
}

template <class Scheduler>
void EngineDrafts::propose(Scheduler& scheduler) {
  round_ms_ = 0;
  if (entries_.empty()) return;
  const double start_ms = options_.clock_ms();
  jobs_.clear();
  job_entries_.clear();
  // Drafts that the step has no budget for would be made in vain.
  int left = options_.max_step_tokens - scheduler.statistics().num_running;
  for (auto& [id, entry] : entries_) {
    entry.draft.clear();
    entry.draft_ms = 0;
    entry.is_measure = true;
    const int count = std::min({num_wanted(entry), scheduler.num_useful_drafts(id), left});
    if (count <= 0) continue;
    const std::size_t num_jobs = jobs_.size();
    ask(id, entry, count);
    left -= jobs_.size() > num_jobs ? count : static_cast<int>(entry.draft.tokens.size());
  }
  if (!jobs_.empty()) ask_model();
  for (auto& [id, entry] : entries_) {
    if (entry.has_failed) {
      scheduler.finish(id, FinishReason::kError);
    } else if (!entry.draft.tokens.empty()) {
      scheduler.set_drafts(id, entry.draft.tokens);
    }
  }
  round_ms_ = options_.clock_ms() - start_ms;
  draft_ms_ += round_ms_;
}

inline void EngineDrafts::ask(RequestId id, Entry& entry, int max_tokens) {
  SampleRun& run = *entry.run;
  if (run.has_draft_source()) {
    entry.has_failed = !run.propose_drafts(max_tokens, options_.vocab_size, entry.draft.tokens);
    return;
  }
  if (uses_lookup(entry.options.kind)) look_up(entry, max_tokens);
  if (entry.has_failed || !entry.draft.tokens.empty() || !uses_model(entry.options.kind)) return;
  // The first draft of a text is no measure, so it is a short one.
  if (entry.options.adapts && !model_->knows(id)) max_tokens = 1;
  jobs_.push_back({.request = id,
                   .tokens = run.tokens(),
                   .prefix_key = &entry.key,
                   .output_index = run.num_new_tokens(),
                   .max_tokens = max_tokens,
                   .sampler = &run.sampler(),
                   .drafts = &entry.draft.tokens});
  job_entries_.push_back(&entry);
}

inline void EngineDrafts::look_up(Entry& entry, int max_tokens) {
  SampleRun& run = *entry.run;
  const double start_ms = options_.clock_ms();
  try {
    entry.lookup.propose({.tokens = run.tokens(),
                          .output_index = run.num_new_tokens(),
                          .max_tokens = max_tokens,
                          .sampler = run.sampler()},
                         entry.draft);
  } catch (const std::exception& error) {  // no memory
    run.fail(error.what());
    entry.has_failed = true;
  }
  entry.draft_ms += options_.clock_ms() - start_ms;
}

inline void EngineDrafts::ask_model() {
  model_->propose(jobs_);
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    Entry& entry = *job_entries_[i];
    entry.draft_ms += jobs_[i].ms;
    entry.is_measure = jobs_[i].is_measure;
    if (!jobs_[i].error) continue;
    entry.run->fail(*jobs_[i].error);
    entry.has_failed = true;
  }
}

inline StepShape EngineDrafts::shape_of(const Segment& segment, int num_rows) noexcept {
  StepShape shape;
  shape.add_decode(num_rows, segment.first_position);
  return shape;
}

/// Steps with a prompt in them are no measure of decoding.
inline void EngineDrafts::learn(const Step& step, std::span<const SegmentResult> results,
                                double step_ms) {
  if (entries_.empty()) return;
  const auto segments = step.batch.segments();
  StepShape shape;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto num_rows = static_cast<int>(segments[i].tokens.size());
    if (num_rows != step.segments[i].num_rows || step.segments[i].output_index == 0) return;
    shape.add_decode(num_rows, segments[i].first_position);
  }
  const double target_ms = step_ms - round_ms_;
  cost_.observe(shape, target_ms);
  const StepCost& cost = cost_.cost();
  const double common = cost.base / static_cast<double>(segments.size());
  const double slowness = target_ms / cost(shape);  // of this step
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto found = entries_.find(step.segments[i].request);
    if (found == entries_.end() || !found->second.is_measure) continue;
    Entry& entry = found->second;
    const int num_drafts = step.segments[i].num_drafts;
    const double plain_ms = cost(shape_of(segments[i], 1)) - cost.base + common;
    const double own_ms = cost(shape_of(segments[i], 1 + num_drafts)) - cost.base + common;
    if (!(plain_ms > 0) || !(slowness > 0)) continue;
    const auto num_accepted = std::max<std::ptrdiff_t>(std::ssize(results[i].tokens) - 1, 0);
    entry.adaptive.record({.num_drafted = num_drafts,
                           .num_accepted = static_cast<int>(num_accepted),
                           .draft_seconds = entry.draft_ms / plain_ms,
                           .verify_seconds = slowness * own_ms / plain_ms});
  }
}

}  // namespace kvick::inline v0_1::detail
