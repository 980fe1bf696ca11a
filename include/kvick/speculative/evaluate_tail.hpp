// SPDX-License-Identifier: MIT
// The forward passes that bring a sequence's cache up to a text, and the way back.
//
// Layer     speculative: may include core, model.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"

namespace kvick::inline v0_1 {

/// Evaluates what `tokens` has beyond the cached ones, at least `logits.rows()` tokens, and fills
/// `logits` [rows][vocab_size] of the last ones. Long texts go in chunks, which bounds the memory
/// of a pass. All but the last chunk are committed; of that, the caller commits what shall stay:
/// tokens[cache.length(sequence)] and on. False if the cache has too little room for the next
/// chunk, which is then not evaluated; nothing is if the text is longer than sequences may be.
template <class Model, SequenceCache Cache>
[[nodiscard]] bool evaluate_tail(Model& model, Cache& cache, int sequence,
                                 std::span<const TokenId> tokens, MatrixRef logits, Batch& batch);

/// Back to `length` tokens, at most those cached; to none where an attention window has left behind
/// what they need. evaluate_tail() computes what is then missing.
template <SequenceCache Cache>
void truncate_or_release(Cache& cache, int sequence, int length);

// ---- Implementation: nothing below is API ----

template <class Model, SequenceCache Cache>
bool evaluate_tail(Model& model, Cache& cache, int sequence, std::span<const TokenId> tokens,
                   MatrixRef logits, Batch& batch) {
  constexpr std::size_t kChunkTokens = 512;
  const auto num_logits = static_cast<std::size_t>(logits.rows());
  const auto cached = static_cast<std::size_t>(cache.length(sequence));
  detail::require(tokens.size() >= cached + num_logits && tokens.size() > cached,
                  ErrorCode::kArgument, "evaluate_tail", "tokens must have ", num_logits,
                  " or more beyond the ", cached, " cached ones, got ", tokens.size());
  if (tokens.size() > static_cast<std::size_t>(cache.max_seq_len())) return false;
  for (auto rest = tokens.subspan(cached);;) {
    const bool is_last = rest.size() < kChunkTokens + num_logits;
    const auto chunk = is_last ? rest : rest.first(kChunkTokens);
    if (!cache.reserve(sequence, static_cast<int>(chunk.size()))) return false;
    batch.clear();
    batch.add({.sequence = sequence,
               .first_position = cache.length(sequence),
               .tokens = chunk,
               .num_logits = is_last ? static_cast<int>(num_logits) : 0});
    if (is_last) {
      model.forward(batch, cache, logits);
      return true;
    }
    model.forward(batch, cache, logits.topRows(0));
    cache.commit(sequence, chunk);
    rest = rest.subspan(chunk.size());
  }
}

template <SequenceCache Cache>
void truncate_or_release(Cache& cache, int sequence, int length) {
  if constexpr (requires {
                  { std::as_const(cache).can_truncate(sequence, length) } -> std::same_as<bool>;
                }) {
    if (!cache.can_truncate(sequence, length)) {
      cache.truncate(sequence, 0);
      return;
    }
  }
  cache.truncate(sequence, length);
}

}  // namespace kvick::inline v0_1
