// SPDX-License-Identifier: MIT
// A model's weights in the order that the kernels read, and the conversion to it.
//
// Memory    Each matrix is packed on its own, and the caller hears of it, so that the pages of the
//           file can go as packed memory comes. The embedding of a model with a separate output is
//           read a row at a time and stays in the file.
// Errors    Those of PackedWeights and of the block formats.
// Threads   Packing splits each matrix over the pool.
// Layer     model: may include core, kernels, quant.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/model/weights.hpp"
#include "kvick/quant/block_formats.hpp"
#include "kvick/quant/packed_weights.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "kvick/quant/weight_view.hpp"

namespace kvick::inline v0_1 {

using PackedLayerWeights = BasicLayerWeights<PackedWeights>;

struct PackedModel {
  WeightView embedding;  ///< of the file; empty if the packed output serves as embedding
  std::vector<PackedLayerWeights> layers;
  std::vector<float> output_norm;
  PackedWeights output;  ///< [vocab_size][embedding_dim]

  /// The embedding of a token: [embedding_dim].
  void embed(TokenId token, float* values) const noexcept;
};

/// Packs every matrix, first converted to `type` if one is given and rows are whole blocks of it.
/// Calls packed(view) after each, with the matrix in the file.
template <class Packed>
PackedModel pack_model(ModelWeights weights, std::optional<TensorType> type, ThreadPool& pool,
                       Packed&& packed);

/// Bytes that pack_model() reads: the sum over the views that it hands to `packed`.
inline std::size_t stored_bytes(const ModelWeights& weights) noexcept;

// ---- Implementation: nothing below is API ----

namespace detail {

/// The same matrix in another format.
inline std::vector<std::byte> convert(const WeightView& weights, TensorType type,
                                      ThreadPool& pool) {
  const auto in_features = static_cast<std::size_t>(weights.in_features());
  const std::size_t row_bytes = in_features / info(type).block_size * info(type).block_bytes;
  std::vector<std::byte> blocks(static_cast<std::size_t>(weights.out_features()) * row_bytes);
  pool.parallel_for(weights.out_features(), [&](Index begin, Index end) {
    std::vector<float> row(in_features);
    for (Index output = begin; output < end; ++output) {
      weights.dequantize(output, 0, weights.in_features(), row.data());
      quantize(type, row,
               std::span(blocks).subspan(static_cast<std::size_t>(output) * row_bytes, row_bytes));
    }
  });
  return blocks;
}

inline PackedWeights pack_as(const WeightView& weights, std::optional<TensorType> type,
                             ThreadPool& pool) {
  const bool converts =
      type && *type != weights.type() &&
      static_cast<std::size_t>(weights.in_features()) % info(*type).block_size == 0;
  if (!converts) return PackedWeights(weights, pool);
  const std::vector<std::byte> blocks = convert(weights, *type, pool);
  return PackedWeights(WeightView(*type, blocks, weights.out_features(), weights.in_features()),
                       pool);
}

/// Calls visit(matrix) for every matrix of a layer.
template <class Layer, class Visit>
void for_each_matrix(Layer& layer, Visit&& visit) {
  visit(layer.query.matrix);
  visit(layer.key.matrix);
  visit(layer.value.matrix);
  visit(layer.attention_output.matrix);
  visit(layer.gate);
  visit(layer.up);
  visit(layer.down);
}

}  // namespace detail

inline void PackedModel::embed(TokenId token, float* values) const noexcept {
  if (embedding.empty()) {
    output.dequantize_row(token, values);
  } else {
    embedding.dequantize(token, 0, embedding.in_features(), values);
  }
}

inline std::size_t stored_bytes(const ModelWeights& weights) noexcept {
  std::size_t total = (weights.output.empty() ? weights.embedding : weights.output).data().size();
  for (const LayerWeights& layer : weights.layers) {
    detail::for_each_matrix(layer, [&](const WeightView& view) { total += view.data().size(); });
  }
  return total;
}

template <class Packed>
PackedModel pack_model(ModelWeights weights, std::optional<TensorType> type, ThreadPool& pool,
                       Packed&& packed) {
  const auto pack = [&](const WeightView& view) {
    PackedWeights result = detail::pack_as(view, type, pool);
    packed(view);
    return result;
  };
  const auto pack_linear = [&](LayerWeights::Linear& linear) {
    return PackedLayerWeights::Linear{pack(linear.matrix), std::move(linear.bias)};
  };
  PackedModel model;
  for (LayerWeights& layer : weights.layers) {
    // Braced initializers are evaluated in order: that of the file, more or less.
    model.layers.push_back({.attention_norm = std::move(layer.attention_norm),
                            .query = pack_linear(layer.query),
                            .key = pack_linear(layer.key),
                            .value = pack_linear(layer.value),
                            .query_norm = std::move(layer.query_norm),
                            .key_norm = std::move(layer.key_norm),
                            .attention_output = pack_linear(layer.attention_output),
                            .ffn_norm = std::move(layer.ffn_norm),
                            .gate = pack(layer.gate),
                            .up = pack(layer.up),
                            .down = pack(layer.down)});
  }
  model.output_norm = std::move(weights.output_norm);
  if (weights.output.empty()) {
    model.output = pack(weights.embedding);
  } else {
    model.output = pack(weights.output);
    model.embedding = weights.embedding;
  }
  return model;
}

}  // namespace kvick::inline v0_1
