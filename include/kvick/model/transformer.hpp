// SPDX-License-Identifier: MIT
// A decoder-only transformer of the Llama family, from a GGUF file.
//
// Architectures llama (Llama 1 to 3, Mistral, TinyLlama, SmolLM), qwen2 and qwen3; weights in any
// format of TensorType, used as they are stored; activations in f32.
//
// Shapes    Hidden states are [tokens of the batch][embedding_dim].
// Accuracy  The orders of operations are those of the layers (nn/), so a token's logits depend on
//           its own sequence only, to the bit: not on the batch, chunks, threads, ISA or cache
//           layout.
// Errors    Construction throws as read_model_config and read_model_weights do. forward() checks
//           the batch against model and cache before it computes or writes anything.
// Threads   One forward() at a time. Layers are split over the model's own pool.
// Source    Touvron et al. 2023 (Llama); Qwen team 2024, 2025 (biases, query and key norms).
// Layer     model: may include core, kernels, quant, cache, nn, gguf.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/kv_storage.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/kernels/kernel_table.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/model/model_config.hpp"
#include "kvick/model/weights.hpp"
#include "kvick/nn/attention.hpp"
#include "kvick/nn/linear.hpp"
#include "kvick/nn/mlp.hpp"
#include "kvick/nn/rms_norm.hpp"
#include "kvick/nn/rope.hpp"

namespace kvick::inline v0_1 {

struct TransformerOptions {
  int threads = 0;  ///< 0: what the process may use, see default_num_threads()
  Isa isa = default_isa();
};

class Transformer {
 public:
  using Cache = ContiguousKVCache;

  explicit Transformer(const std::filesystem::path& path, const TransformerOptions& options = {});
  explicit Transformer(GgufFile file, const TransformerOptions& options = {});

  const ModelConfig& config() const noexcept { return config_; }
  const GgufFile& file() const noexcept { return file_; }
  int vocab_size() const noexcept { return config_.vocab_size; }
  int max_seq_len() const noexcept { return config_.max_seq_len; }
  int num_threads() const noexcept { return pool_->num_threads(); }
  Isa isa() const noexcept { return kernels_->isa; }

  Cache make_cache(const CacheOptions& options = {}) const;

  /// Computes the batch. Room for its tokens must be reserved in `cache`; its keys and values are
  /// written there, and logits [batch.num_logits()][vocab_size()] are filled.
  void forward(const Batch& batch, KVStorage& cache, MatrixRef logits);

  /// Calls progress(bytes_done, bytes_total) while it brings every weight into memory, so that the
  /// first forward pass does not wait for the disk.
  template <class Progress>
  void preload(Progress&& progress) const;

 private:
  /// Activations of a forward pass; they only grow.
  struct Workspace {
    std::vector<AttentionSegment> segments;
    std::vector<int> positions;
    std::vector<Index> logit_rows;
    std::vector<TokenId> tokens;
    Matrix hidden, normed, query, key, value, attended, gate, up, rotations, last_hidden;
  };

  void check(const Batch& batch, const KVStorage& cache, const MatrixRef& logits) const;
  void plan(const Batch& batch);
  void embed(Index num_tokens);
  void attention_block(int layer, Index num_tokens, KVStorage& cache);
  void write_cache(int layer, KVStorage& cache);
  void mlp_block(int layer, Index num_tokens);
  void output_head(MatrixRef logits);

  ComputeContext context() noexcept { return {*pool_, *kernels_}; }

