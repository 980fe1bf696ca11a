// SPDX-License-Identifier: MIT
// SentencePiece's byte-pair encoding, as Llama uses it: text to tokens by merging adjacent symbols.
//
// A text is cut into characters (by the lead byte, clipped at the end, so ill-formed UTF-8 is cut
// too). Again and again, the two neighbours whose concatenation is the piece of highest score
// become one symbol, the leftmost such pair if scores are equal. Symbols that are no piece become
// byte tokens, and the unknown token where the vocabulary lacks the byte.
//
// Two adjacent characters that stand in no piece side by side are never merged over, so the text is
// cut there first; with Llama's vocabulary that is before every word. Each cut is merged on its own
// with a heap that stays in the cache: n log n for the longest cut, whatever the text.
//
// Accuracy  Token for token what llama.cpp gives, except that control, unknown and byte pieces are
//           never the result of a merge (the rule of SentencePiece): no text can forge a control
//           token, and a text such as "<0x41>" stays what it is.
// Errors    Error(kFormat) if a byte can become neither a byte token nor the unknown token;
//           Error(kCapacity) for a text of 1 GiB or more.
// Threads   Immutable after construction.
// Source    Kudo, Richardson: SentencePiece (2018); byte fallback as in Llama's tokenizer.
// Layer     text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/text/border_set.hpp"
#include "kvick/text/impl/merge_loop.hpp"
#include "kvick/text/piece_index.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1 {

/// U+2581, which stands for a space within pieces.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

class SpmTokenizer {
 public:
  /// `vocabulary` is checked (check_vocabulary).
  explicit SpmTokenizer(const Vocabulary& vocabulary);

  /// Appends the tokens of `text`, with a space before it if asked, to `tokens`.
  void encode(std::string_view text, bool add_space, std::vector<TokenId>& tokens) const;

 private:
  struct Symbol {            // a run of characters that is one piece so far
    std::uint32_t previous;  // in the list of symbols; kNoSymbol at the ends
    std::uint32_t next;
    std::uint32_t offset;  // in the text
    std::uint32_t length;  // 0: merged into its left neighbour
    TokenId token;         // kNoToken if it is no piece
  };
  struct Merge {  // of symbol `left` with the one after it into `token`
    float score;
    std::uint32_t left;
    std::uint32_t length;  // of both when the merge was queued
    TokenId token;
  };
  struct Workspace {
    std::string_view text;
    std::vector<Symbol> symbols;
    std::vector<Merge> heap;  // the best merge first
  };
  struct Token {
    float score = 0;
    bool is_mergeable = false;
  };
  /// 32 KiB; Llama's 32,000 pieces set 1 bit in 50.
  static constexpr int kBorderBits = 18;

  static bool is_worse(const Merge& a, const Merge& b) noexcept;
  TokenId find_mergeable(std::string_view text) const noexcept;
  void append_symbol(Workspace& work, std::size_t offset, std::size_t length) const;
  std::optional<Merge> find_merge(const Workspace& work, std::uint32_t left) const noexcept;
  void flush(Workspace& work, std::vector<TokenId>& tokens) const;

  PieceIndex index_;
  std::vector<Token> tokens_;
  std::array<TokenId, 256> byte_tokens_{};
  BorderSet borders_{kBorderBits};
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// The token that stands for one byte: <0x0A>, else any spelling of it, else the byte as a piece.
/// Never a control token.
inline std::array<TokenId, 256> find_byte_tokens(const Vocabulary& vocabulary,
                                                 const PieceIndex& index) {
  std::array<TokenId, 256> tokens{};
  tokens.fill(kNoToken);
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    if (vocabulary.types[id] != TokenType::kByte) continue;
    TokenId& token = tokens[*parse_byte_piece(vocabulary.pieces[id])];
    if (token == kNoToken) token = static_cast<TokenId>(id);
  }
  const auto find_text = [&](std::string_view piece) {
    const TokenId id = index.find(piece);
    const bool is_text =
        id != kNoToken && vocabulary.types[static_cast<std::size_t>(id)] != TokenType::kControl;
    return is_text ? id : kNoToken;
  };
  constexpr char kHex[] = "0123456789ABCDEF";
  for (std::size_t byte = 0; byte < tokens.size(); ++byte) {
    const char piece[] = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    const char single = static_cast<char>(byte);
    const TokenId usual = find_text({piece, sizeof piece});
    TokenId& token = tokens[byte];
    if (usual != kNoToken) token = usual;
    if (token == kNoToken) token = find_text({&single, 1});
    if (token == kNoToken) token = vocabulary.unk_id;
    require(token != kNoToken, ErrorCode::kFormat, "SpmTokenizer",
            "a vocabulary must have a token for each byte or an unknown token, got none for byte ",
            byte);
  }
  return tokens;
}

