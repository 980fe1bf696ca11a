// SPDX-License-Identifier: MIT
// Writes a model with its weights in another format, and says what that costs.
//
//   kvick-quantize model-f16.gguf model-q4.gguf --type q4_k
//   kvick-quantize model-f16.gguf model-q4.gguf --type q4_k --tensor-type 'output.weight=q6_k'
//   kvick-quantize model-f16.gguf model-q4.gguf --type q4_k --judge book.txt
//
// What becomes of each tensor: support/conversion.hpp. All metadata is kept, but for the keys that
// name the format or that split a model over files. A model may be larger than memory, but not for
// --judge, which compares the predictions of both models, run with f32 activations (kvick-eval
// compares them run in other ways). The output appears complete or not at all.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/model_config.hpp"
#include "kvick/model/weights.hpp"
#include "kvick/quant/quantization_error.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "kvick/sampling/evaluation.hpp"
#include "support/conversion.hpp"
#include "support/evaluation_tokens.hpp"
#include "support/model.hpp"
#include "support/program.hpp"
#include "support/progress_bar.hpp"
#include "support/system.hpp"
#include "support/table.hpp"
#include "support/tensor_types.hpp"

namespace {

using kvick::GgufFile;
using kvick::GgufTensor;
using kvick::TensorType;
using kvick::detail::concat;
using kvick::detail::ErrorSums;
using kvick::detail::in_quotes;
using programs::BadInput;
using programs::Conversion;
using Json = nlohmann::ordered_json;

// ---- Options ----

struct Options {
  std::string input;
  std::string output;
  programs::ConversionWishes wishes;
  bool may_overwrite = false;
  std::string judge_text;
  std::string judge_ids;
  programs::ModelOptions run = {.activations = "f32"};  // of --judge
  bool print_json = false;

  bool is_judging() const { return !judge_text.empty() || !judge_ids.empty(); }
};

programs::TypeRule parse_rule(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) {
    throw BadInput("--tensor-type must be PATTERN=TYPE, got " + in_quotes(text));
  }
  return {text.substr(0, equals),
          programs::parse_tensor_type("the type of --tensor-type", text.substr(equals + 1))};
}

/// Nothing if help was asked for.
std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  std::string type;
  std::vector<std::string> rules;
  CLI::App app("Writes a GGUF model with its weights in another format, and says what that costs.",
               "kvick-quantize");
  app.add_option("IN.gguf", options.input, "the model; of a split model, the first file")
      ->required();
  app.add_option("OUT.gguf", options.output, "the file to write")->required();
  app.add_option("--type", type, "of matrices: " + programs::type_names())
      ->type_name("TYPE")
      ->required();
  app.add_option("--tensor-type", rules,
                 "another type for matrices whose name matches, '*' being any text; may be "
                 "repeated, the last match counts")
      ->type_name("PATTERN=TYPE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--force", options.may_overwrite, "replace OUT.gguf if it exists");
  auto* const text = app.add_option("--judge", options.judge_text,
                                    "file of text on which predictions of both models are compared")
                         ->type_name("FILE");
  app.add_option("--judge-ids", options.judge_ids,
                 "the same with token ids, separated by commas or white space")
      ->type_name("FILE")
      ->excludes(text);
  app.add_option("-c,--context", options.run.context,
                 concat("tokens of a window of --judge; default: the model's, at most ",
                        programs::kMaxDefaultContext))
      ->check(CLI::Range(2, std::numeric_limits<int>::max(), "POSITIVE"));
  app.add_option("-t,--threads", options.run.threads, "default: what the process may use")
      ->check(CLI::Range(1, std::numeric_limits<int>::max(), "POSITIVE"));
  app.add_flag("--json", options.print_json, "print the results as one line of JSON");
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  options.wishes.type = programs::parse_tensor_type("--type", type);
  for (const std::string& rule : rules) options.wishes.rules.push_back(parse_rule(rule));
  return options;
}

/// Before any work is done.
void check_output(const Options& options) {
  std::error_code ignored;
  const std::string name = in_quotes(options.output);
  if (!std::filesystem::exists(options.output, ignored)) return;
  if (std::filesystem::equivalent(options.input, options.output, ignored)) {
    throw BadInput("the output must be another file than the input, got " + name + " twice");
  }
  if (!std::filesystem::is_regular_file(options.output, ignored)) {
    throw BadInput(name + " exists and is no regular file");
  }
  if (!options.may_overwrite) throw BadInput(name + " exists; --force replaces it");
}

// ---- Results ----

struct Total {
  std::size_t num_tensors = 0;
  std::uint64_t num_parameters = 0;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;

