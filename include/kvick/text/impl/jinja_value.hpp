// SPDX-License-Identifier: MIT
// Values of Jinja programs, and text that remembers where it came from.
//
// Every byte of a text knows whether it stands in the template or came with the data. That outlives
// all that a template does with a message, so marks of the template can be told from text that
// imitates them.
//
// Lists, dictionaries and texts belong to an arena that lives as long as a program runs: values are
// small, and a list may contain itself.
//
// Layer     text.
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {
namespace detail::jinja {

/// What a program does that it must not do, or that is not supported.
[[noreturn]] inline void fail(std::string_view problem) {
  throw Error(ErrorCode::kUnsupported, "JinjaTemplate", problem);
}

struct Text {
  std::string bytes;
  std::string is_data;  // per byte: '\1' if it came with the data

  Text() = default;
  Text(std::string_view text, bool from_data)
      : bytes(text), is_data(text.size(), from_data ? '\1' : '\0') {}

  std::size_t size() const noexcept { return bytes.size(); }
  Text slice(std::size_t begin, std::size_t length = std::string::npos) const {
    Text part;
    part.bytes = bytes.substr(begin, length);
    part.is_data = is_data.substr(begin, length);
    return part;
  }
  Text& operator+=(const Text& other) {
    bytes += other.bytes;
    is_data += other.is_data;
    return *this;
  }
};

struct Statement;
struct Value;

struct Undefined {};
struct None {};
/// A function that the language has from the start.
struct Function {
  std::string_view name;
};

using List = std::vector<Value>;

/// Keys in the order in which they came; see key_of.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;

  inline Value* find(std::string_view key);
  inline void set(std::string_view key, Value value);
};

struct Value {
  std::variant<Undefined, None, bool, std::int64_t, double, const Text*, List*, Dict*,
               const Statement*, Function>
      held;

  template <class T>
  bool is() const noexcept {
    return std::holds_alternative<T>(held);
  }
  template <class T>
  T as() const {
    return std::get<T>(held);
  }
  bool is_text() const noexcept { return is<const Text*>(); }
  const Text& text() const { return *std::get<const Text*>(held); }
  bool is_integer() const noexcept { return is<std::int64_t>() || is<bool>(); }
  bool is_number() const noexcept { return is_integer() || is<double>(); }
  std::int64_t integer() const { return is<bool>() ? as<bool>() : as<std::int64_t>(); }
  double number() const { return is<double>() ? as<double>() : static_cast<double>(integer()); }
};

inline Value* Dict::find(std::string_view key) {
  for (auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

inline void Dict::set(std::string_view key, Value value) {
  if (Value* const known = find(key)) {
    *known = value;
  } else {
    items.emplace_back(key, value);
  }
}

/// How a dictionary knows a key: text as it is, an integer behind a byte that no text begins with.
inline std::string key_of(const Value& key) {
  if (key.is_text()) return key.text().bytes;
  if (key.is_integer()) return '\xFF' + std::to_string(key.integer());
  fail("the keys of dictionaries must be texts or integers");
}

/// Owns what values refer to, and bounds how much a program does and makes.
class Arena {
 public:
  /// What is allowed grows with the size of the data.
  explicit Arena(std::size_t num_data_bytes)
      : num_steps_((std::size_t{1} << 24) + 64 * num_data_bytes),
        num_bytes_((std::size_t{1} << 26) + 256 * num_data_bytes) {}

  void count_steps(std::size_t count) { spend(count, num_steps_); }
  Value make(Text text) {
    spend(text.size(), num_bytes_);
    return {&texts_.emplace_back(std::move(text))};
  }
  Value make(List list) {
    spend(list.size() * sizeof(Value), num_bytes_);
    return {&lists_.emplace_back(std::move(list))};
  }
  Value make(Dict dict) {
    spend(dict.items.size() * sizeof(dict.items[0]), num_bytes_);
    return {&dicts_.emplace_back(std::move(dict))};
  }
  Value text(std::string_view text, bool from_data = false) { return make(Text(text, from_data)); }
  /// For an operation that reads all of `value`, if not what is in its elements.
  void count_reading(const Value& value) {
    std::size_t size = 0;
    if (value.is_text()) size = value.text().size();
    if (value.is<List*>()) size = value.as<List*>()->size();
    if (value.is<Dict*>()) size = value.as<Dict*>()->items.size();
    count_steps(1 + size / 64);
  }
  /// For a search, which may compare almost all of `part` at every place of `text`.
  void count_search(const Text& text, const Text& part) {
    count_steps((1 + text.size() / 64) * (1 + part.size() / 16));
  }
  /// For what lists and dictionaries grow by later.
  void count_item() { spend(sizeof(std::pair<std::string, Value>), num_bytes_); }

 private:
  static void spend(std::size_t amount, std::size_t& left) {
    if (amount > left) {
      fail(
          "the template must come to an end with less work, got one that does too much or too long "
          "a conversation");
    }
    left -= amount;
  }

  std::size_t num_steps_;
  std::size_t num_bytes_;
  std::deque<Text> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
};

inline std::string_view type_name(const Value& value) {
  constexpr std::string_view kNames[] = {"undefined", "none", "bool", "int",   "float",
                                         "str",       "list", "dict", "macro", "function"};
  return kNames[value.held.index()];
}

inline bool is_true(const Value& value) {
  if (value.is<bool>()) return value.as<bool>();
  if (value.is<std::int64_t>()) return value.as<std::int64_t>() != 0;
  if (value.is<double>()) return value.as<double>() != 0;
  if (value.is_text()) return value.text().size() > 0;
  if (value.is<List*>()) return !value.as<List*>()->empty();
  if (value.is<Dict*>()) return !value.as<Dict*>()->items.empty();
  return value.is<const Statement*>() || value.is<Function>();
}

constexpr int kMaxNesting = 64;  // of values within values

inline bool are_equal(Arena& arena, const Value& a, const Value& b, int depth = 0) {
  if (depth > kMaxNesting) fail("values must not be nested so deeply");
  arena.count_reading(a);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.held.index() != b.held.index()) return false;
  if (a.is_text()) return a.text().bytes == b.text().bytes;
  if (a.is<List*>()) {
    const List& left = *a.as<List*>();
    const List& right = *b.as<List*>();
    if (left.size() != right.size()) return false;
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (!are_equal(arena, left[i], right[i], depth + 1)) return false;
    }
    return true;
  }
  if (a.is<Dict*>()) {
    const Dict& left = *a.as<Dict*>();
    Dict& right = *b.as<Dict*>();
    if (left.items.size() != right.items.size()) return false;
    for (const auto& [key, value] : left.items) {
      arena.count_steps(right.items.size());  // which find() looks through
      const Value* const other = right.find(key);
      if (other == nullptr || !are_equal(arena, value, *other, depth + 1)) return false;
    }
    return true;
  }
  return a.is<Undefined>() || a.is<None>();
}

inline std::string number_text(const Value& value) {
  if (value.is<bool>()) return value.as<bool>() ? "True" : "False";
  if (value.is<std::int64_t>()) return std::to_string(value.as<std::int64_t>());
  char buffer[64];
  const double number = value.as<double>();
  // As Python chooses.
  const double size = std::abs(number);
  const bool is_usual = size == 0 || (size >= 1e-4 && size < 1e16) || !std::isfinite(number);
  const auto format = is_usual ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, format).ptr;
  std::string text(buffer, end);
  if (std::isfinite(number) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// What {{ value }} prints.
inline Text to_text(const Value& value) {
  if (value.is_text()) return value.text();
  if (value.is<Undefined>()) return {};
  if (value.is<None>()) return Text("None", false);
  if (value.is_number()) return Text(number_text(value), false);
  fail(concat("text must be made of text and numbers, got a ", type_name(value)));
}

inline void append_json_string(Arena& arena, const Text& text, Text& json) {
  arena.count_steps(1 + text.size());
  json += Text("\"", false);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    std::string escaped(1, c);
    if (c == '"' || c == '\\') escaped = std::string("\\") + c;
    if (c == '\n') escaped = "\\n";
    if (c == '\r') escaped = "\\r";
    if (c == '\t') escaped = "\\t";
    if (c == '\b') escaped = "\\b";
    if (c == '\f') escaped = "\\f";
    if (escaped.size() == 1 && static_cast<unsigned char>(c) < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      escaped = std::string("\\u00") + kHex[c >> 4] + kHex[c & 15];
    }
    json += Text(escaped, text.is_data[i] != 0);
  }
  json += Text("\"", false);
}

/// As Python's json.dumps(ensure_ascii=False) writes it; a negative `indent` means one line.
inline void append_json(Arena& arena, const Value& value, int indent, Text& json, int depth = 0) {
  if (depth > kMaxNesting) fail("values must not be nested so deeply");
  const auto add = [&](std::string_view text) {
    arena.count_steps(1 + text.size());
    json += Text(text, false);
  };
  const auto new_line = [&](int level) {
    if (indent < 0) return;
    add("\n" +
        std::string(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' '));
  };
  if (value.is<None>()) return add("null");
  if (value.is<bool>()) return add(value.as<bool>() ? "true" : "false");
  if (value.is_number()) return add(number_text(value));
  if (value.is_text()) return append_json_string(arena, value.text(), json);
  const std::string_view comma = indent < 0 ? ", " : ",";
  if (value.is<List*>()) {
    const List& list = *value.as<List*>();
    add("[");
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) add(comma);
      new_line(depth + 1);
      append_json(arena, list[i], indent, json, depth + 1);
    }
    if (!list.empty()) new_line(depth);
    return add("]");
  }
  if (!value.is<Dict*>()) fail(concat("tojson must have a value, got a ", type_name(value)));
  const auto& items = value.as<Dict*>()->items;
  add("{");
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) add(comma);
    new_line(depth + 1);
    const std::string_view key = items[i].first;
    append_json_string(arena, Text(key.substr(key.starts_with('\xFF') ? 1 : 0), false), json);
    add(": ");
    append_json(arena, items[i].second, indent, json, depth + 1);
  }
  if (!items.empty()) new_line(depth);
  add("}");
}

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
