// SPDX-License-Identifier: MIT
// Floats to integers of 2 to 8 bits with symmetric scales.
//
//   auto [q, scale] = kvick::quantize(weights, {.num_bits = 8});       // per tensor
//   auto grouped = kvick::quantize(weights, kvick::per_group(32));     // or per_channel(), ...
//   Eigen::MatrixXf back = kvick::dequantize(grouped);
//
// q = clamp(round(x / scale), least, largest): a true division, then round to nearest even. The
// scale is a float, by ScaleChoice
//   kMaxAbs        max |x| / largest. With the full range max(max x / largest, min x / least).
//   kLeastSquares  candidates from 0.22 to 1.05 of that; each is replaced by the scale that fits
//                  its integers best, sum x q / sum q^2. The best of them is kept if its squared
//                  error, after dequantizing, is really less than that of kMaxAbs. Takes tens of
//                  times as long: about 70 ns a value.
//
// Shapes    weights [out][in], any Eigen matrix, map, block or expression of float, in either
//           storage order; the same values give the same result. It may have no rows or columns.
// Accuracy  kMaxAbs: |x - dequantized| <= scale / 2 + (|x| + |dequantized|) 2^-24; the last term is
//           the rounding of the quotient and of the product. Dequantized values are finite.
//           A scale below the smallest normal float, 2^-126, becomes 0 with all its integers: it
//           would be imprecise, and its reciprocal may be infinite. So values that are all below
//           2^-126 * largest in magnitude become 0. Scales are else normal floats.
// Guarantee Bits do not depend on the caller's floating-point mode, on compiler flags or on the
//           storage order. Sums are in double, by row and then by column.
// Errors    Error(kArgument) for options outside their range, and for a NaN or an infinity, with
//           its position.
// Threads   No shared state; runs in the calling thread.
// Layer     quant.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/quant/quantized_matrix.hpp"

namespace kvick::inline v0_1 {

/// Per tensor.
template <class Derived>
QuantizedTensor quantize(const Eigen::MatrixBase<Derived>& weights,
                         const QuantizeOptions& options = {});

/// With the scales of `scheme`, packed.
template <class Derived>
QuantizedMatrix quantize(const Eigen::MatrixBase<Derived>& weights,
                         const QuantizationScheme& scheme);

// ---- Implementation: nothing below is API ----

namespace detail {

/// Floats at data[row * row_stride + col * col_stride].
struct StridedFloats {
  const float* data;
  Index rows;
  Index cols;
  Index row_stride;
  Index col_stride;
};

/// Gives rows one after another as adjacent floats. Rows that are not adjacent in memory are copied
/// 16 at a time: of a column-major matrix that reads whole cache lines.
class RowReader {
 public:
  explicit RowReader(const StridedFloats& matrix) : matrix_(matrix) {
    if (!is_adjacent()) strip_.resize(static_cast<std::size_t>(kStripRows * strip_stride()));
  }

  Index rows() const noexcept { return matrix_.rows; }
  Index cols() const noexcept { return matrix_.cols; }

  /// Valid until the next call.
  const float* row(Index row) noexcept {
    if (is_adjacent()) return matrix_.data + row * matrix_.row_stride;
    const Index first = row / kStripRows * kStripRows;
    if (first != first_) load(first);
    return strip_.data() + (row - first) * strip_stride();
  }

 private:
  static constexpr Index kStripRows = 16;

  bool is_adjacent() const noexcept { return matrix_.col_stride == 1; }
  /// A cache line more than a row, or rows of 1024 floats would compete for the same cache sets.
  Index strip_stride() const noexcept { return matrix_.cols + 16; }

  void load(Index first) noexcept {
    first_ = first;
    const Index count = std::min(kStripRows, matrix_.rows - first);
    for (Index col = 0; col < matrix_.cols; ++col) {
      const float* const src = matrix_.data + first * matrix_.row_stride + col * matrix_.col_stride;
      for (Index i = 0; i < count; ++i) {
        strip_[static_cast<std::size_t>(i * strip_stride() + col)] = src[i * matrix_.row_stride];
      }
    }
  }

