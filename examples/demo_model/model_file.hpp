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
#include "kvick/model/llama_metadata.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "kvick/text/vocabulary.hpp"
#include "network.hpp"

namespace demo_model {

/// The parameters are not copied: they must stay until the writer has written.
inline kvick::GgufWriter model_writer(const std::string& name, const NetworkConfig& config,
                                      const kvick::Vocabulary& vocabulary,
                                      std::span<const float> parameters) {
  kvick::GgufWriter writer;
  kvick::add_llama_sizes(writer, {.num_layers = config.num_layers,
                                  .max_seq_len = config.max_seq_len,
                                  .embedding_dim = config.embedding_dim,
                                  .ffn_dim = config.ffn_dim,
                                  .num_heads = config.num_heads,
                                  .num_kv_heads = config.num_kv_heads,
                                  .head_dim = config.head_dim,
                                  .rms_epsilon = config.rms_epsilon,
                                  .rope_base = config.rope_base});
  writer.add("llama.vocab_size", static_cast<std::uint32_t>(config.vocab_size));
  writer.add("general.name", name);
  writer.add("general.license", "mit");
  writer.add("general.description", "Tells short stories for children; trained from scratch.");
  writer.add("general.file_type", std::uint32_t{0});  // f32
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
