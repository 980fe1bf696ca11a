// SPDX-License-Identifier: MIT
// Lists of token ids as text: 1,403,407.
#pragma once

#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "program.hpp"

namespace programs {

inline std::string format_token_ids(std::span<const kvick::TokenId> ids) {
  std::string text;
  for (const kvick::TokenId id : ids) {
    if (!text.empty()) text += ',';
    text += std::to_string(id);
  }
  return text;
}

/// One id or more, each in [0, vocab_size). Spaces around ids are allowed.
inline std::vector<kvick::TokenId> parse_token_ids(std::string_view text, int vocab_size) {
  const auto trim = [](std::string_view item) {
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    return item;
  };
  std::vector<kvick::TokenId> ids;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view item = trim(text.substr(0, comma));
    kvick::TokenId id = -1;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (error != std::errc() || end != item.data() + item.size() || id < 0 || id >= vocab_size) {
      throw BadInput(kvick::detail::concat("token ids must be integers in [0, ", vocab_size,
                                           ") separated by commas, got ",
                                           kvick::detail::in_quotes(item)));
    }
    ids.push_back(id);
    if (comma == std::string_view::npos) return ids;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace programs
