// SPDX-License-Identifier: MIT
// Decoding with and without drafts, timed, and models that write a given text.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "kvick/speculative/speculative.hpp"
#include "support/model_run.hpp"

namespace measure {

/// The model's forward pass with the choices of a text: the logit of its next token is raised above
/// all others. Models of random weights do not copy their prompts; times are real.
class ForcedModel {
 public:
  using Cache = kvick::Transformer::Cache;

  ForcedModel(kvick::Transformer& model, const std::vector<kvick::TokenId>& text)
      : model_(model), text_(text) {}

  int vocab_size() const { return model_.vocab_size(); }
  int max_seq_len() const { return model_.max_seq_len(); }
  Cache make_cache(const kvick::CacheOptions& options) const { return model_.make_cache(options); }

  void forward(const kvick::Batch& batch, Cache& cache, kvick::MatrixRef logits) {
    model_.forward(batch, cache, logits);
    kvick::Index row = 0;
    for (const kvick::Segment& segment : batch.segments()) {
      const int end = segment.first_position + static_cast<int>(segment.tokens.size());
      for (int position = end - segment.num_logits; position < end; ++position, ++row) {
        const auto next = std::min(static_cast<std::size_t>(position) + 1, text_.size() - 1);
        logits(row, text_[next]) = 1e30f;
      }
    }
  }

 private:
  kvick::Transformer& model_;
  const std::vector<kvick::TokenId>& text_;
};

struct Decoded {
  std::vector<kvick::TokenId> tokens;  ///< with the prompt
  double seconds = 0;                  ///< of decoding alone
  kvick::SpeculativeStatistics statistics;
};

/// Without drafts if options.draft_tokens is 0. A source reads the prompt before the clock starts,
/// as the model does.
template <class Model, class Source>
Decoded decode(Model& model, typename Model::Cache& cache, Source& source,
               const std::vector<kvick::TokenId>& prompt,
               const kvick::SpeculativeOptions& options) {
  cache.release(0);
  kvick::SpeculativeDecoder decoder(model, cache, source, options);
  decoder.append(prompt);
  if (!decoder.prefill()) throw std::runtime_error("the context is too small");
  if (options.draft_tokens > 0) {
    kvick::Sampler sampler;
    kvick::Draft draft;
    source.propose({.tokens = prompt, .sampler = sampler}, draft);
  }
  const auto start = std::chrono::steady_clock::now();
  while (decoder.end() == kvick::SpeculativeEnd::kNone) decoder.step();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {decoder.tokens(), seconds.count(), decoder.statistics()};
}

/// Seconds of passes of so many tokens behind `depth` cached ones, all with logits, in turns:
/// [num_tokens][rounds].
inline std::vector<std::vector<double>> seconds_of_passes(kvick::Transformer& model,
                                                          kvick::Transformer::Cache& cache,
                                                          std::span<const int> num_tokens,
                                                          int depth, int num_rounds) {
  const int most = *std::max_element(num_tokens.begin(), num_tokens.end());
  const std::vector<kvick::TokenId> tokens =
      arbitrary_tokens(static_cast<std::size_t>(depth + most), model.vocab_size());
  kvick::Matrix logits(most, model.vocab_size());
  kvick::Batch batch;
  const auto pass = [&](int first, int count, int rows) {
    if (!cache.reserve(0, count)) throw std::runtime_error("the context is too small");
    batch.clear();
    batch.add({0, first,
               std::span(tokens).subspan(static_cast<std::size_t>(first),
                                         static_cast<std::size_t>(count)),
               rows});
    const auto start = std::chrono::steady_clock::now();
    model.forward(batch, cache, logits.topRows(rows));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return seconds.count();
  };
  cache.release(0);
  pass(0, depth, 1);
  cache.commit(0, std::span(tokens).first(static_cast<std::size_t>(depth)));
  std::vector<std::vector<double>> seconds(num_tokens.size());
  for (int round = 0; round < num_rounds; ++round) {
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      seconds[i].push_back(pass(depth, num_tokens[i], num_tokens[i]));
    }
  }
  return seconds;
}

}  // namespace measure
