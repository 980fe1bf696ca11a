// SPDX-License-Identifier: MIT
// A conversation as a chat model reads it: messages to text, and to tokens.
//
//   const kvick::ChatTemplate chat(file, tokenizer);
//   const std::vector<kvick::ChatMessage> messages = {{"user", "What is a llama?"}};
//   const auto tokens = chat.encode(tokenizer, messages);   // the answer follows these
//
// The file's own template is run (jinja_template.hpp). One that cannot be run is refused, never
// guessed; then, or for a file without one, a family of models can be chosen by name.
//
// Only the marks of the template may become control tokens: messages are tokenized as plain text,
// so nobody can write one into a conversation. Where a family's marks are no tokens of the
// vocabulary (TinyLlama, Llama 2's [INST]) they are text, and a message may imitate them.
//
// Accuracy  The text that the models' templates give for roles system, user and assistant, without
//           tools. A system message that a template refuses or leaves out stands before the next
//           message of the user. bos stands once at the start if template or vocabulary want it.
// Errors    Error(kUnsupported) for a template that cannot be run; Error(kArgument) for other roles
//           and for messages that the template refuses.
// Threads   Immutable.
// Layer     text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/text/chat_formats.hpp"
#include "kvick/text/jinja_template.hpp"
#include "kvick/text/tokenizer.hpp"

namespace kvick::inline v0_1 {

class ChatTemplate {
 public:
  /// A template in Jinja, for models with this vocabulary.
  ChatTemplate(std::string_view source, const Vocabulary& vocabulary);
  ChatTemplate(ChatFamily family, const Vocabulary& vocabulary)
      : ChatTemplate(detail::chat_format(family).source, vocabulary) {}

  /// The template of a model file. A `family_name` that is not empty replaces it.
  ChatTemplate(const GgufFile& file, const Tokenizer& tokenizer, std::string_view family_name = {});

  /// The conversation up to where the assistant's next answer begins.
  std::string render(std::span<const ChatMessage> messages) const;
  /// Its tokens.
  std::vector<TokenId> encode(const Tokenizer& tokenizer,
                              std::span<const ChatMessage> messages) const;
  /// Of those, what follows the last answer among the messages. Behind the tokens that the model
  /// has read and written so far, its answer without the end mark included, they continue the
  /// conversation, and nothing is read twice.
  ///
  /// Nothing if the template now writes differently what stands before: reasoning models leave out
  /// earlier thoughts. Then the conversation is to be read anew, from where it differs.
  std::optional<std::vector<TokenId>> encode_continuation(
      const Tokenizer& tokenizer, std::span<const ChatMessage> messages) const;

 private:
  using Messages = std::vector<ChatMessage>;

  std::vector<ChatText> parts(std::span<const ChatMessage> messages) const;
  std::vector<ChatText> run(std::span<const ChatMessage> messages) const;
  static std::vector<TokenId> encode_parts(const Tokenizer& tokenizer,
                                           std::span<const ChatText> parts,
                                           const EncodeOptions& options);

  JinjaTemplate program_;
  std::string bos_;
  std::string eos_;
  bool marks_swallow_space_ = false;
};

// ---- Implementation: nothing below is API ----

namespace detail {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

inline std::string_view trim_white_space(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

/// Drops the white space behind every <|mark|> of the template.
inline void swallow_space_behind_marks(std::vector<ChatText>& parts) {
  bool is_behind_mark = false;
  for (ChatText& part : parts) {
    std::string kept;
    for (std::string_view rest = part.text; !rest.empty();) {
      if (is_behind_mark) {
        rest.remove_prefix(std::min(rest.find_first_not_of(kWhiteSpace), rest.size()));
        is_behind_mark = rest.empty();
        continue;
      }
      const std::size_t end = part.is_markup ? rest.find("|>") : std::string_view::npos;
      is_behind_mark = end != std::string_view::npos;
      const std::size_t length = is_behind_mark ? end + 2 : rest.size();
      kept += rest.substr(0, length);
      rest.remove_prefix(length);
    }
    part.text = std::move(kept);
  }
}

/// Each system message put before the next message of the user.
inline std::vector<ChatMessage> fold_system_messages(std::span<const ChatMessage> messages) {
  std::vector<ChatMessage> folded;
  std::string system;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      system += message.content + "\n\n";
      continue;
    }
    folded.push_back(message);
    if (message.role == "user") folded.back().content = std::exchange(system, {}) + message.content;
  }
  require(system.empty(), ErrorCode::kArgument, "ChatTemplate",
          "system messages must have a user message after them, got none");
  return folded;
}

inline std::string joined(std::span<const ChatText> parts) {
  std::string text;
  for (const ChatText& part : parts) text += part.text;
  return text;
}

}  // namespace detail

inline ChatTemplate::ChatTemplate(std::string_view source, const Vocabulary& vocabulary)
    : program_(source) {
  const auto piece = [&](TokenId id) {
    return id == kNoToken ? std::string() : vocabulary.pieces[static_cast<std::size_t>(id)];
  };
  bos_ = piece(vocabulary.bos_id);
  eos_ = piece(vocabulary.eos_id);
  // Phi 3's marks swallow white space behind them, a property that GGUF files do not carry.
  marks_swallow_space_ = vocabulary.model == "llama" &&
                         source.find("|>") != std::string_view::npos &&
                         source.find("<|end|>") != std::string_view::npos;
  const ChatMessage trial[] = {{"user", "Hi"}};
  parts(trial);
}

