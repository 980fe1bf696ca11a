// SPDX-License-Identifier: MIT
// Attention over caches of every element type, as models use it, one thread and all. Names are
// attention/<case>/<element type>/<cache>/<threads>:
//
//   kvick_benchmarks --benchmark_filter='attention/decode_gqa/f16/'
//
// decode_gqa   one token after 4,096, 32 query heads on 4 KV heads of 64: compute-bound
// decode_mha   one token after 4,096, 32 query heads on 32 KV heads of 128: memory-bound
// prefill      2,048 tokens at once, heads as in decode_gqa
//
// Decoding goes through the layers of a cache that is larger than the processor's caches. Before,
// outputs are compared with the plain layer in double. Counters: Gop/s (2 per multiply-add of
// visible keys), GB/s of keys and values, and their shares of this machine's limits, measured in
// the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/paged_kv_cache.hpp"
#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/nn/attention.hpp"
#include "support/benchmark_limits.hpp"
#include "support/limits.hpp"
#include "support/linear_case.hpp"

namespace {

using kvick::ElementType;
using kvick::Index;
using kvick::Matrix;

struct Case {
  std::string name;
  int num_kv_heads;
  int head_dim;
  int num_cached;  // before the new tokens
  int num_tokens;
  int num_layers;

  static constexpr int kHeads = 32;
  Index kv_width() const { return Index{num_kv_heads} * head_dim; }
  Index query_width() const { return Index{kHeads} * head_dim; }
  int end() const { return num_cached + num_tokens; }
  /// Visible keys of all tokens.
  double num_keys() const {
    return static_cast<double>(num_tokens) * (num_cached + (num_tokens + 1) / 2.0);
  }
};

const Case kCases[] = {{"decode_gqa", 4, 64, 4096, 1, 48},
                       {"decode_mha", 32, 128, 4096, 1, 8},
                       {"prefill", 4, 64, 0, 2048, 1}};

/// A filled cache and the queries that attend to it.
class AttentionCase {
 public:
  AttentionCase(const Case& sizes, std::unique_ptr<kvick::KVStorage> cache, int threads)
      : sizes_(sizes),
        cache_(std::move(cache)),
        context_{measure::pool_of(threads), kvick::kernel_table(kvick::default_isa())},
        attention_({Case::kHeads, sizes.num_kv_heads, sizes.head_dim}, threads),
        keys_(measure::random_floats(sizes.end(), sizes.kv_width(), 1)),
        values_(measure::random_floats(sizes.end(), sizes.kv_width(), 2)),
        queries_(measure::random_floats(sizes.num_tokens, sizes.query_width(), 3)),
        outputs_(sizes.num_tokens, sizes.query_width()) {
    for (int layer = 0; layer < sizes.num_layers; ++layer) {
      cache_->write(layer, 0, 0, keys_, values_);
    }
    const kvick::AttentionSegment segment{.first_position = sizes.num_cached,
                                          .num_tokens = sizes.num_tokens};
    attention_.plan({&segment, 1});
  }

  void run() {
    attention_.forward(layer_, queries_, *cache_, outputs_, context_);
    layer_ = (layer_ + 1) % sizes_.num_layers;
  }

  /// Throws unless the last token's outputs agree with the plain layer's to 1 % of the largest, the
  /// error of rounding keys and values to 8 bits.
  void check() {
    run();
    using Double = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Double query = queries_.bottomRows(1).cast<double>();
    const Index group = Case::kHeads / sizes_.num_kv_heads;
    double error = 0, largest = 0;
    for (Index head = 0; head < Case::kHeads; ++head) {
      const Index kv = head / group * sizes_.head_dim;
      const auto q = query.middleCols(head * sizes_.head_dim, sizes_.head_dim);
      const Double keys = keys_.middleCols(kv, sizes_.head_dim).cast<double>();
      const Double values = values_.middleCols(kv, sizes_.head_dim).cast<double>();
      const Eigen::ArrayXd scores =
          (keys * q.transpose()).array() / std::sqrt(static_cast<double>(sizes_.head_dim));
      const Eigen::ArrayXd weights = (scores - scores.maxCoeff()).exp();
      const Double want = weights.matrix().transpose() * values / weights.sum();
      const auto got = outputs_.bottomRows(1).middleCols(head * sizes_.head_dim, sizes_.head_dim);
      error = std::max(error, (got.cast<double>() - want).cwiseAbs().maxCoeff());
      largest = std::max(largest, want.cwiseAbs().maxCoeff());
    }
    if (!(error <= 0.01 * largest)) {
      throw std::runtime_error(kvick::detail::concat("attention must be within ", 0.01 * largest,
                                                     " of the reference, got ", error));
    }
  }

 private:
  Case sizes_;
  std::unique_ptr<kvick::KVStorage> cache_;
  kvick::ComputeContext context_;
  kvick::Attention attention_;
  Matrix keys_, values_, queries_, outputs_;
  int layer_ = 0;
};

std::unique_ptr<kvick::KVStorage> make_cache(const Case& sizes, ElementType type, bool is_paged) {
  const auto reserved = [&](auto cache) -> std::unique_ptr<kvick::KVStorage> {
    if (!cache->reserve(0, sizes.end())) throw std::runtime_error("the cache is too small");
    return cache;
  };
  if (is_paged) {
    return reserved(std::make_unique<kvick::PagedKVStorage>(
        type, kvick::PagedKVCacheOptions{.num_layers = sizes.num_layers,
                                         .num_kv_heads = sizes.num_kv_heads,
                                         .max_seq_len = sizes.end(),
                                         .head_dim = sizes.head_dim}));
  }
  return reserved(std::make_unique<kvick::ContiguousKVCache>(
      type, kvick::KVCacheOptions{.num_layers = sizes.num_layers,
                                  .num_kv_heads = sizes.num_kv_heads,
                                  .max_seq_len = sizes.end(),
                                  .head_dim = sizes.head_dim}));
}

void run(benchmark::State& state, const Case& sizes, ElementType type, bool is_paged, int threads) {
  AttentionCase attention(sizes, make_cache(sizes, type, is_paged), threads);
  attention.check();
  for (auto _ : state) attention.run();
  const double operations = 4.0 * sizes.num_keys() * static_cast<double>(sizes.query_width());
  const double row_bytes =
      static_cast<double>(kvick::RowStore::bytes_per_row(type, sizes.head_dim));
  const double bytes = static_cast<double>(sizes.end()) * sizes.num_kv_heads * row_bytes;
  const auto per_second = [](double amount) {
    return benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["Gop/s"] = per_second(operations);
  state.counters["GB/s"] = per_second(bytes);
  state.counters["of fma limit"] =
      per_second(operations / measure::limit_rate(measure::LimitKind::kF32, threads));
  state.counters["of read limit"] =
      per_second(bytes / measure::limit_rate(measure::LimitKind::kRead, threads));
}

[[maybe_unused]] const bool kIsRegistered = [] {
  const int all = kvick::default_num_threads();
  for (const Case& sizes : kCases) {
    for (const ElementType type :
         {ElementType::kF32, ElementType::kF16, ElementType::kBF16, ElementType::kInt8}) {
      for (const bool is_paged : {false, true}) {
        for (const int threads : {1, all}) {
          if (threads == all && all == 1) continue;
          const std::string label = "attention/" + sizes.name + "/" + std::string(name(type)) +
                                    (is_paged ? "/paged/" : "/contiguous/") +
                                    std::to_string(threads);
          benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
            run(state, sizes, type, is_paged, threads);
          })->UseRealTime();
        }
      }
    }
  }
  return true;
}();

}  // namespace
