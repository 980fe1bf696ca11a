// SPDX-License-Identifier: MIT
#include "kvick/core/math.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace kvick {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kInfinityF = std::numeric_limits<float>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool is_positive_zero(double x) { return x == 0 && !std::signbit(x); }
bool is_negative_zero(double x) { return x == 0 && std::signbit(x); }

// ---- Accuracy against the C library's long double functions, which have 64 bits where the test is
// possible and are good to about 1 unit of those: 2^-11 ulp of a double.

constexpr bool kHasOracle = LDBL_MANT_DIG >= 64;

// How far `got` is from `want` in units in the last place of a format with `digits` bits.
double error_in_ulp(double got, long double want, int digits, int min_exponent) {
  const int unit = std::max(std::ilogb(want) + 1 - digits, min_exponent);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) /
                             std::ldexp(1.0L, unit));
}
double error_in_ulp(double got, long double want) { return error_in_ulp(got, want, 53, -1074); }
double error_in_ulp(float got, long double want) {
  return error_in_ulp(static_cast<double>(got), want, 24, -149);
}

class Accuracy : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kHasOracle) GTEST_SKIP() << "long double is no wider than double here";
  }

  static constexpr unsigned kSeed = 41;
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  // Uniform exponent and significand: a positive number of any magnitude.
  double positive(int min_exponent, int max_exponent) {
    return std::ldexp(
        uniform(1, 2),
        static_cast<int>(random_() % static_cast<unsigned>(max_exponent - min_exponent + 1)) +
            min_exponent);
  }

  std::mt19937_64 random_{kSeed};
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, ::testing::Message() << "seed " << kSeed};
};

TEST_F(Accuracy, FloatExpOverEveryBinade) {
  // Every 2039th float, that is 2 million: the largest error over all floats is 0.8914 ulp.
  double worst = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 2039) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!(x >= math::kExpMin && x <= math::kExpMax)) continue;
    worst = std::max(worst, error_in_ulp(math::exp(x), std::exp(static_cast<long double>(x))));
  }
  EXPECT_LT(worst, 0.892);
  EXPECT_GT(worst, 0.5);  // else nothing was measured
}

TEST_F(Accuracy, FloatExpWhereItsValueMatters) {
  double worst = 0;
  for (int i = 0; i < 300'000; ++i) {
    const auto x = static_cast<float>(uniform(-87.3, 88.7));
    worst = std::max(worst, error_in_ulp(math::exp(x), std::exp(static_cast<long double>(x))));
  }
  EXPECT_LT(worst, 0.892);
}

TEST_F(Accuracy, DoubleExp) {
  double worst = 0;
  double worst_subnormal = 0;
  for (int i = 0; i < 200'000; ++i) {
    const double x = i % 2 == 0 ? uniform(-708.3, 709.7) : uniform(-2, 2);
    worst = std::max(worst, error_in_ulp(math::exp(x), std::exp(static_cast<long double>(x))));
    const double low = uniform(-745.1, -708.4);
    worst_subnormal = std::max(
        worst_subnormal, error_in_ulp(math::exp(low), std::exp(static_cast<long double>(low))));
  }
  EXPECT_LT(worst, 0.64);
  EXPECT_LT(worst_subnormal, 1.0);
}

TEST_F(Accuracy, Log) {
  double worst = 0;
  const auto check = [&](double x) {
    worst = std::max(worst, error_in_ulp(math::log(x), std::log(static_cast<long double>(x))));
  };
  for (int i = 0; i < 100'000; ++i) {
    check(positive(-1022, 1023));
    check(std::ldexp(uniform(1, 2), -1023 - i % 50));  // subnormal
    check(uniform(0.5, 2));
    const double offset = uniform(-1, 1) * std::ldexp(1.0, -(i % 50));
    if (1 + offset != 1) check(1 + offset);
  }
  EXPECT_LT(worst, 0.56);
}

TEST_F(Accuracy, SinAndCos) {
  double worst = 0;
  const auto check = [&](double x) {
    worst = std::max(worst, error_in_ulp(math::sin(x), std::sin(static_cast<long double>(x))));
    worst = std::max(worst, error_in_ulp(math::cos(x), std::cos(static_cast<long double>(x))));
  };
  for (int i = 0; i < 100'000; ++i) {
    check(uniform(-10, 10));
    check(positive(-40, 39));
    check(-positive(-40, 39));
    // Beside multiples of pi/2, where all leading digits cancel.
    const auto multiple = static_cast<long double>(random_() >> (24 + i % 40));
    const auto near = static_cast<double>(multiple * 1.57079632679489661923132169163975144L);
    if (near != 0 && near <= 0x1p40) check(near);
  }
  EXPECT_LT(worst, 0.78);
}

