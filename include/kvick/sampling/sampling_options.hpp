// SPDX-License-Identifier: MIT
// How tokens are chosen: every option of the sampler, and their check.
//
// Defaults change nothing: the most likely token of the model's own logits.
//
// Errors    check_sampling_options throws Error(kArgument) that names option, value and range.
// Source    Repetition penalty: Keskar et al. 2019 (CTRL). Frequency and presence penalties, logit
//           bias: OpenAI API. Top-k: Fan et al. 2018. Top-p: Holtzman et al. 2019. Min-p: Nguyen et
//           al. 2024.
// Layer     sampling: may include core.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"

namespace kvick::inline v0_1 {

/// Added to the logit of a token; -inf bans it.
struct LogitBias {
  TokenId token = 0;
  float bias = 0.0f;
};

struct SamplingOptions {
  float temperature = 0.0f;  ///< 0: greedy, the most likely token
  int top_k = 0;             ///< keep this many most likely tokens; 0 keeps all
  float top_p = 1.0f;        ///< keep the fewest most likely tokens with this much probability
  float min_p = 0.0f;        ///< keep tokens with at least this share of the best one's probability
  std::uint64_t seed = 0;

  float repetition_penalty = 1.0f;  ///< divides positive, multiplies other logits of seen tokens
  float frequency_penalty = 0.0f;   ///< taken from a logit for each time its token was seen
  float presence_penalty = 0.0f;    ///< taken from a logit once if its token was seen
  int penalty_window = 64;          ///< seen: among this many last tokens; -1: among all

  std::vector<LogitBias> logit_bias = {};
  std::vector<TokenId> banned_tokens = {};  ///< never chosen
  int min_tokens = 0;                       ///< end tokens are not chosen before this many others
  std::vector<TokenId> end_tokens = {};     ///< the tokens that end a text
};

/// Throws unless every option is in its range.
inline void check_sampling_options(const SamplingOptions& options, std::string_view operation);

// ---- Implementation: nothing below is API ----

inline void check_sampling_options(const SamplingOptions& o, std::string_view operation) {
  const auto check = [&](bool ok, std::string_view rule, auto value) {
    detail::require(ok, ErrorCode::kArgument, operation, rule, ", got ", value);
  };
  check(std::isfinite(o.temperature) && o.temperature >= 0.0f, "temperature must be at least 0",
        o.temperature);
  check(o.top_k >= 0, "top_k must be at least 0", o.top_k);
  check(o.top_p >= 0.0f && o.top_p <= 1.0f, "top_p must be in [0, 1]", o.top_p);
  check(o.min_p >= 0.0f && o.min_p <= 1.0f, "min_p must be in [0, 1]", o.min_p);
  check(std::isfinite(o.repetition_penalty) && o.repetition_penalty > 0.0f,
        "repetition_penalty must be positive", o.repetition_penalty);
  check(std::isfinite(o.frequency_penalty), "frequency_penalty must be finite",
        o.frequency_penalty);
  check(std::isfinite(o.presence_penalty), "presence_penalty must be finite", o.presence_penalty);
  check(o.penalty_window >= -1, "penalty_window must be at least -1", o.penalty_window);
  check(o.min_tokens >= 0, "min_tokens must be at least 0", o.min_tokens);
  for (const LogitBias& entry : o.logit_bias) {
    check(std::isfinite(entry.bias) || entry.bias == -std::numeric_limits<float>::infinity(),
          "a logit bias must be finite or -inf", entry.bias);
    check(entry.token >= 0, "the token of a logit bias must not be negative", entry.token);
  }
  for (const TokenId token : o.banned_tokens) {
    check(token >= 0, "banned tokens must not be negative", token);
  }
  for (const TokenId token : o.end_tokens) {
    check(token >= 0, "end tokens must not be negative", token);
  }
}

}  // namespace kvick::inline v0_1