  GgufFile file_;
  ModelConfig config_;
  ModelWeights weights_;
  Rope rope_;
  std::unique_ptr<ThreadPool> pool_;
  const KernelTable* kernels_;
  Attention attention_;
  Workspace work_;
};

static_assert(LanguageModel<Transformer>);

// ---- Implementation: nothing below is API ----

namespace detail {

/// The first `rows` rows of a matrix that has at least that many after the call.
inline MatrixRef first_rows(Matrix& matrix, Index rows, Index columns) {
  if (matrix.rows() < rows || matrix.cols() != columns) matrix.resize(rows, columns);
  return matrix.topRows(rows);
}

}  // namespace detail

inline Transformer::Transformer(const std::filesystem::path& path,
                                const TransformerOptions& options)
    : Transformer(GgufFile(path), options) {}

inline Transformer::Transformer(GgufFile file, const TransformerOptions& options)
    : file_(std::move(file)),
      config_(read_model_config(file_)),
      weights_(read_model_weights(file_, config_)),
      rope_(config_.rope),
      pool_(std::make_unique<ThreadPool>(options.threads)),
      kernels_(&kernel_table(options.isa)),
      attention_({config_.num_heads, config_.num_kv_heads, config_.head_dim},
                 pool_->num_threads()) {}

inline Transformer::Cache Transformer::make_cache(const CacheOptions& options) const {
  return Cache(options.element_type,
               {.num_layers = config_.num_layers,
                .batch_size = options.num_sequences,
                .num_kv_heads = config_.num_kv_heads,
                .max_seq_len = options.max_seq_len == 0 ? config_.max_seq_len : options.max_seq_len,
                .head_dim = config_.head_dim});
}

inline void Transformer::check(const Batch& batch, const KVStorage& cache,
                               const MatrixRef& logits) const {
  constexpr std::string_view kOperation = "Transformer::forward";
  detail::require(logits.rows() == batch.num_logits() &&
                      (batch.num_logits() == 0 || logits.cols() == vocab_size()),
                  ErrorCode::kShape, kOperation, "logits must be [", batch.num_logits(), ", ",
                  vocab_size(), "], got [", logits.rows(), ", ", logits.cols(), "]");
  detail::require(cache.num_layers() == config_.num_layers, ErrorCode::kShape, kOperation,
                  "the cache must have ", config_.num_layers, " layers, got ", cache.num_layers());
  detail::require(
      cache.num_kv_heads() == config_.num_kv_heads && cache.head_dim() == config_.head_dim,
      ErrorCode::kShape, kOperation, "the cache must have ", config_.num_kv_heads, " KV heads of ",
      config_.head_dim, ", got ", cache.num_kv_heads(), " of ", cache.head_dim());
  for (const Segment& segment : batch.segments()) {
    detail::require(segment.sequence < cache.num_sequences(), ErrorCode::kArgument, kOperation,
                    "sequence must be below the cache's ", cache.num_sequences(), ", got ",
                    segment.sequence);
    const int length = cache.length(segment.sequence);
    detail::require(segment.first_position == length, ErrorCode::kArgument, kOperation,
                    "first_position must be the cached length ", length, " of sequence ",
                    segment.sequence, ", got ", segment.first_position);
    const auto num_tokens = static_cast<Index>(segment.tokens.size());
    detail::require(num_tokens <= cache.reserved(segment.sequence) - length, ErrorCode::kCapacity,
                    kOperation, "tokens must fit the reserved room of ",
                    cache.reserved(segment.sequence) - length, ", got ", num_tokens);
    for (const TokenId token : segment.tokens) {
      detail::require(token >= 0 && token < vocab_size(), ErrorCode::kArgument, kOperation,
                      "token ids must be in [0, ", vocab_size(), "), got ", token);
    }
  }
}

inline void Transformer::plan(const Batch& batch) {
  work_.segments.clear();
  work_.positions.clear();
  work_.logit_rows.clear();
  work_.tokens.clear();
  for (const Segment& segment : batch.segments()) {
    const auto first_row = static_cast<Index>(work_.positions.size());
    const int num_tokens = static_cast<int>(segment.tokens.size());
    work_.segments.push_back({segment.sequence, segment.first_position, first_row, num_tokens});
    for (int i = 0; i < num_tokens; ++i) {
      work_.positions.push_back(segment.first_position + i);
      if (i >= num_tokens - segment.num_logits) work_.logit_rows.push_back(first_row + i);
    }
    work_.tokens.insert(work_.tokens.end(), segment.tokens.begin(), segment.tokens.end());
  }
  attention_.plan(work_.segments);
  rope_.rotations(work_.positions,
                  detail::first_rows(work_.rotations, batch.num_tokens(), rope_.rotary_dim()));
}

inline void Transformer::embed(Index num_tokens) {
  MatrixRef hidden = detail::first_rows(work_.hidden, num_tokens, config_.embedding_dim);
  for (Index row = 0; row < num_tokens; ++row) {
    weights_.embedding.dequantize(work_.tokens[static_cast<std::size_t>(row)], 0,
                                  config_.embedding_dim, hidden.row(row).data());
  }
}

inline void Transformer::write_cache(int layer, KVStorage& cache) {
  for (const AttentionSegment& segment : work_.segments) {
    cache.write(layer, segment.sequence, segment.first_position,
                work_.key.middleRows(segment.first_row, segment.num_tokens),
                work_.value.middleRows(segment.first_row, segment.num_tokens));
  }
}

inline void Transformer::attention_block(int layer, Index num_tokens, KVStorage& cache) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const Index query_width = Index{config_.num_heads} * config_.head_dim;
  const Index key_width = Index{config_.num_kv_heads} * config_.head_dim;
  MatrixRef hidden = work_.hidden.topRows(num_tokens);
  MatrixRef normed = detail::first_rows(work_.normed, num_tokens, config_.embedding_dim);
  MatrixRef query = detail::first_rows(work_.query, num_tokens, query_width);
  MatrixRef key = detail::first_rows(work_.key, num_tokens, key_width);
  MatrixRef value = detail::first_rows(work_.value, num_tokens, key_width);
  MatrixRef attended = detail::first_rows(work_.attended, num_tokens, query_width);
  const ConstMatrixRef rotations = work_.rotations.topRows(num_tokens);

