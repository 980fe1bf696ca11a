// SPDX-License-Identifier: MIT
// Rotary position embedding (Su et al. 2021) with the scalings in use.
//
// Each head's first rotary_dim elements form pairs; pair i of a token at position p turns by the
// angle p * frequency(i). Every scaling changes only the frequencies and one factor on the result.
//
// Shapes    x [rows][heads * head_dim]; rotations [rows][rotary_dim]: the cosines of all pairs,
//           then their sines.
// Accuracy  Frequencies and angles in double, cosine and sine times the magnitude rounded to f32
//           once. A pair (a, b) gives (fma(a, c, -(b * s)), fma(a, s, b * c)) in f32.
// Errors    Error(kArgument) for options out of range; Error(kShape) if operands do not fit.
// Threads   Immutable after construction; rows are split over the pool. No allocation in use.
// Source    Linear scaling: Chen et al. 2023. YaRN: Peng et al. 2023. Llama 3: Meta's model code of
//           2024 (wavelength bands). `freq_factors`: GGUF's rope_freqs tensor.
// Layer     nn: may include core, kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/math.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/kernels/compute_context.hpp"

namespace kvick::inline v0_1 {

/// Which elements of a head turn together.
enum class RopeForm {
  kAdjacentPairs,  ///< (2i, 2i + 1): GGUF's llama
  kHalfSplit,      ///< (i, i + rotary_dim / 2): GGUF's qwen2, qwen3; most other models
};

enum class RopeScaling {
  kNone,
  kLinear,  ///< frequencies divided by factor
  kLlama3,  ///< long wavelengths divided by factor, short ones kept, a ramp between
  kYarn,    ///< like kLlama3 with a ramp over dimensions, and results magnified
};

struct RopeOptions {
  int head_dim = 0;
  int rotary_dim = 0;  ///< even, at most head_dim; 0 means head_dim
  RopeForm form = RopeForm::kHalfSplit;
  double freq_base = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;              ///< how much longer the context became, at least 1 for kYarn
  int original_context_length = 0;  ///< tokens, before scaling; needed by kLlama3 and kYarn
  double low_freq_factor = 1.0;     ///< kLlama3: wavelengths above original / low are scaled
  double high_freq_factor = 4.0;    ///< kLlama3: wavelengths below original / high are kept
  double beta_fast = 32.0;  ///< kYarn: pairs with more turns over the original context are kept
  double beta_slow = 1.0;   ///< kYarn: pairs with fewer turns are scaled
  double attention_factor = 1.0;         ///< kYarn: multiplies the magnitude 1 + 0.1 ln(factor)
  std::vector<float> freq_factors = {};  ///< [rotary_dim / 2] divisors of the frequencies, or empty
};

class Rope {
 public:
  explicit Rope(const RopeOptions& options);

  int rotary_dim() const noexcept { return 2 * static_cast<int>(frequencies_.size()); }
  /// Radians per position of each pair.
  std::span<const double> frequencies() const noexcept { return frequencies_; }
  /// Factor on every cosine and sine.
  double magnitude() const noexcept { return magnitude_; }

  /// Rotations of tokens at these positions, for all layers and heads.
  void rotations(std::span<const int> positions, MatrixRef rotations) const;

  /// Turns every head of every row in place.
  void apply(const ConstMatrixRef& rotations, MatrixRef x, const ComputeContext& context) const;

 private:
  void set_frequencies(const RopeOptions& options, int rotary_dim);
  void fill_rotations(std::span<const int> positions, MatrixRef& rotations) const noexcept;

