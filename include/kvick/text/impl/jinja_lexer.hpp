// SPDX-License-Identifier: MIT
// A Jinja template to tokens: text between tags, and names, numbers, strings and operators in them.
//
// White space is treated as with the options trim_blocks and lstrip_blocks, with which chat
// templates are written: a line break right after {% ... %} and spaces before it on its line are
// dropped, and {%- and -%} drop all white space on their side.
//
// Layer     text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/text/impl/jinja_value.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

struct Token {
  enum class Kind {
    kText,
    kBeginOutput,     // {{
    kEndOutput,       // }}
    kBeginStatement,  // {%
    kEndStatement,    // %}
    kName,
    kInteger,
    kFloat,
    kString,  // with its quotes
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string_view text;
};

class Lexer {
 public:
  /// `source`, of which the tokens are views, has \n for line breaks.
  explicit Lexer(std::string_view source) : rest_(source) {}

  std::vector<Token> run() {
    while (!rest_.empty()) {
      const std::size_t tag = find_tag();
      text(tag);
      if (tag == std::string_view::npos) break;
      const char kind = rest_[1];
      if (kind == '#') {
        comment();
      } else {
        rest_.remove_prefix(2);
        if (starts_with_any("-+")) rest_.remove_prefix(1);
        add(kind == '{' ? Token::Kind::kBeginOutput : Token::Kind::kBeginStatement, {});
        expression(kind == '{' ? "}}" : "%}");
      }
    }
    add(Token::Kind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  static constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

  bool starts_with_any(std::string_view bytes) const {
    return !rest_.empty() && bytes.find(rest_.front()) != std::string_view::npos;
  }
  void add(Token::Kind kind, std::string_view text) { tokens_.push_back({kind, text}); }

  std::size_t find_tag() const {
    for (std::size_t at = 0; (at = rest_.find('{', at)) != std::string_view::npos; ++at) {
      const char next = at + 1 < rest_.size() ? rest_[at + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string_view::npos;
  }

  /// The text before the tag at `tag`, as the tag wants it.
  void text(std::size_t tag) {
    std::string_view text = rest_.substr(0, tag);
    rest_.remove_prefix(text.size());
    if (tag != std::string_view::npos) {
      const char kind = rest_[1];
      const char sign = rest_.size() > 2 ? rest_[2] : ' ';
      if (sign == '-') {
        text = text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
      } else if (kind != '{' && sign != '+') {
        const std::size_t line = text.rfind('\n') + 1;  // 0 if there is none
        const bool is_blank = text.find_first_not_of(" \t\v\f\r", line) == std::string_view::npos;
        if (is_blank && (line > 0 || is_at_line_start_)) text = text.substr(0, line);
      }
    }
    if (!text.empty()) add(Token::Kind::kText, text);
    is_at_line_start_ = false;
  }

  /// Behind a tag; `sign` is what stands before its end.
  void finish_tag(char sign, bool is_output) {
    if (sign == '-') {
      const std::size_t end = std::min(rest_.find_first_not_of(kWhiteSpace), rest_.size());
      is_at_line_start_ = end > 0 && rest_[end - 1] == '\n';
      rest_.remove_prefix(end);
    } else if (!is_output && sign != '+' && rest_.starts_with('\n')) {
      rest_.remove_prefix(1);
      is_at_line_start_ = true;
    }
  }

  void comment() {
    const std::size_t end = rest_.find("#}", 2);
    if (end == std::string_view::npos) fail("a comment must have an end");
    const char sign = end > 2 ? rest_[end - 1] : ' ';
    rest_.remove_prefix(end + 2);
    finish_tag(sign, false);
  }

  void expression(std::string_view end) {
    std::size_t num_open = 0;
    for (;;) {
      rest_.remove_prefix(std::min(rest_.find_first_not_of(kWhiteSpace), rest_.size()));
      if (rest_.empty()) fail(concat("a tag must have an end, ", end));
      const bool has_sign = starts_with_any("-+") && rest_.substr(1).starts_with(end);
      if (num_open == 0 && (has_sign || rest_.starts_with(end))) {
        const char sign = has_sign ? rest_.front() : ' ';
        rest_.remove_prefix(end.size() + (has_sign ? 1 : 0));
        const bool is_output = end == "}}";
        add(is_output ? Token::Kind::kEndOutput : Token::Kind::kEndStatement, {});
        finish_tag(sign, is_output);
        return;
      }
      token(num_open);
    }
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }

  void take(Token::Kind kind, std::size_t length) {
    add(kind, rest_.substr(0, length));
    rest_.remove_prefix(length);
  }

  void token(std::size_t& num_open) {
    const char c = rest_.front();
    if (is_letter(c)) {
      std::size_t end = 1;
      while (end < rest_.size() && (is_letter(rest_[end]) || is_digit(rest_[end]))) ++end;
      return take(Token::Kind::kName, end);
    }
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') {
      std::size_t end = 1;
      while (end < rest_.size() && rest_[end] != c) end += rest_[end] == '\\' ? 2 : 1;
      if (end >= rest_.size()) fail("a string must have an end");
      return take(Token::Kind::kString, end + 1);
    }
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (rest_.starts_with(two)) return take(Token::Kind::kOperator, 2);
    }
    if (std::string_view("+-*/%~<>=.,:|()[]{}").find(c) == std::string_view::npos) {
      fail(concat("a tag must have names, numbers, strings and operators, got ",
                  in_quotes(rest_.substr(0, 1))));
    }
    if (c == '(' || c == '[' || c == '{') ++num_open;
    if ((c == ')' || c == ']' || c == '}') && num_open > 0) --num_open;
    take(Token::Kind::kOperator, 1);
  }

  void number() {
    std::size_t end = 1;
    while (end < rest_.size() && is_digit(rest_[end])) ++end;
    const bool is_float = end + 1 < rest_.size() && rest_[end] == '.' && is_digit(rest_[end + 1]);
    if (is_float) {
      for (++end; end < rest_.size() && is_digit(rest_[end]);) ++end;
    }
    take(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, end);
  }

  std::string_view rest_;
  bool is_at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
