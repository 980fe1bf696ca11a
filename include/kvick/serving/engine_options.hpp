// SPDX-License-Identifier: MIT
// What an engine is made with, and the cache that it makes of it.
//
// Layer     serving: may include core, cache, model, speculative.
#pragma once

#include <algorithm>
#include <filesystem>

#include "kvick/core/version.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/serving/engine_draft_model.hpp"
#include "kvick/serving/scheduler_types.hpp"
#include "kvick/serving/speculation.hpp"  // IWYU pragma: export

namespace kvick::inline v0_1 {

struct EngineOptions {
  int threads = 0;  ///< of a model that the engine loads; 0: what the process may use

  /// How requests share steps. Limits of the queue count what no step has begun. With an engine in
  /// threads of its own, the clock is read in all of them.
  SchedulerOptions scheduler = {};

  /// The cache; num_sequences is the scheduler's max_batch_size. A max_seq_len of 0 is the
  /// scheduler's, and if that is 0 too, the model's, but at most 4,096.
  CacheOptions cache = {};

  /// How tokens are drafted of requests that do not say so themselves.
  SpeculationOptions speculation = {};
  /// Has a cache like the target's: as many sequences and blocks.
  EngineDraftModel draft_model = {};
  /// The same from a file, for an engine that loads its models.
  std::filesystem::path draft_path = {};
};

// ---- Implementation: nothing below is API ----

namespace detail {

template <LanguageModel Model>
CacheOptions serving_cache_options(const Model& model, const EngineOptions& options) {
  constexpr int kMaxDefaultLength = 4096;  // a cache of 131,072 tokens may fill the memory
  CacheOptions cache = options.cache;
  cache.num_sequences = options.scheduler.max_batch_size;
  if (cache.max_seq_len == 0) cache.max_seq_len = options.scheduler.max_seq_len;
  if (cache.max_seq_len == 0) {
    cache.max_seq_len = std::min<int>(model.max_seq_len(), kMaxDefaultLength);
  }
  return cache;
}

}  // namespace detail

}  // namespace kvick::inline v0_1
