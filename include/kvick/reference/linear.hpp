// SPDX-License-Identifier: MIT
// Linear layer in plain Eigen: y = x W^T + b.
//
// Shapes    x [rows][in], w [out][in], bias [out] or empty, result [rows][out].
//           Quantized: q [out][in] int8, scales [out][in / group]; a scale covers `group` adjacent
//           inputs of one output, so one column of scales is per channel.
// Accuracy  |y - exact| <= (in + 1) eps (sum_i |x_i w_i| + |b|), whatever the order of summation;
//           dequantizing adds one rounding per weight.
// Errors    Error(kShape).
// Layer     reference: may include core.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/reference/common.hpp"

namespace kvick::inline v0_1::reference {

/// x W^T + b. An empty bias is none.
template <class X, class W, class B>
RowMajorMatrix<typename X::Scalar> linear(const Eigen::MatrixBase<X>& x,
                                          const Eigen::MatrixBase<W>& w,
                                          const Eigen::MatrixBase<B>& bias);

/// x W^T
template <class X, class W>
RowMajorMatrix<typename X::Scalar> linear(const Eigen::MatrixBase<X>& x,
                                          const Eigen::MatrixBase<W>& w);

/// The weights that (q, scales) stand for: q[o][i] * scales[o][i / group].
template <class Scalar, class Q, class S>
RowMajorMatrix<Scalar> dequantize(const Eigen::MatrixBase<Q>& q,
                                  const Eigen::MatrixBase<S>& scales);

/// Dequantizes, then multiplies: x dequantize(q, scales)^T + b.
template <class X, class Q, class S, class B>
RowMajorMatrix<typename X::Scalar> dequantized_linear(const Eigen::MatrixBase<X>& x,
                                                      const Eigen::MatrixBase<Q>& q,
                                                      const Eigen::MatrixBase<S>& scales,
                                                      const Eigen::MatrixBase<B>& bias);

/// x dequantize(q, scales)^T
template <class X, class Q, class S>
RowMajorMatrix<typename X::Scalar> dequantized_linear(const Eigen::MatrixBase<X>& x,
                                                      const Eigen::MatrixBase<Q>& q,
                                                      const Eigen::MatrixBase<S>& scales);

// ---- Implementation: nothing below is API ----

template <class X, class W, class B>
RowMajorMatrix<typename X::Scalar> linear(const Eigen::MatrixBase<X>& x,
                                          const Eigen::MatrixBase<W>& w,
                                          const Eigen::MatrixBase<B>& bias) {
  using Scalar = typename X::Scalar;
  static_assert(std::is_floating_point_v<Scalar>);
  constexpr std::string_view kOperation = "reference::linear";
  detail::require(x.cols() == w.cols(), ErrorCode::kShape, kOperation,
                  "x must have in = ", w.cols(), " columns, got ", x.cols());
  detail::require(bias.size() == 0 || bias.size() == w.rows(), ErrorCode::kShape, kOperation,
                  "bias must be empty or have out = ", w.rows(), " elements, got ", bias.size());
  RowMajorMatrix<Scalar> y = x.derived() * w.template cast<Scalar>().transpose();
  if (bias.size() != 0) y.rowwise() += bias.template cast<Scalar>().reshaped().transpose();
  return y;
}

template <class X, class W>
RowMajorMatrix<typename X::Scalar> linear(const Eigen::MatrixBase<X>& x,
                                          const Eigen::MatrixBase<W>& w) {
  return linear(x, w, Eigen::Matrix<typename X::Scalar, Eigen::Dynamic, 1>());
}

template <class Scalar, class Q, class S>
RowMajorMatrix<Scalar> dequantize(const Eigen::MatrixBase<Q>& q,
                                  const Eigen::MatrixBase<S>& scales) {
  static_assert(std::is_same_v<typename Q::Scalar, std::int8_t>, "q holds int8 values");
  const Index num_groups = scales.cols();
  detail::require(scales.rows() == q.rows() && num_groups >= 1 && q.cols() % num_groups == 0,
                  ErrorCode::kShape, "reference::dequantize", "scales must have out = ", q.rows(),
                  " rows and a divisor of in = ", q.cols(), " columns, got [", scales.rows(), ", ",
                  num_groups, "]");
  const Index group = q.cols() / num_groups;
  RowMajorMatrix<Scalar> w = q.template cast<Scalar>();
  for (Index g = 0; g < num_groups; ++g) {
    auto columns = w.middleCols(g * group, group).array();
    columns.colwise() *= scales.col(g).template cast<Scalar>().array();
  }
  return w;
}

template <class X, class Q, class S, class B>
RowMajorMatrix<typename X::Scalar> dequantized_linear(const Eigen::MatrixBase<X>& x,
                                                      const Eigen::MatrixBase<Q>& q,
                                                      const Eigen::MatrixBase<S>& scales,
                                                      const Eigen::MatrixBase<B>& bias) {
  return linear(x, dequantize<typename X::Scalar>(q, scales), bias);
}

template <class X, class Q, class S>
RowMajorMatrix<typename X::Scalar> dequantized_linear(const Eigen::MatrixBase<X>& x,
                                                      const Eigen::MatrixBase<Q>& q,
                                                      const Eigen::MatrixBase<S>& scales) {
  return linear(x, dequantize<typename X::Scalar>(q, scales));
}

}  // namespace kvick::inline v0_1::reference
