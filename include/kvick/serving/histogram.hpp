// SPDX-License-Identifier: MIT
// How many values fell into which range, in constant memory.
//
// The ranges are fixed, as Prometheus needs them to add up histograms of several processes.
//
// Threads   Plain data; one at a time.
// Layer     serving: may include core.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

class Histogram {
 public:
  static constexpr std::size_t kMaxNumBounds = 16;

  /// Ranges for seconds, 1 ms to 100 s.
  static constexpr Histogram of_seconds() noexcept { return Histogram(kSeconds); }
  /// Ranges for numbers of tokens or requests, 1 to 16,384.
  static constexpr Histogram of_counts() noexcept { return Histogram(kCounts); }

  constexpr void add(double value) noexcept;

  /// Upper bounds of the ranges, ascending and inclusive. One more range has no bound.
  constexpr std::span<const double> bounds() const noexcept { return bounds_; }
  /// Values in range `index`, of bounds().size() + 1.
  constexpr std::uint64_t count_in(std::size_t index) const noexcept { return counts_[index]; }

  constexpr std::uint64_t count() const noexcept { return count_; }
  constexpr double sum() const noexcept { return sum_; }
  constexpr double mean() const noexcept {
    return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_);
  }

 private:
  explicit constexpr Histogram(std::span<const double, kMaxNumBounds> bounds) noexcept
      : bounds_(bounds) {}

  static constexpr std::array<double, kMaxNumBounds> kSeconds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100};
  static constexpr std::array<double, kMaxNumBounds> kCounts = {
      1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 4096, 16384};

  std::span<const double> bounds_;
  std::array<std::uint64_t, kMaxNumBounds + 1> counts_{};
  std::uint64_t count_ = 0;
  double sum_ = 0.0;
};

// ---- Implementation: nothing below is API ----

constexpr void Histogram::add(double value) noexcept {
  std::size_t index = 0;
  while (index < bounds_.size() && value > bounds_[index]) ++index;
  ++counts_[index];
  ++count_;
  sum_ += value;
}

}  // namespace kvick::inline v0_1
