// SPDX-License-Identifier: MIT
// libFuzzer: any text, under any vocabulary, encodes to valid ids and decodes to valid UTF-8.
//
// The first bytes make the vocabulary (pieces of up to 4 bytes, with types and scores), the rest is
// the text.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/text/stop_matcher.hpp"
#include "kvick/text/streaming_decoder.hpp"
#include "kvick/text/tokenizer.hpp"
#include "kvick/text/utf8.hpp"

namespace {

void expect(bool ok, const char* rule) {
  if (ok) return;
  std::fprintf(stderr, "broken: %s\n", rule);
  std::abort();
}

/// Takes bytes from the front of the input.
std::uint8_t take(std::string_view& input) {
  if (input.empty()) return 0;
  const auto byte = static_cast<std::uint8_t>(input.front());
  input.remove_prefix(1);
  return byte;
}

kvick::Vocabulary make_vocabulary(std::string_view& input) {
  kvick::Vocabulary vocabulary;
  vocabulary.model = "llama";
  const auto add = [&](std::string piece, kvick::TokenType type, float score) {
    vocabulary.pieces.push_back(std::move(piece));
    vocabulary.types.push_back(type);
    vocabulary.scores.push_back(score);
  };
  add("<unk>", kvick::TokenType::kUnknown, 0.0f);
  add("<s>", kvick::TokenType::kControl, 0.0f);
  add("</s>", kvick::TokenType::kControl, 0.0f);
  const int num_pieces = take(input) % 32;
  for (int i = 0; i < num_pieces; ++i) {
    const std::uint8_t shape = take(input);
    std::string piece;
    for (int n = shape % 5; n > 0; --n) piece += static_cast<char>(take(input));
    const auto type = static_cast<kvick::TokenType>(1 + shape / 5 % 5);
    add(std::move(piece), type, static_cast<float>(take(input)) - 128.0f);
  }
  vocabulary.add_space_prefix = take(input) % 2 == 0;
  return vocabulary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const kvick::Tokenizer tokenizer(make_vocabulary(input));
    for (const bool parse_special : {false, true}) {
      const auto tokens = tokenizer.encode(input, {.parse_special = parse_special});
      kvick::StreamingDecoder decoder(tokenizer);
      std::string streamed;
      for (const kvick::TokenId token : tokens) {
        expect(token >= 0 && token < tokenizer.vocab_size(), "ids are in the vocabulary");
        streamed += decoder.push(token);
        expect(kvick::is_valid_utf8(streamed), "streamed text is valid UTF-8 at every moment");
      }
      streamed += decoder.finish();
      expect(streamed == kvick::sanitize(tokenizer.decode(tokens)), "streaming equals decoding");
    }
    const std::vector<std::string> stops = {std::string(input.substr(0, 3)) + "x"};
    kvick::StopMatcher matcher(stops);
    (void)matcher.push(input);
    (void)matcher.finish();
  } catch (const kvick::Error&) {
    // A vocabulary that no tokenizer accepts.
  }
  return 0;
}
