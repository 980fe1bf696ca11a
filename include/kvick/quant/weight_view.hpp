// SPDX-License-Identifier: MIT
// A view of a linear layer's weights as they are stored, in any supported format.
//
// Shapes    [out_features][in_features], rows of whole blocks without padding between them.
// Errors    Error(kShape), or Error(kCapacity) for sizes whose product no memory could hold.
// Threads   Immutable.
// Layer     quant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvick/core/checked.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/quant/block_formats.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace kvick::inline v0_1 {

/// Does not own; the bytes must outlive the view. They need no alignment.
class WeightView {
 public:
  WeightView() = default;

  /// Error(kShape) unless rows are whole blocks and `data` has exactly out_features rows.
  WeightView(TensorType type, std::span<const std::byte> data, Index out_features,
             Index in_features);

  TensorType type() const noexcept { return type_; }
  Index out_features() const noexcept { return out_features_; }
  Index in_features() const noexcept { return in_features_; }
  std::span<const std::byte> data() const noexcept { return data_; }
  bool empty() const noexcept { return out_features_ == 0; }

  /// Decodes inputs [first, first + count) of one output to `values`; both are multiples of the
  /// format's block size. Not checked.
  void dequantize(Index output, Index first, Index count, float* values) const noexcept;

 private:
  TensorType type_ = TensorType::kF32;
  std::span<const std::byte> data_;
  Index out_features_ = 0;
  Index in_features_ = 0;
  Index block_size_ = 1;
  Index block_bytes_ = 0;
  Index row_bytes_ = 0;
};

// ---- Implementation: nothing below is API ----

inline WeightView::WeightView(TensorType type, std::span<const std::byte> data, Index out_features,
                              Index in_features)
    : type_(type),
      data_(data),
      out_features_(out_features),
      in_features_(in_features),
      block_size_(info(type).block_size),
      block_bytes_(info(type).block_bytes) {
  constexpr const char* kOperation = "WeightView";
  detail::require(out_features > 0 && in_features > 0, ErrorCode::kShape, kOperation,
                  "sizes must be positive, got ", out_features, " x ", in_features);
  detail::require(in_features % block_size_ == 0, ErrorCode::kShape, kOperation,
                  "in_features must be a multiple of the ", block_size_, " weights in a block of ",
                  info(type).name, ", got ", in_features);
  row_bytes_ =
      static_cast<Index>(checked_product({static_cast<std::uint64_t>(in_features / block_size_),
                                          static_cast<std::uint64_t>(block_bytes_)},
                                         kOperation));
  const std::size_t bytes = checked_product(
      {static_cast<std::uint64_t>(out_features), static_cast<std::uint64_t>(row_bytes_)},
      kOperation);
  detail::require(data.size() == bytes, ErrorCode::kShape, kOperation, out_features, " x ",
                  in_features, " weights of ", info(type).name, " must have ", bytes,
                  " bytes, got ", data.size());
}

inline void WeightView::dequantize(Index output, Index first, Index count,
                                   float* values) const noexcept {
  const std::byte* row = data_.data() + output * row_bytes_;
  detail::dequantize_blocks(type_, row + first / block_size_ * block_bytes_,
                            static_cast<std::size_t>(count / block_size_), values);
}

}  // namespace kvick::inline v0_1
