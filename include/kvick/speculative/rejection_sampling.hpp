// SPDX-License-Identifier: MIT
// Rejection sampling: a token drawn from a cheap distribution q becomes one of distribution p.
//
// A token x drawn from q is accepted with probability min(1, p(x) / q(x)); otherwise the token is
// drawn from the part of p that q does not cover, max(0, p - q), normalized. Whatever q is, the
// result follows p exactly, and x is kept as often as any method can: sum of min(p, q).
//
//   const kvick::TokenId token = kvick::rejection_sample(p, q, draft_token, rng);
//   const bool is_accepted = token == draft_token;
//
// p and q are the final distributions of one position, after temperature and truncation, indexed by
// token (see Sampler::probabilities), and x must have been drawn from q independently of rng.
//
// Shapes    p, q [vocab_size]; of a run of k drafted tokens p [k + 1][vocab_size], q
//           [k][vocab_size].
// Accuracy  In double. A token with p(x) = 0 is never returned: uniform numbers are never 0.
// Errors    Error(kShape) for sizes that do not fit, Error(kArgument) for a token outside of them
//           or for what is no distribution: an entry negative or not finite, or a sum that is not
//           1 within 1e-3.
// Threads   Pure functions of their arguments and the random numbers.
// Source    Leviathan et al. 2023, Chen et al. 2023.
// Layer     speculative: may include core.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/random.hpp"

namespace kvick::inline v0_1 {

/// A token of distribution p: the one at which the sum of probabilities reaches `u` in (0, 1].
inline TokenId sample_from(std::span<const double> p, double u);

/// The textbook step with its two uniform numbers in (0, 1] given: `u_accept` decides about
/// `draft_token`, `u_residual` which token takes its place. Equal to `draft_token` if it was
/// accepted.
inline TokenId rejection_sample(std::span<const double> p, std::span<const double> q,
                                TokenId draft_token, double u_accept, double u_residual);

/// The same with the next numbers of `rng`, a generator of 32 or 64 random bits such as
/// PhiloxStream or std::mt19937. Takes as many numbers whatever happens.
template <std::uniform_random_bit_generator Rng>
TokenId rejection_sample(std::span<const double> p, std::span<const double> q, TokenId draft_token,
                         Rng& rng);
template <std::uniform_random_bit_generator Rng>
TokenId rejection_sample(std::span<const float> p, std::span<const float> q, TokenId draft_token,
                         Rng& rng);

/// A whole run: drafted tokens up to the first rejected one, and the token drawn in its place; or
/// all of them and one more, drawn from the last row of p.
template <std::uniform_random_bit_generator Rng>
std::vector<TokenId> rejection_sample_run(std::span<const double> p, std::span<const double> q,
                                          std::span<const TokenId> draft_tokens, Rng& rng);

// ---- Implementation: nothing below is API ----

namespace detail {

// What computes is not inlined, so that no arithmetic leaves the guard of its caller.

[[gnu::noinline]] inline void check_distribution(std::span<const double> p, std::string_view name) {
  constexpr std::string_view kOperation = "rejection_sample";
  require(!p.empty(), ErrorCode::kShape, kOperation, name, " must not be empty");
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    require(p[i] >= 0.0 && std::isfinite(p[i]), ErrorCode::kArgument, kOperation, name,
            " must be finite and at least 0, got ", p[i], " for token ", i);
    sum += p[i];
  }
  constexpr double kTolerance = 1e-3;  // 150,000 floats rounded one by one are within 1e-5
  require(std::fabs(sum - 1.0) <= kTolerance, ErrorCode::kArgument, kOperation, name,
          " must sum to 1, got ", sum);
}

/// The index at which the sum of weight(i) for i < size reaches u times the whole; never one of
/// weight 0. `u` in (0, 1], and one weight is positive.
template <class Weight>
[[gnu::noinline]] TokenId inverse_cdf(std::size_t size, double u, Weight&& weight) {
  double total = 0.0;
  for (std::size_t i = 0; i < size; ++i) total += weight(i);
  const double wanted = u * total;
  double sum = 0.0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const double w = weight(i);
    if (!(w > 0.0)) continue;
    last = i;
    sum += w;
    if (sum >= wanted) break;
  }
  return static_cast<TokenId>(last);
}

