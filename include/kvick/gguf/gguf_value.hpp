// SPDX-License-Identifier: MIT
// A metadata value of a GGUF file: typed access to a number, a text or an array of them.
//
// A value views the file's bytes; only an array of strings owns a table of views (16 bytes per
// string), so arrays of 150,000 strings load in milliseconds. Values live as long as their file.
//
// Which T fits `get<T>`:
//   stored          T
//   integer         every integer type; the value must be in T's range
//   f32, f64        float, double (f64 read as float is rounded to nearest and must not overflow)
//   bool            bool
//   string          std::string_view (a view of the file), std::string
//   array of these  std::vector of the T above; strings also std::span<const std::string_view>
// Nothing else converts: a number is no bool, an integer is no float, a scalar is no array. Strings
// are byte sequences here: whether they are UTF-8 matters to the tokenizer, not to the container.
//
// Errors    Error(kFormat) that names the key, the wanted type and the found one, or the value and
//           the allowed range.
// Threads   Immutable.
// Source    GGUF format, metadata value types.
// Layer     gguf.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/gguf/byte_cursor.hpp"

namespace kvick::inline v0_1 {

/// Values are the ids that stand in a GGUF file.
enum class GgufType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

/// "u8" ... "f64", "bool", "string", "array".
constexpr std::string_view name(GgufType type) noexcept;

class GgufValue;
namespace detail {
/// The value at the cursor: its type, then its elements.
GgufValue read_gguf_value(std::string_view key, ByteCursor& cursor);
}  // namespace detail

class GgufValue {
 public:
  std::string_view key() const noexcept { return key_; }
  /// kArray for an array.
  GgufType type() const noexcept { return is_array_ ? GgufType::kArray : element_type_; }
  bool is_array() const noexcept { return is_array_; }
  /// Of an array's elements; of the value itself otherwise.
  GgufType element_type() const noexcept { return element_type_; }
  /// 1 unless it is an array.
  std::size_t num_elements() const noexcept { return num_elements_; }
  /// The elements exactly as they stand in the file, without type and count.
  std::span<const std::byte> encoded() const noexcept { return encoded_; }

  /// The value as T, see the table above.
  template <class T>
  T get() const;

 private:
  friend GgufValue detail::read_gguf_value(std::string_view key, detail::ByteCursor& cursor);

  template <class T>
  void require_type(bool as_array) const;
  template <class T, class Store>
  void for_each_as(Store&& store) const;

