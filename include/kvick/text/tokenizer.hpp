// SPDX-License-Identifier: MIT
// Text to tokens and back, by the tokenizer of a model file.
//
// Supported  Vocabulary::model "llama" (SentencePiece BPE), "t5" (SentencePiece's unigram model)
//            and "gpt2" (byte-level BPE).
// Accuracy   Tokens equal llama.cpp's and those of the models' own tokenizers. With a vocabulary
//            that has all bytes, decode(encode(text)) == text: for byte-level BPE whatever the
//            bytes, for SentencePiece BPE if the text is well-formed and without U+2581. Unigram
//            models normalize: they give back what they read, not what was written.
// Errors     Error(kUnsupported) for another model, Error(kFormat) for a bad vocabulary,
//            Error(kArgument) for a token outside the vocabulary.
// Threads    Immutable; copies share the vocabulary and cost nothing.
// Layer      text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/text/bpe_tokenizer.hpp"
#include "kvick/text/end_tokens.hpp"
#include "kvick/text/special_matcher.hpp"
#include "kvick/text/spm_tokenizer.hpp"
#include "kvick/text/unigram_tokenizer.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1 {

struct EncodeOptions {
  std::optional<bool> add_bos = std::nullopt;  ///< default: what the vocabulary asks for
  std::optional<bool> add_eos = std::nullopt;  ///< default: what the vocabulary asks for
  /// Whether control and unknown tokens, and the marks of chats (is_chat_mark), may be written in
  /// the text. Leave it off for text from users.
  bool parse_special = false;
  /// Whether the text goes on after other text: then no space is put before it.
  bool continues_text = false;
};

/// A part of a text, and whether control tokens and the like may be written in it.
struct TextPart {
  std::string_view text;
  bool parse_special = false;
};

struct DecodeOptions {
  bool print_special = false;  ///< control and unknown tokens print their piece instead of nothing
  /// Whether the tokens go on after other text: then the first one keeps its leading space.
  bool continues_text = false;
};

class Tokenizer {
 public:
  explicit Tokenizer(Vocabulary vocabulary);
  /// For byte-level BPE, a `pre_tokenizer` that is not empty replaces the file's: some files name
  /// none, or one that is not known (see pre_tokenizer.hpp).
  explicit Tokenizer(const GgufFile& file, std::string_view pre_tokenizer = {})
      : Tokenizer(read_vocabulary(file, pre_tokenizer)) {}

  /// The tokens of `text`. User-defined tokens are matched first, then the text between is merged.
  /// A bos or eos token that stands there already is not added a second time.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The tokens of the parts as one text, each with its own parse_special instead of the option's.
  /// Control tokens are found within one part, everything else across parts.
  std::vector<TokenId> encode(std::span<const TextPart> parts,
                              const EncodeOptions& options = {}) const;

  /// The bytes that `tokens` stand for: not always well-formed UTF-8 (see StreamingDecoder). Undoes
  /// encode: where that put a space before text (at the start and after special tokens, if the
  /// vocabulary says so), one leading space is taken away.
  std::string decode(std::span<const TokenId> tokens, const DecodeOptions& options = {}) const;

  /// What decode appends for one token. `after_special` carries over from token to token: whether
  /// the next text may lose a space. It starts as !options.continues_text. The view lives as long
  /// as the tokenizer or any copy of it.
  std::string_view next_text(TokenId token, bool& after_special,
                             const DecodeOptions& options = {}) const;

  /// The bytes of a token within text: nothing for control and unknown tokens.
  std::string_view token_bytes(TokenId token) const;
  /// The vocabulary's own spelling.
  std::string_view piece(TokenId token) const;
  TokenType type(TokenId token) const;

  int vocab_size() const noexcept { return static_cast<int>(vocabulary().pieces.size()); }
  /// As read, but end marks such as <|im_end|> are control tokens and serve as missing eot_id, and
  /// byte-level BPE never puts a space before text.
  const Vocabulary& vocabulary() const noexcept { return model_->vocabulary; }
  TokenId bos_id() const noexcept { return vocabulary().bos_id; }
  TokenId eos_id() const noexcept { return vocabulary().eos_id; }
  TokenId unk_id() const noexcept { return vocabulary().unk_id; }

  /// Whether a model that emits `token` has finished: eos, eot, eom and the end marks in use.
  bool is_end_of_generation(TokenId token) const;
  /// All such tokens, ascending.
  std::span<const TokenId> end_of_generation_ids() const noexcept { return model_->end_ids; }

 private:
  using Encoder = std::variant<SpmTokenizer, UnigramTokenizer, BpeTokenizer>;

  struct Model {
    explicit Model(Vocabulary vocabulary_to_check);

    Vocabulary vocabulary;
    std::vector<TokenId> end_ids;  // ascending
    Encoder encoder;
    SpecialMatcher user_defined;
    SpecialMatcher all_special;             // and those that text becomes only on request
    std::string bytes;                      // token_bytes of all tokens, one after another
    std::vector<std::size_t> byte_offsets;  // [vocab_size + 1]
  };

