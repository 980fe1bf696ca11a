// SPDX-License-Identifier: MIT
// Where tests find models and golden results that are not part of the project.
//
// The folder is KVICK_TEST_DATA in the environment, else the one given to CMake. A machine without
// it skips the tests that need it:
//   const auto path = support::shared_path("models/stories260K.gguf");
//   if (!path) GTEST_SKIP() << support::missing("models/stories260K.gguf");
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#ifndef KVICK_TEST_DATA_DIR
#define KVICK_TEST_DATA_DIR "../shared"
#endif

namespace support {

inline std::filesystem::path shared_root() {
  const char* override_path = std::getenv("KVICK_TEST_DATA");
  return override_path != nullptr ? override_path : KVICK_TEST_DATA_DIR;
}

inline std::optional<std::filesystem::path> shared_path(const std::string& relative) {
  std::filesystem::path path = shared_root() / relative;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

inline std::string missing(const std::string& relative) {
  return "test data not found: " + (shared_root() / relative).string() +
         " (set KVICK_TEST_DATA to the folder that holds it)";
}

}  // namespace support
