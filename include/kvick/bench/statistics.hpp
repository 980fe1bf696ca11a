// SPDX-License-Identifier: MIT
// Figures of samples for reports, and what two sets of samples say about a ratio.
//
// A figure that the samples cannot carry is absent, not 0: a deviation needs two samples, and a
// percentile as many that one of them lies beyond it on average (10 for p90, 20 for p95, 100 for
// p99).
//
// Units     Those of the samples.
// Accuracy  Double. Moments by Welford's recurrence: sums of squares of large numbers do not
//           overflow or cancel.
// Errors    Error(kArgument) for no samples where one is needed.
// Source    Welford 1962. Quantiles: Hyndman and Fan 1996, definition 7. Ratio: Hodges and Lehmann
//           1963 on logarithms, interval by the distribution of Mann and Whitney 1947.
// Layer     bench: may include core.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/statistics.hpp"

namespace kvick::inline v0_1 {

/// Mean and deviation of values that come one by one.
class RunningMoments {
 public:
  void add(double value) noexcept;

  std::size_t count() const noexcept { return count_; }
  /// NaN without values.
  double mean() const noexcept;
  /// Of the sample (divided by count - 1); nothing for fewer than two values.
  std::optional<double> standard_deviation() const noexcept;

 private:
  std::size_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of squared distances to the mean
};

/// What can be said of a set of samples; what cannot is absent.
struct SampleSummary {
  std::size_t count = 0;
  std::optional<double> mean = std::nullopt;
  std::optional<double> standard_deviation = std::nullopt;
  std::optional<double> min = std::nullopt;
  std::optional<double> median = std::nullopt;
  std::optional<double> p90 = std::nullopt;
  std::optional<double> p95 = std::nullopt;
  std::optional<double> p99 = std::nullopt;
  std::optional<double> max = std::nullopt;
};

inline SampleSummary summarize(std::span<const double> samples);

/// The `fraction` quantile if a sample lies beyond it on average: count * (1 - fraction) >= 1.
inline std::optional<double> percentile(std::span<const double> samples, double fraction);

/// The middle of samples and how far they scatter; quartiles are interpolated.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;
};

/// Of at least one sample.
inline Spread spread_of(std::vector<double> samples);

/// How many times as large one quantity is as another.
struct RatioEstimate {
  double ratio = 0;  ///< median of the ratios of all pairs
  /// The true ratio lies within with 95 % probability at least, if samples of both sides differ by
  /// a factor and chance only. Absent for fewer than four samples on a side, which cannot tell.
  std::optional<double> low = std::nullopt;
  std::optional<double> high = std::nullopt;

  bool has_interval() const noexcept { return low.has_value(); }
  /// Whether chance alone may explain the difference; also where nothing can be said.
  bool is_noise() const noexcept { return !low || (*low <= 1 && *high >= 1); }
};

/// Of positive samples, at least one on each side.
inline RatioEstimate estimate_ratio(std::span<const double> samples,
                                    std::span<const double> baseline);

// ---- Implementation: nothing below is API ----

namespace detail {

/// How many pairs may be left out at each end so that the rest is an interval of 95 % or more;
/// -1 if not even all of them are. The pairs counted are those (i, j) with sample i before sample
/// j, whose number U has known chances when both sides are alike.
inline std::ptrdiff_t mann_whitney_cut(std::size_t n, std::size_t m) {
  constexpr double kTail = 0.025;
  if (n * m > 10'000) {  // the exact chances are far from needed: U is normal
    const auto a = static_cast<double>(n);
    const auto b = static_cast<double>(m);
    const double deviation = std::sqrt(a * b * (a + b + 1.0) / 12.0);
    return static_cast<std::ptrdiff_t>(std::floor(a * b / 2.0 - 1.96 * deviation)) - 1;
  }
  // chances[j][u] of U = u for i and j samples, i growing: either the largest is of the first kind,
  // and beats all j others, or of the second.
  std::vector<std::vector<double>> chances(m + 1, std::vector<double>{1.0});
  for (std::size_t i = 1; i <= n; ++i) {
    std::vector<std::vector<double>> next(m + 1);
    next[0] = {1.0};
    for (std::size_t j = 1; j <= m; ++j) {
      const double share = static_cast<double>(i) / static_cast<double>(i + j);
      next[j].assign(i * j + 1, 0.0);
      for (std::size_t u = 0; u < chances[j].size(); ++u) next[j][u + j] += share * chances[j][u];
      for (std::size_t u = 0; u < next[j - 1].size(); ++u) {
        next[j][u] += (1.0 - share) * next[j - 1][u];
      }
    }
    chances = std::move(next);
  }
  double below = 0;
  std::ptrdiff_t cut = -1;
  for (const double chance : chances[m]) {
    below += chance;
    if (below > kTail) break;
    ++cut;
  }
  return cut;
}

}  // namespace detail

