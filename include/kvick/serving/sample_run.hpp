// SPDX-License-Identifier: MIT
// One sample of a request while it is generated: from logits to tokens, to text, to its reader.
//
// Private to the engine. All that goes wrong here is the end of this sample with an error, and
// nothing else.
//
// Layer     serving: may include core, text, sampling.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/sampling/logprobs.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/serving/generation.hpp"
#include "kvick/serving/generation_handle.hpp"
#include "kvick/serving/metrics.hpp"
#include "kvick/serving/request.hpp"
#include "kvick/serving/scheduler_types.hpp"
#include "kvick/text/text_stream.hpp"
#include "kvick/text/tokenizer.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1::detail {

class SampleRun {
 public:
  /// Sample `index` of the request behind `state`; end tokens ascending. Throws Error(kArgument)
  /// for options out of range.
  SampleRun(std::shared_ptr<GenerationState> state, int index, std::span<const TokenId> prompt,
            const GenerateOptions& options, std::uint64_t seed, std::vector<TokenId> end_tokens,
            const Tokenizer* tokenizer, DraftFunction propose_drafts, double arrival_ms);

  std::uint64_t request_id() const noexcept { return state_->id(); }
  /// The prompt and what follows.
  std::span<const TokenId> tokens() const noexcept { return tokens_; }
  std::size_t num_new_tokens() const noexcept { return tokens_.size() - num_prompt_tokens_; }
  Sampler& sampler() noexcept { return sampler_; }
  bool has_draft_source() const noexcept { return propose_drafts_ != nullptr; }
  /// Guesses that follow what there is, all of them tokens; false if their source failed.
  bool propose_drafts(int max_drafts, int vocab_size, std::vector<TokenId>& drafts) noexcept;

  /// Chooses tokens by rows of logits: of the first the next one, and as long as drafts are chosen,
  /// of the row after each draft one more. Hands them to the reader. Valid until the next call.
  SegmentResult advance(const ConstMatrixRef& logits, std::span<const TokenId> drafts,
                        int output_index) noexcept;

  /// The end of this sample if the model itself failed.
  SegmentResult fail(std::string_view what) noexcept;

  /// All tokens of the last advance() came at this time.
  void note_time(double now_ms, EngineMetrics& metrics);

  /// The result is complete, and what was held back of its text goes to the reader.
  void finish(const RequestOutput& output, EngineMetrics& metrics);
  /// The result of one that no queue had room for.
  void reject(std::string_view why);
  /// Gives the result to handles; whether it was the last sample of the request.
  bool deliver() { return state_->finish(index_, std::move(result_)); }

 private:
  void flush_text();
  void set_metrics(const RequestProgress& progress, EngineMetrics& metrics);
  void accept(TokenId token, const ConstMatrixRef& logits, Index row);
  void push(Token token) { state_->push(std::move(token)); }

  std::shared_ptr<GenerationState> state_;
  int index_;
  std::vector<TokenId> tokens_;  // the prompt and what follows
  std::size_t num_prompt_tokens_;
  std::vector<TokenId> end_tokens_;
  std::optional<int> num_logprobs_;
  Sampler sampler_;
  std::optional<TextStream> text_;
  DraftFunction propose_drafts_;
  double arrival_ms_;
  double first_token_ms_ = 0.0;
  double last_token_ms_ = 0.0;
  Generation result_;

  // Of the last advance().
  std::vector<TokenId> emitted_;
  std::optional<FinishReason> finish_;
};

// ---- Implementation: nothing below is API ----

inline SampleRun::SampleRun(std::shared_ptr<GenerationState> state, int index,
                            std::span<const TokenId> prompt, const GenerateOptions& options,
                            std::uint64_t seed, std::vector<TokenId> end_tokens,
                            const Tokenizer* tokenizer, DraftFunction propose_drafts,
                            double arrival_ms)
    : state_(std::move(state)),
      index_(index),
      tokens_(prompt.begin(), prompt.end()),
      num_prompt_tokens_(prompt.size()),
      end_tokens_(end_tokens),
      num_logprobs_(options.num_logprobs),
      sampler_(sampling_options(options, seed, std::move(end_tokens))),
      propose_drafts_(std::move(propose_drafts)),
      arrival_ms_(arrival_ms) {
  if (tokenizer != nullptr) text_.emplace(*tokenizer, prompt, options.stop);
  result_.seed = seed;
}

/// One more token. Throws if logits or reader are at fault.
inline void SampleRun::accept(TokenId token, const ConstMatrixRef& logits, Index row) {
  emitted_.push_back(token);
  if (std::binary_search(end_tokens_.begin(), end_tokens_.end(), token)) {
    finish_ = FinishReason::kStop;
    return;
  }
  Token event{.id = token,
              .sample = index_,
              .index = static_cast<int>(tokens_.size() - num_prompt_tokens_)};
  tokens_.push_back(token);
  if (text_) event.text = text_->push(token);
  result_.text += event.text;
  if (text_ && text_->has_stopped()) finish_ = FinishReason::kStop;
  if (num_logprobs_) {
    event.logprobs = kvick::logprobs(
        {logits.row(row).data(), static_cast<std::size_t>(logits.cols())}, token, *num_logprobs_);
    result_.logprobs.push_back(*event.logprobs);
  }
  push(std::move(event));
}