  static Encoder make_encoder(const Vocabulary& vocabulary);
  void append_text(std::string_view text, bool add_space, std::vector<TokenId>& tokens) const;
  void append_stretch(std::string_view text, bool continues, std::vector<TokenId>& tokens) const;
  std::size_t checked_index(TokenId token) const;

  std::shared_ptr<const Model> model_;
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline Vocabulary checked_vocabulary(Vocabulary vocabulary) {
  const std::string_view model = vocabulary.model;
  require(model == "llama" || model == "t5" || model == "gpt2", ErrorCode::kUnsupported,
          "Tokenizer", "tokenizer model must be 'llama', 't5' or 'gpt2', got ", in_quotes(model));
  check_vocabulary(vocabulary);
  if (vocabulary.model == "gpt2") vocabulary.add_space_prefix = false;
  return vocabulary;
}

/// Control and unknown tokens: marks, not text.
constexpr bool is_mark(TokenType type) noexcept {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

/// Whether text becomes the token only on request. Some files give the marks of a chat the type of
/// user-defined tokens: a message must not write them either.
inline bool needs_request(const Vocabulary& vocabulary, std::size_t id) {
  const TokenType type = vocabulary.types[id];
  return is_mark(type) || (type == TokenType::kUserDefined && is_chat_mark(vocabulary.pieces[id]));
}

inline SpecialMatcher special_matcher(const Vocabulary& vocabulary, bool with_requested) {
  std::vector<std::pair<std::string, TokenId>> tokens;
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const TokenType type = vocabulary.types[id];
    const bool is_special = is_mark(type) || type == TokenType::kUserDefined;
    if (is_special && (with_requested || !needs_request(vocabulary, id))) {
      tokens.emplace_back(vocabulary.pieces[id], static_cast<TokenId>(id));
    }
  }
  return SpecialMatcher(std::move(tokens));
}

/// Without spaces at the ends, and with one for each run of them.
inline std::string collapse_spaces(std::string_view text) {
  std::string collapsed;
  for (const char c : text) {
    if (c != ' ' || (!collapsed.empty() && collapsed.back() != ' ')) collapsed += c;
  }
  if (collapsed.ends_with(' ')) collapsed.pop_back();
  return collapsed;
}

/// Appends the bytes that a token of SentencePiece stands for.
inline void append_token_bytes(std::string_view piece, TokenType type, std::string& bytes) {
  if (is_mark(type)) return;
  if (type == TokenType::kByte) {
    bytes += static_cast<char>(*parse_byte_piece(piece));
    return;
  }
  if (type == TokenType::kUserDefined) {
    bytes += piece;
    return;
  }
  for (std::size_t begin = 0;;) {
    const std::size_t mark = piece.find(kSpaceMark, begin);
    bytes += piece.substr(begin, mark - begin);
    if (mark == std::string_view::npos) return;
    bytes += ' ';
    begin = mark + kSpaceMark.size();
  }
}

}  // namespace detail

inline Tokenizer::Model::Model(Vocabulary vocabulary_to_check)
    : vocabulary(detail::checked_vocabulary(std::move(vocabulary_to_check))),
      end_ids(mark_end_tokens(vocabulary)),
      encoder(make_encoder(vocabulary)),
      user_defined(detail::special_matcher(vocabulary, false)),
      all_special(detail::special_matcher(vocabulary, true)) {
  byte_offsets.reserve(vocabulary.pieces.size() + 1);
  byte_offsets.push_back(0);
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const std::string& piece = vocabulary.pieces[id];
    const TokenType type = vocabulary.types[id];
    if (vocabulary.model == "gpt2") {
      bytes += detail::bpe_token_bytes(piece, type);
    } else {
      detail::append_token_bytes(piece, type, bytes);
    }
    byte_offsets.push_back(bytes.size());
  }
}

inline Tokenizer::Encoder Tokenizer::make_encoder(const Vocabulary& vocabulary) {
  if (vocabulary.model == "gpt2") return Encoder(std::in_place_type<BpeTokenizer>, vocabulary);
  if (vocabulary.model == "t5") return Encoder(std::in_place_type<UnigramTokenizer>, vocabulary);
  return Encoder(std::in_place_type<SpmTokenizer>, vocabulary);
}

inline Tokenizer::Tokenizer(Vocabulary vocabulary)
    : model_(std::make_shared<const Model>(std::move(vocabulary))) {}

inline std::vector<TokenId> Tokenizer::encode(std::string_view text,
                                              const EncodeOptions& options) const {
  const TextPart part{text, options.parse_special};
  return encode(std::span(&part, 1), options);
}

