// SPDX-License-Identifier: MIT
// The names of models whose sizes are known.
#pragma once

#include <string>

#include "kvick/bench/synthetic_model.hpp"

namespace programs {

/// "smollm2-135m, qwen2.5-0.5b, ..."
inline std::string shape_names() {
  std::string names;
  for (const kvick::ModelShape& shape : kvick::kModelShapes) {
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  }
  return names;
}

}  // namespace programs
