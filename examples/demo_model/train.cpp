// SPDX-License-Identifier: MIT
// Makes the demo models: tells stories, learns a tokenizer from them, trains a network on more of
// them and writes it as GGUF.
//
//   kvick-demo-train --size target --checkpoint target.ckpt -o kvick-stories-3m-f32.gguf
//   kvick-demo-train --size draft --checkpoint draft.ckpt -o kvick-stories-draft-f32.gguf
//
// Started again with the same checkpoint it goes on where it stopped. The two models share their
// tokenizer, which depends on nothing but this program.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "adam_w.hpp"
#include "bpe_trainer.hpp"
#include "demo_vocabulary.hpp"
#include "kvick/text/tokenizer.hpp"
#include "model_file.hpp"
#include "network.hpp"
#include "story_grammar.hpp"
#include "support/program.hpp"
#include "support/progress_bar.hpp"
#include "support/system.hpp"
#include "trainer.hpp"

namespace {

using demo_model::NetworkConfig;
using demo_model::StepResult;
using demo_model::Trainer;
using demo_model::TrainingOptions;

struct Size {
  std::string name;
  NetworkConfig network;
  double peak_rate;
  std::int64_t num_steps;
};

const std::map<std::string, Size>& sizes() {
  static const std::map<std::string, Size> kSizes{
      {"target", {"kvick stories 3M", {}, 2e-3, 7000}},
      {"draft",
       {"kvick stories draft",
        {.embedding_dim = 96,
         .num_layers = 2,
         .num_heads = 3,
         .num_kv_heads = 1,
         .head_dim = 32,
         .ffn_dim = 256},
        4e-3,
        4000}},
  };
  return kSizes;
}

struct Options {
  std::string size = "target";
  std::string output;
  std::string checkpoint;
  std::uint64_t seed = 1;
  int num_threads = 2;
  int batch_stories = TrainingOptions{}.batch_stories;
  std::int64_t num_steps = 0;   // 0: the size's
  double peak_rate = 0;         // 0: the size's
  std::int64_t stop_after = 0;  // 0: at the last step
  int num_tell = 0;             // only print so many stories
};

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small language model on stories of its own grammar.", "kvick-demo-train");
  app.add_option("--size", options.size, "which model")
      ->check(CLI::IsMember({"target", "draft"}))
      ->capture_default_str();
  auto* const output = app.add_option("-o,--output", options.output, "GGUF file to write");
  app.add_option("--checkpoint", options.checkpoint,
                 "file that keeps the state of the training; if it exists, the training goes on");
  programs::add_seed_option(app, options.seed, "of weights and stories")->default_str("1");
  const auto add_count = [&](const char* name, auto& value, const char* what) {
    return app.add_option(name, value, what)->check(CLI::PositiveNumber);
  };
  add_count("-t,--threads", options.num_threads, "default: 2");
  add_count("--batch", options.batch_stories, "stories per step")->capture_default_str();
  add_count("--steps", options.num_steps, "default: by size");
  add_count("--rate", options.peak_rate, "highest learning rate; default: by size");
  add_count("--stop-after", options.stop_after, "stop early, after this many steps in all");
  auto* const tell = app.add_option("--tell", options.num_tell, "only print this many stories");
  tell->check(CLI::PositiveNumber)->excludes(output);
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.num_tell == 0 && options.output.empty()) {
    throw programs::BadInput("--output or --tell is required");
  }
  return options;
}

void tell_stories(const Options& options) {
  for (int i = 0; i < options.num_tell; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    programs::print(demo_model::make_story(options.seed, index).text + "\n\n");
  }
}

/// Takes steps until the end, with a line of figures and a checkpoint now and then.
void train(Trainer& trainer, const Options& options, std::int64_t num_steps) {
  constexpr std::int64_t kReportSteps = 20;
  constexpr std::int64_t kCheckpointSteps = 100;
  programs::ProgressBar progress("training");
  const std::int64_t first_step = trainer.num_steps_done();
  const std::int64_t end =
      options.stop_after > 0 ? std::min(options.stop_after, num_steps) : num_steps;
  programs::Stopwatch time;
  double loss = 0;
  kvick::Index num_tokens = 0;
  while (trainer.num_steps_done() < end) {
    const StepResult result = trainer.step();
    loss += result.loss;
    num_tokens += result.num_tokens;
    const std::int64_t done = trainer.num_steps_done();
    progress.update(static_cast<std::size_t>(done), static_cast<std::size_t>(num_steps));
    if (done % kReportSteps == 0 && done - kReportSteps >= first_step) {
      std::fprintf(stderr, "step %lld of %lld  loss %.4f  norm %.3f  %.0f tokens/s\n",
                   static_cast<long long>(done), static_cast<long long>(num_steps),
                   loss / kReportSteps, result.gradient_norm,
                   static_cast<double>(num_tokens) / time.seconds());
    }
    if (done % kReportSteps == 0) {
      loss = 0;
      num_tokens = 0;
      time = programs::Stopwatch();
    }
    const bool is_due = done % kCheckpointSteps == 0 || done == end;
    if (is_due && !options.checkpoint.empty()) trainer.save_checkpoint(options.checkpoint);
  }
}

/// The loss on stories that the training did not see, beside what no model can be below.
void report_loss(Trainer& trainer, std::uint64_t training_seed) {
  constexpr int kNumStories = 512;
  const StepResult held_out = trainer.evaluate(training_seed + 1, kNumStories);
  const double per_story = static_cast<double>(held_out.num_tokens) / kNumStories;
  std::fprintf(stderr, "held-out loss %.4f nats/token, entropy of the grammar %.4f\n",
               held_out.loss, demo_model::story_entropy() / per_story);
}

void run(int argc, char** argv) {
  const auto parsed = parse_options(argc, argv);
  if (!parsed) return;
  const Options& options = *parsed;
  if (options.num_tell > 0) return tell_stories(options);
  const Size& size = sizes().at(options.size);
  TrainingOptions training{.network = size.network, .seed = options.seed};
  training.schedule.peak = options.peak_rate > 0 ? options.peak_rate : size.peak_rate;
  training.schedule.num_steps = options.num_steps > 0 ? options.num_steps : size.num_steps;
  training.batch_stories = options.batch_stories;
  training.num_threads = options.num_threads;

  const kvick::Tokenizer tokenizer(demo_model::make_vocabulary(training.network.vocab_size));
  Trainer trainer(training, tokenizer);
  std::fprintf(stderr, "%zu parameters\n", trainer.parameters().size());
  if (!options.checkpoint.empty() && std::filesystem::exists(options.checkpoint)) {
    trainer.load_checkpoint(options.checkpoint);
  }
  train(trainer, options, training.schedule.num_steps);
  report_loss(trainer, options.seed);
  demo_model::model_writer(size.name, training.network, tokenizer.vocabulary(),
                           trainer.parameters())
      .write(options.output);
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-demo-train", [&] { run(argc, argv); });
}
