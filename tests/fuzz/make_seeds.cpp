// SPDX-License-Identifier: MIT
// Writes small valid models for the GGUF fuzzer to start from:  make_seeds FOLDER
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "support/tiny_model.hpp"

namespace {

/// A tokenizer of as many pieces as the model has rows.
void add_tokenizer(kvick::GgufWriter& writer, int vocab_size) {
  std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types = {2, 3, 3};
  while (static_cast<int>(pieces.size()) < vocab_size) {
    pieces.push_back(std::string(1, static_cast<char>('a' + pieces.size() - 3)));
    types.push_back(1);
  }
  writer.add("tokenizer.ggml.model", "llama");
  writer.add("tokenizer.ggml.tokens", pieces);
  writer.add("tokenizer.ggml.scores", std::vector<float>(pieces.size(), -1.0f));
  writer.add("tokenizer.ggml.token_type", types);
}

}  // namespace

int main(int num_arguments, char** arguments) {
  if (num_arguments != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  for (const char* const architecture : {"llama", "qwen2", "qwen3"}) {
    for (const auto type : {kvick::TensorType::kF32, kvick::TensorType::kQ8_0}) {
      constexpr int kVocabSize = 9;
      support::TinyModel model({.architecture = architecture,
                                .type = type,
                                .num_layers = 1,
                                .embedding_dim = 32,
                                .num_heads = 2,
                                .num_kv_heads = 1,
                                .head_dim = 4,
                                .ffn_dim = 32,
                                .vocab_size = kVocabSize,
                                .max_seq_len = 16,
                                .tied = true});
      add_tokenizer(model.writer(), kVocabSize);
      model.writer().write(folder / (std::string(architecture) + "-" +
                                     std::string(kvick::info(type).name) + ".gguf"));
    }
  }
}
