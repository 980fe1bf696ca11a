// SPDX-License-Identifier: MIT
// Generates text: a prompt in, its continuation out, token by token.
//
//   kvick-generate -m MODEL.gguf -p "Once upon a time" -n 64
//
// To see how the library is used, begin with run() at the end. evaluate() runs the model over
// tokens, decode() turns its logits into new tokens, Continuation turns those into text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/text/stop_matcher.hpp"
#include "kvick/text/streaming_decoder.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/default_model.hpp"
#include "support/model.hpp"
#include "support/program.hpp"
#include "support/system.hpp"
#include "support/token_ids.hpp"

namespace {

using kvick::TokenId;
using kvick::Transformer;
using programs::BadInput;

// ---- Options ----

struct Options {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_ids;
  bool parse_special = false;
  int max_new_tokens = 128;
  programs::ModelOptions run;
  kvick::SamplingOptions sampling = {
      .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .seed = random_seed()};
  std::vector<std::string> stop_strings;
  bool ignore_eos = false;
  bool print_ids = false;
  std::string logits_file;
  bool print_json = false;

  /// 32 bits: short to type, and exact in every JSON reader.
  static std::uint64_t random_seed() { return std::random_device()(); }
};

/// Nothing if help was asked for.
std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  kvick::SamplingOptions& sampling = options.sampling;
  CLI::App app(
      "Prints the continuation of a prompt as it is generated; the prompt is not repeated.",
      "kvick-generate");
  constexpr int kMax = std::numeric_limits<int>::max();
  const CLI::Range not_negative(0, kMax, "NONNEGATIVE");

  app.option_defaults()->group("Model");
  programs::add_model_option(app, options.model, "GGUF file");
  programs::add_model_options(app, options.run, 1, "room for prompt and new tokens");

  app.option_defaults()->group("Prompt");
  auto* const prompt = app.add_option(
      "-p,--prompt", options.prompt,
      "text; without it and --prompt-ids, standard input less the line break at its end");
  app.add_option("--prompt-ids", options.prompt_ids, "token ids as they are, such as 1,403,407")
      ->type_name("IDS")
      ->excludes(prompt);
  app.add_flag("--special", options.parse_special,
               "control tokens such as <|im_end|> may be written in the text");

  app.option_defaults()->group("Sampling");
  app.add_option("--temp", sampling.temperature, "temperature; 0 always takes the likeliest token")
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "keep this many likeliest tokens; 0 keeps all")
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "keep the likeliest tokens with this much probability")
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p,
                 "keep tokens with this share of the likeliest one's probability")
      ->capture_default_str();
  app.add_option("--repeat-penalty", sampling.repetition_penalty,
                 "divides the logits of tokens seen lately; 1 is off")
      ->capture_default_str();
  app.add_option("--frequency-penalty", sampling.frequency_penalty,
                 "taken from a logit for each time its token was seen lately")
      ->capture_default_str();
  app.add_option("--presence-penalty", sampling.presence_penalty,
                 "taken from a logit if its token was seen lately")
      ->capture_default_str();
  app.add_option("--penalty-window", sampling.penalty_window,
                 "lately: among this many last tokens, prompt included; -1 for all")
      ->capture_default_str();
  programs::add_seed_option(app, sampling.seed, "default: random, shown with the speed at the end");

  app.option_defaults()->group("End");
  app.add_option("-n,--max-new-tokens", options.max_new_tokens, "0 only evaluates the prompt")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--min-tokens", sampling.min_tokens,
                 "no end of text token before this many new tokens")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--stop", options.stop_strings,
                 "end before this text appears; may be given several times")
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", options.ignore_eos, "go on after an end of text token");

  app.option_defaults()->group("Output");
  app.add_flag("--ids", options.print_ids, "print the ids of the new tokens instead of text");
  app.add_option("--logits", options.logits_file,
                 "write the logits of the prompt's last position to this file, as a JSON list")
      ->type_name("FILE");
  app.add_flag("--json", options.print_json, "print a summary as the last line");
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.model.empty()) options.model = programs::default_model();
  return options;
}

// ---- Input: model and prompt ----

std::vector<TokenId> read_prompt(const Options& options, const kvick::Tokenizer& tokenizer) {
  if (options.prompt_ids) {
    return programs::parse_token_ids(*options.prompt_ids, tokenizer.vocab_size());
  }
  const std::string text = options.prompt ? *options.prompt : programs::read_standard_input();
  if (text.empty()) throw BadInput("the prompt must not be empty");
  return tokenizer.encode(text, {.add_eos = false, .parse_special = options.parse_special});
}

