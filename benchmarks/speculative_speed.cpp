// SPDX-License-Identifier: MIT
// What speculation gains, beside plain decoding in one process, in turns.
//
//   kvick-speculative-speed MODEL.gguf [--tokenizer VOCABULARY.gguf] [--draft SMALL.gguf]
//
// First the price: one pass over 5 tokens, and over more, against one over 1. Then whole texts.
// Models of random weights do not copy their prompts, so the real forward pass is joined with given
// choices: behind every token of a text, the logit of its next token is raised above all others.
// Times are those of the model, acceptance is that of the text:
//   edit      a function, and the same function with a name changed and a line added
//   summary   an article, and a summary that quotes from it
//   prose     an article, and how it goes on
//   hostile   two tokens that always come back, each time before another one
// With --draft, the model's own greedy text and the small model's real drafts are measured instead.
// Tokens are compared with those of plain decoding; times are of decoding alone, medians of rounds.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "kvick/speculative/draft_model.hpp"
#include "kvick/speculative/prompt_lookup.hpp"
#include "kvick/speculative/speculative.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/repeating_texts.hpp"
#include "support/rounds.hpp"
#include "support/speculation_run.hpp"

namespace {

using kvick::TokenId;
using Tokens = std::vector<TokenId>;

struct Options {
  std::string model, tokenizer, draft;
  int new_tokens = 128;
  int draft_tokens = 8;
  int threads = 0;
  int draft_threads = 1;  // threads of two pools would wait for each other
  int num_rounds = 3;
  bool measures_passes = true;
};

/// Plain and speculative in turns, with the same tokens, or it throws.
template <class Model, class Source>
void compare(std::string_view name, Model& model, kvick::Transformer::Cache& cache, Source& source,
             const Tokens& prompt, int num_new, const Options& options) {
  std::vector<double> ratios, rates;
  kvick::SpeculativeStatistics statistics;
  for (int round = 0; round < options.num_rounds; ++round) {
    kvick::NoDraft none;
    const measure::Decoded plain =
        measure::decode(model, cache, none, prompt, {.max_new_tokens = num_new, .draft_tokens = 0});
    const measure::Decoded drafted =
        measure::decode(model, cache, source, prompt,
                        {.max_new_tokens = num_new, .draft_tokens = options.draft_tokens});
    if (drafted.tokens != plain.tokens) throw std::runtime_error("the tokens differ");
    ratios.push_back(plain.seconds / drafted.seconds);
    rates.push_back(num_new / plain.seconds);
    statistics = drafted.statistics;
  }
  const measure::Spread ratio = measure::spread_of(ratios);
  std::printf("| %-8.*s | %5zu + %3d | %7.1f | %5.2f [%.2f, %.2f] | %3.0f %% of %4lld | %.2f |\n",
              static_cast<int>(name.size()), name.data(), prompt.size(), num_new,
              measure::spread_of(rates).median, ratio.median, ratio.min, ratio.max,
              100 * statistics.acceptance_rate, static_cast<long long>(statistics.num_drafted),
              statistics.mean_accepted_length);
  std::fflush(stdout);
}

/// Passes of 1 token and of more in turns, over a cache of 256.
void measure_passes(kvick::Transformer& model, kvick::Transformer::Cache& cache) {
  constexpr int kDepth = 256, kRounds = 11, kNumTokens[] = {1, 2, 3, 4, 5, 6, 8, 9, 17};
  const auto seconds = measure::seconds_of_passes(model, cache, kNumTokens, kDepth, kRounds);
  std::printf("| tokens of a pass | ms | times one token's |\n| --- | --- | --- |\n");
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < seconds[i].size(); ++round) {
      ratios.push_back(seconds[i][round] / seconds[0][round]);
    }
    std::printf("| %d | %.2f | %.2f |\n", kNumTokens[i],
                1e3 * measure::spread_of(seconds[i]).median, measure::spread_of(ratios).median);
  }
  std::printf("\n");
}

void run(const Options& options) {
  kvick::Transformer model(options.model, {.threads = options.threads});
  const kvick::Tokenizer tokenizer = options.tokenizer.empty()
                                         ? kvick::Tokenizer(model.file())
                                         : kvick::Tokenizer(kvick::GgufFile(options.tokenizer));
  const int context = std::min(model.max_seq_len(), 4096);
  auto cache = model.make_cache({.max_seq_len = context});
  if (options.measures_passes) measure_passes(model, cache);
  std::printf("| text | tokens | plain tokens/s | times as fast | accepted | per draft |\n");
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  if (!options.draft.empty()) {
    kvick::Transformer small(options.draft, {.threads = options.draft_threads});
    kvick::DraftModel draft(small, model, {.max_seq_len = context});
    kvick::PromptLookup lookup;
    for (const char* prompt : {"Once upon a time", "One day", "Ben and Mia"}) {
      const Tokens tokens = tokenizer.encode(prompt);
      compare("model", model, cache, draft, tokens, options.new_tokens, options);
      compare("lookup", model, cache, lookup, tokens, options.new_tokens, options);
    }
    return;
  }
  for (const measure::RepeatingText& text : measure::repeating_texts()) {
    Tokens prompt = tokenizer.encode(text.prompt), whole = prompt;
    for (const TokenId token : tokenizer.encode(text.answer, {.add_bos = false})) {
      whole.push_back(token);
    }
    const int num_new =
        std::min(options.new_tokens, static_cast<int>(whole.size() - prompt.size()));
    measure::ForcedModel forced(model, whole);
    kvick::PromptLookup lookup;
    compare(text.name, forced, cache, lookup, prompt, num_new, options);
  }
  Tokens hostile;
  for (int i = 0; i < 100 + options.new_tokens; ++i) {
    hostile.push_back(i % 3 == 0 ? 5 : i % 3 == 1 ? 6 : 7 + i % (model.vocab_size() - 7));
  }
  measure::ForcedModel forced(model, hostile);
  kvick::PromptLookup lookup;
  compare("hostile", forced, cache, lookup, Tokens(hostile.begin(), hostile.begin() + 100),
          options.new_tokens, options);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What speculation gains, beside plain decoding.", "kvick-speculative-speed");
  app.add_option("model", options.model, "GGUF file")->required();
  app.add_option("--tokenizer", options.tokenizer, "GGUF file of another tokenizer, for the texts");
  app.add_option("--draft", options.draft, "GGUF file of a small model: its drafts, real texts");
  app.add_option("-n", options.new_tokens, "tokens decoded per text, at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("-k", options.draft_tokens, "tokens drafted at a time, at most")
      ->check(CLI::Range(1, kvick::kMaxDraftTokens))
      ->capture_default_str();
  app.add_option("-t,--threads", options.threads, "default: all");
  app.add_option("--draft-threads", options.draft_threads, "of the small model; 0: all")
      ->capture_default_str();
  app.add_option("--rounds", options.num_rounds, "at least 1")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("!--no-passes", options.measures_passes, "texts only");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvick-speculative-speed: %s\n", error.what());
    return 2;
  }
  return 0;
}
