// SPDX-License-Identifier: MIT
// The rules that change logits before any token is left out: bias, bans, minimum length, penalties.
//
// Applied in this order (llama.cpp's default where it has them):
//   1. logit bias: logit + bias
//   2. banned tokens, and end tokens while fewer than min_tokens were generated: -inf
//   3. for each distinct token among the last penalty_window of the history, seen `count` times:
//      logit > 0 ? logit / repetition_penalty : logit * repetition_penalty,
//      then minus (count * frequency_penalty + presence_penalty)
//
// Accuracy  f32, each step rounded once, the last sum of penalties by one fma.
// Errors    Error(kArgument) for a token of an option or of the history beyond the vocabulary.
// Threads   A LogitRules belongs to one thread at a time.
// Layer     sampling: may include core.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/sampling/sampling_options.hpp"

namespace kvick::inline v0_1 {

class LogitRules {
 public:
  /// Throws Error(kArgument) for options out of range.
  explicit LogitRules(const SamplingOptions& options) : options_(options) {
    check_sampling_options(options, "Sampler");
  }

  const SamplingOptions& options() const noexcept { return options_; }

  /// Whether apply() could change anything.
  bool any(std::uint64_t output_index) const noexcept;

  /// Changes `logits` in place. `history` is the prompt and all tokens after it, drafted ones
  /// included, up to the position these logits are for; `output_index` counts the generated ones.
  void apply(std::span<float> logits, std::uint64_t output_index, std::span<const TokenId> history);

 private:
  bool has_penalties() const noexcept {
    return options_.penalty_window != 0 &&
           (options_.repetition_penalty != 1.0f || options_.frequency_penalty != 0.0f ||
            options_.presence_penalty != 0.0f);
  }
  bool forbids_end(std::uint64_t output_index) const noexcept {
    return output_index < static_cast<std::uint64_t>(options_.min_tokens);
  }
  void apply_penalties(std::span<float> logits, std::span<const TokenId> history);

  static constexpr std::string_view kOperation = "LogitRules::apply";

  SamplingOptions options_;
  std::vector<TokenId> seen_;  // sorted copy of the window
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline float& logit_of(std::span<float> logits, TokenId token, std::string_view operation) {
  require(token >= 0 && static_cast<std::size_t>(token) < logits.size(), ErrorCode::kArgument,
          operation, "tokens must be in [0, ", logits.size(), "), got ", token);
  return logits[static_cast<std::size_t>(token)];
}

/// One token's penalties.
inline float penalized(float logit, int count, const SamplingOptions& options) noexcept {
  const float repeated =
      logit > 0.0f ? logit / options.repetition_penalty : logit * options.repetition_penalty;
  const float penalty =
      std::fma(static_cast<float>(count), options.frequency_penalty, options.presence_penalty);
  return std::fma(-1.0f, penalty, repeated);  // repeated - penalty, with nothing left to contract
}

}  // namespace detail

inline bool LogitRules::any(std::uint64_t output_index) const noexcept {
  return has_penalties() || forbids_end(output_index) || !options_.logit_bias.empty() ||
         !options_.banned_tokens.empty();
}

inline void LogitRules::apply(std::span<float> logits, std::uint64_t output_index,
                              std::span<const TokenId> history) {
  constexpr float kBanned = -std::numeric_limits<float>::infinity();
  for (const LogitBias& entry : options_.logit_bias) {
    detail::logit_of(logits, entry.token, kOperation) += entry.bias;
  }
  for (const TokenId token : options_.banned_tokens) {
    detail::logit_of(logits, token, kOperation) = kBanned;
  }
  if (forbids_end(output_index)) {
    for (const TokenId token : options_.end_tokens) {
      detail::logit_of(logits, token, kOperation) = kBanned;
    }
  }
  if (has_penalties()) apply_penalties(logits, history);
}

inline void LogitRules::apply_penalties(std::span<float> logits, std::span<const TokenId> history) {
  if (options_.penalty_window > 0) {
    const auto window = static_cast<std::size_t>(options_.penalty_window);
    history = history.last(std::min(window, history.size()));
  }
  seen_.assign(history.begin(), history.end());
  std::sort(seen_.begin(), seen_.end());
  for (std::size_t i = 0; i < seen_.size();) {
    const TokenId token = seen_[i];
    int count = 0;
    for (; i < seen_.size() && seen_[i] == token; ++i) ++count;
    float& logit = detail::logit_of(logits, token, kOperation);
    logit = detail::penalized(logit, count, options_);
  }
}

}  // namespace kvick::inline v0_1
