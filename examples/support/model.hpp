// SPDX-License-Identifier: MIT
// What programs that run a model do alike: its options, its context, and loading it.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "kvick/core/element_type.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/speculative/draft_model.hpp"
#include "program.hpp"
#include "progress_bar.hpp"
#include "tensor_types.hpp"

namespace programs {

/// The default context is the model's, but at most this: the cache of 131,072 tokens may fill the
/// memory.
inline constexpr int kMaxDefaultContext = 4096;

/// How a model is to be run.
struct ModelOptions {
  int context = 0;  // 0: the default
  int threads = 0;  // 0: as many as the process may use
  std::string kv = "f16";
  std::string activations = "int8";
  std::string weights = "keep";

  kvick::ElementType cache_type() const {
    using kvick::ElementType;
    for (const auto type : {ElementType::kF32, ElementType::kBF16, ElementType::kInt8}) {
      if (kv == name(type)) return type;
    }
    return ElementType::kF16;
  }
};

/// Adds -t, --kv, --weights and --activations.
inline void add_run_options(CLI::App& app, ModelOptions& options) {
  app.add_option("-t,--threads", options.threads, "default: what the process may use")
      ->check(CLI::Range(1, std::numeric_limits<int>::max(), "POSITIVE"));
  app.add_option("--kv", options.kv, "how keys and values are stored")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "int8"}))
      ->capture_default_str();
  app.add_option("--weights", options.weights,
                 "keep the file's weights, or convert them while loading")
      ->check(CLI::IsMember({"keep", "f32", "f16", "q8_0", "q4_0"}))
      ->capture_default_str();
  app.add_option("--activations", options.activations, "what quantized weights are multiplied by")
      ->check(CLI::IsMember({"int8", "f32"}))
      ->capture_default_str();
}

/// Adds -c and those above.
inline void add_model_options(CLI::App& app, ModelOptions& options, int least_context,
                              const std::string& context_description) {
  app.add_option("-c,--context", options.context,
                 context_description + "; default: the model's, at most " +
                     std::to_string(kMaxDefaultContext))
      ->check(CLI::Range(least_context, std::numeric_limits<int>::max(), "POSITIVE"));
  add_run_options(app, options);
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

/// The model in `file`, its weights packed as the options ask, with a progress bar.
inline kvick::Transformer load_model(kvick::GgufFile file, const ModelOptions& options,
                                     kvick::Isa isa = kvick::default_isa()) {
  ProgressBar progress("loading");
  kvick::TransformerOptions transformer{.threads = options.threads, .isa = isa};
  if (options.activations == "f32") transformer.activations = kvick::ActivationType::kF32;
  if (options.weights != "keep") {
    transformer.weights = parse_tensor_type("--weights", options.weights);
  }
  transformer.progress = [&](std::size_t done, std::size_t total) { progress.update(done, total); };
  return kvick::Transformer(std::move(file), transformer);
}

/// A small model that drafts for a large one, with the same options.
inline kvick::Transformer load_draft_model(const std::string& path, ModelOptions options) {
  kvick::GgufFile file(path);
  std::uintmax_t size = 0;
  for (const kvick::GgufTensor& tensor : file.tensors()) size += tensor.data.size();
  options.threads = kvick::draft_threads(size, options.threads);
  return load_model(std::move(file), options);
}

}  // namespace programs
