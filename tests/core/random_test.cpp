// SPDX-License-Identifier: MIT
#include "kvick/core/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace kvick {
namespace {

using Counter = std::array<std::uint32_t, 4>;
using Key = std::array<std::uint32_t, 2>;

// The known-answer vectors that the authors publish for philox4x32 with 10 rounds: all bits clear,
// all bits set, and the hexadecimal digits of pi.
TEST(Philox4x32, GivesThePublishedAnswers) {
  EXPECT_EQ(Philox4x32::generate({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32::generate({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                                 {0xffffffff, 0xffffffff}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32::generate({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                                 {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox4x32, WorksInConstantExpressions) {
  static_assert(Philox4x32::generate({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5);
}

TEST(UniformOpen, ExcludesBothEndsBySymmetricHalfSteps) {
  static_assert(uniform_open(0, 0) == 0x1p-53);
  static_assert(uniform_open(0xffffffff, 0xffffffff) == 1.0 - 0x1p-53);
  static_assert(uniform_open(0x80000000, 0) == 0.5 + 0x1p-53);
  static_assert(uniform_open(0x7fffffff, 0xffffffff) == 0.5 - 0x1p-53);
  static_assert(uniform_open(0, 0x00000fff) == 0x1p-53);      // the low 12 bits are not used
  static_assert(uniform_open(0, 0x00001000) == 3 * 0x1p-53);  // one step
}

TEST(PhiloxStream, IsAUniformRandomBitGenerator) {
  static_assert(std::uniform_random_bit_generator<PhiloxStream>);
  EXPECT_EQ(PhiloxStream::min(), 0u);
  EXPECT_EQ(PhiloxStream::max(), 0xffffffffu);
}

TEST(PhiloxStream, HandsOutTheWordsOfItsCounters) {
  PhiloxStream stream(0x299f31d0a4093822, 0x0370734413198a2e);
  for (std::uint32_t block = 0; block < 3; ++block) {
    const Counter want =
        Philox4x32::generate({block, 0, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
    for (const std::uint32_t word : want) EXPECT_EQ(stream(), word) << "block " << block;
  }
}

TEST(PhiloxStream, SeedsAndStreamsGiveDifferentSequences) {
  EXPECT_NE(PhiloxStream(1)(), PhiloxStream(2)());
  EXPECT_NE(PhiloxStream(1, 0)(), PhiloxStream(1, 1)());
  EXPECT_NE(PhiloxStream(1)(), PhiloxStream(1ull << 32)());
  EXPECT_EQ(PhiloxStream(1, 5)(), PhiloxStream(1, 5)());
}

TEST(PhiloxStream, UniformTakesTheNextTwoWords) {
  PhiloxStream words(3);
  PhiloxStream uniforms(3);
  for (int i = 0; i < 5; ++i) {
    const std::uint32_t hi = words();
    const std::uint32_t lo = words();
    EXPECT_EQ(uniforms.next_uniform(), uniform_open(hi, lo));
  }
}

TEST(PhiloxStream, UniformsHaveTheMeanAndVarianceOfTheirLaw) {
  constexpr int kCount = 1'000'000;
  PhiloxStream stream(17);
  double sum = 0;
  double sum_of_squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = stream.next_uniform();
    sum += u;
    sum_of_squares += (u - 0.5) * (u - 0.5);
  }
  // Five standard errors: of the mean sqrt(1 / 12 / n), of the second moment sqrt(1 / 180 / n).
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(sum_of_squares / kCount, 1.0 / 12, 5 * std::sqrt(1.0 / 180 / kCount));
}

TEST(PhiloxStream, BelowIsTheHighWordOfTheProduct) {
  PhiloxStream words(8);
  PhiloxStream bounded(8);
  for (int i = 0; i < 100; ++i) {
    // A power of two has no surplus words: nothing is drawn again.
    EXPECT_EQ(bounded.next_below(1u << 10), words() >> 22);
  }
  EXPECT_EQ(bounded.next_below(1), 0u);
}

TEST(PhiloxStream, BelowRejectsTheSurplusWords) {
  // With bound 3 * 2^30 a quarter of the words would make every third result twice as likely.
  constexpr std::uint32_t kBound = 3u << 30;
  PhiloxStream words(21);
  PhiloxStream bounded(21);
  int num_rejected = 0;
  for (int i = 0; i < 1000; ++i) {
    std::uint64_t product = words() * std::uint64_t{kBound};
    while (product % (std::uint64_t{1} << 32) < (std::uint64_t{1} << 32) % kBound) {
      ++num_rejected;
      product = words() * std::uint64_t{kBound};
    }
    ASSERT_EQ(bounded.next_below(kBound), product >> 32);
  }
  EXPECT_GT(num_rejected, 0);
}

TEST(PhiloxStream, BelowIsEquallyLikelyForEveryResult) {
  constexpr std::uint32_t kBound = 13;
  constexpr int kCount = 130'000;
  PhiloxStream stream(5);
  std::array<int, kBound> counts{};
  for (int i = 0; i < kCount; ++i) {
    const std::uint32_t x = stream.next_below(kBound);
    ASSERT_LT(x, kBound);
    ++counts[x];
  }
  double chi_square = 0;
  for (const int count : counts) {
    const double difference = count - static_cast<double>(kCount) / kBound;
    chi_square += difference * difference / (static_cast<double>(kCount) / kBound);
  }
  EXPECT_LT(chi_square, 32.9);  // exceeded with probability 0.001 at 12 degrees of freedom
}

TEST(PhiloxStream, ShufflesWithTheStandardLibrary) {
  std::vector<int> items(100);
  std::iota(items.begin(), items.end(), 0);
  std::vector<int> shuffled = items;
  std::shuffle(shuffled.begin(), shuffled.end(), PhiloxStream(4));
  EXPECT_NE(shuffled, items);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, items);
}

}  // namespace
}  // namespace kvick
