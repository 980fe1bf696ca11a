// SPDX-License-Identifier: MIT
// What Jinja's expressions may do with texts, with the meaning that it has in Python; letters have
// case only within ASCII.
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
  /// What is not understood is refused, never skipped.
  void at_most(std::size_t count) const {
    const std::size_t given = values.size() + named.size();
    if (given > count) fail(concat("a call must have at most ", count, " arguments, got ", given));
  }
  const Value& get(std::size_t place, std::string_view name) const {
    const Value* const value = find(place, name);
    if (value == nullptr) fail(concat("a call must have an argument ", name, ", got none"));
    return *value;
  }
};

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
  arena.count_search(text, Text(by, false));
  List parts;
  std::size_t begin = 0;
  for (;;) {
    arena.count_item();
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
  arena.count_search(text, from);
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
inline bool has_affix(Arena& arena, const Text& text, const Value& part, bool at_begin) {
  const auto has = [&](const Value& one) {
    arena.count_reading(one);
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
  if (name == "format") {
    if (!arguments.named.empty()) fail("format must have no named arguments");
    return arena.make(format(text, arguments));
  }
  const bool takes_two = name == "split" || name == "replace";
  const bool takes_none =
      name == "upper" || name == "lower" || name == "title" || name == "capitalize";
  arguments.at_most(takes_two ? 2 : takes_none ? 0 : 1);
  if (name == "strip") return stripped(true, true);
  if (name == "lstrip") return stripped(true, false);
  if (name == "rstrip") return stripped(false, true);
  if (name == "split") return split(arena, text, arguments);
  if (name == "startswith") return {has_affix(arena, text, arguments.get(0, "prefix"), true)};
  if (name == "endswith") return {has_affix(arena, text, arguments.get(0, "suffix"), false)};
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
  if (name == "find") {
    const Text& part = text_of(arguments.get(0, "sub"));
    arena.count_search(text, part);
    const std::size_t at = text.bytes.find(part.bytes);
    if (at == std::string::npos) return {std::int64_t{-1}};
    const auto before = character_offsets(text.slice(0, at)).size() - 1;
    return {static_cast<std::int64_t>(before)};
  }
  fail(concat("texts have no method ", in_quotes(name)));
}

}  // namespace detail::jinja
}  // namespace kvick::inline v0_1
