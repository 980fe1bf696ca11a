// SPDX-License-Identifier: MIT
// What programs that run a model do alike: its options, its context, and loading it.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

#include "kvick/core/element_type.hpp"
#include "kvick/model/transformer.hpp"
#include "program.hpp"
#include "progress_bar.hpp"

namespace programs {

/// The default context is the model's, but at most this: the cache of 131,072 tokens may fill the
/// memory.
inline constexpr int kMaxDefaultContext = 4096;

/// How a model is to be run.
struct ModelOptions {
  int context = 0;  // 0: the default
  int threads = 0;  // 0: as many as the process may use
  std::string kv = "f16";

  kvick::ElementType cache_type() const {
    return kv == "f32" ? kvick::ElementType::kF32 : kvick::ElementType::kF16;
  }
};

/// Adds -c, -t and --kv.
inline void add_model_options(CLI::App& app, ModelOptions& options, int least_context,
                              const std::string& context_description) {
  app.add_option("-c,--context", options.context,
                 context_description + "; default: the model's, at most " +
                     std::to_string(kMaxDefaultContext))
      ->check(CLI::Range(least_context, std::numeric_limits<int>::max(), "POSITIVE"));
  app.add_option("-t,--threads", options.threads, "default: what the process may use")
      ->check(CLI::Range(1, std::numeric_limits<int>::max(), "POSITIVE"));
  app.add_option("--kv", options.kv, "how keys and values are stored")
      ->check(CLI::IsMember({"f32", "f16"}))
      ->capture_default_str();
}

/// The context to use with models that have at most `max_seq_len`.
inline int context_size(int requested, int max_seq_len) {
  if (requested == 0) return std::min(max_seq_len, kMaxDefaultContext);
  if (requested > max_seq_len) {
    throw BadInput(kvick::detail::concat("--context must be at most the model's ", max_seq_len,
                                         ", got ", requested));
  }
  return requested;
}

/// Brings the weights into memory, so that the first tokens do not wait for the disk.
inline void preload(const kvick::Transformer& model) {
  ProgressBar progress("loading");
  model.preload([&](std::size_t done, std::size_t total) { progress.update(done, total); });
}

}  // namespace programs
