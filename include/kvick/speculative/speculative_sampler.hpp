// SPDX-License-Identifier: MIT
// The token of one position when a token was drafted there: the only difference between plain
// decoding and speculation that a caller sees, and in the default mode there is none.
//
//   kSeedExact          The target's sampler draws as if nothing had been drafted, and the drafted
//                       token is accepted if it is the one drawn. So the same seed gives the same
//                       text, with every option of the sampler. A draft model that draws with the
//                       same random numbers agrees with probability at least (1 - d) / (1 + d), d
//                       the total variation distance of the two distributions.
//   kDistributionExact  Rejection sampling: the text follows the same distribution as without
//                       drafts, but which text a seed gives depends on the drafts. A drafted token
//                       is accepted with probability 1 - d.
//
// With greedy choice both are the same.
//
// Errors    As Sampler and rejection_sample.
// Threads   One at a time.
// Source    Daliri, Musco, Suresh 2024 (drafter-invariant coupling); see rejection_sampling.hpp.
// Layer     speculative: may include core, sampling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/speculative/draft_source.hpp"
#include "kvick/speculative/rejection_sampling.hpp"

namespace kvick::inline v0_1 {

enum class SpeculationMode { kSeedExact, kDistributionExact };

class SpeculativeSampler {
 public:
  explicit SpeculativeSampler(const SamplingOptions& options = {},
                              SpeculationMode mode = SpeculationMode::kSeedExact)
      : sampler_(options), mode_(mode) {}

  Sampler& sampler() noexcept { return sampler_; }
  const SamplingOptions& options() const noexcept { return sampler_.options(); }

  /// The token with index `output_index` among the generated ones, for the logits after `history`.
  /// The one drafted there is draft.tokens[index], if there are so many; it is accepted if the
  /// result equals it, and everything drafted after it is void if not.
  TokenId sample(std::span<const float> logits, std::uint64_t output_index,
                 std::span<const TokenId> history, const Draft& draft, std::size_t index);

 private:
  Sampler sampler_;
  SpeculationMode mode_;
  std::vector<double> probabilities_;
};

// ---- Implementation: nothing below is API ----

inline TokenId SpeculativeSampler::sample(std::span<const float> logits, std::uint64_t output_index,
                                          std::span<const TokenId> history, const Draft& draft,
                                          std::size_t index) {
  if (mode_ == SpeculationMode::kSeedExact || options().temperature == 0.0f) {
    return sampler_.sample(logits, output_index, history);
  }
  probabilities_.resize(logits.size());
  sampler_.probabilities(logits, output_index, history, probabilities_);
  const auto uniform = [&](detail::Draw purpose) {
    return detail::keyed_uniform(options().seed, output_index, 0, purpose);
  };
  const double u_residual = uniform(detail::Draw::kResidual);
  // Of a token that was not drawn, drawing from p and comparing is rejection sampling: it is
  // accepted with probability p(x), and another token y takes its place with p(y).
  if (index >= draft.tokens.size() || draft.probabilities.empty()) {
    return sample_from(probabilities_, u_residual);
  }
  detail::require((index + 1) * logits.size() <= draft.probabilities.size(), ErrorCode::kShape,
                  "SpeculativeSampler::sample", "a draft must have ", logits.size(),
                  " probabilities per token, got ", draft.probabilities.size(), " for ",
                  draft.tokens.size());
  const auto q = std::span(draft.probabilities).subspan(index * logits.size(), logits.size());
  return rejection_sample(probabilities_, q, draft.tokens[index], uniform(detail::Draw::kAccept),
                          u_residual);
}

}  // namespace kvick::inline v0_1
