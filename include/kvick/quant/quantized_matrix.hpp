// SPDX-License-Identifier: MIT
// A matrix of integers of 2 to 8 bits and their scales: w[o][i] is about scale * q[o][i].
//
// Quantization is symmetric: no zero points, and 0 stays 0. A scale covers the whole matrix, one
// output channel (a row), or a group of 32, 64 or 128 adjacent inputs of one output; the last group
// of a row may be shorter. `quantize` (quant/quantize.hpp) makes such matrices from floats.
//
// Shapes    q [out][in]; scales [1][1] per tensor, [out][1] per channel, [out][ceil(in / group)]
//           per group. A matrix may have no rows or no columns.
// Storage   Rows start on whole bytes. 8 bits: a byte each. 4 bits: two to a byte, column 2 i in
//           the low nibble and column 2 i + 1 in the high one, in two's complement; the spare
//           nibble of an odd row is 0. 2, 3, 5, 6 and 7 bits: a byte each, like 8 bits.
// Accuracy  Dequantizing is float(scale) * float(q), rounded once to nearest even, whatever the
//           caller's floating-point mode.
// Errors    Error(kArgument) for options, integers and scales outside their range; Error(kShape)
//           for sizes that do not fit together. Positions inside a matrix are preconditions.
// Threads   No shared state.
// Layer     quant.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

using Int8Matrix = Eigen::Matrix<std::int8_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
/// Read-only view of int8 rows. A column-major argument is copied once.
using ConstInt8MatrixRef = Eigen::Ref<const Int8Matrix, 0, Eigen::OuterStride<>>;

/// How a scale is found for the values it covers.
enum class ScaleChoice {
  kMaxAbs,        ///< the least scale that clips no value
  kLeastSquares,  ///< the least squared error of many candidates; never worse than kMaxAbs
};

struct QuantizeOptions {
  int num_bits = 8;         ///< 2 to 8
  bool full_range = false;  ///< use the integer -2^(num_bits - 1), which has no positive partner
  ScaleChoice scale = ScaleChoice::kMaxAbs;

  friend bool operator==(const QuantizeOptions&, const QuantizeOptions&) = default;
};

/// What shares a scale.
enum class Granularity { kTensor, kChannel, kGroup };

class QuantizationScheme;

/// One scale for the matrix.
inline QuantizationScheme per_tensor(const QuantizeOptions& options = {});
/// One scale per output, that is per row.
inline QuantizationScheme per_channel(const QuantizeOptions& options = {});
/// One scale per `group_size` (32, 64 or 128) inputs of an output.
inline QuantizationScheme per_group(int group_size, const QuantizeOptions& options = {});

/// Granularity and options, checked: made by the three functions above.
class QuantizationScheme {
 public:
  Granularity granularity() const noexcept { return granularity_; }
  /// 32, 64 or 128; 0 unless per group.
  int group_size() const noexcept { return group_size_; }
  const QuantizeOptions& options() const noexcept { return options_; }
  int num_bits() const noexcept { return options_.num_bits; }

  /// The largest integer, 2^(num_bits - 1) - 1.
  int max_value() const noexcept { return (1 << (num_bits() - 1)) - 1; }
  /// The smallest: -max_value(), or one less with the full range.
  int min_value() const noexcept { return -max_value() - (options_.full_range ? 1 : 0); }

  /// Scales in a row of `in_features` columns.
  Index num_groups(Index in_features) const noexcept {
    return granularity_ == Granularity::kGroup ? (in_features + group_size_ - 1) / group_size_ : 1;
  }

  friend bool operator==(const QuantizationScheme&, const QuantizationScheme&) = default;

 private:
  friend QuantizationScheme per_tensor(const QuantizeOptions& options);
  friend QuantizationScheme per_channel(const QuantizeOptions& options);
  friend QuantizationScheme per_group(int group_size, const QuantizeOptions& options);

  QuantizationScheme(Granularity granularity, int group_size, const QuantizeOptions& options);

  Granularity granularity_;
  int group_size_;
  QuantizeOptions options_;
};

/// Owns packed integers and their scales.
class QuantizedMatrix {
 public:
  /// 0 x 0, per tensor.
  QuantizedMatrix();

  /// From integers [out][in] and scales as in Shapes. Error(kShape) for scales of another shape;
  /// Error(kArgument), naming the first offender, for an integer outside the scheme's range or a
  /// scale that is negative, infinite or NaN. `scheme.options().scale` plays no part.
  QuantizedMatrix(const QuantizationScheme& scheme, Int8Matrix values, Matrix scales);

