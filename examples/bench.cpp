// SPDX-License-Identifier: MIT
// Measures a model on this machine, beside the machine's own limits.
//
//   kvick-bench model -m MODEL.gguf                          prefill and decode
//   kvick-bench all --synthetic tinyllama-1.1b --html report.html --json report.json
//   kvick-bench compare before.json after.json               ratios, and what is noise
//   kvick-bench check report.json --baseline benchmarks/baseline.json
//
// Whatever is timed is also checked: a digest of the outputs stands beside each speed, and the
// outputs must be those of portable kernels, request by request. Results go to standard output as
// tables, and to files as JSON, CSV and one HTML page with plots.
#include <CLI/CLI.hpp>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/batch_part.hpp"
#include "bench/cache_part.hpp"
#include "bench/compare.hpp"
#include "bench/model_part.hpp"
#include "bench/quant_part.hpp"
#include "bench/serving_parts.hpp"
#include "bench/session.hpp"
#include "bench/speculative_part.hpp"
#include "kvick/bench/html_report.hpp"
#include "kvick/bench/synthetic_model.hpp"
#include "support/default_model.hpp"
#include "support/program.hpp"

namespace {

using namespace programs::bench;
using programs::BadInput;

struct Options {
  CommonOptions common;
  ModelPartOptions model;
  BatchPartOptions batch;
  CachePartOptions cache;
  QuantPartOptions quant;
  SpeculativePartOptions speculative;
  WorkloadPartOptions workload;
  std::string first_report, second_report;  // of compare; the first also of check and baseline
  std::string baseline = "benchmarks/baseline.json";
  double margin = 0.15;
};

void add_common_options(CLI::App& app, CommonOptions& options) {
  programs::add_model_option(app, options.model, "GGUF file");
  app.add_option(
         "--synthetic", options.synthetic,
         "random weights of this shape instead, SHAPE or SHAPE:TYPE: " + kvick::model_shape_names())
      ->type_name("SHAPE");
  programs::add_run_options(app, options.run);
  app.add_option("--isa", options.isa, "kernels to measure, such as avx2; default: the best");
  app.add_option("--rounds", options.num_rounds, "interleaved repetitions")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--check-tokens", options.check_tokens,
                 "tokens to compute once more on portable kernels; 0: no check; default: as many "
                 "as take some seconds")
      ->check(CLI::NonNegativeNumber);
  programs::add_seed_option(app, options.seed, "of workloads and synthetic choices");
  app.add_option("--json", options.json, "file for the report as JSON")->type_name("FILE");
  app.add_option("--csv", options.csv, "file for the figures as CSV")->type_name("FILE");
  app.add_option("--html", options.html, "file for the report as a page with plots")
      ->type_name("FILE");
}

void add_model_part_options(CLI::App& app, ModelPartOptions& options) {
  app.add_option("-p,--prefill", options.prefill, "tokens of a prompt, a list")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-n,--decode", options.decode, "tokens to decode, a list")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-d,--depth", options.depths, "tokens cached before decoding, a list")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void add_batch_part_options(CLI::App& app, BatchPartOptions& options) {
  app.add_option("--sizes", options.sizes, "sequences, a list")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--batch-depth", options.depth, "tokens cached per sequence")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void add_cache_part_options(CLI::App& app, CachePartOptions& options) {
  app.add_option("--cache-prompt", options.prompt, "tokens of the prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--cache-tokens", options.tokens, "tokens to generate with cache and without")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--cache-depth", options.depth, "tokens cached where element types are compared")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void add_quant_part_options(CLI::App& app, QuantPartOptions& options) {
  app.add_option("--types", options.types, "formats of weights, a list")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--quality-model", options.quality_model,
                 "GGUF file whose quality is measured; default: the model, or the demo model "
                 "instead of a synthetic one")
      ->type_name("FILE");
  app.add_option("--text", options.text_file,
                 "text to predict; default: what the model itself writes")
      ->type_name("FILE");
  app.add_option("--quality-tokens", options.quality_tokens, "tokens, without --text")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
}

