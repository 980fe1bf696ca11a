// SPDX-License-Identifier: MIT
// Least-squares scales for values that share one: the searches below the block encoders.
//
// A group of 16 or 32 values is stored as x = scale * q + offset with integers q. With the scale
// and offset given, the best q is the nearest; with the q given, the best scale and offset are
// those of least squares. The searches take the q of many trial scales, keep those that least
// squares fits best, and then take turns (Lloyd's method) as long as the error falls.
//
// Every value counts alike: if inputs do not depend on the weights they meet, the error of an
// output is the plain sum of squares. Importance by size (sqrt(sigma^2 + x^2), sigma + |x|, x^2)
// was tried on a small trained model at 3, 4 and 5 bits: the divergence of its predictions grew
// with some formats and shrank with others, hardly beyond its uncertainty, and the squared error
// grew by 1 to 16 %.
//
// Accuracy  Sums are in double. Products of floats, and of floats and integers below 2^6, are exact
//           there, so no compiler that contracts them can change a bit. Four partial sums by index
//           modulo 4 let compilers use vectors.
// Source    Lloyd 1982 (written 1957), Least Squares Quantization in PCM.
// Layer     quant.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kvick/core/half.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

// ---- Implementation: nothing below is API ----

namespace detail {

/// The integers of a format, as floats.
struct IntegerLimits {
  float least;
  float largest;
};

/// Clamping comes first, which changes nothing, since the ends are integers; then adding and
/// subtracting 1.5 * 2^23, where floats are integers, rounds to nearest even.
inline float nearest_integer(float x, float offset, float inverse_scale,
                             const IntegerLimits& limits) noexcept {
  const float clamped =
      std::min(std::max((x - offset) * inverse_scale, limits.least), limits.largest);
  return (clamped + 0x1.8p23f) - 0x1.8p23f;
}

/// 0 for 0: then every integer is the nearest to 0.
inline float inverse(float scale) noexcept { return scale == 0.0f ? 0.0f : 1.0f / scale; }

/// The nearest f16 that can be a scale: finite, and not 0 unless the value is.
inline f16 to_f16_scale(double value) noexcept {
  constexpr double kLargest = 65504.0;
  constexpr double kLeast = 0x1p-24;
  if (value == 0.0) return f16(0.0f);
  const double magnitude = std::clamp(std::fabs(value), kLeast, kLargest);
  return f16(static_cast<float>(std::copysign(magnitude, value)));
}

/// The nearest f16 that can be an offset: finite.
inline f16 to_f16_offset(double value) noexcept {
  return f16(static_cast<float>(std::clamp(value, -65504.0, 65504.0)));
}

/// Every format's values are multiples of 2^-24, the least f16: up to here 0 is the nearest.
inline constexpr float kNegligible = 0x1p-25f;

/// `kCount` values and the sums that do not depend on their integers.
template <int kCount>
struct ValueGroup {
  explicit ValueGroup(const float* values) noexcept : x(values), lowest(*values), highest(*values) {
    for (int j = 0; j < kCount; ++j) {
      lowest = std::min(lowest, x[j]);
      highest = std::max(highest, x[j]);
      sum_x += static_cast<double>(x[j]);
      sum_xx += static_cast<double>(x[j]) * static_cast<double>(x[j]);
    }
  }

  float max_abs() const noexcept { return std::fabs(extreme()); }
  /// The value of the largest magnitude, with its sign.
  float extreme() const noexcept { return -lowest > highest ? lowest : highest; }

