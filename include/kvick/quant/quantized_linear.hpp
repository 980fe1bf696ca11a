// SPDX-License-Identifier: MIT
// A linear layer with quantized weights, ready to drop into an engine: y = x W^T + bias.
//
// Shapes    x [rows][in_features], W [out_features][in_features], y [rows][out_features]; any
//           number of rows, also none, and any sizes.
// Accuracy  With float activations, exactly dequantize-then-multiply in f32: fma over inputs
//           ascending. With int8 activations each group of 32 inputs of a row (the whole row where
//           weights have one scale per output or tensor) is rounded to multiples of max / 127:
//           |y - exact| <= sum over inputs of |w| * max / 254, plus f32 rounding; below a max of
//           2^-100 activations count as 0. Rows, threads and ISA change no bit, nor does the
//           caller's floating-point mode. A NaN or an infinity in a row of int8 activations makes
//           all outputs of that row NaN.
// Memory    Weights packed once at their size; scratch grows with the largest input so far (at most
//           512 rows at a time), then forward() allocates nothing.
// Errors    Error(kShape) if operands do not fit; Error(kArgument) as quantize() for weights that
//           are not finite; Error(kUnsupported) for an ISA that this CPU lacks.
// Threads   On the caller's thread, or split over the pool given in the options. One forward() at a
//           time per object.
// Layer     quant: may include core, kernels.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvick/core/cpu.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/kernels/compute_context.hpp"
#include "kvick/kernels/kernel_table.hpp"
#include "kvick/quant/packed_linear.hpp"
#include "kvick/quant/packed_weights.hpp"
#include "kvick/quant/quantize.hpp"
#include "kvick/quant/quantized_matrix.hpp"
#include "kvick/quant/weight_view.hpp"

namespace kvick::inline v0_1 {

struct QuantizedLinearOptions {
  QuantizationScheme scheme = per_group(32);  ///< of float weights; stored ones keep theirs
  ActivationType activations = ActivationType::kInt8;
  ThreadPool* pool = nullptr;  ///< must outlive the layer; null: the caller's thread
  Isa isa = default_isa();
};

class QuantizedLinear {
 public:
  using Options = QuantizedLinearOptions;

  /// Quantizes float weights; an empty bias is none.
  explicit QuantizedLinear(const ConstMatrixRef& weights, const Options& options = {})
      : QuantizedLinear(weights, ConstVectorRef(Vector()), options) {}
  QuantizedLinear(const ConstMatrixRef& weights, const ConstVectorRef& bias,
                  const Options& options = {});

  /// From values that are quantized already; their f32 scales are kept.
  explicit QuantizedLinear(const QuantizedMatrix& weights, const Options& options = {})
      : QuantizedLinear(weights, ConstVectorRef(Vector()), options) {}
  QuantizedLinear(const QuantizedMatrix& weights, const ConstVectorRef& bias,
                  const Options& options = {});

  /// From a stored tensor of any format, without loss.
  explicit QuantizedLinear(const WeightView& weights, const Options& options = {})
      : QuantizedLinear(weights, ConstVectorRef(Vector()), options) {}
  QuantizedLinear(const WeightView& weights, const ConstVectorRef& bias,
                  const Options& options = {});

  /// A layer of zeros, with one scale per output, until quantize() gives it weights.
  QuantizedLinear(Index in_features, Index out_features, int num_bits = 8);

  /// Replaces the weights [out_features][in_features], and keeps the bias.
  void quantize(const ConstMatrixRef& weights);

  Index in_features() const noexcept { return weights_.in_features(); }
  Index out_features() const noexcept { return weights_.out_features(); }
  const PackedWeights& weights() const noexcept { return weights_; }
  ActivationType activations() const noexcept { return activations_; }

  /// y = x W^T + bias. y must not overlap x.
  void forward(const ConstMatrixRef& x, MatrixRef y);

  /// The same in a new matrix.
  Matrix forward(const ConstMatrixRef& x);

 private:
  QuantizedLinear(const Options& options, const ConstVectorRef& bias);

  ThreadPool& pool() const noexcept { return pool_ != nullptr ? *pool_ : *own_pool_; }
  void set_weights(PackedWeights weights);

  QuantizationScheme scheme_;
  ActivationType activations_;
  ThreadPool* pool_;
  std::unique_ptr<ThreadPool> own_pool_;  // of one thread, where none is given
  const KernelTable* kernels_;
  std::vector<float> bias_;
  PackedWeights weights_;
  LinearWorkspace workspace_;
};

// ---- Implementation: nothing below is API ----

inline QuantizedLinear::QuantizedLinear(const Options& options, const ConstVectorRef& bias)
    : scheme_(options.scheme),
      activations_(options.activations),
      pool_(options.pool),
      own_pool_(options.pool == nullptr ? std::make_unique<ThreadPool>(1) : nullptr),
      kernels_(&kernel_table(options.isa)),
      bias_(bias.data(), bias.data() + bias.size()),
      workspace_(pool().num_threads()) {}

inline void QuantizedLinear::set_weights(PackedWeights weights) {
  const auto bias_size = static_cast<Index>(bias_.size());
  detail::require(bias_size == 0 || bias_size == weights.out_features(), ErrorCode::kShape,
                  "QuantizedLinear",
                  "bias must be empty or have out_features = ", weights.out_features(),
                  " values, got ", bias_size);
  weights_ = std::move(weights);
}

inline QuantizedLinear::QuantizedLinear(const ConstMatrixRef& weights, const ConstVectorRef& bias,
                                        const Options& options)
    : QuantizedLinear(options, bias) {
  set_weights(PackedWeights(kvick::quantize(weights, scheme_), pool()));
}

inline QuantizedLinear::QuantizedLinear(const QuantizedMatrix& weights, const ConstVectorRef& bias,
                                        const Options& options)
    : QuantizedLinear(options, bias) {
  scheme_ = weights.scheme();
  set_weights(PackedWeights(weights, pool()));
}

inline QuantizedLinear::QuantizedLinear(const WeightView& weights, const ConstVectorRef& bias,
                                        const Options& options)
    : QuantizedLinear(options, bias) {
  set_weights(PackedWeights(weights, pool()));
}

inline QuantizedLinear::QuantizedLinear(Index in_features, Index out_features, int num_bits)
    : QuantizedLinear(Options{.scheme = per_channel({.num_bits = num_bits})},
                      ConstVectorRef(Vector())) {
  detail::require(in_features > 0 && out_features > 0, ErrorCode::kShape, "QuantizedLinear",
                  "sizes must be positive, got in_features = ", in_features,
                  " and out_features = ", out_features);
  quantize(Matrix::Zero(out_features, in_features));
}

inline void QuantizedLinear::quantize(const ConstMatrixRef& weights) {
  detail::require(
      weights_.empty() || (weights.rows() == out_features() && weights.cols() == in_features()),
      ErrorCode::kShape, "QuantizedLinear::quantize", "weights must be [", out_features(), ", ",
      in_features(), "], got [", weights.rows(), ", ", weights.cols(), "]");
  set_weights(PackedWeights(kvick::quantize(weights, scheme_), pool()));
}

inline void QuantizedLinear::forward(const ConstMatrixRef& x, MatrixRef y) {
  const ScopedFpEnvironment fp_environment;
  const LinearProduct product{weights_, y, bias_};
  multiply({&product, 1}, x, activations_, workspace_, {pool(), *kernels_});
}

inline Matrix QuantizedLinear::forward(const ConstMatrixRef& x) {
  Matrix y(x.rows(), out_features());
  forward(x, y);
  return y;
}

}  // namespace kvick::inline v0_1
