// SPDX-License-Identifier: MIT
// Means with their errors, and quantiles.
//
// Errors    Error(kArgument) for no values, or a fraction outside of [0, 1].
// Source    Quantiles: Hyndman and Fan 1996, definition 7 (linear between neighbours).
// Layer     core.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"

namespace kvick::inline v0_1 {

/// A mean and how uncertain it is.
struct MeanEstimate {
  double mean = 0.0;
  /// Sample deviation / sqrt(count), as if values were independent. Neighbouring tokens are not
  /// quite, so the true error may be larger. NaN for a single value and for infinite ones.
  double standard_error = 0.0;
};

/// Of at least one value.
inline MeanEstimate mean_estimate(std::span<const double> values);

/// The value below which `fraction` of at least one value lies, interpolated between neighbours:
/// fraction 0.5 is the median.
inline double quantile(std::span<const double> values, double fraction);

/// The same of values that are in ascending order already.
inline double sorted_quantile(std::span<const double> sorted, double fraction);

// ---- Implementation: nothing below is API ----

namespace detail {

inline MeanEstimate mean_of(std::span<const double> values) noexcept {
  const double count = static_cast<double>(values.size());
  double sum = 0.0;
  for (const double value : values) sum += value;
  const double mean = sum / count;
  double squares = 0.0;
  for (const double value : values) squares = std::fma(value - mean, value - mean, squares);
  // One value: 0 / 0 is the NaN that says so.
  return {mean, std::sqrt(squares / (count - 1.0) / count)};
}

}  // namespace detail

inline MeanEstimate mean_estimate(std::span<const double> values) {
  detail::require(!values.empty(), ErrorCode::kArgument, "mean_estimate",
                  "values must not be empty");
  const ScopedFpEnvironment fp_environment;
  return detail::mean_of(values);
}

inline double sorted_quantile(std::span<const double> sorted, double fraction) {
  constexpr std::string_view kOperation = "quantile";
  detail::require(!sorted.empty(), ErrorCode::kArgument, kOperation, "values must not be empty");
  detail::require(fraction >= 0.0 && fraction <= 1.0, ErrorCode::kArgument, kOperation,
                  "fraction must be in [0, 1], got ", fraction);
  const double position = std::fma(fraction, static_cast<double>(sorted.size() - 1), 0.0);
  const auto below = static_cast<std::size_t>(position);
  const double low = sorted[below];
  const double high = sorted[std::min(below + 1, sorted.size() - 1)];
  const double weight = position - static_cast<double>(below);
  // The difference of two infinities is none, and a weight of 0 hides an infinite neighbour.
  return low == high || weight == 0.0 ? low : std::fma(weight, high - low, low);
}

inline double quantile(std::span<const double> values, double fraction) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted_quantile(sorted, fraction);
}

}  // namespace kvick::inline v0_1