  StridedFloats matrix_;
  Index first_ = -1;
  std::vector<float> strip_;
};

/// Adjacent values of one row, and where they stand.
struct RowSegment {
  const float* values;
  Index count;
  Index row;
  Index col;
};

[[noreturn]] inline void throw_not_finite(const RowSegment& segment) {
  Index i = 0;
  while (std::isfinite(segment.values[i])) ++i;
  throw Error(ErrorCode::kArgument, "quantize",
              concat("weights must be finite, got ", segment.values[i], " at row ", segment.row,
                     ", column ", segment.col + i));
}

/// The largest and the least of some values and 0. Compared as integers, whose order is that of
/// floats of one sign, so that infinities and NaNs show up as extremes.
class Extremes {
 public:
  void add(const RowSegment& segment) {
    std::int32_t highest = highest_;
    std::uint32_t lowest = lowest_;
    for (Index i = 0; i < segment.count; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(segment.values[i]);
      highest = std::max(highest, static_cast<std::int32_t>(bits));
      lowest = std::max(lowest, bits);
    }
    highest_ = highest;
    lowest_ = lowest;
    if (!std::isfinite(this->highest()) || !std::isfinite(this->lowest())) {
      throw_not_finite(segment);
    }
  }

  float highest() const noexcept { return std::bit_cast<float>(highest_); }
  float lowest() const noexcept { return std::bit_cast<float>(lowest_); }

 private:
  std::int32_t highest_ = 0;            // 0.0f; negative floats are negative integers
  std::uint32_t lowest_ = 0x80000000u;  // -0.0f; negative floats are the larger integers
};

/// The integers that may be used, as floats.
struct IntegerRange {
  explicit IntegerRange(const QuantizationScheme& scheme) noexcept
      : least(static_cast<float>(scheme.min_value())),
        largest(static_cast<float>(scheme.max_value())) {}

  /// The integer for x. Clamping comes first, which changes nothing, since the ends are integers;
  /// then adding and subtracting 1.5 * 2^23, where floats are integers, rounds to nearest even
  /// without the call of a function per value that nearbyint is on plain x86-64.
  float nearest(float x, float scale) const noexcept {
    const float clamped = std::min(std::max(x / scale, least), largest);
    return (clamped + 0x1.8p23f) - 0x1.8p23f;
  }

  float least;
  float largest;
};

/// A usable scale: neither too small for a precise quotient and a finite reciprocal, nor infinite.
inline bool is_usable_scale(float scale) noexcept {
  return scale >= std::numeric_limits<float>::min() && scale <= std::numeric_limits<float>::max();
}

inline float max_abs_scale(const Extremes& extremes, const IntegerRange& range) noexcept {
  const float high = extremes.highest();
  const float low = extremes.lowest();
  float scale = std::max(high / range.largest, low / range.least);
  if (!is_usable_scale(scale)) return 0.0f;
  const auto overflows = [&](float x) { return std::isinf(scale * range.nearest(x, scale)); };
  // Next to FLT_MAX the scale may have been rounded up (from FLT_MAX itself, at 6 and 8 bits).
  if (overflows(high) || overflows(low)) scale = std::nextafter(scale, 0.0f);
  // The full range may round `low` away from 0. Made exact instead, it clips `high`, but by less
  // than half a scale: |low| >= (n + 1/2) scale, so high <= n (n + 1) / (n + 1/2) new scales.
  if (overflows(low)) scale = low / range.least;
  return scale;
}

/// Finds the scale with the least squared error among those that fit the integers of a candidate.
/// Over all scales the error is sum x^2 - (sum x q)^2 / sum q^2, so two sums tell it. Products of a
/// float and an integer of 8 bits are exact in double, and so is any realistic sum of squares.
class ScaleSearch {
 public:
  ScaleSearch(float max_abs_scale, const IntegerRange& range) noexcept : range_(range) {
    for (int k = 0; k < kNumCandidates; ++k) {
      candidates_[static_cast<std::size_t>(k)].scale = max_abs_scale * factor(k);
    }
  }

