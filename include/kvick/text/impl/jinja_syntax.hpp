// SPDX-License-Identifier: MIT
// The tree of a Jinja template: statements and expressions.
//
// Layer     text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
