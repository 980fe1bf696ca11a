// SPDX-License-Identifier: MIT
// A decoder-only transformer of the Llama family, from a GGUF file.
//
// Architectures llama (Llama 1 to 3, Mistral, TinyLlama, SmolLM), qwen2 and qwen3; weights in any
// format of TensorType, packed once at load without loss, or converted first on request. Float
// weights meet f32 activations; quantized weights meet int8 activations unless f32 is asked for.
//
// Shapes    Hidden states are [tokens of the batch][embedding_dim].
// Accuracy  The orders of operations are those of the layers (nn/), so a token's logits depend on
//           its own sequence only, to the bit: not on the batch, chunks, threads, ISA or cache
//           layout.
// Memory    The packed weights; pages of a mapped file go as its matrices are packed.
// Errors    Construction throws as read_model_config, read_model_weights and pack_model do.
//           forward() checks the batch against model and cache before it computes or writes
//           anything.
// Threads   One forward() at a time. Layers are split over the model's own pool.
// Source    Touvron et al. 2023 (Llama); Qwen team 2024, 2025 (biases, query and key norms).
// Layer     model: may include core, kernels, quant, cache, nn, gguf.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/kv_storage.hpp"
#include "kvick/cache/paged_kv_cache.hpp"
#include "kvick/cache/sequence_state.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/kernels/kernel_table.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/model/model_config.hpp"
#include "kvick/model/packed_model.hpp"
#include "kvick/model/weights.hpp"
#include "kvick/nn/attention.hpp"
#include "kvick/nn/mlp.hpp"
#include "kvick/nn/rms_norm.hpp"
#include "kvick/nn/rope.hpp"
#include "kvick/quant/packed_linear.hpp"
#include "kvick/quant/tensor_type.hpp"

namespace kvick::inline v0_1 {

struct TransformerOptions {
  int threads = 0;  ///< 0: what the process may use, see default_num_threads()
  Isa isa = default_isa();
  /// What quantized weights are multiplied by.
  ActivationType activations = ActivationType::kInt8;
  /// Converts every matrix whose rows are whole blocks of this type; a lossy one loses.
  std::optional<TensorType> weights = std::nullopt;
  /// What tokens see of those before them, in every layer. Models are trained for one; a window
  /// with some first tokens lets others go on far beyond their context at little loss.
  AttentionWindow window = {};
  /// Called with bytes done and in total while weights are packed.
  std::function<void(std::size_t done, std::size_t total)> progress = {};
};

class Transformer {
 public:
  using Cache = PagedKVStorage;

  explicit Transformer(const std::filesystem::path& path, const TransformerOptions& options = {});
  explicit Transformer(GgufFile file, const TransformerOptions& options = {});

  const ModelConfig& config() const noexcept { return config_; }
  const GgufFile& file() const noexcept { return file_; }
  int vocab_size() const noexcept { return config_.vocab_size; }
  int max_seq_len() const noexcept { return config_.max_seq_len; }
  int num_threads() const noexcept { return pool_->num_threads(); }
  Isa isa() const noexcept { return kernels_->isa; }

  /// A number for all that keys and values depend on beside the tokens: architecture, weights and
  /// how they are multiplied. Of each tensor, name, type, sizes and some 64 samples of its bytes
  /// are read.
  std::uint64_t fingerprint() const;

  /// A cache of blocks that sequences share. With a bounded window it keeps only what tokens see.
  Cache make_cache(const CacheOptions& options = {}) const;

  /// A cache in which every sequence owns its full length, for the same results.
  ContiguousKVCache make_contiguous_cache(const CacheOptions& options = {}) const;

  /// Computes the batch. Room for its tokens must be reserved in `cache`; its keys and values are
  /// written there, and logits [batch.num_logits()][vocab_size()] are filled.
  void forward(const Batch& batch, KVStorage& cache, MatrixRef logits);

 private:
  /// Activations of a forward pass; they only grow.
  struct Workspace {
    std::vector<AttentionSegment> segments;
    std::vector<int> positions;
    std::vector<Index> logit_rows;
    std::vector<TokenId> tokens;
    Matrix hidden, normed, query, key, value, attended, ffn_hidden, rotations, last_hidden;
  };

  void check(const Batch& batch, const KVStorage& cache, const MatrixRef& logits) const;
  void plan(const Batch& batch);
  void embed(Index num_tokens);
  void attention_block(int layer, Index num_tokens, KVStorage& cache);
  void write_cache(int layer, KVStorage& cache);
  void mlp_block(int layer, Index num_tokens);
  void output_head(MatrixRef logits);
  void release(const WeightView& packed) const noexcept;
  void multiply(std::span<const LinearProduct> products, const ConstMatrixRef& x);

  ComputeContext context() noexcept { return {*pool_, *kernels_}; }

