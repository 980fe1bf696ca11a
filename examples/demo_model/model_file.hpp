// SPDX-License-Identifier: MIT
// Writes a trained network and its vocabulary as a model in GGUF, with weights in f32.
//
// Layer     example.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "bpe_trainer.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "kvick/text/vocabulary.hpp"
#include "network.hpp"

namespace demo_model {

/// The parameters are not copied: they must stay until the writer has written.
inline kvick::GgufWriter model_writer(const std::string& name, const NetworkConfig& config,
                                      const kvick::Vocabulary& vocabulary,
                                      std::span<const float> parameters) {
  kvick::GgufWriter writer;
  writer.add("general.architecture", "llama");
  writer.add("general.name", name);
  writer.add("general.license", "mit");
  writer.add("general.description", "Tells short stories for children; trained from scratch.");
  writer.add("general.file_type", std::uint32_t{0});  // f32
  const auto add_size = [&](const char* key, int value) {
    writer.add(std::string("llama.") + key, static_cast<std::uint32_t>(value));
  };
  add_size("vocab_size", config.vocab_size);
  add_size("context_length", config.max_seq_len);
  add_size("embedding_length", config.embedding_dim);
  add_size("block_count", config.num_layers);
  add_size("feed_forward_length", config.ffn_dim);
  add_size("attention.head_count", config.num_heads);
  add_size("attention.head_count_kv", config.num_kv_heads);
  add_size("attention.key_length", config.head_dim);
  add_size("attention.value_length", config.head_dim);
  add_size("rope.dimension_count", config.head_dim);
  writer.add("llama.rope.freq_base", static_cast<float>(config.rope_base));
  writer.add("llama.attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_epsilon));
  add_vocabulary(writer, vocabulary);
  for (const ParameterBlock& block : parameter_blocks(config)) {
    const auto values = parameters.subspan(block.offset, block.size());
    std::vector<std::uint64_t> dims{static_cast<std::uint64_t>(block.cols)};
    if (block.is_matrix()) dims.push_back(static_cast<std::uint64_t>(block.rows));
    writer.add_tensor(block.name, kvick::TensorType::kF32, dims, std::as_bytes(values));
  }
  return writer;
}

}  // namespace demo_model
