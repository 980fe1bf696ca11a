// SPDX-License-Identifier: MIT
// Arithmetic on sizes from outside, without overflow.
//
// Errors    The `try_` forms return false on overflow; the others throw Error(kCapacity) that names
//           the operation and both operands.
// Layer     core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "kvick/core/error.hpp"

namespace kvick::inline v0_1 {

/// result = a + b; false when it does not fit in 64 bits.
[[nodiscard]] constexpr bool try_add(std::uint64_t a, std::uint64_t b,
                                     std::uint64_t& result) noexcept {
  return !__builtin_add_overflow(a, b, &result);
}

/// result = a * b; false when it does not fit in 64 bits.
[[nodiscard]] constexpr bool try_multiply(std::uint64_t a, std::uint64_t b,
                                          std::uint64_t& result) noexcept {
  return !__builtin_mul_overflow(a, b, &result);
}

/// result = the least multiple of `alignment` (not 0) that is at least `value`.
[[nodiscard]] constexpr bool try_align_up(std::uint64_t value, std::uint64_t alignment,
                                          std::uint64_t& result) noexcept {
  const std::uint64_t rest = value % alignment;
  return try_add(value, rest == 0 ? 0 : alignment - rest, result);
}

/// The product of all factors as a byte or element count that fits std::ptrdiff_t.
inline std::size_t checked_product(std::initializer_list<std::uint64_t> factors,
                                   std::string_view operation) {
  std::uint64_t product = 1;
  bool fits = true;
  for (const std::uint64_t factor : factors) fits = fits && try_multiply(product, factor, product);
  fits = fits && product <= static_cast<std::uint64_t>(PTRDIFF_MAX);
  if (!fits) {
    std::string text;
    for (const std::uint64_t factor : factors) {
      text += (text.empty() ? "" : " * ") + std::to_string(factor);
    }
    throw Error(ErrorCode::kCapacity, operation, "size must fit in memory, got " + text);
  }
  return static_cast<std::size_t>(product);
}

}  // namespace kvick::inline v0_1
