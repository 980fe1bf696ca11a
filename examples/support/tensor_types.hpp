// SPDX-License-Identifier: MIT
// The formats of tensors as options name them.
#pragma once

#include <string>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "program.hpp"

namespace programs {

/// "f32, f16, ..."
inline std::string type_names() {
  std::string names;
  for (const auto& type : kvick::tensor_types()) {
    names.append(names.empty() ? "" : ", ").append(type.name);
  }
  return names;
}

inline kvick::TensorType parse_tensor_type(const std::string& option, std::string_view text) {
  for (const auto& type : kvick::tensor_types()) {
    if (type.name == text) return type.type;
  }
  throw BadInput(kvick::detail::concat(option, " must be one of ", type_names(), "; got ",
                                       kvick::detail::in_quotes(text)));
}

}  // namespace programs
