// SPDX-License-Identifier: MIT
// Log probabilities of tokens, from the model's own logits.
//
// They are raw: the log-softmax of the logits as the model gave them, before bias, penalties,
// truncation and temperature, so they say what the model thought and not how the token was chosen.
//
// Units     Natural logarithms.
// Accuracy  In double; the sum runs over tokens in ascending order, so the same logits give the
//           same bits everywhere.
// Errors    Error(kArgument) for logits that are NaN, +inf or all -inf, and for a token beyond
//           them.
// Threads   Pure functions.
// Layer     sampling: may include core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/math.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/sampling/check_logits.hpp"

namespace kvick::inline v0_1 {

struct TokenLogprob {
  TokenId token = 0;
  double logprob = 0.0;  ///< -inf for a logit of -inf
};

struct Logprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< the most likely, descending; equals ascending by token
};

/// Turns logits into log probabilities.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits);

  /// The log probability of a token with this logit. Exact to a few ulp however large logits are,
  /// because the maximum is taken off first.
  double operator()(float logit) const noexcept { return (logit - max_) - log_sum_; }

 private:
  double max_;      // the largest logit
  double log_sum_;  // ln of the sum of e^(logit - max)
};

/// The log probability of the chosen token and of the `num_top` most likely ones.
inline Logprobs logprobs(std::span<const float> logits, TokenId chosen, int num_top);

// ---- Implementation: nothing below is API ----

inline LogSoftmax::LogSoftmax(std::span<const float> logits) {
  detail::check_logits(logits, "LogSoftmax");
  const ScopedFpEnvironment fp_environment;
  max_ = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += math::exp(logit - max_);
  log_sum_ = math::log(sum);
}

inline Logprobs logprobs(std::span<const float> logits, TokenId chosen, int num_top) {
  constexpr std::string_view kOperation = "logprobs";
  detail::require(chosen >= 0 && static_cast<std::size_t>(chosen) < logits.size(),
                  ErrorCode::kArgument, kOperation, "chosen must be in [0, ", logits.size(),
                  "), got ", chosen);
  detail::require(num_top >= 0, ErrorCode::kArgument, kOperation,
                  "num_top must be at least 0, got ", num_top);
  const LogSoftmax log_softmax(logits);
  const auto entry = [&](TokenId token) {
    return TokenLogprob{token, log_softmax(logits[static_cast<std::size_t>(token)])};
  };
  std::vector<TokenId> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), TokenId{0});
  const auto count = std::min(static_cast<std::size_t>(num_top), tokens.size());
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                    tokens.end(), [&](TokenId a, TokenId b) {
                      const float x = logits[static_cast<std::size_t>(a)];
                      const float y = logits[static_cast<std::size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
  Logprobs result{entry(chosen), {}};
  for (std::size_t i = 0; i < count; ++i) result.top.push_back(entry(tokens[i]));
  return result;
}

}  // namespace kvick::inline v0_1