  const float* x;
  float lowest;
  float highest;
  double sum_x = 0.0;
  double sum_xx = 0.0;
};

/// Sums over the values of a group and their integers.
struct IntegerSums {
  double xq;
  double q;
  double qq;
};

template <int kCount>
IntegerSums nearest_integer_sums(const ValueGroup<kCount>& group, float offset, float inverse_scale,
                                 const IntegerLimits& limits) noexcept {
  double xq[4] = {};
  float q[4] = {};   // below 2^10, as integers
  float qq[4] = {};  // at most 32 * 32^2: exact
  for (int j = 0; j < kCount; j += 4) {
    for (int lane = 0; lane < 4; ++lane) {
      const float x = group.x[j + lane];
      const float integer = nearest_integer(x, offset, inverse_scale, limits);
      xq[lane] += static_cast<double>(x) * static_cast<double>(integer);
      q[lane] += integer;
      qq[lane] += integer * integer;
    }
  }
  const auto total = [](const auto(&sums)[4]) {
    return static_cast<double>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  };
  return {.xq = total(xq), .q = total(q), .qq = total(qq)};
}

/// sum (x - scale q - offset)^2. Exactly 0 where a scale that is an f16 gives back every value.
template <int kCount>
double squared_error(const ValueGroup<kCount>& group, const IntegerSums& sums, double scale,
                     double offset) noexcept {
  const double scaled = std::fma(scale, sums.qq, -2.0 * sums.xq);
  const double shifted =
      std::fma(2.0 * scale, sums.q, std::fma(offset, kCount, -2.0 * group.sum_x));
  return std::fma(offset, shifted, std::fma(scale, scaled, group.sum_xx));
}

/// A scale and an offset, the nearest integers to them and what these leave.
struct GroupFit {
  double scale = 0.0;
  double offset = 0.0;
  IntegerSums sums = {};
  double error = 0.0;  // sum of squares
};

template <int kCount>
GroupFit fit_of(const ValueGroup<kCount>& group, float scale, float offset,
                const IntegerLimits& limits) noexcept {
  const auto sums = nearest_integer_sums(group, offset, inverse(scale), limits);
  return {scale, offset, sums, squared_error(group, sums, scale, offset)};
}

// ---- x = scale * q ----

/// The least-squares scale for given integers.
inline double fitted_scale(const IntegerSums& sums) noexcept {
  return sums.qq > 0.0 ? sums.xq / sums.qq : 0.0;
}

/// The scale, not rounded, that explains most of sum x^2. Trials bring the largest magnitude to
/// 42/64 to 74/64 of the least integer, which is the one of the largest magnitude, on either side
/// of 0. Of normal values that is within 0.02 dB of the best of all scales at 4 to 6 bits, and 0.4
/// dB (4 bits) to 1.1 dB (6 bits, 16 values) better than a fit to the first guess.
template <int kCount>
double search_scale(const ValueGroup<kCount>& group, const IntegerLimits& limits) noexcept {
  const float max_abs = group.max_abs();
  if (max_abs <= kNegligible) return 0.0;
  double best = 0.0;
  double most_explained = 0.0;
  for (int step = 42; step <= 74; ++step) {
    const float inverse_scale = limits.least * (static_cast<float>(step) / 64.0f) / max_abs;
    for (const float trial : {inverse_scale, -inverse_scale}) {
      const IntegerSums sums = nearest_integer_sums(group, 0.0f, trial, limits);
      const double scale = fitted_scale(sums);
      const double explained = scale * sums.xq;
      if (explained > most_explained) {
        most_explained = explained;
        best = scale;
      }
    }
  }
  return best;
}

/// The best f16 scale that was found, and no worse than the one that brings the largest magnitude
/// to the least integer.
template <int kCount>
GroupFit fit_f16_scale(const ValueGroup<kCount>& group, const IntegerLimits& limits) noexcept {
  const auto with_scale = [&](double scale) {
    return fit_of(group, static_cast<float>(to_f16_scale(scale)), 0.0f, limits);
  };
  GroupFit best = with_scale(static_cast<double>(group.extreme() / limits.least));
  GroupFit next = with_scale(search_scale(group, limits));
  while (next.error < best.error) {
    best = next;
    next = with_scale(fitted_scale(best.sums));
  }
  return best;
}

// ---- x = scale * q + offset, with integers from 0 ----

/// For offsets of either sign.
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// The least-squares scale for given integers and offset.
inline double fitted_scale(const IntegerSums& sums, double offset) noexcept {
  return sums.qq > 0.0 ? std::fma(-offset, sums.q, sums.xq) / sums.qq : 0.0;
}

/// Scale and offset of least squares for given integers, the offset at most `max_offset`. Error and
/// sums are those of the given integers.
template <int kCount>
GroupFit fitted_scale_and_offset(const ValueGroup<kCount>& group, const IntegerSums& sums,
                                 double max_offset) noexcept {
  const double determinant = std::fma(kCount, sums.qq, -(sums.q * sums.q));  // integers: exact
  GroupFit fit{.sums = sums};
  if (determinant > 0.0) {
    fit.scale = std::fma(kCount, sums.xq, -(sums.q * group.sum_x)) / determinant;
    fit.offset = std::fma(-fit.scale, sums.q, group.sum_x) / kCount;
  }
  if (determinant == 0.0 || fit.offset > max_offset) {
    fit.offset = std::min(max_offset, static_cast<double>(group.lowest));
    fit.scale = fitted_scale(sums, fit.offset);
  }
  fit.error = squared_error(group, sums, fit.scale, fit.offset);
  return fit;
}

/// Scale and offset, not rounded, of the least error. Trials move both ends of the range of values
/// inwards by -1 to 4 times 3/8 of a step between integers. Of normal values that is within 0.03 dB
/// of finer grids, and 0.8 dB better than a fit to the range.
template <int kCount>
GroupFit search_scale_and_offset(const ValueGroup<kCount>& group, const IntegerLimits& limits,
                                 double max_offset) noexcept {
  const float low_end = std::min(group.lowest, static_cast<float>(max_offset));
  const float range = group.highest - low_end;
  GroupFit best{.offset = static_cast<double>(low_end)};
  best.error = squared_error(group, best.sums, best.scale, best.offset);
  if (range <= kNegligible) return best;
  const float step = range * (0.375f / limits.largest);
  for (int low_step = -1; low_step <= 4; ++low_step) {
    const float low = std::fma(static_cast<float>(low_step), step, low_end);
    for (int high_step = -1; high_step <= 4; ++high_step) {
      const float high = std::fma(static_cast<float>(-high_step), step, group.highest);
      const auto sums = nearest_integer_sums(group, low, limits.largest / (high - low), limits);
      const GroupFit fit = fitted_scale_and_offset(group, sums, max_offset);
      if (fit.scale > 0.0 && fit.error < best.error) best = fit;
    }
  }
  return best;
}

/// The largest f16 at most `value`, which is within [-65504, 65504].
inline f16 f16_at_most(float value) noexcept {
  const f16 nearest(value);
  const auto rounded = static_cast<float>(nearest);
  if (rounded <= value) return nearest;
  if (rounded == 0.0f) return f16::from_bits(0x8001);  // -2^-24
  const int away_from_zero = rounded < 0.0f ? 1 : -1;
  return f16::from_bits(static_cast<std::uint16_t>(nearest.bits + away_from_zero));
}

/// The best f16 scale and offset that were found. No worse than those of the range of values, with
/// the offset rounded to nearest or down.
template <int kCount>
GroupFit fit_f16_scale_and_offset(const ValueGroup<kCount>& group,
                                  const IntegerLimits& limits) noexcept {
  const auto with = [&](double scale, f16 offset) {
    return fit_of(group, static_cast<float>(to_f16_scale(scale)), static_cast<float>(offset),
                  limits);
  };
  const auto of_range = [&](float low, f16 offset) {
    return with(static_cast<double>((group.highest - low) / limits.largest), offset);
  };
  const auto refined = [&](const GroupFit& fit) {
    const f16 offset = to_f16_offset(fit.offset);
    return with(fitted_scale(fit.sums, static_cast<double>(static_cast<float>(offset))), offset);
  };
  GroupFit best = of_range(group.lowest, f16(group.lowest));
  const f16 below = f16_at_most(group.lowest);
  const GroupFit down = of_range(static_cast<float>(below), below);
  if (down.error < best.error) best = down;
  GroupFit next = refined(search_scale_and_offset(group, limits, kNoLimit));
  while (next.error < best.error) {
    best = next;
    next = refined(fitted_scale_and_offset(group, best.sums, kNoLimit));
  }
  return best;
}

}  // namespace detail

}  // namespace kvick::inline v0_1