void add_speculative_part_options(CLI::App& app, SpeculativePartOptions& options) {
  app.add_option("--draft", options.draft,
                 "GGUF file of a small model with the same vocabulary; default: the demo draft for "
                 "the demo model, or none")
      ->type_name("FILE");
  app.add_option("-k,--draft-tokens", options.num_drafted, "tokens drafted in a round, a list")
      ->delimiter(',')
      ->check(CLI::Range(1, kvick::kMaxDraftTokens))
      ->capture_default_str();
  app.add_option("--speculative-tokens", options.tokens, "tokens to decode after each prompt")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--prompt", options.prompts, "text to continue; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
}

void add_workload_options(CLI::App& app, WorkloadPartOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* what) {
    app.add_option(name, value, what)->check(CLI::PositiveNumber)->capture_default_str();
  };
  add("--requests", options.num_requests, "requests");
  add("--slots", options.batch_size, "requests computed together");
  add("--budget", options.budget, "tokens of a step");
  add("--prompt-low", options.prompt_low, "tokens of the shortest prompt");
  add("--prompt-high", options.prompt_high, "tokens of the longest prompt");
  add("--output-median", options.output_median, "tokens of outputs, log-normal");
  add("--output-sigma", options.output_sigma, "deviation of their logarithm");
  add("--output-high", options.output_high, "tokens of the longest output");
  add("--burstiness", options.burstiness, "shape of gamma gaps: 1 Poisson, less is burstier");
  add("--ttft-limit", options.ttft_limit_ms, "ms, for goodput");
  add("--tpot-limit", options.tpot_limit_ms, "ms, for goodput");
  app.add_option("--prefixes", options.num_prefixes, "prompts begin with one of so many texts");
  app.add_option("--prefix-tokens", options.prefix_tokens, "tokens of such a text");
  app.add_option("--concurrency", options.concurrency, "closed loop of so many requests");
  app.add_option("--trace", options.trace,
                 "file of lines arrival_seconds,prompt_tokens,output_tokens")
      ->type_name("FILE");
  app.add_option("--events", options.events,
                 "file that gets a line per token when it comes out, such as a named pipe")
      ->type_name("FILE");
  app.add_option("--rates", options.rates,
                 "requests/s, a list; default: shares of what can be done")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
}

void check(const Options& options) {
  if (!options.common.model.empty() && !options.common.synthetic.empty()) {
    throw BadInput("give --model or --synthetic, not both");
  }
  if (options.workload.prompt_low > options.workload.prompt_high) {
    throw BadInput("--prompt-low must be at most --prompt-high");
  }
  if (options.workload.budget < options.workload.batch_size) {
    throw BadInput("--budget must be at least --slots");
  }
}

/// In universal time.
std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[32] = "unknown";
  if (const std::tm* const parts = std::gmtime(&now)) {
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", parts);
  }
  return text;
}

kvick::FactGroup parameter_facts(const Session& session, const std::string& command) {
  const CommonOptions& options = session.options();
  return {"parameters",
          {{"date", today()},
           {"command", programs::printable(command)},
           {"rounds", std::to_string(options.num_rounds)},
           {"cache", options.run.kv},
           {"weights", options.run.weights},
           {"activations", options.run.activations},
           {"seed", std::to_string(options.seed)}}};
}

using Part = std::function<ReportSection(Session&)>;

void measure_and_report(const Options& options, const std::string& command,
                        const std::vector<Part>& parts) {
  check(options);
  CommonOptions common = options.common;
  if (common.model.empty() && common.synthetic.empty()) common.model = programs::default_model();
  Session session(common);
  kvick::Report report{
      "kvick-bench",
      {kvick::machine_facts(session.model().isa(), session.model().num_threads()),
       kvick::build_facts(), session.model_facts(), parameter_facts(session, command)},
      {}};
  for (const Part& part : parts) report.sections.push_back(part(session));
  for (auto& fact : session.limits().facts()) report.facts[0].facts.push_back(std::move(fact));
  if (const auto peak = kvick::peak_memory_bytes()) {  // checks and limits included
    report.facts.push_back({"process", {{"peak memory in bytes", std::to_string(*peak)}}});
  }
  programs::print(report.to_text());
  if (!common.json.empty()) kvick::write_text_file(common.json, report.to_json());
  if (!common.csv.empty()) kvick::write_text_file(common.csv, report.to_csv());
  if (!common.html.empty()) kvick::write_text_file(common.html, kvick::html_report(report));
}

