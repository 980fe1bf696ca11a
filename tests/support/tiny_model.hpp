// SPDX-License-Identifier: MIT
// Small models with random weights, in memory, of every architecture and weight format.
//
// Sizes are awkward on purpose: outputs that are no multiple of 16, grouped heads, several layers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvick/core/half.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace support {

struct TinyModelOptions {
  std::string architecture = "llama";
  kvick::TensorType type = kvick::TensorType::kF32;
  int num_layers = 2;
  int embedding_dim = 256;
  int num_heads = 6;
  int num_kv_heads = 2;
  int head_dim = 24;
  int ffn_dim = 256;
  int vocab_size = 100;
  int max_seq_len = 4096;
  bool tied = false;
  bool tokenizer = false;  ///< with pieces <unk>, <s>, </s>, a, b, c, ...; for up to 29 pieces
  unsigned seed = 1;
};

/// Few bytes, with a tokenizer: for tests and fuzzers that damage whole models.
inline TinyModelOptions smallest_model(const std::string& architecture, kvick::TensorType type) {
  return {.architecture = architecture,
          .type = type,
          .num_layers = 1,
          .embedding_dim = 32,
          .num_heads = 2,
          .num_kv_heads = 1,
          .head_dim = 4,
          .ffn_dim = 32,
          .vocab_size = 9,
          .max_seq_len = 16,
          .tied = true,
          .tokenizer = true};
}

class TinyModel {
 public:
  explicit TinyModel(const TinyModelOptions& options = {}) : options_(options), rng_(options.seed) {
    add_metadata();
    const auto [heads, kv_heads] =
        std::pair(options.num_heads * options.head_dim, options.num_kv_heads * options.head_dim);
    const int width = options.embedding_dim;
    add_matrix("token_embd.weight", options.vocab_size, width, 1.0);
    for (int layer = 0; layer < options.num_layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      add_vector(prefix + "attn_norm.weight", width, 1.0, 0.1);
      add_projection(prefix + "attn_q", heads, width);
      add_projection(prefix + "attn_k", kv_heads, width);
      add_projection(prefix + "attn_v", kv_heads, width);
      if (options.architecture == "qwen3") {
        add_vector(prefix + "attn_q_norm.weight", options.head_dim, 1.0, 0.1);
        add_vector(prefix + "attn_k_norm.weight", options.head_dim, 1.0, 0.1);
      }
      // Inputs of attn_output are num_heads * head_dim wide: no whole blocks of a quantized format.
      add_matrix(prefix + "attn_output.weight", width, heads, 1.0 / std::sqrt(heads),
                 kvick::TensorType::kF32);
      add_vector(prefix + "ffn_norm.weight", width, 1.0, 0.1);
      add_matrix(prefix + "ffn_gate.weight", options.ffn_dim, width, 1.0 / std::sqrt(width));
      add_matrix(prefix + "ffn_up.weight", options.ffn_dim, width, 1.0 / std::sqrt(width));
      add_matrix(prefix + "ffn_down.weight", width, options.ffn_dim,
                 1.0 / std::sqrt(options.ffn_dim));
    }
    add_vector("output_norm.weight", width, 1.0, 0.1);
    if (!options.tied) {
      add_matrix("output.weight", options.vocab_size, width, 1.0 / std::sqrt(width));
    }
  }

  /// For tests that add to the file or break it; call before file().
  kvick::GgufWriter& writer() { return writer_; }

  kvick::GgufFile file() const { return kvick::GgufFile::from_bytes(writer_.to_bytes(), "tiny"); }

 private:
  using Bytes = std::vector<std::byte>;

  void add_metadata() {
    const std::string& a = options_.architecture;
    const auto u32 = [](int value) { return static_cast<std::uint32_t>(value); };
    writer_.add("general.architecture", a);
    writer_.add(a + ".block_count", u32(options_.num_layers));
    writer_.add(a + ".context_length", u32(options_.max_seq_len));
    writer_.add(a + ".embedding_length", u32(options_.embedding_dim));
    writer_.add(a + ".feed_forward_length", u32(options_.ffn_dim));
    writer_.add(a + ".attention.head_count", u32(options_.num_heads));
    writer_.add(a + ".attention.head_count_kv", u32(options_.num_kv_heads));
    writer_.add(a + ".attention.key_length", u32(options_.head_dim));
    writer_.add(a + ".attention.value_length", u32(options_.head_dim));
    writer_.add(a + ".attention.layer_norm_rms_epsilon", 1e-5f);
    if (options_.tokenizer) add_tokenizer();
  }