inline ChatTemplate::ChatTemplate(const GgufFile& file, const Tokenizer& tokenizer,
                                  std::string_view family_name)
    : ChatTemplate([&] {
        const Vocabulary& vocabulary = tokenizer.vocabulary();
        if (!family_name.empty()) return ChatTemplate(parse_chat_family(family_name), vocabulary);
        const auto source = file.try_get<std::string>("tokenizer.chat_template");
        detail::require(source.has_value(), ErrorCode::kUnsupported, "ChatTemplate",
                        "a chat needs a file with tokenizer.chat_template, or the choice of a ",
                        "family: ", detail::chat_family_names());
        try {
          return ChatTemplate(*source, vocabulary);
        } catch (const Error& error) {
          throw Error(
              ErrorCode::kUnsupported, "ChatTemplate",
              detail::concat("the file's chat template, ", detail::in_quotes(*source),
                             ", must be one that can be run, got ", error.message(),
                             "; choose the family it is like: ", detail::chat_family_names()));
        }
      }()) {}

inline std::vector<ChatText> ChatTemplate::run(std::span<const ChatMessage> messages) const {
  std::vector<ChatText> parts = program_.render(messages, {bos_, eos_});
  if (marks_swallow_space_) detail::swallow_space_behind_marks(parts);
  return parts;
}

inline std::vector<ChatText> ChatTemplate::parts(std::span<const ChatMessage> messages) const {
  bool has_system = false;
  for (const ChatMessage& message : messages) {
    const bool is_system = message.role == "system";
    detail::require(is_system || message.role == "user" || message.role == "assistant",
                    ErrorCode::kArgument, "ChatTemplate",
                    "role must be system, user or assistant, got ",
                    detail::in_quotes(message.role));
    has_system = has_system || is_system;
  }
  detail::require(!messages.empty(), ErrorCode::kArgument, "ChatTemplate",
                  "a conversation must have a message, got none");
  const auto writes = [](const std::string& text, const ChatMessage& message) {
    return text.find(detail::trim_white_space(message.content)) != std::string::npos;
  };
  if (has_system) {
    try {
      std::vector<ChatText> parts = run(messages);
      const std::string text = detail::joined(parts);
      const bool writes_all = std::all_of(messages.begin(), messages.end(), [&](const auto& m) {
        return m.role != "system" || writes(text, m);
      });
      if (writes_all && writes(text, messages.back())) return parts;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kArgument) throw;  // the template refuses these messages
    }
    return parts(detail::fold_system_messages(messages));
  }
  std::vector<ChatText> parts = run(messages);
  detail::require(writes(detail::joined(parts), messages.back()), ErrorCode::kUnsupported,
                  "ChatTemplate", "a template must write the last message, got one that does not");
  return parts;
}

inline std::string ChatTemplate::render(std::span<const ChatMessage> messages) const {
  return detail::joined(parts(messages));
}

inline std::vector<TokenId> ChatTemplate::encode(const Tokenizer& tokenizer,
                                                 std::span<const ChatMessage> messages) const {
  return encode_parts(tokenizer, parts(messages), {.add_eos = false});
}

inline std::optional<std::vector<TokenId>> ChatTemplate::encode_continuation(
    const Tokenizer& tokenizer, std::span<const ChatMessage> messages) const {
  std::size_t answer = messages.size();
  while (answer > 0 && messages[answer - 1].role != "assistant") --answer;
  if (answer < 2) return std::nullopt;
  const std::string before = render(messages.first(answer - 1)) + messages[answer - 1].content;
  std::vector<ChatText> parts = this->parts(messages);
  if (!detail::joined(parts).starts_with(before)) {
    // Some templates write the space before an answer that the model has written itself.
    Messages trimmed(messages.begin(), messages.end());
    std::string& content = trimmed[answer - 1].content;
    content.erase(0, std::min(content.find_first_not_of(detail::kWhiteSpace), content.size()));
    parts = this->parts(trimmed);
    if (!detail::joined(parts).starts_with(before)) return std::nullopt;
  }
  std::size_t num_bytes = before.size();  // to be left out
  for (ChatText& part : parts) {
    const std::size_t count = std::min(num_bytes, part.text.size());
    part.text.erase(0, count);
    num_bytes -= count;
  }
  return encode_parts(tokenizer, parts,
                      {.add_bos = false, .add_eos = false, .continues_text = true});
}

inline std::vector<TokenId> ChatTemplate::encode_parts(const Tokenizer& tokenizer,
                                                       std::span<const ChatText> parts,
                                                       const EncodeOptions& options) {
  std::vector<TextPart> texts;
  texts.reserve(parts.size());
  for (const ChatText& part : parts) texts.push_back({part.text, part.is_markup});
  return tokenizer.encode(texts, options);
}

}  // namespace kvick::inline v0_1
