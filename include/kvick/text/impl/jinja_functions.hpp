// SPDX-License-Identifier: MIT
// What the expressions of Jinja may call: filters, tests, methods of values, and functions.
//
// Those that chat templates use, with the meaning that they have in Jinja and Python. Anything else
// is refused by name when it is called.
//
// Layer     text.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kvick/core/error.hpp"
#include "kvick/text/impl/jinja_text_methods.hpp"
#include "kvick/text/impl/jinja_value.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

// ---- Lists and dictionaries ----

inline Value value_of_key(Arena& arena, const std::string& key) {
  if (!key.starts_with('\xFF')) return arena.text(key);
  std::int64_t number = 0;
  std::from_chars(key.data() + 1, key.data() + key.size(), number);
  return {number};
}

inline Value dict_items(Arena& arena, const Dict& dict) {
  List items;
  for (const auto& [key, value] : dict.items) {
    items.push_back(arena.make(List{value_of_key(arena, key), value}));
  }
  return arena.make(std::move(items));
}

inline Value call_dict_method(Arena& arena, Dict& dict, std::string_view name,
                              const Arguments& arguments) {
  arguments.at_most(name == "get" ? 2 : 0);
  if (name == "items") return dict_items(arena, dict);
  if (name == "keys" || name == "values") {
    List list;
    for (const auto& [key, value] : dict.items) {
      list.push_back(name == "keys" ? value_of_key(arena, key) : value);
    }
    return arena.make(std::move(list));
  }
  if (name == "get") {
    const Value* const found = dict.find(key_of(arguments.get(0, "key")));
    const Value* const fallback = arguments.find(1, "default");
    return found != nullptr ? *found : fallback != nullptr ? *fallback : Value{None()};
  }
  fail(concat("dictionaries have no method ", in_quotes(name)));
}

inline Value call_list_method(Arena& arena, List& list, std::string_view name,
                              const Arguments& arguments) {
  if (name == "append") {
    arguments.at_most(1);
    arena.count_item();
    list.push_back(arguments.get(0, "item"));
    return {None()};
  }
  if (name == "pop" && !list.empty()) {
    arguments.at_most(0);
    const Value last = list.back();
    list.pop_back();
    return last;
  }
  fail(concat("lists have no method ", in_quotes(name)));
}

inline Value call_method(Arena& arena, const Value& value, std::string_view name,
                         const Arguments& arguments) {
  arena.count_reading(value);
  if (value.is_text()) return call_text_method(arena, value.text(), name, arguments);
  if (value.is<List*>()) return call_list_method(arena, *value.as<List*>(), name, arguments);
  if (value.is<Dict*>()) return call_dict_method(arena, *value.as<Dict*>(), name, arguments);
  fail(concat("a ", type_name(value), " has no method ", in_quotes(name)));
}

/// What a loop over `value` visits.
inline List elements(Arena& arena, const Value& value) {
  arena.count_reading(value);
  if (value.is<List*>()) return *value.as<List*>();
  List list;
  if (value.is<Dict*>()) {
    for (const auto& item : value.as<Dict*>()->items) {
      list.push_back(value_of_key(arena, item.first));
    }
  } else if (value.is_text()) {
    const auto offsets = character_offsets(value.text());
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      arena.count_item();
      list.push_back(arena.make(value.text().slice(offsets[i], offsets[i + 1] - offsets[i])));
    }
  } else if (!value.is<Undefined>()) {
    fail(concat("a ", type_name(value), " has no elements"));
  }
  return list;
}

inline std::int64_t length(const Value& value) {
  if (value.is_text()) return static_cast<std::int64_t>(character_offsets(value.text()).size()) - 1;
  if (value.is<List*>()) return static_cast<std::int64_t>(value.as<List*>()->size());
  if (value.is<Dict*>()) return static_cast<std::int64_t>(value.as<Dict*>()->items.size());
  if (value.is<Undefined>()) return 0;
  fail(concat("a ", type_name(value), " has no length"));
}

inline Value attribute(const Value& value, std::string_view name) {
  if (value.is<Dict*>()) {
    const Value* const found = value.as<Dict*>()->find(name);
    return found != nullptr ? *found : Value();
  }
  if (value.is<Undefined>()) fail(concat("what is not defined has no ", in_quotes(name)));
  return {};
}

inline bool contains(Arena& arena, const Value& container, const Value& member) {
  if (container.is_text()) {
    arena.count_search(container.text(), text_of(member));
    return container.text().bytes.find(text_of(member).bytes) != std::string::npos;
  }
  if (container.is<Dict*>()) return container.as<Dict*>()->find(key_of(member)) != nullptr;
  if (container.is<Undefined>()) return false;
  if (!container.is<List*>()) fail(concat("a ", type_name(container), " contains nothing"));
  const List& list = *container.as<List*>();
  return std::any_of(list.begin(), list.end(),
                     [&](const Value& one) { return are_equal(arena, one, member); });
}

