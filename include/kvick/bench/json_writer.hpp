// SPDX-License-Identifier: MIT
// JSON text, written from front to back.
//
//   JsonWriter json;
//   json.begin_object().key("tokens").value(3).key("note").value("a \"b\"").end_object();
//   json.text();   // {"tokens":3,"note":"a \"b\""}
//
// Accuracy  Numbers have as few digits as give the same double back. Not a number and infinities,
//           which JSON does not have, become null, and so does an absent optional: what was not
//           measured is no number.
// Errors    None: of text that is no UTF-8, each maximal subpart is replaced by U+FFFD.
// Source    RFC 8259.
// Layer     bench: may include core, text.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvick/core/version.hpp"
#include "kvick/text/utf8.hpp"

namespace kvick::inline v0_1 {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(double number);
  JsonWriter& value(std::same_as<bool> auto flag) { return raw(flag ? "true" : "false"); }
  template <std::integral T>
  requires(!std::same_as<T, bool>) JsonWriter& value(T number);
  template <class T>
  JsonWriter& value(const std::optional<T>& maybe);
  JsonWriter& value(std::span<const double> numbers);

  const std::string& text() const noexcept { return text_; }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& raw(std::string_view token);
  void separate();
  void append_string(std::string_view text);

  std::string text_;
  bool needs_comma_ = false;
};

// ---- Implementation: nothing below is API ----

inline void JsonWriter::separate() {
  if (needs_comma_) text_ += ',';
  needs_comma_ = true;
}

inline JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  needs_comma_ = false;
  return *this;
}

inline JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  needs_comma_ = true;
  return *this;
}

inline JsonWriter& JsonWriter::raw(std::string_view token) {
  separate();
  text_ += token;
  return *this;
}

inline void JsonWriter::append_string(std::string_view text) {
  text_ += '"';
  while (!text.empty()) {
    const Utf8Step step = first_utf8_step(text);
    const char c = text.front();
    if (step.kind != Utf8Step::Kind::kCharacter) {
      text_ += kReplacementCharacter;
    } else if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char kDigits[] = "0123456789abcdef";
      text_ += "\\u00";
      text_ += kDigits[c >> 4];
      text_ += kDigits[c & 15];
    } else {
      text_ += text.substr(0, step.num_bytes);
    }
    text.remove_prefix(step.num_bytes);
  }
  text_ += '"';
}

inline JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_string(name);
  text_ += ':';
  needs_comma_ = false;
  return *this;
}

inline JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  append_string(text);
  return *this;
}

inline JsonWriter& JsonWriter::value(double number) {
  if (!std::isfinite(number)) return raw("null");
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  return raw({digits, static_cast<std::size_t>(end - digits)});
}

template <std::integral T>
requires(!std::same_as<T, bool>) JsonWriter& JsonWriter::value(T number) {
  return raw(std::to_string(number));
}

template <class T>
JsonWriter& JsonWriter::value(const std::optional<T>& maybe) {
  return maybe ? value(*maybe) : raw("null");
}

inline JsonWriter& JsonWriter::value(std::span<const double> numbers) {
  begin_array();
  for (const double number : numbers) value(number);
  return end_array();
}

}  // namespace kvick::inline v0_1