  Index rows() const noexcept { return storage_.rows(); }
  Index cols() const noexcept { return cols_; }
  const QuantizationScheme& scheme() const noexcept { return scheme_; }

  /// Scales that a row uses.
  Index num_groups() const noexcept { return scheme_.num_groups(cols_); }
  const Matrix& scales() const noexcept { return scales_; }
  /// The scale of one group of a row, wherever the granularity keeps it.
  float scale(Index row, Index group) const noexcept {
    return scales_(scheme_.granularity() == Granularity::kTensor ? 0 : row, group);
  }

  int value(Index row, Index col) const noexcept;
  /// Writes the cols() integers of a row.
  void unpack_row(Index row, std::int8_t* values) const noexcept;

  /// The integers as stored, rows() * row_bytes() bytes.
  std::span<const std::byte> data() const noexcept {
    return std::as_bytes(std::span(storage_.data(), static_cast<std::size_t>(storage_.size())));
  }
  Index row_bytes() const noexcept { return storage_.cols(); }
  /// Bytes of integers and scales.
  std::size_t size_bytes() const noexcept {
    return data().size() + static_cast<std::size_t>(scales_.size()) * sizeof(float);
  }

 private:
  bool has_nibbles() const noexcept { return scheme_.num_bits() == 4; }

  QuantizationScheme scheme_;
  Index cols_ = 0;
  Int8Matrix storage_;  // [rows][row_bytes]
  Matrix scales_;
};

/// Integers of a whole matrix and their one scale: `auto [values, scale] = quantize(...)`.
struct QuantizedTensor {
  Int8Matrix values;  ///< [out][in]
  float scale = 0.0f;
};

/// The floats that a quantized matrix stands for. A product beyond the largest float is infinite;
/// scales that `quantize` chose never lead there.
inline Matrix dequantize(const QuantizedMatrix& matrix);
inline Matrix dequantize(const QuantizedTensor& tensor);
inline Matrix dequantize(const ConstInt8MatrixRef& values, float scale);

// ---- Implementation: nothing below is API ----

inline QuantizationScheme::QuantizationScheme(Granularity granularity, int group_size,
                                              const QuantizeOptions& options)
    : granularity_(granularity), group_size_(group_size), options_(options) {
  detail::require(options.num_bits >= 2 && options.num_bits <= 8, ErrorCode::kArgument,
                  "QuantizeOptions", "num_bits must be 2 to 8, got ", options.num_bits);
}

inline QuantizationScheme per_tensor(const QuantizeOptions& options) {
  return {Granularity::kTensor, 0, options};
}

inline QuantizationScheme per_channel(const QuantizeOptions& options) {
  return {Granularity::kChannel, 0, options};
}

inline QuantizationScheme per_group(int group_size, const QuantizeOptions& options) {
  detail::require(group_size == 32 || group_size == 64 || group_size == 128, ErrorCode::kArgument,
                  "per_group", "group_size must be 32, 64 or 128, got ", group_size);
  return {Granularity::kGroup, group_size, options};
}

