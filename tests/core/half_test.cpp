// SPDX-License-Identifier: MIT
#include "kvick/core/half.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>

#include "kvick/core/element_type.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvick {
namespace {

constexpr std::uint32_t kNumHalves = 1u << 16;

// The two formats, each with its definition in double arithmetic, where all their values, quotients
// and midpoints are exact.
template <int kExponentBits, int kFractionBits>
struct Definition {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;

  static double decode(std::uint32_t bits) {
    const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>(bits >> kFractionBits) & ((1 << kExponentBits) - 1);
    const int fraction = static_cast<int>(bits) & ((1 << kFractionBits) - 1);
    if (exponent == (1 << kExponentBits) - 1) {
      return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                           : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - kBias - kFractionBits);
    return sign * std::ldexp((1 << kFractionBits) + fraction, exponent - kBias - kFractionBits);
  }

  // The finite double x rounded to this format: a whole number of units in the last place.
  static double round(double x) {
    if (x == 0) return x;
    const int unit = std::max(std::ilogb(x), 1 - kBias) - kFractionBits;
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
    const double limit = std::ldexp(1.0, kBias + 1);
    return std::fabs(rounded) < limit ? rounded
                                      : std::copysign(std::numeric_limits<double>::infinity(), x);
  }
};

template <class T>
struct DefinitionOf;
template <>
struct DefinitionOf<f16> : Definition<5, 10> {};
template <>
struct DefinitionOf<bf16> : Definition<8, 7> {};

bool is_quiet_nan(float x) {
  return std::isnan(x) && (std::bit_cast<std::uint32_t>(x) & 0x00400000u) != 0;
}

template <class T>
bool is_nan(T half) {
  return std::isnan(DefinitionOf<T>::decode(half.bits));
}

// Same value, and the same sign of zero.
bool same(double a, double b) { return a == b && std::signbit(a) == std::signbit(b); }

template <class T>
void expect_rounded(float x) {
  const double want = DefinitionOf<T>::round(static_cast<double>(x));
  const double got = DefinitionOf<T>::decode(T(x).bits);
  ASSERT_TRUE(same(got, want)) << std::hexfloat << x << " became " << got << ", not " << want;
}

template <class T>
class Half : public ::testing::Test {};
using HalfTypes = ::testing::Types<f16, bf16>;
TYPED_TEST_SUITE(Half, HalfTypes);

TYPED_TEST(Half, IsTrivialAndTwoBytes) {
  EXPECT_TRUE(std::is_trivial_v<TypeParam>);
  EXPECT_TRUE(std::is_standard_layout_v<TypeParam>);
  EXPECT_EQ(sizeof(TypeParam), 2u);
  EXPECT_FALSE((std::is_convertible_v<float, TypeParam>));
  EXPECT_FALSE((std::is_convertible_v<TypeParam, float>));
}

TYPED_TEST(Half, EveryValueConvertsExactlyAndBack) {
  for (std::uint32_t bits = 0; bits < kNumHalves; ++bits) {
    const auto half = TypeParam::from_bits(static_cast<std::uint16_t>(bits));
    const float value = static_cast<float>(half);
    if (is_nan(half)) {
      ASSERT_TRUE(is_quiet_nan(value)) << bits;
      ASSERT_EQ(std::signbit(value), (bits >> 15) != 0) << bits;
      continue;
    }
    ASSERT_TRUE(same(static_cast<double>(value), DefinitionOf<TypeParam>::decode(bits))) << bits;
    ASSERT_EQ(TypeParam(value).bits, bits);
  }
}

TYPED_TEST(Half, RoundsMidpointsToEvenAndTheirNeighboursToTheNearest) {
  const auto infinity = TypeParam(std::numeric_limits<float>::infinity()).bits;
  for (std::uint16_t low = 0; low < infinity; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    // Beyond the largest finite value the next one is that of an unbounded exponent.
    const double above = high < infinity ? DefinitionOf<TypeParam>::decode(high)
                                         : std::ldexp(1.0, DefinitionOf<TypeParam>::kBias + 1);
    const double exact = (DefinitionOf<TypeParam>::decode(low) + above) / 2;
    const auto midpoint = static_cast<float>(exact);
    ASSERT_EQ(static_cast<double>(midpoint), exact);
    const std::uint16_t even = (low & 1) == 0 ? low : high;
    for (const int sign : {0x0000, 0x8000}) {
      const float factor = sign != 0 ? -1.0f : 1.0f;
      const float less = std::nextafterf(midpoint, 0.0f);
      const float more = std::nextafterf(midpoint, std::numeric_limits<float>::infinity());
      ASSERT_EQ(TypeParam(factor * midpoint).bits, sign | even) << low;
      ASSERT_EQ(TypeParam(factor * less).bits, sign | low) << low;
      ASSERT_EQ(TypeParam(factor * more).bits, sign | high) << low;
    }
  }
}

TYPED_TEST(Half, RoundsRandomFloatsAsDefined) {
  constexpr unsigned kSeed = 20240611;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    // Every other sample has an exponent in reach of f16, subnormals and overflow included.
    const std::uint32_t near_f16 = (bits & 0x807fffffu) | ((100 + bits % 46) << 23);
    const float x = std::bit_cast<float>(i % 2 == 0 ? bits : near_f16);
    if (!std::isfinite(x)) continue;
    ASSERT_NO_FATAL_FAILURE(expect_rounded<TypeParam>(x));
  }
}

