// SPDX-License-Identifier: MIT
// Byte-level byte-pair encoding, as GPT-2, Llama 3 and Qwen use it: text to tokens by merging
// bytes.
//
// A text is split into words by the rule of its pre-tokenizer. In each word, which starts as one
// token per byte, the neighbours whose merge has the lowest rank become one token, the leftmost of
// equals first, until nothing merges.
//
// Most words are one token. Which tokens merging makes from their own bytes is found out once, so
// such a word costs one look-up. Other words are cut between bytes that stand side by side in no
// piece, since nothing merges over such a border: Chinese and Japanese come without spaces, and
// their words are whole clauses. Each cut is looked up and, if need be, merged on its own, with a
// heap: n log n for the longest cut, whatever the text.
//
// Accuracy  Token for token what the models' own tokenizers give for well-formed text (without
//           Unicode normalization, which GGUF files do not ask for), except that a control or
//           unknown token is never the result of a merge: no text can forge one.
// Errors    Error(kUnsupported) for an unknown pre-tokenizer; Error(kFormat) for merges of what is
//           no piece; Error(kArgument) for a text with a byte that has no token, if there is no
//           unknown token; Error(kCapacity) for a text of 4 GiB or more.
// Threads   Immutable after construction.
// Source    Sennrich, Haddow, Birch: Neural machine translation of rare words with subword units
//           (2016); bytes as in GPT-2.
// Layer     text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/text/border_set.hpp"
#include "kvick/text/byte_alphabet.hpp"
#include "kvick/text/impl/merge_loop.hpp"
#include "kvick/text/merge_table.hpp"
#include "kvick/text/piece_index.hpp"
#include "kvick/text/pre_tokenizer.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1 {

class BpeTokenizer {
 public:
  /// `vocabulary` is checked (check_vocabulary).
  explicit BpeTokenizer(const Vocabulary& vocabulary);

  /// Appends the tokens of `text` to `tokens`.
  void encode(std::string_view text, std::vector<TokenId>& tokens) const;

 private:
  struct Symbol {            // a token so far
    std::uint32_t previous;  // in the list of symbols; kNoSymbol at the ends
    std::uint32_t next;
    std::uint32_t length;  // in bytes; 0: merged into its left neighbour
    TokenId token;
  };
  struct Candidate {  // the merge of symbol `left` with the one after it
    std::uint32_t rank;
    std::uint32_t left;
    std::uint32_t length;  // of both when it was queued
    TokenId token;
  };
  struct Workspace {
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;  // the lowest rank first
  };
  static constexpr int kBorderBits = 20;  // 128 KiB

  static bool is_worse(const Candidate& a, const Candidate& b) noexcept;
  /// `bytes` are those of each token that merging may make; empty for the others.
  BpeTokenizer(const Vocabulary& vocabulary, const std::vector<std::string>& bytes);

  void read_merges(const Vocabulary& vocabulary);
  void find_whole_tokens(const std::vector<std::string>& bytes);

  void encode_word(std::string_view word, Workspace& work, std::vector<TokenId>& tokens) const;
  void encode_cut(std::string_view cut, Workspace& work, std::vector<TokenId>& tokens) const;
  std::optional<Candidate> find_merge(const Workspace& work, std::uint32_t left) const noexcept;
  void merge(std::string_view cut, Workspace& work, std::vector<TokenId>& tokens) const;

  PreTokenizer pre_tokenizer_;
  PieceIndex index_;  // of the bytes of tokens that merging may make
  MergeTable merges_;
  std::array<TokenId, 256> byte_tokens_{};
  TokenId unk_id_;
  std::vector<bool> is_whole_;  // per token: merging its bytes gives the token
  BorderSet borders_;
};

// ---- Implementation: nothing below is API ----