/// How many tokens may be generated: what was asked for, or what the context has room for.
int num_tokens_to_generate(const Options& options, std::size_t num_prompt_tokens, int context) {
  const int wanted = std::min(options.max_new_tokens, 1);
  const auto room =
      static_cast<std::int64_t>(context) - static_cast<std::int64_t>(num_prompt_tokens);
  if (room < wanted) {
    throw BadInput(kvick::detail::concat("prompt and new tokens must fit the context of ", context,
                                         " tokens, got a prompt of ", num_prompt_tokens,
                                         " and at least ", wanted, " new"));
  }
  return static_cast<int>(std::min<std::int64_t>(options.max_new_tokens, room));
}

// ---- The model: tokens to logits to tokens ----

/// Runs the model over `tokens`, which follow what is cached. `logits` [1][vocab_size] become those
/// of the last one.
void evaluate(Transformer& model, Transformer::Cache& cache, std::span<const TokenId> tokens,
              kvick::Matrix& logits) {
  constexpr std::size_t kChunkTokens = 512;  // bounds the memory of a pass; results do not change
  while (!tokens.empty()) {
    const auto chunk = tokens.first(std::min(tokens.size(), kChunkTokens));
    tokens = tokens.subspan(chunk.size());
    const int num_logits = tokens.empty() ? 1 : 0;
    if (!cache.reserve(0, static_cast<int>(chunk.size()))) throw BadInput("the cache is full");
    model.forward(kvick::Batch({.sequence = 0,
                                .first_position = cache.length(0),
                                .tokens = chunk,
                                .num_logits = num_logits}),
                  cache, logits.topRows(num_logits));
    cache.commit(0, chunk);
  }
}

/// The decoding loop. `tokens` are the prompt and `logits` those of its end; new tokens are appended.
/// Each goes to accept(token) first; false from there ends the loop. Returns whether it did.
template <class Accept>
bool decode(Transformer& model, Transformer::Cache& cache, kvick::Matrix& logits,
            kvick::Sampler& sampler, int max_new_tokens, std::vector<TokenId>& tokens,
            Accept&& accept) {
  const std::span<const float> row(logits.data(), static_cast<std::size_t>(logits.size()));
  for (int i = 0; i < max_new_tokens; ++i) {
    const TokenId token = sampler.sample(row, static_cast<std::uint64_t>(i), tokens);
    if (!accept(token)) return true;
    tokens.push_back(token);
    if (i + 1 < max_new_tokens) evaluate(model, cache, std::span(&token, 1), logits);
  }
  return false;
}

// ---- Output: tokens to text ----

/// The text after the prompt, up to a stop string.
class Continuation {
 public:
  Continuation(const kvick::Tokenizer& tokenizer, std::span<const TokenId> prompt,
               kvick::StopMatcher stop_matcher)
      : decoder_(tokenizer), stop_matcher_(std::move(stop_matcher)) {
    // Whether the first new token keeps its space depends on what stands before it.
    for (const TokenId token : prompt) decoder_.push(token);
  }

  /// The text that can be shown once `token` is known.
  std::string push(TokenId token) { return stop_matcher_.push(decoder_.push(token)); }
  /// What was held back.
  std::string finish() {
    std::string text = stop_matcher_.push(decoder_.finish());
    return text + stop_matcher_.finish();
  }
  bool has_stopped() const { return stop_matcher_.has_matched(); }

 private:
  kvick::StreamingDecoder decoder_;
  kvick::StopMatcher stop_matcher_;
};

/// As few digits as give each float back: 9 or less.
void write_logits(std::ofstream& file, const std::string& path, const kvick::Matrix& logits) {
  using FloatJson = nlohmann::basic_json<std::map, std::vector, std::string, bool, std::int64_t,
                                         std::uint64_t, float>;
  file << FloatJson(std::vector<float>(logits.data(), logits.data() + logits.size())) << std::endl;
  if (!file) throw BadInput("cannot write " + path);
}

/// What the end of a run tells; rates are in tokens per second.
struct Summary {
  std::size_t num_prompt_tokens = 0;
  std::size_t num_generated_tokens = 0;
  bool is_stopped = false;  // by the model or a stop string, not by length
  double load_seconds = 0;
  double prefill_rate = 0;
  double decode_rate = 0;  // 0 if no token was evaluated after the prompt
};

