// SPDX-License-Identifier: MIT
// A model of a few lines whose whole distribution can be computed by hand: the logits after a text
// depend on its last tokens, by a table of random numbers.
//
// It reads these tokens from its cache, as a real model reads keys and values, so rows that are
// stale or missing change what it says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"

namespace support {

/// Rows are tokens. `room`, if not negative, is how many rows all sequences may have: a pool.
class FakeCache {
 public:
  explicit FakeCache(int num_sequences, int max_seq_len)
      : rows_(static_cast<std::size_t>(num_sequences)), max_seq_len_(max_seq_len) {}

  int length(int sequence) const { return at(sequence).length; }
  int reserved(int sequence) const { return static_cast<int>(at(sequence).tokens.size()); }
  int max_seq_len() const { return max_seq_len_; }
  std::span<const kvick::TokenId> rows(int sequence) const {
    return std::span(at(sequence).tokens).first(static_cast<std::size_t>(length(sequence)));
  }

  [[nodiscard]] bool reserve(int sequence, int num_tokens) {
    const int wanted = length(sequence) + num_tokens;
    if (wanted > max_seq_len_ || (room >= 0 && wanted > room)) return false;
    at(sequence).tokens.resize(
        std::max(at(sequence).tokens.size(), static_cast<std::size_t>(wanted)), -1);
    return true;
  }
  void write(int sequence, int position, std::span<const kvick::TokenId> tokens) {
    if (position != length(sequence) ||
        position + static_cast<int>(tokens.size()) > reserved(sequence)) {
      throw std::logic_error("FakeCache: a row was not reserved");
    }
    std::copy(tokens.begin(), tokens.end(), at(sequence).tokens.begin() + position);
  }
  void commit(int sequence, std::span<const kvick::TokenId> tokens) {
    Sequence& rows = at(sequence);
    for (const kvick::TokenId token : tokens) {
      if (rows.length >= reserved(sequence) ||
          rows.tokens[static_cast<std::size_t>(rows.length)] != token) {
        throw std::logic_error("FakeCache: a committed token was not evaluated");
      }
      ++rows.length;
    }
  }
  void truncate(int sequence, int length) {
    if (length > at(sequence).length) throw std::logic_error("FakeCache: truncated beyond the end");
    at(sequence).tokens.resize(static_cast<std::size_t>(length));
    at(sequence).length = length;
  }
  void release(int sequence) { truncate(sequence, 0); }

  int room = -1;

 private:
  struct Sequence {
    std::vector<kvick::TokenId> tokens;  // reserved; what is not written is -1
    int length = 0;
  };
  const Sequence& at(int sequence) const { return rows_.at(static_cast<std::size_t>(sequence)); }
  Sequence& at(int sequence) { return rows_.at(static_cast<std::size_t>(sequence)); }

  std::vector<Sequence> rows_;
  int max_seq_len_;
};

struct FakeModelOptions {
  int vocab_size = 4;
  int order = 2;        ///< tokens that matter
  float spread = 1.5f;  ///< standard deviation of logits
  unsigned seed = 1;
  float noise = 0;  ///< how far a draft model is from the target of the same seed
  int max_seq_len = 1 << 20;
};

class FakeModel {
 public:
  using Cache = FakeCache;

  explicit FakeModel(const FakeModelOptions& options = {}) : options_(options) {
    std::size_t contexts = 1;  // tokens, and one value more for "before the text"
    for (int i = 0; i < options.order; ++i) {
      contexts *= static_cast<std::size_t>(options.vocab_size) + 1;
    }
    const auto size = contexts * static_cast<std::size_t>(options.vocab_size);
    std::mt19937 rng(options.seed), noise_rng(options.seed + 1000);
    std::normal_distribution<float> logit(0, options.spread), noise(0, 1);
    for (std::size_t i = 0; i < size; ++i) {
      const float value = logit(rng);
      table_.push_back(value + options.noise * noise(noise_rng));
    }
  }

  int vocab_size() const { return options_.vocab_size; }
  int max_seq_len() const { return options_.max_seq_len; }
  Cache make_cache(const kvick::CacheOptions& options) const {
    return Cache(options.num_sequences,
                 options.max_seq_len == 0 ? options_.max_seq_len : options.max_seq_len);
  }

  /// What follows `text`.
  std::span<const float> logits(std::span<const kvick::TokenId> text) const {
    std::size_t context = 0;
    for (int i = 0; i < options_.order; ++i) {
      const auto at = static_cast<std::ptrdiff_t>(text.size()) - 1 - i;
      const kvick::TokenId token = at < 0 ? -1 : text[static_cast<std::size_t>(at)];
      context = context * (static_cast<std::size_t>(options_.vocab_size) + 1) +
                static_cast<std::size_t>(token + 1);
    }
    const auto size = static_cast<std::size_t>(options_.vocab_size);
    return std::span(table_).subspan(context * size, size);
  }

  void forward(const kvick::Batch& batch, Cache& cache, kvick::MatrixRef out) {
    ++num_passes;
    kvick::Index row = 0;
    for (const kvick::Segment& segment : batch.segments()) {
      cache.write(segment.sequence, segment.first_position, segment.tokens);
      const auto rows = cache.rows(segment.sequence);
      text_.assign(rows.begin(), rows.end());
      const auto num_silent = static_cast<int>(segment.tokens.size()) - segment.num_logits;
      for (int i = 0; i < static_cast<int>(segment.tokens.size()); ++i) {
        text_.push_back(segment.tokens[static_cast<std::size_t>(i)]);
        if (i < num_silent) continue;
        const auto values = logits(text_);
        std::copy(values.begin(), values.end(), out.row(row).data());
        ++row;
      }
    }
    if (row != out.rows()) throw std::logic_error("FakeModel: rows of logits do not fit the batch");
  }

  int num_passes = 0;

 private:
  FakeModelOptions options_;
  std::vector<float> table_;
  std::vector<kvick::TokenId> text_;
};

static_assert(kvick::LanguageModel<FakeModel>);

}  // namespace support
