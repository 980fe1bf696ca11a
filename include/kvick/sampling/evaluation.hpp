// SPDX-License-Identifier: MIT
// How well a model predicts given tokens, and how far its predictions are from another model's.
//
// Tokens are cut in consecutive windows of `context` tokens, the last one shorter. Every window
// starts with an empty cache, and each of its tokens but the first is scored by the logits of the
// one before it. So N tokens give N - ceil(N / context) scores. Nothing is added: later windows
// begin with whatever token comes next, not with a begin of sequence token.
//
// Units     Natural logarithms: nats.
// Accuracy  In double from the model's own logits, one score after the other in order of position,
//           so the same logits give the same bits for any number of threads. A divergence is a sum
//           of terms of both signs: below about 1e-15 it is rounding, and less than 0 becomes 0.
//           Of equal logits it is exactly 0.
// Memory    Logits of 128 tokens at a time, per model, and a few doubles per token.
// Errors    Error(kArgument) for fewer than two tokens, tokens outside the vocabulary, a context
//           that is below 2 or beyond a model, logits that are NaN, +inf or all -inf; Error(kShape)
//           for models whose vocabularies differ in size.
// Threads   Models run in this thread, with pools of their own; scores of a chunk are computed by
//           `threads` threads.
// Source    Kullback and Leibler 1951.
// Layer     sampling: may include core, model.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/math.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/statistics.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/sampling/logprobs.hpp"

namespace kvick::inline v0_1 {

struct EvaluationOptions {
  int context = 0;  ///< tokens of a window, at least 2; 0: as many as the models allow
  ElementType cache_type = ElementType::kF16;
  int threads = 0;  ///< that turn logits into scores; 0: default_num_threads()
  /// Called after every chunk with the number of scored tokens and of those to score.
  std::function<void(std::size_t done, std::size_t total)> progress = {};
};

/// -ln P(token) for every scored token, in order.
template <LanguageModel Model>
std::vector<double> negative_log_likelihoods(Model& model, std::span<const TokenId> tokens,
                                             const EvaluationOptions& options = {});

/// Two models on the same tokens: one entry per scored token, in order.
struct ModelComparison {
  std::vector<double> nll;            ///< -ln P_model(token)
  std::vector<double> reference_nll;  ///< -ln P_reference(token)
  std::vector<double> divergence;     ///< KL(P_reference || P_model) of the next token
  std::vector<double> same_top;       ///< 1 if both have the same most likely token, else 0
};

template <LanguageModel Model, LanguageModel Reference>
ModelComparison compare_models(Model& model, Reference& reference, std::span<const TokenId> tokens,
                               const EvaluationOptions& options = {});

/// KL(P_reference || P_model) = sum of P_reference ln(P_reference / P_model), from logits of the
/// same tokens. Infinite if the model excludes a token that the reference does not.
inline double kl_divergence(std::span<const float> reference_logits, std::span<const float> logits);

/// e^nll; its standard error is that of the nll times the perplexity (first order).
inline MeanEstimate perplexity(const MeanEstimate& nll) noexcept;

struct ComparisonSummary {
  MeanEstimate nll;
  MeanEstimate reference_nll;
  MeanEstimate nll_difference;  ///< model - reference, token by token: far surer than either mean
  MeanEstimate divergence;
  double median_divergence = 0.0;
  double p99_divergence = 0.0;
  double max_divergence = 0.0;
  MeanEstimate same_top;  ///< a share: 1 if the models always agree
};

inline ComparisonSummary summarize(const ModelComparison& comparison);

// ---- Implementation: nothing below is API ----

namespace detail {

/// Tokens per forward pass: enough to share the reading of weights, while 128 rows of logits of
/// 150,000 tokens have 77 MB.
inline constexpr std::size_t kEvaluationChunkTokens = 128;

/// A model on its way through the windows, and the logits of its last chunk.
template <LanguageModel Model>
class WindowReader {
 public:
  WindowReader(Model& model, int max_tokens, ElementType cache_type)
      : model_(model),
        cache_(model.make_cache({.max_seq_len = max_tokens, .element_type = cache_type})) {}

  void start_window() { cache_.release(0); }

