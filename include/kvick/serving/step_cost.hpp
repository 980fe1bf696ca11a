// SPDX-License-Identifier: MIT
// How long a step takes, learnt from the steps that were taken.
//
//   ms = base + row * decode rows + row_depth * their positions
//             + token * prompt tokens + token_depth * their positions
//
// with no term negative: on a CPU a token costs more the deeper it lies, a decode row less than a
// prompt's token as long as reading the weights takes longer than multiplying them.
//
// The terms are fitted to relative errors, by least squares whose memory fades: after 200 steps an
// observation counts 1/e. Steps far off what was expected count less (Huber's weights), so one that
// was interrupted hardly moves the fit; but the first steps with something new count in full, and
// after ten in a row that took longer, or shorter, the machine has changed: what was known before
// counts a hundredth. A term that no step depends on any more stays as it was.
//
// Threads   One at a time. No call allocates.
// Source    Least squares with exponential forgetting: Ljung and Soderstrom 1983. Weights: Huber
//           1964.
// Layer     serving: may include core.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// What a step computes, as far as its time depends on it.
struct StepShape {
  double num_decode_rows = 0;
  double decode_depth = 0;  ///< sum of the positions that these rows see
  double num_prefill_tokens = 0;
  double prefill_depth = 0;

  void add_decode(int num_tokens, int first_position) noexcept {
    num_decode_rows += num_tokens;
    decode_depth += depth(num_tokens, first_position);
  }
  void add_prefill(int num_tokens, int first_position) noexcept {
    num_prefill_tokens += num_tokens;
    prefill_depth += depth(num_tokens, first_position);
  }

 private:
  static double depth(double num_tokens, double first_position) noexcept {
    return num_tokens * (first_position + (num_tokens + 1) / 2);
  }
};

/// The terms, in milliseconds.
struct StepCost {
  double base = 0;
  double row = 0;
  double row_depth = 0;
  double token = 0;
  double token_depth = 0;

  double operator()(const StepShape& shape) const noexcept {
    return base + row * shape.num_decode_rows + row_depth * shape.decode_depth +
           token * shape.num_prefill_tokens + token_depth * shape.prefill_depth;
  }

  /// Of a prompt's tokens beside a step that is taken anyway.
  double prefill_ms(int num_tokens, int first_position) const noexcept;
  /// The most tokens of a prompt, at most `limit`, that take `ms` so.
  int num_prefill_tokens(double ms, int first_position, int limit) const noexcept;
};

class StepCostModel {
 public:
  /// Zero until steps were observed: what is not known costs nothing.
  const StepCost& cost() const noexcept { return cost_; }

  /// The most tokens of prompts that a step may have beside decode rows without leaving what is
  /// known: 32, then twice the most that was observed so.
  int max_prefill_tokens() const noexcept { return max_prefill_tokens_; }

  void observe(const StepShape& shape, double ms) noexcept;

 private:
  static constexpr std::size_t kTerms = 5;
  using Terms = std::array<double, kTerms>;

  void fit() noexcept;

  StepCost cost_;
  Terms scaled_{};                       // the terms times their scales
  std::array<Terms, kTerms> squares_{};  // faded sums of x x' and x y
  Terms products_{};
  double spread_ = 0;                                // faded mean of the relative errors
  std::array<std::int64_t, kTerms> num_observed_{};  // of each term
  int num_unusual_ = 0;  // steps in a row, negative if shorter than expected
  int max_prefill_tokens_ = 32;
};

// ---- Implementation: nothing below is API ----

inline double StepCost::prefill_ms(int num_tokens, int first_position) const noexcept {
  StepShape shape;
  shape.add_prefill(num_tokens, first_position);
  return token * shape.num_prefill_tokens + token_depth * shape.prefill_depth;
}

/// The root of a n^2 + b n = ms, with a = token_depth / 2, in the form without cancellation.
inline int StepCost::num_prefill_tokens(double ms, int first_position, int limit) const noexcept {
  if (ms <= 0) return 0;
  const double b = token + token_depth * (first_position + 0.5);
  const double root = b + std::sqrt(b * b + 2 * token_depth * ms);
  const double most = root > 0 ? 2 * ms / root : limit;
  return most < limit ? static_cast<int>(most) : limit;
}

inline void StepCostModel::observe(const StepShape& shape, double ms) noexcept {
  constexpr double kMemory = 1.0 - 1.0 / 200;
  constexpr std::int64_t kWarmUp = 10;  // observations of each term that count in full
  constexpr double kUsual = 2.5;        // times the spread: errors that count in full
  constexpr double kSpreadRate = 0.05;
  constexpr int kChanged = 10;  // steps in a row that are unusual in one direction
  // Sizes that bring the terms of usual steps to some 1.
  constexpr Terms kScales{1, 16, 16 * 1024, 256, 256 * 1024};
  if (!std::isfinite(ms) || ms <= 0) return;

  const Terms raw{1, shape.num_decode_rows, shape.decode_depth, shape.num_prefill_tokens,
                  shape.prefill_depth};
  bool is_new = false;
  for (std::size_t i = 0; i < kTerms; ++i) {
    if (raw[i] > 0) is_new |= ++num_observed_[i] <= kWarmUp;
  }
  const double error = 1 - cost_(shape) / ms;
  const double size = std::abs(error);
  double weight = 1;
  if (!is_new) {
    const bool is_usual = size <= kUsual * spread_;
    if (!is_usual) weight = kUsual * spread_ / size;
    num_unusual_ = is_usual    ? 0
                   : error > 0 ? std::max(num_unusual_, 0) + 1
                               : std::min(num_unusual_, 0) - 1;
    const double most = 3 * spread_ + 1e-3;  // so that one step does not widen it much
    spread_ += kSpreadRate * (std::min(size, most) - spread_);
  }
  double memory = kMemory;
  if (std::abs(num_unusual_) >= kChanged) {
    num_unusual_ = 0;
    weight = 1;
    memory = 0.01;
  }

  Terms x;
  for (std::size_t i = 0; i < kTerms; ++i) x[i] = raw[i] / kScales[i] / ms;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) {
      squares_[i][j] = memory * squares_[i][j] + weight * x[i] * x[j];
    }
    products_[i] = memory * products_[i] + weight * x[i];
  }
  fit();
  cost_ = {.base = scaled_[0] / kScales[0],
           .row = scaled_[1] / kScales[1],
           .row_depth = scaled_[2] / kScales[2],
           .token = scaled_[3] / kScales[3],
           .token_depth = scaled_[4] / kScales[4]};
  if (shape.num_decode_rows == 0) return;
  const double twice = std::min(2 * shape.num_prefill_tokens, 1e9);
  max_prefill_tokens_ = std::max(max_prefill_tokens_, static_cast<int>(twice));
}

/// Coordinate descent from the last terms: exact in the limit, and never below 0. Each term is held
/// where it was by a spring that only matters where the observations say nothing.
inline void StepCostModel::fit() noexcept {
  constexpr int kSweeps = 20;
  constexpr double kSpring = 1e-8;
  const Terms last = scaled_;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t i = 0; i < kTerms; ++i) {
      const double spring = kSpring * squares_[0][0];
      double rest = products_[i] + spring * last[i];
      for (std::size_t j = 0; j < kTerms; ++j) {
        if (j != i) rest -= squares_[i][j] * scaled_[j];
      }
      scaled_[i] = std::max(0.0, rest / (squares_[i][i] + spring));
    }
  }
}

}  // namespace kvick::inline v0_1