/// -1, 0 or 1.
inline int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  if (a.is_text() && b.is_text()) {
    const int order = a.text().bytes.compare(b.text().bytes);
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  fail(concat("a ", type_name(a), " and a ", type_name(b), " have no order"));
}

// ---- Tests ----

inline bool apply_test(Arena& arena, std::string_view name, const Value& value,
                       const Arguments& arguments) {
  arguments.at_most(1);
  if (name == "defined") return !value.is<Undefined>();
  if (name == "undefined") return value.is<Undefined>();
  if (name == "none") return value.is<None>();
  if (name == "string") return value.is_text();
  if (name == "mapping") return value.is<Dict*>();
  if (name == "iterable" || name == "sequence") {
    return value.is_text() || value.is<List*>() || value.is<Dict*>() ||
           (name == "iterable" && value.is<Undefined>());
  }
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is<std::int64_t>();
  if (name == "float") return value.is<double>();
  if (name == "boolean") return value.is<bool>();
  if (name == "true") return value.is<bool>() && value.as<bool>();
  if (name == "false") return value.is<bool>() && !value.as<bool>();
  if (name == "callable") return value.is<const Statement*>() || value.is<Function>();
  if (name == "odd") return value.is_integer() && value.integer() % 2 != 0;
  if (name == "even") return value.is_integer() && value.integer() % 2 == 0;
  if (name == "equalto" || name == "eq") return are_equal(arena, value, arguments.get(0, "other"));
  if (name == "ne") return !are_equal(arena, value, arguments.get(0, "other"));
  if (name == "in") return contains(arena, arguments.get(0, "seq"), value);
  if (name == "divisibleby") {
    const Value& number = arguments.get(0, "num");
    return value.is_integer() && number.is_integer() && number.integer() > 0 &&
           value.integer() % number.integer() == 0;
  }
  fail(concat("there is no test ", in_quotes(name)));
}

// ---- Filters ----

/// selectattr(name, test ...) and its opposite; select(test ...) likewise.
inline Value select(Arena& arena, std::string_view name, const Value& value,
                    const Arguments& arguments) {
  const bool is_attribute = name.ends_with("attr");
  const bool keeps = name.starts_with("select");
  const std::size_t first = is_attribute ? 1 : 0;
  Arguments rest;
  for (std::size_t i = first + 1; i < arguments.values.size(); ++i) {
    rest.values.push_back(arguments.values[i]);
  }
  List kept;
  if (!is_true(value)) return arena.make(std::move(kept));
  for (const Value& one : elements(arena, value)) {
    const Value tested =
        is_attribute ? attribute(one, text_of(arguments.get(0, "attribute")).bytes) : one;
    const bool passes =
        arguments.values.size() > first
            ? apply_test(arena, text_of(arguments.values[first]).bytes, tested, rest)
            : is_true(tested);
    if (passes == keeps) kept.push_back(one);
  }
  return arena.make(std::move(kept));
}

inline Value to_integer(const Value& value) {
  if (value.is_integer()) return {value.integer()};
  if (value.is<double>() && std::abs(value.as<double>()) < 9e15) {
    return {static_cast<std::int64_t>(value.as<double>())};
  }
  std::int64_t number = 0;
  if (value.is_text()) {
    const std::string& text = value.text().bytes;
    const auto end = text.data() + text.size();
    if (std::from_chars(text.data(), end, number).ptr != end) number = 0;
  }
  return {number};
}

inline Value to_json(Arena& arena, const Value& value, const Arguments& arguments) {
  for (const auto& [name, ignored] : arguments.named) {
    if (name != "indent" && name != "ensure_ascii") {
      fail(concat("tojson must have no argument ", in_quotes(name)));
    }
  }
  const Value* const indent = arguments.find(0, "indent");
  const bool is_indented = indent != nullptr && indent->is_integer() && indent->integer() >= 0;
  Text json;
  append_json(arena, value,
              is_indented ? static_cast<int>(std::min<std::int64_t>(indent->integer(), 16)) : -1,
              json);
  return arena.make(std::move(json));
}

/// How many arguments a filter may have.
inline std::size_t most_arguments(std::string_view filter) {
  constexpr std::pair<std::string_view, std::size_t> kKnown[] = {
      {"trim", 1}, {"default", 2},    {"d", 2},          {"tojson", 2}, {"replace", 2}, {"join", 1},
      {"map", 1},  {"selectattr", 3}, {"rejectattr", 3}, {"select", 2}, {"reject", 2},
  };
  for (const auto& [name, count] : kKnown) {
    if (name == filter) return count;
  }
  return 0;
}