std::string to_json(const Summary& summary, const Options& options, const Transformer& model,
                    const Transformer::Cache& cache) {
  const nlohmann::ordered_json json = {
      {"model", options.model},
      {"prompt_tokens", summary.num_prompt_tokens},
      {"generated_tokens", summary.num_generated_tokens},
      {"finish_reason", summary.is_stopped ? "stop" : "length"},
      {"load_seconds", summary.load_seconds},
      {"prefill_tokens_per_second", summary.prefill_rate},
      {"decode_tokens_per_second", summary.decode_rate},
      {"peak_memory_bytes", programs::peak_memory_bytes()},
      {"cache_bytes", cache.memory_bytes()},
      {"kv", options.run.kv},
      {"context", cache.max_seq_len()},
      {"threads", model.num_threads()},
      {"isa", name(model.isa())},
      {"seed", options.sampling.seed},
  };
  using ErrorHandler = nlohmann::ordered_json::error_handler_t;
  return json.dump(-1, ' ', false, ErrorHandler::replace);  // file names need not be UTF-8
}

/// For people: one line on standard error.
void print_speed(const Summary& summary, const Options& options) {
  std::fprintf(stderr,
               "prompt %zu tokens, %.1f tokens/s; new %zu tokens, %.1f tokens/s; seed %llu\n",
               summary.num_prompt_tokens, summary.prefill_rate, summary.num_generated_tokens,
               summary.decode_rate, static_cast<unsigned long long>(options.sampling.seed));
}

// ---- The program ----

std::ofstream open_logits_file(const std::string& path) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path);
  if (!file) throw BadInput("cannot write --logits file " + kvick::detail::in_quotes(path));
  return file;
}

double rate(std::size_t num_tokens, const programs::Stopwatch& time) {
  return static_cast<double>(num_tokens) / std::max(time.seconds(), 1e-9);
}

void run(int argc, char** argv) {
  const auto parsed = parse_options(argc, argv);
  if (!parsed) return;
  const Options& options = *parsed;
  check_sampling_options(options.sampling, "sampling");
  kvick::StopMatcher stop_matcher(options.stop_strings);
  Summary summary;

  // Everything that can be wrong is found before the weights are read and anything is computed.
  const programs::Stopwatch open_time;
  kvick::GgufFile file(options.model);
  const kvick::ModelConfig config = kvick::read_model_config(file);
  const kvick::Tokenizer tokenizer(file);
  summary.load_seconds = open_time.seconds();
  const std::vector<TokenId> prompt = read_prompt(options, tokenizer);
  const int context = programs::context_size(options.run.context, config.max_seq_len);
  const int max_new_tokens = num_tokens_to_generate(options, prompt.size(), context);
  std::ofstream logits_file = open_logits_file(options.logits_file);

  const programs::Stopwatch load_time;
  Transformer model = programs::load_model(std::move(file), options.run);
  auto cache = model.make_cache({.max_seq_len = context, .element_type = options.run.cache_type()});
  summary.load_seconds += load_time.seconds();

  kvick::Matrix logits(1, model.vocab_size());
  const programs::Stopwatch prefill_time;
  evaluate(model, cache, prompt, logits);
  summary.num_prompt_tokens = prompt.size();
  summary.prefill_rate = rate(prompt.size(), prefill_time);
  if (logits_file.is_open()) write_logits(logits_file, options.logits_file, logits);

  kvick::SamplingOptions sampling = options.sampling;
  const auto end_tokens = tokenizer.end_of_generation_ids();
  sampling.end_tokens.assign(end_tokens.begin(), end_tokens.end());
  kvick::Sampler sampler(sampling);
  Continuation continuation(tokenizer, prompt, std::move(stop_matcher));
  std::vector<TokenId> tokens = prompt;
  std::vector<TokenId> new_tokens;
  const auto accept = [&](TokenId token) {
    if (!options.ignore_eos && tokenizer.is_end_of_generation(token)) return false;
    new_tokens.push_back(token);
    const std::string text = continuation.push(token);
    if (!options.print_ids) programs::print(text);
    return !continuation.has_stopped();
  };
  const programs::Stopwatch decode_time;
  summary.is_stopped = decode(model, cache, logits, sampler, max_new_tokens, tokens, accept);
  const int num_evaluated = cache.length(0) - static_cast<int>(prompt.size());
  summary.decode_rate = rate(static_cast<std::size_t>(num_evaluated), decode_time);
  summary.num_generated_tokens = new_tokens.size();

  const std::string rest = continuation.finish();
  programs::print((options.print_ids ? programs::format_token_ids(new_tokens) : rest) + "\n");
  if (options.print_json) {
    programs::print(to_json(summary, options, model, cache) + "\n");
  } else {
    print_speed(summary, options);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-generate", [&] { run(argc, argv); });
}
