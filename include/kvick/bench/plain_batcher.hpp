// SPDX-License-Identifier: MIT
// The least that serves a workload: slots of one cache, first come first served.
//
// What the ways of batching differ in, without anything else: static batches start together and end
// together; continuous batching gives a free slot to the next request at once; chunks bound the
// tokens of a step, so that a long prompt does not hold up those who wait for their next token.
//
// Accuracy  The tokens of a request are those of its lone run, whatever the batching, if the
//           model's logits are.
// Errors    Error(kArgument) for options out of range; Error(kCapacity) for a request that is
//           longer than a slot.
// Threads   One at a time.
// Layer     bench: may include core, model, sampling.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/bench/runner.hpp"
#include "kvick/bench/workload.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/sampling/sampler.hpp"

namespace kvick::inline v0_1 {

struct PlainBatcherOptions {
  int max_batch_size = 1;  ///< slots
  int max_seq_len = 0;     ///< prompt and output of a request; 0: the model's
  /// Of a step: every decoding request's one, the rest for prompts in order of arrival.
  int max_num_batched_tokens = 512;
  bool is_static = false;  ///< new requests wait until all slots are free
  ElementType cache_type = ElementType::kF16;
  SamplingOptions sampling = {};  ///< the seed is each request's own
};

template <LanguageModel Model>
class PlainBatcher {
 public:
  /// The model must outlive it.
  PlainBatcher(Model& model, const PlainBatcherOptions& options);

  void submit(std::size_t id, const WorkloadRequest& request);
  bool has_work() const noexcept { return !waiting_.empty() || num_running_ > 0; }
  /// One forward pass; the outputs are valid until the next.
  std::span<const StepOutput> step();

 private:
  static constexpr std::string_view kOperation = "PlainBatcher";

  struct Request {
    std::size_t id;
    std::size_t num_prompt_tokens;
    std::size_t num_output_tokens;
    Sampler sampler;
    std::vector<TokenId> tokens;  // prompt and output
    std::size_t num_computed = 0;

    std::size_t num_sampled() const { return tokens.size() - num_prompt_tokens; }
  };

  void admit();
  void plan();
  void sample();

  Model& model_;
  PlainBatcherOptions options_;
  typename Model::Cache cache_;
  std::deque<Request> waiting_;
  std::vector<std::optional<Request>> slots_;
  std::vector<int> order_;  // running slots, by admission
  int num_running_ = 0;
  Batch batch_;
  Matrix logits_;
  std::vector<StepOutput> outputs_;
};

// ---- Implementation: nothing below is API ----

template <LanguageModel Model>
PlainBatcher<Model>::PlainBatcher(Model& model, const PlainBatcherOptions& options)
    : model_(model),
      options_(options),
      cache_(model.make_cache({.num_sequences = options.max_batch_size,
                               .max_seq_len = options.max_seq_len,
                               .element_type = options.cache_type})),
      slots_(static_cast<std::size_t>(options.max_batch_size)) {
  detail::require(options.max_num_batched_tokens >= options.max_batch_size, ErrorCode::kArgument,
                  kOperation, "max_num_batched_tokens must be at least max_batch_size ",
                  options.max_batch_size, ", got ", options.max_num_batched_tokens);
}

template <LanguageModel Model>
void PlainBatcher<Model>::submit(std::size_t id, const WorkloadRequest& request) {
  detail::require(!request.prompt.empty() && request.num_output_tokens >= 1, ErrorCode::kArgument,
                  kOperation, "a request must have a prompt and at least one output token, got ",
                  request.prompt.size(), " and ", request.num_output_tokens);
  const std::size_t num_tokens =
      request.prompt.size() + static_cast<std::size_t>(request.num_output_tokens);
  // The last token is not computed.
  detail::require(num_tokens - 1 <= static_cast<std::size_t>(cache_.max_seq_len()),
                  ErrorCode::kCapacity, kOperation, "a request must fit the ", cache_.max_seq_len(),
                  " tokens of a slot, got a prompt of ", request.prompt.size(), " and ",
                  request.num_output_tokens, " output tokens");
  SamplingOptions sampling = options_.sampling;
  sampling.seed = request.seed;
  waiting_.push_back({id, request.prompt.size(),
                      static_cast<std::size_t>(request.num_output_tokens), Sampler(sampling),
                      request.prompt});
}

template <LanguageModel Model>
void PlainBatcher<Model>::admit() {
  if (options_.is_static && num_running_ > 0) return;
  for (std::size_t slot = 0; slot < slots_.size() && !waiting_.empty(); ++slot) {
    if (slots_[slot]) continue;
    slots_[slot] = std::move(waiting_.front());
    waiting_.pop_front();
    order_.push_back(static_cast<int>(slot));
    ++num_running_;
  }
}

/// Decoding requests have one token left to compute, prompts more; a chunk that does not reach the
/// last known token wants no logits.
template <LanguageModel Model>
void PlainBatcher<Model>::plan() {
  batch_.clear();
  auto budget = static_cast<std::size_t>(options_.max_num_batched_tokens);
  for (const bool is_decode : {true, false}) {
    for (const int slot : order_) {
      const Request& request = *slots_[static_cast<std::size_t>(slot)];
      const std::size_t num_left = request.tokens.size() - request.num_computed;
      if ((num_left == 1 && request.num_sampled() > 0) != is_decode || budget == 0) continue;
      const std::size_t count = std::min(num_left, budget);
      budget -= count;
      detail::require(cache_.reserve(slot, static_cast<int>(count)), ErrorCode::kCapacity,
                      kOperation, "the cache must have room for the length it was made for");
      batch_.add({.sequence = slot,
                  .first_position = static_cast<int>(request.num_computed),
                  .tokens = std::span(request.tokens).subspan(request.num_computed, count),
                  .num_logits = count == num_left ? 1 : 0});
    }
  }
}

template <LanguageModel Model>
void PlainBatcher<Model>::sample() {
  outputs_.clear();
  Index row = 0;
  for (const Segment& segment : batch_.segments()) {
    const int slot = segment.sequence;
    Request& request = *slots_[static_cast<std::size_t>(slot)];
    cache_.commit(slot, segment.tokens);
    request.num_computed += segment.tokens.size();
    if (segment.num_logits == 0) continue;
    const std::span<const float> logits(logits_.row(row++).data(),
                                        static_cast<std::size_t>(logits_.cols()));
    const TokenId token = request.sampler.sample(logits, request.num_sampled(), request.tokens);
    request.tokens.push_back(token);
    const bool is_finished = request.num_sampled() == request.num_output_tokens;
    outputs_.push_back({request.id, {token}, is_finished});
  }
  const auto is_finished = [&](int slot) {
    const Request& request = *slots_[static_cast<std::size_t>(slot)];
    return request.num_sampled() == request.num_output_tokens;
  };
  for (const int slot : order_) {
    if (!is_finished(slot)) continue;
    cache_.release(slot);
    --num_running_;
  }
  std::erase_if(order_, [&](int slot) {
    const bool ends = is_finished(slot);
    if (ends) slots_[static_cast<std::size_t>(slot)].reset();
    return ends;
  });
}

template <LanguageModel Model>
std::span<const StepOutput> PlainBatcher<Model>::step() {
  admit();
  plan();
  const Index num_logits = batch_.num_logits();
  if (logits_.rows() < num_logits) logits_.resize(num_logits, model_.vocab_size());
  model_.forward(batch_, cache_, logits_.topRows(num_logits));
  sample();
  return outputs_;
}

}  // namespace kvick::inline v0_1
