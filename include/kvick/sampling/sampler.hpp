// SPDX-License-Identifier: MIT
// From logits to a token: truncation, temperature and an exact, repeatable draw.
//
// Steps, in this order (llama.cpp's default): logit bias, bans and penalties (see logit_rules.hpp),
// top-k, top-p, min-p, temperature, draw. Each works on the tokens that the steps before it kept;
// probabilities in top-p and min-p are the softmax over those, before temperature. Greedy choice,
// temperature 0, takes the likeliest token after the rules.
//
// The draw is Gumbel-max: the token with the largest logit / temperature + g wins, where
// g = -ln(-ln u) and u is a uniform number in (0, 1) that depends on (seed, output index, token id)
// only. So a choice depends on the logits and that key alone: not on the batch, on earlier draws,
// or on how many tokens survived, and it follows the softmax of the surviving tokens.
//
// Accuracy  Probabilities and scores in double. Ties go to the lower token id, everywhere.
// Errors    Error(kArgument) for options out of range, and for logits that are NaN, +inf or all
//           -inf, or none.
// Threads   A Sampler belongs to one thread at a time. No allocation unless there are more logits
//           than ever before.
// Source    Gumbel-max: Gumbel 1954, Maddison et al. 2014. Others: see sampling_options.hpp.
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
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/math.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/random.hpp"
#include "kvick/sampling/check_logits.hpp"
#include "kvick/sampling/logit_rules.hpp"
#include "kvick/sampling/sampling_options.hpp"

namespace kvick::inline v0_1 {

/// The most likely token; the lowest id of equals.
inline TokenId argmax(std::span<const float> logits);

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options = {}) : rules_(options) {}

  const SamplingOptions& options() const noexcept { return rules_.options(); }

  /// The token with index `output_index` among those generated for this request. Penalties look at
  /// `history`: the prompt and all tokens after it, up to the position of these logits.
  TokenId sample(std::span<const float> logits, std::uint64_t output_index,
                 std::span<const TokenId> history = {});

  /// The distribution that sample() draws from: `out` gets a probability per token, 0 for what the
  /// options exclude. Of greedy choice, 1 for the token it takes.
  void probabilities(std::span<const float> logits, std::uint64_t output_index,
                     std::span<const TokenId> history, std::span<double> out);

 private:
  struct Candidate {
    float logit;
    TokenId token;
  };

  /// Descending by logit, equals ascending by token: a total order, so results do not depend on how
  /// a standard library sorts.
  static bool is_before(const Candidate& a, const Candidate& b) noexcept {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  }

  TokenId choose(std::span<const float> logits, std::uint64_t output_index,
                 std::span<const TokenId> history);
  void distribute(std::span<const float> logits, std::uint64_t output_index,
                  std::span<const TokenId> history, std::span<double> out);
  std::span<const float> apply_rules(std::span<const float> logits, std::uint64_t output_index,
                                     std::span<const TokenId> history);
  void truncate(std::span<const float> logits);
  void collect(std::span<const float> logits);
  void sort_first(std::size_t count);
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();
  TokenId draw(std::uint64_t output_index) const;

  LogitRules rules_;
  std::vector<float> adjusted_;  // logits after the rules
  std::vector<Candidate> candidates_;
  std::size_t num_sorted_ = 0;  // the first so many are the best, in order
  Candidate best_{};
};

// ---- Implementation: nothing below is API ----