inline std::vector<TokenId> Tokenizer::encode(std::span<const TextPart> parts,
                                              const EncodeOptions& options) const {
  const bool add_bos = options.add_bos.value_or(vocabulary().add_bos);
  const bool add_eos = options.add_eos.value_or(vocabulary().add_eos);
  detail::require(!add_bos || bos_id() != kNoToken, ErrorCode::kArgument, "Tokenizer::encode",
                  "add_bos needs a vocabulary with a bos token, got one without");
  detail::require(!add_eos || eos_id() != kNoToken, ErrorCode::kArgument, "Tokenizer::encode",
                  "add_eos needs a vocabulary with an eos token, got one without");
  std::vector<TokenId> tokens;
  if (add_bos) tokens.push_back(bos_id());

  std::string stretch;        // the text since the last token that was asked for
  bool owes_a_bos = add_bos;  // the one added stands for one written at the start
  bool continues = options.continues_text;
  bool ends_with_mark = false;
  for (const TextPart& part : parts) {
    std::size_t begin = 0;
    if (part.parse_special) {
      for (const SpecialMatch& match : model_->all_special.find(part.text)) {
        const auto id = static_cast<std::size_t>(match.token);
        if (!detail::needs_request(vocabulary(), id)) continue;  // append_stretch finds it again
        stretch += part.text.substr(begin, match.offset - begin);
        append_stretch(stretch, continues, tokens);
        const bool is_the_added = owes_a_bos && tokens.size() == 1 && match.token == bos_id();
        if (is_the_added) owes_a_bos = false;
        if (!is_the_added) tokens.push_back(match.token);
        stretch.clear();
        continues = false;
        ends_with_mark = true;
        begin = match.offset + match.length;
      }
    }
    stretch += part.text.substr(begin);
  }
  append_stretch(stretch, continues, tokens);
  ends_with_mark = ends_with_mark && stretch.empty();

  if (add_eos && !(ends_with_mark && tokens.back() == eos_id())) tokens.push_back(eos_id());
  return tokens;
}

/// Text without marks: user-defined tokens, and the text between them.
inline void Tokenizer::append_stretch(std::string_view text, bool continues,
                                      std::vector<TokenId>& tokens) const {
  const bool add_space = vocabulary().add_space_prefix;
  std::size_t begin = 0;
  for (const SpecialMatch& match : model_->user_defined.find(text)) {
    append_text(text.substr(begin, match.offset - begin), add_space && !(continues && begin == 0),
                tokens);
    tokens.push_back(match.token);
    begin = match.offset + match.length;
  }
  append_text(text.substr(begin), add_space && !(continues && begin == 0), tokens);
}

inline void Tokenizer::append_text(std::string_view text, bool add_space,
                                   std::vector<TokenId>& tokens) const {
  if (text.empty()) return;  // no text, no space before it
  if (const auto* const bpe = std::get_if<BpeTokenizer>(&model_->encoder)) {
    bpe->encode(text, tokens);
  } else if (const auto* const unigram = std::get_if<UnigramTokenizer>(&model_->encoder)) {
    unigram->encode(text, add_space, tokens);
  } else if (vocabulary().remove_extra_whitespaces) {
    const std::string collapsed = detail::collapse_spaces(text);
    if (!collapsed.empty())
      std::get<SpmTokenizer>(model_->encoder).encode(collapsed, add_space, tokens);
  } else {
    std::get<SpmTokenizer>(model_->encoder).encode(text, add_space, tokens);
  }
}

inline std::string Tokenizer::decode(std::span<const TokenId> tokens,
                                     const DecodeOptions& options) const {
  std::string text;
  bool after_special = !options.continues_text;
  for (const TokenId token : tokens) text += next_text(token, after_special, options);
  return text;
}

inline std::string_view Tokenizer::next_text(TokenId token, bool& after_special,
                                             const DecodeOptions& options) const {
  std::string_view text = token_bytes(token);
  const TokenType token_type = type(token);
  if (detail::is_mark(token_type) && options.print_special) text = piece(token);
  if (detail::is_mark(token_type) || token_type == TokenType::kUserDefined) {
    after_special = true;
    return text;
  }
  if (after_special && vocabulary().add_space_prefix && text.starts_with(' ')) {
    text.remove_prefix(1);
  }
  after_special = false;
  return text;
}

inline std::size_t Tokenizer::checked_index(TokenId token) const {
  detail::require(token >= 0 && token < vocab_size(), ErrorCode::kArgument, "Tokenizer",
                  "token must be in [0, ", vocab_size(), "), got ", token);
  return static_cast<std::size_t>(token);
}

inline std::string_view Tokenizer::token_bytes(TokenId token) const {
  const std::size_t i = checked_index(token);
  const std::size_t begin = model_->byte_offsets[i];
  return std::string_view(model_->bytes).substr(begin, model_->byte_offsets[i + 1] - begin);
}

inline std::string_view Tokenizer::piece(TokenId token) const {
  return vocabulary().pieces[checked_index(token)];
}

inline TokenType Tokenizer::type(TokenId token) const {
  return vocabulary().types[checked_index(token)];
}

inline bool Tokenizer::is_end_of_generation(TokenId token) const {
  checked_index(token);
  return std::binary_search(model_->end_ids.begin(), model_->end_ids.end(), token);
}

}  // namespace kvick::inline v0_1