TYPED_TEST(Half, RoundsTheEndsOfTheFloatRange) {
  for (const float x :
       {0.0f, std::numeric_limits<float>::denorm_min(),
        std::nextafterf(std::numeric_limits<float>::min(), 0.0f), std::numeric_limits<float>::min(),
        0x1p-25f, 0x1.8p-25f, 0x1p-24f, 65504.0f, std::nextafterf(65520.0f, 0.0f), 65520.0f,
        65536.0f, 0x1.fep127f, std::numeric_limits<float>::max()}) {
    ASSERT_NO_FATAL_FAILURE(expect_rounded<TypeParam>(x));
    ASSERT_NO_FATAL_FAILURE(expect_rounded<TypeParam>(-x));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(DefinitionOf<TypeParam>::decode(TypeParam(infinity).bits), infinity);
  EXPECT_EQ(DefinitionOf<TypeParam>::decode(TypeParam(-infinity).bits), -infinity);
}

TYPED_TEST(Half, EveryKindOfNanStaysANanOfTheSameSign) {
  // Payloads with only low bits must not turn into an infinity.
  for (std::uint32_t payload = 1; payload < 0x00800000; payload = payload * 2 + payload % 3) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7f800000u | payload);
      ASSERT_TRUE(is_nan(TypeParam(nan))) << payload;
      ASSERT_EQ(TypeParam(nan).bits >> 15, sign >> 31) << payload;
      ASSERT_TRUE(is_quiet_nan(static_cast<float>(TypeParam(nan)))) << payload;
    }
  }
}

TYPED_TEST(Half, IgnoresTheRoundingMode) {
  const int mode = std::fegetround();
  for (const float x : {1.0009765625f, 0x1.0080p0f, 0x1.fffffep-1f, -0x1.23456p-20f, 3.0e-7f}) {
    volatile float input = x;
    const auto want = TypeParam(input).bits;
    std::fesetround(FE_UPWARD);
    const auto got = TypeParam(input).bits;
    std::fesetround(mode);
    EXPECT_EQ(got, want) << x;
  }
}

