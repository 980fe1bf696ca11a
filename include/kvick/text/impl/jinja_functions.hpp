// SPDX-License-Identifier: MIT
// What the expressions of Jinja may call: filters, tests, methods of values, and functions.
//
// Those that chat templates use, with the meaning that they have in Jinja and Python; letters have
// case only within ASCII. Anything else is refused by name when it is called.
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
#include <vector>

#include "kvick/text/impl/jinja_value.hpp"
#include "kvick/text/unicode_categories.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

struct Arguments {
  std::vector<Value> values = {};
  std::vector<std::pair<std::string_view, Value>> named = {};

  /// The argument with that place or name, or nullptr.
  const Value* find(std::size_t place, std::string_view name) const {
    if (place < values.size()) return &values[place];
    for (const auto& [known, value] : named) {
      if (known == name) return &value;
    }
    return nullptr;
  }
  const Value& get(std::size_t place, std::string_view name) const {
    const Value* const value = find(place, name);
    if (value == nullptr) fail(concat("a call must have an argument ", name, ", got none"));
    return *value;
  }
};

// ---- Texts ----

constexpr std::string_view kSpaces = " \t\n\v\f\r";

inline const Text& text_of(const Value& value) {
  if (!value.is_text()) fail(concat("expected text, got a ", type_name(value)));
  return value.text();
}

inline Text strip(const Text& text, std::string_view characters, bool at_begin, bool at_end) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  const auto is_stripped = [&](char c) { return characters.find(c) != std::string_view::npos; };
  while (at_begin && begin < end && is_stripped(text.bytes[begin])) ++begin;
  while (at_end && begin < end && is_stripped(text.bytes[end - 1])) --end;
  return text.slice(begin, end - begin);
}

inline Value split(Arena& arena, const Text& text, const Arguments& arguments) {
  const Value* const separator = arguments.find(0, "sep");
  const Value* const limit = arguments.find(1, "maxsplit");
  const std::int64_t max_splits = limit != nullptr && limit->is_integer() ? limit->integer() : -1;
  const bool by_spaces = separator == nullptr || separator->is<None>();
  const std::string by = by_spaces ? " " : text_of(*separator).bytes;
  if (by.empty()) fail("split must have a separator, got an empty one");
  List parts;
  std::size_t begin = 0;
  for (;;) {
    if (by_spaces) begin = std::min(text.bytes.find_first_not_of(kSpaces, begin), text.size());
    if (by_spaces && begin == text.size()) break;
    const bool is_last = max_splits >= 0 && static_cast<std::int64_t>(parts.size()) >= max_splits;
    std::size_t end = std::string::npos;
    if (!is_last)
      end = by_spaces ? text.bytes.find_first_of(kSpaces, begin) : text.bytes.find(by, begin);
    parts.push_back(arena.make(text.slice(begin, end == std::string::npos ? end : end - begin)));
    if (end == std::string::npos) break;
    begin = end + by.size();
  }
  return arena.make(std::move(parts));
}

inline Text replace(Arena& arena, const Text& text, const Text& from, const Text& to) {
  if (from.size() == 0) fail("replace must have a text to look for, got an empty one");
  Text result;
  for (std::size_t begin = 0;;) {
    const std::size_t at = text.bytes.find(from.bytes, begin);
    result += text.slice(begin, at == std::string::npos ? at : at - begin);
    if (at == std::string::npos) return result;
    arena.count_steps(1 + to.size());
    result += to;
    begin = at + from.size();
  }
}

enum class Case { kUpper, kLower, kTitle, kCapital };

inline Text with_case(Text text, Case wanted) {
  bool is_inside = false;  // a word
  for (char& c : text.bytes) {
    const bool is_lower = c >= 'a' && c <= 'z';
    const bool is_upper = c >= 'A' && c <= 'Z';
    const bool makes_upper = wanted == Case::kUpper || (wanted != Case::kLower && !is_inside);
    if (is_lower && makes_upper) c = static_cast<char>(c - 'a' + 'A');
    if (is_upper && !makes_upper) c = static_cast<char>(c - 'A' + 'a');
    is_inside = wanted == Case::kCapital || is_lower || is_upper;
  }
  return text;
}

/// Where each character begins, and the end.
inline std::vector<std::size_t> character_offsets(const Text& text) {
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < text.size();) {
    offsets.push_back(at);
    at += front_character(std::string_view(text.bytes).substr(at)).num_bytes;
  }
  offsets.push_back(text.size());
  return offsets;
}

inline Text join(Arena& arena, const List& list, const Text& separator) {
  Text text;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) text += separator;
    text += to_text(list[i]);
    arena.count_steps(1 + text.size() / 64);
  }
  return text;
}

/// Whether `text` begins or ends with `part`, or with one of several.
inline bool has_affix(const Text& text, const Value& part, bool at_begin) {
  const auto has = [&](const Value& one) {
    const std::string& affix = text_of(one).bytes;
    return at_begin ? text.bytes.starts_with(affix) : text.bytes.ends_with(affix);
  };
  if (!part.is<List*>()) return has(part);
  return std::any_of(part.as<List*>()->begin(), part.as<List*>()->end(), has);
}

