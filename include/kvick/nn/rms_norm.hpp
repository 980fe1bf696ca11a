// SPDX-License-Identifier: MIT
// Root mean square normalization: y = x / sqrt(mean(x^2) + epsilon) * weight.
//
// Shapes    x, y [rows][width], weight [width].
// Accuracy  In f32: the sum of squares by the fixed tree of the kernels' contract, then
//           inverse = 1 / sqrt(sum / width + epsilon) and y[i] = (x[i] * inverse) * weight[i].
// Errors    Error(kShape) if operands do not fit.
// Threads   Rows are split over the pool. No allocation. y may be x, but not overlap it otherwise.
// Source    Zhang and Sennrich 2019, Root Mean Square Layer Normalization.
// Layer     nn: may include core, kernels.
#pragma once

#include <cmath>
#include <span>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/kernels/compute_context.hpp"

namespace kvick::inline v0_1 {

/// Normalizes every row.
inline void rms_norm(const ConstMatrixRef& x, std::span<const float> weight, float epsilon,
                     MatrixRef y, const ComputeContext& context);

/// Normalizes each head of every row on its own, in place: x [rows][heads * weight.size()]
/// (the query and key norms of Qwen 3).
inline void rms_norm_heads(MatrixRef x, std::span<const float> weight, float epsilon,
                           const ComputeContext& context);

// ---- Implementation: nothing below is API ----

namespace detail {

/// Rows below which a task is not worth handing to another thread.
inline constexpr Index kNormGrain = 16;

inline void rms_norm_row(const float* x, std::span<const float> weight, float epsilon, float* y,
                         const KernelTable& kernels) noexcept {
  const Index width = static_cast<Index>(weight.size());
  const float mean = kernels.sum_of_squares(x, width) / static_cast<float>(width);
  const float inverse = 1.0f / std::sqrt(mean + epsilon);
  for (Index i = 0; i < width; ++i) y[i] = (x[i] * inverse) * weight[static_cast<std::size_t>(i)];
}

}  // namespace detail

inline void rms_norm(const ConstMatrixRef& x, std::span<const float> weight, float epsilon,
                     MatrixRef y, const ComputeContext& context) {
  detail::require(
      x.cols() == static_cast<Index>(weight.size()) && y.rows() == x.rows() && y.cols() == x.cols(),
      ErrorCode::kShape, "rms_norm", "x and y must have equal rows of width ", weight.size(),
      ", that of weight, got [", x.rows(), ", ", x.cols(), "] and [", y.rows(), ", ", y.cols(),
      "]");
  context.pool.parallel_for(x.rows(), detail::kNormGrain, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      detail::rms_norm_row(x.data() + row * x.outerStride(), weight, epsilon,
                           y.data() + row * y.outerStride(), context.kernels);
    }
  });
}

inline void rms_norm_heads(MatrixRef x, std::span<const float> weight, float epsilon,
                           const ComputeContext& context) {
  const Index head_dim = static_cast<Index>(weight.size());
  detail::require(head_dim > 0 && x.cols() % head_dim == 0, ErrorCode::kShape, "rms_norm_heads",
                  "columns must be whole heads of ", head_dim, ", got ", x.cols());
  context.pool.parallel_for(x.rows(), detail::kNormGrain, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      float* const values = x.data() + row * x.outerStride();
      for (Index first = 0; first < x.cols(); first += head_dim) {
        detail::rms_norm_row(values + first, weight, epsilon, values + first, context.kernels);
      }
    }
  });
}

}  // namespace kvick::inline v0_1
