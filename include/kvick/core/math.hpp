// SPDX-License-Identifier: MIT
// Transcendental functions that give the same bits on every machine.
//
// They use +, -, *, /, std::fma and integer operations only, all of which IEEE 754 rounds exactly;
// the functions of a C library differ from one to the next. SiLU and softmax take exp(float), whose
// steps and constants are public, because the SIMD kernels perform the same sequence in each lane.
// RoPE tables, Gumbel noise and log probabilities take the double functions.
//
// Accuracy  Largest error seen, in units in the last place (ulp) of the result; a correctly rounded
//           function has 0.5. The double functions carry their leading terms as unevaluated sums of
//           two doubles, so that little but the last rounding is left.
//             exp(float)   0.892  all floats were tried
//             silu(float)  2.40   all floats from -88.72 on were tried
//             exp(double)  0.63   0.76 where the result is subnormal (rounded twice)
//             log(double)  0.55   every x > 0, subnormal ones included
//             sin, cos     0.76   |x| <= 2^40
//             pow          0.63   0.76 where the result is subnormal
//           The last four over 10 million random inputs each.
//           Round to nearest even is assumed, and no flush-to-zero.
// Errors    None; outside a function's domain the result is a NaN.
// Threads   Pure functions.
// Source    Range reduction: Cody and Waite (1980). Sums of two doubles: Dekker (1971).
// Layer     core.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {
namespace math {

/// e^x. exp(0) = 1, exp(-inf) = 0, exp(inf) = inf, NaN stays NaN. Results below 2^-126 are 0
/// (x < kExpMin), results above the largest float are infinite (x > kExpMax).
///
/// The sequence, for every implementation in a lane of its own (all operations on float):
///   t = fma(x, kExpLog2E, kExpShift)        the last bits of t are n = round(x / ln 2)
///   n = t - kExpShift
///   r = fma(n, -kExpLn2High, x)             exact; |r| <= 0.347
///   r = fma(n, -kExpLn2Low, r)
///   p = c[4]; p = fma(p, r, c[i]) for i = 3, 2, 1, 0       c = kExpCoefficients
///   p = fma(p, r, 1); p = fma(p, r, 1)
///   y = bits(p) + (bits(t) << 23)           2^n p by integer addition to the exponent field
///   y = x > kExpMax ? inf : y; y = x < kExpMin ? 0 : y; y = x is NaN ? x : y
inline float exp(float x) noexcept;

inline constexpr float kExpLog2E = 0x1.715476p+0f;
inline constexpr float kExpShift = 0x1.8p+23f;  // 1.5 * 2^23: sums with it have no fraction bits
inline constexpr float kExpLn2High = 0x1.62e43p-1f;
inline constexpr float kExpLn2Low = -0x1.05c61p-29f;  // ln 2 = high + low, to 2^-54
/// e^r = 1 + r + r^2 (c[0] + c[1] r + ... + c[4] r^4): the polynomial of least relative error on
/// |r| <= 0.3466, 0.053 * 2^-24 after its coefficients were rounded to float one by one.
inline constexpr std::array<float, 5> kExpCoefficients = {
    0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558acp-5f, 0x1.123974p-7f, 0x1.6a505cp-10f};
inline constexpr float kExpMax = 0x1.62e42ep+6f;   // the last float with a finite exp, 88.7228
inline constexpr float kExpMin = -0x1.5d589ep+6f;  // the first with exp >= 2^-126, -87.3365

/// e^x, subnormal results included.
inline double exp(double x) noexcept;

/// The natural logarithm: -inf for 0, NaN below 0, inf for inf.
inline double log(double x) noexcept;

/// Sine and cosine of x radians. |x| <= 2^40, where the reduction by pi/2 (in three doubles) is
/// as exact as the rest; beyond that, where it would silently lose digits, the result is a NaN.
inline double sin(double x) noexcept;
inline double cos(double x) noexcept;

/// base^exponent for base >= 0 (NaN for a negative base, whatever the exponent but 0).
/// 1 if the exponent is 0 or the base is 1.
inline double pow(double base, double exponent) noexcept;

/// x / (1 + e^-x), the activation of gated MLPs; -0 once e^-x overflows (x < -88.72), NaN at -inf.
inline float silu(float x) noexcept;

// ---- Implementation: nothing below is API ----

namespace detail {

// The sum hi + lo, not evaluated; |lo| is at most about half a unit in the last place of hi.
struct DoubleDouble {
  double hi;
  double lo;
};

// a + b exactly, if |a| >= |b| or a = 0.
inline DoubleDouble fast_two_sum(double a, double b) noexcept {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

// a + b exactly.
inline DoubleDouble two_sum(double a, double b) noexcept {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

// a * b exactly. The addend 0 keeps compilers from fusing the rounded product into a later sum.
inline DoubleDouble two_product(double a, double b) noexcept {
  const double product = std::fma(a, b, 0.0);
  return {product, std::fma(a, b, -product)};
}

// a + b and a * b to about 2^-104.
inline DoubleDouble add(DoubleDouble a, DoubleDouble b) noexcept {
  const DoubleDouble sum = two_sum(a.hi, b.hi);
  return fast_two_sum(sum.hi, sum.lo + (a.lo + b.lo));
}

inline DoubleDouble multiply(DoubleDouble a, DoubleDouble b) noexcept {
  const DoubleDouble product = two_product(a.hi, b.hi);
  return fast_two_sum(product.hi, std::fma(a.lo, b.hi, std::fma(a.hi, b.lo, product.lo)));
}

// c[first] + c[first + 1] x + ... to the last coefficient.
template <std::size_t kSize>
double polynomial(const std::array<double, kSize>& c, std::size_t first, double x) noexcept {
  double sum = c[kSize - 1];
  for (std::size_t i = kSize - 1; i-- > first;) sum = std::fma(sum, x, c[i]);
  return sum;
}

// Adding kShift leaves no fraction bits: the sum's last bits are the nearest integer.
inline constexpr double kShift = 0x1.8p+52;
inline constexpr double kLog2E = 0x1.71547652b82fep+0;
// ln 2 = high + low to 2^-98. High has 42 bits, so its product with an exponent is exact.
inline constexpr double kLn2High = 0x1.62e42fefa38p-1;
inline constexpr double kLn2Low = 0x1.ef35793c7673p-45;

inline std::int32_t integer_of(double shifted) noexcept {
  return static_cast<std::int32_t>(
      static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(shifted)));
}

// 2^n for -1022 <= n <= 1023.
inline double power_of_two(std::int32_t n) noexcept {
  return std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023)
                               << 52);
}

// 1/2!, 1/3!, ..., 1/13!: e^r = 1 + r + r^2 (1/2! + r/3! + ...) with an error of at most
// 0.347^14 / 14! = 2^-57.7.
inline constexpr std::array<double, 12> kReciprocalFactorials = {
    1.0 / 2,     1.0 / 6,      1.0 / 24,      1.0 / 120,      1.0 / 720,       1.0 / 5040,
    1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

// e^(x.hi + x.lo).
inline double exp(DoubleDouble x) noexcept {
  // The ends lie beyond overflow and underflow. A NaN fails both comparisons and stays a NaN.
  const double clamped = x.hi > 710 ? 710 : (x.hi < -746 ? -746 : x.hi);
  const double shifted = std::fma(clamped, kLog2E, kShift);
  const double n = shifted - kShift;
  const double reduced = std::fma(-n, kLn2High, clamped);  // exact
  const DoubleDouble r = two_sum(reduced, std::fma(-n, kLn2Low, x.lo));
  const DoubleDouble linear = fast_two_sum(1.0, r.hi);
  const double low = linear.lo + std::fma(r.lo, r.hi, r.lo);  // r.lo e^r, to first order
  const double rest = std::fma(r.hi * r.hi, polynomial(kReciprocalFactorials, 0, r.hi), low);
  // In two factors, because 2^n alone leaves the exponent's range before the result does.
  const std::int32_t exponent = integer_of(shifted);
  const std::int32_t half = exponent / 2;
  // The last product may round (to a subnormal), so it must not fuse with a sum of the caller's:
  // the addend 0 prevents that.
  return std::fma((linear.hi + rest) * power_of_two(half), power_of_two(exponent - half), 0.0);
}

// A positive finite number as 2^exponent (1 + s) / (1 - s), so that its logarithm is
// exponent ln 2 + 2 artanh s with |s| <= 0.1716.
struct LogReduction {
  double exponent;
  DoubleDouble s;
};

inline LogReduction reduce_for_log(double x) noexcept {
  constexpr std::int64_t kSqrtHalf = 0x3fe6a09e667f3bcd;  // bits of sqrt(1/2)
  const bool is_subnormal = x < std::numeric_limits<double>::min();
  const auto bits = std::bit_cast<std::int64_t>(is_subnormal ? x * 0x1p54 : x);
  const std::int64_t exponent = (bits - kSqrtHalf) >> 52;
  const auto mantissa = std::bit_cast<double>(bits - exponent * (std::int64_t{1} << 52));
  const double f = mantissa - 1.0;  // exact: mantissa is in [sqrt(1/2), sqrt(2))
  const DoubleDouble denominator = fast_two_sum(2.0, f);
  const double s = f / denominator.hi;
  const double remainder = std::fma(-s, denominator.lo, std::fma(-s, denominator.hi, f));
  return {static_cast<double>(exponent - (is_subnormal ? 54 : 0)), {s, remainder / denominator.hi}};
}

// 1, 1/3, 1/5, ..., 1/29: artanh s = s (1 + z/3 + z^2/5 + ...) with z = s^2 <= 0.0295. The first
// term left out is 2^-81 of the sum.
inline constexpr std::array<double, 15> kArtanh = {
    1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13, 1.0 / 15,
    1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25, 1.0 / 27, 1.0 / 29};

// log x to about 2^-74, for a positive finite x.
inline DoubleDouble log_double_double(double x) noexcept {
  // The terms from z^4 on are less than 2^-23 of the sum: double will do for them.
  constexpr std::size_t kNumExactTerms = 4;
  const auto [exponent, s] = reduce_for_log(x);
  const DoubleDouble z = multiply(s, s);
  DoubleDouble sum = {polynomial(kArtanh, kNumExactTerms, z.hi), 0};
  for (std::size_t i = kNumExactTerms; i-- > 0;) {
    const double odd = static_cast<double>(2 * i + 1);
    const DoubleDouble coefficient = {kArtanh[i], std::fma(-kArtanh[i], odd, 1.0) / odd};
    sum = add(coefficient, multiply(z, sum));
  }
  const DoubleDouble artanh = multiply(s, sum);
  const DoubleDouble leading = two_sum(exponent * kLn2High, 2 * artanh.hi);  // exact products
  return fast_two_sum(leading.hi, leading.lo + std::fma(exponent, kLn2Low, 2 * artanh.lo));
}

// x = quadrant * pi/2 + r.hi + r.lo with |r| <= pi/4 (a little more beyond 2^30); only the last two
// bits of the quadrant matter.
struct AngleReduction {
  std::int32_t quadrant;
  DoubleDouble r;
};

inline constexpr double kMaxAngle = 0x1p40;

inline AngleReduction reduce_angle(double x) noexcept {
  // pi/2 to 2^-163.
  constexpr double kHalfPi1 = 0x1.921fb54442d18p+0;
  constexpr double kHalfPi2 = 0x1.1a62633145c07p-54;
  constexpr double kHalfPi3 = -0x1.f1976b7ed8fbcp-110;
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  const double shifted = std::fma(x, kTwoOverPi, kShift);
  const double n = shifted - kShift;
  // Exact: x (or, below 1, the difference) is a multiple of the last bit of kHalfPi1 or half of
  // it, and so is the result, which is below 1.
  const double first = std::fma(-n, kHalfPi1, x);
  const DoubleDouble second = two_product(n, kHalfPi2);
  const DoubleDouble difference = two_sum(first, -second.hi);
  const double low = difference.lo - std::fma(n, kHalfPi3, second.lo);
  return {integer_of(shifted), fast_two_sum(difference.hi, low)};
}

// -1/3!, 1/5!, -1/7!, ..., 1/17! and 1/4!, -1/6!, ..., 1/16!: errors below 2^-58 at pi/4.
inline constexpr std::array<double, 8> kSine = {
    -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
    -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
inline constexpr std::array<double, 7> kCosine = {
    1.0 / 24,        -1.0 / 720,         1.0 / 40320,         -1.0 / 3628800,
    1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};

// r + r^3 S(r^2), and r.lo times the derivative 1 - r^2 / 2.
inline double sin_near_zero(DoubleDouble r) noexcept {
  const double z = r.hi * r.hi;
  const double low = std::fma(-0.5 * z, r.lo, r.lo);
  return r.hi + std::fma(z * r.hi, polynomial(kSine, 0, z), low);
}

// 1 - r^2 / 2 + r^4 C(r^2), with the rounding errors of r^2 and of 1 - r^2 / 2 put back, and r.lo
// times the derivative -r.
inline double cos_near_zero(DoubleDouble r) noexcept {
  const DoubleDouble z = two_product(r.hi, r.hi);
  const DoubleDouble quadratic = fast_two_sum(1.0, -0.5 * z.hi);
  const double low = std::fma(-r.hi, r.lo, std::fma(-0.5, z.lo, quadratic.lo));
  return quadratic.hi + std::fma(z.hi * z.hi, polynomial(kCosine, 0, z.hi), low);
}

// sin of r plus a quarter turn for each step of the quadrant.
inline double sin_in_quadrant(std::int32_t quadrant, DoubleDouble r) noexcept {
  const double value = (quadrant & 1) != 0 ? cos_near_zero(r) : sin_near_zero(r);
  return (quadrant & 2) != 0 ? -value : value;
}

}  // namespace detail

inline float exp(float x) noexcept {
  const float t = std::fma(x, kExpLog2E, kExpShift);
  const float n = t - kExpShift;
  float r = std::fma(n, -kExpLn2High, x);
  r = std::fma(n, -kExpLn2Low, r);
  float p = kExpCoefficients[4];
  p = std::fma(p, r, kExpCoefficients[3]);
  p = std::fma(p, r, kExpCoefficients[2]);
  p = std::fma(p, r, kExpCoefficients[1]);
  p = std::fma(p, r, kExpCoefficients[0]);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  auto y = std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) +
                                (std::bit_cast<std::uint32_t>(t) << 23));
  y = x > kExpMax ? std::numeric_limits<float>::infinity() : y;
  y = x < kExpMin ? 0.0f : y;
  return x != x ? x : y;
}

