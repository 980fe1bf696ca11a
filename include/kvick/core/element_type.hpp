// SPDX-License-Identifier: MIT
// The element types of caches and unquantized weights, as values and as types.
//
// Code that is multiplied over element types at compile time uses `element_type_of`; code that
// chooses at run time, such as the kernel tables, passes an ElementType.
//
// Layer     core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvick/core/half.hpp"
#include "kvick/core/version.hpp"

namespace kvick::inline v0_1 {

enum class ElementType {
  kF32,   ///< float
  kF16,   ///< f16, IEEE half
  kBF16,  ///< bf16, the upper half of a float
  kInt8,  ///< std::int8_t, of caches only: rows have a scale each
};

/// "f32", "f16", "bf16" or "int8".
constexpr std::string_view name(ElementType type) noexcept {
  switch (type) {
    case ElementType::kF32: return "f32";
    case ElementType::kF16: return "f16";
    case ElementType::kBF16: return "bf16";
    case ElementType::kInt8: return "int8";
  }
  return "unknown";
}

/// Bytes of one element.
constexpr std::size_t size_bytes(ElementType type) noexcept {
  switch (type) {
    case ElementType::kF32: return sizeof(float);
    case ElementType::kF16:
    case ElementType::kBF16: return sizeof(f16);
    case ElementType::kInt8: return sizeof(std::int8_t);
  }
  return 0;
}

/// The ElementType of a C++ type; not defined for any other type.
template <class T>
struct ElementTypeOf;
template <>
struct ElementTypeOf<float> {
  static constexpr ElementType value = ElementType::kF32;
};
template <>
struct ElementTypeOf<f16> {
  static constexpr ElementType value = ElementType::kF16;
};
template <>
struct ElementTypeOf<bf16> {
  static constexpr ElementType value = ElementType::kBF16;
};

template <>
struct ElementTypeOf<std::int8_t> {
  static constexpr ElementType value = ElementType::kInt8;
};

template <class T>
inline constexpr ElementType element_type_of = ElementTypeOf<T>::value;

/// Whether T is one of the element types.
template <class T>
concept Element = requires {
  ElementTypeOf<T>::value;
};

/// Converts `count` elements at `from`, aligned for `type`, to floats. Exact; integers come
/// without their scale.
inline void load_elements(ElementType type, const std::byte* from, std::ptrdiff_t count,
                          float* to) noexcept {
  const auto convert = [&](const auto* elements) {
    for (std::ptrdiff_t i = 0; i < count; ++i) to[i] = static_cast<float>(elements[i]);
  };
  switch (type) {
    case ElementType::kF32: return convert(reinterpret_cast<const float*>(from));
    case ElementType::kF16: return convert(reinterpret_cast<const f16*>(from));
    case ElementType::kBF16: return convert(reinterpret_cast<const bf16*>(from));
    case ElementType::kInt8: return convert(reinterpret_cast<const std::int8_t*>(from));
  }
}

}  // namespace kvick::inline v0_1
