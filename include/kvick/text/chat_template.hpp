// SPDX-License-Identifier: MIT
// A conversation as a chat model reads it: messages to text, and to tokens.
//
//   const kvick::ChatTemplate chat(file, tokenizer);
//   const std::vector<kvick::ChatMessage> messages = {{"user", "What is a llama?"}};
//   const auto tokens = chat.encode(tokenizer, messages);   // the answer follows these
//
// Only the marks of the template may become control tokens: messages are tokenized as plain text,
// so nobody can write one into a conversation. Where a family's marks are no tokens of the
// vocabulary (TinyLlama, Llama 2's [INST]) they are text, and a message may imitate them.
//
// Accuracy  The text that the models' templates give for roles system, user and assistant, without
//           tools; but the system message of Mistral models stays with the first user message, so
//           that a conversation only grows. bos stands once at the start if template or vocabulary
//           want it.
// Errors    Error(kUnsupported) for a template of no known family; Error(kArgument) for other
//           roles.
// Threads   Immutable.
// Layer     text.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/text/chat_formats.hpp"
#include "kvick/text/tokenizer.hpp"

namespace kvick::inline v0_1 {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  /// `source`, the file's own template if it has one, decides details within the family.
  ChatTemplate(ChatFamily family, const Vocabulary& vocabulary, std::string_view source = {});

  /// The template of a model file. A `family_name` that is not empty replaces recognition.
  ChatTemplate(const GgufFile& file, const Tokenizer& tokenizer, std::string_view family_name = {});

  ChatFamily family() const noexcept { return family_; }

  /// The conversation up to where the assistant's next answer begins.
  std::string render(std::span<const ChatMessage> messages) const;
  /// Its tokens.
  std::vector<TokenId> encode(const Tokenizer& tokenizer,
                              std::span<const ChatMessage> messages) const;
  /// Of those, what follows the last answer among the messages. Behind the tokens that the model
  /// has read and written so far, its answer without the end mark included, they continue the
  /// conversation, and nothing is read twice.
  std::vector<TokenId> encode_continuation(const Tokenizer& tokenizer,
                                           std::span<const ChatMessage> messages) const;

 private:
  struct Part {
    std::string text;
    bool is_markup;
  };
  struct Frame {
    std::string before;
    std::string after;
  };

  std::vector<Part> parts(std::span<const ChatMessage> messages, bool only_continuation) const;
  static std::vector<TokenId> encode_parts(const Tokenizer& tokenizer,
                                           const std::vector<Part>& parts,
                                           const EncodeOptions& options);