  GgufFile file_;
  ModelConfig config_;
  Rope rope_;
  std::unique_ptr<ThreadPool> pool_;
  const KernelTable* kernels_;
  ActivationType activations_;
  std::optional<TensorType> converted_to_;
  PackedModel weights_;
  Attention attention_;
  LinearWorkspace linear_work_;
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
      rope_(config_.rope),
      pool_(std::make_unique<ThreadPool>(options.threads)),
      kernels_(&kernel_table(options.isa)),
      activations_(options.activations),
      converted_to_(options.weights),
      attention_({.num_heads = config_.num_heads,
                  .num_kv_heads = config_.num_kv_heads,
                  .head_dim = config_.head_dim,
                  .window = options.window},
                 pool_->num_threads()),
      linear_work_(pool_->num_threads()) {
  ModelWeights stored = read_model_weights(file_, config_);
  const std::size_t total = stored_bytes(stored);
  std::size_t done = 0;
  weights_ = pack_model(std::move(stored), options.weights, *pool_, [&](const WeightView& packed) {
    release(packed);
    done += packed.data().size();
    if (options.progress) options.progress(done, total);
  });
}

/// The matrix is in packed memory now: what the file had of it may go.
inline void Transformer::release(const WeightView& packed) const noexcept {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (tensor.data.data() == packed.data().data()) file_.release_pages(tensor);
  }
}

inline Transformer::Cache Transformer::make_cache(const CacheOptions& options) const {
  return {options.element_type,
          {.num_layers = config_.num_layers,
           .num_sequences = options.num_sequences,
           .num_kv_heads = config_.num_kv_heads,
           .max_seq_len = options.max_seq_len == 0 ? config_.max_seq_len : options.max_seq_len,
           .head_dim = config_.head_dim,
           .num_blocks = options.num_blocks,
           .block_tokens = options.block_tokens,
           .reuses_prefixes = options.reuses_prefixes,
           .window = attention_.shape().window}};
}

inline ContiguousKVCache Transformer::make_contiguous_cache(const CacheOptions& options) const {
  return {options.element_type,
          {.num_layers = config_.num_layers,
           .batch_size = options.num_sequences,
           .num_kv_heads = config_.num_kv_heads,
           .max_seq_len = options.max_seq_len == 0 ? config_.max_seq_len : options.max_seq_len,
           .head_dim = config_.head_dim}};
}

inline std::uint64_t Transformer::fingerprint() const {
  std::uint64_t sum = 0;
  const auto add = [&sum](const void* data, std::size_t size) {
    const std::uint64_t parts[] = {sum,
                                   state_checksum({static_cast<const std::byte*>(data), size})};
    sum = state_checksum(std::as_bytes(std::span(parts)));
  };
  const auto add_number = [&](auto value) { add(&value, sizeof value); };
  add(config_.architecture.data(), config_.architecture.size());
  add_number(config_.rms_epsilon);
  add_number(config_.num_heads);
  add_number(static_cast<int>(activations_));
  add_number(converted_to_ ? static_cast<int>(*converted_to_) : -1);
  add_number(attention_.shape().window.size);
  add_number(attention_.shape().window.num_sinks);
  const int positions[] = {1, 100};
  Matrix rotations(2, rope_.rotary_dim());
  rope_.rotations(positions, rotations);
  add(rotations.data(), static_cast<std::size_t>(rotations.size()) * sizeof(float));
  for (const GgufTensor& tensor : file_.tensors()) {
    add(tensor.name.data(), tensor.name.size());
    add_number(static_cast<int>(tensor.type));
    add(tensor.dims.data(), sizeof tensor.dims);
    constexpr std::size_t kSampleBytes = 64, kSamples = 64;
    const std::size_t step = std::max(kSampleBytes, tensor.data.size() / kSamples);
    for (std::size_t at = 0; at < tensor.data.size(); at += step) {
      add(tensor.data.data() + at, std::min(kSampleBytes, tensor.data.size() - at));
    }
  }
  return sum;
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
    weights_.embed(work_.tokens[static_cast<std::size_t>(row)], hidden.row(row).data());
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
  const PackedLayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
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
  const LinearProduct projections[] = {
      {weights.query.matrix, query, weights.query.bias},
      {weights.key.matrix, key, weights.key.bias},
      {weights.value.matrix, value, weights.value.bias},
  };
  multiply(projections, normed);
  if (!weights.query_norm.empty()) {
    rms_norm_heads(query, weights.query_norm, config_.rms_epsilon, context());
    rms_norm_heads(key, weights.key_norm, config_.rms_epsilon, context());
  }
  rope_.apply(rotations, query, context());
  rope_.apply(rotations, key, context());
  write_cache(layer, cache);
  attention_.forward(layer, query, cache, attended, context());
  const LinearProduct output{weights.attention_output.matrix, hidden, weights.attention_output.bias,
                             /*add_to_output=*/true};
  multiply({&output, 1}, attended);
}

inline void Transformer::multiply(std::span<const LinearProduct> products,
                                  const ConstMatrixRef& x) {
  kvick::multiply(products, x, activations_, linear_work_, context());
}

inline void Transformer::mlp_block(int layer, Index num_tokens) {
  const PackedLayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  MatrixRef hidden = work_.hidden.topRows(num_tokens);
  MatrixRef normed = work_.normed.topRows(num_tokens);
  rms_norm(hidden, weights.ffn_norm, config_.rms_epsilon, normed, context());
  add_gated_mlp({weights.gate, weights.up, weights.down}, normed, hidden,
                detail::first_rows(work_.ffn_hidden, num_tokens, config_.ffn_dim), activations_,
                linear_work_, context());
}

inline void Transformer::output_head(MatrixRef logits) {
  const auto num_rows = static_cast<Index>(work_.logit_rows.size());
  if (num_rows == 0) return;
  MatrixRef rows = detail::first_rows(work_.last_hidden, num_rows, config_.embedding_dim);
  for (Index i = 0; i < num_rows; ++i) {
    rows.row(i) = work_.hidden.row(work_.logit_rows[static_cast<std::size_t>(i)]);
  }
  rms_norm(rows, weights_.output_norm, config_.rms_epsilon, rows, context());
  const LinearProduct output{weights_.output, logits};
  multiply({&output, 1}, rows);
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

}  // namespace kvick::inline v0_1
