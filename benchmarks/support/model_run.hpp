// SPDX-License-Identifier: MIT
// Prefill and decoding of one sequence, to be timed, and what they compute as a digest.
//
// Token ids are arbitrary, so random weights do. Operations are 2 per weight of every matrix
// product really done, bytes those of all matrices that a step reads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvick/bench/digest.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace measure {

/// Arbitrary ids, the same for every model with this vocabulary.
inline std::vector<kvick::TokenId> arbitrary_tokens(std::size_t count, int vocab_size,
                                                    unsigned first = 0) {
  std::vector<kvick::TokenId> tokens;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned id = (first + i) * 7919u % static_cast<unsigned>(vocab_size);
    tokens.push_back(static_cast<kvick::TokenId>(id));
  }
  return tokens;
}

struct ModelRunOptions {
  int prefill_tokens = 512;
  int decode_tokens = 64;
  int depth = 0;  ///< tokens before those decoded
  kvick::ElementType cache_type = kvick::ElementType::kF16;
};

class ModelRun {
 public:
  /// The model must outlive it.
  ModelRun(kvick::Transformer& model, const ModelRunOptions& options)
      : options_(options),
        model_(model),
        cache_(model.make_cache(
            {.max_seq_len =
                 std::max({options.prefill_tokens, options.depth + options.decode_tokens, 1}),
             .element_type = options.cache_type})),
        logits_(1, model.vocab_size()),
        tokens_(
            arbitrary_tokens(static_cast<std::size_t>(cache_.max_seq_len()), model.vocab_size())) {}

  const kvick::Transformer& model() const { return model_; }
  const ModelRunOptions& options() const { return options_; }

  /// One batch of prefill_tokens, which wants the logits of the last.
  void prefill() {
    cache_.truncate(0, 0);
    forward(options_.prefill_tokens);
  }

  /// decode_tokens steps of one token after `depth` others, which are evaluated by the first call.
  void decode() { decode_steps(nullptr); }

  /// Of the bits of the logits of one prefill, and of all decoding steps.
  std::string prefill_digest() {
    prefill();
    kvick::OutputDigest digest;
    digest.add(row());
    return digest.text();
  }
  std::string decode_digest() {
    kvick::OutputDigest digest;
    decode_steps(&digest);
    return digest.text();
  }

 private:
  std::span<const float> row() const {
    return {logits_.data(), static_cast<std::size_t>(logits_.size())};
  }

  void decode_steps(kvick::OutputDigest* digest) {
    if (cache_.length(0) < options_.depth) {
      cache_.truncate(0, 0);
      forward(options_.depth);
    }
    cache_.truncate(0, options_.depth);
    for (int i = 0; i < options_.decode_tokens; ++i) {
      forward(1);
      if (digest != nullptr) digest->add(row());
    }
  }

  void forward(int count) {
    if (!cache_.reserve(0, count)) throw std::runtime_error("the context is too small");
    const int length = cache_.length(0);
    const auto next = std::span(tokens_).subspan(static_cast<std::size_t>(length),
                                                 static_cast<std::size_t>(count));
    model_.forward(kvick::Batch({0, length, next, 1}), cache_, logits_);
    cache_.commit(0, next);
  }

  ModelRunOptions options_;
  kvick::Transformer& model_;
  kvick::Transformer::Cache cache_;
  kvick::Matrix logits_;
  std::vector<kvick::TokenId> tokens_;
};

/// Weights of matrix products: of the layers, for every token, and of the output head.
struct MatrixSizes {
  double layer_weights = 0;
  double head_weights = 0;
  double bytes = 0;

  double weights() const { return layer_weights + head_weights; }
};

/// `converted` as in TransformerOptions::weights.
inline MatrixSizes matrix_sizes(const kvick::GgufFile& file,
                                std::optional<kvick::TensorType> converted = std::nullopt) {
  MatrixSizes sizes;
  const bool is_tied = file.find_tensor("output.weight") == nullptr;
  const std::string head = is_tied ? "token_embd.weight" : "output.weight";
  for (const kvick::GgufTensor& tensor : file.tensors()) {
    if (tensor.num_dims != 2 || (tensor.name == "token_embd.weight" && !is_tied)) continue;
    const auto num_weights = static_cast<double>(tensor.num_elements());
    (tensor.name == head ? sizes.head_weights : sizes.layer_weights) += num_weights;
    const auto format = kvick::info(converted.value_or(tensor.type));
    sizes.bytes += tensor.dims[0] % format.block_size == 0
                       ? num_weights / format.block_size * format.block_bytes
                       : static_cast<double>(tensor.data.size());
  }
  return sizes;
}

}  // namespace measure
