// SPDX-License-Identifier: MIT
// Continuous batching: many prompts on one model, and how the batch changes from step to step.
//
//   kvick-batching --batch 4 -n 24
//   kvick-batching -m MODEL.gguf -p "Once upon a time" -p "The dog" --threads 2
//   kvick-batching --lookup --draft SMALL.gguf
//
// Prompts join a running batch as soon as one of those before them has ended. Each text is the one
// that its prompt gets alone, with drafts or without.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvick/serving/engine_core.hpp"
#include "support/default_model.hpp"
#include "support/model.hpp"
#include "support/program.hpp"
#include "support/system.hpp"

namespace {

struct Options {
  std::string model;
  std::vector<std::string> prompts = {"Once upon a time",
                                      "Once upon a time, there was a brave boy",
                                      "Once upon a time, there was a shy rabbit",
                                      "Once upon a time, a clever fox",
                                      "Once upon a time, there was a kind girl named Rosa.",
                                      "Once upon a time, there was an old"};
  int max_new_tokens = 32;
  int batch_size = 4;
  int step_tokens = 64;
  std::string draft_model;
  bool looks_up = false;
  int draft_tokens = 5;
  programs::ModelOptions run;
};

kvick::SpeculationOptions speculation(const Options& options) {
  using kvick::DraftKind;
  const bool has_model = !options.draft_model.empty();
  const DraftKind kind = options.looks_up
                             ? has_model ? DraftKind::kLookupThenModel : DraftKind::kLookup
                         : has_model ? DraftKind::kModel
                                     : DraftKind::kNone;
  return {.kind = kind, .draft_tokens = options.draft_tokens};
}

void run(int argc, char** argv) {
  Options options;
  CLI::App app("Continues many prompts at once and shows each step.", "kvick-batching");
  programs::add_model_option(app, options.model, "GGUF file");
  app.add_option("-p,--prompt", options.prompts, "a prompt; may be given many times");
  app.add_option("-n,--max-new-tokens", options.max_new_tokens, "of the longest text")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--batch", options.batch_size, "sequences at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--step-tokens", options.step_tokens, "tokens in a step, at least --batch")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--draft", options.draft_model, "a small model of the same vocabulary drafts")
      ->type_name("FILE");
  app.add_flag("--lookup", options.looks_up, "what the text has said before drafts");
  app.add_option("--draft-tokens", options.draft_tokens, "most drafted at a time")
      ->check(CLI::Range(0, kvick::kMaxDraftTokens))
      ->capture_default_str();
  programs::add_model_options(app, options.run, 2, "tokens of prompt and text");
  if (!programs::parse_command_line(app, argc, argv)) return;

  if (options.model.empty()) options.model = programs::default_model();

  kvick::GgufFile file(options.model);
  const kvick::Tokenizer tokenizer(file);
  kvick::Transformer model = programs::load_model(std::move(file), options.run);
  std::unique_ptr<kvick::Transformer> draft;
  kvick::EngineDraftModel draft_model;
  if (!options.draft_model.empty()) {
    draft = std::make_unique<kvick::Transformer>(
        programs::load_draft_model(options.draft_model, options.run));
    draft_model = *draft;
  }
  kvick::EngineOptions engine;
  engine.scheduler.max_batch_size = options.batch_size;
  engine.scheduler.max_seq_len = programs::context_size(options.run.context, model.max_seq_len());
  engine.scheduler.max_num_batched_tokens = options.step_tokens;
  engine.cache.element_type = options.run.cache_type();
  engine.speculation = speculation(options);
  engine.draft_model = draft_model;
  kvick::EngineCore core(model, tokenizer, engine);

  // Texts of different lengths, so that they end at different steps.
  std::vector<kvick::GenerationHandle> handles;
  for (std::size_t i = 0; i < options.prompts.size(); ++i) {
    const int length = std::max(1, options.max_new_tokens - static_cast<int>(i % 4) * 6);
    handles.push_back(
        core.submit({.prompt = options.prompts[i], .options = {.max_new_tokens = length}}));
  }

  std::puts("step  sequences  tokens  waiting   ms");
  bool goes_on = true;
  while (goes_on) {
    const programs::Stopwatch time;
    goes_on = core.step();
    const kvick::EngineMetrics metrics = core.metrics();
    const auto dots = std::string(static_cast<std::size_t>(metrics.batch_size), '#');
    std::printf("%4lld  %9d  %6d  %7d  %5.1f  %s\n", static_cast<long long>(metrics.num_steps),
                metrics.batch_size, metrics.num_step_tokens, metrics.num_waiting,
                1000 * time.seconds(), dots.c_str());
  }

  for (std::size_t i = 0; i < handles.size(); ++i) {
    const kvick::Generation& text = handles[i].result();
    std::printf("\n%s|%s\n  (%d + %d tokens, first after %.1f ms, %.1f ms each, %s)\n",
                options.prompts[i].c_str(), text.text.c_str(), text.metrics.num_prompt_tokens,
                text.metrics.num_generated_tokens, text.metrics.ttft_ms, text.metrics.tpot_ms,
                std::string(name(text.finish_reason)).c_str());
    if (text.metrics.num_draft_tokens > 0) {
      std::printf("  (%d of %d drafts accepted)\n", text.metrics.num_accepted_tokens,
                  text.metrics.num_draft_tokens);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-batching", [&] { run(argc, argv); });
}
