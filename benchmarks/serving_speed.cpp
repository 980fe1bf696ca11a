// SPDX-License-Identifier: MIT
// What batching gains on this machine, with a model of one's own.
//
//   kvick-serving-speed MODEL.gguf [--batch 16] [--requests 96] [--shortest 16] [--longest 512]
//                       [--uniform] [--prompts 80] [--threads N] [--part batch|static|chunks|all]
//
// batch   Tokens/s of --batch sequences that decode together, beside one alone.
// static  The same requests, of log-uniform or uniform output lengths, by continuous batching and
//         in groups of --batch that each run padded to their longest; tokens that were asked for
//         per second.
// chunks  Inter-token latency of chats, and throughput, while --prompts prompts of 1,024 tokens
//         arrive, Poisson, nearly as fast as they can be computed. They are computed whole, all
//         that have arrived, or in chunks of 512 tokens, or in steps of at most --step-ms.
//
// Beside what was measured stands what the simulation of tests/support says of the same requests,
// with the times of single steps, measured first.
// Token ids are arbitrary, so random weights do. Requests are greedy and ignore end tokens.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvick/bench/statistics.hpp"
#include "kvick/core/random.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/serving/engine_core.hpp"
#include "tests/support/scheduler_simulation.hpp"

namespace {

using Core = kvick::EngineCore<kvick::Transformer>;
using support::MachineCost;
using support::SimulatedRequest;
using support::SimulationResult;

struct Options {
  std::string model;
  std::string part = "all";
  int batch = 16;
  int num_requests = 96;
  int shortest = 16;
  int longest = 512;
  int threads = 0;
  int num_prompts = 80;
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

/// Throws unless the tokens are the same, whatever should not have changed them.
template <class Tokens>
void require_equal(const Tokens& got, const Tokens& want, std::string_view what) {
  if (got == want) return;
  throw kvick::Error(
      kvick::ErrorCode::kArgument, "kvick-serving-speed",
      kvick::detail::concat("a sequence must not depend on ", what, ", got other tokens"));
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
    require_equal(got, want, "its batch");
  }
  const auto [slow, high] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf(
      "batch 1: %.1f tokens/s, batch %d: %.1f tokens/s (medians of 5), %.2f times (%.2f to %.2f)\n",
      kvick::quantile(alone, 0.5), options.batch, kvick::quantile(together, 0.5),
      kvick::quantile(ratios, 0.5), *slow, *high);
}

// ---- The machine's times, for the simulation

constexpr int kChunk = 512, kShortPrompt = 64;
constexpr int kNumSteps = 8, kMiddleStep = 2 + kNumSteps / 2;  // two before those that are timed

/// Milliseconds of the next step.
double step_ms(Core& core) {
  const double start = now();
  core.step();
  return 1000 * (now() - start);
}

/// Milliseconds of a step in which `num_rows` sequences decode, the median of 8; `depth` tokens
/// each are cached.
double decode_ms(kvick::Transformer& model, int num_rows, int depth) {
  Core core(model, engine_options(num_rows, depth + kNumSteps + 2));
  for (int i = 0; i < num_rows; ++i) {
    core.submit(request_of(model, depth, kNumSteps + 2, unsigned(i)));
  }
  while (core.metrics().num_output_tokens < 2 * num_rows) core.step();
  std::vector<double> times;
  for (int i = 0; i < kNumSteps; ++i) times.push_back(step_ms(core));
  return kvick::quantile(times, 0.5);
}

/// Milliseconds of both chunks of a prompt of 2 kChunk tokens, and of a prompt of kShortPrompt;
/// medians of 3.
struct PromptTimes {
  double first_chunk_ms, second_chunk_ms, short_ms;
};
PromptTimes prompt_times(kvick::Transformer& model) {
  std::vector<double> first, second, small;
  for (unsigned round = 0; round < 3; ++round) {
    Core core(model, engine_options(1, 2 * kChunk + 1, kChunk));
    core.submit(request_of(model, 2 * kChunk, 1, round));
    first.push_back(step_ms(core));
    second.push_back(step_ms(core));
    core.submit(request_of(model, kShortPrompt, 1, 100 + round));
    small.push_back(step_ms(core));
  }
  return {kvick::quantile(first, 0.5), kvick::quantile(second, 0.5), kvick::quantile(small, 0.5)};
}

MachineCost measure_machine(kvick::Transformer& model, const Options& options) {
  constexpr int kShallow = 16, kDeep = 1024;
  const PromptTimes prompts = prompt_times(model);
  const double alone = decode_ms(model, 1, kShallow);
  const MachineCost::PerPosition per_position = {
      .prompt =
          std::max(0.0, (prompts.second_chunk_ms - prompts.first_chunk_ms) / (kChunk * kChunk)),
      .decode = std::max(0.0, (decode_ms(model, 1, kDeep) - alone) / (kDeep - kShallow))};
  std::vector<MachineCost::Point> points = {{1, alone}};
  const int last = std::min(options.batch, kShortPrompt / 2);
  for (int rows = 2; rows < last; rows *= 2) {
    points.push_back({double(rows), decode_ms(model, rows, kShallow)});
  }
  if (last > 1) points.push_back({double(last), decode_ms(model, last, kShallow)});
  // What attention takes within the measured steps is counted apart.
  for (MachineCost::Point& point : points) {
    point.ms -= point.num_rows * per_position.decode * (kShallow + kMiddleStep);
  }
  const auto add_prompt = [&](int tokens, double ms) {
    points.push_back({double(tokens), ms - per_position.prompt * tokens * (tokens + 1) / 2});
  };
  add_prompt(kShortPrompt, prompts.short_ms);
  add_prompt(kChunk, prompts.first_chunk_ms);
  std::printf("steps:");
  for (const MachineCost::Point& point : points) {
    std::printf(" %.0f rows %.1f ms,", point.num_rows, point.ms);
  }
  std::printf(" per position %.2g ms in prompts, %.2g ms in decoding\n", per_position.prompt,
              per_position.decode);
  return MachineCost(std::move(points), per_position);
}

// ---- Requests, run for real

struct RunResult {
  double seconds = 0;
  double tokens_per_s = 0;                          // generated
  std::vector<std::vector<kvick::TokenId>> tokens;  // of each request
  std::vector<double> itl_ms;                       // of all requests
  double mixed_share = 0;  // of the steps that decode, with tokens of prompts
};

/// Runs the requests as they arrive, by the clock.
RunResult run_requests(kvick::Transformer& model, std::span<const SimulatedRequest> requests,
                       const kvick::EngineOptions& options) {
  Core core(model, options);
  RunResult result;
  std::vector<kvick::GenerationHandle> handles;
  bool has_decodes = false, has_prompts = false;
  std::size_t num_decode_steps = 0, num_mixed_steps = 0;
  const double start = now();
  for (bool is_busy = false; is_busy || handles.size() < requests.size();) {
    while (handles.size() < requests.size() &&
           1000 * (now() - start) >= requests[handles.size()].arrival_ms) {
      const SimulatedRequest& next = requests[handles.size()];
      auto request = request_of(model, next.num_prompt_tokens, next.num_output_tokens,
                                unsigned(handles.size()));
      request.on_token = [&](const kvick::Token& token) {
        (token.index > 0 ? has_decodes : has_prompts) = true;
      };
      handles.push_back(core.submit(std::move(request)));
    }
    has_decodes = has_prompts = false;
    is_busy = core.step();
    if (has_decodes) {
      // A chunk that does not end its prompt gives no token.
      const kvick::EngineMetrics metrics = core.metrics();
      ++num_decode_steps;
      if (has_prompts || metrics.num_step_tokens > metrics.batch_size) ++num_mixed_steps;
    }
    if (!is_busy) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  result.seconds = now() - start;
  double num_tokens = 0;
  for (const kvick::GenerationHandle& handle : handles) {
    const kvick::Generation generation = handle.result();
    num_tokens += double(generation.tokens.size());
    const auto& itl = generation.metrics.itl_ms;
    result.itl_ms.insert(result.itl_ms.end(), itl.begin(), itl.end());
    result.tokens.push_back(generation.tokens);
  }
  result.tokens_per_s = num_tokens / result.seconds;
  result.mixed_share = double(num_mixed_steps) / double(std::max(std::size_t(1), num_decode_steps));
  return result;
}

// ---- Static and continuous batching

/// The group as a static batch runs it: every prompt and every output as long as the longest.
std::vector<SimulatedRequest> padded(std::span<const SimulatedRequest> group) {
  SimulatedRequest longest;
  for (const SimulatedRequest& request : group) {
    longest.num_prompt_tokens = std::max(longest.num_prompt_tokens, request.num_prompt_tokens);
    longest.num_output_tokens = std::max(longest.num_output_tokens, request.num_output_tokens);
  }
  return std::vector<SimulatedRequest>(group.size(), longest);
}

void measure_static(kvick::Transformer& model, const Options& options, const MachineCost& machine) {
  const auto requests =
      support::make_requests({.num_requests = options.num_requests,
                              .prompts = {16, 64},
                              .outputs = {options.shortest, options.longest, !options.is_uniform}});
  const auto engine = engine_options(options.batch, 64 + options.longest);
  const RunResult continuous = run_requests(model, requests, engine);
  double seconds = 0;
  for (std::size_t first = 0; first < requests.size(); first += std::size_t(options.batch)) {
    const std::size_t size = std::min(std::size_t(options.batch), requests.size() - first);
    seconds +=
        run_requests(model, padded(std::span(requests).subspan(first, size)), engine).seconds;
  }
  const SimulationResult simulated = support::simulate(requests, engine.scheduler, machine);
  const SimulationResult simulated_static =
      support::simulate_static(requests, options.batch, machine);
  const double gain = seconds / continuous.seconds;
  const double simulated_gain = simulated_static.duration_ms / simulated.duration_ms;
  std::printf(
      "%d requests of %d to %d new tokens, %s, batch %d: continuous %.1f tokens/s, static %.1f "
      "tokens/s, %.2f times\n"
      "  simulated: %.1f and %.1f tokens/s, %.2f times (%+.1f %%)\n",
      options.num_requests, options.shortest, options.longest,
      options.is_uniform ? "uniform" : "log-uniform", options.batch, continuous.tokens_per_s,
      continuous.tokens_per_s / gain, gain, simulated.tokens_per_s(),
      simulated_static.tokens_per_s(), simulated_gain, 100 * (simulated_gain / gain - 1));
  std::fflush(stdout);
}

// ---- Long prompts among chats

void measure_chunks(kvick::Transformer& model, const Options& options, const MachineCost& machine) {
  using support::kLongPrompt;
  constexpr int kMaxSeqLen = kLongPrompt + 16;
  const double prompt_ms = 2 * machine.rows(kChunk) + machine.attention(0, kLongPrompt);
  // Prompts alone take nine tenths of the time, so that some wait together.
  const double prompts_per_s = 0.9 * 1000 / prompt_ms;
  const int num_chats = std::max(1, options.num_prompts / 4);
  const auto requests = support::make_requests(
      support::ChatsAndLongPrompts{.num_chats = num_chats,
                                   .chats_per_s = prompts_per_s * num_chats / options.num_prompts,
                                   .num_prompts = options.num_prompts,
                                   .prompts_per_s = prompts_per_s});
  std::printf("%d prompts of %d tokens, one every %.2f s, which takes %.2f s, and %d chats\n",
              options.num_prompts, kLongPrompt, 1 / prompts_per_s, prompt_ms / 1000, num_chats);
  double num_tokens = 0;  // of prompts too
  for (const auto& request : requests) {
    num_tokens += request.num_prompt_tokens + request.num_output_tokens;
  }
  std::vector<std::vector<kvick::TokenId>> want;
  const auto measure = [&](const char* label, int step_tokens, double max_step_ms) {
    kvick::EngineOptions engine = engine_options(options.batch, kMaxSeqLen, step_tokens);
    engine.scheduler.max_step_ms = max_step_ms;
    engine.cache.reuses_prefixes = false;
    const RunResult real = run_requests(model, requests, engine);
    if (want.empty()) want = real.tokens;
    require_equal(real.tokens, want, "chunks");
    const SimulationResult simulated = support::simulate(requests, engine.scheduler, machine);
    std::printf(
        "%-20s ITL p50 %4.0f ms, p99 %5.0f ms; %4.1f %% of decode steps meet a prompt; %.0f "
        "tokens/s with prompts\n"
        "  simulated:         ITL p50 %4.0f ms, p99 %5.0f ms; %4.1f %%; %.0f tokens/s\n",
        label, kvick::quantile(real.itl_ms, 0.5), kvick::quantile(real.itl_ms, 0.99),
        100 * real.mixed_share, num_tokens / real.seconds, simulated.itl_ms.percentile(0.5),
        simulated.itl_ms.percentile(0.99),
        100 * double(simulated.num_mixed_decode_steps) / double(simulated.num_decode_steps),
        1000 * num_tokens / simulated.duration_ms);
    std::fflush(stdout);
  };
  measure("whole prompts", options.batch * kMaxSeqLen, 0);
  measure("chunks of 512 tokens", kChunk, 0);
  measure("a time budget", kChunk, options.step_ms);
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Measures what batching gains.", "kvick-serving-speed");
  app.add_option("model", options.model, "GGUF file")->required();
  app.add_option("--part", options.part)
      ->check(CLI::IsMember({"batch", "static", "chunks", "all"}))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "sequences at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--requests", options.num_requests)
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--shortest", options.shortest, "new tokens")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--longest", options.longest, "new tokens")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_flag("--uniform", options.is_uniform, "lengths are uniform, not log-uniform");
  app.add_option("--prompts", options.num_prompts, "that arrive")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "default: what the process may use");
  app.add_option("--step-ms", options.step_ms, "time budget of a step")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  kvick::detail::require(options.shortest <= options.longest, kvick::ErrorCode::kArgument,
                         "kvick-serving-speed", "--shortest must be at most --longest ",
                         options.longest, ", got ", options.shortest);
  kvick::Transformer model(options.model, {.threads = options.threads});
  const bool is_all = options.part == "all";
  if (is_all || options.part == "batch") measure_batch(model, options);
  if (options.part == "batch") return 0;
  const MachineCost machine = measure_machine(model, options);
  if (is_all || options.part == "static") measure_static(model, options, machine);
  if (is_all || options.part == "chunks") measure_chunks(model, options, machine);
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