inline void RunningMoments::add(double value) noexcept {
  ++count_;
  const double distance = value - mean_;
  mean_ += distance / static_cast<double>(count_);
  squares_ = std::fma(distance, value - mean_, squares_);
}

inline double RunningMoments::mean() const noexcept {
  return count_ == 0 ? std::numeric_limits<double>::quiet_NaN() : mean_;
}

inline std::optional<double> RunningMoments::standard_deviation() const noexcept {
  if (count_ < 2) return std::nullopt;
  return std::sqrt(squares_ / static_cast<double>(count_ - 1));
}

namespace detail {

/// The slack covers the rounding of 1 - fraction: 100 samples do carry p99.
inline bool carries_percentile(std::size_t count, double fraction) noexcept {
  return static_cast<double>(count) * (1.0 - fraction) >= 1.0 - 1e-9;
}

}  // namespace detail

inline std::optional<double> percentile(std::span<const double> samples, double fraction) {
  if (!detail::carries_percentile(samples.size(), fraction)) return std::nullopt;
  return quantile(samples, fraction);
}

inline SampleSummary summarize(std::span<const double> samples) {
  SampleSummary summary{.count = samples.size()};
  if (samples.empty()) return summary;
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  RunningMoments moments;
  for (const double sample : samples) moments.add(sample);
  const auto at = [&](double fraction) -> std::optional<double> {
    if (!detail::carries_percentile(sorted.size(), fraction)) return std::nullopt;
    return sorted_quantile(sorted, fraction);
  };
  summary.mean = moments.mean();
  summary.standard_deviation = moments.standard_deviation();
  summary.min = sorted.front();
  summary.median = sorted_quantile(sorted, 0.5);
  summary.p90 = at(0.90);
  summary.p95 = at(0.95);
  summary.p99 = at(0.99);
  summary.max = sorted.back();
  return summary;
}

inline Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {sorted_quantile(samples, 0.5), samples.front(), samples.back(),
          sorted_quantile(samples, 0.25), sorted_quantile(samples, 0.75)};
}

inline RatioEstimate estimate_ratio(std::span<const double> samples,
                                    std::span<const double> baseline) {
  constexpr std::string_view kOperation = "estimate_ratio";
  detail::require(!samples.empty() && !baseline.empty(), ErrorCode::kArgument, kOperation,
                  "both sides must have samples, got ", samples.size(), " and ", baseline.size());
  std::vector<double> ratios;
  for (const double sample : samples) {
    for (const double other : baseline) {
      detail::require(sample > 0 && other > 0, ErrorCode::kArgument, kOperation,
                      "samples must be positive, got ", std::min(sample, other));
      ratios.push_back(sample / other);
    }
  }
  std::sort(ratios.begin(), ratios.end());
  RatioEstimate estimate{.ratio = sorted_quantile(ratios, 0.5)};
  const std::ptrdiff_t cut = detail::mann_whitney_cut(samples.size(), baseline.size());
  if (cut >= 0) {
    estimate.low = ratios[static_cast<std::size_t>(cut)];
    estimate.high = ratios[ratios.size() - 1 - static_cast<std::size_t>(cut)];
  }
  return estimate;
}

}  // namespace kvick::inline v0_1