  int head_dim_;
  RopeForm form_;
  std::vector<double> frequencies_;  // [rotary_dim / 2]
  double magnitude_ = 1.0;
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// Radians per position beyond which the angle of some position passes 2^40, the end of math::sin
/// and math::cos.
inline constexpr double kMaxRopeFrequency = 512.0;

inline void check_rope_options(const RopeOptions& o, int rotary_dim) {
  constexpr const char* kOperation = "Rope";
  require(o.head_dim > 0, ErrorCode::kArgument, kOperation, "head_dim must be positive, got ",
          o.head_dim);
  require(rotary_dim > 0 && rotary_dim <= o.head_dim && rotary_dim % 2 == 0, ErrorCode::kArgument,
          kOperation, "rotary_dim must be even and in [2, head_dim = ", o.head_dim, "], got ",
          rotary_dim);
  require(std::isfinite(o.freq_base) && o.freq_base > 1.0, ErrorCode::kArgument, kOperation,
          "freq_base must be above 1, got ", o.freq_base);
  require(std::isfinite(o.factor) && o.factor > 0.0, ErrorCode::kArgument, kOperation,
          "factor must be positive, got ", o.factor);
  require(
      o.freq_factors.empty() || o.freq_factors.size() == static_cast<std::size_t>(rotary_dim / 2),
      ErrorCode::kShape, kOperation, "freq_factors must have rotary_dim / 2 = ", rotary_dim / 2,
      " values, got ", o.freq_factors.size());
  for (const float divisor : o.freq_factors) {
    require(std::isfinite(divisor) && divisor > 0.0f, ErrorCode::kArgument, kOperation,
            "freq_factors must be positive, got ", divisor);
  }
  if (o.scaling == RopeScaling::kLlama3 || o.scaling == RopeScaling::kYarn) {
    require(o.original_context_length > 0, ErrorCode::kArgument, kOperation,
            "original_context_length must be positive, got ", o.original_context_length);
  }
  if (o.scaling == RopeScaling::kLlama3) {
    require(o.low_freq_factor > 0.0 && o.high_freq_factor > o.low_freq_factor &&
                std::isfinite(o.high_freq_factor),
            ErrorCode::kArgument, kOperation,
            "low_freq_factor must be in (0, high_freq_factor), got ", o.low_freq_factor, " and ",
            o.high_freq_factor);
  }
  if (o.scaling == RopeScaling::kYarn) {
    constexpr double kMaxAttentionFactor = 1e6;  // far from overflow in float
    require(
        o.factor >= 1.0 && o.attention_factor > 0.0 && o.attention_factor <= kMaxAttentionFactor,
        ErrorCode::kArgument, kOperation,
        "factor must be at least 1 and attention_factor positive and at most ", kMaxAttentionFactor,
        ", got ", o.factor, " and ", o.attention_factor);
    require(o.beta_slow > 0.0 && o.beta_fast > o.beta_slow && std::isfinite(o.beta_fast),
            ErrorCode::kArgument, kOperation, "beta_slow must be in (0, beta_fast), got ",
            o.beta_slow, " and ", o.beta_fast);
  }
}

/// Share of the unscaled frequency that a pair keeps under kLlama3: 1 for short wavelengths.
inline double llama3_kept(const RopeOptions& o, double frequency) noexcept {
  const double turns = o.original_context_length * frequency / (2.0 * std::numbers::pi);
  return std::clamp((turns - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor), 0.0,
                    1.0);
}

/// The fractional pair index whose pair makes `turns` turns over the original context.
inline double yarn_pair_of_turns(const RopeOptions& o, int rotary_dim, double turns) noexcept {
  const double wavelength = o.original_context_length / (turns * 2.0 * std::numbers::pi);
  return rotary_dim * math::log(wavelength) / (2.0 * math::log(o.freq_base));
}

/// Share of the unscaled frequency that pair `i` keeps under kYarn: 1 for the fast pairs.
inline double yarn_kept(const RopeOptions& o, int rotary_dim, int i) noexcept {
  const double low = std::max(0.0, std::floor(yarn_pair_of_turns(o, rotary_dim, o.beta_fast)));
  const double high =
      std::min(rotary_dim - 1.0, std::ceil(yarn_pair_of_turns(o, rotary_dim, o.beta_slow)));
  return 1.0 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
}

inline void rotate_pair(float& a, float& b, float cosine, float sine) noexcept {
  const float x = a;
  const float y = b;
  a = std::fma(x, cosine, -(y * sine));
  b = std::fma(x, sine, y * cosine);
}

}  // namespace detail

inline Rope::Rope(const RopeOptions& options) : head_dim_(options.head_dim), form_(options.form) {
  const int rotary_dim = options.rotary_dim == 0 ? options.head_dim : options.rotary_dim;
  detail::check_rope_options(options, rotary_dim);
  const ScopedFpEnvironment fp_environment;
  set_frequencies(options, rotary_dim);
}

// Not inlined, like fill_rotations, so that no arithmetic leaves the guard of the caller.
[[gnu::noinline]] inline void Rope::set_frequencies(const RopeOptions& options, int rotary_dim) {
  if (options.scaling == RopeScaling::kYarn) {
    magnitude_ = options.attention_factor * std::fma(0.1, math::log(options.factor), 1.0);
  }
  for (int i = 0; i < rotary_dim / 2; ++i) {
    double frequency = math::pow(options.freq_base, -2.0 * i / rotary_dim);
    if (!options.freq_factors.empty())
      frequency /= options.freq_factors[static_cast<std::size_t>(i)];
    double kept = 1.0;
    if (options.scaling == RopeScaling::kLinear) kept = 0.0;
    if (options.scaling == RopeScaling::kLlama3) kept = detail::llama3_kept(options, frequency);
    if (options.scaling == RopeScaling::kYarn) kept = detail::yarn_kept(options, rotary_dim, i);
    const double scaled = frequency / options.factor;
    frequencies_.push_back(options.scaling == RopeScaling::kNone
                               ? frequency
                               : std::fma(frequency, kept, scaled * (1.0 - kept)));
    detail::require(frequencies_.back() <= detail::kMaxRopeFrequency, ErrorCode::kArgument, "Rope",
                    "frequencies must be at most ", detail::kMaxRopeFrequency,
                    " radians per position, got ", frequencies_.back(), " for pair ", i);
  }
}

inline void Rope::rotations(std::span<const int> positions, MatrixRef rotations) const {
  detail::require(
      rotations.rows() == static_cast<Index>(positions.size()) && rotations.cols() == rotary_dim(),
      ErrorCode::kShape, "Rope::rotations", "rotations must be [", positions.size(), ", ",
      rotary_dim(), "], got [", rotations.rows(), ", ", rotations.cols(), "]");
  const ScopedFpEnvironment fp_environment;
  fill_rotations(positions, rotations);
}

[[gnu::noinline]] inline void Rope::fill_rotations(std::span<const int> positions,
                                                   MatrixRef& rotations) const noexcept {
  const Index num_pairs = rotary_dim() / 2;
  for (Index row = 0; row < rotations.rows(); ++row) {
    const double position = positions[static_cast<std::size_t>(row)];
    for (Index i = 0; i < num_pairs; ++i) {
      const double angle = position * frequencies_[static_cast<std::size_t>(i)];
      rotations(row, i) = static_cast<float>(math::cos(angle) * magnitude_);
      rotations(row, num_pairs + i) = static_cast<float>(math::sin(angle) * magnitude_);
    }
  }
}

inline void Rope::apply(const ConstMatrixRef& rotations, MatrixRef x,
                        const ComputeContext& context) const {
  detail::require(
      rotations.rows() == x.rows() && rotations.cols() == rotary_dim() && x.cols() % head_dim_ == 0,
      ErrorCode::kShape, "Rope::apply", "x must have rows of whole heads of ", head_dim_,
      " and rotations as many rows of ", rotary_dim(), ", got [", x.rows(), ", ", x.cols(),
      "] and [", rotations.rows(), ", ", rotations.cols(), "]");
  const int num_pairs = rotary_dim() / 2;
  const bool adjacent = form_ == RopeForm::kAdjacentPairs;
  const int step = adjacent ? 2 : 1;              // from one pair's first element to the next's
  const int distance = adjacent ? 1 : num_pairs;  // from a pair's first element to its second
  context.pool.parallel_for(x.rows(), 16, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) {
      const float* const cosines = rotations.data() + row * rotations.outerStride();
      const float* const sines = cosines + num_pairs;
      float* const values = x.data() + row * x.outerStride();
      for (Index first = 0; first < x.cols(); first += head_dim_) {
        for (int i = 0; i < num_pairs; ++i) {
          float* const a = values + first + i * step;
          detail::rotate_pair(a[0], a[distance], cosines[i], sines[i]);
        }
      }
    }
  });
}

}  // namespace kvick::inline v0_1
