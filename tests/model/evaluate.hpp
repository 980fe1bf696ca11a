// SPDX-License-Identifier: MIT
// What the tests of models share: random tokens, and the logits of all of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/transformer.hpp"

namespace support {

inline std::vector<kvick::TokenId> random_tokens(int count, int vocab_size, unsigned seed) {
  std::mt19937 rng(seed);
  std::uniform_int_distribution<kvick::TokenId> token(0, vocab_size - 1);
  std::vector<kvick::TokenId> tokens(static_cast<std::size_t>(count));
  for (kvick::TokenId& t : tokens) t = token(rng);
  return tokens;
}

/// Evaluates tokens as the next ones of a sequence in chunks; the logits of all of them.
template <class Cache>
kvick::Matrix evaluate(kvick::Transformer& model, Cache& cache, int sequence,
                       std::span<const kvick::TokenId> tokens, std::size_t chunk) {
  kvick::Matrix logits(static_cast<kvick::Index>(tokens.size()), model.vocab_size());
  for (std::size_t i = 0; i < tokens.size(); i += chunk) {
    const auto part = tokens.subspan(i, std::min(chunk, tokens.size() - i));
    const int size = static_cast<int>(part.size());
    EXPECT_TRUE(cache.reserve(sequence, size));
    model.forward(kvick::Batch({sequence, cache.length(sequence), part, size}), cache,
                  logits.middleRows(static_cast<kvick::Index>(i), size));
    cache.commit(sequence, part);
  }
  return logits;
}

/// The same over a contiguous cache of their own.
inline kvick::Matrix evaluate(kvick::Transformer& model, std::span<const kvick::TokenId> tokens,
                              std::size_t chunk,
                              kvick::ElementType type = kvick::ElementType::kF32) {
  auto cache = model.make_contiguous_cache(
      {.max_seq_len = static_cast<int>(tokens.size()), .element_type = type});
  return evaluate(model, cache, 0, tokens, chunk);
}

}  // namespace support
