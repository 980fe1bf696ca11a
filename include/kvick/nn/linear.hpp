// SPDX-License-Identifier: MIT
// Linear layers with float activations on weights of any stored format: y = x W^T (+ bias or y).
//
// Shapes    x [rows][in_features], W [out_features][in_features], y [rows][out_features].
// Accuracy  y[m][n] = sum over k ascending of fma(x[m][k], W[n][k], .) from +0 in f32, with W[n][k]
//           the dequantized weight; then the bias is added, then the old y. The number of rows,
//           threads and the ISA change nothing.
// Errors    Error(kShape) if operands do not fit.
// Threads   Outputs are split over the pool. No allocation. y must not overlap x.
// Layer     nn: may include core, kernels, quant.
#pragma once

#include <algorithm>
#include <span>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/nn/context.hpp"
#include "kvick/quant/weight_view.hpp"

namespace kvick::inline v0_1 {

/// What happens to the sums before they are stored.
struct LinearEpilogue {
  std::span<const float> bias = {};  ///< [out_features], or empty
  bool add_to_output = false;        ///< y += instead of y =, for residual connections
};

inline void linear(const WeightView& weights, const ConstMatrixRef& x, MatrixRef y,
                   const ComputeContext& context, const LinearEpilogue& epilogue = {});

// ---- Implementation: nothing below is API ----

namespace detail {

/// Inputs decoded at a time. A multiple of every block size; 16 outputs of it are 16 KiB of floats,
/// so that decoded rows, the panel and the accumulators stay in the first-level cache.
inline constexpr Index kDecodeDepth = 256;

/// Rows that share one decoding of the weights: enough that decoding costs less than multiplying.
inline constexpr Index kRowBlock = 256;

/// Decodes inputs [first, first + depth) of `num_outputs` outputs to a panel [depth][16], with
/// zeros in the lanes beyond.
inline void decode_panel(const WeightView& weights, Index output, Index num_outputs, Index first,
                         Index depth, float* panel) noexcept {
  alignas(64) float row[kDecodeDepth];
  if (num_outputs < kPanelWidth) std::fill_n(panel, depth * kPanelWidth, 0.0f);
  for (Index n = 0; n < num_outputs; ++n) {
    weights.dequantize(output + n, first, depth, row);
    for (Index k = 0; k < depth; ++k) panel[k * kPanelWidth + n] = row[k];
  }
}

/// One panel of outputs for up to kRowBlock rows.
inline void linear_panel(const WeightView& weights, const ConstMatrixRef& x, Index first_row,
                         Index rows, Index output, MatrixRef& y, const KernelTable& kernels,
                         const LinearEpilogue& epilogue) noexcept {
  alignas(64) float panel[kDecodeDepth * kPanelWidth];
  alignas(64) float acc[kRowBlock * kPanelWidth];
  const Index num_outputs = std::min<Index>(kPanelWidth, weights.out_features() - output);
  std::fill_n(acc, rows * kPanelWidth, 0.0f);
  for (Index first = 0; first < weights.in_features(); first += kDecodeDepth) {
    const Index depth = std::min(kDecodeDepth, weights.in_features() - first);
    decode_panel(weights, output, num_outputs, first, depth, panel);
    const float* inputs = x.data() + first_row * x.outerStride() + first;
    kernels.accumulate_panel(panel, depth, inputs, x.outerStride(), rows, acc);
  }
  for (Index m = 0; m < rows; ++m) {
    const float* sums = acc + m * kPanelWidth;
    float* out = y.data() + (first_row + m) * y.outerStride() + output;
    for (Index n = 0; n < num_outputs; ++n) {
      float value = sums[n];
      if (!epilogue.bias.empty()) value += epilogue.bias[static_cast<std::size_t>(output + n)];
      out[n] = epilogue.add_to_output ? out[n] + value : value;
    }
  }
}

}  // namespace detail

inline void linear(const WeightView& weights, const ConstMatrixRef& x, MatrixRef y,
                   const ComputeContext& context, const LinearEpilogue& epilogue) {
  constexpr const char* kOperation = "linear";
  const Index out_features = weights.out_features();
  detail::require(x.cols() == weights.in_features(), ErrorCode::kShape, kOperation,
                  "x must have in_features = ", weights.in_features(), " columns, got ", x.cols());
  detail::require(y.rows() == x.rows() && y.cols() == out_features, ErrorCode::kShape, kOperation,
                  "y must be [", x.rows(), ", ", out_features, "], got [", y.rows(), ", ", y.cols(),
                  "]");
  detail::require(epilogue.bias.empty() || static_cast<Index>(epilogue.bias.size()) == out_features,
                  ErrorCode::kShape, kOperation, "bias must have out_features = ", out_features,
                  " values, got ", epilogue.bias.size());
  const Index num_panels = (out_features + kPanelWidth - 1) / kPanelWidth;
  const auto run = [&](Index begin, Index end) {
    for (Index panel = begin; panel < end; ++panel) {
      for (Index row = 0; row < x.rows(); row += detail::kRowBlock) {
        detail::linear_panel(weights, x, row, std::min(detail::kRowBlock, x.rows() - row),
                             panel * kPanelWidth, y, context.kernels, epilogue);
      }
    }
  };
  if (x.rows() * out_features * weights.in_features() <= detail::kSerialWork) {
    context.pool.parallel_for(num_panels, /*grain=*/num_panels, run);
  } else {
    context.pool.parallel_for(num_panels, run);
  }
}

}  // namespace kvick::inline v0_1
