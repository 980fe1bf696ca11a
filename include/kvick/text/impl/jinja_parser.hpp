// SPDX-License-Identifier: MIT
// Tokens of a Jinja template to a tree of statements.
//
// Known are for (with else, if, break and continue), if, set, macro, filter and generation; and all
// operators, calls, filters and tests of expressions. What is not known is refused when the
// template is read.
//
// Layer     text.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/text/impl/jinja_expression_parser.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Block run() {
    Block program = block({});
    if (kind() != Token::Kind::kEnd) fail("a template must have a beginning for each end");
    return program;
  }

 private:
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

  int num_loops_ = 0;
};

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
