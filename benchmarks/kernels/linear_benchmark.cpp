// SPDX-License-Identifier: MIT
// Every format of packed weights on the layers of real models: rows 1 to 16, 32, 128 and 512, one
// thread and all. Names are format/model/layer/rows/threads, so a filter picks what is wanted:
//
//   kvick_benchmarks --benchmark_filter='q8_0/tinyllama-1.1b/gate/512/'
//
// Counters: Gop/s (2 per multiply-add), GB/s of packed weights, and the limits of this machine and
// thread count, measured once before.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/quant/packed_linear.hpp"
#include "support/limits.hpp"
#include "support/linear_case.hpp"
#include "support/shapes.hpp"

namespace {

using kvick::Index;

constexpr std::string_view kFormats[] = {"q8_0", "q4_0", "q4_1", "q5_0",     "q5_1",
                                         "q4_k", "q5_k", "q6_k", "group8",   "group4",
                                         "f32",  "f16",  "bf16", "channel8", "channel4"};

kvick::ThreadPool& pool_of(int threads) {
  static std::map<int, std::unique_ptr<kvick::ThreadPool>> pools;
  auto& pool = pools[threads];
  if (!pool) pool = std::make_unique<kvick::ThreadPool>(threads);
  return *pool;
}

/// The limit's rate, measured when first asked for; 0 where none is known.
double limit(measure::LimitKind kind, int threads) {
  static std::map<std::pair<measure::LimitKind, int>, double> rates;
  const auto [at, is_new] = rates.try_emplace({kind, threads}, 0.0);
  if (is_new) {
    const auto best = measure::best_limit(kind, kvick::default_isa(), pool_of(threads));
    if (best) {
      const Index calls = measure::calls_within(best->probe, 0.1);
      const double seconds = measure::seconds_per_call(best->probe, calls, 0.3);
      at->second = best->probe.work.front().amount / seconds;
    }
  }
  return at->second;
}

void run(benchmark::State& state, const std::string& format, const measure::LayerShape& layer,
         Index rows, int threads) {
  const std::size_t memory = rows <= 16 ? measure::kMemoryBytes : 0;
  measure::LinearCase linear(format, layer.out_features, layer.in_features, rows,
                             kvick::ActivationType::kInt8, kvick::default_isa(), pool_of(threads),
                             memory);
  linear.check();
  for (auto _ : state) linear.run(1);
  const auto per_second = [&](double amount) {
    return benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  };
  const bool is_float = format == "f32" || format == "f16" || format == "bf16";
  state.counters["Gop/s"] = per_second(linear.num_operations());
  state.counters["GB/s"] = per_second(linear.num_bytes());
  state.counters["limit Gop/s"] =
      limit(is_float ? measure::LimitKind::kF32 : measure::LimitKind::kInt8, threads);
  state.counters["limit GB/s"] = limit(measure::LimitKind::kRead, threads);
}

[[maybe_unused]] const bool kIsRegistered = [] {
  const int all = kvick::default_num_threads();
  for (const std::string_view name : kFormats) {
    const std::string format(name);
    for (const measure::LayerShape& layer : measure::all_layer_shapes()) {
      const bool is_k_quant = format.ends_with("_k");
      if (is_k_quant && layer.in_features % 256 != 0) continue;
      for (const Index rows : measure::row_counts()) {
        for (const int threads : {1, all}) {
          if (threads == all && all == 1) continue;
          const std::string label = format + "/" + layer.name + "/" + std::to_string(rows) + "/" +
                                    std::to_string(threads);
          benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
            run(state, format, layer, rows, threads);
          })->UseRealTime();
          if (threads == all) break;
        }
      }
    }
  }
  return true;
}();

}  // namespace