  rms_norm(hidden, weights.attention_norm, config_.rms_epsilon, normed, context());
  linear(weights.query.matrix, normed, query, context(), {.bias = weights.query.bias});
  linear(weights.key.matrix, normed, key, context(), {.bias = weights.key.bias});
  linear(weights.value.matrix, normed, value, context(), {.bias = weights.value.bias});
  if (!weights.query_norm.empty()) {
    rms_norm_heads(query, weights.query_norm, config_.rms_epsilon, context());
    rms_norm_heads(key, weights.key_norm, config_.rms_epsilon, context());
  }
  rope_.apply(rotations, query, context());
  rope_.apply(rotations, key, context());
  write_cache(layer, cache);
  attention_.forward(layer, query, cache, attended, context());
  linear(weights.attention_output.matrix, attended, hidden, context(),
         {.bias = weights.attention_output.bias, .add_to_output = true});
}

inline void Transformer::mlp_block(int layer, Index num_tokens) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  MatrixRef hidden = work_.hidden.topRows(num_tokens);
  MatrixRef normed = work_.normed.topRows(num_tokens);
  rms_norm(hidden, weights.ffn_norm, config_.rms_epsilon, normed, context());
  add_gated_mlp(weights.mlp, normed, hidden,
                detail::first_rows(work_.gate, num_tokens, config_.ffn_dim),
                detail::first_rows(work_.up, num_tokens, config_.ffn_dim), context());
}

inline void Transformer::output_head(MatrixRef logits) {
  const auto num_rows = static_cast<Index>(work_.logit_rows.size());
  if (num_rows == 0) return;
  MatrixRef rows = detail::first_rows(work_.last_hidden, num_rows, config_.embedding_dim);
  for (Index i = 0; i < num_rows; ++i) {
    rows.row(i) = work_.hidden.row(work_.logit_rows[static_cast<std::size_t>(i)]);
  }
  rms_norm(rows, weights_.output_norm, config_.rms_epsilon, rows, context());
  linear(weights_.output, rows, logits, context());
}

inline void Transformer::forward(const Batch& batch, KVStorage& cache, MatrixRef logits) {
  check(batch, cache, logits);
  if (batch.empty()) return;
  const ScopedFpEnvironment fp_environment;
  plan(batch);
  embed(batch.num_tokens());
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    attention_block(layer, batch.num_tokens(), cache);
    mlp_block(layer, batch.num_tokens());
  }
  output_head(logits);
}

template <class Progress>
void Transformer::preload(Progress&& progress) const {
  constexpr std::size_t kPageBytes = 4096;
  constexpr std::size_t kReportBytes = std::size_t{16} << 20;
  std::size_t total = 0;
  for (const GgufTensor& tensor : file_.tensors()) total += tensor.data.size();
  std::size_t done = 0;
  for (const GgufTensor& tensor : file_.tensors()) {
    for (std::size_t at = 0; at < tensor.data.size(); at += kReportBytes) {
      const std::size_t end = std::min(tensor.data.size(), at + kReportBytes);
      for (std::size_t page = at; page < end; page += kPageBytes) {
        *static_cast<const volatile std::byte*>(&tensor.data[page]);
      }
      done += end - at;
      progress(done, total);
    }
  }
}

}  // namespace kvick::inline v0_1
