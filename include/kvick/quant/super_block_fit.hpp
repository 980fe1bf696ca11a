// SPDX-License-Identifier: MIT
// Least-squares scales for blocks of 256 values, whose groups share a super-scale.
//
// Each group is first fitted alone. Then two steps take turns as long as the error falls: given d
// and dmin, every group takes the best of the 6- or 8-bit scales and minimums next to its fit;
// given those and all integers, d and dmin are those of least squares. The result is never worse
// than scales of the groups' ranges, rounded to nearest.
//
// Accuracy  Of normal values 0.04 dB (Q4_K), 0.2 dB (Q5_K) and 0.13 dB (Q6_K) from groups with
//           scales that are not rounded.
// Layer     quant.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "kvick/core/half.hpp"
#include "kvick/core/version.hpp"
#include "kvick/quant/block_fit.hpp"
#include "kvick/quant/block_layouts.hpp"

namespace kvick::inline v0_1 {

// ---- Implementation: nothing below is API ----

namespace detail {

/// Rounds that improve d and dmin. Of normal values the first gains 0.006 dB (Q4_K) or 0.016 dB
/// (Q5_K), each further one about half of the one before.
inline constexpr int kMaxRounds = 3;

/// The groups of a block, one after another.
template <int kCount, std::size_t... kIndices>
std::array<ValueGroup<kCount>, sizeof...(kIndices)> groups_of(
    const float* x, std::index_sequence<kIndices...> /*groups*/) noexcept {
  return {ValueGroup<kCount>(x + kIndices * kCount)...};
}

/// Calls use(level) for the multiples of `step` next to `value`: the nearest, at most `reach` away.
template <class Use>
void for_nearby_levels(double value, float step, int least, int largest, int reach,
                       const Use& use) {
  const double quotient = step == 0.0f ? 0.0 : value / static_cast<double>(step);
  const int nearest = static_cast<int>(std::lrint(std::clamp<double>(quotient, least, largest)));
  const int last = std::min(nearest + reach, largest);
  for (int level = std::max(nearest - reach, least); level <= last; ++level) use(level);
}

/// The f16 whose multiple `max_level` is nearest to `largest`, or the next one, should a subnormal
/// have been rounded down so far that `largest` is out of reach.
inline f16 step_to_reach(double largest, int max_level) noexcept {
  const f16 step = to_f16_scale(largest / max_level);
  const double reach = static_cast<double>(static_cast<float>(step)) * (max_level + 0.5);
  const bool is_last = step.bits == 0x7bff;  // 65504
  return largest <= reach || is_last ? step
                                     : f16::from_bits(static_cast<std::uint16_t>(step.bits + 1));
}

/// Q4_K and Q5_K: x = d scale q - dmin minimum, in eight groups of 32.
class AffineSuperBlock {
 public:
  struct Scales {
    f16 d{0.0f};
    f16 dmin{0.0f};
    KScales k = {};
    std::array<IntegerSums, 8> sums = {};
    double error = 0.0;

    float scale(int i) const noexcept {
      return static_cast<float>(d) * static_cast<float>(k.scale[i]);  // 17 bits: exact
    }
    float offset(int i) const noexcept {
      return static_cast<float>(dmin) * -static_cast<float>(k.minimum[i]);
    }
  };

  AffineSuperBlock(const float* x, const IntegerLimits& limits) noexcept
      : limits_(limits), groups_(groups_of<32>(x, std::make_index_sequence<8>())) {}

  Scales best_scales() const noexcept {
    Fits of_ranges;
    Fits fits;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const ValueGroup<32>& group = groups_[i];
      const float low = std::min(group.lowest, 0.0f);  // a minimum is subtracted: no offset above 0
      of_ranges[i].scale = static_cast<double>((group.highest - low) / limits_.largest);
      of_ranges[i].offset = static_cast<double>(low);
      fits[i] = search_scale_and_offset(group, limits_, 0.0);
    }
    Scales best = choose(first_steps(of_ranges), of_ranges, 0);
    Scales next = choose(first_steps(fits), fits, 1);
    for (int round = 0; next.error < best.error; ++round) {
      best = next;
      if (round == kMaxRounds) break;
      next = choose(refined_steps(best), fits, 1);
    }
    return best;
  }

 private:
  using Fits = std::array<GroupFit, 8>;
  struct Steps {
    f16 d;
    f16 dmin;
  };
  static constexpr int kMaxLevel = 63;

  static Steps first_steps(const Fits& fits) noexcept {
    double scale = 0.0;
    double minimum = 0.0;
    for (const GroupFit& fit : fits) {
      scale = std::max(scale, fit.scale);
      minimum = std::max(minimum, -fit.offset);
    }
    return {step_to_reach(scale, kMaxLevel), step_to_reach(minimum, kMaxLevel)};
  }

