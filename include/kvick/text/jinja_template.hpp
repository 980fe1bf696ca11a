// SPDX-License-Identifier: MIT
// Chat templates as model files carry them: programs in Jinja that write a conversation as text.
//
//   const kvick::JinjaTemplate program("{% for m in messages %}<{{ m.role }}>{{ m.content }}...");
//   const auto text = program.render({{"user", "Hi"}}, {.bos = "<s>", .eos = "</s>"});
//
// What is known of the language is what chat templates use: for, if, set, macro, the operators,
// some forty filters, tests and methods; not imports, inheritance or recursive loops. The rest is
// refused, never skipped.
//
// The text comes in parts: what the template says, and what the messages say, whatever the template
// does with them on the way. So only the template's own marks need to become control tokens.
//
// Accuracy  The text that Jinja gives with trim_blocks and lstrip_blocks, the way in which
//           transformers runs templates, with add_generation_prompt and without tools. The date,
//           where one is asked for, is 26 July 2024: the same text on every day.
// Errors    Error(kUnsupported) for what is not known or goes wrong, and for a program that does
//           too much or calls too deeply; Error(kArgument) for messages that the template refuses.
// Threads   Immutable.
// Source    Jinja's template designer documentation.
// Layer     text.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/text/impl/jinja_interpreter.hpp"

namespace kvick::inline v0_1 {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

/// A part of a conversation's text.
struct ChatText {
  std::string text;
  bool is_markup = false;  ///< from the template, not from a message
};

class JinjaTemplate {
 public:
  /// Special tokens as a template calls them.
  struct Marks {
    std::string_view bos;
    std::string_view eos;
  };

  explicit JinjaTemplate(std::string_view source);

  /// The conversation up to where the next answer begins. Neighbouring parts differ in kind.
  std::vector<ChatText> render(std::span<const ChatMessage> messages, const Marks& marks) const;

 private:
  std::shared_ptr<const detail::jinja::Block> program_;
};

// ---- Implementation: nothing below is API ----

inline JinjaTemplate::JinjaTemplate(std::string_view source) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 20;  // the longest in use have 30 KiB
  detail::require(source.size() <= kMaxBytes, ErrorCode::kUnsupported, "JinjaTemplate",
                  "a template must have at most ", kMaxBytes, " bytes, got ", source.size());
  std::string lines;  // with \n at their ends, but for the last
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
    lines += source[i] == '\r' ? '\n' : source[i];
  }
  if (lines.ends_with('\n')) lines.pop_back();
  detail::jinja::Parser parser(detail::jinja::Lexer(lines).run());
  program_ = std::make_shared<const detail::jinja::Block>(parser.run());
}

inline std::vector<ChatText> JinjaTemplate::render(std::span<const ChatMessage> messages,
                                                   const Marks& marks) const {
  using namespace detail::jinja;
  std::size_t num_bytes = 0;
  for (const ChatMessage& message : messages) num_bytes += message.content.size();
  Arena arena(num_bytes);
  List list;
  for (const ChatMessage& message : messages) {
    Dict dict;
    dict.set("role", arena.text(message.role));
    dict.set("content", arena.text(message.content, true));
    list.push_back(arena.make(std::move(dict)));
  }
  Interpreter interpreter(arena);
  interpreter.define("messages", arena.make(std::move(list)));
  interpreter.define("add_generation_prompt", {true});
  interpreter.define("bos_token", arena.text(marks.bos));
  interpreter.define("eos_token", arena.text(marks.eos));
  interpreter.define("tools", {None()});
  interpreter.define("documents", {None()});
  const Text text = interpreter.run(*program_);

  std::vector<ChatText> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const char kind = text.is_data[begin];
    std::size_t end = text.is_data.find(static_cast<char>('\1' - kind), begin);
    end = std::min(end, text.size());
    parts.push_back({text.bytes.substr(begin, end - begin), kind == '\0'});
    begin = end;
  }
  return parts;
}

}  // namespace kvick::inline v0_1
