// SPDX-License-Identifier: MIT
// What an engine is asked to generate, and what it gives back.
//
// Defaults choose the most likely token each time, 128 at most.
//
// Layer     serving: may include core, cache, text, sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvick/cache/block_pool.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/sampling/logprobs.hpp"
#include "kvick/sampling/sampling_options.hpp"
#include "kvick/serving/metrics.hpp"
#include "kvick/serving/request.hpp"
#include "kvick/serving/speculation.hpp"  // IWYU pragma: export

namespace kvick::inline v0_1 {

/// How to generate, the same for all tokens of a request.
struct GenerateOptions {
  int max_new_tokens = 128;

  // How tokens are chosen, see SamplingOptions.
  float temperature = 0.0f;
  int top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::optional<std::uint64_t> seed = std::nullopt;  ///< none: a random one, see Generation::seed
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  int penalty_window = 64;
  std::vector<LogitBias> logit_bias = {};
  std::vector<TokenId> banned_tokens = {};
  int min_tokens = 0;

  // What ends the text, beside its length.
  std::vector<std::string> stop = {};     ///< not part of the text; needs a tokenizer
  std::vector<TokenId> stop_tokens = {};  ///< beside the tokens that end a text of the model
  bool ignores_end_tokens = false;        ///< goes on after the model's end tokens
  double timeout_ms = kNoTimeout;         ///< from submission

  /// How many independent continuations; the prompt is computed once. Sample i has seed + i.
  int num_samples = 1;
  /// Log probabilities of every token, and of this many likeliest ones beside it.
  std::optional<int> num_logprobs = std::nullopt;
  int priority = 0;           ///< higher goes first
  PrefixKey prefix_key = {};  ///< prefixes are shared with requests of the same key only
  /// How its tokens are drafted, which changes none of them; none: as EngineOptions says.
  std::optional<SpeculationOptions> speculation = std::nullopt;
};

/// A text, or its tokens.
class Prompt {
 public:
  Prompt() = default;
  Prompt(const char* text) : content_(std::string(text)) {}
  Prompt(std::string_view text) : content_(std::string(text)) {}
  Prompt(std::string text) : content_(std::move(text)) {}
  Prompt(std::vector<TokenId> tokens) : content_(std::move(tokens)) {}

  /// Nothing if it is tokens, and the other way round.
  const std::string* text() const noexcept { return std::get_if<std::string>(&content_); }
  const std::vector<TokenId>* tokens() const noexcept {
    return std::get_if<std::vector<TokenId>>(&content_);
  }

 private:
  std::variant<std::vector<TokenId>, std::string> content_;
};

/// One new token, and the text that can be shown once it is known.
struct Token {
  /// kNoToken (-1) for text that was held back and became free at the end of the sample.
  TokenId id = 0;
  int sample = 0;      ///< of num_samples
  int index = 0;       ///< among the new tokens of the sample
  std::string text{};  ///< may be empty: a character or a possible stop string is not complete
  std::optional<Logprobs> logprobs{};
};

using DraftFunction = std::function<void(std::span<const TokenId> tokens, int max_drafts,
                                         std::vector<TokenId>& drafts)>;

struct GenerationRequest {
  /// Control tokens written in a text are plain text; give tokens if they are meant.
  Prompt prompt = {};
  GenerateOptions options = {};
  /// Called in the thread that runs the model, which waits for it. If it throws, the request ends
  /// with an error. The texts of a sample's tokens, in order, make up Generation::text.
  std::function<void(const Token&)> on_token = {};
  /// Puts at most `max_drafts` guesses of what follows `tokens` into `drafts`, which is empty. The
  /// model verifies them in one step, so results do not depend on them. Called as on_token is, in
  /// place of what `speculation` asks for.
  DraftFunction propose_drafts = {};
};

/// What became of one sample of a request.
struct Generation {
  std::vector<TokenId> tokens{};  ///< an end token is not among them
  std::string text{};             ///< up to the stop string; empty without a tokenizer
  FinishReason finish_reason = FinishReason::kStop;
  std::string error{};               ///< what went wrong, for kError and kRejected
  std::vector<Logprobs> logprobs{};  ///< of each token, if asked for
  std::uint64_t seed = 0;            ///< the same request with this seed gives the same tokens
  RequestMetrics metrics{};
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// The part of the options that a Sampler sees.
inline SamplingOptions sampling_options(const GenerateOptions& options, std::uint64_t seed,
                                        std::vector<TokenId> end_tokens) {
  return {.temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .seed = seed,
          .repetition_penalty = options.repetition_penalty,
          .frequency_penalty = options.frequency_penalty,
          .presence_penalty = options.presence_penalty,
          .penalty_window = options.penalty_window,
          .logit_bias = options.logit_bias,
          .banned_tokens = options.banned_tokens,
          .min_tokens = options.min_tokens,
          .end_tokens = std::move(end_tokens)};
}

}  // namespace detail

}  // namespace kvick::inline v0_1
