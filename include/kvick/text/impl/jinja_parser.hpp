// SPDX-License-Identifier: MIT
// Tokens of a Jinja template to a tree of statements and expressions.
//
// Known are for (with else, if, break and continue), if, set, macro, filter and generation; and all
// operators, calls, filters and tests of expressions. What is not known is refused when the
// template is read. The tree has a bounded height, so that walking it needs a bounded stack.
//
// Layer     text.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/text/impl/jinja_lexer.hpp"
#include "kvick/text/impl/jinja_value.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

struct Expression {
  enum class Kind {
    kText,     // text
    kInteger,  // integer
    kFloat,    // real
    kTrue,
    kFalse,
    kNone,
    kName,       // text
    kList,       // operands
    kDict,       // operands: key, value, key, value ...
    kAttribute,  // operands[0] . text
    kItem,       // operands[0] [ operands[1] ]
    kSlice,      // operands[0] [ operands[1] : operands[2] : operands[3] ]; may be null
    kCall,       // operands[0] ( operands[1] ... , named )
    kFilter,     // operands[0] | text ( operands[1] ... , named )
    kTest,       // operands[0] is text ( operands[1] ... )
    kNot,
    kNegative,
    kAnd,
    kOr,
    kBinary,  // text is the operator
    kChoice,  // operands[0] if operands[1] else operands[2], which may be null
  };
  Kind kind;
  std::string text = {};
  std::int64_t integer = 0;
  double real = 0;
  std::vector<std::unique_ptr<Expression>> operands = {};
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named = {};
  int height = 0;
};
using ExpressionPtr = std::unique_ptr<Expression>;

