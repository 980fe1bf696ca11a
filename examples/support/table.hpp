// SPDX-License-Identifier: MIT
// Numbers, names and tables for people to read. All output is printable ASCII.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/bench/text_table.hpp"
#include "kvick/core/error.hpp"

namespace programs {

inline constexpr std::size_t kMaxShownBytes = 80;  // of a text

/// Untrusted text as printable ASCII.
inline std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {  // in pieces, because in_quotes() shortens what it is given
    const std::string quoted = kvick::detail::in_quotes(text.substr(0, kMaxShownBytes));
    result += quoted.substr(1, quoted.size() - 2);
    text.remove_prefix(std::min(text.size(), kMaxShownBytes));
  }
  return result;
}

using kvick::with_decimals;

/// 1,234,567
inline std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, ",");
  return digits;
}

/// 1,234,567 bytes (1.18 MiB)
inline std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  const std::string exact = grouped(bytes) + " bytes";
  if (bytes < 1024) return exact;
  double size = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  for (; size >= 1024.0 && unit + 1 < std::size(kUnits); ++unit) size /= 1024.0;
  return kvick::detail::concat(exact, " (", with_decimals(size, 2), " ", kUnits[unit], ")");
}

using Rows = kvick::TextRows;

/// Each column as wide as its widest cell; the last cell of a row is not padded.
inline std::string table(const Rows& rows) { return kvick::text_table(rows); }

}  // namespace programs