  std::string_view key_;
  GgufType element_type_ = GgufType::kUint8;
  bool is_array_ = false;
  std::size_t num_elements_ = 0;
  std::span<const std::byte> encoded_;
  std::vector<std::string_view> strings_;  // of an array of strings
};

// ---- Implementation: nothing below is API ----

constexpr std::string_view name(GgufType type) noexcept {
  switch (type) {
    case GgufType::kUint8: return "u8";
    case GgufType::kInt8: return "i8";
    case GgufType::kUint16: return "u16";
    case GgufType::kInt16: return "i16";
    case GgufType::kUint32: return "u32";
    case GgufType::kInt32: return "i32";
    case GgufType::kFloat32: return "f32";
    case GgufType::kBool: return "bool";
    case GgufType::kString: return "string";
    case GgufType::kArray: return "array";
    case GgufType::kUint64: return "u64";
    case GgufType::kInt64: return "i64";
    case GgufType::kFloat64: return "f64";
  }
  return "unknown";
}

namespace detail {

/// Bytes before the text of a string.
inline constexpr std::size_t kStringPrefixBytes = 8;
/// The format's limit; it also keeps a key from being a whole file.
inline constexpr std::size_t kMaxKeyBytes = 65535;

inline void check_gguf_key(const RuleContext& context, std::string_view key) {
  context.require(!key.empty() && key.size() <= kMaxKeyBytes, "a metadata key must have 1 to ",
                  kMaxKeyBytes, " bytes, got ", key.size());
}

/// Bytes of one element; the least possible for a string. 0 for an array or an unknown id.
constexpr std::size_t min_element_bytes(GgufType type) noexcept {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool: return 1;
    case GgufType::kUint16:
    case GgufType::kInt16: return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32: return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64: return 8;
    case GgufType::kString: return kStringPrefixBytes;
    case GgufType::kArray: break;
  }
  return 0;
}

template <class T>
concept GgufInteger = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> &&
                      !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> &&
                      !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;
template <class T>
concept GgufFloat = std::same_as<T, float> || std::same_as<T, double>;
template <class T>
concept GgufText = std::same_as<T, std::string_view> || std::same_as<T, std::string>;
template <class T>
concept GgufScalar = GgufInteger<T> || GgufFloat<T> || std::same_as<T, bool> || GgufText<T>;

template <class T>
struct GgufVectorElement {};
template <GgufScalar T>
struct GgufVectorElement<std::vector<T>> {
  using type = T;
};
template <class T>
concept GgufVector = requires {
  typename GgufVectorElement<T>::type;
};

/// Whether `get<T>` may read elements stored as `type`.
template <GgufScalar T>
constexpr bool reads(GgufType type) noexcept {
  if constexpr (GgufFloat<T>) {
    return type == GgufType::kFloat32 || type == GgufType::kFloat64;
  } else if constexpr (std::same_as<T, bool>) {
    return type == GgufType::kBool;
  } else if constexpr (GgufText<T>) {
    return type == GgufType::kString;
  } else {
    return type != GgufType::kFloat32 && type != GgufType::kFloat64 && type != GgufType::kBool &&
           type != GgufType::kString && type != GgufType::kArray;
  }
}

template <GgufScalar T>
constexpr std::string_view wanted_name() noexcept {
  if constexpr (GgufFloat<T>) return "float";
  if constexpr (std::same_as<T, bool>) return "bool";
  if constexpr (GgufText<T>) return "string";
  return "integer";
}

/// Calls visit(Stored{}) with the C++ type of a stored number.
template <class Visitor>
void visit_number_type(GgufType type, Visitor&& visit) {
  switch (type) {
    case GgufType::kUint8: return visit(std::uint8_t{});
    case GgufType::kInt8: return visit(std::int8_t{});
    case GgufType::kUint16: return visit(std::uint16_t{});
    case GgufType::kInt16: return visit(std::int16_t{});
    case GgufType::kUint32: return visit(std::uint32_t{});
    case GgufType::kInt32: return visit(std::int32_t{});
    case GgufType::kUint64: return visit(std::uint64_t{});
    case GgufType::kInt64: return visit(std::int64_t{});
    case GgufType::kFloat32: return visit(float{});
    case GgufType::kFloat64: return visit(double{});
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray: return;
  }
}

/// A stored number as T if T can hold it. Both are integers or both are floats.
template <class T, class Stored>
T convert_number(std::string_view key, Stored value) {
  bool fits = true;
  if constexpr (GgufInteger<T>) {
    fits = std::in_range<T>(value);
  } else if constexpr (sizeof(T) < sizeof(Stored)) {
    // Infinity and NaN stay what they are; a finite value must not become infinite.
    fits = !std::isfinite(value) || std::abs(value) <= Stored{std::numeric_limits<T>::max()};
  }
  // Unary plus prints 8-bit integers as numbers.
  require(fits, ErrorCode::kFormat, "GgufValue::get", Item{"key", key}, " must be in [",
          +std::numeric_limits<T>::lowest(), ", ", +std::numeric_limits<T>::max(), "], got ",
          +value);
  return static_cast<T>(value);
}

}  // namespace detail

template <class T>
void GgufValue::require_type(bool as_array) const {
  detail::require(is_array_ == as_array && detail::reads<T>(element_type_), ErrorCode::kFormat,
                  "GgufValue::get", detail::Item{"key", key_}, " must be ",
                  as_array ? "an array of " : "", detail::wanted_name<T>(), ", found ",
                  is_array_ ? "an array of " : "", name(element_type_));
}