using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,      // text
    kOutput,    // value
    kIf,        // value, body, otherwise
    kFor,       // names in value if condition: body, otherwise
    kSet,       // names = value
    kSetField,  // names[0] . names[1] = value
    kSetBlock,  // names[0] = body
    kFilter,    // names[0] = body, value prints it filtered
    kMacro,     // text ( names = defaults ): body
    kBreak,
    kContinue,
  };
  Kind kind;
  std::string text = {};
  std::vector<std::string> names = {};
  ExpressionPtr value = {};
  ExpressionPtr condition = {};
  std::vector<ExpressionPtr> defaults = {};  // as many as names, or null
  Block body = {};
  Block otherwise = {};
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block run() {
    Block program = block({});
    if (kind() != Token::Kind::kEnd) fail("a template must have a beginning for each end");
    return program;
  }

 private:
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

  // ---- Statements ----

  bool is_at_tag(std::initializer_list<std::string_view> tags) const {
    return kind() == Token::Kind::kBeginStatement &&
           std::any_of(tags.begin(), tags.end(), [&](auto tag) { return sees(tag, 1); });
  }
  void end_tag(std::string_view tag) {
    if (!is_at_tag({tag})) fail(concat("expected {% ", tag, " %}"));
    at_ += 2;
    expect(Token::Kind::kEndStatement);
  }

  /// Statements up to one of the tags, which is not taken.
  Block block(std::initializer_list<std::string_view> tags) {
    const Level level(depth_);
    Block statements;
    while (kind() != Token::Kind::kEnd && !is_at_tag(tags)) {
      if (kind() == Token::Kind::kText) {
        statements.push_back({Statement::Kind::kText, std::string(front().text)});
        ++at_;
      } else if (kind() == Token::Kind::kBeginOutput) {
        ++at_;
        statements.push_back({Statement::Kind::kOutput});
        statements.back().value = expression();
        expect(Token::Kind::kEndOutput);
      } else {
        expect(Token::Kind::kBeginStatement);
        statement(statements);
      }
    }
    return statements;
  }

  void statement(Block& statements) {
    const std::string tag = name();
    if (tag == "if") return statements.push_back(if_statement());
    if (tag == "for") return statements.push_back(for_statement());
    if (tag == "set") return statements.push_back(set_statement());
    if (tag == "macro") return statements.push_back(macro_statement());
    if (tag == "filter") return statements.push_back(filter_statement());
    if (tag == "break" || tag == "continue") {
      if (num_loops_ == 0) fail(concat(tag, " must stand in a loop"));
      statements.push_back({tag == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue});
      return expect(Token::Kind::kEndStatement);
    }
    if (tag == "generation") {  // marks what a model writes, for its training
      expect(Token::Kind::kEndStatement);
      for (Statement& inner : block({"endgeneration"})) statements.push_back(std::move(inner));
      return end_tag("endgeneration");
    }
    fail(concat(
        "statements must be if, for, set, macro, filter, break, continue or generation, got ",
        in_quotes(tag)));
  }

  Statement if_statement() {
    const Level level(depth_);
    Statement statement{Statement::Kind::kIf};
    statement.value = expression();
    expect(Token::Kind::kEndStatement);
    statement.body = block({"elif", "else", "endif"});
    if (is_at_tag({"elif"})) {
      at_ += 2;
      statement.otherwise.push_back(if_statement());  // which takes the end
      return statement;
    }
    if (is_at_tag({"else"})) {
      end_tag("else");
      statement.otherwise = block({"endif"});
    }
    end_tag("endif");
    return statement;
  }

  Statement for_statement() {
    Statement statement{Statement::Kind::kFor};
    do statement.names.push_back(name());
    while (take(","));
    expect("in");
    statement.value = or_expression();  // "if" belongs to the loop
    if (take("if")) statement.condition = expression();
    if (sees("recursive")) fail("loops must not be recursive");
    expect(Token::Kind::kEndStatement);
    ++num_loops_;
    statement.body = block({"else", "endfor"});
    --num_loops_;
    if (is_at_tag({"else"})) {
      end_tag("else");
      statement.otherwise = block({"endfor"});
    }
    end_tag("endfor");
    return statement;
  }

  Statement set_statement() {
    Statement statement{Statement::Kind::kSet};
    statement.names.push_back(name());
    if (take(".")) {
      statement.kind = Statement::Kind::kSetField;
      statement.names.push_back(name());
    }
    while (statement.kind == Statement::Kind::kSet && take(",")) statement.names.push_back(name());
    if (take("=")) {
      statement.value = expression_or_tuple();
      expect(Token::Kind::kEndStatement);
      return statement;
    }
    if (statement.names.size() != 1) fail("set must have a value");
    statement.kind = Statement::Kind::kSetBlock;
    expect(Token::Kind::kEndStatement);
    statement.body = block({"endset"});
    end_tag("endset");
    return statement;
  }

  Statement filter_statement() {
    Statement statement{Statement::Kind::kFilter};
    statement.names.emplace_back();  // a variable that nobody can name
    statement.value = make(Kind::kName);
    do {
      statement.value = make(Kind::kFilter, std::move(statement.value));
      statement.value->text = name();
      if (take("(")) arguments(*statement.value);
    } while (take("|"));
    expect(Token::Kind::kEndStatement);
    statement.body = block({"endfilter"});
    end_tag("endfilter");
    return statement;
  }

  Statement macro_statement() {
    Statement statement{Statement::Kind::kMacro, name()};
    expect("(");
    while (!take(")")) {
      statement.names.push_back(name());
      statement.defaults.push_back(take("=") ? expression() : nullptr);
      if (!sees(")")) expect(",");
    }
    expect(Token::Kind::kEndStatement);
    const int num_loops = std::exchange(num_loops_, 0);
    statement.body = block({"endmacro"});
    num_loops_ = num_loops;
    end_tag("endmacro");
    return statement;
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

  ExpressionPtr unary() {
    const Level level(depth_);
    if (take("-")) return make(Kind::kNegative, unary());
    if (take("+")) return unary();
    return filtered(postfixed(primary()));
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
  int num_loops_ = 0;
};

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
