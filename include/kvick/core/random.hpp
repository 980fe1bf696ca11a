// SPDX-License-Identifier: MIT
// Counter-based random numbers: a draw is a pure function of where it is used, not of history.
//
// Philox4x32-10 maps (128-bit counter, 64-bit key) to 128 random bits. Whoever names a draw by its
// counter, say (request seed, output index, draw id), gets the same bits in any batch, on any
// thread and after any restart. PhiloxStream walks one row of that table for shuffles and
// workloads.
//
// Accuracy  Integer operations and exact float steps only: the same numbers on every machine and
//           with every standard library (std:: distributions do not promise that). Not for
//           cryptography.
// Threads   Pure functions; a PhiloxStream belongs to one thread at a time.
// Source    Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
//           Bounded integers: Lemire, Fast Random Integer Generation in an Interval (2019).
// Layer     core.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// The Philox4x32 bijection with 10 rounds.
struct Philox4x32 {
  static constexpr std::array<std::uint32_t, 4> generate(std::array<std::uint32_t, 4> counter,
                                                         std::array<std::uint32_t, 2> key) noexcept;
};

/// 64 random bits to a double in the open interval (0, 1), never 0 and never 1. The result is
/// (n + 1/2) / 2^52 with n the 20 + 32 upper bits of lo and hi: 2^52 equally likely values, the
/// odd multiples of 2^-53, symmetric about 1/2. Exact.
constexpr double uniform_open(std::uint32_t hi, std::uint32_t lo) noexcept {
  const std::uint64_t n = (static_cast<std::uint64_t>(hi) << 20) | (lo >> 12);
  return (static_cast<double>(n) + 0.5) * 0x1p-52;  // the sum has 53 bits: exact
}

/// A sequence of 32-bit words keyed by (seed, stream); a std::uniform_random_bit_generator. Words
/// 4i..4i+3 are Philox4x32 of counter {i low, i high, stream low, stream high} and key {seed low,
/// seed high}, so streams never overlap. Construction costs nothing. 2^66 words, then it repeats.
class PhiloxStream {
 public:
  using result_type = std::uint32_t;

  explicit constexpr PhiloxStream(std::uint64_t seed, std::uint64_t stream = 0) noexcept
      : seed_(seed), stream_(stream) {}

  static constexpr result_type min() noexcept { return 0; }
  static constexpr result_type max() noexcept { return std::numeric_limits<result_type>::max(); }

  /// The next word.
  constexpr result_type operator()() noexcept;

  /// `uniform_open` of the next two words.
  constexpr double next_uniform() noexcept;

  /// An integer in [0, bound), each equally likely; bound > 0. Takes one word, rarely more.
  constexpr std::uint32_t next_below(std::uint32_t bound) noexcept;

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t num_blocks_ = 0;  // drawn so far
  std::size_t num_left_ = 0;      // words of block_ not yet handed out
  std::array<std::uint32_t, 4> block_{};
};

// ---- Implementation: nothing below is API ----

namespace detail {

constexpr std::uint32_t low_word(std::uint64_t x) noexcept { return static_cast<std::uint32_t>(x); }
constexpr std::uint32_t high_word(std::uint64_t x) noexcept { return low_word(x >> 32); }

}  // namespace detail

constexpr std::array<std::uint32_t, 4> Philox4x32::generate(
    std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept {
  // Multipliers and key increments (golden ratio, sqrt(3) - 1) of the paper.
  constexpr std::uint64_t kMultiplier0 = 0xd2511f53;
  constexpr std::uint64_t kMultiplier1 = 0xcd9e8d57;
  constexpr std::uint32_t kWeyl0 = 0x9e3779b9;
  constexpr std::uint32_t kWeyl1 = 0xbb67ae85;
  constexpr int kNumRounds = 10;
  for (int round = 0; round < kNumRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {detail::high_word(product1) ^ counter[1] ^ key[0], detail::low_word(product1),
               detail::high_word(product0) ^ counter[3] ^ key[1], detail::low_word(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

constexpr PhiloxStream::result_type PhiloxStream::operator()() noexcept {
  if (num_left_ == 0) {
    block_ = Philox4x32::generate({detail::low_word(num_blocks_), detail::high_word(num_blocks_),
                                   detail::low_word(stream_), detail::high_word(stream_)},
                                  {detail::low_word(seed_), detail::high_word(seed_)});
    ++num_blocks_;
    num_left_ = block_.size();
  }
  return block_[block_.size() - num_left_--];
}

constexpr double PhiloxStream::next_uniform() noexcept {
  const std::uint32_t hi = (*this)();
  const std::uint32_t lo = (*this)();
  return uniform_open(hi, lo);
}

constexpr std::uint32_t PhiloxStream::next_below(std::uint32_t bound) noexcept {
  // The high word of word * bound. Of the 2^32 words, 2^32 mod bound would make some results more
  // likely; they are those with the smallest low words, and are drawn again.
  std::uint64_t product = static_cast<std::uint64_t>((*this)()) * bound;
  if (detail::low_word(product) < bound) {
    const std::uint32_t num_surplus = (0u - bound) % bound;
    while (detail::low_word(product) < num_surplus) {
      product = static_cast<std::uint64_t>((*this)()) * bound;
    }
  }
  return detail::high_word(product);
}

}  // namespace kvick::inline v0_1
