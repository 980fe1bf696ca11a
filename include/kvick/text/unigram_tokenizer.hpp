// SPDX-License-Identifier: MIT
// SentencePiece's unigram model, as T5 uses it: of all ways to cut a text into pieces, the one
// whose scores (log probabilities) add up to the most.
//
// The text is normalized first: characters by the file's own rules, spaces as the vocabulary says.
// Then one pass from left to right (Viterbi) keeps the best way to each byte; the longest piece
// bounds the work per byte.
//
// A character that no piece covers is unknown, 10 below the lowest score; neighbouring unknown
// characters are one token.
//
// Accuracy  Token for token what SentencePiece gives; ill-formed bytes count as U+FFFD.
// Errors    Error(kFormat) without an unknown token or for a score that is not finite;
//           Error(kCapacity) for a text that has, or becomes, 1 GiB or more.
// Threads   Immutable after construction.
// Source    Kudo: Subword regularization (2018); SentencePiece.
// Layer     text.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/text/character_map.hpp"
#include "kvick/text/special_matcher.hpp"
#include "kvick/text/spm_tokenizer.hpp"
#include "kvick/text/utf8.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1 {

class UnigramTokenizer {
 public:
  /// `vocabulary` is checked (check_vocabulary).
  explicit UnigramTokenizer(const Vocabulary& vocabulary);

  /// Appends the tokens of `text`, with a space before its first word if asked, to `tokens`.
  void encode(std::string_view text, bool add_space, std::vector<TokenId>& tokens) const;

 private:
  struct Step {  // the best way to a byte
    double score = -std::numeric_limits<double>::infinity();
    std::uint32_t begin = 0;  // of its last token
    TokenId token = kNoToken;
  };

  std::string normalize(std::string_view text, bool add_space) const;

  SpecialMatcher pieces_;  // all that text may become
  std::vector<double> scores_;
  double unknown_score_ = 0;
  TokenId unk_id_;
  bool removes_extra_spaces_;
  CharacterMap characters_;
};

// ---- Implementation: nothing below is API ----

inline UnigramTokenizer::UnigramTokenizer(const Vocabulary& vocabulary)
    : unk_id_(vocabulary.unk_id),
      removes_extra_spaces_(vocabulary.remove_extra_whitespaces),
      characters_(vocabulary.precompiled_charsmap) {
  detail::require(unk_id_ != kNoToken, ErrorCode::kFormat, "UnigramTokenizer",
                  "a unigram vocabulary must have an unknown token, got none");
  std::vector<std::pair<std::string, TokenId>> pieces;
  double lowest = 0;
  bool has_normal = false;
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const TokenType type = vocabulary.types[id];
    const double score = static_cast<double>(vocabulary.scores[id]);
    detail::require(std::isfinite(score), ErrorCode::kFormat, "UnigramTokenizer", "score of token ",
                    id, " must be finite, got ", score);
    scores_.push_back(type == TokenType::kUserDefined ? 0.0 : score);
    if (type == TokenType::kNormal) {
      lowest = has_normal ? std::min(lowest, score) : score;
      has_normal = true;
    }
    if (type == TokenType::kNormal || type == TokenType::kUserDefined ||
        type == TokenType::kUnused) {
      pieces.emplace_back(vocabulary.pieces[id], static_cast<TokenId>(id));
    }
  }
  pieces_ = SpecialMatcher(std::move(pieces));
  constexpr double kUnknownPenalty = 10;
  unknown_score_ = lowest - kUnknownPenalty;
}

/// The text by the rules for characters, with marks for spaces: one before the first word if asked,
/// and one for each space, or one before each word if extra spaces are removed.
inline std::string UnigramTokenizer::normalize(std::string_view text, bool add_space) const {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  std::string normalized;
  bool owes_a_space = add_space;  // before the first word
  bool is_in_word = false;
  const auto append = [&](std::string_view part) {
    for (const char c : part) {
      if (c == ' ') {
        is_in_word = false;
        if (!removes_extra_spaces_) normalized += kSpaceMark;
        continue;
      }
      const bool is_second_word = removes_extra_spaces_ && !normalized.empty();
      if (!is_in_word && (owes_a_space || is_second_word)) normalized += kSpaceMark;
      if (!is_in_word) owes_a_space = false;
      is_in_word = true;
      normalized += c;
    }
  };
  while (!text.empty()) {
    const CharacterMap::Match rule = characters_.find(text);
    const Utf8Step step = first_utf8_step(text);
    const bool is_character = step.kind == Utf8Step::Kind::kCharacter;
    const std::size_t length = rule.length > 0 ? rule.length : is_character ? step.num_bytes : 1;
    append(rule.length > 0 ? rule.text
           : is_character  ? text.substr(0, length)
                           : kReplacementCharacter);
    text.remove_prefix(length);
    detail::require(normalized.size() < kMaxBytes, ErrorCode::kCapacity, "Tokenizer::encode",
                    "text must have less than ", kMaxBytes, " bytes when it is normalized");
  }
  return normalized;
}

inline void UnigramTokenizer::encode(std::string_view text, bool add_space,
                                     std::vector<TokenId>& tokens) const {
  const std::string normalized = normalize(text, add_space);
  std::vector<Step> best(normalized.size() + 1);  // [i]: the best way to cut the first i bytes
  best[0].score = 0;
  const auto offer = [&](std::size_t begin, std::size_t length, double score, TokenId token) {
    Step& step = best[begin + length];
    const double sum = best[begin].score + score;
    if (sum > step.score) step = {sum, static_cast<std::uint32_t>(begin), token};
  };
  for (std::size_t at = 0; at < normalized.size();) {
    const std::string_view rest = std::string_view(normalized).substr(at);
    const std::size_t character = detail::first_character(rest).size();
    bool has_character = false;
    pieces_.visit_prefixes(rest, [&](std::size_t length, TokenId token) {
      has_character = has_character || length == character;
      offer(at, length, scores_[static_cast<std::size_t>(token)], token);
    });
    if (!has_character) offer(at, character, unknown_score_, unk_id_);
    at += character;
  }
  const std::size_t num_before = tokens.size();
  for (std::size_t end = normalized.size(); end > 0; end = best[end].begin) {
    const TokenId token = best[end].token;
    const bool joins = token == unk_id_ && tokens.size() > num_before && tokens.back() == unk_id_;
    if (!joins) tokens.push_back(token);
  }
  std::reverse(tokens.begin() + static_cast<Index>(num_before), tokens.end());
}

}  // namespace kvick::inline v0_1
