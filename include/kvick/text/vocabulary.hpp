// SPDX-License-Identifier: MIT
// A tokenizer's vocabulary as a model file gives it.
//
// Accuracy  Follows llama.cpp where a file leaves something open: a missing special id, or one of
//           all ones (-1), takes the default of its tokenizer model; missing scores are 0; missing
//           types are kNormal; an empty piece is allowed and never matched; two equal pieces are
//           refused. Stricter than llama.cpp in this: arrays must have one entry per piece, types
//           must be known, an id outside the vocabulary is an error instead of a warning.
// Errors    Error(kFormat) that names the key or piece, what was found and what is allowed.
// Threads   Plain data.
// Source    GGUF format, keys tokenizer.ggml.*.
// Layer     text.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/text/pre_tokenizer.hpp"

namespace kvick::inline v0_1 {

/// Values are the ids that stand in a GGUF file.
enum class TokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,      ///< stands for text that no piece covers; prints nothing
  kControl = 3,      ///< a mark such as begin or end of text; prints nothing
  kUserDefined = 4,  ///< matched in text before all else, printed as it stands
  kUnused = 5,
  kByte = 6,  ///< one byte, with a piece of the form <0x0A>
};

/// Stands for a special token that a vocabulary does not have.
inline constexpr TokenId kNoToken = -1;

/// Longest piece. The longest in use have a few hundred bytes; the bound keeps encoding linear in
/// the text whatever a file holds.
inline constexpr std::size_t kMaxPieceBytes = 1024;
/// Longest piece of a token that is matched as a whole (control, user-defined, unknown), for the
/// same reason. The longest in use have less than 100 bytes.
inline constexpr std::size_t kMaxSpecialPieceBytes = 256;

struct Vocabulary {
  /// "llama" is SentencePiece BPE, "t5" SentencePiece's unigram model, "gpt2" byte-level BPE.
  std::string model = "llama";
  std::string pre_tokenizer;  ///< how byte-level BPE splits text; may be empty

  // One entry per token.
  std::vector<std::string> pieces;
  std::vector<float> scores;  ///< the higher, the earlier a merge
  std::vector<TokenType> types;

  std::vector<std::string> merges;  ///< "left right", best first; byte-level BPE only

  // Special tokens, or kNoToken.
  TokenId bos_id = 1;         ///< begin of sequence
  TokenId eos_id = 2;         ///< end of sequence
  TokenId eot_id = kNoToken;  ///< end of turn
  TokenId eom_id = kNoToken;  ///< end of message
  TokenId unk_id = 0;         ///< unknown text
  TokenId pad_id = kNoToken;  ///< padding
  TokenId sep_id = kNoToken;  ///< separator

  bool add_bos = true;
  bool add_eos = false;
  bool add_space_prefix = true;           ///< encode text as if a space stood before it
  bool remove_extra_whitespaces = false;  ///< of SentencePiece: runs of spaces, and at the ends
  std::string precompiled_charsmap;       ///< of "t5": see character_map.hpp; may be empty
};

/// Throws Error(kFormat) unless `vocabulary` keeps the rules above, except that pieces differ,
/// which Tokenizer checks when it indexes them.
inline void check_vocabulary(const Vocabulary& vocabulary);

/// The byte that a piece of the form <0x0A> stands for.
inline std::optional<unsigned char> parse_byte_piece(std::string_view piece) noexcept;

/// The vocabulary of a model file, checked. A `pre_tokenizer` that is not empty replaces that of
/// the file; only byte-level BPE has one.
inline Vocabulary read_vocabulary(const GgufFile& file, std::string_view pre_tokenizer = {});

// ---- Implementation: nothing below is API ----

inline std::optional<unsigned char> parse_byte_piece(std::string_view piece) noexcept {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : piece.substr(3, 2)) {
    const bool is_digit = c >= '0' && c <= '9';
    const bool is_letter = (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
    if (!is_digit && !is_letter) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(is_digit ? c - '0' : (c & ~0x20) - 'A' + 10);
  }
  return static_cast<unsigned char>(value);
}

