// SPDX-License-Identifier: MIT
// Gated feed-forward layer in plain Eigen: down(silu(gate(x)) * up(x)), silu(g) = g / (1 +
// exp(-g)).
//
// Shapes    x [rows][width], gate and up [hidden][width], down [out][hidden], result [rows][out].
// Accuracy  That of three linear layers; silu adds a few eps relative to its value.
// Errors    Error(kShape).
// Source    Shazeer 2020, GLU Variants Improve Transformer (SwiGLU).
// Layer     reference: may include core.
#pragma once

#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/version.hpp"
#include "kvick/reference/common.hpp"
#include "kvick/reference/linear.hpp"

namespace kvick::inline v0_1::reference {

template <class X, class G, class U, class D>
RowMajorMatrix<typename X::Scalar> gated_mlp(const Eigen::MatrixBase<X>& x,
                                             const Eigen::MatrixBase<G>& gate,
                                             const Eigen::MatrixBase<U>& up,
                                             const Eigen::MatrixBase<D>& down);

// ---- Implementation: nothing below is API ----

template <class X, class G, class U, class D>
RowMajorMatrix<typename X::Scalar> gated_mlp(const Eigen::MatrixBase<X>& x,
                                             const Eigen::MatrixBase<G>& gate,
                                             const Eigen::MatrixBase<U>& up,
                                             const Eigen::MatrixBase<D>& down) {
  constexpr std::string_view kOperation = "reference::gated_mlp";
  detail::require(gate.cols() == x.cols() && up.cols() == x.cols(), ErrorCode::kShape, kOperation,
                  "gate and up must have width = ", x.cols(), " columns, got ", gate.cols(),
                  " and ", up.cols());
  detail::require(up.rows() == gate.rows() && down.cols() == gate.rows(), ErrorCode::kShape,
                  kOperation, "up and down must fit hidden = ", gate.rows(), " of gate, got ",
                  up.rows(), " and ", down.cols());
  RowMajorMatrix<typename X::Scalar> hidden = linear(x, gate);
  hidden.array() = hidden.array() / (1 + (-hidden.array()).exp()) * linear(x, up).array();
  return linear(hidden, down);
}

}  // namespace kvick::inline v0_1::reference
