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
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kvick/bench/machine.hpp"
#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/model/transformer.hpp"
#include "support/limits.hpp"
#include "support/model_run.hpp"
#include "support/report.hpp"
#include "support/rounds.hpp"

namespace {

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

measure::RoundsResult measure_model(measure::ModelRun& run, const Options& options) {
  const measure::MatrixSizes sizes = measure::matrix_sizes(run.model().file());
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
void print_plain(measure::ModelRun& run, const Options& options) {
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

double peak_memory() { return static_cast<double>(kvick::peak_memory_bytes().value_or(0)); }

void run(const Options& options) {
  const double before = peak_memory();
  kvick::Transformer transformer(options.model, {.threads = options.threads});
  measure::ModelRun model(transformer, {.prefill_tokens = options.prefill_tokens,
                                        .decode_tokens = options.decode_tokens,
                                        .depth = options.depth});
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
