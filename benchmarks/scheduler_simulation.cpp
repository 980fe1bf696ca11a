// SPDX-License-Identifier: MIT
// What batching and scheduling are worth, by simulation: the scheduler at work on 100,000 requests,
// with a machine's measured times in place of a model.
//
//   kvick-scheduler-simulation [--requests 100000] [--batch 16]
//
// Prints Markdown tables: throughput with all requests at hand, latencies under load with
// Poisson and with bursty arrivals, and long prompts among requests that decode; then what the
// scheduler itself takes per step, in real time.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/cache/block_manager.hpp"
#include "tests/support/scheduler_simulation.hpp"

namespace {

using kvick::SchedulerOptions;
using support::Lengths;
using support::MachineCost;
using support::SimulatedRequest;
using support::SimulationResult;

/// TinyLlama 1.1B in Q8_0 on two quiet cores with AVX-512 VNNI: 38 tokens/s of one sequence, 1.3
/// times as long for 8 rows and twice for 16, and 531 tokens/s of prompts.
const MachineCost kMachine({{1, 26}, {8, 34}, {16, 52}, {64, 145}, {512, 960}}, {5e-4, 5e-4});

constexpr int kMaxSeqLen = 2048;

struct Arguments {
  int num_requests = 100'000;
  int batch_size = 16;
};

SchedulerOptions with_budget(const Arguments& arguments, int num_tokens, double step_ms = 0) {
  return {.max_batch_size = arguments.batch_size,
          .max_seq_len = kMaxSeqLen,
          .max_num_batched_tokens = num_tokens,
          .max_step_ms = step_ms};
}

/// Prompts are computed whole.
int whole_prompts(const Arguments& arguments) { return arguments.batch_size * kMaxSeqLen; }

void compare_throughput(const Arguments& arguments) {
  std::printf("| output lengths | static batches, tokens/s | continuous, tokens/s | gain |\n");
  std::printf("| --- | ---: | ---: | ---: |\n");
  const auto row = [&](const char* name, const Lengths& outputs) {
    const auto requests = support::make_requests(
        {.num_requests = arguments.num_requests, .prompts = {16, 64}, .outputs = outputs});
    const double before =
        support::simulate_static(requests, arguments.batch_size, kMachine).tokens_per_s();
    const double after =
        support::simulate(requests, with_budget(arguments, 512), kMachine).tokens_per_s();
    std::printf("| %s | %.0f | %.0f | %.2f |\n", name, before, after, after / before);
  };
  row("16 to 512, log-uniform", {16, 512, true});
  row("16 to 512, uniform", {16, 512});
  row("all 128", {128, 128});
  std::printf("\n");
}

void print_latencies(const char* name, const SimulationResult& result) {
  const double mixed_share =
      static_cast<double>(result.num_mixed_decode_steps) /
      static_cast<double>(std::max<std::int64_t>(1, result.num_decode_steps));
  std::printf("| %s | %.0f | %.0f %% | %.1f | %.1f | %.0f | %.0f |\n", name, result.tokens_per_s(),
              100 * mixed_share, result.ttft_ms.percentile(0.5) / 1000,
              result.ttft_ms.percentile(0.99) / 1000, result.itl_ms.percentile(0.5),
              result.itl_ms.percentile(0.99));
}

void print_latency_header(const char* title) {
  std::printf(
      "| %s | tokens/s | steps with a prompt | TTFT p50, s | TTFT p99, s | ITL p50, ms | ITL p99, "
      "ms |\n",
      title);
  std::printf("| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
}

void compare_policies(const Arguments& arguments, const std::vector<SimulatedRequest>& requests) {
  print_latencies("static batches",
                  support::simulate_static(requests, arguments.batch_size, kMachine));
  const auto run = [&](const char* name, const SchedulerOptions& options) {
    print_latencies(name, support::simulate(requests, options, kMachine));
  };
  run("continuous, whole prompts", with_budget(arguments, whole_prompts(arguments)));
  run("chunks, 512 tokens per step", with_budget(arguments, 512));
  run("chunks, 128 tokens per step", with_budget(arguments, 128));
  run("chunks, 150 ms per step", with_budget(arguments, 512, 150));
  std::printf("\n");
}

/// A load that static batches cannot carry and continuous ones can.
void compare_arrivals(const Arguments& arguments) {
  for (const double burstiness : {1.0, 0.25}) {
    print_latency_header(burstiness == 1.0 ? "Poisson arrivals" : "bursty arrivals (0.25)");
    compare_policies(arguments, support::make_requests({.num_requests = arguments.num_requests,
                                                        .requests_per_s = 1.05,
                                                        .burstiness = burstiness,
                                                        .prompts = {16, 256, true},
                                                        .outputs = {16, 512, true}}));
  }
}

/// So many long prompts that more than one step of 20 meets one, of those steps that decode.
void compare_long_prompts(const Arguments& arguments) {
  constexpr double kChatsPerSecond = 0.1, kPromptsPerSecond = 0.38;
  const auto share = [&](double rate) {
    return static_cast<int>(arguments.num_requests * rate / (kChatsPerSecond + kPromptsPerSecond));
  };
  const auto requests =
      support::make_requests(support::ChatsAndLongPrompts{.num_chats = share(kChatsPerSecond),
                                                          .chats_per_s = kChatsPerSecond,
                                                          .num_prompts = share(kPromptsPerSecond),
                                                          .prompts_per_s = kPromptsPerSecond});
  print_latency_header("prompts of 1,024 tokens among chats");
  compare_policies(arguments, requests);
}

/// Blocks, prefixes and a queue included; the room is a BlockManager.
void measure_scheduler() {
  std::printf("| requests waiting | batch | scheduler per step, us |\n");
  std::printf("| ---: | ---: | ---: |\n");
  for (const int batch_size : {16, 32}) {
    for (const int num_waiting : {100, 1000, 10'000}) {
      kvick::BlockManager blocks(
          {.num_blocks = 32 * batch_size, .num_sequences = batch_size, .max_seq_len = kMaxSeqLen});
      const auto make = [&](const SchedulerOptions& options) {
        return std::make_unique<kvick::Scheduler<kvick::BlockManager>>(options, blocks);
      };
      // All at once: those that do not run wait.
      const auto requests = support::make_requests(
          {.num_requests = batch_size + num_waiting, .prompts = {64, 64}, .outputs = {200, 200}});
      const SimulationResult result = support::simulate_scheduler(
          requests,
          {.max_batch_size = batch_size, .max_num_batched_tokens = 512, .max_step_ms = 200},
          kMachine, make);
      std::printf("| %d | %d | %.1f |\n", num_waiting, batch_size, result.scheduling_us_per_step);
    }
  }
}

int to_int(std::string_view option, const char* text) {
  const int value = std::atoi(text);
  if (value < 1) {
    throw kvick::Error(kvick::ErrorCode::kArgument, option, "must be a number from 1 on");
  }
  return value;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    int* const value = option == "--requests" ? &arguments.num_requests
                       : option == "--batch"  ? &arguments.batch_size
                                              : nullptr;
    if (value == nullptr || i + 1 == argc) {
      throw kvick::Error(kvick::ErrorCode::kArgument, "kvick-scheduler-simulation",
                         "options are --requests N and --batch N");
    }
    *value = to_int(option, argv[i + 1]);
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    compare_throughput(arguments);
    compare_arrivals(arguments);
    compare_long_prompts(arguments);
    measure_scheduler();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
