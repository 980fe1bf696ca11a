// SPDX-License-Identifier: MIT
// A vocabulary of syllables for models that were not trained: any text can be written with it.
//
// Layer     bench: may include core, gguf, text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/text/spm_tokenizer.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1 {

/// Three control tokens, 256 bytes, 200 syllables, a space, 94 characters.
inline constexpr int kMinSyntheticVocabulary = 3 + 256 + 200 + 1 + 94;

/// Three control tokens, all bytes, then text: syllables, syllables that begin a word, characters;
/// then unused tokens up to `size`.
class SyntheticVocabulary {
 public:
  explicit SyntheticVocabulary(int size = kMinSyntheticVocabulary);

  void write_to(GgufWriter& writer) const;

  int size() const noexcept { return static_cast<int>(pieces_.size()); }
  /// The first token of text, and the one after the last.
  std::pair<int, int> text_tokens() const noexcept { return {3 + 256, kMinSyntheticVocabulary}; }

 private:
  void add(std::string piece, TokenType type);

  std::vector<std::string> pieces_;
  std::vector<float> scores_;
  std::vector<std::int32_t> types_;
  int num_text_pieces_ = 0;
};

// ---- Implementation: nothing below is API ----

inline SyntheticVocabulary::SyntheticVocabulary(int size) {
  add("<unk>", TokenType::kUnknown);
  add("<s>", TokenType::kControl);
  add("</s>", TokenType::kControl);
  constexpr std::string_view kHexDigits = "0123456789ABCDEF";
  for (const char high : kHexDigits) {
    for (const char low : kHexDigits) {
      add(std::string("<0x") + high + low + ">", TokenType::kByte);
    }
  }
  const std::string space(kSpaceMark);
  for (const std::string& start : {std::string(), space}) {
    for (const char consonant : std::string_view("bcdfghjklmnpqrstvwxz")) {
      for (const char vowel : std::string_view("aeiou")) {
        add(start + consonant + vowel, TokenType::kNormal);
      }
    }
  }
  add(space, TokenType::kNormal);
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c), TokenType::kNormal);
  for (int i = 0; static_cast<int>(pieces_.size()) < size; ++i) {
    add("<unused" + std::to_string(i) + ">", TokenType::kUnused);
  }
}

inline void SyntheticVocabulary::add(std::string piece, TokenType type) {
  // Earlier pieces merge first, as in Llama's vocabulary: scores 0, -1, -2, ...
  const bool is_text = type == TokenType::kNormal;
  scores_.push_back(is_text ? -static_cast<float>(num_text_pieces_++) : 0.0f);
  pieces_.push_back(std::move(piece));
  types_.push_back(static_cast<std::int32_t>(type));
}

inline void SyntheticVocabulary::write_to(GgufWriter& writer) const {
  writer.add("tokenizer.ggml.model", "llama");
  writer.add("tokenizer.ggml.tokens", pieces_);
  writer.add("tokenizer.ggml.scores", scores_);
  writer.add("tokenizer.ggml.token_type", types_);
  writer.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
  writer.add("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  writer.add("tokenizer.ggml.add_bos_token", true);
}

}  // namespace kvick::inline v0_1
