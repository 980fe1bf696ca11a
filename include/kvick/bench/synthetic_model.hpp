// SPDX-License-Identifier: MIT
// Models of any size with random weights, to measure with where no real model is at hand.
//
//   const kvick::ModelShape& shape = kvick::find_model_shape("tinyllama-1.1b");
//   auto file = kvick::GgufFile::from_bytes(kvick::synthetic_model(shape, {}).to_bytes());
//   kvick::synthetic_model(shape, {.type = kvick::TensorType::kQ4_0}).write("random.gguf");
//
// What such a model generates is noise, but it takes as long as the real one: speed does not depend
// on the values. Weights have variance 1 / inputs, and those that add to the residual stream
// 1 / (2 layers) of that, so activations stay near unit variance. Every shape is one of the Llama
// architecture: Qwen's has its sizes and no biases.
//
// Memory    Rows are made when the file is written, one at a time.
// Accuracy  The same options give the same bytes on every machine.
// Errors    Error(kArgument) for a name that is no shape, or sizes that cannot be.
// Source    Sizes: the models' configuration files.
// Layer     bench: may include core, quant, gguf, text, model.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/bench/synthetic_vocabulary.hpp"
#include "kvick/bench/variates.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/random.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/model/llama_metadata.hpp"
#include "kvick/quant/block_formats.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace kvick::inline v0_1 {

/// The sizes of a decoder-only transformer with a gated MLP.
struct ModelShape {
  std::string_view name;
  int num_layers = 1;
  int embedding_dim = 0;
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 0;
  int ffn_dim = 0;
  int vocab_size = 0;
  int max_seq_len = 2048;
  bool is_tied = false;  ///< the embedding is the output head as well
  double rope_base = 10000;
};