namespace detail {

/// The bytes that a token of byte-level BPE stands for within text.
inline std::string bpe_token_bytes(std::string_view piece, TokenType type) {
  if (type == TokenType::kControl || type == TokenType::kUnknown) return {};
  if (type == TokenType::kByte) return std::string(1, static_cast<char>(*parse_byte_piece(piece)));
  // Added tokens are written as they are; a piece outside of the alphabet can only be one.
  if (type == TokenType::kUserDefined) return std::string(piece);
  return bytes_of_spelling(piece).value_or(std::string(piece));
}

/// The bytes of each token that merging may make; empty for the others.
inline std::vector<std::string> mergeable_bytes(const Vocabulary& vocabulary) {
  std::vector<std::string> bytes(vocabulary.pieces.size());
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    const TokenType type = vocabulary.types[id];
    const std::string& piece = vocabulary.pieces[id];
    const auto spelled = bytes_of_spelling(piece);
    if (!spelled) continue;
    const bool is_text = type == TokenType::kNormal || type == TokenType::kUnused ||
                         (type == TokenType::kUserDefined && *spelled == piece);
    if (is_text) bytes[id] = *spelled;
  }
  return bytes;
}

}  // namespace detail

inline BpeTokenizer::BpeTokenizer(const Vocabulary& vocabulary)
    : BpeTokenizer(vocabulary, detail::mergeable_bytes(vocabulary)) {}

inline BpeTokenizer::BpeTokenizer(const Vocabulary& vocabulary,
                                  const std::vector<std::string>& bytes)
    : pre_tokenizer_(require_pre_tokenizer(vocabulary.pre_tokenizer)),
      index_(bytes),
      merges_(vocabulary.merges.size()),
      unk_id_(vocabulary.unk_id),
      borders_(kBorderBits) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_tokens_[byte] = index_.find({&c, 1});
  }
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    if (vocabulary.types[id] != TokenType::kByte) continue;
    TokenId& token = byte_tokens_[*parse_byte_piece(vocabulary.pieces[id])];
    if (token == kNoToken) token = static_cast<TokenId>(id);
  }
  read_merges(vocabulary);
  for (const std::string& piece : bytes) borders_.note(piece);
  find_whole_tokens(bytes);
}

inline void BpeTokenizer::read_merges(const Vocabulary& vocabulary) {
  std::unordered_set<std::string_view> marks;  // pieces that no text may become
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const TokenType type = vocabulary.types[id];
    if (type == TokenType::kControl || type == TokenType::kUnknown) {
      marks.insert(vocabulary.pieces[id]);
    }
  }
  const auto find = [this](const std::optional<std::string>& bytes) {
    return bytes ? index_.find(*bytes) : kNoToken;
  };
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view merge = vocabulary.merges[rank];
    const std::size_t space = std::min(merge.find(' ', 1), merge.size());
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(std::min(space + 1, merge.size()));
    const auto left_bytes = bytes_of_spelling(left);
    const auto right_bytes = bytes_of_spelling(right);
    const TokenId left_token = find(left_bytes);
    const TokenId right_token = find(right_bytes);
    if (left_token != kNoToken && right_token != kNoToken) {
      const TokenId token = find(*left_bytes + *right_bytes);
      if (token != kNoToken) {
        merges_.insert(left_token, right_token, {static_cast<std::uint32_t>(rank), token});
        continue;
      }
    }
    const bool is_of_marks = marks.contains(left) || marks.contains(right) ||
                             marks.contains(std::string(left).append(right));
    if (is_of_marks) continue;
    throw Error(ErrorCode::kFormat, "BpeTokenizer",
                detail::concat("merge ", rank, " must be two pieces that make up a third, with a ",
                               "space between them, got ", detail::in_quotes(merge)));
  }
}