namespace detail {

inline void check_token(const Vocabulary& vocabulary, std::size_t id) {
  constexpr std::string_view kOperation = "check_vocabulary";
  const std::string& piece = vocabulary.pieces[id];
  require(!std::isnan(vocabulary.scores[id]), ErrorCode::kFormat, kOperation, "score of token ", id,
          " must be a number, got NaN");
  const TokenType type = vocabulary.types[id];
  require(type >= TokenType::kNormal && type <= TokenType::kByte, ErrorCode::kFormat, kOperation,
          "type of token ", id, " must be in [1, 6], got ", static_cast<std::int32_t>(type));
  const bool is_special =
      type == TokenType::kUnknown || type == TokenType::kControl || type == TokenType::kUserDefined;
  const std::size_t max_bytes = is_special ? kMaxSpecialPieceBytes : kMaxPieceBytes;
  require(piece.size() <= max_bytes, ErrorCode::kFormat, kOperation, "piece of token ", id,
          " must have at most ", max_bytes, " bytes, got ", piece.size());
  require(type != TokenType::kByte || parse_byte_piece(piece), ErrorCode::kFormat, kOperation,
          "piece of byte token ", id, " must have the form <0x0A>, got ", in_quotes(piece));
}

/// The id under `key`, or `fallback` if the file has none; a fallback outside the vocabulary is
/// none.
inline TokenId read_special_id(const GgufFile& file, std::string_view key, TokenId fallback,
                               std::size_t num_tokens) {
  const auto stored = file.try_get<std::int64_t>(key);
  // Converters write "none" as -1 of whatever width the key has.
  if (stored && *stored != -1 && *stored != std::numeric_limits<std::uint32_t>::max()) {
    require(*stored >= 0 && std::cmp_less(*stored, num_tokens), ErrorCode::kFormat,
            "read_vocabulary", "key ", in_quotes(key), " must be in [0, ", num_tokens, "), got ",
            *stored);
    return static_cast<TokenId>(*stored);
  }
  return std::cmp_less(fallback, num_tokens) ? fallback : kNoToken;
}

/// Defaults that depend on the tokenizer model.
inline Vocabulary default_vocabulary(std::string model) {
  Vocabulary vocabulary;
  if (model != "llama") {
    const TokenId end = model == "gpt2" ? 11 : kNoToken;
    vocabulary.bos_id = end;
    vocabulary.eos_id = end;
    vocabulary.unk_id = kNoToken;
    vocabulary.add_bos = false;
    vocabulary.add_space_prefix = false;
  }
  if (model == "t5") {
    vocabulary.pad_id = 0;
    vocabulary.eos_id = 1;
    vocabulary.unk_id = 2;
    vocabulary.add_eos = true;
  }
  vocabulary.model = std::move(model);
  return vocabulary;
}

}  // namespace detail

inline void check_vocabulary(const Vocabulary& vocabulary) {
  using detail::require;
  constexpr std::string_view kOperation = "check_vocabulary";
  const std::size_t num_tokens = vocabulary.pieces.size();
  constexpr std::size_t kMaxTokens = std::numeric_limits<TokenId>::max();
  require(num_tokens >= 1 && num_tokens <= kMaxTokens, ErrorCode::kFormat, kOperation,
          "a vocabulary must have 1 to ", kMaxTokens, " tokens, got ", num_tokens);
  require(vocabulary.scores.size() == num_tokens, ErrorCode::kFormat, kOperation, num_tokens,
          " tokens must have as many scores, got ", vocabulary.scores.size());
  require(vocabulary.types.size() == num_tokens, ErrorCode::kFormat, kOperation, num_tokens,
          " tokens must have as many types, got ", vocabulary.types.size());
  for (std::size_t id = 0; id < num_tokens; ++id) detail::check_token(vocabulary, id);

  const std::pair<std::string_view, TokenId> special_ids[] = {
      {"bos", vocabulary.bos_id}, {"eos", vocabulary.eos_id}, {"eot", vocabulary.eot_id},
      {"eom", vocabulary.eom_id}, {"unk", vocabulary.unk_id}, {"pad", vocabulary.pad_id},
      {"sep", vocabulary.sep_id}};
  for (const auto& [role, id] : special_ids) {
    require(id == kNoToken || (id >= 0 && std::cmp_less(id, num_tokens)), ErrorCode::kFormat,
            kOperation, role, " token must be -1 or in [0, ", num_tokens, "), got ", id);
  }
  require(!vocabulary.add_bos || vocabulary.bos_id != kNoToken, ErrorCode::kFormat, kOperation,
          "add_bos needs a bos token, got none");
  require(!vocabulary.add_eos || vocabulary.eos_id != kNoToken, ErrorCode::kFormat, kOperation,
          "add_eos needs an eos token, got none");
}

