// SPDX-License-Identifier: MIT
// Runs the tree of a Jinja template.
//
// Variables that a loop or a macro sets end with it, as in Jinja; a namespace outlives both. Every
// step is counted, and so is how deeply calls are nested: a program ends, whatever it says.
//
// Layer     text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/text/impl/jinja_functions.hpp"
#include "kvick/text/impl/jinja_operators.hpp"
#include "kvick/text/impl/jinja_parser.hpp"
#include "kvick/text/impl/jinja_value.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

class Interpreter {
 public:
  explicit Interpreter(Arena& arena) : arena_(arena) {}

  /// A variable of the whole template.
  void define(std::string_view name, Value value) { scopes_[0].push_back({name, value}); }

  Text run(const Block& program) {
    run_block(program);
    return std::move(output_);
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  struct Variable {
    std::string_view name;
    Value value;
  };
  using Scope = std::vector<Variable>;
  using Kind = Expression::Kind;

  /// Counts a step, and how deeply it is nested.
  class Step {
   public:
    explicit Step(Interpreter& interpreter) : interpreter_(interpreter) {
      constexpr int kMaxDepth = 600;
      interpreter_.arena_.count_steps(1);
      if (interpreter_.depth_ >= kMaxDepth) fail("calls must not be nested so deeply");
      ++interpreter_.depth_;
    }
    ~Step() { --interpreter_.depth_; }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    Interpreter& interpreter_;
  };

  // ---- Variables ----

  static Value* find(Scope& scope, std::string_view name) {
    for (Variable& variable : scope) {
      if (variable.name == name) return &variable.value;
    }
    return nullptr;
  }

  /// Innermost scope first; a macro sees its own and the template's.
  Value look_up(std::string_view name) {
    for (std::size_t i = scopes_.size(); i-- > first_scope_;) {
      if (const Value* const value = find(scopes_[i], name)) return *value;
    }
    if (const Value* const value = find(scopes_[0], name)) return *value;
    for (const std::string_view known : kFunctions) {
      if (known == name) return {Function{known}};
    }
    return {};
  }

  void set(std::string_view name, Value value) {
    if (Value* const known = find(scopes_.back(), name)) {
      *known = value;
    } else {
      arena_.count_item();
      scopes_.back().push_back({name, value});
    }
  }

  /// One name takes the value; several take its elements.
  void assign(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return set(names[0], value);
    const List list = elements(arena_, value);
    if (list.size() != names.size()) {
      fail(concat(names.size(), " names must have as many values, got ", list.size()));
    }
    for (std::size_t i = 0; i < names.size(); ++i) set(names[i], list[i]);
  }

  // ---- Statements ----

  Flow run_block(const Block& block) {
    for (const Statement& statement : block) {
      const Flow flow = run_statement(statement);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow run_statement(const Statement& statement) {
    const Step step(*this);
    switch (statement.kind) {
      case Statement::Kind::kText: print(Text(statement.text, false)); break;
      case Statement::Kind::kOutput: print(to_text(evaluate(*statement.value))); break;
      case Statement::Kind::kIf:
        return run_block(is_true(evaluate(*statement.value)) ? statement.body
                                                             : statement.otherwise);
      case Statement::Kind::kFor: return run_loop(statement);
      case Statement::Kind::kSet: assign(statement.names, evaluate(*statement.value)); break;
      case Statement::Kind::kSetField: set_field(statement); break;
      case Statement::Kind::kSetBlock:
        set(statement.names[0], arena_.make(printed_by(statement.body)));
        break;
      case Statement::Kind::kFilter:
        set(statement.names[0], arena_.make(printed_by(statement.body)));
        print(to_text(evaluate(*statement.value)));
        break;
      case Statement::Kind::kMacro: set(statement.text, {&statement}); break;
      case Statement::Kind::kBreak: return Flow::kBreak;
      case Statement::Kind::kContinue: return Flow::kContinue;
    }
    return Flow::kNext;
  }

  void print(const Text& text) {
    arena_.count_steps(text.size() / 16);
    output_ += text;
  }

  void set_field(const Statement& statement) {
    const Value target = look_up(statement.names[0]);
    if (!target.is<Dict*>()) {
      fail(
          concat(in_quotes(statement.names[0]), " must be a namespace, got a ", type_name(target)));
    }
    arena_.count_item();
    target.as<Dict*>()->set(statement.names[1], evaluate(*statement.value));
  }

  Text printed_by(const Block& block) {
    Text outer = std::exchange(output_, {});
    if (run_block(block) != Flow::kNext)
      fail("a loop must not be left from within a block of text");
    return std::exchange(output_, std::move(outer));
  }

  Flow run_loop(const Statement& statement) {
    List list = elements(arena_, evaluate(*statement.value));
    scopes_.emplace_back();
    if (statement.condition) {
      List kept;
      for (const Value& one : list) {
        scopes_.back().clear();
        assign(statement.names, one);
        if (is_true(evaluate(*statement.condition))) kept.push_back(one);
      }
      list = std::move(kept);
    }
    Flow flow = Flow::kNext;
    for (std::size_t i = 0; i < list.size() && flow != Flow::kBreak; ++i) {
      arena_.count_steps(1);
      scopes_.back().clear();
      set("loop", loop_value(list, i));
      assign(statement.names, list[i]);
      flow = run_block(statement.body);
    }
    scopes_.pop_back();
    return list.empty() ? run_block(statement.otherwise) : Flow::kNext;
  }

  Value loop_value(const List& list, std::size_t i) {
    const auto number = [](std::size_t n) { return Value{static_cast<std::int64_t>(n)}; };
    const std::size_t size = list.size();
    Dict loop;
    loop.items = {{"index0", number(i)},
                  {"index", number(i + 1)},
                  {"first", Value{i == 0}},
                  {"last", Value{i + 1 == size}},
                  {"length", number(size)},
                  {"revindex", number(size - i)},
                  {"revindex0", number(size - i - 1)},
                  {"previtem", i > 0 ? list[i - 1] : Value()},
                  {"nextitem", i + 1 < size ? list[i + 1] : Value()}};
    return arena_.make(std::move(loop));
  }

  Value call_macro(const Statement& macro, const Arguments& arguments) {
    if (arguments.values.size() > macro.names.size()) fail("a macro got too many arguments");
    for (const auto& [name, value] : arguments.named) {
      if (std::find(macro.names.begin(), macro.names.end(), name) == macro.names.end()) {
        fail(concat("a macro has no argument ", in_quotes(name)));
      }
    }
    const std::size_t outer_first = std::exchange(first_scope_, scopes_.size());
    scopes_.emplace_back();
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
      const Value* const given = arguments.find(i, macro.names[i]);
      set(macro.names[i], given != nullptr    ? *given
                          : macro.defaults[i] ? evaluate(*macro.defaults[i])
                                              : Value());
    }
    const Value result = arena_.make(printed_by(macro.body));
    scopes_.pop_back();
    first_scope_ = outer_first;
    return result;
  }

  // ---- Expressions ----

  Value evaluate(const Expression& expression) {
    const Step step(*this);
    const Value value = compute(expression);
    arena_.count_reading(value);
    return value;
  }

  Value compute(const Expression& expression) {
    const auto operand = [&](std::size_t i) { return evaluate(*expression.operands[i]); };
    switch (expression.kind) {
      case Kind::kText: return arena_.text(expression.text);
      case Kind::kInteger: return {expression.integer};
      case Kind::kFloat: return {expression.real};
      case Kind::kTrue: return {true};
      case Kind::kFalse: return {false};
      case Kind::kNone: return {None()};
      case Kind::kName: return look_up(expression.text);
      case Kind::kList: return list_of(expression);
      case Kind::kDict: return dict_of(expression);
      case Kind::kAttribute: return attribute(operand(0), expression.text);
      case Kind::kItem: return item(operand(0), operand(1));
      case Kind::kSlice: return slice(expression);
      case Kind::kCall: return call(expression);
      case Kind::kFilter:
        return apply_filter(arena_, expression.text, operand(0), arguments(expression));
      case Kind::kTest:
        return {apply_test(arena_, expression.text, operand(0), arguments(expression))};
      case Kind::kNot: return {!is_true(operand(0))};
      case Kind::kNegative: return negative(operand(0));
      case Kind::kAnd: {
        const Value left = operand(0);
        return is_true(left) ? operand(1) : left;
      }
      case Kind::kOr: {
        const Value left = operand(0);
        return is_true(left) ? left : operand(1);
      }
      case Kind::kBinary: return binary(arena_, expression.text, operand(0), operand(1));
      case Kind::kChoice:
        if (is_true(operand(1))) return operand(0);
        return expression.operands[2] ? operand(2) : Value();
    }
    return {};
  }

  Value list_of(const Expression& expression) {
    List list;
    for (const ExpressionPtr& one : expression.operands) list.push_back(evaluate(*one));
    return arena_.make(std::move(list));
  }

  Value dict_of(const Expression& expression) {
    Dict dict;
    for (std::size_t i = 0; i < expression.operands.size(); i += 2) {
      const Value key = evaluate(*expression.operands[i]);
      // Keys would come back as the template's own text.
      if (key.is_text() && key.text().is_data.find('\1') != std::string::npos) {
        fail("what messages say must not be a key");
      }
      dict.set(key_of(key), evaluate(*expression.operands[i + 1]));
    }
    return arena_.make(std::move(dict));
  }

  Arguments arguments(const Expression& call) {
    Arguments arguments;
    for (std::size_t i = 1; i < call.operands.size(); ++i) {
      arguments.values.push_back(evaluate(*call.operands[i]));
    }
    for (const auto& [name, value] : call.named) {
      arguments.named.emplace_back(name, evaluate(*value));
    }
    return arguments;
  }

  Value call(const Expression& expression) {
    const Expression& callee = *expression.operands[0];
    Value function;
    if (callee.kind == Kind::kAttribute) {
      const Value owner = evaluate(*callee.operands[0]);
      const bool has_macro =
          owner.is<Dict*>() && attribute(owner, callee.text).is<const Statement*>();
      if (!has_macro) return call_method(arena_, owner, callee.text, arguments(expression));
      function = attribute(owner, callee.text);
    } else {
      function = evaluate(callee);
    }
    if (function.is<const Statement*>()) {
      return call_macro(*function.as<const Statement*>(), arguments(expression));
    }
    if (!function.is<Function>()) {
      fail(concat("there is no function ", in_quotes(callee.text)));
    }
    return call_function(arena_, function.as<Function>().name, arguments(expression));
  }

  /// The index that counts from the end if it is negative; outside of [0, size) if there is none.
  static std::int64_t index_of(std::int64_t index, std::int64_t size) {
    return index < 0 ? index + size : index;
  }

  Value item(const Value& value, const Value& key) {
    if (value.is<Dict*>() || key.is_text()) return attribute(value, key_of(key));
    if (!key.is_integer()) return {};
    if (value.is<Undefined>()) fail("what is not defined has no items");
    if (value.is<List*>()) {
      const List& list = *value.as<List*>();
      const std::int64_t i = index_of(key.integer(), static_cast<std::int64_t>(list.size()));
      return i >= 0 && std::cmp_less(i, list.size()) ? list[static_cast<std::size_t>(i)] : Value();
    }
    if (!value.is_text()) return {};
    const List characters = elements(arena_, value);
    const std::int64_t i = index_of(key.integer(), static_cast<std::int64_t>(characters.size()));
    return i >= 0 && std::cmp_less(i, characters.size()) ? characters[static_cast<std::size_t>(i)]
                                                         : Value();
  }

  Value slice(const Expression& expression) {
    const Value value = evaluate(*expression.operands[0]);
    const bool is_text = value.is_text();
    if (!is_text && !value.is<List*>()) fail(concat("a ", type_name(value), " has no parts"));
    const std::int64_t size = length(value);
    const auto bound = [&](std::size_t i, std::int64_t fallback) {
      if (!expression.operands[i]) return fallback;
      const Value number = evaluate(*expression.operands[i]);
      if (number.is<None>()) return fallback;
      if (!number.is_integer()) fail("the ends of a part must be integers");
      return number.integer();
    };
    const std::int64_t step = bound(3, 1);
    if (step != 1 && step != -1) fail("the step of a part must be 1 or -1");
    const auto clamp = [&](std::int64_t i) {
      const std::int64_t low = step > 0 ? 0 : -1;
      return std::clamp(i < 0 ? std::max(i, -size - 1) + size : i, low, step > 0 ? size : size - 1);
    };
    const std::int64_t begin = expression.operands[1] ? clamp(bound(1, 0))
                               : step > 0             ? 0
                                                      : size - 1;
    const std::int64_t end = expression.operands[2] ? clamp(bound(2, size)) : step > 0 ? size : -1;
    if (is_text && step > 0) {
      const auto offsets = character_offsets(value.text());
      const std::size_t from = offsets[static_cast<std::size_t>(begin)];
      const std::size_t to = offsets[static_cast<std::size_t>(std::max(begin, end))];
      return arena_.make(value.text().slice(from, to - from));
    }
    const List all = elements(arena_, value);
    List part;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      part.push_back(all[static_cast<std::size_t>(i)]);
    }
    return is_text ? arena_.make(join(arena_, part, {})) : arena_.make(std::move(part));
  }

  Arena& arena_;
  std::vector<Scope> scopes_ = std::vector<Scope>(1);
  std::size_t first_scope_ = 0;  // that is seen, besides scope 0
  Text output_;
  int depth_ = 0;
};

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
