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
#include <string>
#include <string_view>

#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/quant/packed_linear.hpp"
#include "support/benchmark_limits.hpp"
#include "support/limits.hpp"
#include "support/linear_case.hpp"
#include "support/shapes.hpp"

namespace {

using kvick::Index;

constexpr std::string_view kFormats[] = {"q8_0", "q4_0", "q4_1", "q5_0",     "q5_1",
                                         "q4_k", "q5_k", "q6_k", "group8",   "group4",
                                         "f32",  "f16",  "bf16", "channel8", "channel4"};

void run(benchmark::State& state, const std::string& format, const measure::LayerShape& layer,
         Index rows, int threads) {
  const std::size_t memory = rows <= 16 ? measure::kMemoryBytes : 0;
  measure::LinearCase linear(format, layer.out_features, layer.in_features, rows,
                             kvick::ActivationType::kInt8, kvick::default_isa(),
                             measure::pool_of(threads), memory);
  linear.check();
  for (auto _ : state) linear.run(1);
  const auto per_second = [&](double amount) {
    return benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  };
  const bool is_float = format == "f32" || format == "f16" || format == "bf16";
  state.counters["Gop/s"] = per_second(linear.num_operations());
  state.counters["GB/s"] = per_second(linear.num_bytes());
  state.counters["limit Gop/s"] =
      measure::limit_rate(is_float ? measure::LimitKind::kF32 : measure::LimitKind::kInt8, threads);
  state.counters["limit GB/s"] = measure::limit_rate(measure::LimitKind::kRead, threads);
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
