// SPDX-License-Identifier: MIT
// How well a model predicts a text, and how far its predictions are from another model's.
//
//   kvick-eval -m MODEL.gguf --text book.txt
//   kvick-eval -m MODEL-q4.gguf --against MODEL-f16.gguf --text book.txt
//
// The text is cut in consecutive windows of --context tokens. In each, every token but the first is
// scored by the logits of the one before it; only the text as a whole begins with the begin of
// sequence token, if the vocabulary asks for one. A window starts with no knowledge of the one
// before it, so perplexities compare only between runs with the same context.
//
// With --against, MODEL2 is the reference, run as stored and with f32 activations: the divergence
// is KL(P_model2 || P_model) of the next token at each scored position, and differences are model -
// model2. "+-" is one standard error of the mean, sample deviation / sqrt(tokens), as if tokens
// were independent.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/element_type.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/sampling/evaluation.hpp"
#include "support/default_model.hpp"
#include "support/evaluation_tokens.hpp"
#include "support/model.hpp"
#include "support/program.hpp"
#include "support/progress_bar.hpp"
#include "support/system.hpp"
#include "support/token_ids.hpp"

namespace {

using kvick::MeanEstimate;
using kvick::TokenId;
using kvick::Transformer;
using programs::BadInput;
using Json = nlohmann::ordered_json;

// ---- Options ----

struct Options {
  std::string model;
  std::string against;  // may be empty
  std::string ids_file;
  std::string text_file;
  programs::ModelOptions run;
  bool print_json = false;
};

/// Nothing if help was asked for.
std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Prints negative log-likelihood and perplexity of a text under a model, and how the model's "
      "predictions differ from another's.",
      "kvick-eval");
  programs::add_model_option(app, options.model, "GGUF file");
  app.add_option("--against", options.against,
                 "GGUF file of the reference, such as the same model in full precision, run as "
                 "stored with f32 activations; shows KL(P_reference || P_model)")
      ->type_name("FILE");
  auto* const input = app.add_option_group("Input", "one of these");
  input
      ->add_option("--text", options.text_file,
                   "file of text; the vocabulary says whether a begin of sequence token is added")
      ->type_name("FILE");
  input
      ->add_option("--ids", options.ids_file,
                   "file of token ids, separated by commas or white space; nothing is added")
      ->type_name("FILE");
  input->require_option(1);
  programs::add_model_options(app, options.run, 2, "tokens of a window, at least 2");
  app.add_flag("--json", options.print_json, "print the results as one line of JSON");
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.model.empty()) options.model = programs::default_model();
  return options;
}

// ---- Input ----

// ---- Evaluation ----

struct Results {
  std::size_t num_tokens = 0;
  std::size_t num_scored = 0;
  double seconds = 0;
  MeanEstimate nll;
  std::optional<kvick::ComparisonSummary> comparison;

  double tokens_per_second() const {
    return static_cast<double>(num_scored) / std::max(seconds, 1e-9);
  }
};

/// `reference` may be null.
Results evaluate(Transformer& model, Transformer* reference, const std::vector<TokenId>& tokens,
                 kvick::EvaluationOptions options) {
  programs::ProgressBar progress("scoring");
  options.progress = [&](std::size_t done, std::size_t total) { progress.update(done, total); };
  options.threads = model.num_threads();
  Results results;
  results.num_tokens = tokens.size();
  const programs::Stopwatch time;
  if (reference == nullptr) {
    const auto nll = kvick::negative_log_likelihoods(model, tokens, options);
    results.seconds = time.seconds();
    results.num_scored = nll.size();
    results.nll = kvick::mean_estimate(nll);
  } else {
    const auto comparison = kvick::compare_models(model, *reference, tokens, options);
    results.seconds = time.seconds();
    results.num_scored = comparison.nll.size();
    results.comparison = kvick::summarize(comparison);
    results.nll = results.comparison->nll;
  }
  return results;
}

// ---- Output ----