inline void BpeTokenizer::find_whole_tokens(const std::vector<std::string>& bytes) {
  is_whole_.resize(bytes.size());
  Workspace work;
  std::vector<TokenId> tokens;
  const auto has_token = [this](char byte) {
    return byte_tokens_[static_cast<unsigned char>(byte)] != kNoToken;
  };
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    if (bytes[id].empty() || !std::all_of(bytes[id].begin(), bytes[id].end(), has_token)) continue;
    tokens.clear();
    merge(bytes[id], work, tokens);
    is_whole_[id] = tokens.size() == 1 && tokens[0] == static_cast<TokenId>(id);
  }
}

inline void BpeTokenizer::encode(std::string_view text, std::vector<TokenId>& tokens) const {
  detail::require(text.size() < UINT32_MAX, ErrorCode::kCapacity, "Tokenizer::encode",
                  "text must have less than ", UINT32_MAX, " bytes, got ", text.size());
  Workspace work;
  split_words(pre_tokenizer_.rule, text,
              [&](std::string_view word) { encode_word(word, work, tokens); });
}

inline void BpeTokenizer::encode_word(std::string_view word, Workspace& work,
                                      std::vector<TokenId>& tokens) const {
  const TokenId token = index_.find(word);
  if (token != kNoToken &&
      (pre_tokenizer_.ignores_merges || is_whole_[static_cast<std::size_t>(token)])) {
    tokens.push_back(token);
    return;
  }
  std::size_t begin = 0;
  for (std::size_t at = 1; at < word.size(); ++at) {
    if (borders_.may_join(word, at)) continue;
    encode_cut(word.substr(begin, at - begin), work, tokens);
    begin = at;
  }
  encode_cut(word.substr(begin), work, tokens);
}

inline void BpeTokenizer::encode_cut(std::string_view cut, Workspace& work,
                                     std::vector<TokenId>& tokens) const {
  const TokenId token = index_.find(cut);
  if (token != kNoToken && is_whole_[static_cast<std::size_t>(token)]) {
    tokens.push_back(token);
  } else {
    merge(cut, work, tokens);
  }
}

/// The order of the heap: the lowest rank first, the leftmost of equals.
inline bool BpeTokenizer::is_worse(const Candidate& a, const Candidate& b) noexcept {
  return a.rank > b.rank || (a.rank == b.rank && a.left > b.left);
}

/// The merge of symbol `left` with the one after it, if there is one.
inline std::optional<BpeTokenizer::Candidate> BpeTokenizer::find_merge(
    const Workspace& work, std::uint32_t left) const noexcept {
  const Symbol& symbol = work.symbols[left];
  if (symbol.next == detail::kNoSymbol) return std::nullopt;
  const Symbol& right = work.symbols[symbol.next];
  const MergeTable::Merge found = merges_.find(symbol.token, right.token);
  if (found.token == kNoToken) return std::nullopt;
  return Candidate{found.rank, left, symbol.length + right.length, found.token};
}

inline void BpeTokenizer::merge(std::string_view cut, Workspace& work,
                                std::vector<TokenId>& tokens) const {
  const auto size = static_cast<std::uint32_t>(cut.size());
  work.symbols.clear();
  for (std::uint32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(cut[i]);
    work.symbols.push_back({i > 0 ? i - 1 : detail::kNoSymbol,
                            i + 1 < size ? i + 1 : detail::kNoSymbol, 1, byte_tokens_[byte]});
  }
  detail::merge_best_first(
      work.symbols, work.heap, [&](std::uint32_t left) { return find_merge(work, left); },
      is_worse);
  std::size_t at = 0;
  for (std::uint32_t i = 0; i != detail::kNoSymbol; i = work.symbols[i].next) {
    const TokenId token = work.symbols[i].token != kNoToken ? work.symbols[i].token : unk_id_;
    detail::require(token != kNoToken, ErrorCode::kArgument, "Tokenizer::encode",
                    "text must have bytes that are in the vocabulary, got byte ",
                    static_cast<unsigned>(static_cast<unsigned char>(cut[at])));
    tokens.push_back(token);
    at += work.symbols[i].length;
  }
}

}  // namespace kvick::inline v0_1