inline Value apply_filter(Arena& arena, std::string_view name, const Value& value,
                          const Arguments& arguments) {
  arena.count_reading(value);
  arguments.at_most(most_arguments(name));
  if (name == "trim") return call_text_method(arena, to_text(value), "strip", arguments);
  if (name == "length" || name == "count") return {length(value)};
  if (name == "string" || name == "safe") return arena.make(to_text(value));
  if (name == "default" || name == "d") {
    const Value* const is_for_false = arguments.find(1, "boolean");
    const bool counts = value.is<Undefined>() ||
                        (is_for_false != nullptr && is_true(*is_for_false) && !is_true(value));
    if (!counts) return value;
    const Value* const fallback = arguments.find(0, "default_value");
    return fallback != nullptr ? *fallback : arena.text("");
  }
  if (name == "tojson") return to_json(arena, value, arguments);
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize" ||
      name == "replace") {
    return call_text_method(arena, to_text(value), name, arguments);
  }
  if (name == "join") {
    const Value* const separator = arguments.find(0, "d");
    return arena.make(
        join(arena, elements(arena, value), separator != nullptr ? to_text(*separator) : Text()));
  }
  if (name == "list") return arena.make(elements(arena, value));
  if (name == "first" || name == "last") {
    const List list = elements(arena, value);
    return list.empty() ? Value() : name == "first" ? list.front() : list.back();
  }
  if (name == "reverse") {
    List list = elements(arena, value);
    std::reverse(list.begin(), list.end());
    return arena.make(std::move(list));
  }
  if (name == "items" || name == "dictsort") {
    if (value.is<Undefined>()) return arena.make(List());
    if (!value.is<Dict*>()) fail(concat("expected a dictionary, got a ", type_name(value)));
    Dict dict = *value.as<Dict*>();
    if (name == "dictsort") {
      std::stable_sort(dict.items.begin(), dict.items.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    return dict_items(arena, dict);
  }
  if (name == "selectattr" || name == "rejectattr" || name == "select" || name == "reject") {
    return select(arena, name, value, arguments);
  }
  if (name == "map") {
    List mapped;
    const Value* const key = arguments.find(1, "attribute");
    for (const Value& one : elements(arena, value)) {
      mapped.push_back(
          key != nullptr && arguments.values.empty()
              ? attribute(one, text_of(*key).bytes)
              : apply_filter(arena, text_of(arguments.get(0, "filter")).bytes, one, {}));
    }
    return arena.make(std::move(mapped));
  }
  if (name == "int") return to_integer(value);
  if (name == "abs" && value.is<std::int64_t>()) return {std::abs(value.integer())};
  fail(concat("there is no filter ", in_quotes(name)));
}

// ---- Functions ----

constexpr std::string_view kFunctions[] = {"namespace", "dict", "range", "raise_exception",
                                           "strftime_now"};

/// The date is the one that Llama's templates use where none is given.
inline Value formatted_date(Arena& arena, const Text& format) {
  std::string date;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format.bytes[i] != '%' || i + 1 == format.size()) {
      date += format.bytes[i];
      continue;
    }
    switch (format.bytes[++i]) {
      case 'Y': date += "2024"; break;
      case 'm': date += "07"; break;
      case 'd': date += "26"; break;
      case 'b': date += "Jul"; break;
      case 'B': date += "July"; break;
      case 'A': date += "Friday"; break;
      case 'H':
      case 'M':
      case 'S': date += "00"; break;
      default: fail(concat("dates have no part %", format.bytes[i]));
    }
  }
  return arena.text(date);
}

inline Value range(Arena& arena, const Arguments& arguments) {
  std::int64_t bounds[3] = {0, 0, 1};
  const std::size_t count = arguments.values.size();
  if (count < 1 || count > 3) fail("range must have 1 to 3 arguments");
  for (std::size_t i = 0; i < count; ++i) {
    if (!arguments.values[i].is_integer()) fail("range must have integers");
    bounds[count == 1 ? 1 : i] = arguments.values[i].integer();
  }
  const auto [begin, end, step] = bounds;
  constexpr std::int64_t kLimit = std::int64_t{1} << 32;
  if (step == 0 || std::abs(begin) > kLimit || std::abs(end) > kLimit || std::abs(step) > kLimit) {
    fail("the numbers of range must be of a usual size");
  }
  List numbers;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    arena.count_item();
    numbers.push_back({i});
  }
  return arena.make(std::move(numbers));
}

inline Value call_function(Arena& arena, std::string_view name, const Arguments& arguments) {
  if (name == "range") return range(arena, arguments);
  if (name == "raise_exception" || name == "strftime_now") arguments.at_most(1);
  if (name == "raise_exception") {
    throw Error(ErrorCode::kArgument, "ChatTemplate",
                concat("the template refuses these messages: ",
                       in_quotes(to_text(arguments.get(0, "message")).bytes)));
  }
  if (name == "strftime_now") return formatted_date(arena, text_of(arguments.get(0, "format")));
  Dict dict;
  if (!arguments.values.empty()) {
    if (arguments.values.size() > 1) fail("a dictionary must be made of at most one other");
    if (!arguments.values[0].is<Dict*>()) fail("expected a dictionary");
    dict = *arguments.values[0].as<Dict*>();
  }
  for (const auto& [key, value] : arguments.named) dict.set(key, value);
  return arena.make(std::move(dict));
}

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