  void add_tokenizer() {
    std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {2, 3, 3};
    for (char c = 'a'; static_cast<int>(pieces.size()) < options_.vocab_size; ++c) {
      pieces.emplace_back(1, c);
      types.push_back(1);
    }
    writer_.add("tokenizer.ggml.model", "llama");
    writer_.add("tokenizer.ggml.tokens", pieces);
    writer_.add("tokenizer.ggml.scores", std::vector<float>(pieces.size(), -1.0f));
    writer_.add("tokenizer.ggml.token_type", types);
  }

  void add_projection(const std::string& name, int rows, int columns) {
    add_matrix(name + ".weight", rows, columns, 1.0 / std::sqrt(columns));
    if (options_.architecture == "qwen2") add_vector(name + ".bias", rows, 0.0, 0.3);
  }

  void add_vector(const std::string& name, int size, double mean, double deviation) {
    std::normal_distribution<float> normal(static_cast<float>(mean), static_cast<float>(deviation));
    Bytes data;
    for (int i = 0; i < size; ++i) append(data, normal(rng_));
    keep(name, kvick::TensorType::kF32, {static_cast<std::uint64_t>(size)}, std::move(data));
  }

  void add_matrix(const std::string& name, int rows, int columns, double deviation) {
    add_matrix(name, rows, columns, deviation, options_.type);
  }

  /// Floats are normal; blocks of a quantized format are random bytes with sane scales.
  void add_matrix(const std::string& name, int rows, int columns, double deviation,
                  kvick::TensorType type) {
    const auto& format = kvick::info(type);
    const auto num_blocks =
        static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) / format.block_size;
    std::normal_distribution<float> normal(0.0f, static_cast<float>(deviation));
    Bytes data;
    for (std::size_t i = 0; i < num_blocks; ++i) {
      if (type == kvick::TensorType::kF32) {
        append(data, normal(rng_));
      } else if (type == kvick::TensorType::kF16) {
        append(data, kvick::f16(normal(rng_)));
      } else if (type == kvick::TensorType::kBF16) {
        append(data, kvick::bf16(normal(rng_)));
      } else {
        append_block(data, type, format.block_bytes, deviation);
      }
    }
    keep(name, type, {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)},
         std::move(data));
  }

  /// Scales stand where each format has them, and bring values to about `deviation`.
  void append_block(Bytes& data, kvick::TensorType type, std::size_t size, double deviation) {
    Bytes block(size);
    for (std::byte& byte : block) byte = static_cast<std::byte>(rng_() & 255u);
    const auto put = [&](std::size_t offset, double value) {
      const kvick::f16 half(static_cast<float>(value));
      std::memcpy(&block[offset], &half, sizeof half);
    };
    switch (type) {
      case kvick::TensorType::kQ4_0: put(0, deviation / 4.6); break;
      case kvick::TensorType::kQ4_1:
        put(0, deviation / 4.6);
        put(2, -deviation / 4.6 * 7.5);
        break;
      case kvick::TensorType::kQ5_0: put(0, deviation / 9.2); break;
      case kvick::TensorType::kQ5_1:
        put(0, deviation / 9.2);
        put(2, -deviation / 9.2 * 15.5);
        break;
      case kvick::TensorType::kQ8_0: put(0, deviation / 73.9); break;
      case kvick::TensorType::kQ4_K:
        put(0, deviation / (4.6 * 32));
        put(2, deviation / (4.6 * 32) * 7.5);
        break;
      case kvick::TensorType::kQ5_K:
        put(0, deviation / (9.2 * 32));
        put(2, deviation / (9.2 * 32) * 15.5);
        break;
      default: put(208, deviation / (18.5 * 74)); break;  // Q6_K
    }
    data.insert(data.end(), block.begin(), block.end());
  }

  template <class T>
  static void append(Bytes& data, T value) {
    const auto* const begin = reinterpret_cast<const std::byte*>(&value);
    data.insert(data.end(), begin, begin + sizeof value);
  }

  void keep(const std::string& name, kvick::TensorType type, const std::vector<std::uint64_t>& dims,
            Bytes data) {
    writer_.add_tensor(name, type, dims,
                       [data = std::move(data)](const kvick::GgufSink& sink) { sink(data); });
  }

  TinyModelOptions options_;
  std::mt19937 rng_;
  kvick::GgufWriter writer_;
};

}  // namespace support
