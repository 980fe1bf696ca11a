// SPDX-License-Identifier: MIT
// Writes small valid models for the GGUF fuzzer to start from:  make_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <string>

#include "support/tiny_model.hpp"

int main(int num_arguments, char** arguments) {
  if (num_arguments != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  for (const char* const architecture : {"llama", "qwen2", "qwen3"}) {
    for (const auto type : {kvick::TensorType::kF32, kvick::TensorType::kQ8_0}) {
      support::TinyModel model(support::smallest_model(architecture, type));
      model.writer().write(folder / (std::string(architecture) + "-" +
                                     std::string(kvick::info(type).name) + ".gguf"));
    }
  }
}