void run(int argc, char** argv) {
  Options options;
  CLI::App app("Measures a model on this machine, beside the machine's own limits.", "kvick-bench");
  app.require_subcommand(1);
  const Part model = [&](Session& session) { return model_part(session, options.model); };
  const Part batch = [&](Session& session) { return batch_part(session, options.batch); };
  const Part cache = [&](Session& session) { return cache_part(session, options.cache); };
  const Part quant = [&](Session& session) { return quant_part(session, options.quant); };
  const Part speculative = [&](Session& session) {
    return speculative_part(session, options.speculative);
  };
  const Part scheduler = [&](Session& session) {
    return scheduler_part(session, options.workload);
  };
  const Part serve = [&](Session& session) { return serve_part(session, options.workload); };

  std::string command;
  for (int i = 1; i < argc; ++i) command += (i > 1 ? " " : "") + std::string(argv[i]);
  struct Subcommand {
    const char* name;
    const char* description;
    std::vector<Part> parts;
  };
  const Subcommand subcommands[] = {
      {"model", "prefill and decode", {model}},
      {"batch", "decoding many sequences at once", {batch}},
      {"cache", "with and without a KV cache, and its element types", {cache}},
      {"quant", "formats of weights: speed, memory, quality", {quant}},
      {"speculative", "with and without drafts: acceptance and speed", {speculative}},
      {"scheduler", "static, continuous and chunked batching", {scheduler}},
      {"serve", "latencies at rates of arrival", {serve}},
      {"all", "everything above", {model, batch, cache, quant, speculative, scheduler, serve}},
  };
  for (const Subcommand& subcommand : subcommands) {
    const std::string name = subcommand.name;
    CLI::App& sub = *app.add_subcommand(name, subcommand.description);
    add_common_options(sub, options.common);
    if (name == "model" || name == "all") add_model_part_options(sub, options.model);
    if (name == "batch" || name == "all") add_batch_part_options(sub, options.batch);
    if (name == "cache" || name == "all") add_cache_part_options(sub, options.cache);
    if (name == "quant" || name == "all") add_quant_part_options(sub, options.quant);
    if (name == "speculative" || name == "all") {
      add_speculative_part_options(sub, options.speculative);
    }
    if (name == "scheduler" || name == "serve" || name == "all") {
      add_workload_options(sub, options.workload);
    }
  }
  CLI::App& compare = *app.add_subcommand("compare", "two reports: ratios and what is noise");
  compare.add_option("BEFORE.json", options.first_report)->required();
  compare.add_option("AFTER.json", options.second_report)->required();
  CLI::App& baseline = *app.add_subcommand("baseline", "prints a report's shares of the limits");
  baseline.add_option("REPORT.json", options.first_report)->required();
  baseline.add_option("--margin", options.margin, "of noise")->check(CLI::Range(0.0, 1.0));
  CLI::App& check_command = *app.add_subcommand("check", "a report against a baseline");
  check_command.add_option("REPORT.json", options.first_report)->required();
  check_command.add_option("--baseline", options.baseline, "JSON file")->capture_default_str();

  if (!programs::parse_command_line(app, argc, argv)) return;
  if (compare.parsed()) {
    programs::print(compare_reports(options.first_report, options.second_report));
  } else if (baseline.parsed()) {
    programs::print(make_baseline(options.first_report, options.margin));
  } else if (check_command.parsed()) {
    std::string text;
    const bool is_good = check_baseline(options.first_report, options.baseline, text);
    programs::print(text);
    if (!is_good) throw BadInput("a share of a limit is lower than the baseline's");
  }
  for (const Subcommand& subcommand : subcommands) {
    if (app.got_subcommand(subcommand.name)) measure_and_report(options, command, subcommand.parts);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-bench", [&] { run(argc, argv); });
}
