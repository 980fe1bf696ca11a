// SPDX-License-Identifier: MIT
// Tokens of a Jinja template to the tree of an expression.
//
// The tree has a bounded height, so that walking it needs a bounded stack.
//
// Layer     text.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/text/impl/jinja_lexer.hpp"
#include "kvick/text/impl/jinja_syntax.hpp"
#include "kvick/text/impl/jinja_value.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  using Kind = Expression::Kind;
  static constexpr int kMaxHeight = 200;

  /// Counts how deeply the parser, and so the tree, is nested.
  class Level {
   public:
    explicit Level(int& depth) : depth_(depth) {
      if (++depth_ > kMaxHeight)
        fail(concat("templates must be nested at most ", kMaxHeight, " deep"));
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  // ---- Tokens ----

  const Token& front(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token::Kind kind() const { return front().kind; }
  bool sees(std::string_view text, std::size_t ahead = 0) const {
    const Token& token = front(ahead);
    return (token.kind == Token::Kind::kOperator || token.kind == Token::Kind::kName) &&
           token.text == text;
  }
  bool take(std::string_view text) {
    if (!sees(text)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!take(text)) fail(concat("expected ", in_quotes(text), ", got ", in_quotes(front().text)));
  }
  void expect(Token::Kind wanted) {
    if (kind() != wanted) fail(concat("expected the end of a tag, got ", in_quotes(front().text)));
    ++at_;
  }
  std::string name() {
    if (kind() != Token::Kind::kName) {
      fail(concat("expected a name, got ", in_quotes(front().text)));
    }
    return std::string(tokens_[at_++].text);
  }

  // ---- Expressions, from the loosest operator to the tightest ----

  static ExpressionPtr make(Kind kind, ExpressionPtr first = nullptr,
                            ExpressionPtr second = nullptr) {
    auto made = std::make_unique<Expression>(Expression{kind});
    if (first) add(*made, std::move(first));
    if (second) add(*made, std::move(second));
    return made;
  }
  static void grow(Expression& parent, const ExpressionPtr& child) {
    if (!child) return;
    parent.height = std::max(parent.height, child->height + 1);
    if (parent.height > kMaxHeight) {
      fail(concat("expressions must be nested at most ", kMaxHeight, " deep"));
    }
  }
  static void add(Expression& parent, ExpressionPtr child) {
    grow(parent, child);
    parent.operands.push_back(std::move(child));
  }
  ExpressionPtr binary(std::string_view op, ExpressionPtr left, ExpressionPtr right) {
    auto made = make(Kind::kBinary, std::move(left), std::move(right));
    made->text = op;
    return made;
  }

  ExpressionPtr expression() {
    const Level level(depth_);
    ExpressionPtr value = or_expression();
    while (take("if")) {
      auto choice = make(Kind::kChoice, std::move(value), or_expression());
      add(*choice, take("else") ? expression() : nullptr);
      value = std::move(choice);
    }
    return value;
  }

  ExpressionPtr expression_or_tuple() {
    ExpressionPtr value = expression();
    if (!sees(",")) return value;
    ExpressionPtr tuple = make(Kind::kList, std::move(value));
    while (take(",")) add(*tuple, expression());
    return tuple;
  }

  ExpressionPtr or_expression() {
    ExpressionPtr left = and_expression();
    while (take("or")) left = make(Kind::kOr, std::move(left), and_expression());
    return left;
  }
  ExpressionPtr and_expression() {
    ExpressionPtr left = not_expression();
    while (take("and")) left = make(Kind::kAnd, std::move(left), not_expression());
    return left;
  }
  ExpressionPtr not_expression() {
    const Level level(depth_);
    if (take("not")) return make(Kind::kNot, not_expression());
    return comparison();
  }

  ExpressionPtr comparison() {
    ExpressionPtr left = sum();
    for (int count = 0;; ++count) {
      const bool is_negated = sees("not") && sees("in", 1);
      std::string_view op;
      for (const std::string_view known : {"==", "!=", "<", "<=", ">", ">=", "in"}) {
        if (sees(known)) op = known;
      }
      if (op.empty() && !is_negated) return left;
      if (count > 0) fail("comparisons must not be chained");
      at_ += is_negated ? 2 : 1;
      left = binary(is_negated ? "in" : op, std::move(left), sum());
      if (is_negated) left = make(Kind::kNot, std::move(left));
    }
  }

  ExpressionPtr sum() {
    ExpressionPtr left = joined();
    while (sees("+") || sees("-")) {
      const std::string_view op = tokens_[at_++].text;
      left = binary(op, std::move(left), joined());
    }
    return left;
  }
  ExpressionPtr joined() {
    ExpressionPtr left = product();
    while (take("~")) left = binary("~", std::move(left), product());
    return left;
  }
  ExpressionPtr product() {
    ExpressionPtr left = unary();
    while (sees("*") || sees("/") || sees("//") || sees("%")) {
      const std::string_view op = tokens_[at_++].text;
      left = binary(op, std::move(left), unary());
    }
    return left;
  }

  /// A filter behind a sign takes both: -1 | abs is 1.
  ExpressionPtr unary(bool takes_filters = true) {
    const Level level(depth_);
    ExpressionPtr value;
    if (take("-")) {
      value = make(Kind::kNegative, unary(false));
    } else {
      value = take("+") ? unary(false) : postfixed(primary());
    }
    return takes_filters ? filtered(std::move(value)) : std::move(value);
  }

  ExpressionPtr filtered(ExpressionPtr value) {
    for (;;) {
      if (take("|")) {
        auto filter = make(Kind::kFilter, std::move(value));
        filter->text = name();
        if (take("(")) arguments(*filter);
        value = std::move(filter);
      } else if (take("is")) {
        const bool is_negated = take("not");
        auto test = make(Kind::kTest, std::move(value));
        test->text = name();
        if (take("(")) {
          arguments(*test);
        } else if (is_argument()) {
          add(*test, postfixed(primary()));
        }
        value = is_negated ? make(Kind::kNot, std::move(test)) : std::move(test);
      } else {
        return value;
      }
    }
  }

  /// Whether what stands behind a test can only be its argument.
  bool is_argument() const {
    const Token& token = front();
    if (token.kind == Token::Kind::kName) {
      for (const std::string_view word : {"and", "or", "not", "if", "else", "in", "is"}) {
        if (token.text == word) return false;
      }
      return true;
    }
    return token.kind == Token::Kind::kString || token.kind == Token::Kind::kInteger ||
           token.kind == Token::Kind::kFloat || sees("[") || sees("{");
  }

  void arguments(Expression& call) {
    while (!take(")")) {
      if (kind() == Token::Kind::kName && sees("=", 1)) {
        std::string argument = name();
        expect("=");
        call.named.emplace_back(std::move(argument), expression());
        grow(call, call.named.back().second);
      } else {
        if (!call.named.empty()) fail("arguments with a name must come last");
        add(call, expression());
      }
      if (!sees(")")) expect(",");
    }
  }

  ExpressionPtr postfixed(ExpressionPtr value) {
    for (;;) {
      if (take(".")) {
        value = make(Kind::kAttribute, std::move(value));
        value->text = name();
      } else if (take("[")) {
        value = subscript(std::move(value));
      } else if (take("(")) {
        value = make(Kind::kCall, std::move(value));
        arguments(*value);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value) {
    ExpressionPtr bounds[3];
    int num_bounds = 1;
    if (!sees(":")) bounds[0] = expression();
    while (num_bounds < 3 && take(":")) {
      if (!sees(":") && !sees("]")) bounds[num_bounds] = expression();
      ++num_bounds;
    }
    expect("]");
    if (num_bounds == 1) return make(Kind::kItem, std::move(value), std::move(bounds[0]));
    auto slice = make(Kind::kSlice, std::move(value));
    for (ExpressionPtr& bound : bounds) add(*slice, std::move(bound));
    return slice;
  }

  ExpressionPtr primary() {
    const Token token = front();
    if (token.kind == Token::Kind::kEnd) fail("expected an expression, got the end");
    ++at_;
    switch (token.kind) {
      case Token::Kind::kString: {
        auto text = make(Kind::kText);
        text->text = unescaped(token.text);
        while (kind() == Token::Kind::kString) text->text += unescaped(tokens_[at_++].text);
        return text;
      }
      case Token::Kind::kInteger:
      case Token::Kind::kFloat: return number(token);
      case Token::Kind::kName: return named(token.text);
      default: break;
    }
    if (token.text == "(") {
      if (take(")")) return make(Kind::kList);
      ExpressionPtr value = expression();
      if (sees(",")) {
        value = make(Kind::kList, std::move(value));
        while (take(",") && !sees(")")) add(*value, expression());
      }
      expect(")");
      return value;
    }
    if (token.text == "[") {
      auto list = make(Kind::kList);
      while (!take("]")) {
        add(*list, expression());
        if (!sees("]")) expect(",");
      }
      return list;
    }
    if (token.text == "{") {
      auto dict = make(Kind::kDict);
      while (!take("}")) {
        add(*dict, expression());
        expect(":");
        add(*dict, expression());
        if (!sees("}")) expect(",");
      }
      return dict;
    }
    fail(concat("expected an expression, got ", in_quotes(token.text)));
  }

  static ExpressionPtr number(const Token& token) {
    const bool is_float = token.kind == Token::Kind::kFloat;
    auto made = make(is_float ? Kind::kFloat : Kind::kInteger);
    const char* const end = token.text.data() + token.text.size();
    const auto result = is_float ? std::from_chars(token.text.data(), end, made->real)
                                 : std::from_chars(token.text.data(), end, made->integer);
    if (result.ec != std::errc()) fail(concat("numbers must be in range, got ", token.text));
    return made;
  }

  static ExpressionPtr named(std::string_view name) {
    if (name == "true" || name == "True") return make(Kind::kTrue);
    if (name == "false" || name == "False") return make(Kind::kFalse);
    if (name == "none" || name == "None") return make(Kind::kNone);
    auto made = make(Kind::kName);
    made->text = name;
    return made;
  }

  /// A string without its quotes; as in Python, an escape that is not known stays as it is.
  static std::string unescaped(std::string_view quoted) {
    const std::string_view text = quoted.substr(1, quoted.size() - 2);
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        plain += text[i];
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view kLetters = "ntrbfv0\\'\"";
      constexpr std::string_view kBytes("\n\t\r\b\f\v\0\\'\"", 10);
      const std::size_t known = kLetters.find(c);
      if (known != std::string_view::npos) {
        plain += kBytes[known];
      } else if (c == 'u' || c == 'x') {
        fail(concat("strings must have characters as they are, got ", in_quotes(quoted)));
      } else {
        plain += '\\';
        plain += c;
      }
    }
    return plain;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
