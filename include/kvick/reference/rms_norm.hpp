// SPDX-License-Identifier: MIT
// Root mean square normalization in plain Eigen: y = x / sqrt(mean(x^2) + epsilon) * weight, by
// row.
//
// Shapes    x [rows][width], weight [width], result [rows][width].
// Accuracy  Relative error of an element at most (width / 2 + 4) eps: the sum of squares has only
//           positive terms, and the square root halves its error.
// Errors    Error(kShape); Error(kArgument) for a negative epsilon.
// Source    Zhang and Sennrich 2019, Root Mean Square Layer Normalization.
// Layer     reference: may include core.
#pragma once

#include <cmath>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/reference/common.hpp"

namespace kvick::inline v0_1::reference {

template <class X, class W>
RowMajorMatrix<typename X::Scalar> rms_norm(const Eigen::MatrixBase<X>& x,
                                            const Eigen::MatrixBase<W>& weight, double epsilon);

// ---- Implementation: nothing below is API ----

template <class X, class W>
RowMajorMatrix<typename X::Scalar> rms_norm(const Eigen::MatrixBase<X>& x,
                                            const Eigen::MatrixBase<W>& weight, double epsilon) {
  using Scalar = typename X::Scalar;
  constexpr std::string_view kOperation = "reference::rms_norm";
  detail::require(weight.size() == x.cols() && x.cols() >= 1, ErrorCode::kShape, kOperation,
                  "weight must have one element for each of the columns of x, got ", weight.size(),
                  " for ", x.cols());
  detail::require(epsilon >= 0, ErrorCode::kArgument, kOperation,
                  "epsilon must not be negative, got ", epsilon);
  const Eigen::Matrix<Scalar, 1, Eigen::Dynamic> scale =
      weight.template cast<Scalar>().reshaped().transpose();
  RowMajorMatrix<Scalar> y = x;
  for (Index row = 0; row < y.rows(); ++row) {
    const Scalar mean_square = y.row(row).squaredNorm() / static_cast<Scalar>(y.cols());
    y.row(row).array() *= scale.array() / std::sqrt(mean_square + static_cast<Scalar>(epsilon));
  }
  return y;
}

}  // namespace kvick::inline v0_1::reference
