// SPDX-License-Identifier: MIT
// Tokens to text while they are generated, never with a broken character.
//
// A token may hold parts of characters. What may still become one is held back (at most 3 bytes);
// bytes that cannot are U+FFFD at once. For any sequence of calls, what push returned and what
// finish returns make up sanitize(decode(tokens)).
//
// Errors    Error(kArgument) for a token outside the vocabulary.
// Threads   One per sequence; not shared.
// Layer     text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "kvick/core/matrix.hpp"
#include "kvick/text/tokenizer.hpp"
#include "kvick/text/utf8.hpp"

namespace kvick::inline v0_1 {

class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {})
      : tokenizer_(tokenizer), options_(options), after_special_(!options.continues_text) {}

  /// The text that `token` completes: well-formed, perhaps empty.
  std::string push(TokenId token);

  /// The same for bytes that do not come from a token.
  std::string push_bytes(std::string_view bytes);

  /// U+FFFD if a character was left incomplete. The decoder is then as new.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  bool after_special_;
  std::string incomplete_;  // the start of a character
};

// ---- Implementation: nothing below is API ----

inline std::string StreamingDecoder::push(TokenId token) {
  return push_bytes(tokenizer_.next_text(token, after_special_, options_));
}

inline std::string StreamingDecoder::push_bytes(std::string_view bytes) {
  std::string text = std::exchange(incomplete_, {});
  text += bytes;
  const std::size_t complete = text.size() - incomplete_suffix_length(text);
  incomplete_ = text.substr(complete);
  text.resize(complete);
  return is_valid_utf8(text) ? text : sanitize(text);
}

inline std::string StreamingDecoder::finish() {
  std::string text = sanitize(incomplete_);
  incomplete_.clear();
  after_special_ = !options_.continues_text;
  return text;
}

}  // namespace kvick::inline v0_1