TYPED_TEST(Half, ComparesBits) {
  EXPECT_FALSE(TypeParam(0.0f) == TypeParam(-0.0f));
  const auto nan = TypeParam(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(nan == nan);
}

TEST(F16, HasTheValuesOfTheStandard) {
  static_assert(f16(1.0f).bits == 0x3c00);
  static_assert(f16(-2.0f).bits == 0xc000);
  static_assert(f16(65504.0f).bits == 0x7bff);
  static_assert(f16(65520.0f).bits == 0x7c00);
  static_assert(f16(0x1p-14f).bits == 0x0400);
  static_assert(f16(0x1p-24f).bits == 0x0001);
  static_assert(f16(0x1p-25f).bits == 0x0000);
  static_assert(f16(1.0f / 3.0f).bits == 0x3555);
  static_assert(static_cast<float>(f16::from_bits(0x3555)) == 0.333251953125f);
}

TEST(BF16, HasTheUpperHalfOfAFloat) {
  static_assert(bf16(1.0f).bits == 0x3f80);
  static_assert(bf16(std::bit_cast<float>(0x3f808000u)).bits == 0x3f80);  // tie, down to even
  static_assert(bf16(std::bit_cast<float>(0x3f818000u)).bits == 0x3f82);  // tie, up to even
  static_assert(bf16(std::bit_cast<float>(0x7f7fffffu)).bits == 0x7f80);  // FLT_MAX -> infinity
  static_assert(bf16(std::bit_cast<float>(0x7f800001u)).bits == 0x7fc0);  // a NaN stays one
  static_assert(static_cast<float>(bf16::from_bits(0x4049)) == 3.140625f);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void convert_by_cpu(const std::uint16_t* halves,
                                                        float* floats) {
  const __m128i in = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(halves));
  _mm_storeu_ps(floats, _mm_cvtph_ps(in));
}

__attribute__((target("avx,f16c"))) void convert_by_cpu(const float* floats,
                                                        std::uint16_t* halves) {
  const __m128i out = _mm_cvtps_ph(_mm_loadu_ps(floats), _MM_FROUND_TO_NEAREST_INT);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(halves), out);
}

// Every processor with AVX2 has F16C; older ones are not worth a CPUID of their own here.
bool cpu_converts() { return __builtin_cpu_supports("avx2") != 0; }

TEST(F16, EveryValueDecodesToTheBitsOfTheCpu) {
  if (!cpu_converts()) GTEST_SKIP() << "this CPU has no F16C";
  for (std::uint32_t bits = 0; bits < kNumHalves; bits += 4) {
    std::uint16_t halves[4];
    float want[4];
    for (std::uint32_t i = 0; i < 4; ++i) halves[i] = static_cast<std::uint16_t>(bits + i);
    convert_by_cpu(halves, want);
    for (const int i : {0, 1, 2, 3}) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(f16::from_bits(halves[i]))),
                std::bit_cast<std::uint32_t>(want[i]))
          << halves[i];
    }
  }
}

TEST(F16, RandomFloatsEncodeToTheBitsOfTheCpu) {
  if (!cpu_converts()) GTEST_SKIP() << "this CPU has no F16C";
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int n = 0; n < 1'000'000; ++n) {
    float floats[4];
    std::uint16_t want[4];
    for (float& x : floats) {
      const auto bits = static_cast<std::uint32_t>(random());
      x = std::bit_cast<float>(n % 2 == 0 ? bits
                                          : (bits & 0x807fffffu) | ((100 + bits % 46) << 23));
    }
    convert_by_cpu(floats, want);
    for (const int i : {0, 1, 2, 3}) ASSERT_EQ(f16(floats[i]).bits, want[i]) << floats[i];
  }
}
#endif

TEST(ElementType, NamesAndSizes) {
  EXPECT_EQ(name(ElementType::kF32), "f32");
  EXPECT_EQ(name(ElementType::kF16), "f16");
  EXPECT_EQ(name(ElementType::kBF16), "bf16");
  EXPECT_EQ(size_bytes(ElementType::kF32), 4u);
  EXPECT_EQ(size_bytes(ElementType::kF16), 2u);
  EXPECT_EQ(size_bytes(ElementType::kBF16), 2u);
}

TEST(ElementType, IsKnownForTheElementTypesOnly) {
  static_assert(element_type_of<float> == ElementType::kF32);
  static_assert(element_type_of<f16> == ElementType::kF16);
  static_assert(element_type_of<bf16> == ElementType::kBF16);
  static_assert(Element<float> && Element<f16> && Element<bf16>);
  static_assert(!Element<double> && !Element<int>);
}

}  // namespace
}  // namespace kvick