TEST_F(Accuracy, PowOverTheWholeRange) {
  double worst = 0;
  double worst_subnormal = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double base = i % 2 == 0 ? positive(-1022, 1023) : uniform(0.5, 2);
    const double exponent = uniform(-745, 709.7) / std::log(base);
    const long double want = std::pow(static_cast<long double>(base), exponent);
    if (!std::isfinite(static_cast<double>(want)) || want == 0) continue;
    double& slot = want < DBL_MIN ? worst_subnormal : worst;
    slot = std::max(slot, error_in_ulp(math::pow(base, exponent), want));
  }
  EXPECT_LT(worst, 0.64);
  EXPECT_LT(worst_subnormal, 1.0);
}

TEST_F(Accuracy, PowOfRopeFrequencies) {
  double worst = 0;
  for (const double base : {1e4, 1e5, 5e5, 1e6, 1e7}) {
    for (const int dim : {32, 64, 80, 96, 128, 256}) {
      for (int i = 0; i < dim / 2; ++i) {
        const double exponent = -2.0 * i / dim;
        worst = std::max(worst, error_in_ulp(math::pow(base, exponent),
                                             std::pow(static_cast<long double>(base), exponent)));
      }
    }
  }
  EXPECT_LT(worst, 0.64);
}

TEST_F(Accuracy, Silu) {
  double worst = 0;
  for (int i = 0; i < 300'000; ++i) {
    const auto x = static_cast<float>(i % 2 == 0 ? uniform(-87.3, 100) : uniform(-3, 3));
    const auto exact = static_cast<long double>(x);
    worst = std::max(worst, error_in_ulp(math::silu(x), exact / (1 + std::exp(-exact))));
  }
  EXPECT_LT(worst, 2.5);
}

// ---- Bits: correctly rounded values from 80-digit decimal arithmetic. The inputs are such that
// the exact value is within 0.1 (float) or 0.2 (double) ulp of the listed one, so that no other
// result keeps to the stated accuracy.

TEST(Golden, FloatExp) {
  EXPECT_EQ(math::exp(-0x1.0p-2f), 0x1.8ebefap-1f);
  EXPECT_EQ(math::exp(0x1.5eb9b2p+3f), 0x1.c18034p+15f);
  EXPECT_EQ(math::exp(0x1.2af28ap+6f), 0x1.c4b976p+107f);
  EXPECT_EQ(math::exp(-0x1.1a1d14p+6f), 0x1.303b9ap-102f);
  EXPECT_EQ(math::exp(0x1.b5809ap+5f), 0x1.dcfce6p+78f);
  EXPECT_EQ(math::exp(0x1.4b9358p+4f), 0x1.dcef8ep+29f);
}

TEST(Golden, DoubleExp) {
  EXPECT_EQ(math::exp(700.0), 0x1.d945df4f8ec8ep+1009);
  EXPECT_EQ(math::exp(-700.0), 0x1.14f2b0fb9307fp-1010);
  EXPECT_EQ(math::exp(-0x1.537fde3139e24p+9), 0x1.5482b3b5fc43dp-980);
  EXPECT_EQ(math::exp(-0x1.453580c8cc8p-2), 0x1.74afc1a92323dp-1);
  EXPECT_EQ(math::exp(-0x1.dde7c3734718p+5), 0x1.c2b4de64ec61fp-87);
}

TEST(Golden, Log) {
  EXPECT_EQ(math::log(0x1.000001ad7f29bp+0), 0x1.ad7f2847b6492p-24);
  EXPECT_EQ(math::log(0x1.640c6b4115a81p+1), 0x1.05e5bc213848dp+0);
  EXPECT_EQ(math::log(0x1.3f3ffef60cfb4p+3), 0x1.266e37706e70ep+1);
  EXPECT_EQ(math::log(0x1.c4ff874451cfep+2), 0x1.f4fe472f44c1fp+0);
  EXPECT_EQ(math::log(0x1.25f8ec320fc12p+1), 0x1.a9b487de1255cp-1);
}

