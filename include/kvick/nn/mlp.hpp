// SPDX-License-Identifier: MIT
// The gated feed-forward block: y += W_down (silu(W_gate x) * W_up x).
//
// Shapes    x, y [rows][width]; gate and up weights [ffn][width], down weight [width][ffn].
// Accuracy  Linear layers as in linear.hpp; silu(g) * u = (g / (1 + exp(-g))) * u in f32, with
//           math::exp. The block's output is added to y once.
// Errors    Error(kShape) if operands do not fit.
// Threads   As the linear layers. No allocation: scratch is the caller's. y may be x, scratch must
//           not overlap anything.
// Source    Shazeer 2020, GLU Variants Improve Transformer (SwiGLU).
// Layer     nn: may include core, kernels, quant.
#pragma once

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/nn/context.hpp"
#include "kvick/nn/linear.hpp"
#include "kvick/quant/weight_view.hpp"

namespace kvick::inline v0_1 {

struct MlpWeights {
  WeightView gate;  ///< [ffn][width]
  WeightView up;    ///< [ffn][width]
  WeightView down;  ///< [width][ffn]
};

/// Adds the block's output to y. `gate` and `up` are scratch of shape [rows][ffn].
inline void add_gated_mlp(const MlpWeights& weights, const ConstMatrixRef& x, MatrixRef y,
                          MatrixRef gate, MatrixRef up, const ComputeContext& context);

// ---- Implementation: nothing below is API ----

inline void add_gated_mlp(const MlpWeights& weights, const ConstMatrixRef& x, MatrixRef y,
                          MatrixRef gate, MatrixRef up, const ComputeContext& context) {
  const Index ffn = weights.gate.out_features();
  detail::require(weights.up.out_features() == ffn && weights.down.in_features() == ffn,
                  ErrorCode::kShape, "add_gated_mlp", "up and down must fit ffn = ", ffn,
                  " of gate, got ", weights.up.out_features(), " and ", weights.down.in_features());
  linear(weights.gate, x, gate, context);
  linear(weights.up, x, up, context);
  context.pool.parallel_for(gate.rows(), [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      float* const values = gate.data() + row * gate.outerStride();
      context.kernels.silu_multiply(values, up.data() + row * up.outerStride(), values,
                                    gate.cols());
    }
  });
  linear(weights.down, gate, y, context, {.add_to_output = true});
}

}  // namespace kvick::inline v0_1
