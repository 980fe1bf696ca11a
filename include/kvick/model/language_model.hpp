// SPDX-License-Identifier: MIT
// What scheduler, speculation, evaluation and benchmarks ask of a model.
//
// kvick::Transformer satisfies the concept; so can an engine of one's own, or a fake of 20 lines in
// a test.
//
// Layer     model: may include core.
#pragma once

#include <concepts>
#include <span>

#include "kvick/core/element_type.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"

namespace kvick::inline v0_1 {

/// The cache that a model is asked to make. The model adds its own sizes (layers, heads).
struct CacheOptions {
  int num_sequences = 1;
  /// Tokens per sequence; 0 means the model's, whose cache may be large. More than that is allowed,
  /// but models rarely make sense beyond the length they were trained for.
  int max_seq_len = 0;
  ElementType element_type = ElementType::kF16;

  // Of caches of blocks only, see PagedKVCacheOptions.
  int num_blocks = 0;  ///< 0: as many as all sequences at full length take
  int block_tokens = 64;
  bool reuses_prefixes = true;
};

/// The part of a cache that the driver of a model uses; see contiguous_kv_cache.hpp for the rules.
template <class C>
concept SequenceCache = requires(C cache, const C& const_cache, std::span<const TokenId> tokens) {
  { const_cache.length(0) } -> std::convertible_to<int>;
  { const_cache.max_seq_len() } -> std::convertible_to<int>;
  { cache.reserve(0, 1) } -> std::same_as<bool>;
  cache.commit(0, tokens);
  cache.truncate(0, 0);
  cache.release(0);
};

/// `forward` computes the batch, reads and writes the cache within what is reserved, and fills
/// logits [batch.num_logits()][vocab_size()]; the caller reserves before and commits after.
template <class M>
concept LanguageModel = SequenceCache<typename M::Cache> &&
    requires(M model, const M& const_model, typename M::Cache cache, const Batch& batch,
             const CacheOptions& options, MatrixRef logits) {
  { const_model.vocab_size() } -> std::convertible_to<int>;
  { const_model.max_seq_len() } -> std::convertible_to<int>;
  { const_model.make_cache(options) } -> std::same_as<typename M::Cache>;
  model.forward(batch, cache, logits);
};

}  // namespace kvick::inline v0_1