inline constexpr std::array<ModelShape, 8> kModelShapes = {{
    {"smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, true, 100000},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, 32768, true, 1000000},
    {"tinyllama-1.1b", 22, 2048, 32, 4, 64, 5632, 32000, 2048, false, 10000},
    {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, true, 500000},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, 32768, true, 1000000},
    {"llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 131072, true, 500000},
    {"llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096, false, 10000},
    {"llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, false, 500000},
}};

/// The shape with this name; the error names all.
inline const ModelShape& find_model_shape(std::string_view name);

/// "smollm2-135m, qwen2.5-0.5b, ..."
inline std::string model_shape_names();

struct SyntheticModelOptions {
  TensorType type = TensorType::kQ8_0;  ///< of matrices
  std::uint64_t seed = 0;
  /// Normal weights, converted like those of any model, instead of evenly distributed blocks, which
  /// are made at about 1 GB/s.
  bool has_normal_weights = false;
};

/// Ready to write. The vocabulary has text pieces, then unused ones up to shape.vocab_size.
inline GgufWriter synthetic_model(const ModelShape& shape,
                                  const SyntheticModelOptions& options = {});

// ---- Implementation: nothing below is API ----

inline const ModelShape& find_model_shape(std::string_view name) {
  for (const ModelShape& shape : kModelShapes) {
    if (shape.name == name) return shape;
  }
  throw Error(
      ErrorCode::kArgument, "find_model_shape",
      "the shape must be one of " + model_shape_names() + ", got " + detail::in_quotes(name));
}

inline std::string model_shape_names() {
  std::string names;
  for (const ModelShape& shape : kModelShapes) {
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
  }
  return names;
}

namespace detail {

/// Fills the blocks of a row with evenly distributed values of the given deviation.
class BlockFiller {
 public:
  BlockFiller(TensorType type, double deviation) : type_(type), deviation_(deviation) {}

  void fill(PhiloxStream& stream, std::span<float> floats, std::span<std::byte> row) const {
    switch (type_) {
      // 8 bits: -128 .. 127, deviation 73.9 steps; 4 bits: -7 .. 7 with 0 twice as likely, 4.18.
      case TensorType::kQ8_0: return fill_blocks(stream, row, 34, deviation_ / 73.9, false);
      case TensorType::kQ4_0: return fill_blocks(stream, row, 18, deviation_ / 4.18, true);
      default: break;
    }
    const double width = deviation_ * std::sqrt(12.0);
    for (float& value : floats) {
      value = static_cast<float>(width * (static_cast<double>(stream()) * 0x1p-32 - 0.5));
    }
    quantize(type_, floats, row);
  }

 private:
  /// Blocks of an f16 scale and codes.
  static void fill_blocks(PhiloxStream& stream, std::span<std::byte> row, std::size_t block_bytes,
                          double scale, bool has_nibbles) {
    const f16 stored_scale(static_cast<float>(scale));
    for (std::size_t at = 0; at < row.size(); at += block_bytes) {
      std::memcpy(&row[at], &stored_scale, sizeof stored_scale);
      for (std::size_t i = sizeof stored_scale; i < block_bytes; i += sizeof(std::uint32_t)) {
        std::uint32_t word = stream();
        if (has_nibbles) {  // code 0 stands for -8, which has no counterpart: 8 stands for 0
          const std::uint32_t any = word | word >> 1 | word >> 2 | word >> 3;
          word |= (~any & 0x11111111u) << 3;
        }
        for (std::size_t byte = 0; byte < sizeof word; ++byte) {
          row[at + i + byte] = static_cast<std::byte>(word >> (8 * byte) & 0xff);
        }
      }
    }
  }

  TensorType type_;
  double deviation_;
};

/// Adds the tensors of a model, each with random numbers of its own.
class SyntheticWeights {
 public:
  SyntheticWeights(GgufWriter& writer, const SyntheticModelOptions& options)
      : writer_(writer), options_(options) {}

  /// [rows][columns]. Rows outside of [first_row, end_row) are zero.
  void add_matrix(const std::string& name, int rows, int columns, double deviation,
                  std::pair<int, int> random_rows) {
    const TensorType type = options_.type;
    const bool is_normal = options_.has_normal_weights;
    writer_.add_tensor(
        name, type, {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)},
        [=, stream = PhiloxStream(options_.seed, num_tensors_)](const GgufSink& sink) mutable {
          std::vector<float> floats(static_cast<std::size_t>(columns));
          std::vector<std::byte> row(floats.size() / info(type).block_size *
                                     info(type).block_bytes);
          const std::vector<std::byte> zeros(row.size());
          const BlockFiller filler(type, deviation);
          for (int i = 0; i < rows; ++i) {
            if (i < random_rows.first || i >= random_rows.second) {
              sink(zeros);  // in every format: codes 0 with scale 0
              continue;
            }
            if (is_normal) {
              for (float& value : floats) {
                value = static_cast<float>(deviation * next_normal(stream));
              }
              quantize(type, floats, row);
            } else {
              filler.fill(stream, floats, row);
            }
            sink(row);
          }
        });
    ++num_tensors_;
  }

  void add_matrix(const std::string& name, int rows, int columns, double deviation) {
    add_matrix(name, rows, columns, deviation, {0, rows});
  }

  /// An f32 vector of ones.
  void add_norm(const std::string& name, int size) {
    const std::vector<float> ones(static_cast<std::size_t>(size), 1.0f);
    writer_.add_tensor(name, TensorType::kF32, {static_cast<std::uint64_t>(size)},
                       [ones](const GgufSink& sink) { sink(std::as_bytes(std::span(ones))); });
  }

 private:
  GgufWriter& writer_;
  SyntheticModelOptions options_;
  std::uint64_t num_tensors_ = 0;  // with random numbers
};

inline void add_synthetic_layer(SyntheticWeights& weights, const ModelShape& shape, int layer) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const int width = shape.embedding_dim;
  const int query_width = shape.num_heads * shape.head_dim;
  const int key_width = shape.num_kv_heads * shape.head_dim;
  const double input = 1.0 / std::sqrt(width);
  const double residual = 1.0 / std::sqrt(2.0 * shape.num_layers);
  weights.add_norm(prefix + "attn_norm.weight", width);
  weights.add_matrix(prefix + "attn_q.weight", query_width, width, input);
  weights.add_matrix(prefix + "attn_k.weight", key_width, width, input);
  weights.add_matrix(prefix + "attn_v.weight", key_width, width, input);
  weights.add_matrix(prefix + "attn_output.weight", width, query_width,
                     residual / std::sqrt(query_width));
  weights.add_norm(prefix + "ffn_norm.weight", width);
  weights.add_matrix(prefix + "ffn_gate.weight", shape.ffn_dim, width, input);
  weights.add_matrix(prefix + "ffn_up.weight", shape.ffn_dim, width, input);
  weights.add_matrix(prefix + "ffn_down.weight", width, shape.ffn_dim,
                     residual / std::sqrt(shape.ffn_dim));
}

inline void check_shape(const ModelShape& shape, TensorType type) {
  constexpr std::string_view kOperation = "synthetic_model";
  const auto check = [&](bool ok, std::string_view rule, int value) {
    require(ok, ErrorCode::kArgument, kOperation, rule, ", got ", value);
  };
  check(shape.num_layers >= 1, "num_layers must be at least 1", shape.num_layers);
  check(shape.num_heads >= 1, "num_heads must be at least 1", shape.num_heads);
  check(shape.head_dim >= 2 && shape.head_dim % 2 == 0, "head_dim must be even", shape.head_dim);
  check(shape.num_kv_heads >= 1 && shape.num_heads % shape.num_kv_heads == 0,
        "num_kv_heads must divide num_heads", shape.num_kv_heads);
  const auto block = static_cast<int>(info(type).block_size);
  for (const int columns : {shape.embedding_dim, shape.ffn_dim, shape.num_heads * shape.head_dim}) {
    require(columns >= 1 && columns % block == 0, ErrorCode::kArgument, kOperation,
            "inputs of matrices must be multiples of ", block, ", the block of ", info(type).name,
            ", got ", columns);
  }
  require(shape.vocab_size >= kMinSyntheticVocabulary, ErrorCode::kArgument, kOperation,
          "vocab_size must be at least ", kMinSyntheticVocabulary, ", got ", shape.vocab_size);
}

}  // namespace detail

inline GgufWriter synthetic_model(const ModelShape& shape, const SyntheticModelOptions& options) {
  detail::check_shape(shape, options.type);
  GgufWriter writer;
  add_llama_sizes(writer, {.num_layers = shape.num_layers,
                           .max_seq_len = shape.max_seq_len,
                           .embedding_dim = shape.embedding_dim,
                           .ffn_dim = shape.ffn_dim,
                           .num_heads = shape.num_heads,
                           .num_kv_heads = shape.num_kv_heads,
                           .head_dim = shape.head_dim,
                           .rope_base = shape.rope_base});
  writer.add("general.name", detail::concat(shape.name.empty() ? "model" : shape.name,
                                            " of random weights, seed ", options.seed));
  const SyntheticVocabulary vocabulary(shape.vocab_size);
  vocabulary.write_to(writer);

  detail::SyntheticWeights weights(writer, options);
  const int width = shape.embedding_dim;
  // Logits of 0 for tokens that are no text: about half of the others have more. So the noise ends
  // by chance only and is text that a terminal can show.
  const std::pair<int, int> text = vocabulary.text_tokens();
  const double head_deviation = 1.0 / std::sqrt(width);
  if (shape.is_tied) {
    weights.add_matrix("token_embd.weight", shape.vocab_size, width, head_deviation);
  } else {
    weights.add_matrix("token_embd.weight", shape.vocab_size, width, 1.0);
  }
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    detail::add_synthetic_layer(weights, shape, layer);
  }
  weights.add_norm("output_norm.weight", width);
  if (!shape.is_tied) {
    weights.add_matrix("output.weight", shape.vocab_size, width, head_deviation, text);
  }
  return writer;
}

}  // namespace kvick::inline v0_1