/// Numbers that are unknown or infinite become null.
Json to_json(const MeanEstimate& estimate) {
  return {{"mean", estimate.mean}, {"standard_error", estimate.standard_error}};
}

Json to_json(const kvick::ComparisonSummary& comparison, const std::string& path) {
  return {{"model", path},
          {"nll", to_json(comparison.reference_nll)},
          {"perplexity", to_json(kvick::perplexity(comparison.reference_nll))},
          {"nll_difference", to_json(comparison.nll_difference)},
          {"kl_divergence",
           {{"mean", comparison.divergence.mean},
            {"standard_error", comparison.divergence.standard_error},
            {"median", comparison.median_divergence},
            {"p99", comparison.p99_divergence},
            {"max", comparison.max_divergence}}},
          {"same_top", to_json(comparison.same_top)}};
}

std::string to_json(const Results& results, const Options& options, const Transformer& model,
                    int context) {
  Json json = {
      {"model", options.model},
      {"tokens", results.num_tokens},
      {"tokens_scored", results.num_scored},
      {"context", context},
      {"kv", options.run.kv},
      {"nll", to_json(results.nll)},
      {"perplexity", to_json(kvick::perplexity(results.nll))},
      {"seconds", results.seconds},
      {"tokens_per_second", results.tokens_per_second()},
      {"threads", model.num_threads()},
      {"isa", name(model.isa())},
  };
  if (results.comparison) json["against"] = to_json(*results.comparison, options.against);
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);  // file names need not be UTF-8
}

void print_estimate(const char* label, const MeanEstimate& estimate, const char* unit = "") {
  char line[160];
  std::snprintf(line, sizeof line, "%-16s %.6g +- %.2g%s\n", label, estimate.mean,
                estimate.standard_error, unit);
  programs::print(line);
}

void print_text(const Results& results) {
  char line[160];
  std::snprintf(line, sizeof line, "%-16s %zu of %zu tokens, %.1f tokens/s\n", "scored",
                results.num_scored, results.num_tokens, results.tokens_per_second());
  programs::print(line);
  print_estimate("nll", results.nll, " nats/token");
  print_estimate("perplexity", kvick::perplexity(results.nll));
  if (!results.comparison) return;
  const kvick::ComparisonSummary& comparison = *results.comparison;
  print_estimate("reference nll", comparison.reference_nll, " nats/token");
  print_estimate("nll difference", comparison.nll_difference, " nats/token");
  print_estimate("kl divergence", comparison.divergence, " nats/token");
  std::snprintf(line, sizeof line, "%-16s median %.4g, 99th percentile %.4g, max %.4g\n", "",
                comparison.median_divergence, comparison.p99_divergence, comparison.max_divergence);
  programs::print(line);
  const MeanEstimate percent = {100 * comparison.same_top.mean,
                                100 * comparison.same_top.standard_error};
  print_estimate("same top token", percent, " %");
}

void run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) return;
  kvick::GgufFile file(options->model);
  int max_seq_len = kvick::read_model_config(file).max_seq_len;
  std::optional<kvick::GgufFile> against_file;
  if (!options->against.empty()) {
    against_file.emplace(options->against);
    max_seq_len = std::min(max_seq_len, kvick::read_model_config(*against_file).max_seq_len);
  }
  const int context = programs::context_size(options->run.context, max_seq_len);
  const std::vector<TokenId> tokens =
      programs::read_evaluation_tokens(options->ids_file, options->text_file, file);

  Transformer model = programs::load_model(std::move(file), options->run);
  std::optional<Transformer> against;
  if (against_file) {
    programs::ModelOptions exact = options->run;
    exact.weights = "keep";
    exact.activations = "f32";
    against.emplace(programs::load_model(std::move(*against_file), exact));
  }
  Transformer* const reference = against ? &*against : nullptr;
  const Results results = evaluate(model, reference, tokens,
                                   {.context = context, .cache_type = options->run.cache_type()});
  if (options->print_json) {
    programs::print(to_json(results, *options, model, context) + "\n");
  } else {
    print_text(results);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-eval", [&] { run(argc, argv); });
}
