// SPDX-License-Identifier: MIT
// Activations quantized to int8, row by row: what packed weights are multiplied by.
//
// Accuracy  Each group of 32 values of a row has a scale of its own, or the whole row one; see
//           KernelTable::quantize_groups and quantize_row. A row depends on nothing but itself.
// Memory    Grows to the largest input so far, then stays.
// Threads   One quantize() at a time; it uses the pool.
// Layer     quant: may include core, kernels.
#pragma once

#include <cstddef>

#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/kernels/compute_context.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/packed_format.hpp"

namespace kvick::inline v0_1 {

class QuantizedRows {
 public:
  /// Quantizes rows [first, first + count) of x, with one scale per row or per group.
  void quantize(const ConstMatrixRef& x, Index first, Index count, bool whole_rows,
                const ComputeContext& context);

  /// The rows of the last quantize().
  QuantizedRowsView view() const noexcept {
    return {groups_.data(), totals_.data(), row_stride_, row_stride_};
  }

 private:
  AlignedBuffer<QuantizedGroup> groups_;  // [rows up to a multiple of kRowTile][row_stride_]
  AlignedBuffer<QuantizedRowTotal> totals_;
  Index row_stride_ = 0;
};

// ---- Implementation: nothing below is API ----

inline void QuantizedRows::quantize(const ConstMatrixRef& x, Index first, Index count,
                                    bool whole_rows, const ComputeContext& context) {
  const auto readable = static_cast<std::size_t>((count + kRowTile - 1) / kRowTile * kRowTile);
  row_stride_ = num_groups(x.cols());
  const std::size_t num_values = readable * static_cast<std::size_t>(row_stride_);
  if (groups_.size() < num_values) groups_ = AlignedBuffer<QuantizedGroup>(num_values);
  if (totals_.size() < readable) totals_ = AlignedBuffer<QuantizedRowTotal>(readable);
  const auto run = [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const float* const values = x.data() + (first + row) * x.outerStride();
      QuantizedGroup* const groups = groups_.data() + row * row_stride_;
      if (whole_rows) {
        totals_[static_cast<std::size_t>(row)] =
            context.kernels.quantize_row(values, x.cols(), groups);
      } else {
        context.kernels.quantize_groups(values, x.cols(), groups);
      }
    }
  };
  // Some 0.2 ns a value: waking threads for less than a few rows costs more than it saves.
  const bool is_small = count * x.cols() <= detail::kSerialWork;
  context.pool.parallel_for(count, /*grain=*/is_small ? count : Index{16}, run);
}

}  // namespace kvick::inline v0_1