TEST(Golden, SinAndCos) {
  EXPECT_EQ(math::sin(1.0), 0x1.aed548f090ceep-1);
  EXPECT_EQ(math::sin(0.5), 0x1.eaee8744b05fp-2);
  EXPECT_EQ(math::sin(100.0), -0x1.03425b78c4db8p-1);
  EXPECT_EQ(math::sin(1e12), -0x1.38f4477984352p-1);
  EXPECT_EQ(math::sin(0x1.921fb54442d18p+1), 0x1.1a62633145c07p-53);  // the double next to pi
  EXPECT_EQ(math::cos(0x1.921fb54442d18p+0), 0x1.1a62633145c07p-54);  // and to pi / 2
  EXPECT_EQ(math::cos(-0x1.62a52cb4e559cp+14), -0x1.8330aa6b3046ep-1);
  EXPECT_EQ(math::cos(0x1.65d87a06a643p+16), 0x1.de401a0a9543dp-1);
  EXPECT_EQ(math::cos(0x1.408662b80c108p+16), -0x1.4903fec7b0985p-1);
}

TEST(Golden, Pow) {
  EXPECT_EQ(math::pow(10000.0, -2.0 / 128), 0x1.bb5fad00ab22cp-1);
  EXPECT_EQ(math::pow(500000.0, -64.0 / 128), 0x1.72ba43fff3717p-10);
  EXPECT_EQ(math::pow(1e6, -126.0 / 128), 0x1.4d1c97f4e952fp-20);
  EXPECT_EQ(math::pow(1e6, -2.0 / 64), 0x1.4c7bbfcc7c63cp-1);
  EXPECT_EQ(math::pow(0x1.4571428cb432dp+18, -0x1.ed9b65da3e463p-1), 0x1.3dfbcc9723a6ap-18);
}

// ---- Special values.

TEST(FloatExp, IsExactWhereTheValueIs) {
  EXPECT_EQ(math::exp(0.0f), 1.0f);
  EXPECT_EQ(math::exp(-0.0f), 1.0f);
  EXPECT_EQ(math::exp(std::numeric_limits<float>::denorm_min()), 1.0f);
  EXPECT_EQ(math::exp(kInfinityF), kInfinityF);
  EXPECT_TRUE(is_positive_zero(static_cast<double>(math::exp(-kInfinityF))));
  EXPECT_TRUE(std::isnan(math::exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(math::exp(-std::numeric_limits<float>::quiet_NaN())));
}

TEST(FloatExp, EveryNanStaysANan) {
  // The last bits of a NaN reach the integer addition to the exponent and must not undo it.
  for (std::uint32_t payload = 1; payload < 0x00800000; payload += 1 + payload / 8) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7f800000u | payload);
      ASSERT_TRUE(std::isnan(math::exp(nan))) << payload;
    }
  }
}