inline Vocabulary read_vocabulary(const GgufFile& file, std::string_view pre_tokenizer) {
  Vocabulary vocabulary = detail::default_vocabulary(file.get<std::string>("tokenizer.ggml.model"));
  vocabulary.pre_tokenizer = pre_tokenizer.empty()
                                 ? file.get_or<std::string>("tokenizer.ggml.pre", "")
                                 : std::string(pre_tokenizer);
  detail::require(pre_tokenizer.empty() || vocabulary.model == "gpt2", ErrorCode::kArgument,
                  "read_vocabulary", "only byte-level BPE has pre-tokenizers, got ",
                  detail::in_quotes(pre_tokenizer), " for a vocabulary of model ",
                  detail::in_quotes(vocabulary.model));
  if (vocabulary.model == "gpt2") {
    const PreTokenizer* const known = find_pre_tokenizer(vocabulary.pre_tokenizer);
    if (known != nullptr) vocabulary.add_bos = known->adds_bos;
  }
  vocabulary.pieces = file.get<std::vector<std::string>>("tokenizer.ggml.tokens");
  const std::size_t num_tokens = vocabulary.pieces.size();

  auto scores = file.try_get<std::vector<float>>("tokenizer.ggml.scores");
  vocabulary.scores = scores ? std::move(*scores) : std::vector<float>(num_tokens, 0.0f);
  vocabulary.types.assign(num_tokens, TokenType::kNormal);
  if (const auto types = file.try_get<std::vector<std::int32_t>>("tokenizer.ggml.token_type")) {
    vocabulary.types.clear();
    for (const std::int32_t type : *types) vocabulary.types.push_back(TokenType{type});
  }
  if (auto merges = file.try_get<std::vector<std::string>>("tokenizer.ggml.merges")) {
    vocabulary.merges = std::move(*merges);
  }

  const auto read_id = [&](std::string_view key, TokenId& id) {
    id = detail::read_special_id(file, key, id, num_tokens);
  };
  read_id("tokenizer.ggml.bos_token_id", vocabulary.bos_id);
  read_id("tokenizer.ggml.eos_token_id", vocabulary.eos_id);
  read_id("tokenizer.ggml.eot_token_id", vocabulary.eot_id);
  read_id("tokenizer.ggml.eom_token_id", vocabulary.eom_id);
  read_id("tokenizer.ggml.unknown_token_id", vocabulary.unk_id);
  read_id("tokenizer.ggml.padding_token_id", vocabulary.pad_id);
  read_id("tokenizer.ggml.seperator_token_id", vocabulary.sep_id);  // the format's spelling

  if (const auto bytes =
          file.try_get<std::vector<std::uint8_t>>("tokenizer.ggml.precompiled_charsmap")) {
    vocabulary.precompiled_charsmap.assign(bytes->begin(), bytes->end());
  }

  const auto read_flag = [&](std::string_view key, bool& flag) {
    flag = file.get_or<bool>(key, flag);
  };
  read_flag("tokenizer.ggml.add_bos_token", vocabulary.add_bos);
  read_flag("tokenizer.ggml.add_eos_token", vocabulary.add_eos);
  read_flag("tokenizer.ggml.add_space_prefix", vocabulary.add_space_prefix);
  read_flag("tokenizer.ggml.remove_extra_whitespaces", vocabulary.remove_extra_whitespaces);

  check_vocabulary(vocabulary);
  return vocabulary;
}

}  // namespace kvick::inline v0_1
