// SPDX-License-Identifier: MIT
// Private to gguf: reads a byte sequence from front to back and never past its end.
//
// Errors    Error(kFormat) that names the file, what was being read, its position and the bytes
//           left.
// Layer     gguf.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <span>
#include <string_view>
#include <type_traits>

#include "kvick/core/error.hpp"

namespace kvick::inline v0_1::detail {

static_assert(std::endian::native == std::endian::little,
              "GGUF is little-endian and is read without byte swaps");

/// What a message is about, put together only when there is a message: "tensor 'output.weight'".
struct Item {
  std::string_view kind;
  std::string_view name = {};  ///< untrusted; left out when empty

  friend std::ostream& operator<<(std::ostream& out, const Item& item) {
    out << item.kind;
    if (!item.name.empty()) out << ' ' << in_quotes(item.name);
    return out;
  }
};

/// Where a rule is checked: the operation, what the message starts with, and the code of a breach.
/// Reader and writer check the same rules in different contexts.
struct RuleContext {
  std::string_view operation;
  std::string_view prefix;  ///< "'model.gguf': " or empty; must outlive the context
  ErrorCode code = ErrorCode::kFormat;

  template <class... Parts>
  void require(bool ok, const Parts&... parts) const {
    detail::require(ok, code, operation, prefix, parts...);
  }
  template <class... Parts>
  [[noreturn]] void fail(ErrorCode other_code, const Parts&... parts) const {
    throw Error(other_code, operation, concat(prefix, parts...));
  }
};

/// The T whose bytes start at `bytes`, at any alignment.
template <class T>
T load_unaligned(const std::byte* bytes) noexcept {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

class ByteCursor {
 public:
  ByteCursor(std::span<const std::byte> bytes, const RuleContext& context) noexcept
      : bytes_(bytes), context_(context) {}

  std::size_t position() const noexcept { return position_; }
  std::size_t num_left() const noexcept { return bytes_.size() - position_; }
  const RuleContext& context() const noexcept { return context_; }

  /// The next `count` bytes, which belong to `item`.
  std::span<const std::byte> take(std::uint64_t count, const Item& item) {
    context_.require(count <= num_left(), "truncated at byte ", position_, ": ", item, " needs ",
                     count, " bytes, ", num_left(), " are left");
    const auto taken = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += taken.size();
    return taken;
  }

  template <class T>
  T read(const Item& item) {
    return load_unaligned<T>(take(sizeof(T), item).data());
  }

  /// A GGUF string: its length in 8 bytes, then the text.
  std::string_view read_string(const Item& item) {
    const auto text = take(read<std::uint64_t>(item), item);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  /// Believes a declared count only if that many things of at least `min_bytes` can still follow.
  /// Every count passes here before anything is sized by it or loops over it.
  void require_room(std::uint64_t count, std::uint64_t min_bytes, const Item& item) const {
    context_.require(count <= num_left() / min_bytes, item, " declares ", count,
                     " entries of at least ", min_bytes, " bytes, but only ", num_left(),
                     " bytes are left");
  }

 private:
  std::span<const std::byte> bytes_;
  RuleContext context_;
  std::size_t position_ = 0;
};

}  // namespace kvick::inline v0_1::detail
