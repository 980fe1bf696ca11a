// SPDX-License-Identifier: MIT
// The gated feed-forward block: y += W_down (silu(W_gate x) * W_up x).
//
// Shapes    x, y [rows][width]; gate and up weights [ffn][width], down weight [width][ffn].
// Accuracy  Products as in packed_linear.hpp; silu(g) * u = (g / (1 + exp(-g))) * u in f32, with
//           math::exp. The block's output is added to y once.
// Errors    Error(kShape) if operands do not fit.
// Threads   As the products. y may be x; the scratch `hidden` must not overlap anything.
// Source    Shazeer 2020, GLU Variants Improve Transformer (SwiGLU).
// Layer     nn: may include core, kernels, quant.
#pragma once

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/kernels/compute_context.hpp"
#include "kvick/quant/packed_linear.hpp"
#include "kvick/quant/packed_weights.hpp"

namespace kvick::inline v0_1 {

struct GatedMlp {
  const PackedWeights& gate;  ///< [ffn][width]
  const PackedWeights& up;    ///< [ffn][width]
  const PackedWeights& down;  ///< [width][ffn]
};

/// Adds the block's output to y. `hidden` is scratch of shape [rows][ffn].
inline void add_gated_mlp(const GatedMlp& weights, const ConstMatrixRef& x, MatrixRef y,
                          MatrixRef hidden, ActivationType activations, LinearWorkspace& workspace,
                          const ComputeContext& context);

// ---- Implementation: nothing below is API ----

inline void add_gated_mlp(const GatedMlp& weights, const ConstMatrixRef& x, MatrixRef y,
                          MatrixRef hidden, ActivationType activations, LinearWorkspace& workspace,
                          const ComputeContext& context) {
  const Index ffn = weights.gate.out_features();
  detail::require(weights.up.out_features() == ffn && weights.down.in_features() == ffn,
                  ErrorCode::kShape, "add_gated_mlp", "up and down must fit ffn = ", ffn,
                  " of gate, got ", weights.up.out_features(), " and ", weights.down.in_features());
  multiply_gated(weights.gate, weights.up, x, hidden, activations, workspace, context);
  const LinearProduct down{.weights = weights.down, .y = y, .add_to_output = true};
  multiply({&down, 1}, hidden, activations, workspace, context);
}

}  // namespace kvick::inline v0_1
