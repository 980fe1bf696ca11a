// SPDX-License-Identifier: MIT
// The one exception type of the library, and how its messages are built.
//
// A message reads "[operation] rule, actual value", for example
//   [QuantizedLinear::forward] x must have in_features = 2048 columns, got 2047
// Bad input from outside (files, shapes, options, requests) throws Error. Expected outcomes, such
// as a full cache or queue, are return values instead.
//
// Threads   Immutable after construction.
// Layer     core.
#pragma once

#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

/// What kind of rule was broken.
enum class ErrorCode {
  kArgument,     ///< an option or argument outside its allowed range
  kShape,        ///< sizes of operands do not fit together
  kFormat,       ///< a file or byte sequence breaks its format
  kCapacity,     ///< more room is asked for than exists or may exist
  kUnsupported,  ///< valid, but this build, machine or version cannot do it
  kIo,           ///< the operating system refused
};

constexpr std::string_view name(ErrorCode code) noexcept;

/// Thrown for bad input. `what()` is "kvick::Error (code): " followed by `message()`.
class Error : public std::runtime_error {
 public:
  /// `operation` is the public name that was called; `message` states the rule and the actual
  /// value.
  Error(ErrorCode code, std::string_view operation, std::string_view message);

  ErrorCode code() const noexcept { return code_; }

  /// "[operation] rule, actual value", without the prefix of `what()`.
  std::string_view message() const noexcept {
    return std::string_view(what()).substr(prefix_length_);
  }

 private:
  ErrorCode code_;
  std::size_t prefix_length_;
};

// ---- Implementation: nothing below is API ----

constexpr std::string_view name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kArgument: return "argument";
    case ErrorCode::kShape: return "shape";
    case ErrorCode::kFormat: return "format";
    case ErrorCode::kCapacity: return "capacity";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kIo: return "io";
  }
  return "unknown";
}

namespace detail {

inline std::string error_prefix(ErrorCode code) {
  return "kvick::Error (" + std::string(name(code)) + "): ";
}

/// The parts, streamed one after another.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws Error unless `ok`. The parts of the message are only put together when it fails.
template <class... Parts>
void require(bool ok, ErrorCode code, std::string_view operation, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw Error(code, operation, concat(parts...));
}

/// Untrusted text made fit for a message or a terminal: in single quotes, at most 80 bytes, with
/// every byte outside printable ASCII written as \xNN.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMaxLength = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kMaxLength)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out + (text.size() > kMaxLength ? "...'" : "'");
}

}  // namespace detail

inline Error::Error(ErrorCode code, std::string_view operation, std::string_view message)
    : std::runtime_error(detail::error_prefix(code) + "[" + std::string(operation) + "] " +
                         std::string(message)),
      code_(code),
      prefix_length_(detail::error_prefix(code).size()) {}

}  // namespace kvick::inline v0_1