  void add(const Conversion& conversion) {
    ++num_tensors;
    num_parameters += conversion.source->num_elements();
    bytes_before += conversion.source->data.size();
    bytes_after += conversion.num_bytes();
  }
  double bits_per_weight(std::uint64_t bytes) const {
    const auto count = static_cast<double>(std::max<std::uint64_t>(num_parameters, 1));
    return 8.0 * static_cast<double>(bytes) / count;
  }
};

struct Results {
  std::vector<Conversion> conversions;
  std::map<std::string_view, Total> total_by_type;  // of the result
  Total total;
  ErrorSums error;  // of all that was converted
  std::size_t num_fallbacks = 0;
  std::size_t num_requantized = 0;  // blocks that became other blocks
  const Conversion* worst = nullptr;
  double seconds = 0;
  int num_threads = 0;
  std::optional<kvick::ComparisonSummary> judgement;
};

double relative_rmse(const ErrorSums& error) {
  return error.difference == 0.0 ? 0.0 : std::sqrt(error.difference / error.original);
}

void summarize(Results& results) {
  for (const Conversion& conversion : results.conversions) {
    results.total_by_type[conversion.type_name()].add(conversion);
    results.total.add(conversion);
    results.error.original += conversion.error.original;
    results.error.difference += conversion.error.difference;
    results.num_requantized += conversion.is_requantized() ? 1 : 0;
    if (conversion.is_fallback) {
      ++results.num_fallbacks;
    }
    if (results.worst == nullptr ||
        relative_rmse(conversion.error) > relative_rmse(results.worst->error)) {
      results.worst = &conversion;
    }
  }
}

Json to_json(const Conversion& conversion) {
  const GgufTensor& source = *conversion.source;
  Json json = {{"name", source.name},
               {"shape", std::vector<std::uint64_t>(source.dims.begin(),
                                                    source.dims.begin() + source.num_dims)},
               {"from", source.type_name()},
               {"to", conversion.type_name()},
               {"bytes", conversion.num_bytes()},
               {"relative_rmse", relative_rmse(conversion.error)},
               {"snr_db", kvick::detail::snr_db(conversion.error)},  // null for infinity
               {"max_abs_error", conversion.error.max_abs}};
  if (!conversion.note.empty()) json["note"] = conversion.note;
  return json;
}

Json to_json(const Total& total) {
  return {{"tensors", total.num_tensors},
          {"parameters", total.num_parameters},
          {"bytes_before", total.bytes_before},
          {"bytes", total.bytes_after},
          {"bits_per_weight", total.bits_per_weight(total.bytes_after)}};
}

Json to_json(const kvick::ComparisonSummary& judgement) {
  return {{"kl_divergence",
           {{"mean", judgement.divergence.mean},
            {"standard_error", judgement.divergence.standard_error},
            {"max", judgement.max_divergence}}},
          {"same_top", judgement.same_top.mean},
          {"nll", judgement.nll.mean},
          {"nll_before", judgement.reference_nll.mean}};
}

std::string to_json(const Results& results, const Options& options) {
  Json tensors = Json::array();
  for (const Conversion& conversion : results.conversions) tensors.push_back(to_json(conversion));
  Json by_type = Json::object();
  for (const auto& [type, total] : results.total_by_type) {
    by_type[std::string(type)] = to_json(total);
  }
  Json json = {{"input", options.input},
               {"output", options.output},
               {"type", kvick::info(options.wishes.type).name},
               {"tensors", tensors},
               {"totals_by_type", by_type},
               {"total", to_json(results.total)},
               {"fallbacks", results.num_fallbacks},
               {"requantized", results.num_requantized},
               {"relative_rmse", relative_rmse(results.error)},
               {"snr_db", kvick::detail::snr_db(results.error)},
               {"seconds", results.seconds},
               {"threads", results.num_threads}};
  if (results.judgement) json["judgement"] = to_json(*results.judgement);
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);  // file names need not be UTF-8
}

std::string tensors_text(const Results& results) {
  programs::Rows rows = {{"tensor", "shape", "from", "to", "SNR dB", "relative RMSE", ""}};
  for (const Conversion& conversion : results.conversions) {
    const GgufTensor& source = *conversion.source;
    std::string shape;
    for (int i = 0; i < source.num_dims; ++i) {
      shape += (i == 0 ? "" : " x ") + std::to_string(source.dims[static_cast<std::size_t>(i)]);
    }
    const bool is_exact = conversion.error.difference == 0.0;
    rows.push_back(
        {programs::printable(source.name), shape, std::string(source.type_name()),
         std::string(conversion.type_name()),
         is_exact ? "exact" : programs::with_decimals(kvick::detail::snr_db(conversion.error), 2),
         is_exact ? "0" : programs::with_decimals(relative_rmse(conversion.error), 5),
         conversion.note});
  }
  return programs::table(rows);
}