  /// Least squares for given integers: x is approximated by d a - dmin b with a = scale q and
  /// b = minimum.
  Steps refined_steps(const Scales& scales) const noexcept {
    double aa = 0.0, ab = 0.0, bb = 0.0;  // integers
    double xa = 0.0, xb = 0.0;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const double scale = scales.k.scale[i];
      const double minimum = scales.k.minimum[i];
      const IntegerSums& sums = scales.sums[i];
      aa += scale * scale * sums.qq;
      ab += scale * minimum * sums.q;
      bb += minimum * minimum * 32.0;
      xa = std::fma(scale, sums.xq, xa);
      xb = std::fma(minimum, groups_[i].sum_x, xb);
    }
    const double determinant = std::fma(aa, bb, -(ab * ab));
    double d = aa > 0.0 ? xa / aa : 0.0;
    double dmin = 0.0;
    if (determinant > 0.0) {
      d = std::fma(xa, bb, -(ab * xb)) / determinant;
      dmin = std::fma(ab, xa, -(aa * xb)) / determinant;
    }
    return {to_f16_scale(std::max(d, 0.0)), to_f16_scale(std::max(dmin, 0.0))};
  }

  Scales choose(const Steps& steps, const Fits& fits, int reach) const noexcept {
    Scales scales{.d = steps.d, .dmin = steps.dmin};
    const auto d = static_cast<float>(steps.d);
    const auto dmin = static_cast<float>(steps.dmin);
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      double least_error = std::numeric_limits<double>::infinity();
      for_nearby_levels(fits[i].scale, d, 0, kMaxLevel, reach, [&](int scale) {
        for_nearby_levels(-fits[i].offset, dmin, 0, kMaxLevel, reach, [&](int minimum) {
          const GroupFit fit = fit_of(groups_[i], d * static_cast<float>(scale),
                                      dmin * -static_cast<float>(minimum), limits_);
          if (!(fit.error < least_error)) return;
          least_error = fit.error;
          scales.sums[i] = fit.sums;
          scales.k.scale[i] = static_cast<std::uint8_t>(scale);
          scales.k.minimum[i] = static_cast<std::uint8_t>(minimum);
        });
      });
      scales.error += least_error;
    }
    return scales;
  }

  IntegerLimits limits_;
  std::array<ValueGroup<32>, 8> groups_;
};

/// Q6_K: x = d scale q, in 16 groups of 16.
class SymmetricSuperBlock {
 public:
  static constexpr IntegerLimits kLimits{-32.0f, 31.0f};

  struct Scales {
    f16 d{0.0f};
    std::array<std::int8_t, 16> k = {};
    std::array<IntegerSums, 16> sums = {};
    double error = 0.0;

    float scale(std::size_t i) const noexcept {
      return static_cast<float>(d) * static_cast<float>(k[i]);  // 18 bits: exact
    }
  };

  explicit SymmetricSuperBlock(const float* x) noexcept
      : groups_(groups_of<16>(x, std::make_index_sequence<16>())) {}

  Scales best_scales() const noexcept {
    Fits of_extremes;
    Fits fits;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      of_extremes[i] = static_cast<double>(groups_[i].extreme() / kLimits.least);
      fits[i] = search_scale(groups_[i], kLimits);
    }
    Scales best = choose(first_step(of_extremes), of_extremes, 0);
    Scales next = choose(first_step(fits), fits, 1);
    for (int round = 0; next.error < best.error; ++round) {
      best = next;
      if (round == kMaxRounds) break;
      next = choose(refined_step(best), fits, 1);
    }
    return best;
  }

 private:
  using Fits = std::array<double, 16>;   // scales
  static constexpr int kMaxLevel = 127;  // -128 is left out, so that both signs are alike

  static f16 first_step(const Fits& fits) noexcept {
    double scale = 0.0;
    for (const double fit : fits) scale = std::max(scale, std::fabs(fit));
    return step_to_reach(scale, kMaxLevel);
  }

  /// Least squares for given integers: x is approximated by d a with a = scale q.
  f16 refined_step(const Scales& scales) const noexcept {
    double aa = 0.0;
    double xa = 0.0;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const double scale = scales.k[i];
      aa += scale * scale * scales.sums[i].qq;  // integers
      xa = std::fma(scale, scales.sums[i].xq, xa);
    }
    return to_f16_scale(aa > 0.0 ? xa / aa : 0.0);
  }

  Scales choose(f16 step, const Fits& fits, int reach) const noexcept {
    Scales scales{.d = step};
    const auto d = static_cast<float>(step);
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      double least_error = std::numeric_limits<double>::infinity();
      for_nearby_levels(fits[i], d, -kMaxLevel, kMaxLevel, reach, [&](int scale) {
        const GroupFit fit = fit_of(groups_[i], d * static_cast<float>(scale), 0.0f, kLimits);
        if (!(fit.error < least_error)) return;
        least_error = fit.error;
        scales.sums[i] = fit.sums;
        scales.k[i] = static_cast<std::int8_t>(scale);
      });
      scales.error += least_error;
    }
    return scales;
  }

  std::array<ValueGroup<16>, 16> groups_;
};

}  // namespace detail

}  // namespace kvick::inline v0_1