TEST(FloatExp, OverflowsToInfinityExactlyAboveItsThreshold) {
  // ln(2^128 (1 - 2^-24)) = 88.72283905...; neighbouring floats are 7.6e-6 apart.
  EXPECT_GT(math::exp(math::kExpMax), 3.4e38f);
  EXPECT_LT(math::exp(math::kExpMax), kInfinityF);
  EXPECT_EQ(math::exp(std::nextafterf(math::kExpMax, kInfinityF)), kInfinityF);
  EXPECT_LT(static_cast<double>(math::kExpMax), 88.722839052068353);
  EXPECT_GT(static_cast<double>(std::nextafterf(math::kExpMax, kInfinityF)), 88.722839052068353);
  for (const float x : {89.0f, 100.0f, 1e10f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(math::exp(x), kInfinityF) << x;
  }
}

TEST(FloatExp, FlushesExactlyTheResultsBelowTheLeastNormalFloat) {
  // ln(2^-126) = -87.33654475...
  EXPECT_GE(math::exp(math::kExpMin), std::numeric_limits<float>::min());
  EXPECT_TRUE(is_positive_zero(
      static_cast<double>(math::exp(std::nextafterf(math::kExpMin, -kInfinityF)))));
  EXPECT_GT(static_cast<double>(math::kExpMin), -87.336544750553109);
  EXPECT_LT(static_cast<double>(std::nextafterf(math::kExpMin, -kInfinityF)), -87.336544750553109);
  for (const float x : {-88.0f, -104.0f, -1e10f, -std::numeric_limits<float>::max()}) {
    EXPECT_TRUE(is_positive_zero(static_cast<double>(math::exp(x)))) << x;
  }
}

TEST(DoubleExp, SpecialValues) {
  EXPECT_EQ(math::exp(0.0), 1.0);
  EXPECT_EQ(math::exp(-0.0), 1.0);
  EXPECT_EQ(math::exp(kInfinity), kInfinity);
  EXPECT_TRUE(is_positive_zero(math::exp(-kInfinity)));
  EXPECT_TRUE(std::isnan(math::exp(kNan)));
  EXPECT_EQ(math::exp(709.79), kInfinity);  // ln(DBL_MAX) = 709.7827...
  EXPECT_LT(math::exp(709.78), kInfinity);
  EXPECT_EQ(math::exp(-745.13), std::numeric_limits<double>::denorm_min());
  EXPECT_TRUE(is_positive_zero(math::exp(-745.14)));  // below half of it, ln = -745.1332...
  EXPECT_EQ(math::exp(std::numeric_limits<double>::max()), kInfinity);
  EXPECT_TRUE(is_positive_zero(math::exp(std::numeric_limits<double>::lowest())));
}

TEST(Log, SpecialValues) {
  EXPECT_TRUE(is_positive_zero(math::log(1.0)));
  EXPECT_EQ(math::log(0.0), -kInfinity);
  EXPECT_EQ(math::log(-0.0), -kInfinity);
  EXPECT_EQ(math::log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(math::log(-1.0)));
  EXPECT_TRUE(std::isnan(math::log(-kInfinity)));
  EXPECT_TRUE(std::isnan(math::log(-std::numeric_limits<double>::denorm_min())));
  EXPECT_TRUE(std::isnan(math::log(kNan)));
}

TEST(SinAndCos, SpecialValues) {
  EXPECT_TRUE(is_positive_zero(math::sin(0.0)));
  EXPECT_TRUE(is_negative_zero(math::sin(-0.0)));
  EXPECT_EQ(math::sin(5e-324), 5e-324);
  EXPECT_EQ(math::cos(0.0), 1.0);
  EXPECT_EQ(math::cos(-0.0), 1.0);
  EXPECT_EQ(math::cos(1e-300), 1.0);
  for (const double x : {kNan, kInfinity, -kInfinity, std::nextafter(0x1p40, 1e300), -1e300}) {
    EXPECT_TRUE(std::isnan(math::sin(x))) << x;
    EXPECT_TRUE(std::isnan(math::cos(x))) << x;
  }
  EXPECT_LE(std::fabs(math::sin(0x1p40)), 1.0);
}

TEST(SinAndCos, AreOddAndEven) {
  for (double x = 0.001; x < 1e6; x *= 1.37) {
    EXPECT_EQ(math::sin(-x), -math::sin(x));
    EXPECT_EQ(math::cos(-x), math::cos(x));
  }
}

TEST(Pow, SpecialValues) {
  EXPECT_EQ(math::pow(0.0, 0.0), 1.0);
  EXPECT_EQ(math::pow(kNan, 0.0), 1.0);
  EXPECT_EQ(math::pow(1.0, kNan), 1.0);
  EXPECT_EQ(math::pow(1.0, kInfinity), 1.0);
  EXPECT_TRUE(is_positive_zero(math::pow(0.0, 2.5)));
  EXPECT_EQ(math::pow(0.0, -1.0), kInfinity);
  EXPECT_EQ(math::pow(kInfinity, 0.5), kInfinity);
  EXPECT_TRUE(is_positive_zero(math::pow(kInfinity, -0.5)));
  EXPECT_EQ(math::pow(2.0, kInfinity), kInfinity);
  EXPECT_TRUE(is_positive_zero(math::pow(0.5, kInfinity)));
  EXPECT_EQ(math::pow(2.0, 1e308), kInfinity);
  EXPECT_TRUE(is_positive_zero(math::pow(10.0, -1e308)));
  EXPECT_TRUE(std::isnan(math::pow(-2.0, 2.0)));
  EXPECT_TRUE(std::isnan(math::pow(2.0, kNan)));
  EXPECT_TRUE(std::isnan(math::pow(kNan, 2.0)));
}

TEST(Pow, IsExactWhereTheValueIs) {  // an error below 1 ulp leaves no other result
  EXPECT_EQ(math::pow(2.0, 10.0), 1024.0);
  EXPECT_EQ(math::pow(2.0, -1074.0), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(math::pow(10.0, 15.0), 1e15);
  EXPECT_EQ(math::pow(65536.0, 0.25), 16.0);
  EXPECT_EQ(math::pow(3.0, 33.0), 5559060566555523.0);
  EXPECT_EQ(math::pow(0x1.23456789abcdep-300, 1.0), 0x1.23456789abcdep-300);
}

TEST(Silu, SpecialValues) {
  EXPECT_EQ(math::silu(0.0f), 0.0f);
  EXPECT_EQ(math::silu(100.0f), 100.0f);
  EXPECT_EQ(math::silu(kInfinityF), kInfinityF);
  EXPECT_TRUE(is_negative_zero(static_cast<double>(math::silu(-1e30f))));
  EXPECT_TRUE(std::isnan(math::silu(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace kvick
