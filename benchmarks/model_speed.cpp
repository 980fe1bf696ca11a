// SPDX-License-Identifier: MIT
// Speed of a whole model beside this machine's limits, interleaved in one process.
//
//   kvick-model-speed MODEL.gguf [--pp 512] [--tg 64] [--depth 0] [--threads N] [--rounds 11]
//
// Prefill is one batch of --pp tokens that wants the logits of the last; decode is --tg steps of
// one token after --depth others. Operations are 2 per weight of every matrix product really done,
// bytes those of all matrices that a step reads. Token ids are arbitrary, so random weights do.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/model/transformer.hpp"
#include "support/limits.hpp"
#include "support/report.hpp"
#include "support/rounds.hpp"

namespace {

using kvick::TokenId;

struct Options {
  std::string model;
  int prefill_tokens = 512;
  int decode_tokens = 64;
  int depth = 0;
  int threads = 0;
  int num_rounds = 11;
  bool print_json = false;
  bool is_plain = false;
};

/// A model and what it is measured with.
class ModelRun {
 public:
  explicit ModelRun(const Options& options)
      : options_(options),
        model_(options.model, {.threads = options.threads}),
        cache_(model_.make_cache(
            {.max_seq_len = std::max(options.prefill_tokens, options.depth + options.decode_tokens),
             .element_type = kvick::ElementType::kF16})),
        logits_(1, model_.vocab_size()) {
    const auto count = static_cast<unsigned>(cache_.max_seq_len());
    for (unsigned i = 0; i < count; ++i) {
      tokens_.push_back(
          static_cast<TokenId>(i * 7919u % static_cast<unsigned>(model_.vocab_size())));
    }
  }

  const kvick::Transformer& model() const { return model_; }

  void prefill() {
    cache_.truncate(0, 0);
    forward(options_.prefill_tokens);
  }

  /// The tokens before the first step are evaluated once, outside of what is timed.
  void decode() {
    if (cache_.length(0) < options_.depth) {
      cache_.truncate(0, 0);
      forward(options_.depth);
    }
    cache_.truncate(0, options_.depth);
    for (int i = 0; i < options_.decode_tokens; ++i) forward(1);
  }

 private:
  void forward(int count) {
    if (!cache_.reserve(0, count)) throw std::runtime_error("the context is too small");
    const int length = cache_.length(0);
    const auto next = std::span(tokens_).subspan(static_cast<std::size_t>(length),
                                                 static_cast<std::size_t>(count));
    model_.forward(kvick::Batch({0, length, next, 1}), cache_, logits_);
    cache_.commit(0, next);
  }

  const Options& options_;
  kvick::Transformer model_;
  kvick::Transformer::Cache cache_;
  kvick::Matrix logits_;
  std::vector<TokenId> tokens_;
};

/// Weights of matrix products: of the layers, for every token, and of the output head.
struct MatrixSizes {
  double layer_weights = 0;
  double head_weights = 0;
  double bytes = 0;
};

MatrixSizes matrix_sizes(const kvick::GgufFile& file) {
  MatrixSizes sizes;
  const bool is_tied = file.find_tensor("output.weight") == nullptr;
  const std::string head = is_tied ? "token_embd.weight" : "output.weight";
  for (const kvick::GgufTensor& tensor : file.tensors()) {
    if (tensor.num_dims != 2 || (tensor.name == "token_embd.weight" && !is_tied)) continue;
    (tensor.name == head ? sizes.head_weights : sizes.layer_weights) +=
        static_cast<double>(tensor.num_elements());
    sizes.bytes += static_cast<double>(tensor.data.size());
  }
  return sizes;
}

/// Peak of this process's memory in bytes; 0 where the system does not tell.
double peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024.0 * std::stod(line.substr(6));
  }
  return 0;
}