  /// Computes the next tokens of the window and the logits of each.
  void read(std::span<const TokenId> tokens) {
    const int num_tokens = static_cast<int>(tokens.size());
    if (logits_.rows() < num_tokens) logits_.resize(num_tokens, model_.vocab_size());
    require(cache_.reserve(0, num_tokens), ErrorCode::kCapacity, "WindowReader",
            "the cache that the model made must have room for the window it was made for");
    model_.forward(Batch({.sequence = 0,
                          .first_position = cache_.length(0),
                          .tokens = tokens,
                          .num_logits = num_tokens}),
                   cache_, logits_.topRows(num_tokens));
    cache_.commit(0, tokens);
  }

  std::span<const float> logits(Index row) const {
    return {logits_.row(row).data(), static_cast<std::size_t>(logits_.cols())};
  }

 private:
  Model& model_;
  typename Model::Cache cache_;
  Matrix logits_;
};

/// Cuts tokens in windows and these in chunks, checked.
class EvaluationPlan {
 public:
  EvaluationPlan(std::span<const TokenId> tokens, const EvaluationOptions& options, int max_context,
                 int vocab_size, std::string_view operation)
      : tokens_(tokens), options_(options) {
    require(tokens.size() >= 2, ErrorCode::kArgument, operation,
            "tokens must be at least 2, of which all but the first are scored, got ",
            tokens.size());
    const int context = options.context == 0 ? max_context : options.context;
    require(context >= 2 && context <= max_context, ErrorCode::kArgument, operation,
            "context must be in [2, ", max_context, "], got ", context);
    for (const TokenId token : tokens) {
      require(token >= 0 && token < vocab_size, ErrorCode::kArgument, operation,
              "token ids must be in [0, ", vocab_size, "), got ", token);
    }
    window_ = std::min(static_cast<std::size_t>(context), tokens.size());
  }

  /// What a cache must hold: the last token of a window is scored and never computed.
  int max_cached_tokens() const { return static_cast<int>(window_) - 1; }

  std::size_t num_scores() const {
    const std::size_t num_windows = (tokens_.size() - 1) / window_ + 1;
    return tokens_.size() - num_windows;
  }

  /// Calls score(i, token, logits of each reader...) for every scored token, whose number is i.
  /// Calls of one chunk come from several threads.
  template <class Score, class... Readers>
  void run(Score&& score, Readers&... readers) const {
    ThreadPool pool(options_.threads);
    std::size_t num_done = 0;
    for (std::size_t begin = 0; begin < tokens_.size(); begin += window_) {
      const auto window = tokens_.subspan(begin, std::min(window_, tokens_.size() - begin));
      (readers.start_window(), ...);
      for (std::size_t at = 0; at + 1 < window.size(); at += kEvaluationChunkTokens) {
        const std::size_t count = std::min(kEvaluationChunkTokens, window.size() - 1 - at);
        const auto targets = window.subspan(at + 1, count);
        (readers.read(window.subspan(at, count)), ...);
        pool.parallel_for(static_cast<Index>(count), [&](Index first, Index last) {
          for (Index row = first; row < last; ++row) {
            const auto i = static_cast<std::size_t>(row);
            score(num_done + i, targets[i], readers.logits(row)...);
          }
        });
        num_done += count;
        if (options_.progress) options_.progress(num_done, num_scores());
      }
    }
  }

 private:
  std::span<const TokenId> tokens_;
  const EvaluationOptions& options_;
  std::size_t window_ = 0;
};

inline std::size_t most_likely_token(std::span<const float> logits) noexcept {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Both terms of the difference round alike for equal logits: 0.
inline double divergence_sum(std::span<const float> reference_logits,
                             const LogSoftmax& reference_log_softmax, std::span<const float> logits,
                             const LogSoftmax& log_softmax) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double reference_logprob = reference_log_softmax(reference_logits[i]);
    const double probability = math::exp(reference_logprob);
    if (probability == 0.0) continue;  // p ln p goes to 0 with p
    sum = std::fma(probability, reference_logprob - log_softmax(logits[i]), sum);
  }
  return std::max(sum, 0.0);
}

}  // namespace detail

