// SPDX-License-Identifier: MIT
// The gated feed-forward block (Shazeer 2020, SwiGLU): y += W_down (silu(W_gate x) * W_up x).
//
// Shapes    x, y [rows][width]; gate and up weights [ffn][width], down weight [width][ffn].
// Accuracy  Linear layers as in linear.hpp; silu(g) * u = (g / (1 + exp(-g))) * u in f32, with
//           math::exp. The block's output is added to y once.
// Errors    Error(kShape) if operands do not fit.
// Threads   As the linear layers. No allocation: scratch is the caller's.
// Layer     nn: may include core, kernels, quant.
#pragma once

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
