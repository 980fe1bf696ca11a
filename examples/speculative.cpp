// SPDX-License-Identifier: MIT
// Speculative decoding with what a program may have: a small model, the text itself, habits.
//
//   speculative [MODEL.gguf DRAFT.gguf]
//
// Tells a story plainly and with each source of drafts. Every story must be the same.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "kvick/speculative/ngram_table.hpp"
#include "kvick/speculative/prompt_lookup.hpp"
#include "kvick/speculative/speculative.hpp"
#include "kvick/text/tokenizer.hpp"

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string models = KVICK_SOURCE_MODELS;
  const std::string model_path = argc > 2 ? argv[1] : models + "/kvick-stories-3m-q8_0.gguf";
  const std::string draft_path = argc > 2 ? argv[2] : models + "/kvick-stories-draft-q8_0.gguf";
  kvick::Transformer model(model_path), small_model(draft_path, {.threads = 1});
  const kvick::Tokenizer tokenizer(model.file());
  const std::vector<kvick::TokenId> prompt = tokenizer.encode("Once upon a time");

  kvick::SpeculativeOptions options{
      .max_new_tokens = 200,
      .draft_tokens = 8,
      .sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = 7},
  };
  const auto end_tokens = tokenizer.end_of_generation_ids();
  options.sampling.end_tokens.assign(end_tokens.begin(), end_tokens.end());

  std::optional<std::vector<kvick::TokenId>> story;
  bool is_same = true;
  const auto tell = [&](const char* name, auto& source) {
    const double start = seconds_now();
    const auto [tokens, end, stats] = kvick::speculative_decode(source, model, prompt, options);
    const double seconds = seconds_now() - start;
    if (!story) story = tokens;
    is_same = is_same && tokens == *story;
    std::printf("%-12s %6.0f tokens/s; accepted %3.0f %% of %4lld drafted, %.2f tokens per draft\n",
                name, static_cast<double>(tokens.size()) / seconds, 100 * stats.acceptance_rate,
                static_cast<long long>(stats.num_drafted), stats.mean_accepted_length);
  };

  kvick::NoDraft none;
  tell("plain", none);

  kvick::DraftModel draft(small_model, model);
  tell("small model", draft);

  kvick::PromptLookup lookup;  // good for edits and quotes; stories repeat little
  tell("lookup", lookup);

  kvick::NgramTable habits({.vocab_size = model.vocab_size()});
  for (std::uint64_t seed = 100; seed < 110; ++seed) {  // ten other stories of the same model
    kvick::SpeculativeOptions other = options;
    other.sampling.seed = seed;
    habits.learn(kvick::speculative_decode(draft, model, prompt, other).tokens);
  }
  kvick::NgramDraft habitual(habits);
  tell("habits", habitual);

  std::printf("%s\n", is_same ? "The same story each time:" : "The stories differ: a bug.");
  std::printf("Once upon a time%s\n", tokenizer.decode(*story, {.continues_text = true}).c_str());
  return is_same ? 0 : 1;
}
