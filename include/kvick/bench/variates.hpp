// SPDX-License-Identifier: MIT
// Random numbers of the distributions that workloads and synthetic weights are made of.
//
// Accuracy  From PhiloxStream and the library's own functions: the same numbers everywhere.
// Threads   Pure but for the stream, which belongs to one thread at a time.
// Source    Normal: Box and Muller 1958. Gamma: Marsaglia and Tsang 2000.
// Layer     bench: may include core.
#pragma once

#include <cmath>

#include "kvick/core/math.hpp"
#include "kvick/core/random.hpp"

namespace kvick::inline v0_1 {

/// Mean 0, deviation 1.
inline double next_normal(PhiloxStream& stream) noexcept;

/// Mean 1.
inline double next_exponential(PhiloxStream& stream) noexcept;

/// Mean and variance `shape`, which is positive; shape 1 is the exponential distribution.
inline double next_gamma(PhiloxStream& stream, double shape) noexcept;

// ---- Implementation: nothing below is API ----

inline double next_normal(PhiloxStream& stream) noexcept {
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2.0 * math::log(stream.next_uniform()));
  return radius * math::cos(kTwoPi * stream.next_uniform());
}

inline double next_exponential(PhiloxStream& stream) noexcept {
  return -math::log(stream.next_uniform());
}

inline double next_gamma(PhiloxStream& stream, double shape) noexcept {
  if (shape < 1) {
    const double larger = next_gamma(stream, shape + 1);
    return larger * math::pow(stream.next_uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = next_normal(stream);
    const double root = std::fma(c, x, 1.0);
    if (root <= 0) continue;
    const double v = root * root * root;
    const double u = stream.next_uniform();
    // ln u < x^2 / 2 + d (1 - v + ln v)
    const double bound = std::fma(d, 1 - v + math::log(v), 0.5 * x * x);
    if (math::log(u) < bound) return d * v;
  }
}

}  // namespace kvick::inline v0_1
