// SPDX-License-Identifier: MIT
// How far an approximation, quantized weights for example, is from the original.
//
// Units     max_abs and rmse in the unit of the values; snr_db in decibels.
// Accuracy  In double, summed by row and then by column, so that the same values give the same bits
//           whatever their storage order or the caller's floating-point mode. Squares and products
//           of floats are exact in double and their sums cannot overflow.
// Errors    Error(kShape) if shapes differ; Error(kArgument) for a NaN or an infinity in either
//           matrix, with its position.
// Threads   No shared state.
// Layer     quant.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/math.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// The defaults are those of equal matrices, empty ones included.
struct QuantizationError {
  /// 10 log10(sum original^2 / sum (original - restored)^2). +infinity where both are equal,
  /// -infinity where an original of zeros is restored as something else.
  double snr_db = std::numeric_limits<double>::infinity();
  double max_abs = 0.0;  ///< the largest |original - restored|
  double rmse = 0.0;     ///< the root of the mean of (original - restored)^2
  /// The cosine of the angle between both as vectors, in [-1, 1]. 1 if both are zeros, 0 if only
  /// one of them is.
  double cosine_similarity = 1.0;
};

/// Of two matrices of one shape. Column-major arguments are copied once.
inline QuantizationError measure_error(const ConstMatrixRef& original,
                                       const ConstMatrixRef& restored);

// ---- Implementation: nothing below is API ----

namespace detail {

inline void require_finite(const ConstMatrixRef& matrix, std::string_view name) {
  for (Index row = 0; row < matrix.rows(); ++row) {
    for (Index col = 0; col < matrix.cols(); ++col) {
      const float x = matrix(row, col);
      require(std::isfinite(x), ErrorCode::kArgument, "measure_error", name,
              " must be finite, got ", x, " at row ", row, ", column ", col);
    }
  }
}

struct ErrorSums {
  double original = 0.0;    // sum of original^2
  double restored = 0.0;    // sum of restored^2
  double product = 0.0;     // sum of original * restored
  double difference = 0.0;  // sum of (original - restored)^2
  double max_abs = 0.0;
};

inline ErrorSums error_sums(const ConstMatrixRef& original, const ConstMatrixRef& restored) {
  ErrorSums sums;
  for (Index row = 0; row < original.rows(); ++row) {
    for (Index col = 0; col < original.cols(); ++col) {
      const double x = original(row, col);
      const double y = restored(row, col);
      const double difference = x - y;
      sums.original += x * x;
      sums.restored += y * y;
      sums.product += x * y;
      sums.difference = std::fma(difference, difference, sums.difference);
      sums.max_abs = std::max(sums.max_abs, std::fabs(difference));
    }
  }
  return sums;
}

inline double snr_db(const ErrorSums& sums) noexcept {
  constexpr double kLn10 = 0x1.26bb1bbb55516p+1;
  if (sums.difference == 0.0) return std::numeric_limits<double>::infinity();
  return 10.0 * (math::log(sums.original / sums.difference) / kLn10);  // log(0) is -infinity
}

// The product of both sums is between 2^-600 and 2^600: squares of floats are from 2^-298 to 2^256.
inline double cosine_similarity(const ErrorSums& sums) noexcept {
  if (sums.original == 0.0 || sums.restored == 0.0) return sums.original == sums.restored ? 1 : 0;
  const double cosine = sums.product / std::sqrt(sums.original * sums.restored);
  return std::clamp(cosine, -1.0, 1.0);
}

// Not inlined, so that no arithmetic leaves the guard of the caller.
[[gnu::noinline]] inline QuantizationError error_between(const ConstMatrixRef& original,
                                                         const ConstMatrixRef& restored) {
  const ErrorSums sums = error_sums(original, restored);
  if (!std::isfinite(sums.original) || !std::isfinite(sums.restored)) {
    require_finite(original, "original");
    require_finite(restored, "restored");
  }
  const auto count = static_cast<double>(original.size());
  return {.snr_db = snr_db(sums),
          .max_abs = sums.max_abs,
          .rmse = count == 0.0 ? 0.0 : std::sqrt(sums.difference / count),
          .cosine_similarity = cosine_similarity(sums)};
}

}  // namespace detail

inline QuantizationError measure_error(const ConstMatrixRef& original,
                                       const ConstMatrixRef& restored) {
  detail::require(original.rows() == restored.rows() && original.cols() == restored.cols(),
                  ErrorCode::kShape, "measure_error", "restored must be [", original.rows(), ", ",
                  original.cols(), "] like the original, got [", restored.rows(), ", ",
                  restored.cols(), "]");
  const ScopedFpEnvironment fp_environment;
  return detail::error_between(original, restored);
}

}  // namespace kvick::inline v0_1
