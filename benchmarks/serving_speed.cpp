// SPDX-License-Identifier: MIT
// What batching gains on this machine, with a model of one's own.
//
//   kvick-serving-speed MODEL.gguf [--batch 16] [--requests 96] [--shortest 16] [--longest 512]
//                       [--uniform] [--prompts 24] [--threads N] [--part batch|static|chunks|all]
//
// batch   Tokens/s of --batch sequences that decode together, beside one alone.
// static  The same requests, of log-uniform or uniform output lengths, by continuous batching and
//         in groups of --batch that each run padded to their longest; tokens that were asked for
//         per second.
// chunks  Inter-token latency of --batch / 2 sequences while --prompts prompts of 1,024 tokens
//         arrive, Poisson, so that at least one step in 20 meets one. They are computed whole, all
//         that have arrived, or in chunks of 512 tokens, or in steps of at most --step-ms.
// Token ids are arbitrary, so random weights do. Requests are greedy and ignore end tokens.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "kvick/bench/statistics.hpp"
#include "kvick/bench/workload.hpp"
#include "kvick/core/random.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/serving/engine_core.hpp"

namespace {

using Core = kvick::EngineCore<kvick::Transformer>;

struct Options {
  std::string model;
  std::string part = "all";
  int batch = 16;
  int num_requests = 96;
  int shortest = 16;
  int longest = 512;
  int threads = 0;
  int num_prompts = 24;
  bool is_uniform = false;
  double step_ms = 100;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

kvick::GenerationRequest request_of(const kvick::Transformer& model, int num_prompt_tokens,
                                    int num_new_tokens, unsigned seed) {
  kvick::PhiloxStream random(seed);
  std::vector<kvick::TokenId> prompt;
  for (int i = 0; i < num_prompt_tokens; ++i) {
    prompt.push_back(static_cast<kvick::TokenId>(
        random.next_below(static_cast<std::uint32_t>(model.vocab_size()))));
  }
  kvick::GenerationRequest request;
  request.prompt = std::move(prompt);
  request.options.max_new_tokens = num_new_tokens;
  return request;
}

kvick::EngineOptions engine_options(int batch, int max_seq_len, int step_tokens = 512) {
  return {.scheduler = {.max_batch_size = batch,
                        .max_seq_len = max_seq_len,
                        .max_num_batched_tokens = step_tokens}};
}

/// Decoded tokens/s of `batch` sequences, after their prompts and a first round; and what the first
/// of them, the same whatever the batch, generates.
double decode_rate(kvick::Transformer& model, int batch, int num_tokens,
                   std::vector<kvick::TokenId>* first = nullptr) {
  Core core(model, engine_options(batch, 16 + num_tokens + 2));
  std::vector<kvick::GenerationHandle> handles;
  for (int i = 0; i < batch; ++i) {
    handles.push_back(core.submit(request_of(model, 16, num_tokens + 2, unsigned(i))));
  }
  while (core.metrics().num_output_tokens < 2 * batch) core.step();
  const std::int64_t before = core.metrics().num_output_tokens;
  const double start = now();
  while (core.step()) {
  }
  const double seconds = now() - start;
  if (first != nullptr) *first = handles[0].result().tokens;
  return static_cast<double>(core.metrics().num_output_tokens - before) / seconds;
}

void measure_batch(kvick::Transformer& model, const Options& options) {
  std::vector<double> alone, together, ratios;
  for (int round = 0; round < 5; ++round) {
    std::vector<kvick::TokenId> want, got;
    alone.push_back(decode_rate(model, 1, 32, &want));
    together.push_back(decode_rate(model, options.batch, 32, &got));
    ratios.push_back(together.back() / alone.back());
    if (got != want) {
      throw kvick::Error(kvick::ErrorCode::kArgument, "kvick-serving-speed",
                         "a sequence must not depend on its batch, got other tokens");
    }
  }
  const auto [slow, high] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf(
      "batch 1: %.1f tokens/s, batch %d: %.1f tokens/s (medians of 5), %.2f times (%.2f to %.2f)\n",
      kvick::quantile(alone, 0.5), options.batch, kvick::quantile(together, 0.5),
      kvick::quantile(ratios, 0.5), *slow, *high);
}

/// Seconds to run requests of these lengths, all submitted at once.
double run_seconds(kvick::Transformer& model, const Options& options, std::span<const int> lengths,
                   int padded_to = 0) {
  Core core(model, engine_options(options.batch, 16 + options.longest));
  std::vector<kvick::GenerationHandle> handles;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    handles.push_back(
        core.submit(request_of(model, 16, std::max(lengths[i], padded_to), unsigned(i))));
  }
  const double start = now();
  while (core.step()) {
  }
  return now() - start;
}

void measure_static(kvick::Transformer& model, const Options& options) {
  kvick::PhiloxStream random(1);
  std::vector<int> lengths;
  double num_tokens = 0;
  for (int i = 0; i < options.num_requests; ++i) {
    const double u = random.next_uniform(), shortest = options.shortest, longest = options.longest;
    lengths.push_back(
        int(std::lround(options.is_uniform ? shortest + u * (longest - shortest)
                                           : shortest * std::pow(longest / shortest, u))));
    num_tokens += lengths.back();
  }
  const double continuous = run_seconds(model, options, lengths);
  double padded = 0;
  for (std::size_t first = 0; first < lengths.size(); first += std::size_t(options.batch)) {
    const auto group = std::span(lengths).subspan(
        first, std::min(std::size_t(options.batch), lengths.size() - first));
    padded += run_seconds(model, options, group, *std::max_element(group.begin(), group.end()));
  }
  std::printf(
      "%d requests of %d to %d new tokens, batch %d: continuous %.1f tokens/s, static %.1f "
      "tokens/s, %.2f times\n",
      options.num_requests, options.shortest, options.longest, options.batch,
      num_tokens / continuous, num_tokens / padded, padded / continuous);
}

struct ChunkResult {
  std::vector<double> gaps_ms;   // of all readers
  double share_with_prompt = 0;  // of the steps
  double tokens_per_second = 0;  // prompts and answers
};

constexpr int kLongPromptTokens = 1024;

ChunkResult run_chunks(kvick::Transformer& model, const Options& options, int step_tokens,
                       double step_ms, std::span<const double> arrivals, int num_reader_tokens) {
  const int num_readers = std::max(1, options.batch / 2);
  kvick::EngineOptions engine =
      engine_options(options.batch, kLongPromptTokens + num_reader_tokens, step_tokens);
  engine.scheduler.max_step_ms = step_ms;
  engine.cache.reuses_prefixes = false;
  Core core(model, engine);
  std::vector<kvick::GenerationHandle> readers, prompts;
  for (int i = 0; i < num_readers; ++i) {
    readers.push_back(core.submit(request_of(model, 16, num_reader_tokens, unsigned(i))));
  }
  while (core.metrics().num_output_tokens < num_readers) core.step();
  const double start = now();
  std::size_t num_steps = 0, num_with_prompt = 0;
  for (bool is_busy = true; is_busy || prompts.size() < arrivals.size();) {
    while (prompts.size() < arrivals.size() && now() - start >= arrivals[prompts.size()]) {
      prompts.push_back(
          core.submit(request_of(model, kLongPromptTokens, 1, 100u + unsigned(prompts.size()))));
    }
    is_busy = core.step();
    if (!is_busy) continue;
    ++num_steps;
    num_with_prompt += core.metrics().num_step_tokens > core.metrics().batch_size ? 1 : 0;
  }
  const double seconds = now() - start;
  ChunkResult result;
  for (const auto& reader : readers) {
    const auto& itl = reader.result().metrics.itl_ms;
    result.gaps_ms.insert(result.gaps_ms.end(), itl.begin(), itl.end());
  }
  result.share_with_prompt = double(num_with_prompt) / double(num_steps);
  result.tokens_per_second =
      double(std::ssize(arrivals) * (kLongPromptTokens + 1) + num_readers * num_reader_tokens) /
      seconds;
  return result;
}

void measure_chunks(kvick::Transformer& model, const Options& options) {
  // Prompts alone would take five sixths of the time, so that two or three often wait together; the
  // readers' tokens last as long as prompts arrive.
  double step_seconds = 1e9;
  for (int round = 0; round < 3; ++round) {
    const int num_readers = std::max(1, options.batch / 2);
    step_seconds = std::min(step_seconds, num_readers / decode_rate(model, num_readers, 16));
  }
  const double start = now();
  {
    Core core(model, engine_options(1, kLongPromptTokens + 1, kLongPromptTokens));
    core.submit(request_of(model, kLongPromptTokens, 1, 99));
    while (core.step()) {
    }
  }
  const double prompt_seconds = now() - start;
  const double mean_gap = 1.2 * prompt_seconds;
  const auto arrivals =
      kvick::arrival_times(options.num_prompts, 1 / mean_gap, /*burstiness=*/1, /*seed=*/3);
  const int num_reader_tokens =
      options.num_prompts * (1 + int((mean_gap - prompt_seconds) / step_seconds));
  std::printf("step of %d readers %.1f ms, prompt of %d tokens %.2f s, one every %.2f s\n",
              options.batch / 2, 1e3 * step_seconds, kLongPromptTokens, prompt_seconds, mean_gap);
  const auto measure = [&](const char* label, int step_tokens, double step_ms) {
    const ChunkResult result =
        run_chunks(model, options, step_tokens, step_ms, arrivals, num_reader_tokens);
    std::printf(
        "%-22s ITL median %6.1f ms, 99th percentile %6.0f ms; %4.1f %% of steps with a prompt; "
        "%.0f tokens/s in all\n",
        label, kvick::quantile(result.gaps_ms, 0.5), kvick::quantile(result.gaps_ms, 0.99),
        100 * result.share_with_prompt, result.tokens_per_second);
    std::fflush(stdout);
  };
  measure("whole prompts", options.batch * (kLongPromptTokens + 1), 0);
  measure("chunks of 512 tokens", 512, 0);
  measure("a time budget", 512, options.step_ms);
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Measures what batching gains.", "kvick-serving-speed");
  app.add_option("model", options.model, "GGUF file")->required();
  app.add_option("--part", options.part)
      ->check(CLI::IsMember({"batch", "static", "chunks", "all"}))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "sequences at once")->capture_default_str();
  app.add_option("--requests", options.num_requests)->capture_default_str();
  app.add_option("--shortest", options.shortest, "new tokens")->capture_default_str();
  app.add_option("--longest", options.longest, "new tokens")->capture_default_str();
  app.add_flag("--uniform", options.is_uniform, "lengths are uniform, not log-uniform");
  app.add_option("--prompts", options.num_prompts, "that arrive")->capture_default_str();
  app.add_option("--threads", options.threads, "default: what the process may use");
  app.add_option("--step-ms", options.step_ms, "time budget of a step")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  kvick::Transformer model(options.model, {.threads = options.threads});
  const bool is_all = options.part == "all";
  if (is_all || options.part == "batch") measure_batch(model, options);
  if (is_all || options.part == "static") measure_static(model, options);
  if (is_all || options.part == "chunks") measure_chunks(model, options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvick-serving-speed: %s\n", error.what());
    return 2;
  }
}
