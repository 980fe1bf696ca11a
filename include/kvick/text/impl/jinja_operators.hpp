// SPDX-License-Identifier: MIT
// The operators of Jinja's expressions, with the meaning that they have in Python.
//
// Layer     text.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "kvick/core/error.hpp"
#include "kvick/text/impl/jinja_functions.hpp"
#include "kvick/text/impl/jinja_value.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

inline Value negative(const Value& value) {
  if (value.is<double>()) return {-value.as<double>()};
  if (!value.is_integer() || value.integer() == INT64_MIN) {
    fail(concat("- must have a number, got a ", type_name(value)));
  }
  return {-value.integer()};
}

inline Value calculate(std::string_view op, double a, double b) {
  if (op == "+") return {a + b};
  if (op == "-") return {a - b};
  if (op == "*") return {a * b};
  if (b == 0) fail("numbers must not be divided by 0");
  if (op == "/") return {a / b};
  fail(concat("fractions have no operator ", op));
}

inline Value calculate(std::string_view op, std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;  // products stay within 64 bits
  if (a < -kLimit || a > kLimit || b < -kLimit || b > kLimit) fail("integers must be below 2^31");
  if (op == "+") return {a + b};
  if (op == "-") return {a - b};
  if (op == "*") return {a * b};
  if (b == 0) fail("numbers must not be divided by 0");
  const std::int64_t remainder = a % b;  // as in Python, of the sign of b
  const bool rounds_down = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == "//") return {a / b - (rounds_down ? 1 : 0)};
  return {remainder + (rounds_down ? b : 0)};
}

inline Value binary(Arena& arena, std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return {are_equal(arena, a, b)};
  if (op == "!=") return {!are_equal(arena, a, b)};
  if (op == "in") return {contains(arena, b, a)};
  if (op == "<") return {compare(a, b) < 0};
  if (op == "<=") return {compare(a, b) <= 0};
  if (op == ">") return {compare(a, b) > 0};
  if (op == ">=") return {compare(a, b) >= 0};
  if (op == "~" || (op == "+" && a.is_text() && b.is_text())) {
    Text text = to_text(a);
    text += to_text(b);
    return arena.make(std::move(text));
  }
  if (op == "+" && a.is<List*>() && b.is<List*>()) {
    List list = *a.as<List*>();
    list.insert(list.end(), b.as<List*>()->begin(), b.as<List*>()->end());
    return arena.make(std::move(list));
  }
  if (op == "*" && a.is_text() && b.is_integer()) {
    const Text& part = a.text();
    Text text;
    for (std::int64_t i = 0; i < b.integer(); ++i) {
      arena.count_steps(1 + part.size());
      text += part;
    }
    return arena.make(std::move(text));
  }
  if (!a.is_number() || !b.is_number()) {
    fail(concat("a ", type_name(a), " ", op, " a ", type_name(b), " is not defined"));
  }
  if (!a.is_integer() || !b.is_integer() || op == "/") return calculate(op, a.number(), b.number());
  return calculate(op, a.integer(), b.integer());
}

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
