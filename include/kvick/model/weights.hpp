// SPDX-License-Identifier: MIT
// The weights of a Llama-family model: views of the tensors in a GGUF file, checked against the
// configuration.
//
// Matrices stay in the file's format and memory. Norms and biases are small and become f32.
//
// Errors    Error(kFormat) for a tensor that is missing or has another shape; Error(kUnsupported)
//           for a tensor that the Transformer would not use, because ignoring it would change the
//           result.
// Source    GGUF tensor names.
// Layer     model: may include core, quant, nn, gguf.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/model_config.hpp"
#include "kvick/quant/weight_view.hpp"

namespace kvick::inline v0_1 {

/// A linear layer with an optional bias.
template <class MatrixType>
struct BasicLinearWeights {
  MatrixType matrix;
  std::vector<float> bias;  ///< [out_features], or empty
};

template <class MatrixType>
struct BasicLayerWeights {
  using Linear = BasicLinearWeights<MatrixType>;
  std::vector<float> attention_norm;  ///< [embedding_dim]
  Linear query;                       ///< [num_heads * head_dim][embedding_dim]
  Linear key;                         ///< [num_kv_heads * head_dim][embedding_dim]
  Linear value;                       ///< [num_kv_heads * head_dim][embedding_dim]
  std::vector<float> query_norm;      ///< [head_dim], or empty
  std::vector<float> key_norm;        ///< [head_dim], or empty
  Linear attention_output;            ///< [embedding_dim][num_heads * head_dim]
  std::vector<float> ffn_norm;        ///< [embedding_dim]
  MatrixType gate;                    ///< [ffn_dim][embedding_dim]
  MatrixType up;                      ///< [ffn_dim][embedding_dim]
  MatrixType down;                    ///< [embedding_dim][ffn_dim]
};

/// Matrices as views of the file.
using LayerWeights = BasicLayerWeights<WeightView>;

struct ModelWeights {
  WeightView embedding;  ///< [vocab_size][embedding_dim]
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  ///< [embedding_dim]
  WeightView output;               ///< [vocab_size][embedding_dim]; empty if the embedding is used
};

/// Views into `file`, which must outlive them.
inline ModelWeights read_model_weights(const GgufFile& file, const ModelConfig& config);

// ---- Implementation: nothing below is API ----

namespace detail {

/// Looks tensors up by name, checks their shape and remembers which were used.
class WeightReader {
 public:
  static constexpr std::string_view kOperation = "read_model_weights";

  explicit WeightReader(const GgufFile& file) : file_(file) {}

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  WeightView matrix(const std::string& name, int out_features, int in_features) {
    const GgufTensor& tensor = use(name, out_features, in_features);
    return WeightView(tensor.type, tensor.data, out_features, in_features);
  }

  std::vector<float> vector(const std::string& name, int size) {
    const GgufTensor& tensor = use(name, 1, size);
    std::vector<float> values(static_cast<std::size_t>(size));
    dequantize(tensor.type, tensor.data, values);
    return values;
  }

  std::vector<float> optional_vector(const std::string& name, int size) {
    return has(name) ? vector(name, size) : std::vector<float>();
  }

  LayerWeights::Linear linear(const std::string& name, int out_features, int in_features) {
    return {matrix(name + ".weight", out_features, in_features),
            optional_vector(name + ".bias", out_features)};
  }

  void mark_used(const std::string& name) { used_.insert(name); }

  void require_all_used() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      require(used_.contains(tensor.name), ErrorCode::kUnsupported, kOperation,
              "every tensor must have a part in the model, got ", in_quotes(tensor.name));
    }
  }

 private:
  const GgufTensor& use(const std::string& name, int out_features, int in_features) {
    const GgufTensor& tensor = file_.tensor(name);
    require(tensor.dims[0] == static_cast<std::uint64_t>(in_features) &&
                tensor.num_rows() == static_cast<std::uint64_t>(out_features),
            ErrorCode::kFormat, kOperation, "tensor ", in_quotes(name), " must have ", out_features,
            " rows of ", in_features, ", got ", tensor.num_rows(), " rows of ", tensor.dims[0]);
    used_.insert(name);
    return tensor;
  }

  const GgufFile& file_;
  std::set<std::string, std::less<>> used_;
};

inline LayerWeights read_layer(WeightReader& reader, const ModelConfig& config, int layer) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const int width = config.embedding_dim;
  const int query_width = config.num_heads * config.head_dim;
  const int key_width = config.num_kv_heads * config.head_dim;
  LayerWeights weights;
  weights.attention_norm = reader.vector(prefix + "attn_norm.weight", width);
  weights.query = reader.linear(prefix + "attn_q", query_width, width);
  weights.key = reader.linear(prefix + "attn_k", key_width, width);
  weights.value = reader.linear(prefix + "attn_v", key_width, width);
  if (config.architecture == "qwen3") {
    weights.query_norm = reader.vector(prefix + "attn_q_norm.weight", config.head_dim);
    weights.key_norm = reader.vector(prefix + "attn_k_norm.weight", config.head_dim);
  }
  weights.attention_output = reader.linear(prefix + "attn_output", width, query_width);
  weights.ffn_norm = reader.vector(prefix + "ffn_norm.weight", width);
  weights.gate = reader.matrix(prefix + "ffn_gate.weight", config.ffn_dim, width);
  weights.up = reader.matrix(prefix + "ffn_up.weight", config.ffn_dim, width);
  weights.down = reader.matrix(prefix + "ffn_down.weight", width, config.ffn_dim);
  // Written by old converters and computed from the configuration instead.
  reader.mark_used(prefix + "attn_rot_embd.weight");
  reader.mark_used(prefix + "attn_rot_embd");
  return weights;
}

}  // namespace detail

inline ModelWeights read_model_weights(const GgufFile& file, const ModelConfig& config) {
  detail::WeightReader reader(file);
  // Before anything is allocated per layer: a layer has at least nine tensors.
  detail::require(static_cast<std::size_t>(config.num_layers) <= file.tensors().size(),
                  ErrorCode::kFormat, detail::WeightReader::kOperation, "block_count must fit the ",
                  file.tensors().size(), " tensors of the file, got ", config.num_layers);
  ModelWeights weights;
  weights.embedding = reader.matrix("token_embd.weight", config.vocab_size, config.embedding_dim);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(detail::read_layer(reader, config, layer));
  }
  weights.output_norm = reader.vector("output_norm.weight", config.embedding_dim);
  if (reader.has("output.weight")) {
    weights.output = reader.matrix("output.weight", config.vocab_size, config.embedding_dim);
  }
  reader.mark_used("rope_freqs.weight");
  reader.require_all_used();
  return weights;
}

}  // namespace kvick::inline v0_1