/// store(element) for every element as T, which fits the element type.
template <class T, class Store>
void GgufValue::for_each_as(Store&& store) const {
  if constexpr (detail::GgufText<T>) {
    if (is_array_) {
      for (const std::string_view text : strings_) store(T(text));
    } else {
      const auto text = encoded_.subspan(detail::kStringPrefixBytes);
      store(T(reinterpret_cast<const char*>(text.data()), text.size()));
    }
  } else if constexpr (std::same_as<T, bool>) {
    for (const std::byte value : encoded_) store(value != std::byte{0});
  } else {
    detail::visit_number_type(element_type_, [&]<class Stored>(Stored) {
      if constexpr (detail::GgufInteger<T> == detail::GgufInteger<Stored>) {
        const std::byte* bytes = encoded_.data();
        for (std::size_t i = 0; i < num_elements_; ++i, bytes += sizeof(Stored)) {
          store(detail::convert_number<T>(key_, detail::load_unaligned<Stored>(bytes)));
        }
      }
    });
  }
}

template <class T>
T GgufValue::get() const {
  if constexpr (std::same_as<T, std::span<const std::string_view>>) {
    require_type<std::string_view>(/*as_array=*/true);
    return strings_;
  } else if constexpr (detail::GgufVector<T>) {
    using Element = typename detail::GgufVectorElement<T>::type;
    require_type<Element>(/*as_array=*/true);
    T elements;
    elements.reserve(num_elements_);
    for_each_as<Element>([&](Element element) { elements.push_back(std::move(element)); });
    return elements;
  } else {
    static_assert(detail::GgufScalar<T>, "see the table at the head of gguf_value.hpp");
    require_type<T>(/*as_array=*/false);
    T result{};
    for_each_as<T>([&](T element) { result = std::move(element); });
    return result;
  }
}

inline GgufValue detail::read_gguf_value(std::string_view key, ByteCursor& cursor) {
  const Item item{"key", key};
  GgufValue value;
  value.key_ = key;
  value.element_type_ = GgufType{cursor.read<std::uint32_t>(item)};
  value.is_array_ = value.element_type_ == GgufType::kArray;
  if (value.is_array_) {
    value.element_type_ = GgufType{cursor.read<std::uint32_t>(item)};
    if (value.element_type_ == GgufType::kArray) {
      cursor.context().fail(ErrorCode::kUnsupported, item,
                            " holds an array of arrays; only arrays of scalars are supported");
    }
  }
  const std::size_t element_bytes = min_element_bytes(value.element_type_);
  cursor.context().require(element_bytes != 0, item, " must have a value type of 0 to 12, got ",
                           static_cast<std::uint32_t>(value.element_type_));

  std::uint64_t count = 1;
  if (value.is_array_) {
    count = cursor.read<std::uint64_t>(item);
    cursor.require_room(count, element_bytes, item);
  }
  value.num_elements_ = static_cast<std::size_t>(count);

  if (value.element_type_ != GgufType::kString) {
    value.encoded_ = cursor.take(count * element_bytes, item);
  } else {
    // Walked once to check and measure, then again to fill a table of the exact size.
    ByteCursor elements = cursor;
    for (std::uint64_t i = 0; i < count; ++i) cursor.read_string(item);
    value.encoded_ = ByteCursor(elements).take(cursor.position() - elements.position(), item);
    if (value.is_array_) {
      value.strings_.reserve(value.num_elements_);
      for (std::uint64_t i = 0; i < count; ++i) {
        value.strings_.push_back(elements.read_string(item));
      }
    }
  }
  if (value.element_type_ == GgufType::kBool) {
    for (const std::byte byte : value.encoded_) {
      cursor.context().require(byte <= std::byte{1}, item, " must hold bools of 0 or 1, got ",
                               static_cast<int>(byte));
    }
  }
  return value;
}

}  // namespace kvick::inline v0_1