inline double exp(double x) noexcept { return detail::exp(detail::DoubleDouble{x, 0}); }

inline double log(double x) noexcept {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!(x > 0 && x < kInfinity)) {
    if (x == 0) return -kInfinity;
    return x > 0 ? x : std::numeric_limits<double>::quiet_NaN();
  }
  const auto [exponent, s] = detail::reduce_for_log(x);
  const double z = s.hi * s.hi;
  const double series = z * detail::polynomial(detail::kArtanh, 1, z);
  const double rest = 2 * std::fma(s.hi, series, s.lo);
  const detail::DoubleDouble leading =
      detail::fast_two_sum(exponent * detail::kLn2High, 2 * s.hi);  // both products are exact
  return leading.hi + (leading.lo + std::fma(exponent, detail::kLn2Low, rest));
}

inline double sin(double x) noexcept {
  if (!(std::fabs(x) <= detail::kMaxAngle)) return std::numeric_limits<double>::quiet_NaN();
  if (std::fabs(x) < 0x1p-27) return x;  // x - x^3 / 6 rounds to x; keeps -0 and subnormals
  const auto [quadrant, r] = detail::reduce_angle(x);
  return detail::sin_in_quadrant(quadrant, r);
}

inline double cos(double x) noexcept {
  if (!(std::fabs(x) <= detail::kMaxAngle)) return std::numeric_limits<double>::quiet_NaN();
  const auto [quadrant, r] = detail::reduce_angle(x);
  return detail::sin_in_quadrant(quadrant + 1, r);
}

inline double pow(double base, double exponent) noexcept {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (exponent == 0 || base == 1) return 1;
  if (!(base > 0 && base < kInfinity)) return exp(exponent * log(base));
  const detail::DoubleDouble logarithm = detail::log_double_double(base);
  const double product = exponent * logarithm.hi;
  // Beyond exp's range the low part no longer matters, and would be NaN for infinite products.
  if (!(std::fabs(product) < 746)) return exp(product);
  const double low = std::fma(exponent, logarithm.lo, std::fma(exponent, logarithm.hi, -product));
  return detail::exp(detail::DoubleDouble{product, low});
}

inline float silu(float x) noexcept { return x / (1.0f + exp(-x)); }

}  // namespace math
}  // namespace kvick::inline v0_1