/// The step for distributions that were checked.
[[gnu::noinline]] inline TokenId accept_or_replace(std::span<const double> p,
                                                   std::span<const double> q, TokenId draft_token,
                                                   double u_accept, double u_residual) {
  const auto x = static_cast<std::size_t>(draft_token);
  // p(x) = 0 is refused by name: u q(x) may round to 0.
  if (q[x] > 0.0 && p[x] > 0.0 && u_accept * q[x] <= p[x]) return draft_token;
  const auto residual = [&](std::size_t i) { return p[i] > q[i] ? p[i] - q[i] : 0.0; };
  bool is_covered = true;  // p <= q everywhere: both are the same but for rounding
  for (std::size_t i = 0; i < p.size() && is_covered; ++i) is_covered = residual(i) == 0.0;
  if (is_covered) return inverse_cdf(p.size(), u_residual, [&](std::size_t i) { return p[i]; });
  return inverse_cdf(p.size(), u_residual, residual);
}

/// A uniform number in (0, 1), of as many bits from each generator.
template <class Rng>
double next_uniform(Rng& rng) {
  constexpr std::uint64_t kRange = std::uint64_t{Rng::max()} - std::uint64_t{Rng::min()};
  static_assert(Rng::min() == 0 && (kRange == std::numeric_limits<std::uint32_t>::max() ||
                                    kRange == std::numeric_limits<std::uint64_t>::max()),
                "rng must give 32 or 64 random bits");
  if constexpr (kRange == std::numeric_limits<std::uint32_t>::max()) {
    const auto high = static_cast<std::uint32_t>(rng());
    return uniform_open(high, static_cast<std::uint32_t>(rng()));
  } else {
    const auto bits = static_cast<std::uint64_t>(rng());
    return uniform_open(high_word(bits), low_word(bits));
  }
}

}  // namespace detail

inline TokenId sample_from(std::span<const double> p, double u) {
  const ScopedFpEnvironment fp_environment;
  detail::check_distribution(p, "p");
  return detail::inverse_cdf(p.size(), u, [&](std::size_t i) { return p[i]; });
}

inline TokenId rejection_sample(std::span<const double> p, std::span<const double> q,
                                TokenId draft_token, double u_accept, double u_residual) {
  detail::require(p.size() == q.size(), ErrorCode::kShape, "rejection_sample",
                  "p and q must be of the same tokens, got ", p.size(), " and ", q.size());
  const ScopedFpEnvironment fp_environment;
  detail::check_distribution(p, "p");
  detail::check_distribution(q, "q");
  detail::require(draft_token >= 0 && static_cast<std::size_t>(draft_token) < p.size(),
                  ErrorCode::kArgument, "rejection_sample", "draft_token must be in [0, ", p.size(),
                  "), got ", draft_token);
  return detail::accept_or_replace(p, q, draft_token, u_accept, u_residual);
}

template <std::uniform_random_bit_generator Rng>
TokenId rejection_sample(std::span<const double> p, std::span<const double> q, TokenId draft_token,
                         Rng& rng) {
  const double u_accept = detail::next_uniform(rng);
  const double u_residual = detail::next_uniform(rng);
  return rejection_sample(p, q, draft_token, u_accept, u_residual);
}

template <std::uniform_random_bit_generator Rng>
TokenId rejection_sample(std::span<const float> p, std::span<const float> q, TokenId draft_token,
                         Rng& rng) {
  const std::vector<double> wide_p(p.begin(), p.end()), wide_q(q.begin(), q.end());
  return rejection_sample(std::span<const double>(wide_p), std::span<const double>(wide_q),
                          draft_token, rng);
}

template <std::uniform_random_bit_generator Rng>
std::vector<TokenId> rejection_sample_run(std::span<const double> p, std::span<const double> q,
                                          std::span<const TokenId> draft_tokens, Rng& rng) {
  const std::size_t num_rows = draft_tokens.size() + 1;
  const std::size_t vocab_size = p.size() / num_rows;
  detail::require(vocab_size > 0 && p.size() == vocab_size * num_rows &&
                      q.size() == vocab_size * draft_tokens.size(),
                  ErrorCode::kShape, "rejection_sample_run", "of ", draft_tokens.size(),
                  " drafted tokens, q must have as many rows and p one more, got ", q.size(),
                  " and ", p.size(), " entries");
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < draft_tokens.size(); ++i) {
    const TokenId token =
        rejection_sample(p.subspan(i * vocab_size, vocab_size),
                         q.subspan(i * vocab_size, vocab_size), draft_tokens[i], rng);
    tokens.push_back(token);
    if (token != draft_tokens[i]) return tokens;
  }
  tokens.push_back(sample_from(p.last(vocab_size), detail::next_uniform(rng)));
  return tokens;
}

}  // namespace kvick::inline v0_1