std::string totals_text(const Results& results) {
  programs::Rows rows = {{"type", "tensors", "parameters", "bits per weight", "bytes"}};
  const auto add_row = [&](std::string_view type, const Total& total, std::uint64_t bytes) {
    rows.push_back({std::string(type), std::to_string(total.num_tensors),
                    programs::grouped(total.num_parameters),
                    programs::with_decimals(total.bits_per_weight(bytes), 3),
                    programs::bytes_text(bytes)});
  };
  for (const auto& [type, total] : results.total_by_type) add_row(type, total, total.bytes_after);
  add_row("all", results.total, results.total.bytes_after);
  add_row("before", results.total, results.total.bytes_before);
  return programs::table(rows);
}

std::string judgement_text(const kvick::ComparisonSummary& judgement) {
  char lines[320];
  std::snprintf(lines, sizeof lines,
                "kl divergence   mean %.4g +- %.2g, max %.4g nats/token\n"
                "same top token  %.2f +- %.2g %%\n"
                "perplexity      %.5g, before %.5g\n",
                judgement.divergence.mean, judgement.divergence.standard_error,
                judgement.max_divergence, 100 * judgement.same_top.mean,
                100 * judgement.same_top.standard_error, kvick::perplexity(judgement.nll).mean,
                kvick::perplexity(judgement.reference_nll).mean);
  return lines;
}

std::string text(const Results& results, const Options& options) {
  std::string text = tensors_text(results) + "\n" + totals_text(results) + "\n";
  if (results.error.difference > 0.0) {
    text += concat("weights         SNR ",
                   programs::with_decimals(kvick::detail::snr_db(results.error), 2), " dB, worst ",
                   programs::with_decimals(kvick::detail::snr_db(results.worst->error), 2),
                   " dB in ", programs::printable(results.worst->source->name), "\n");
  }
  if (results.num_fallbacks > 0) {
    text += concat("note            ", results.num_fallbacks,
                   results.num_fallbacks == 1 ? " matrix has" : " matrices have",
                   " another type than asked for, see above\n");
  }
  if (results.num_requantized > 0) {
    text += concat("note            ", results.num_requantized,
                   results.num_requantized == 1 ? " tensor was" : " tensors were",
                   " quantized before: quantizing the original loses less, and the errors above "
                   "count from what was left of it\n");
  }
  if (results.judgement) text += judgement_text(*results.judgement);
  return text + concat("written         ", programs::printable(options.output), " in ",
                       programs::with_decimals(results.seconds, 1), " s\n");
}

// ---- Judging ----

/// What is needed for it, read before anything is written, so that mistakes show at once.
class Judge {
 public:
  Judge(const GgufFile& file, const Options& options) : options_(options) {
    const kvick::ModelConfig config = kvick::read_model_config(file);
    kvick::read_model_weights(file, config);  // all tensors are there and usable
    context_ = programs::context_size(options.run.context, config.max_seq_len);
    tokens_ = programs::read_evaluation_tokens(options.judge_ids, options.judge_text, file);
    if (tokens_.size() < 2) throw BadInput("judging needs at least two tokens");
  }

  kvick::ComparisonSummary compare() const {
    auto original = programs::load_model(GgufFile(options_.input), options_.run);
    auto result = programs::load_model(GgufFile(options_.output), options_.run);
    programs::ProgressBar progress("judging");
    const kvick::EvaluationOptions evaluation = {
        .context = context_,
        .cache_type = options_.run.cache_type(),
        .threads = original.num_threads(),
        .progress = [&](std::size_t done, std::size_t total) { progress.update(done, total); }};
    return kvick::summarize(kvick::compare_models(result, original, tokens_, evaluation));
  }

 private:
  const Options& options_;
  int context_ = 0;
  std::vector<kvick::TokenId> tokens_;
};

void run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) return;
  const GgufFile file(options->input);
  check_output(*options);
  std::optional<Judge> judge;
  if (options->is_judging()) judge.emplace(file, *options);

  Results results;
  results.conversions = programs::plan_conversions(file, options->wishes);
  {
    programs::Converter converter(file, options->run.threads);
    results.num_threads = converter.num_threads();
    const programs::Stopwatch time;
    programs::write_model(file, options->wishes.type, results.conversions, converter,
                          options->output);
    results.seconds = time.seconds();
  }
  summarize(results);
  if (judge) results.judgement = judge->compare();
  programs::print(options->print_json ? to_json(results, *options) + "\n"
                                      : text(results, *options));
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-quantize", [&] { run(argc, argv); });
}