namespace detail {

// What computes is not inlined, so that no arithmetic leaves the guard of its caller.

[[gnu::noinline]] inline TokenId index_of_max(std::span<const float> logits) noexcept {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// What a random number is for: each purpose has its own.
enum class Draw : std::uint32_t {
  kGumbel = 0,    ///< noise of one token
  kDraft = 1,     ///< the choice of a drafted token
  kAccept = 2,    ///< whether a drafted token is accepted
  kResidual = 3,  ///< the token in place of a rejected one, or after all drafted ones
};

/// The uniform number of one purpose and token at one output index: Philox4x32 with key {seed} and
/// counter {output index, token, purpose}.
inline double keyed_uniform(std::uint64_t seed, std::uint64_t output_index, TokenId token,
                            Draw purpose) noexcept {
  const auto words = Philox4x32::generate(
      {static_cast<std::uint32_t>(output_index), static_cast<std::uint32_t>(output_index >> 32),
       static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(purpose)},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return uniform_open(words[0], words[1]);
}

/// Standard Gumbel noise.
inline double gumbel_noise(double uniform) noexcept { return -math::log(-math::log(uniform)); }

/// No noise exceeds it: the largest uniform is 1 - 2^-53, and -ln(2^-53) = 36.74.
inline constexpr double kMaxGumbelNoise = 36.75;

/// True only if the noise is below `limit`, up to 1e-12; false if a few products cannot tell.
/// Since -ln u >= 1 - u, the noise is at most -ln(1 - u); and (1 + x / 16)^16 <= e^x for x >= 0.
inline bool is_noise_below(double limit, double uniform) noexcept {
  if (limit <= 0.0) return false;
  double power = 1.0 + limit / 16.0;
  for (int i = 0; i < 4; ++i) power *= power;
  return (1.0 - uniform) * power > 1.0;
}

}  // namespace detail

inline TokenId argmax(std::span<const float> logits) {
  detail::check_logits(logits, "argmax");
  const ScopedFpEnvironment fp_environment;  // or two subnormal logits might compare equal
  return detail::index_of_max(logits);
}

inline TokenId Sampler::sample(std::span<const float> logits, std::uint64_t output_index,
                               std::span<const TokenId> history) {
  detail::check_logits(logits, "Sampler::sample");
  const ScopedFpEnvironment fp_environment;
  return choose(logits, output_index, history);
}

[[gnu::noinline]] inline TokenId Sampler::choose(std::span<const float> logits,
                                                 std::uint64_t output_index,
                                                 std::span<const TokenId> history) {
  logits = apply_rules(logits, output_index, history);
  if (options().temperature == 0.0f) return detail::index_of_max(logits);
  truncate(logits);
  return draw(output_index);
}

inline void Sampler::probabilities(std::span<const float> logits, std::uint64_t output_index,
                                   std::span<const TokenId> history, std::span<double> out) {
  constexpr std::string_view kOperation = "Sampler::probabilities";
  detail::require(out.size() == logits.size(), ErrorCode::kShape, kOperation,
                  "out must have a place per logit, ", logits.size(), ", got ", out.size());
  detail::check_logits(logits, kOperation);
  const ScopedFpEnvironment fp_environment;
  distribute(logits, output_index, history, out);
}

[[gnu::noinline]] inline void Sampler::distribute(std::span<const float> logits,
                                                  std::uint64_t output_index,
                                                  std::span<const TokenId> history,
                                                  std::span<double> out) {
  logits = apply_rules(logits, output_index, history);
  std::fill(out.begin(), out.end(), 0.0);
  const auto of = [&](TokenId token) -> double& { return out[static_cast<std::size_t>(token)]; };
  if (options().temperature == 0.0f) {
    of(detail::index_of_max(logits)) = 1.0;
    return;
  }
  truncate(logits);
  const double temperature = options().temperature;
  double total = 0.0;  // in the order of candidates_: the same on every machine
  for (const Candidate& c : candidates_) {
    const double gap = static_cast<double>(c.logit) - static_cast<double>(best_.logit);
    of(c.token) = math::exp(gap / temperature);
    total += of(c.token);
  }
  for (const Candidate& c : candidates_) of(c.token) /= total;
}

inline std::span<const float> Sampler::apply_rules(std::span<const float> logits,
                                                   std::uint64_t output_index,
                                                   std::span<const TokenId> history) {
  if (!rules_.any(output_index)) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  rules_.apply(adjusted_, output_index, history);
  detail::check_logits(adjusted_, "Sampler::sample");
  return adjusted_;
}

/// Leaves in candidates_ what top-k, top-p and min-p keep.
inline void Sampler::truncate(std::span<const float> logits) {
  collect(logits);
  keep_top_k();
  keep_top_p();
  keep_min_p();
}

inline void Sampler::collect(std::span<const float> logits) {
  candidates_.clear();
  candidates_.reserve(logits.size());
  num_sorted_ = 0;
  best_ = {-std::numeric_limits<float>::infinity(), 0};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) continue;  // -inf: probability 0
    candidates_.push_back({logits[i], static_cast<TokenId>(i)});
    if (is_before(candidates_.back(), best_)) best_ = candidates_.back();
  }
}

