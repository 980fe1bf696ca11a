// SPDX-License-Identifier: MIT
// Products of packed weights with one input, fused: several layers that read the same x (queries,
// keys and values), or gate and up of a gated block, in one pass over the threads.
//
// Shapes    x [rows][in_features], weights [out_features][in_features], y [rows][out_features].
// Accuracy  Sums as in KernelTable::multiply_int8 and multiply_float; then the bias is added, then
//           the old y. Rows, neighbours, threads and ISA change nothing.
// Memory    Scratch in LinearWorkspace: per thread 270 KB, and the quantized activations of at most
//           512 rows. It grows with the first calls and then stays.
// Errors    Error(kShape) if operands do not fit.
// Threads   Outputs are split over the pool; one call at a time per workspace. y must not overlap
//           x.
// Layer     quant: may include core, kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/kernels/compute_context.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/quant/packed_weights.hpp"
#include "kvick/quant/quantized_rows.hpp"

namespace kvick::inline v0_1 {

/// What the activations are when they meet quantized weights. Float weights always meet floats.
enum class ActivationType {
  kInt8,  ///< quantized per row and group of 32, or per row where weights are per channel
  kF32,   ///< as they are; weights are dequantized on the fly
};

/// One layer that reads the shared input.
struct LinearProduct {
  const PackedWeights& weights;
  MatrixRef y;
  std::span<const float> bias = {};  ///< [out_features], or empty
  bool add_to_output = false;        ///< y += instead of y =, for residual connections
};

/// Scratch of multiply() and multiply_gated().
class LinearWorkspace {
 public:
  /// `num_threads` is that of the pool used later.
  explicit LinearWorkspace(int num_threads) : threads_(static_cast<std::size_t>(num_threads)) {}

  /// Rows that share one pass over the weights; more are computed in blocks.
  static constexpr Index kMaxRows = 512;
  /// Panels that a thread multiplies at a time.
  static constexpr Index kStripPanels = 3;

  struct Thread {
    AlignedBuffer<float> sums;         // [kMaxRows][kStripPanels * 16]
    AlignedBuffer<float> second_sums;  // of `up`, in multiply_gated()
    AlignedBuffer<std::byte> scratch;
  };

  int num_threads() const noexcept { return static_cast<int>(threads_.size()); }
  Thread& thread(int index) noexcept { return threads_[static_cast<std::size_t>(index)]; }
  QuantizedRows& by_group() noexcept { return by_group_; }
  QuantizedRows& by_row() noexcept { return by_row_; }

  /// Makes room for the sums of `rows` rows on every thread.
  void reserve(Index rows, bool second);

 private:
  std::vector<Thread> threads_;
  QuantizedRows by_group_;
  QuantizedRows by_row_;
};

/// y = x W^T + bias, or y += that, for every product.
inline void multiply(std::span<const LinearProduct> products, const ConstMatrixRef& x,
                     ActivationType activations, LinearWorkspace& workspace,
                     const ComputeContext& context);

/// y = silu(x gate^T) * (x up^T), see KernelTable::silu_multiply.
inline void multiply_gated(const PackedWeights& gate, const PackedWeights& up,
                           const ConstMatrixRef& x, MatrixRef y, ActivationType activations,
                           LinearWorkspace& workspace, const ComputeContext& context);

// ---- Implementation: nothing below is API ----

inline void LinearWorkspace::reserve(Index rows, bool second) {
  const Index padded = (rows + kRowTile - 1) / kRowTile * kRowTile;
  const auto count = static_cast<std::size_t>(padded * kStripPanels * kPanelWidth);
  for (Thread& thread : threads_) {
    if (thread.scratch.empty()) thread.scratch = AlignedBuffer<std::byte>(kMultiplyScratchBytes);
    if (thread.sums.size() < count) thread.sums = AlignedBuffer<float>(count);
    if (second && thread.second_sums.size() < count) {
      thread.second_sums = AlignedBuffer<float>(count);
    }
  }
}

namespace detail {

/// A block of rows of x, in every form that the products want.
struct InputBlock {
  const ConstMatrixRef& x;
  Index first;
  Index rows;
  ActivationType activations;
  LinearWorkspace& workspace;
  const KernelTable& kernels;