/// Each {} takes an argument.
inline Text format(const Text& text, const Arguments& arguments) {
  Text result;
  std::size_t num_used = 0;
  for (std::size_t begin = 0;;) {
    const std::size_t at = text.bytes.find_first_of("{}", begin);
    result += text.slice(begin, at == std::string::npos ? at : at - begin);
    if (at == std::string::npos) return result;
    if (text.bytes.compare(at, 2, "{}") != 0 || num_used >= arguments.values.size()) {
      fail("format must have a text with {} for each argument");
    }
    result += to_text(arguments.values[num_used++]);
    begin = at + 2;
  }
}

inline Value call_text_method(Arena& arena, const Text& text, std::string_view name,
                              const Arguments& arguments) {
  const auto stripped = [&](bool at_begin, bool at_end) {
    const Value* const characters = arguments.find(0, "chars");
    const bool is_given = characters != nullptr && !characters->is<None>();
    return arena.make(strip(text, is_given ? std::string_view(text_of(*characters).bytes) : kSpaces,
                            at_begin, at_end));
  };
  if (name == "strip") return stripped(true, true);
  if (name == "lstrip") return stripped(true, false);
  if (name == "rstrip") return stripped(false, true);
  if (name == "split") return split(arena, text, arguments);
  if (name == "startswith") return {has_affix(text, arguments.get(0, "prefix"), true)};
  if (name == "endswith") return {has_affix(text, arguments.get(0, "suffix"), false)};
  if (name == "replace") {
    return arena.make(
        replace(arena, text, text_of(arguments.get(0, "old")), text_of(arguments.get(1, "new"))));
  }
  if (name == "upper") return arena.make(with_case(text, Case::kUpper));
  if (name == "lower") return arena.make(with_case(text, Case::kLower));
  if (name == "title") return arena.make(with_case(text, Case::kTitle));
  if (name == "capitalize") return arena.make(with_case(text, Case::kCapital));
  if (name == "join") {
    const Value& list = arguments.get(0, "iterable");
    if (!list.is<List*>()) fail(concat("join must have a list, got a ", type_name(list)));
    return arena.make(join(arena, *list.as<List*>(), text));
  }
  if (name == "format") return arena.make(format(text, arguments));
  if (name == "find") {
    const std::size_t at = text.bytes.find(text_of(arguments.get(0, "sub")).bytes);
    if (at == std::string::npos) return {std::int64_t{-1}};
    const auto before = character_offsets(text.slice(0, at)).size() - 1;
    return {static_cast<std::int64_t>(before)};
  }
  fail(concat("texts have no method ", in_quotes(name)));
}

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
    arena.count_item();
    list.push_back(arguments.get(0, "item"));
    return {None()};
  }
  if (name == "pop" && arguments.values.empty() && !list.empty()) {
    const Value last = list.back();
    list.pop_back();
    return last;
  }
  fail(concat("lists have no method ", in_quotes(name)));
}

inline Value call_method(Arena& arena, const Value& value, std::string_view name,
                         const Arguments& arguments) {
  if (value.is_text()) return call_text_method(arena, value.text(), name, arguments);
  if (value.is<List*>()) return call_list_method(arena, *value.as<List*>(), name, arguments);
  if (value.is<Dict*>()) return call_dict_method(arena, *value.as<Dict*>(), name, arguments);
  fail(concat("a ", type_name(value), " has no method ", in_quotes(name)));
}

/// What a loop over `value` visits.
inline List elements(Arena& arena, const Value& value) {
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

inline bool contains(const Value& container, const Value& member) {
  if (container.is_text()) {
    return container.text().bytes.find(text_of(member).bytes) != std::string::npos;
  }
  if (container.is<Dict*>()) return container.as<Dict*>()->find(key_of(member)) != nullptr;
  if (container.is<Undefined>()) return false;
  if (!container.is<List*>()) fail(concat("a ", type_name(container), " contains nothing"));
  const List& list = *container.as<List*>();
  return std::any_of(list.begin(), list.end(),
                     [&](const Value& one) { return are_equal(one, member); });
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

inline bool apply_test(std::string_view name, const Value& value, const Arguments& arguments) {
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
  if (name == "equalto" || name == "eq") return are_equal(value, arguments.get(0, "other"));
  if (name == "ne") return !are_equal(value, arguments.get(0, "other"));
  if (name == "in") return contains(arguments.get(0, "seq"), value);
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
    const bool passes = arguments.values.size() > first
                            ? apply_test(text_of(arguments.values[first]).bytes, tested, rest)
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
  append_json(value,
              is_indented ? static_cast<int>(std::min<std::int64_t>(indent->integer(), 16)) : -1,
              json);
  return arena.make(std::move(json));
}

inline Value apply_filter(Arena& arena, std::string_view name, const Value& value,
                          const Arguments& arguments) {
  if (name == "trim") return arena.make(strip(to_text(value), kSpaces, true, true));
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
  if (name == "raise_exception") {
    throw Error(ErrorCode::kArgument, "ChatTemplate",
                concat("the template refuses these messages: ",
                       in_quotes(to_text(arguments.get(0, "message")).bytes)));
  }
  if (name == "strftime_now") return formatted_date(arena, text_of(arguments.get(0, "format")));
  Dict dict;
  if (!arguments.values.empty()) {
    if (!arguments.values[0].is<Dict*>()) fail("expected a dictionary");
    dict = *arguments.values[0].as<Dict*>();
  }
  for (const auto& [key, value] : arguments.named) dict.set(key, value);
  return arena.make(std::move(dict));
}

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