  void add(const RowSegment& segment) noexcept {
    for (Candidate& candidate : candidates_) {
      if (is_usable_scale(candidate.scale)) add(segment, candidate);
    }
  }

  /// 0 if no candidate is usable.
  float best() const noexcept {
    float scale = 0.0f;
    double most_explained = 0.0;  // of sum x^2
    for (const Candidate& candidate : candidates_) {
      if (candidate.sum_qq == 0.0) continue;
      const double fitted = candidate.sum_xq / candidate.sum_qq;
      const double explained = candidate.sum_xq * fitted;
      if (explained > most_explained && is_usable_scale(static_cast<float>(fitted))) {
        most_explained = explained;
        scale = static_cast<float>(fitted);
      }
    }
    return scale;
  }

 private:
  struct Candidate {
    float scale = 0.0f;
    double sum_xq = 0.0;
    double sum_qq = 0.0;
  };

  // Steps of 1/32 from 7/32, then of 1/64 from 40/64 to 67/64. Of normal values, groups of 32 at 8
  // bits gain from fine steps near 1 (16 % less squared error than kMaxAbs, against 11 % with steps
  // of 1/32), and large blocks at few bits from small scales (4 bits, a million values: 71 % less).
  static constexpr int kNumCoarse = 13;
  static constexpr int kNumCandidates = kNumCoarse + 28;
  static constexpr float factor(int k) noexcept {
    return static_cast<float>(k < kNumCoarse ? 2 * (7 + k) : 40 + k - kNumCoarse) / 64.0f;
  }

  void add(const RowSegment& segment, Candidate& candidate) const noexcept {
    double sum_xq = candidate.sum_xq;
    double sum_qq = candidate.sum_qq;
    for (Index i = 0; i < segment.count; ++i) {
      const float x = segment.values[i];
      const double q = range_.nearest(x, candidate.scale);
      sum_xq += static_cast<double>(x) * q;
      sum_qq += q * q;
    }
    candidate.sum_xq = sum_xq;
    candidate.sum_qq = sum_qq;
  }

