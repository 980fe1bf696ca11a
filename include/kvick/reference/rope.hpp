// SPDX-License-Identifier: MIT
// Rotary position embedding in plain Eigen.
//
// In every head, pair i of elements (a, b) is rotated by angle = position * frequencies[i]:
//   (a cos - b sin,  a sin + b cos).
// The two forms differ in which elements make a pair: neighbours (2i, 2i + 1), as in the paper, or
// the halves (i, i + n) with n pairs. Elements beyond the 2n rotated ones stay as they are.
//
// Shapes    x [tokens][num_heads * head_dim], row t at position first_position + t; frequencies [n]
//           in radians per position, n <= head_dim / 2; result like x.
// Accuracy  Angles, sines and cosines in double, converted once; then two products and one
//           addition.
// Errors    Error(kShape) if the columns are no whole heads or the frequencies too many;
//           Error(kArgument) for a negative position.
// Source    Su et al. 2021, RoFormer.
// Layer     reference: may include core.
#pragma once

#include <cmath>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/reference/common.hpp"

namespace kvick::inline v0_1::reference {

/// Pairs of neighbours: (0, 1), (2, 3), ...
template <class X, class F>
RowMajorMatrix<typename X::Scalar> rope_adjacent(const Eigen::MatrixBase<X>& x, Index head_dim,
                                                 int first_position,
                                                 const Eigen::MatrixBase<F>& frequencies);

/// Pairs over halves: (0, n), (1, n + 1), ...
template <class X, class F>
RowMajorMatrix<typename X::Scalar> rope_half_split(const Eigen::MatrixBase<X>& x, Index head_dim,
                                                   int first_position,
                                                   const Eigen::MatrixBase<F>& frequencies);

// ---- Implementation: nothing below is API ----

namespace detail {

/// Pair i is (i * step, i * step + distance) within its head.
template <class X, class F>
RowMajorMatrix<typename X::Scalar> rotate_pairs(const Eigen::MatrixBase<X>& x, Index head_dim,
                                                int first_position,
                                                const Eigen::MatrixBase<F>& frequencies, Index step,
                                                Index distance, std::string_view operation) {
  using Scalar = typename X::Scalar;
  require(head_dim >= 1 && x.cols() % head_dim == 0, ErrorCode::kShape, operation,
          "x must have a multiple of head_dim = ", head_dim, " columns, got ", x.cols());
  require(2 * frequencies.size() <= head_dim, ErrorCode::kShape, operation,
          "frequencies must be at most head_dim / 2 = ", head_dim / 2, ", got ",
          frequencies.size());
  require(first_position >= 0, ErrorCode::kArgument, operation,
          "first_position must be at least 0, got ", first_position);
  RowMajorMatrix<Scalar> y = x;
  for (Index token = 0; token < y.rows(); ++token) {
    for (Index i = 0; i < frequencies.size(); ++i) {
      const double frequency = static_cast<double>(frequencies.derived().reshaped()(i));
      const double angle = static_cast<double>(first_position + token) * frequency;
      const auto cosine = static_cast<Scalar>(std::cos(angle));
      const auto sine = static_cast<Scalar>(std::sin(angle));
      for (Index head = 0; head < y.cols(); head += head_dim) {
        Scalar& a = y(token, head + i * step);
        Scalar& b = y(token, head + i * step + distance);
        const Scalar old_a = a;
        a = std::fma(old_a, cosine, -(b * sine));
        b = std::fma(old_a, sine, b * cosine);
      }
    }
  }
  return y;
}

}  // namespace detail

template <class X, class F>
RowMajorMatrix<typename X::Scalar> rope_adjacent(const Eigen::MatrixBase<X>& x, Index head_dim,
                                                 int first_position,
                                                 const Eigen::MatrixBase<F>& frequencies) {
  return detail::rotate_pairs(x, head_dim, first_position, frequencies, 2, 1,
                              "reference::rope_adjacent");
}

template <class X, class F>
RowMajorMatrix<typename X::Scalar> rope_half_split(const Eigen::MatrixBase<X>& x, Index head_dim,
                                                   int first_position,
                                                   const Eigen::MatrixBase<F>& frequencies) {
  return detail::rotate_pairs(x, head_dim, first_position, frequencies, 1, frequencies.size(),
                              "reference::rope_half_split");
}

}  // namespace kvick::inline v0_1::reference
