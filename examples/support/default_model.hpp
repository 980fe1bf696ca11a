// SPDX-License-Identifier: MIT
// The model that programs use when none is named: the demo model that comes with the sources.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <system_error>

#include "program.hpp"

namespace programs {

inline constexpr const char* kDefaultModelName = "kvick-stories-3m-q8_0.gguf";
/// A small model with the same vocabulary that lies beside it.
inline constexpr const char* kDefaultDraftName = "kvick-stories-draft-q8_0.gguf";

/// Where the demo model may lie, best first: beside the installed program, in the source folder
/// that the program was built from.
inline std::string default_model() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);  // Linux
  const std::filesystem::path folders[] = {
      error ? std::filesystem::path() : program.parent_path() / KVICK_INSTALLED_MODELS,
      KVICK_SOURCE_MODELS};
  for (const auto& folder : folders) {
    const auto path = folder / kDefaultModelName;
    if (!folder.empty() && std::filesystem::exists(path, error)) {
      return path.lexically_normal().string();
    }
  }
  throw BadInput(std::string("the demo model ") + kDefaultModelName +
                 " was not found: name a model with --model");
}

/// Adds -m.
inline CLI::Option* add_model_option(CLI::App& app, std::string& model,
                                     const std::string& description) {
  return app.add_option("-m,--model", model, description + "; default: the demo model")
      ->type_name("FILE");
}

}  // namespace programs