/// Puts the best `count` candidates in front, in order.
inline void Sampler::sort_first(std::size_t count) {
  count = std::min(count, candidates_.size());
  if (count <= num_sorted_) return;
  const auto at = [&](std::size_t i) {
    return candidates_.begin() + static_cast<std::ptrdiff_t>(i);
  };
  // A heap is faster for few: 40 of 150,000 take 0.3 ms, by selection 2 ms. For many it is slower.
  constexpr std::size_t kFew = 1024;
  if (count <= kFew) {
    std::partial_sort(at(num_sorted_), at(count), candidates_.end(), is_before);
  } else {
    std::nth_element(at(num_sorted_), at(count), candidates_.end(), is_before);
    std::sort(at(num_sorted_), at(count), is_before);
  }
  num_sorted_ = count;
}

inline void Sampler::keep_top_k() {
  const auto top_k = static_cast<std::size_t>(options().top_k);
  if (top_k == 0 || top_k >= candidates_.size()) return;
  sort_first(top_k);
  candidates_.resize(top_k);
}

inline void Sampler::keep_top_p() {
  if (options().top_p >= 1.0f) return;
  const auto weight = [&](const Candidate& c) {
    return math::exp(static_cast<double>(c.logit) - static_cast<double>(best_.logit));
  };
  // In the order of candidates_, which is sorted or by token: the same on every machine.
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  const double wanted = static_cast<double>(options().top_p) * total;
  double sum = 0.0;
  std::size_t kept = 0;
  while (kept < candidates_.size()) {
    // Few tokens hold most of the probability: sort no more than needed, in growing steps.
    if (kept == num_sorted_) sort_first(std::max<std::size_t>(64, 4 * kept));
    sum += weight(candidates_[kept]);
    ++kept;
    if (sum >= wanted) break;
  }
  candidates_.resize(kept);
  num_sorted_ = kept;
}

inline void Sampler::keep_min_p() {
  if (options().min_p <= 0.0f) return;
  const double least =
      static_cast<double>(best_.logit) + math::log(static_cast<double>(options().min_p));
  std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < least; });
}

inline TokenId Sampler::draw(std::uint64_t output_index) const {
  const double temperature = options().temperature;
  const auto scaled = [&](const Candidate& c) {
    return static_cast<double>(c.logit) / temperature;
  };
  const auto uniform = [&](const Candidate& c) {
    return detail::keyed_uniform(options().seed, output_index, c.token, detail::Draw::kGumbel);
  };
  Candidate winner = best_;
  double winning_score = scaled(best_) + detail::gumbel_noise(uniform(best_));
  for (const Candidate& candidate : candidates_) {
    if (candidate.token == best_.token) continue;
    // The noise it takes to win, less what rounding could matter. Few tokens can have it: most need
    // more than there is, and nearly all others are told apart without the two logarithms.
    const double margin = 1e-6 + std::fabs(winning_score) / 0x1p50;
    const double needed = winning_score - scaled(candidate) - margin;
    if (needed > detail::kMaxGumbelNoise) continue;
    const double u = uniform(candidate);
    if (detail::is_noise_below(needed, u)) continue;
    const double candidate_score = scaled(candidate) + detail::gumbel_noise(u);
    if (candidate_score > winning_score ||
        (candidate_score == winning_score && candidate.token < winner.token)) {
      winner = candidate;
      winning_score = candidate_score;
    }
  }
  return winner.token;
}

}  // namespace kvick::inline v0_1
