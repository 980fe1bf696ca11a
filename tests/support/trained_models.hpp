// SPDX-License-Identifier: MIT
// Trained models for tests: the demo model, which is part of the sources, and another one where the
// folder of test data is there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "support/shared_data.hpp"

namespace support {

inline std::string demo_model() {
  return (std::filesystem::path(KVICK_DEMO_MODEL_DIR) / "kvick-stories-3m-q8_0.gguf").string();
}

/// The demo model first.
inline std::vector<std::string> trained_models() {
  std::vector<std::string> paths = {demo_model()};
  if (const auto path = shared_path("models/stories260K.gguf")) paths.push_back(path->string());
  return paths;
}

}  // namespace support
