// SPDX-License-Identifier: MIT
// The text of generated tokens as it can be shown: whole characters, up to a stop string.
//
// A StreamingDecoder and a StopMatcher in a row. What push() returned and what finish() returns
// make up the text that generation adds to the prompt, without the stop string.
//
// Errors    Error(kArgument) for a token outside the vocabulary or an empty stop string.
// Threads   One per sequence; not shared.
// Layer     text.
#pragma once

#include <span>
#include <string>

#include "kvick/core/matrix.hpp"
#include "kvick/text/stop_matcher.hpp"
#include "kvick/text/streaming_decoder.hpp"
#include "kvick/text/tokenizer.hpp"

namespace kvick::inline v0_1 {

class TextStream {
 public:
  /// Text that goes on after `prompt`: whether the first new token keeps its space, and whether it
  /// completes a character, depends on what stands before it.
  TextStream(const Tokenizer& tokenizer, std::span<const TokenId> prompt,
             std::span<const std::string> stop_strings = {})
      : decoder_(tokenizer), stop_matcher_(stop_strings) {
    for (const TokenId token : prompt) decoder_.push(token);
  }

  /// The text that can be shown once `token` is known; perhaps empty.
  std::string push(TokenId token) { return stop_matcher_.push(decoder_.push(token)); }

  /// What was held back, at the end of the text.
  std::string finish() {
    std::string text = stop_matcher_.push(decoder_.finish());
    return text + stop_matcher_.finish();
  }

  /// Whether a stop string was found: then there is no more text.
  bool has_stopped() const noexcept { return stop_matcher_.has_matched(); }

 private:
  StreamingDecoder decoder_;
  StopMatcher stop_matcher_;
};

}  // namespace kvick::inline v0_1
