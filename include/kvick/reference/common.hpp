// SPDX-License-Identifier: MIT
// What the plain layers share: matrices of any scalar type.
//
// A layer is a template over the scalar type of its first operand and computes in it; all other
// operands are converted. So float weights with double activations give the oracle of a float
// layer. Operands are any Eigen matrix, map, block or expression; results are row-major.
//
// These layers use Eigen's matrix products, whose order of summation depends on the number of rows:
// they are accurate, but not bit-identical over batch sizes as the layers of nn/ are.
//
// Layer     reference: may include core.
#pragma once

#include <Eigen/Core>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1::reference {

template <class Scalar>
using RowMajorMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Read-only view of rows; an operand of another type or order is converted once.
template <class Scalar>
using RowMajorRef = Eigen::Ref<const RowMajorMatrix<Scalar>, 0, Eigen::OuterStride<>>;

// ---- Implementation: nothing below is API ----

namespace detail {
using kvick::detail::require;
}  // namespace detail

}  // namespace kvick::inline v0_1::reference
