// SPDX-License-Identifier: MIT
// The linear layers of models that people run on CPUs: what kernels are measured on.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/bench/synthetic_model.hpp"
#include "kvick/core/matrix.hpp"

namespace measure {

using kvick::Index;

/// Those whose layers are measured one by one.
inline constexpr std::array<std::string_view, 3> kMeasuredModels = {"tinyllama-1.1b",
                                                                    "llama-3.2-1b", "qwen2.5-0.5b"};

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
inline std::vector<LayerShape> layer_shapes(const kvick::ModelShape& model) {
  const Index query_width = Index{model.num_heads} * model.head_dim;
  const Index key_width = Index{model.num_kv_heads} * model.head_dim;
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
  for (const std::string_view model : kMeasuredModels) {
    for (LayerShape& layer : layer_shapes(kvick::find_model_shape(model))) {
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
