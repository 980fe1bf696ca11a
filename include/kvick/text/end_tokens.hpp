// SPDX-License-Identifier: MIT
// Which tokens end a generation, and which are marks of a chat.
//
// A file names eos and perhaps eot and eom, but chat models end their turn with other marks as
// well, and some files give such a mark the type of plain text. So the marks in use are known by
// their piece, as in llama.cpp.
//
// Threads   Pure functions.
// Layer     text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/text/vocabulary.hpp"

namespace kvick::inline v0_1 {

/// The tokens that end a generation, ascending: eos, eot, eom and every end mark in use. In
/// `vocabulary`, the marks become control tokens and fill in eot_id and eom_id where those are
/// missing.
inline std::vector<TokenId> mark_end_tokens(Vocabulary& vocabulary);

/// Whether a piece is a mark between the messages of a chat, such as <|im_start|> or [INST].
constexpr bool is_chat_mark(std::string_view piece) noexcept;

// ---- Implementation: nothing below is API ----

namespace detail {

/// Ends of a turn; the first one present becomes the missing eot_id.
inline constexpr std::string_view kEndOfTurnPieces[] = {
    "<|eot_id|>",         "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>",    "<EOT>",      "_<EOT>",  "[EOT]",         "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
};
/// Ends of a message, which await a tool's answer; likewise for eom_id.
inline constexpr std::string_view kEndOfMessagePieces[] = {"<|eom_id|>"};
/// Ends that are neither: of a text, of a tool call, of a file while filling in the middle.
inline constexpr std::string_view kOtherEndPieces[] = {
    "</s>",      "<eos>",      "[EOS]",        "<|return|>",       "<|call|>",    "<|calls|>",
    "<|flush|>", "<turn|>",    "[e~[",         "<|tool_response>", "<|fim_pad|>", "<fim-pad>",
    "<fim_pad>", "<PAD>",      "[PAD]",        "<|fim_repo|>",     "<fim-repo>",  "<|repo_name|>",
    "<REPO>",    "<reponame>", "<|file_sep|>",
};

/// Byte-level BPE learns pieces from text, and Qwen has learned "</s>" from web pages: a mark of
/// plain brackets is a mark there only if the file says so.
inline bool is_markup_text(const Vocabulary& vocabulary, std::size_t id) {
  const std::string_view piece = vocabulary.pieces[id];
  return vocabulary.model == "gpt2" && vocabulary.types[id] == TokenType::kNormal &&
         piece.find('|') == std::string_view::npos &&
         piece.find("\xEF\xBD\x9C") == std::string_view::npos;  // U+FF5C, DeepSeek's bar
}

inline constexpr std::string_view kChatMarks[] = {
    "[INST]",          "[/INST]",       "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "<start_of_turn>", "<end_of_turn>", "[gMASK]",         "<sop>",
    "[|system|]",      "[|user|]",      "[|assistant|]",   "[|endofturn|]"};

}  // namespace detail

constexpr bool is_chat_mark(std::string_view piece) noexcept {
  constexpr std::string_view kWideBar = "\xEF\xBD\x9C";  // U+FF5C
  const auto is_between = [&](std::string_view bar) {
    return piece.size() > 2 * (1 + bar.size()) && piece.front() == '<' && piece.back() == '>' &&
           piece.substr(1).starts_with(bar) && piece.substr(0, piece.size() - 1).ends_with(bar);
  };
  return is_between("|") || is_between(kWideBar) ||
         std::find(std::begin(detail::kChatMarks), std::end(detail::kChatMarks), piece) !=
             std::end(detail::kChatMarks);
}

inline std::vector<TokenId> mark_end_tokens(Vocabulary& vocabulary) {
  std::unordered_map<std::string_view, TokenId> ids;  // of the marks; kNoToken if absent
  for (const auto piece : detail::kEndOfTurnPieces) ids[piece] = kNoToken;
  for (const auto piece : detail::kEndOfMessagePieces) ids[piece] = kNoToken;
  for (const auto piece : detail::kOtherEndPieces) ids[piece] = kNoToken;
  for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const auto mark = ids.find(vocabulary.pieces[id]);
    if (mark == ids.end()) continue;
    if (detail::is_markup_text(vocabulary, id)) continue;
    mark->second = static_cast<TokenId>(id);
    vocabulary.types[id] = TokenType::kControl;
  }
  const auto has = [&](std::string_view piece) { return ids.at(piece) != kNoToken; };
  const auto fill_in = [&](TokenId& id, auto& pieces) {
    for (const auto piece : pieces) {
      if (id == kNoToken) id = ids.at(piece);
    }
  };
  fill_in(vocabulary.eot_id, detail::kEndOfTurnPieces);
  fill_in(vocabulary.eom_id, detail::kEndOfMessagePieces);

  std::vector<TokenId> end_ids = {vocabulary.eos_id, vocabulary.eot_id, vocabulary.eom_id};
  for (const auto& [piece, id] : ids) end_ids.push_back(id);
  const auto exclude = [&](std::string_view piece, TokenType type) {
    const TokenId id = ids.at(piece);
    if (id == kNoToken) return;
    vocabulary.types[static_cast<std::size_t>(id)] = type;
    std::erase(end_ids, id);
  };
  // Where messages have parts of their own (gpt-oss, Solar), <|end|> only ends a part; in Gemma 4,
  // </s> is plain text.
  const bool has_calls = has("<|call|>") || has("<|calls|>");
  if (has_calls && (has("<|return|>") || has("<|flush|>"))) {
    exclude("<|end|>", TokenType::kUserDefined);
  }
  if (has("<|tool_response>")) exclude("</s>", TokenType::kNormal);

  std::sort(end_ids.begin(), end_ids.end());
  end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
  std::erase(end_ids, kNoToken);
  return end_ids;
}

}  // namespace kvick::inline v0_1