namespace detail {

inline void require_integers(const Int8Matrix& values, const QuantizationScheme& scheme) {
  const int low = scheme.min_value();
  const int high = scheme.max_value();
  const std::span all(values.data(), static_cast<std::size_t>(values.size()));
  const auto bad = std::find_if(all.begin(), all.end(), [&](int q) { return q < low || q > high; });
  if (bad == all.end()) return;
  const Index position = bad - all.begin();
  throw Error(ErrorCode::kArgument, "QuantizedMatrix",
              concat("values of ", scheme.num_bits(), " bits must be in [", low, ", ", high,
                     "], got ", int{*bad}, " at row ", position / values.cols(), ", column ",
                     position % values.cols()));
}

inline void require_scales(const Matrix& scales) {
  for (Index row = 0; row < scales.rows(); ++row) {
    for (Index group = 0; group < scales.cols(); ++group) {
      const float scale = scales(row, group);
      require(std::isfinite(scale) && scale >= 0.0f, ErrorCode::kArgument, "QuantizedMatrix",
              "scales must be finite and not negative, got ", scale, " at row ", row, ", group ",
              group);
    }
  }
}

inline std::int8_t low_nibble(std::int8_t byte) noexcept {
  return static_cast<std::int8_t>(static_cast<std::int8_t>(byte << 4) >> 4);
}

inline std::int8_t high_nibble(std::int8_t byte) noexcept {
  return static_cast<std::int8_t>(byte >> 4);
}

inline Int8Matrix pack_nibbles(const Int8Matrix& values) {
  Int8Matrix packed(values.rows(), (values.cols() + 1) / 2);
  for (Index row = 0; row < packed.rows(); ++row) {
    for (Index i = 0; i < packed.cols(); ++i) {
      const auto low = static_cast<std::uint8_t>(values(row, 2 * i));
      const bool has_high = 2 * i + 1 < values.cols();
      const auto high = static_cast<std::uint8_t>(has_high ? values(row, 2 * i + 1) : 0);
      packed(row, i) = static_cast<std::int8_t>((low & 15) | (high << 4));
    }
  }
  return packed;
}

/// out[i] = scale * q[i]
inline void scale_values(const std::int8_t* q, Index count, float scale, float* out) noexcept {
  for (Index i = 0; i < count; ++i) out[i] = scale * static_cast<float>(q[i]);
}

// Not inlined, so that no arithmetic leaves the guard of the callers.
[[gnu::noinline]] inline void dequantize_to(const QuantizedMatrix& matrix, Matrix& out) {
  const Index cols = matrix.cols();
  const Index group_size =
      matrix.scheme().granularity() == Granularity::kGroup ? matrix.scheme().group_size() : cols;
  std::vector<std::int8_t> q(static_cast<std::size_t>(cols));
  for (Index row = 0; row < matrix.rows(); ++row) {
    matrix.unpack_row(row, q.data());
    for (Index col = 0; col < cols; col += group_size) {
      scale_values(&q[static_cast<std::size_t>(col)], std::min(group_size, cols - col),
                   matrix.scale(row, col / group_size), &out(row, col));
    }
  }
}

[[gnu::noinline]] inline void dequantize_to(const ConstInt8MatrixRef& values, float scale,
                                            Matrix& out) {
  for (Index row = 0; row < values.rows(); ++row) {
    scale_values(values.data() + row * values.outerStride(), values.cols(), scale,
                 out.data() + row * out.cols());
  }
}

}  // namespace detail

inline QuantizedMatrix::QuantizedMatrix() : QuantizedMatrix(per_tensor(), {}, Matrix::Zero(1, 1)) {}

inline QuantizedMatrix::QuantizedMatrix(const QuantizationScheme& scheme, Int8Matrix values,
                                        Matrix scales)
    : scheme_(scheme), cols_(values.cols()), scales_(std::move(scales)) {
  const Index scale_rows = scheme.granularity() == Granularity::kTensor ? 1 : values.rows();
  detail::require(scales_.rows() == scale_rows && scales_.cols() == num_groups(), ErrorCode::kShape,
                  "QuantizedMatrix", "scales must be [", scale_rows, ", ", num_groups(), "], got [",
                  scales_.rows(), ", ", scales_.cols(), "]");
  detail::require_integers(values, scheme);
  detail::require_scales(scales_);
  storage_ = has_nibbles() ? detail::pack_nibbles(values) : std::move(values);
}

inline int QuantizedMatrix::value(Index row, Index col) const noexcept {
  if (!has_nibbles()) return storage_(row, col);
  const std::int8_t byte = storage_(row, col / 2);
  return col % 2 == 0 ? detail::low_nibble(byte) : detail::high_nibble(byte);
}

inline void QuantizedMatrix::unpack_row(Index row, std::int8_t* values) const noexcept {
  const std::int8_t* const bytes = storage_.data() + row * row_bytes();
  if (!has_nibbles()) {
    std::copy_n(bytes, cols_, values);
    return;
  }
  for (Index i = 0; i < cols_ / 2; ++i) {
    values[2 * i] = detail::low_nibble(bytes[i]);
    values[2 * i + 1] = detail::high_nibble(bytes[i]);
  }
  if (cols_ % 2 != 0) values[cols_ - 1] = detail::low_nibble(bytes[cols_ / 2]);
}

inline Matrix dequantize(const QuantizedMatrix& matrix) {
  Matrix out(matrix.rows(), matrix.cols());
  const ScopedFpEnvironment fp_environment;
  detail::dequantize_to(matrix, out);
  return out;
}

inline Matrix dequantize(const ConstInt8MatrixRef& values, float scale) {
  Matrix out(values.rows(), values.cols());
  const ScopedFpEnvironment fp_environment;
  detail::dequantize_to(values, scale, out);
  return out;
}

inline Matrix dequantize(const QuantizedTensor& tensor) {
  return dequantize(tensor.values, tensor.scale);
}

}  // namespace kvick::inline v0_1
