// SPDX-License-Identifier: MIT
// How many tokens to draft, from what drafting has gained and cost so far.
//
// A round with k drafted tokens gives one token and the accepted ones: with f the share of first
// drafted tokens that are accepted and g that of a later one after all before it were,
// 1 + f (1 + g + ... + g^(k-1)) tokens. What rounds of k tokens take is measured for each k, since
// a pass of 9 tokens may take twice the time of one of 8. The k with the most tokens per second is
// taken, which may be 0. All these numbers are averages that forget.
//
// Nothing is promised by averages alone, so there is an account as well. It is paid a small share
// of all time, and every round with drafts books what it took beyond, or less than, the plain steps
// for its tokens. A round may draft only as much as the account covers should all be rejected;
// where drafting does not pay, what the account gains pays for probes. So drafting in vain takes
// about that share, the little that the account begins with, and what first rounds cost beyond the
// guess: in the tests at most 3.5 % of 300 tokens and 2 % of 3,000; of a few tokens it may be more.
//
// Units     Seconds, by the caller's clock.
// Threads   One at a time; an object per request.
// Layer     speculative: may include core.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

struct AdaptiveDraftOptions {
  int max_tokens = 8;           ///< most that choose() returns
  double largest_loss = 0.015;  ///< share of all time that drafting in vain may take
  double initial_steps = 1.5;   ///< plain steps that it may take beside, in all
};

/// What a round did.
struct DraftRound {
  int num_drafted = 0;   ///< verified in this round; 0: a plain step
  int num_accepted = 0;  ///< of them
  double draft_seconds = 0;
  double verify_seconds = 0;
};

class AdaptiveDraft {
 public:
  explicit AdaptiveDraft(const AdaptiveDraftOptions& options = {});

  /// How many tokens the next round should draft, at most.
  int choose() const noexcept;

  /// Learns from a round. Rounds that evaluate a prompt as well are no measure: leave them out.
  void record(const DraftRound& round) noexcept;

  /// Seconds of a round that drafts and verifies so many tokens, as far as is known; 0 if nothing
  /// is.
  double seconds(int num_drafted) const noexcept;

  /// Tokens that a round gives on average.
  double expected_tokens(int num_drafted) const noexcept;

 private:
  /// A share that forgets: of about the last 20 trials. It begins as if `kPriorTrials` had had the
  /// share `prior`.
  struct Share {
    double prior;
    double hits = 0;
    double trials = 0;

    void record(double num_hits, double num_trials) noexcept {
      constexpr double kKept = 0.95;
      const double kept = std::pow(kKept, num_trials);
      hits = std::fma(hits, kept, num_hits);
      trials = std::fma(trials, kept, num_trials);
    }
    double value() const noexcept {
      constexpr double kPriorTrials = 2;
      return std::fma(prior, kPriorTrials, hits) / (trials + kPriorTrials);
    }
  };

  AdaptiveDraftOptions options_;
  Share first_{.prior = 0.7};
  Share later_{.prior = 0.8};
  int num_plain_ = 0;                   // plain steps so far
  std::array<double, 7> last_plain_{};  // seconds of the last ones
  double plain_seconds_ = 0;            // their median
  // Of rounds with so many drafted tokens: plain steps that one takes, 0 if there was none.
  std::vector<double> steps_;
  int largest_ = 0;  // number of drafted tokens so far
  double account_;   // in plain steps
  int rounds_since_plain_ = 0;
};

// ---- Implementation: nothing below is API ----

inline AdaptiveDraft::AdaptiveDraft(const AdaptiveDraftOptions& options)
    : options_(options),
      steps_(static_cast<std::size_t>(std::max(options.max_tokens, 0)) + 1),
      account_(options.initial_steps) {
  constexpr std::string_view kOperation = "AdaptiveDraft";
  detail::require(options.max_tokens >= 0, ErrorCode::kArgument, kOperation,
                  "max_tokens must be at least 0, got ", options.max_tokens);
  detail::require(options.largest_loss >= 0 && options.largest_loss <= 1, ErrorCode::kArgument,
                  kOperation, "largest_loss must be in [0, 1], got ", options.largest_loss);
  detail::require(options.initial_steps >= 0, ErrorCode::kArgument, kOperation,
                  "initial_steps must be at least 0, got ", options.initial_steps);
}

