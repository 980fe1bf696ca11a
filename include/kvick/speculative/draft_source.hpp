// SPDX-License-Identifier: MIT
// Where guesses about the next tokens come from.
//
// A source belongs to one text at a time and is asked once per round. It sees the whole text each
// time, so it finds out by itself what is new and what was taken back; nobody tells it which of its
// guesses were accepted. A source of one's own needs one function:
//
//   struct AlwaysComma {
//     void propose(const kvick::DraftContext&, kvick::Draft& draft) { draft.tokens = {11}; }
//   };
//
// Guesses are only guesses: the target model decides, so a source can make text late, not wrong.
//
// Layer     speculative: may include core, sampling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/sampling/sampler.hpp"

namespace kvick::inline v0_1 {

/// Most tokens that a round may draft.
inline constexpr int kMaxDraftTokens = 64;

/// Tokens that may come next, one after the other.
struct Draft {
  std::vector<TokenId> tokens = {};
  /// [tokens][vocab_size]: the distribution that each token was drawn from. Empty if tokens were
  /// not drawn: each was the only one possible.
  std::vector<double> probabilities = {};

  /// Keeps the memory.
  void clear() noexcept {
    tokens.clear();
    probabilities.clear();
  }
};

/// What a source is asked.
struct DraftContext {
  std::span<const TokenId> tokens;  ///< the prompt and all tokens after it; at least one
  std::uint64_t output_index = 0;   ///< generated tokens among them: index of the first drafted one
  int max_tokens = 1;               ///< at least 1; fewer, or none, may be proposed
  /// Draws the target's tokens, with the same random number for the same token at the same index.
  /// So a source that draws with it agrees with the target more often than by chance, and exactly
  /// if its logits are the target's.
  Sampler& sampler;
  /// Whether tokens that are drawn must be drawn independently of the target's draws, and stated
  /// with their `probabilities`. Whether a token is proposed must then not depend on which one was
  /// drawn there: those let through would follow another distribution than the one stated.
  bool draws_independently = false;
};

/// `draft` is empty before the call.
template <class S>
concept DraftSource = requires(S source, const DraftContext& context, Draft& draft) {
  source.propose(context, draft);
};

/// Proposes nothing: plain decoding.
struct NoDraft {
  void propose(const DraftContext&, Draft&) const noexcept {}
};

/// Asks one source after the other until one proposes something: the cheap ones first.
template <DraftSource... Sources>
class CombinedDraft {
 public:
  explicit CombinedDraft(Sources... sources) : sources_(std::move(sources)...) {}

  void propose(const DraftContext& context, Draft& draft) {
    std::apply(
        [&](auto&... source) { (... || (source.propose(context, draft), !draft.tokens.empty())); },
        sources_);
  }

 private:
  std::tuple<Sources...> sources_;
};

namespace detail {

/// Throws unless the source kept to what it was asked.
inline void check_draft(const Draft& draft, const DraftContext& context, int vocab_size,
                        std::string_view operation) {
  require(draft.tokens.size() <= static_cast<std::size_t>(context.max_tokens), ErrorCode::kArgument,
          operation, "a draft must have at most ", context.max_tokens, " tokens, got ",
          draft.tokens.size());
  for (const TokenId token : draft.tokens) {
    require(token >= 0 && token < vocab_size, ErrorCode::kArgument, operation,
            "drafted tokens must be in [0, ", vocab_size, "), got ", token);
  }
  const std::size_t num_probabilities = draft.tokens.size() * static_cast<std::size_t>(vocab_size);
  require(draft.probabilities.empty() || draft.probabilities.size() == num_probabilities,
          ErrorCode::kShape, operation, "a draft must have no probabilities or ", num_probabilities,
          ", got ", draft.probabilities.size());
}

}  // namespace detail

}  // namespace kvick::inline v0_1