  IntegerRange range_;
  std::array<Candidate, kNumCandidates> candidates_;
};

/// The squared error of `segment` with `scale`, after `error` of those before it.
inline double add_squared_error(const RowSegment& segment, float scale, const IntegerRange& range,
                                double error) noexcept {
  for (Index i = 0; i < segment.count; ++i) {
    const float x = segment.values[i];
    const float dequantized = scale * range.nearest(x, scale);
    const double difference = static_cast<double>(x) - static_cast<double>(dequantized);
    error = std::fma(difference, difference, error);
  }
  return error;
}

/// The scale of all values that `for_each_segment` hands to the function it is given, in order.
template <class ForEachSegment>
float choose_scale(const QuantizationScheme& scheme, const ForEachSegment& for_each_segment) {
  const IntegerRange range(scheme);
  Extremes extremes;
  for_each_segment([&](const RowSegment& segment) { extremes.add(segment); });
  const float plain = max_abs_scale(extremes, range);
  if (plain == 0.0f || scheme.options().scale == ScaleChoice::kMaxAbs) return plain;

  ScaleSearch search(plain, range);
  for_each_segment([&](const RowSegment& segment) { search.add(segment); });
  const float best = search.best();
  if (best == 0.0f) return plain;
  double plain_error = 0.0;
  double best_error = 0.0;
  for_each_segment([&](const RowSegment& segment) {
    plain_error = add_squared_error(segment, plain, range, plain_error);
    best_error = add_squared_error(segment, best, range, best_error);
  });
  return best_error < plain_error ? best : plain;
}

inline void quantize_values(const float* x, Index count, float scale, const IntegerRange& range,
                            std::int8_t* q) noexcept {
  if (scale == 0.0f) {
    std::fill_n(q, count, std::int8_t{0});
    return;
  }
  for (Index i = 0; i < count; ++i) {
    q[i] = static_cast<std::int8_t>(static_cast<int>(range.nearest(x[i], scale)));
  }
}

// Neither is inlined, so that no arithmetic leaves the guard of the callers.

[[gnu::noinline]] inline QuantizedTensor quantize_tensor(const StridedFloats& weights,
                                                         const QuantizationScheme& scheme) {
  RowReader reader(weights);
  QuantizedTensor result{.values = Int8Matrix(weights.rows, weights.cols)};
  result.scale = choose_scale(scheme, [&](const auto& use) {
    for (Index row = 0; row < reader.rows(); ++row) use({reader.row(row), reader.cols(), row, 0});
  });
  const IntegerRange range(scheme);
  for (Index row = 0; row < reader.rows(); ++row) {
    quantize_values(reader.row(row), reader.cols(), result.scale, range,
                    result.values.data() + row * reader.cols());
  }
  return result;
}

/// Per channel or per group.
[[gnu::noinline]] inline QuantizedMatrix quantize_rows(const StridedFloats& weights,
                                                       const QuantizationScheme& scheme) {
  RowReader reader(weights);
  const IntegerRange range(scheme);
  const Index cols = weights.cols;
  const Index group_size =
      scheme.granularity() == Granularity::kGroup ? Index{scheme.group_size()} : cols;
  Int8Matrix values(weights.rows, cols);
  Matrix scales = Matrix::Zero(weights.rows, scheme.num_groups(cols));
  for (Index row = 0; row < weights.rows; ++row) {
    const float* const x = reader.row(row);
    for (Index col = 0; col < cols; col += group_size) {
      const Index count = std::min(group_size, cols - col);
      const float scale = choose_scale(scheme, [&](const auto& use) {
        use({x + col, count, row, col});
      });
      scales(row, col / group_size) = scale;
      quantize_values(x + col, count, scale, range, values.data() + row * cols + col);
    }
  }
  return QuantizedMatrix(scheme, std::move(values), std::move(scales));
}

/// Calls use(StridedFloats) on the values of any expression of float. What has memory, with any
/// strides, is used in place; other expressions are evaluated once, in their own storage order.
template <class Derived, class Use>
auto with_floats(const Eigen::MatrixBase<Derived>& weights, const Use& use) {
  static_assert(std::is_same_v<typename Derived::Scalar, float>, "weights must be float");
  constexpr bool kIsRowMajor = Derived::IsRowMajor;
  using Plain = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic,
                              kIsRowMajor ? Eigen::RowMajor : Eigen::ColMajor>;
  using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  const Eigen::Ref<const Plain, 0, Strides> values(weights.derived());
  const Index outer = values.outerStride();
  const Index inner = values.innerStride();
  return use(StridedFloats{values.data(), values.rows(), values.cols(), kIsRowMajor ? outer : inner,
                           kIsRowMajor ? inner : outer});
}

}  // namespace detail

template <class Derived>
QuantizedTensor quantize(const Eigen::MatrixBase<Derived>& weights,
                         const QuantizeOptions& options) {
  const QuantizationScheme scheme = per_tensor(options);
  return detail::with_floats(weights, [&](const detail::StridedFloats& floats) {
    const ScopedFpEnvironment fp_environment;
    return detail::quantize_tensor(floats, scheme);
  });
}

template <class Derived>
QuantizedMatrix quantize(const Eigen::MatrixBase<Derived>& weights,
                         const QuantizationScheme& scheme) {
  return detail::with_floats(weights, [&](const detail::StridedFloats& floats) {
    const ScopedFpEnvironment fp_environment;
    if (scheme.granularity() != Granularity::kTensor) return detail::quantize_rows(floats, scheme);
    QuantizedTensor tensor = detail::quantize_tensor(floats, scheme);
    return QuantizedMatrix(scheme, std::move(tensor.values), Matrix::Constant(1, 1, tensor.scale));
  });
}

}  // namespace kvick::inline v0_1