inline double AdaptiveDraft::expected_tokens(int num_drafted) const noexcept {
  double tokens = 1, reached = first_.value();
  for (int i = 0; i < num_drafted; ++i) {
    tokens += reached;
    reached *= later_.value();
  }
  return tokens;
}

/// What was not measured is taken to be cheap, so that it is tried: each token adds what those of
/// the next shorter round did, a quarter of a plain step at first, and no round is longer than one
/// with more tokens.
inline double AdaptiveDraft::seconds(int num_drafted) const noexcept {
  constexpr double kPriorSlope = 0.25;
  double steps = std::fma(kPriorSlope, num_drafted, 1.0);
  double limit = std::numeric_limits<double>::infinity();
  for (int k = 1; k <= largest_; ++k) {
    const double measured = steps_[static_cast<std::size_t>(k)];
    if (measured == 0) continue;
    if (k <= num_drafted) {
      steps = std::fma(std::max(0.0, measured - 1) / k, num_drafted - k, measured);
    } else {
      limit = std::min(limit, measured);
    }
  }
  return std::min(steps, limit) * plain_seconds_;
}

inline int AdaptiveDraft::choose() const noexcept {
  constexpr int kFirst = 3;  // until drafting was timed
  constexpr int kProbe = 2;
  // The price of a plain step is what all else is compared with: looked up often at first.
  constexpr int kPlainEvery = 64;
  if (num_plain_ < 2 || rounds_since_plain_ >= std::min(4 * num_plain_, kPlainEvery)) return 0;
  const int most = largest_ > 0 ? options_.max_tokens : std::min(kFirst, options_.max_tokens);
  int best = 0, largest = 0;
  double best_rate = 1 / plain_seconds_;
  for (int k = 1; k <= most && seconds(k) / plain_seconds_ - 1 <= account_; ++k) {
    const double rate = expected_tokens(k) / seconds(k);
    largest = k;
    if (rate > best_rate) {
      best = k;
      best_rate = rate;
    }
  }
  if (best > 0) return best;
  return largest >= std::min(kProbe, most) ? std::min(kProbe, most) : 0;
}

inline void AdaptiveDraft::record(const DraftRound& round) noexcept {
  const int k = round.num_drafted;
  double t = round.draft_seconds + round.verify_seconds;
  if (k == 0) {
    // A source that found nothing took its time, which is not the target's.
    last_plain_[static_cast<std::size_t>(num_plain_) % last_plain_.size()] = round.verify_seconds;
    num_plain_ += num_plain_ < std::numeric_limits<int>::max() / 8 ? 1 : 0;
    auto sorted = last_plain_;
    const auto size = std::min<std::ptrdiff_t>(num_plain_, std::ssize(sorted));
    std::sort(sorted.begin(), sorted.begin() + size);
    plain_seconds_ = sorted[static_cast<std::size_t>((size - 1) / 2)];
    rounds_since_plain_ = 0;
  } else {
    ++rounds_since_plain_;
    if (!(plain_seconds_ > 0) || k > options_.max_tokens) return;
    // What takes far longer than ever was interrupted by something else.
    constexpr double kOutlier = 2, kNew = 0.25;
    double& steps = steps_[static_cast<std::size_t>(k)];
    if (steps > 0) {
      t = std::min(t, kOutlier * steps * plain_seconds_);
      steps += kNew * (t / plain_seconds_ - steps);
    } else {
      steps = t / plain_seconds_;
    }
    largest_ = std::max(largest_, k);
    first_.record(round.num_accepted > 0 ? 1 : 0, 1);
    // A later token was tried if the one before it was accepted.
    const int num_later = std::min(round.num_accepted, k - 1);
    if (num_later > 0) later_.record(std::max(0, round.num_accepted - 1), num_later);
  }
  if (!(plain_seconds_ > 0)) return;
  const double steps = t / plain_seconds_;
  const double gained =
      k > 0 ? 1 + round.num_accepted - steps : -round.draft_seconds / plain_seconds_;
  // Little more than a round may cost: what was gained long ago is not to be spent on probes.
  const double limit = std::max(options_.initial_steps, 6.0);
  account_ = std::min(std::fma(options_.largest_loss, steps, account_ + gained), limit);
}

}  // namespace kvick::inline v0_1
