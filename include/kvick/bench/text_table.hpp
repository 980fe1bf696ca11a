// SPDX-License-Identifier: MIT
// Numbers and tables for people to read.
//
// Layer     bench: may include core.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

using TextRows = std::vector<std::vector<std::string>>;

/// Each column as wide as its widest cell; the last cell of a row is not padded.
inline std::string text_table(const TextRows& rows);

/// With so many digits after the point.
inline std::string with_decimals(double number, int num_decimals);

/// With three digits that count, or all those before the point: 0.0123, 1.23, 12.3, 123, 12345.
inline std::string short_number(double number);

// ---- Implementation: nothing below is API ----

inline std::string text_table(const TextRows& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += "  " + row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size(), ' ');
    }
    text += '\n';
  }
  return text;
}

inline std::string with_decimals(double number, int num_decimals) {
  char digits[64];
  std::snprintf(digits, sizeof digits, "%.*f", num_decimals, number);
  return digits;
}

inline std::string short_number(double number) {
  if (number == 0) return "0";
  if (!std::isfinite(number)) return std::isnan(number) ? "unknown" : number > 0 ? "inf" : "-inf";
  const int magnitude = static_cast<int>(std::floor(std::log10(std::fabs(number))));
  if (magnitude < -5) {
    char digits[64];
    std::snprintf(digits, sizeof digits, "%.2e", number);
    return digits;
  }
  return with_decimals(number, std::clamp(2 - magnitude, 0, 7));
}

}  // namespace kvick::inline v0_1
