// SPDX-License-Identifier: MIT
// The matrix vocabulary of every interface: row-major float matrices over Eigen.
//
// Rows are tokens (or outputs of a weight), columns are features. Rows may have a stride larger
// than their length; elements of a row are adjacent.
//
// Layer     core.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// Sizes and positions within memory; signed, like Eigen's.
using Index = Eigen::Index;

/// One entry of a vocabulary.
using TokenId = std::int32_t;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::Matrix<float, Eigen::Dynamic, 1>;

/// Writable view of float rows, for outputs: [rows, columns], row stride free.
using MatrixRef = Eigen::Ref<Matrix, 0, Eigen::OuterStride<>>;
/// Read-only view of float rows. A column-major argument is copied once.
using ConstMatrixRef = Eigen::Ref<const Matrix, 0, Eigen::OuterStride<>>;
using VectorRef = Eigen::Ref<Vector>;
using ConstVectorRef = Eigen::Ref<const Vector>;

}  // namespace kvick::inline v0_1
