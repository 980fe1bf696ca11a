// SPDX-License-Identifier: MIT
// The tokens on which models are evaluated, from a file of text or of ids.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/model_config.hpp"
#include "kvick/text/tokenizer.hpp"
#include "program.hpp"
#include "token_ids.hpp"

namespace programs {

namespace detail {

/// Ids separated by commas, white space or both, as a list with one comma between ids.
inline std::string with_commas(std::string_view text) {
  std::string list;
  bool is_space_pending = false;
  for (const char c : text) {
    if (std::strchr(" \t\r\n", c) != nullptr && c != '\0') {
      is_space_pending = true;
      continue;
    }
    if (is_space_pending && !list.empty() && list.back() != ',' && c != ',') list += ',';
    is_space_pending = false;
    list += c;
  }
  return list;
}

}  // namespace detail

/// Tokens of the file of ids if one is named, else of the file of text, with a begin of sequence
/// token if the vocabulary asks for one.
inline std::vector<kvick::TokenId> read_evaluation_tokens(const std::string& ids_file,
                                                          const std::string& text_file,
                                                          const kvick::GgufFile& file) {
  if (!ids_file.empty()) {
    return parse_token_ids(detail::with_commas(read_file(ids_file)),
                           kvick::read_model_config(file).vocab_size);
  }
  const kvick::Tokenizer tokenizer(file);
  return tokenizer.encode(read_file(text_file), {.add_eos = false});
}

}  // namespace programs
