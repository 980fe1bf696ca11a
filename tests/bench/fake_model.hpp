// SPDX-License-Identifier: MIT
// A model and a clock that the tests know everything of: a forward pass takes as long as it is told
// to, and the next token follows from the tokens before it by a rule.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"

namespace support {

/// Time passes only where it is told to.
class FakeClock {
 public:
  double now() const { return now_; }
  void wait(double seconds) {
    if (seconds < 0) throw std::logic_error("a wait must not be negative");
    now_ += seconds;
  }

 private:
  double now_ = 1000;  // clocks start anywhere
};

/// Keeps the tokens themselves.
class TimedCache {
 public:
  explicit TimedCache(const kvick::CacheOptions& options)
      : max_seq_len_(options.max_seq_len),
        tokens_(static_cast<std::size_t>(options.num_sequences)) {}

  int length(int sequence) const { return static_cast<int>(at(sequence).size()); }
  int max_seq_len() const { return max_seq_len_; }
  int num_sequences() const { return static_cast<int>(tokens_.size()); }
  bool reserve(int sequence, int count) { return length(sequence) + count <= max_seq_len_; }
  void commit(int sequence, std::span<const kvick::TokenId> tokens) {
    auto& all = tokens_.at(static_cast<std::size_t>(sequence));
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  void truncate(int sequence, int length) {
    tokens_.at(static_cast<std::size_t>(sequence)).resize(static_cast<std::size_t>(length));
  }
  void release(int sequence) { truncate(sequence, 0); }

  const std::vector<kvick::TokenId>& at(int sequence) const {
    return tokens_.at(static_cast<std::size_t>(sequence));
  }

 private:
  int max_seq_len_;
  std::vector<std::vector<kvick::TokenId>> tokens_;
};

class TimedModel {
 public:
  using Cache = TimedCache;
  static constexpr int kVocabSize = 50;

  /// `seconds` tells how long a batch takes.
  TimedModel(FakeClock& clock, std::function<double(const kvick::Batch&)> seconds)
      : clock_(clock), seconds_(std::move(seconds)) {}

  int vocab_size() const { return kVocabSize; }
  int max_seq_len() const { return 4096; }
  Cache make_cache(const kvick::CacheOptions& options) const {
    kvick::CacheOptions full = options;
    if (full.max_seq_len == 0) full.max_seq_len = max_seq_len();
    return Cache(full);
  }

  /// The token after t_1 ... t_n is (sum of i * t_i) mod 50, the i counted from 1.
  static kvick::TokenId next(std::span<const kvick::TokenId> tokens) {
    long long sum = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      sum += static_cast<long long>(i + 1) * tokens[i];
    }
    return static_cast<kvick::TokenId>(sum % kVocabSize);
  }

  void forward(const kvick::Batch& batch, Cache& cache, kvick::MatrixRef logits) {
    clock_.wait(seconds_(batch));
    kvick::Index row = 0;
    for (const kvick::Segment& segment : batch.segments()) {
      std::vector<kvick::TokenId> tokens = cache.at(segment.sequence);
      const std::size_t num_tokens = segment.tokens.size();
      for (std::size_t i = 0; i < num_tokens; ++i) {
        tokens.push_back(segment.tokens[i]);
        if (i + static_cast<std::size_t>(segment.num_logits) < num_tokens) continue;
        logits.row(row).setZero();
        kvick::TokenId token = next(tokens);
        if (is_wrong_in_batches && batch.segments().size() > 1) token = (token + 1) % kVocabSize;
        logits(row++, token) = 1.0f;
      }
    }
  }

  bool is_wrong_in_batches = false;

 private:
  FakeClock& clock_;
  std::function<double(const kvick::Batch&)> seconds_;
};

static_assert(kvick::LanguageModel<TimedModel>);

}  // namespace support
