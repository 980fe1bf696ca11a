// SPDX-License-Identifier: MIT
#include "kvick/serving/histogram.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace {

using kvick::Histogram;

TEST(Histogram, CountsABoundInItsOwnRangeAndMoreInTheNext) {
  Histogram histogram = Histogram::of_seconds();
  const double bound = histogram.bounds()[2];
  histogram.add(bound);
  histogram.add(bound * 1.001);
  EXPECT_EQ(histogram.count_in(2), 1u);
  EXPECT_EQ(histogram.count_in(3), 1u);
}

TEST(Histogram, CountsWhatExceedsAllBoundsInTheLastRange) {
  Histogram histogram = Histogram::of_counts();
  histogram.add(1e9);
  EXPECT_EQ(histogram.count_in(histogram.bounds().size()), 1u);
}

TEST(Histogram, HasAscendingBounds) {
  for (const Histogram& histogram : {Histogram::of_seconds(), Histogram::of_counts()}) {
    for (std::size_t i = 1; i < histogram.bounds().size(); ++i) {
      EXPECT_LT(histogram.bounds()[i - 1], histogram.bounds()[i]);
    }
  }
}

TEST(Histogram, TellsCountSumAndMean) {
  Histogram histogram = Histogram::of_counts();
  EXPECT_EQ(histogram.mean(), 0.0);
  for (const double value : {1.0, 2.0, 6.0}) histogram.add(value);
  EXPECT_EQ(histogram.count(), 3u);
  EXPECT_EQ(histogram.sum(), 9.0);
  EXPECT_EQ(histogram.mean(), 3.0);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i <= histogram.bounds().size(); ++i) count += histogram.count_in(i);
  EXPECT_EQ(count, 3u);
}

}  // namespace
