// SPDX-License-Identifier: MIT
// What benchmarks of Google Benchmark share: one pool per number of threads, and the limits of this
// machine, measured when first asked for.
//
// Threads   One at a time.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_pool.hpp"
#include "support/limits.hpp"
#include "support/rounds.hpp"

namespace measure {

inline kvick::ThreadPool& pool_of(int threads) {
  static std::map<int, std::unique_ptr<kvick::ThreadPool>> pools;
  auto& pool = pools[threads];
  if (!pool) pool = std::make_unique<kvick::ThreadPool>(threads);
  return *pool;
}

/// The limit's rate in the unit of its probe; 0 where none is known.
inline double limit_rate(LimitKind kind, int threads) {
  static std::map<std::pair<LimitKind, int>, double> rates;
  const auto [at, is_new] = rates.try_emplace({kind, threads}, 0.0);
  if (is_new) {
    const auto best = best_limit(kind, kvick::default_isa(), pool_of(threads));
    if (best) {
      const Index calls = calls_within(best->probe, 0.1);
      const double seconds = seconds_per_call(best->probe, calls, 0.3);
      at->second = best->probe.work.front().amount / seconds;
    }
  }
  return at->second;
}

}  // namespace measure