  /// sums [rows][count * 16] of panels [panel, panel + count).
  void multiply(const PackedWeights& weights, Index panel, Index count, float* sums,
                std::byte* scratch) const {
    const PackedPanels panels = weights.panels(panel, count);
    if (is_float(panels.format) || activations == ActivationType::kF32) {
      kernels.multiply_float(panels, x.data() + first * x.outerStride(), x.outerStride(), rows,
                             sums, scratch);
      return;
    }
    const QuantizedRows& quantized =
        is_per_channel(panels.format) ? workspace.by_row() : workspace.by_group();
    kernels.multiply_int8(panels, quantized.view(), rows, sums, scratch);
  }
};

/// Columns that panels [panel, panel + count) really have.
inline Index num_columns(const PackedWeights& weights, Index panel, Index count) noexcept {
  return std::min(count * kPanelWidth, weights.out_features() - panel * kPanelWidth);
}

/// y[j] = sums[j] + bias[j] + y[j], with the last two where they are asked for. Copies of fixed
/// size tell the compiler that nothing overlaps, so that it takes vectors.
template <int kCount>
void store_outputs(const float* sums, const float* bias, bool add_to_output, float* y) noexcept {
  float values[kCount];
  float others[kCount];
  std::memcpy(values, sums, sizeof values);
  if (bias != nullptr) {
    std::memcpy(others, bias, sizeof others);
    for (int j = 0; j < kCount; ++j) values[j] += others[j];
  }
  if (add_to_output) {
    std::memcpy(others, y, sizeof others);
    for (int j = 0; j < kCount; ++j) values[j] = others[j] + values[j];
  }
  std::memcpy(y, values, sizeof values);
}

/// Sums of panels from `panel` on to the outputs of a product.
inline void store_sums(const LinearProduct& product, Index first_row, Index rows, Index panel,
                       Index count, const float* sums) noexcept {
  const Index column = panel * kPanelWidth;
  const Index columns = num_columns(product.weights, panel, count);
  const float* const bias = product.bias.empty() ? nullptr : product.bias.data() + column;
  constexpr Index kRowsAhead = 16;
  const auto bias_at = [bias](Index j) { return bias == nullptr ? nullptr : bias + j; };
  for (Index m = 0; m < rows; ++m, sums += count * kPanelWidth) {
    float* const y =
        const_cast<float*>(product.y.data()) + (first_row + m) * product.y.outerStride() + column;
    // A later row, for writing: its lines come from memory first.
    for (Index j = 0; m + kRowsAhead < rows && j < columns; j += kPanelWidth) {
      __builtin_prefetch(y + kRowsAhead * product.y.outerStride() + j, 1);
    }
    Index j = 0;
    for (; j + kPanelWidth <= columns; j += kPanelWidth) {
      store_outputs<kPanelWidth>(sums + j, bias_at(j), product.add_to_output, y + j);
    }
    for (; j < columns; ++j) store_outputs<1>(sums + j, bias_at(j), product.add_to_output, y + j);
  }
}

/// Calls body(begin, end, thread) over panels. Few rows wait for memory: equal shares, the same on
/// each thread every time. Many rows compute: whoever is free takes the next strips.
template <class Body>
void for_panels(Index num_panels, Index work, Index rows, const ComputeContext& context,
                Body&& body) {
  if (work <= kSerialWork) {
    context.pool.parallel_for(num_panels, /*grain=*/num_panels, body);
  } else if (rows <= kRowTile) {
    context.pool.parallel_for(num_panels, body);
  } else {
    context.pool.parallel_for(num_panels, /*grain=*/2 * LinearWorkspace::kStripPanels, body);
  }
}

inline void check_product(const char* operation, const PackedWeights& weights,
                          const ConstMatrixRef& x, const MatrixRef& y,
                          const LinearWorkspace& workspace, const ComputeContext& context) {
  require(x.cols() == weights.in_features(), ErrorCode::kShape, operation,
          "x must have in_features = ", weights.in_features(), " columns, got ", x.cols());
  require(y.rows() == x.rows() && y.cols() == weights.out_features(), ErrorCode::kShape, operation,
          "y must be [", x.rows(), ", ", weights.out_features(), "], got [", y.rows(), ", ",
          y.cols(), "]");
  require(context.pool.num_threads() <= workspace.num_threads(), ErrorCode::kArgument, operation,
          "the pool must have at most the ", workspace.num_threads(),
          " threads given to the workspace, got ", context.pool.num_threads());
}

/// Quantizes the block's rows in each way that one of the weights asks for.
template <class ForEachWeights>
void quantize_block(const InputBlock& block, const ComputeContext& context,
                    ForEachWeights&& for_each_weights) {
  bool by_group = false;
  bool by_row = false;
  for_each_weights([&](const PackedWeights& weights) {
    if (is_float(weights.format()) || block.activations == ActivationType::kF32) return;
    (is_per_channel(weights.format()) ? by_row : by_group) = true;
  });
  LinearWorkspace& workspace = block.workspace;
  if (by_group) workspace.by_group().quantize(block.x, block.first, block.rows, false, context);
  if (by_row) workspace.by_row().quantize(block.x, block.first, block.rows, true, context);
}

/// Panels [begin, end) of all products, counted through.
inline void multiply_panels(std::span<const LinearProduct> products, const InputBlock& block,
                            Index begin, Index end, LinearWorkspace::Thread& thread) {
  Index first = 0;  // panel of the current product, counted through
  for (const LinearProduct& product : products) {
    const Index last = first + product.weights.num_panels();
    for (Index panel = std::max(begin, first); panel < std::min(end, last);) {
      const Index count = std::min(LinearWorkspace::kStripPanels, std::min(end, last) - panel);
      block.multiply(product.weights, panel - first, count, thread.sums.data(),
                     thread.scratch.data());
      store_sums(product, block.first, block.rows, panel - first, count, thread.sums.data());
      panel += count;
    }
    first = last;
  }
}

}  // namespace detail

inline void multiply(std::span<const LinearProduct> products, const ConstMatrixRef& x,
                     ActivationType activations, LinearWorkspace& workspace,
                     const ComputeContext& context) {
  constexpr const char* kOperation = "multiply";
  Index num_panels = 0;
  for (const LinearProduct& product : products) {
    const Index out = product.weights.out_features();
    detail::check_product(kOperation, product.weights, x, product.y, workspace, context);
    detail::require(product.bias.empty() || static_cast<Index>(product.bias.size()) == out,
                    ErrorCode::kShape, kOperation, "bias must have out_features = ", out,
                    " values, got ", product.bias.size());
    num_panels += product.weights.num_panels();
  }
  workspace.reserve(std::min(x.rows(), LinearWorkspace::kMaxRows), /*second=*/false);
  for (Index first = 0; first < x.rows(); first += LinearWorkspace::kMaxRows) {
    const Index rows = std::min(LinearWorkspace::kMaxRows, x.rows() - first);
    const detail::InputBlock block{x, first, rows, activations, workspace, context.kernels};
    detail::quantize_block(block, context, [&](const auto& visit) {
      for (const LinearProduct& product : products) visit(product.weights);
    });
    detail::for_panels(num_panels, rows * num_panels * kPanelWidth * x.cols(), rows, context,
                       [&](Index begin, Index end, int thread) {
                         detail::multiply_panels(products, block, begin, end,
                                                 workspace.thread(thread));
                       });
  }
}

inline void multiply_gated(const PackedWeights& gate, const PackedWeights& up,
                           const ConstMatrixRef& x, MatrixRef y, ActivationType activations,
                           LinearWorkspace& workspace, const ComputeContext& context) {
  constexpr const char* kOperation = "multiply_gated";
  constexpr Index kStrip = LinearWorkspace::kStripPanels;
  detail::check_product(kOperation, gate, x, y, workspace, context);
  detail::check_product(kOperation, up, x, y, workspace, context);
  workspace.reserve(std::min(x.rows(), LinearWorkspace::kMaxRows), /*second=*/true);
  for (Index first = 0; first < x.rows(); first += LinearWorkspace::kMaxRows) {
    const Index rows = std::min(LinearWorkspace::kMaxRows, x.rows() - first);
    const detail::InputBlock block{x, first, rows, activations, workspace, context.kernels};
    detail::quantize_block(block, context, [&](const auto& visit) {
      visit(gate);
      visit(up);
    });
    const auto run = [&](Index begin, Index end, int index) {
      LinearWorkspace::Thread& thread = workspace.thread(index);
      for (Index panel = begin; panel < end; panel += kStrip) {
        const Index count = std::min(kStrip, end - panel);
        const Index columns = detail::num_columns(gate, panel, count);
        block.multiply(gate, panel, count, thread.sums.data(), thread.scratch.data());
        block.multiply(up, panel, count, thread.second_sums.data(), thread.scratch.data());
        for (Index m = 0; m < rows; ++m) {
          const Index at = m * count * kPanelWidth;
          context.kernels.silu_multiply(
              thread.sums.data() + at, thread.second_sums.data() + at,
              y.data() + (first + m) * y.outerStride() + panel * kPanelWidth, columns);
        }
      }
    };
    detail::for_panels(gate.num_panels(), 2 * rows * gate.out_features() * x.cols(), rows, context,
                       run);
  }
}

}  // namespace kvick::inline v0_1
