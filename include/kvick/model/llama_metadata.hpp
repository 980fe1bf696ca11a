// SPDX-License-Identifier: MIT
// The sizes of a model of the Llama architecture, as GGUF stores them.
//
// Layer     model: may include gguf.
#pragma once

#include <cstdint>
#include <string>

#include "kvick/gguf/gguf_writer.hpp"

namespace kvick::inline v0_1 {

struct LlamaSizes {
  int num_layers;
  int max_seq_len;
  int embedding_dim;
  int ffn_dim;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  double rms_epsilon = 1e-5;
  double rope_base = 10000;
};

inline void add_llama_sizes(GgufWriter& writer, const LlamaSizes& sizes);

// ---- Implementation: nothing below is API ----

inline void add_llama_sizes(GgufWriter& writer, const LlamaSizes& sizes) {
  const auto add = [&](const char* key, int value) {
    writer.add(std::string("llama.") + key, static_cast<std::uint32_t>(value));
  };
  writer.add("general.architecture", "llama");
  add("block_count", sizes.num_layers);
  add("context_length", sizes.max_seq_len);
  add("embedding_length", sizes.embedding_dim);
  add("feed_forward_length", sizes.ffn_dim);
  add("attention.head_count", sizes.num_heads);
  add("attention.head_count_kv", sizes.num_kv_heads);
  add("attention.key_length", sizes.head_dim);
  add("attention.value_length", sizes.head_dim);
  add("rope.dimension_count", sizes.head_dim);
  writer.add("llama.attention.layer_norm_rms_epsilon", static_cast<float>(sizes.rms_epsilon));
  writer.add("llama.rope.freq_base", static_cast<float>(sizes.rope_base));
}

}  // namespace kvick::inline v0_1
