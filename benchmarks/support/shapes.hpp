// SPDX-License-Identifier: MIT
// The linear layers of models that people run on CPUs: what kernels are measured on.
//
// Source    The models' configuration files.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/matrix.hpp"

namespace measure {

using kvick::Index;

/// The sizes of a decoder-only model with a gated MLP.
struct ModelShape {
  std::string_view name;
  Index embedding_dim;
  Index num_heads;
  Index num_kv_heads;
  Index head_dim;
  Index ffn_dim;
  Index vocab_size;
};

inline constexpr std::array<ModelShape, 3> kModelShapes = {{
    {"tinyllama-1.1b", 2048, 32, 4, 64, 5632, 32000},
    {"llama-3.2-1b", 2048, 32, 8, 64, 8192, 128256},
    {"qwen2.5-0.5b", 896, 14, 2, 64, 4864, 151936},
}};

/// A matrix [out_features][in_features].
struct LayerShape {
  std::string name;  ///< "tinyllama-1.1b/down"
  Index out_features;
  Index in_features;

  double num_weights() const noexcept {
    return static_cast<double>(out_features) * static_cast<double>(in_features);
  }
};

/// q, kv (k or v), o unless it has the size of q, gate (or up), down and head.
inline std::vector<LayerShape> layer_shapes(const ModelShape& model) {
  const Index query_width = model.num_heads * model.head_dim;
  const Index key_width = model.num_kv_heads * model.head_dim;
  const auto layer = [&](const char* name, Index out_features, Index in_features) {
    return LayerShape{std::string(model.name) + "/" + name, out_features, in_features};
  };
  std::vector<LayerShape> layers = {layer("q", query_width, model.embedding_dim),
                                    layer("kv", key_width, model.embedding_dim),
                                    layer("gate", model.ffn_dim, model.embedding_dim),
                                    layer("down", model.embedding_dim, model.ffn_dim),
                                    layer("head", model.vocab_size, model.embedding_dim)};
  if (query_width != model.embedding_dim) {
    layers.insert(layers.begin() + 2, layer("o", model.embedding_dim, query_width));
  }
  return layers;
}

/// Those of every model, each size once: q and o of the three are square, and two models share it.
inline std::vector<LayerShape> all_layer_shapes() {
  std::vector<LayerShape> shapes;
  for (const ModelShape& model : kModelShapes) {
    for (LayerShape& layer : layer_shapes(model)) {
      const bool is_new = std::none_of(shapes.begin(), shapes.end(), [&](const LayerShape& other) {
        return other.out_features == layer.out_features && other.in_features == layer.in_features;
      });
      if (is_new) shapes.push_back(std::move(layer));
    }
  }
  return shapes;
}

/// The rows that kernels are measured with: decoding and verifying, then prefill.
inline std::vector<Index> row_counts() {
  std::vector<Index> counts;
  for (Index rows = 1; rows <= 16; ++rows) counts.push_back(rows);
  counts.insert(counts.end(), {32, 128, 512});
  return counts;
}

}  // namespace measure
