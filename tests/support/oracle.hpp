// SPDX-License-Identifier: MIT
// Runs the float64 oracle and the model maker that lie among the shared test data.
//
// They need a Python with numpy: KVICK_PYTHON, found by CMake. Tests skip where either is missing:
//   if (const auto reason = support::oracle_missing()) GTEST_SKIP() << *reason;
#pragma once

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "support/shared_data.hpp"

#ifndef KVICK_PYTHON
#define KVICK_PYTHON ""
#endif

namespace support {

inline std::optional<std::string> oracle_missing() {
  if (std::string(KVICK_PYTHON).empty()) return "no python3 with numpy was found";
  for (const char* const tool : {"tools/reference.py", "tools/make_gguf.py"}) {
    if (!shared_path(tool)) return missing(tool);
  }
  return std::nullopt;
}

/// Standard output of `python tool arguments`; throws if it fails.
inline std::string run_tool(const std::string& tool, const std::string& arguments) {
  const std::string command =
      std::string(KVICK_PYTHON) + " '" + shared_path(tool)->string() + "' " + arguments;
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run: " + command);
  std::string output;
  std::array<char, 1 << 16> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  if (pclose(pipe) != 0) throw std::runtime_error("failed: " + command);
  return output;
}

}  // namespace support
