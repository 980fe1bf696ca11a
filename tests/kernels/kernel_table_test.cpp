// SPDX-License-Identifier: MIT
#include "kvick/kernels/kernel_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_test_support.hpp"
#include "kvick/core/aligned_buffer.hpp"
#include "support/environment_variable.hpp"

namespace kvick {
namespace {

using namespace kernel_test;

class KernelsOnEveryIsa : public OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, KernelsOnEveryIsa, ::testing::ValuesIn(supported_isas()), isa_name);

// ---- The table ----

TEST_P(KernelsOnEveryIsa, AreReallyThoseOfTheIsa) {
  EXPECT_EQ(table().isa, GetParam());
#if defined(__x86_64__)
  if (GetParam() != Isa::kPortable) {
    EXPECT_NE(table().sum_of_squares, portable().sum_of_squares);
    EXPECT_NE(table().silu_multiply, portable().silu_multiply);
    EXPECT_NE(table().attend_tile, portable().attend_tile);
  }
  if (GetParam() == Isa::kAvx512Vnni) {
    const KernelTable& avx2 = kernel_table(Isa::kAvx2);
    EXPECT_NE(table().sum_of_squares, avx2.sum_of_squares);
    EXPECT_NE(table().silu_multiply, avx2.silu_multiply);
    EXPECT_NE(table().attend_tile, avx2.attend_tile);
  }
#endif
}

TEST_P(KernelsOnEveryIsa, AreTheDefaultWhenKvickIsaSaysSo) {
  const support::ScopedEnvironmentVariable variable("KVICK_ISA",
                                                    std::string(name(GetParam())).c_str());
  EXPECT_EQ(&kernel_table(), &table());
}

TEST(KernelTable, DefaultsToTheBestIsa) {
  const support::ScopedEnvironmentVariable variable("KVICK_ISA", nullptr);
  EXPECT_EQ(kernel_table().isa, best_isa());
}

TEST(KernelTable, RefusesAnIsaTheCpuLacks) {
  for (const Isa isa : kAllIsas) {
    if (is_supported(isa)) continue;
    try {
      kernel_table(isa);
      ADD_FAILURE() << "no error for " << name(isa);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(error.message().find(name(isa)), std::string_view::npos) << error.message();
    }
  }
}

// ---- sum_of_squares ----

std::vector<Index> sum_counts() {
  std::vector<Index> counts;
  for (Index count = 0; count <= 70; ++count) counts.push_back(count);
  counts.push_back(1000);
  return counts;
}

TEST_P(KernelsOnEveryIsa, SumOfSquaresEqualsPortable) {
  Random random(5);
  for (const Index count : sum_counts()) {
    for (const auto& [low, high] : {std::pair{-4, 4}, std::pair{-80, 70}}) {
      const AlignedBuffer<float> values = random.spreads(count, low, high);
      const std::vector<float> x(values.begin(), values.end());
      const float got = table().sum_of_squares(x.data(), count);
      const float want = portable().sum_of_squares(x.data(), count);
      ASSERT_TRUE(same_bits(got, want))
          << count << " values: " << std::hexfloat << got << ", not " << want;
    }
  }
}

TEST_P(KernelsOnEveryIsa, SumOfSquaresHandlesExtremeValues) {
  std::vector<float> x(37, 0x1p-74f);
  const auto sum = [&] { return table().sum_of_squares(x.data(), static_cast<Index>(x.size())); };
  EXPECT_EQ(sum(), 37 * 0x1p-148f);  // all partial sums are subnormal and exact
  for (const std::size_t at : {std::size_t{3}, std::size_t{36}}) {
    const float saved = x[at];
    x[at] = -kInfinity;
    EXPECT_EQ(sum(), kInfinity);
    x[at] = 0x1p64f;
    EXPECT_EQ(sum(), kInfinity);
    x[at] = kNaN;
    EXPECT_TRUE(std::isnan(sum()));
    x[at] = saved;
  }
  EXPECT_TRUE(same_bits(table().sum_of_squares(nullptr, 0), 0.0f));
}

// Element i in partial sum i mod 16; then (i, i + 8), +4, +2, +1.
TEST_P(KernelsOnEveryIsa, SumOfSquaresFollowsTheDocumentedOrder) {
  Random random(6);
  for (const Index count : sum_counts()) {
    const AlignedBuffer<float> x = random.spreads(count, -4, 4);
    std::array<float, 16> s{};
    for (std::size_t lane = 0; lane < 16; ++lane) {
      for (std::size_t i = lane; i < x.size(); i += 16) s[lane] = std::fma(x[i], x[i], s[lane]);
    }
    const auto by8 = [&](std::size_t i) { return s[i] + s[i + 8]; };
    const auto by4 = [&](std::size_t i) { return by8(i) + by8(i + 4); };
    const auto by2 = [&](std::size_t i) { return by4(i) + by4(i + 2); };
    ASSERT_EQ(table().sum_of_squares(x.data(), count), by2(0) + by2(1)) << count << " values";
  }
}

// A value passes at most ceil(count / 16) fmas and 4 additions, all of terms that are not negative.
TEST(PortableKernels, SumOfSquaresStaysInsideItsBound) {
  Random random(7);
  for (const Index count : sum_counts()) {
    const AlignedBuffer<float> x = random.spreads(count, -4, 4);
    double want = 0.0;
    for (const float value : x) want += double{value} * double{value};
    const auto roundings = static_cast<double>((count + 15) / 16 + 4);
    ASSERT_NEAR(portable().sum_of_squares(x.data(), count), want,
                kSlack * roundings * kUnitRoundoff * want)
        << count << " values";
  }
}

// ---- silu_multiply ----

// Every pair of these, and all three lengths of a tail.
std::vector<float> extreme_values() {
  return {0.0f,    -0.0f,   1.0f,     -1.0f,     0x1p-149f, -0x1p-149f, 0x1p-126f, -0x1p-126f,
          80.0f,   -80.0f,  87.3365f, -87.4f,    88.7228f,  -88.7228f,  -88.73f,   89.0f,
          -103.0f, -104.0f, 0x1p127f, -0x1p127f, kInfinity, -kInfinity, kNaN,      -kNaN};
}

AlignedBuffer<float> silu_multiply(const KernelTable& table, std::span<const float> gate,
                                   std::span<const float> up) {
  AlignedBuffer<float> out = nans(static_cast<Index>(gate.size()));
  table.silu_multiply(gate.data(), up.data(), out.data(), static_cast<Index>(gate.size()));
  return out;
}

TEST_P(KernelsOnEveryIsa, SiluMultiplyEqualsPortable) {
  Random random(8);
  for (Index count = 0; count <= 40; ++count) {
    for (const float range : {1.0f, 30.0f, 200.0f}) {
      std::vector<float> gate, up;
      for (Index i = 0; i < count; ++i) {
        gate.push_back(random.uniform(-range, range));
        up.push_back(random.spread(-20, 20));
      }
      expect_same_bits(silu_multiply(table(), gate, up).span(),
                       silu_multiply(portable(), gate, up).span());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(KernelsOnEveryIsa, SiluMultiplyEqualsPortableOnExtremeValues) {
  std::vector<float> gate, up;
  for (const float g : extreme_values()) {
    for (const float u : extreme_values()) {
      gate.push_back(g);
      up.push_back(u);
    }
  }
  for (std::size_t count = gate.size() - 17; count <= gate.size(); ++count) {
    const std::span<const float> g(gate.data(), count);
    const std::span<const float> u(up.data(), count);
    const AlignedBuffer<float> got = silu_multiply(table(), g, u);
    expect_same_bits(got.span(), silu_multiply(portable(), g, u).span());
    if (HasFatalFailure()) return;
    for (std::size_t i = 0; i < count; ++i) {
      if (std::isnan(g[i]) || std::isnan(u[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << g[i] << ", " << u[i];
      }
    }
  }
}

TEST_P(KernelsOnEveryIsa, SiluMultiplyHasTheKnownLimits) {
  const std::vector<float> gate = {0.0f, -0.0f, kInfinity, 100.0f, -100.0f, -kInfinity, 0x1p127f};
  const std::vector<float> up = {5.0f, 5.0f, 2.0f, 2.0f, 2.0f, 1.0f, 0.5f};
  const AlignedBuffer<float> out = silu_multiply(table(), gate, up);
  const std::vector<float> want = {0.0f, -0.0f, kInfinity, 200.0f, -0.0f, kNaN, 0x1p126f};
  expect_same_bits(out.span(), want);
}

TEST_P(KernelsOnEveryIsa, SiluMultiplyWorksInPlace) {
  Random random(9);
  for (const Index count : {Index{5}, Index{16}, Index{40}}) {
    const AlignedBuffer<float> gate = random.normals(count);
    const AlignedBuffer<float> up = random.normals(count);
    const AlignedBuffer<float> want = silu_multiply(portable(), gate.span(), up.span());
    AlignedBuffer<float> over_gate = copy(gate.span());
    table().silu_multiply(over_gate.data(), up.data(), over_gate.data(), count);
    expect_same_bits(over_gate.span(), want.span());
    AlignedBuffer<float> over_up = copy(up.span());
    table().silu_multiply(gate.data(), over_up.data(), over_up.data(), count);
    expect_same_bits(over_up.span(), want.span());
  }
}

// silu in the documented steps: exp within 0.892 ulp, so within 1.784 roundings; the sum, the
// quotient and the product round once each.
TEST(PortableKernels, SiluMultiplyStaysInsideItsBound) {
  Random random(10);
  constexpr double kRoundings = 1.784 + 3;
  for (int i = 0; i < 20000; ++i) {
    const float gate = random.uniform(-80.0f, 80.0f);
    const float up = random.spread(-3, 3);
    float out = kNaN;
    portable().silu_multiply(&gate, &up, &out, 1);
    const double want = double{gate} / (1.0 + std::exp(-double{gate})) * double{up};
    ASSERT_NEAR(out, want, kSlack * kRoundings * kUnitRoundoff * std::fabs(want))
        << gate << ", " << up;
  }
}

}  // namespace
}  // namespace kvick
