// SPDX-License-Identifier: MIT
// The command line of kvick-generate.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "default_model.hpp"
#include "kvick/sampling/sampling_options.hpp"
#include "kvick/speculative/draft_source.hpp"
#include "model.hpp"
#include "program.hpp"

namespace programs {

struct GenerateOptions {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_ids;
  bool parse_special = false;
  std::string pre_tokenizer;
  bool is_chat = false;
  std::string chat_family;
  std::optional<std::string> system_message;
  int max_new_tokens = 128;
  ModelOptions run;
  kvick::SamplingOptions sampling = {
      .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .seed = random_seed()};
  std::vector<std::string> stop_strings;
  bool ignore_eos = false;
  bool print_ids = false;
  std::string logits_file;
  std::string load_cache;  // files of sequence states; may be empty
  std::string save_cache;
  bool is_without_cache = false;
  std::string draft_model;  // may be empty
  bool looks_up = false;
  int draft_tokens = 8;
  bool print_json = false;

  bool is_speculative() const { return looks_up || !draft_model.empty(); }

  /// 32 bits: short to type, and exact in every JSON reader.
  static std::uint64_t random_seed() { return std::random_device()(); }
};

/// Nothing if help was asked for.
inline std::optional<GenerateOptions> parse_generate_options(int argc, char** argv) {
  GenerateOptions options;
  kvick::SamplingOptions& sampling = options.sampling;
  CLI::App app(
      "Prints the continuation of a prompt as it is generated; the prompt is not repeated.",
      "kvick-generate");
  constexpr int kMax = std::numeric_limits<int>::max();
  const CLI::Range not_negative(0, kMax, "NONNEGATIVE");

  app.option_defaults()->group("Model");
  add_model_option(app, options.model, "GGUF file");
  app.add_option(
         "--pre", options.pre_tokenizer,
         "split text as this pre-tokenizer does, for files that name none or an unknown one")
      ->type_name("NAME");
  add_model_options(app, options.run, 1, "room for prompt and new tokens");

  app.option_defaults()->group("Prompt");
  auto* const prompt = app.add_option(
      "-p,--prompt", options.prompt,
      "text; without it and --prompt-ids, standard input less the line break at its end");
  auto* const prompt_ids =
      app.add_option("--prompt-ids", options.prompt_ids, "token ids as they are, such as 1,403,407")
          ->type_name("IDS")
          ->excludes(prompt);
  auto* const special =
      app.add_flag("--special", options.parse_special,
                   "control tokens such as <|im_end|> may be written in the text");

  app.option_defaults()->group("Chat");
  auto* const chat = app.add_flag("--chat", options.is_chat,
                                  "hold a conversation: the prompt, then each line of standard "
                                  "input, is a message to the model")
                         ->excludes(prompt_ids)
                         ->excludes(special);
  app.add_option("--chat-template", options.chat_family,
                 "how messages are written, such as chatml; default: the template of the file")
      ->type_name("NAME")
      ->needs(chat);
  app.add_option("--system", options.system_message, "what the model is told before all messages")
      ->needs(chat);

  app.option_defaults()->group("Cache");
  app.add_option(
         "--load-cache", options.load_cache,
         "the prompt follows the tokens that --save-cache wrote to this file, which need not "
         "be evaluated again")
      ->type_name("FILE")
      ->excludes(chat);
  app.add_option("--save-cache", options.save_cache,
                 "write prompt and new tokens, with all that is cached of them, to this file")
      ->type_name("FILE")
      ->excludes(chat);
  auto* const no_cache = app.add_flag(
      "--no-cache", options.is_without_cache,
      "evaluate all tokens again for each new one: the same text, to compare the speed");

  app.option_defaults()->group("Speculation: the same text, sooner");
  app.add_option("--draft", options.draft_model,
                 "GGUF file of a small model of the same vocabulary, which drafts tokens")
      ->type_name("FILE")
      ->excludes(no_cache);
  app.add_flag("--lookup", options.looks_up,
               "draft what followed in the text so far, when it read like now; before --draft")
      ->excludes(no_cache);
  app.add_option("--draft-tokens", options.draft_tokens, "the most to draft at a time")
      ->check(CLI::Range(0, kvick::kMaxDraftTokens))
      ->capture_default_str();

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
  add_seed_option(app, sampling.seed, "default: random, shown with the speed at the end");

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
      ->type_name("FILE")
      ->excludes(chat);
  app.add_flag("--json", options.print_json, "print a summary as the last line");
  if (!parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.model.empty()) options.model = default_model();
  return options;
}

}  // namespace programs
