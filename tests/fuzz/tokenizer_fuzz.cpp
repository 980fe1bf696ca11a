// SPDX-License-Identifier: MIT
// libFuzzer: any text, under any vocabulary, encodes to valid ids and decodes to valid UTF-8.
//
// The first bytes make the vocabulary (pieces of up to 4 bytes with types and scores, or merges of
// pieces so far), the rest is the text, which is also a message of a conversation and a template.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/text/chat_template.hpp"
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

/// Byte-level BPE: all bytes, merges of any two pieces so far, and a control token.
kvick::Vocabulary make_byte_level_vocabulary(std::string_view& input) {
  kvick::Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer =
      kvick::detail::kPreTokenizers[take(input) % std::size(kvick::detail::kPreTokenizers)].name;
  vocabulary.bos_id = vocabulary.eos_id = vocabulary.unk_id = kvick::kNoToken;
  vocabulary.add_bos = false;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocabulary.pieces.push_back(kvick::spelling_of_bytes({&c, 1}));
  }
  const int num_merges = take(input) % 32;
  for (int i = 0; i < num_merges; ++i) {
    const auto pick = [&] {
      const std::size_t id = take(input);
      const bool is_recent = id % 2 == 0 && vocabulary.pieces.size() > 256;
      return vocabulary.pieces[is_recent ? 256 + id % (vocabulary.pieces.size() - 256) : id];
    };
    const std::string left = pick();
    const std::string right = pick();
    vocabulary.pieces.push_back(left + right);
    vocabulary.merges.push_back(left + " " + right);
  }
  vocabulary.types.assign(vocabulary.pieces.size(), kvick::TokenType::kNormal);
  vocabulary.pieces.push_back("<|im_end|>");
  vocabulary.types.push_back(kvick::TokenType::kControl);
  vocabulary.scores.assign(vocabulary.pieces.size(), 0.0f);
  return vocabulary;
}

kvick::Vocabulary make_vocabulary(std::string_view& input) {
  const std::uint8_t model = take(input) % 3;
  if (model == 2) return make_byte_level_vocabulary(input);
  kvick::Vocabulary vocabulary;
  vocabulary.model = model == 0 ? "llama" : "t5";
  vocabulary.remove_extra_whitespaces = take(input) % 2 == 1;
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
    if (tokenizer.vocabulary().model == "gpt2") {
      expect(tokenizer.decode(tokenizer.encode(input)) == input, "byte-level BPE keeps every byte");
    }
    const auto& formats = kvick::detail::kChatFormats;
    const kvick::ChatTemplate chat(formats[input.size() % std::size(formats)].family,
                                   tokenizer.vocabulary());
    const kvick::ChatMessage messages[] = {{"user", std::string(input)}};
    (void)chat.encode(tokenizer, messages);
    try {
      // As the template itself, all of whose text is then markup but for the message.
      for (const kvick::ChatText& part : kvick::JinjaTemplate(input).render(messages, {})) {
        expect(!part.text.empty(), "parts have text");
      }
    } catch (const kvick::Error&) {
      // What is no template.
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