inline SegmentResult SampleRun::advance(const ConstMatrixRef& logits,
                                        std::span<const TokenId> drafts,
                                        int output_index) noexcept {
  emitted_.clear();
  finish_.reset();
  try {
    for (Index row = 0; row < logits.rows() && !finish_; ++row) {
      const auto i = static_cast<std::size_t>(row);
      const std::span<const float> row_logits(logits.row(row).data(),
                                              static_cast<std::size_t>(logits.cols()));
      const TokenId token =
          sampler_.sample(row_logits, static_cast<std::uint64_t>(output_index + row), tokens_);
      accept(token, logits, row);
      if (i < drafts.size() && token != drafts[i]) break;
    }
  } catch (const std::exception& error) {
    return fail(error.what());
  } catch (...) {
    return fail("on_token threw something that is no std::exception");
  }
  return {emitted_, finish_};
}

inline SegmentResult SampleRun::fail(std::string_view what) noexcept {
  try {
    result_.error = what;
  } catch (const std::bad_alloc&) {  // then without words
  }
  finish_ = FinishReason::kError;
  return {emitted_, finish_};
}

inline void SampleRun::note_time(double now_ms, EngineMetrics& metrics) {
  RequestMetrics& own = result_.metrics;
  for (std::size_t i = 0; i < emitted_.size(); ++i) {
    if (own.num_generated_tokens == 0) {
      first_token_ms_ = now_ms;
      own.ttft_ms = now_ms - arrival_ms_;
      metrics.ttft_seconds.add(own.ttft_ms / 1000.0);
    } else {
      const double gap_ms = i == 0 ? now_ms - last_token_ms_ : 0.0;
      own.itl_ms.push_back(static_cast<float>(gap_ms));
      metrics.itl_seconds.add(gap_ms / 1000.0);
    }
    ++own.num_generated_tokens;
  }
  if (!emitted_.empty()) last_token_ms_ = now_ms;
}

inline bool SampleRun::propose_drafts(int max_drafts, int vocab_size,
                                      std::vector<TokenId>& drafts) noexcept {
  drafts.clear();
  try {
    propose_drafts_(tokens_, max_drafts, drafts);
  } catch (const std::exception& error) {
    fail(error.what());
    return false;
  } catch (...) {
    fail("propose_drafts threw something that is no std::exception");
    return false;
  }
  const auto is_wrong = [&](TokenId token) { return token < 0 || token >= vocab_size; };
  drafts.erase(std::find_if(drafts.begin(), drafts.end(), is_wrong), drafts.end());
  return true;
}

/// The text that was held back can no longer be a stop string.
inline void SampleRun::flush_text() {
  std::string rest = text_ ? text_->finish() : "";
  if (rest.empty()) return;
  result_.text += rest;
  push({.id = kNoToken,
        .sample = index_,
        .index = static_cast<int>(tokens_.size() - num_prompt_tokens_),
        .text = std::move(rest)});
}

inline void SampleRun::finish(const RequestOutput& output, EngineMetrics& metrics) {
  result_.finish_reason = output.reason;
  if (output.reason != FinishReason::kError) {
    try {
      flush_text();
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("on_token threw something that is no std::exception");
    }
    if (!result_.error.empty()) result_.finish_reason = FinishReason::kError;
  }
  result_.tokens.assign(tokens_.begin() + static_cast<std::ptrdiff_t>(num_prompt_tokens_),
                        tokens_.end());
  ++metrics.num_finished_by[static_cast<std::size_t>(result_.finish_reason)];
  set_metrics(output.progress, metrics);
}

inline void SampleRun::set_metrics(const RequestProgress& progress, EngineMetrics& metrics) {
  RequestMetrics& own = result_.metrics;
  own.num_prompt_tokens = progress.num_prompt_tokens;
  own.num_cached_tokens = progress.num_cached_tokens;
  own.num_draft_rounds = progress.num_draft_rounds;
  own.num_draft_tokens = progress.num_draft_tokens;
  own.num_accepted_tokens = progress.num_accepted_tokens;
  own.num_preemptions = progress.num_preemptions;
  const bool has_begun = !std::isnan(progress.first_step_ms);
  own.queued_ms = (has_begun ? progress.first_step_ms : progress.finish_ms) - arrival_ms_;
  own.e2el_ms = progress.finish_ms - arrival_ms_;
  if (own.num_generated_tokens > 1) {
    own.tpot_ms = (last_token_ms_ - first_token_ms_) / (own.num_generated_tokens - 1);
    metrics.tpot_seconds.add(own.tpot_ms / 1000.0);
  }
  metrics.queued_seconds.add(own.queued_ms / 1000.0);
  metrics.e2el_seconds.add(own.e2el_ms / 1000.0);
}

inline void SampleRun::reject(std::string_view why) {
  result_.finish_reason = FinishReason::kRejected;
  result_.error = why;
}

}  // namespace kvick::inline v0_1::detail