inline std::string mark_spaces(std::string_view text, bool add_space) {
  std::string marked;
  const auto num_spaces = static_cast<std::size_t>(std::count(text.begin(), text.end(), ' '));
  marked.reserve(text.size() + (num_spaces + 1) * kSpaceMark.size());
  if (add_space) marked += kSpaceMark;
  for (std::size_t begin = 0;;) {
    const std::size_t space = text.find(' ', begin);
    marked += text.substr(begin, space - begin);
    if (space == std::string_view::npos) return marked;
    marked += kSpaceMark;
    begin = space + 1;
  }
}

}  // namespace detail

inline SpmTokenizer::SpmTokenizer(const Vocabulary& vocabulary)
    : index_(vocabulary.pieces), byte_tokens_(detail::find_byte_tokens(vocabulary, index_)) {
  tokens_.reserve(vocabulary.pieces.size());
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const TokenType type = vocabulary.types[id];
    const bool is_mergeable =
        type == TokenType::kNormal || type == TokenType::kUserDefined || type == TokenType::kUnused;
    tokens_.push_back({vocabulary.scores[id], is_mergeable});
    if (is_mergeable) borders_.note(vocabulary.pieces[id]);
  }
}

inline void SpmTokenizer::encode(std::string_view text, bool add_space,
                                 std::vector<TokenId>& tokens) const {
  // Offsets have 32 bits, and a space becomes 3 bytes.
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  detail::require(text.size() < kMaxBytes, ErrorCode::kCapacity, "Tokenizer::encode",
                  "text must have less than ", kMaxBytes, " bytes, got ", text.size());
  const std::string marked = detail::mark_spaces(text, add_space);
  Workspace work;
  work.text = marked;
  for (std::size_t offset = 0; offset < marked.size();) {
    const std::string_view character = detail::first_character(work.text.substr(offset));
    if (offset > 0 && !borders_.may_join(marked, offset)) flush(work, tokens);
    append_symbol(work, offset, character.size());
    offset += character.size();
  }
  flush(work, tokens);
}

/// The order of the heap: the highest score first, the leftmost of equals.
inline bool SpmTokenizer::is_worse(const Merge& a, const Merge& b) noexcept {
  return a.score < b.score || (a.score == b.score && a.left > b.left);
}

inline TokenId SpmTokenizer::find_mergeable(std::string_view text) const noexcept {
  const TokenId token = index_.find(text);
  return token != kNoToken && tokens_[static_cast<std::size_t>(token)].is_mergeable ? token
                                                                                    : kNoToken;
}

inline void SpmTokenizer::append_symbol(Workspace& work, std::size_t offset,
                                        std::size_t length) const {
  const auto index = static_cast<std::uint32_t>(work.symbols.size());
  if (index > 0) work.symbols.back().next = index;
  work.symbols.push_back({index > 0 ? index - 1 : detail::kNoSymbol, detail::kNoSymbol,
                          static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(length),
                          find_mergeable(work.text.substr(offset, length))});
}

/// The merge of symbol `left` with the one after it, if that makes a piece.
inline std::optional<SpmTokenizer::Merge> SpmTokenizer::find_merge(
    const Workspace& work, std::uint32_t left) const noexcept {
  const Symbol& symbol = work.symbols[left];
  if (symbol.next == detail::kNoSymbol) return std::nullopt;
  const std::uint32_t length = symbol.length + work.symbols[symbol.next].length;
  const TokenId token = find_mergeable(work.text.substr(symbol.offset, length));
  if (token == kNoToken) return std::nullopt;
  return Merge{tokens_[static_cast<std::size_t>(token)].score, left, length, token};
}

/// Merges the symbols collected so far, appends their tokens and starts anew.
inline void SpmTokenizer::flush(Workspace& work, std::vector<TokenId>& tokens) const {
  if (work.symbols.empty()) return;
  detail::merge_best_first(
      work.symbols, work.heap, [&](std::uint32_t left) { return find_merge(work, left); },
      is_worse);
  for (std::uint32_t i = 0; i != detail::kNoSymbol; i = work.symbols[i].next) {
    const Symbol& symbol = work.symbols[i];
    if (symbol.token != kNoToken) {
      tokens.push_back(symbol.token);
      continue;
    }
    for (const char c : work.text.substr(symbol.offset, symbol.length)) {
      tokens.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
    }
  }
  work.symbols.clear();
}

}  // namespace kvick::inline v0_1