template <LanguageModel Model>
std::vector<double> negative_log_likelihoods(Model& model, std::span<const TokenId> tokens,
                                             const EvaluationOptions& options) {
  const detail::EvaluationPlan plan(tokens, options, model.max_seq_len(), model.vocab_size(),
                                    "negative_log_likelihoods");
  std::vector<double> nll(plan.num_scores());
  detail::WindowReader<Model> reader(model, plan.max_cached_tokens(), options.cache_type);
  plan.run(
      [&](std::size_t i, TokenId token, std::span<const float> logits) {
        nll[i] = -LogSoftmax(logits)(logits[static_cast<std::size_t>(token)]);
      },
      reader);
  return nll;
}

template <LanguageModel Model, LanguageModel Reference>
ModelComparison compare_models(Model& model, Reference& reference, std::span<const TokenId> tokens,
                               const EvaluationOptions& options) {
  constexpr std::string_view kOperation = "compare_models";
  detail::require(model.vocab_size() == reference.vocab_size(), ErrorCode::kShape, kOperation,
                  "models must have vocabularies of the same size, got ", model.vocab_size(),
                  " and ", reference.vocab_size());
  const int max_context = std::min<int>(model.max_seq_len(), reference.max_seq_len());
  const detail::EvaluationPlan plan(tokens, options, max_context, model.vocab_size(), kOperation);
  const std::vector<double> zeros(plan.num_scores());
  ModelComparison result{zeros, zeros, zeros, zeros};
  detail::WindowReader<Model> reader(model, plan.max_cached_tokens(), options.cache_type);
  detail::WindowReader<Reference> reference_reader(reference, plan.max_cached_tokens(),
                                                   options.cache_type);
  plan.run(
      [&](std::size_t i, TokenId token, std::span<const float> logits,
          std::span<const float> reference_logits) {
        const LogSoftmax log_softmax(logits);
        const LogSoftmax reference_log_softmax(reference_logits);
        const auto column = static_cast<std::size_t>(token);
        result.nll[i] = -log_softmax(logits[column]);
        result.reference_nll[i] = -reference_log_softmax(reference_logits[column]);
        result.divergence[i] =
            detail::divergence_sum(reference_logits, reference_log_softmax, logits, log_softmax);
        result.same_top[i] =
            detail::most_likely_token(logits) == detail::most_likely_token(reference_logits) ? 1.0
                                                                                             : 0.0;
      },
      reader, reference_reader);
  return result;
}

inline double kl_divergence(std::span<const float> reference_logits,
                            std::span<const float> logits) {
  detail::require(reference_logits.size() == logits.size(), ErrorCode::kShape, "kl_divergence",
                  "both logits must have the same size, got ", reference_logits.size(), " and ",
                  logits.size());
  const ScopedFpEnvironment fp_environment;
  return detail::divergence_sum(reference_logits, LogSoftmax(reference_logits), logits,
                                LogSoftmax(logits));
}

inline MeanEstimate perplexity(const MeanEstimate& nll) noexcept {
  const ScopedFpEnvironment fp_environment;
  const double value = math::exp(nll.mean);
  return {value, value * nll.standard_error};
}

inline ComparisonSummary summarize(const ModelComparison& comparison) {
  std::vector<double> differences(comparison.nll.size());
  detail::require(comparison.reference_nll.size() == differences.size(), ErrorCode::kShape,
                  "summarize", "both models must have a score for each token, got ",
                  differences.size(), " and ", comparison.reference_nll.size());
  for (std::size_t i = 0; i < differences.size(); ++i) {
    differences[i] = comparison.nll[i] - comparison.reference_nll[i];
  }
  return {.nll = mean_estimate(comparison.nll),
          .reference_nll = mean_estimate(comparison.reference_nll),
          .nll_difference = mean_estimate(differences),
          .divergence = mean_estimate(comparison.divergence),
          .median_divergence = quantile(comparison.divergence, 0.5),
          .p99_divergence = quantile(comparison.divergence, 0.99),
          .max_divergence = quantile(comparison.divergence, 1.0),
          .same_top = mean_estimate(comparison.same_top)};
}

}  // namespace kvick::inline v0_1