measure::RoundsResult measure_model(ModelRun& run, const Options& options) {
  const MatrixSizes sizes = matrix_sizes(run.model().file());
  const double prefill_gop =
      2e-9 * (sizes.layer_weights * options.prefill_tokens + sizes.head_weights);
  const double tokens = options.decode_tokens;
  kvick::ThreadPool pool(run.model().num_threads());
  const auto multiply = measure::best_limit(measure::LimitKind::kInt8, run.model().isa(), pool);
  const auto read = measure::best_limit(measure::LimitKind::kRead, run.model().isa(), pool);

  measure::Rounds rounds;
  measure::Probe prefill{"prefill " + std::to_string(options.prefill_tokens),
                         [&](kvick::Index calls) {
                           for (kvick::Index i = 0; i < calls; ++i) run.prefill();
                         },
                         {{"tokens/s", static_cast<double>(options.prefill_tokens)},
                          {"Gop/s", prefill_gop, multiply ? "int8 limit" : ""}}};
  measure::Probe decode{
      "decode " + std::to_string(options.decode_tokens) + " at " + std::to_string(options.depth),
      [&](kvick::Index calls) {
        for (kvick::Index i = 0; i < calls; ++i) run.decode();
      },
      {{"tokens/s", tokens}, {"GB/s", 1e-9 * sizes.bytes * tokens, read ? "read limit" : ""}}};
  if (multiply) rounds.add(multiply->probe);
  if (options.prefill_tokens > 0) rounds.add(prefill);
  if (read) rounds.add(read->probe);
  if (options.decode_tokens > 0) rounds.add(decode);
  return rounds.run({.num_rounds = options.num_rounds});
}

/// Tokens/s alone, once after a warm-up, for comparisons between processes.
void print_plain(ModelRun& run, const Options& options) {
  const measure::Probe prefill{"prefill", [&](kvick::Index) { run.prefill(); }, {}};
  const measure::Probe decode{"decode", [&](kvick::Index) { run.decode(); }, {}};
  nlohmann::ordered_json json;
  for (const auto& [probe, tokens] :
       {std::pair{&prefill, options.prefill_tokens}, std::pair{&decode, options.decode_tokens}}) {
    measure::seconds_of(*probe, 1);
    json[probe->name] = tokens / measure::seconds_of(*probe, 1);
  }
  std::printf("%s\n", json.dump().c_str());
}

void run(const Options& options) {
  const double before = peak_memory();
  ModelRun model(options);
  const double after_load = peak_memory();
  model.prefill();
  const double peak = std::max(peak_memory(), after_load);
  if (options.is_plain) return print_plain(model, options);
  const measure::RoundsResult result = measure_model(model, options);
  if (options.print_json) {
    const nlohmann::ordered_json json = {{"model", options.model},
                                         {"threads", model.model().num_threads()},
                                         {"isa", name(model.model().isa())},
                                         {"peak_memory_bytes", peak},
                                         {"probes", measure::to_json(result)}};
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s, %s, %d threads\n%s", options.model.c_str(),
                std::string(name(model.model().isa())).c_str(), model.model().num_threads(),
                measure::table(result).c_str());
    std::printf("peak memory %.0f MB after loading, %.0f MB after prefill (%.0f MB before)\n",
                after_load * 1e-6, peak * 1e-6, before * 1e-6);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of a model beside this machine's limits.", "kvick-model-speed");
  app.add_option("model", options.model, "GGUF file")->required();
  app.add_option("--pp", options.prefill_tokens, "tokens of prefill; 0: none")
      ->capture_default_str();
  app.add_option("--tg", options.decode_tokens, "tokens decoded; 0: none")->capture_default_str();
  app.add_option("--depth", options.depth, "tokens cached before decoding")->capture_default_str();
  app.add_option("-t,--threads", options.threads, "default: all");
  app.add_option("--rounds", options.num_rounds, "at least 1")->capture_default_str();
  app.add_flag("--json", options.print_json, "print one line of JSON");
  app.add_flag("--plain", options.is_plain, "print tokens/s of one run only, as JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvick-model-speed: %s\n", error.what());
    return 2;
  }
  return 0;
}