  ChatFamily family_;
  std::string start_;
  Frame system_;
  Frame user_;
  Frame assistant_;
  std::string answer_;
  std::string default_system_;
  bool system_joins_user_;
  bool trims_;
  bool trims_assistant_;
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

inline std::string_view trim_white_space(std::string_view text) {
  constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

/// The system message that a ChatML template states for conversations without one: what stands as
/// a literal between the marks, as in '<|im_start|>system\nYou are ...<|im_end|>\n'.
inline std::string stated_system_message(std::string_view source) {
  constexpr std::string_view kBegin = "<|im_start|>system\\n";
  constexpr std::string_view kEnd = "<|im_end|>";
  for (std::size_t at = 0; (at = source.find(kBegin, at)) != std::string_view::npos;) {
    at += kBegin.size();
    const std::string_view text = source.substr(at, source.find(kEnd, at) - at);
    if (text.empty() || text.find_first_of("'\"{}") != std::string_view::npos) continue;
    std::string message(text);
    replace_all(message, "\\n", "\n");
    return message;
  }
  return {};
}

}  // namespace detail

inline ChatTemplate::ChatTemplate(ChatFamily family, const Vocabulary& vocabulary,
                                  std::string_view source)
    : family_(family) {
  const detail::ChatFormat& format = detail::chat_format(family);
  const auto piece = [&](TokenId id) {
    return id == kNoToken ? std::string_view() : vocabulary.pieces[static_cast<std::size_t>(id)];
  };
  const auto fill_in = [&](std::string_view text) {
    std::string filled(text);
    detail::replace_all(filled, "{bos}", piece(vocabulary.bos_id));
    detail::replace_all(filled, "{eos}", piece(vocabulary.eos_id));
    return filled;
  };
  const auto frame = [&](const detail::ChatFrame& text) {
    return Frame{fill_in(text.before), fill_in(text.after)};
  };
  start_ = fill_in(format.start);
  system_ = frame(format.system);
  user_ = frame(format.user);
  assistant_ = frame(format.assistant);
  answer_ = fill_in(format.answer);
  system_joins_user_ = format.style.system_joins_user;
  trims_ = format.style.trims;
  trims_assistant_ = format.style.trims || format.style.trims_assistant;
  system_.before += format.style.system_start;

  const auto has = [&](std::string_view text) {
    return source.find(text) != std::string_view::npos;
  };
  const bool begins_with_bos = has("bos_token") && start_.empty() && family != ChatFamily::kLlama2;
  if (begins_with_bos) start_ = piece(vocabulary.bos_id);
  if (family == ChatFamily::kChatMl) default_system_ = detail::stated_system_message(source);
  if (family == ChatFamily::kMistralV0 && has("eos_token + ' '")) assistant_.after += ' ';
  if (family == ChatFamily::kDeepSeek3 && has("<｜Assistant｜><think>\\n")) answer_ += "<think>\n";
  if (family == ChatFamily::kPhi3 && vocabulary.model == "llama") {
    // Phi 3's marks swallow white space behind them, a property that GGUF files do not carry.
    for (std::string* const text : {&system_.before, &system_.after, &user_.before, &user_.after,
                                    &assistant_.before, &assistant_.after, &answer_}) {
      std::erase(*text, '\n');
    }
  }
}

inline ChatTemplate::ChatTemplate(const GgufFile& file, const Tokenizer& tokenizer,
                                  std::string_view family_name)
    : ChatTemplate(
          [&] {
            if (!family_name.empty()) return parse_chat_family(family_name);
            const auto source = file.try_get<std::string>("tokenizer.chat_template");
            detail::require(source.has_value(), ErrorCode::kUnsupported, "ChatTemplate",
                            "a chat needs a file with tokenizer.chat_template, or the choice of a ",
                            "family: ", detail::chat_family_names());
            return recognize_chat_family(*source);
          }(),
          tokenizer.vocabulary(), file.get_or<std::string>("tokenizer.chat_template", "")) {}

inline std::vector<ChatTemplate::Part> ChatTemplate::parts(std::span<const ChatMessage> messages,
                                                           bool only_continuation) const {
  std::vector<Part> parts;
  const auto add_markup = [&](std::string_view text) {
    parts.push_back({std::string(text), true});
  };
  const auto add_content = [&](std::string_view text) {
    parts.push_back({std::string(text), false});
  };
  add_markup(start_);
  const bool has_system = !messages.empty() && messages.front().role == "system";
  const bool needs_system =
      !default_system_.empty() || !detail::chat_format(family_).style.system_start.empty();
  if (!has_system && needs_system) {
    add_markup(system_.before);
    add_content(default_system_);
    add_markup(system_.after);
  }
  const std::string* joined_system = nullptr;
  for (const ChatMessage& message : messages) {
    const auto content = [&](bool trims) {
      return trims ? detail::trim_white_space(message.content) : std::string_view(message.content);
    };
    if (message.role == "system" && system_joins_user_) {
      detail::require(joined_system == nullptr, ErrorCode::kArgument, "ChatTemplate",
                      "system messages must have a user message after them, got another");
      joined_system = &message.content;
    } else if (message.role == "system") {
      add_markup(system_.before);
      add_content(content(trims_));
      add_markup(system_.after);
    } else if (message.role == "user") {
      add_markup(user_.before);
      if (joined_system != nullptr) {
        add_markup(system_.before);
        add_content(trims_ ? detail::trim_white_space(*joined_system) : *joined_system);
        add_markup(system_.after);
        joined_system = nullptr;
      }
      add_content(content(trims_));
      add_markup(user_.after);
    } else if (message.role == "assistant") {
      add_markup(assistant_.before);
      add_content(content(trims_assistant_));
      if (only_continuation) parts.clear();
      add_markup(assistant_.after);
    } else {
      throw Error(ErrorCode::kArgument, "ChatTemplate",
                  detail::concat("role must be system, user or assistant, got ",
                                 detail::in_quotes(message.role)));
    }
  }
  detail::require(joined_system == nullptr, ErrorCode::kArgument, "ChatTemplate",
                  "system messages must have a user message after them, got none");
  add_markup(answer_);
  return parts;
}

inline std::string ChatTemplate::render(std::span<const ChatMessage> messages) const {
  std::string text;
  for (const Part& part : parts(messages, false)) text += part.text;
  return text;
}

inline std::vector<TokenId> ChatTemplate::encode(const Tokenizer& tokenizer,
                                                 std::span<const ChatMessage> messages) const {
  return encode_parts(tokenizer, parts(messages, false), {.add_eos = false});
}

inline std::vector<TokenId> ChatTemplate::encode_continuation(
    const Tokenizer& tokenizer, std::span<const ChatMessage> messages) const {
  return encode_parts(tokenizer, parts(messages, true),
                      {.add_bos = false, .add_eos = false, .continues_text = true});
}

inline std::vector<TokenId> ChatTemplate::encode_parts(const Tokenizer& tokenizer,
                                                       const std::vector<Part>& parts,
                                                       const EncodeOptions& options) {
  // Neighbouring marks are one text: a control token may begin in one and end in the next.
  std::vector<Part> joined;
  for (const Part& part : parts) {
    if (!joined.empty() && joined.back().is_markup && part.is_markup) {
      joined.back().text += part.text;
    } else {
      joined.push_back(part);
    }
  }
  std::vector<TextPart> texts;
  texts.reserve(joined.size());
  for (const Part& part : joined) texts.push_back({part.text, part.is_markup});
  return tokenizer.encode(texts, options);
}

}  // namespace kvick::inline v0_1
