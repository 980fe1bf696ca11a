// SPDX-License-Identifier: MIT
// Vocabularies, GGUF metadata and texts for the tests of the text layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/text/byte_alphabet.hpp"
#include "kvick/text/vocabulary.hpp"

namespace support {

inline std::string byte_piece(unsigned byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">";
}

inline void add_token(kvick::Vocabulary& vocabulary, std::string piece, float score,
                      kvick::TokenType type = kvick::TokenType::kNormal) {
  vocabulary.pieces.push_back(std::move(piece));
  vocabulary.scores.push_back(score);
  vocabulary.types.push_back(type);
}

/// <unk> = 0, <s> = 1, </s> = 2, then byte tokens: byte b is token 3 + b.
inline kvick::Vocabulary basic_vocabulary() {
  kvick::Vocabulary vocabulary;
  add_token(vocabulary, "<unk>", 0, kvick::TokenType::kUnknown);
  add_token(vocabulary, "<s>", 0, kvick::TokenType::kControl);
  add_token(vocabulary, "</s>", 0, kvick::TokenType::kControl);
  for (unsigned byte = 0; byte < 256; ++byte) {
    add_token(vocabulary, byte_piece(byte), 0, kvick::TokenType::kByte);
  }
  return vocabulary;
}

/// Byte-level BPE: byte b is token b, then one token per merge, whose rank is the number before it.
inline kvick::Vocabulary byte_level_vocabulary(const std::vector<std::string>& merges,
                                               const std::string& pre_tokenizer = "gpt-2") {
  kvick::Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = pre_tokenizer;
  for (int byte = 0; byte < 256; ++byte) {
    add_token(vocabulary, kvick::spelling_of_bytes(std::string(1, static_cast<char>(byte))), 0);
  }
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    add_token(vocabulary, merge.substr(0, space) + merge.substr(space + 1), 0);
  }
  vocabulary.merges = merges;
  vocabulary.bos_id = vocabulary.eos_id = vocabulary.unk_id = kvick::kNoToken;
  vocabulary.add_bos = false;
  return vocabulary;
}

/// The first token after the byte tokens of basic_vocabulary.
inline constexpr kvick::TokenId kFirstPiece = 259;

/// The bytes of a GGUF file without tensors, key by key.
class GgufMetadata {
 public:
  GgufMetadata& add(std::string_view key, std::string_view text) {
    begin(key, 8);
    string(text);
    return *this;
  }
  GgufMetadata& add_u32(std::string_view key, std::uint32_t value) {
    begin(key, 4);
    number(value);
    return *this;
  }
  GgufMetadata& add_i32(std::string_view key, std::int32_t value) {
    begin(key, 5);
    number(value);
    return *this;
  }
  GgufMetadata& add_bool(std::string_view key, bool value) {
    begin(key, 7);
    number(static_cast<std::uint8_t>(value));
    return *this;
  }
  GgufMetadata& add(std::string_view key, const std::vector<std::string>& values) {
    begin_array(key, 8, values.size());
    for (const std::string& value : values) string(value);
    return *this;
  }
  GgufMetadata& add(std::string_view key, const std::vector<float>& values) {
    begin_array(key, 6, values.size());
    for (const float value : values) number(value);
    return *this;
  }
  GgufMetadata& add(std::string_view key, const std::vector<std::int32_t>& values) {
    begin_array(key, 5, values.size());
    for (const std::int32_t value : values) number(value);
    return *this;
  }

  kvick::GgufFile file() const {
    GgufMetadata whole;
    whole.bytes_ = "GGUF";
    whole.number(std::uint32_t{3});
    whole.number(std::uint64_t{0});
    whole.number(num_keys_);
    whole.bytes_ += bytes_;
    std::vector<std::byte> bytes(whole.bytes_.size());
    std::memcpy(bytes.data(), whole.bytes_.data(), bytes.size());
    return kvick::GgufFile::from_bytes(std::move(bytes));
  }

 private:
  template <class T>
  void number(T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    bytes_.append(bytes, sizeof value);
  }
  void string(std::string_view text) {
    number(std::uint64_t{text.size()});
    bytes_ += text;
  }
  void begin(std::string_view key, std::uint32_t type) {
    ++num_keys_;
    string(key);
    number(type);
  }
  void begin_array(std::string_view key, std::uint32_t element_type, std::size_t count) {
    begin(key, 9);
    number(element_type);
    number(std::uint64_t{count});
  }

  std::uint64_t num_keys_ = 0;
  std::string bytes_;
};

/// The code of the Error that `action` throws, and nothing if it does not.
template <class Action>
std::optional<kvick::ErrorCode> error_code(Action&& action) {
  try {
    action();
  } catch (const kvick::Error& error) {
    return error.code();
  }
  return std::nullopt;
}

using Rng = std::mt19937_64;

inline std::size_t below(Rng& rng, std::size_t limit) {
  return std::uniform_int_distribution<std::size_t>(0, limit - 1)(rng);
}

/// `count` items of `alphabet`, one after another.
inline std::string random_text(Rng& rng, const std::vector<std::string>& alphabet,
                               std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += alphabet[below(rng, alphabet.size())];
  return text;
}

inline std::string random_bytes(Rng& rng, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += static_cast<char>(below(rng, 256));
  return text;
}

/// One code point, which must not be a surrogate, in UTF-8.
inline std::string utf8(std::uint32_t code_point) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  if (code_point < 0x80) return {byte(code_point)};
  const char last = byte(0x80 | (code_point & 0x3F));
  if (code_point < 0x800) return {byte(0xC0 | code_point >> 6), last};
  const char third = byte(0x80 | (code_point >> 6 & 0x3F));
  if (code_point < 0x10000) return {byte(0xE0 | code_point >> 12), third, last};
  return {byte(0xF0 | code_point >> 18), byte(0x80 | (code_point >> 12 & 0x3F)), third, last};
}

}  // namespace support
