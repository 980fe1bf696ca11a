// SPDX-License-Identifier: MIT
// What the tests of kernels share: exact buffers, random operands and comparison of bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>

#include "kvick/core/aligned_buffer.hpp"
#include "kvick/kernels/kernel_table.hpp"

namespace kvick::kernel_test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kUnitRoundoff = 0x1p-24;  // a rounded f32 result is within this, relatively
inline constexpr double kSlack = 1.01;  // terms of second order, and the oracle's own rounding

inline const KernelTable& portable() { return kernel_table(Isa::kPortable); }

// Buffers have exactly the size the contract gives them, so that AddressSanitizer sees every access
// beyond; they start with NaN, so that an output left unwritten shows.
inline AlignedBuffer<float> nans(Index count) {
  AlignedBuffer<float> buffer(static_cast<std::size_t>(count));
  std::fill(buffer.begin(), buffer.end(), kNaN);
  return buffer;
}

inline AlignedBuffer<float> copy(std::span<const float> values) {
  AlignedBuffer<float> buffer(values.size());
  std::copy(values.begin(), values.end(), buffer.begin());
  return buffer;
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}

  float uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(engine_);
  }
  /// Of either sign, with a magnitude of 2^low to 2^high.
  float spread(int low, int high) {
    const float value = std::ldexp(uniform(1.0f, 2.0f), integer(low, high - 1));
    return integer(0, 1) == 0 ? value : -value;
  }
  int integer(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }

  AlignedBuffer<float> normals(Index count) {
    AlignedBuffer<float> buffer(static_cast<std::size_t>(count));
    std::normal_distribution<float> normal;
    for (float& value : buffer) value = normal(engine_);
    return buffer;
  }
  AlignedBuffer<float> spreads(Index count, int low, int high) {
    AlignedBuffer<float> buffer(static_cast<std::size_t>(count));
    for (float& value : buffer) value = spread(low, high);
    return buffer;
  }

 private:
  std::mt19937 engine_;
};

// The same bits; of NaNs, that both are one.
inline bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

inline void expect_same_bits(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(same_bits(got[i], want[i]))
        << "element " << i << ": " << std::hexfloat << got[i] << ", not " << want[i];
  }
}

/// Base of the suites that run once per supported ISA, with its name in the test's.
class OnEveryIsa : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table() const { return kernel_table(GetParam()); }
};

inline std::string isa_name(const ::testing::TestParamInfo<Isa>& tested) {
  return std::string(name(tested.param));
}

}  // namespace kvick::kernel_test
