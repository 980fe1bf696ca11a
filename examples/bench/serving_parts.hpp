// SPDX-License-Identifier: MIT
// kvick-bench scheduler: ways of batching the same requests. kvick-bench serve: latencies at rates
// of arrival.
#pragma once

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/session.hpp"
#include "support/system.hpp"

namespace programs::bench {

struct WorkloadPartOptions {
  int num_requests = 24;
  int batch_size = 8;
  int budget = 256;  // tokens of a step with chunks
  int prompt_low = 16, prompt_high = 192;
  double output_median = 24;
  double output_sigma = 0.8;
  int output_high = 96;
  int num_prefixes = 0, prefix_tokens = 0;
  double burstiness = 1;
  int concurrency = 0;        // closed loop; 0: open
  std::string events;         // file; may be empty
  std::string trace;          // file; may be empty
  std::vector<double> rates;  // requests per second; empty: shares of the capacity
  double ttft_limit_ms = 1000, tpot_limit_ms = 100;

  int max_seq_len() const { return prefix_tokens + prompt_high + output_high; }
};

namespace detail {

inline kvick::WorkloadOptions workload_options(Session& session,
                                               const WorkloadPartOptions& options) {
  const int vocab_size = session.model().vocab_size();
  kvick::WorkloadOptions workload{
      .num_requests = options.num_requests,
      .prompt_tokens = kvick::uniform_length(options.prompt_low, options.prompt_high),
      .output_tokens = kvick::log_normal_length(options.output_median, options.output_sigma, 1,
                                                options.output_high),
      .burstiness = options.burstiness,
      .max_concurrency = options.concurrency,
      .num_prefixes = options.num_prefixes,
      .prefix_tokens = options.prefix_tokens,
      .seed = session.options().seed,
      .vocab_size = vocab_size,
      .min_token = std::min(3, vocab_size - 1)};
  if (!options.trace.empty()) workload.trace = kvick::parse_trace(read_file(options.trace));
  return workload;
}

/// Hands everything on, and writes a line per token when it comes out: for whoever wants to watch.
template <class Target>
class WatchedTarget {
 public:
  WatchedTarget(Target& target, std::FILE* events) : target_(target), events_(events) {}

  void submit(std::size_t id, const kvick::WorkloadRequest& request) {
    target_.submit(id, request);
  }
  bool has_work() const { return target_.has_work(); }
  std::span<const kvick::StepOutput> step() {
    const auto outputs = target_.step();
    for (const kvick::StepOutput& output : outputs) {
      for (const kvick::TokenId token : output.tokens) {
        std::fprintf(events_, "%zu %d\n", output.request, token);
      }
    }
    std::fflush(events_);
    return outputs;
  }

 private:
  Target& target_;
  std::FILE* events_;
};

/// Tokens per second as one sees who watches: those after the first ones, until the last.
inline double watched_throughput(const std::vector<kvick::RequestTimeline>& timelines) {
  double first = std::numeric_limits<double>::infinity(), last = 0;
  for (const kvick::RequestTimeline& timeline : timelines) {
    if (timeline.outputs.empty()) continue;
    first = std::min(first, timeline.outputs.front().seconds);
    last = std::max(last, timeline.outputs.back().seconds);
  }
  int count = 0;
  for (const kvick::RequestTimeline& timeline : timelines) {
    for (const kvick::TimedOutput& output : timeline.outputs) {
      if (output.seconds > first) count += output.num_tokens;
    }
  }
  return count / (last - first);
}

struct Batching {
  std::string name;
  bool is_static;
  int max_num_batched_tokens;
};

/// What a run of the engine gave, and what the engine counted meanwhile.
struct BatchingRun {
  kvick::RunResult result;
  kvick::EngineMetrics engine;
};

template <class Target>
kvick::RunResult run_target(Target& target, const WorkloadPartOptions& options,
                            const kvick::Workload& workload, const std::string& label) {
  ProgressBar progress(label);
  const auto update = [&](std::size_t done, std::size_t total) { progress.update(done, total); };
  if (options.events.empty()) {
    return kvick::run_workload(target, workload, kvick::SteadyClock(), update);
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> events(
      std::fopen(options.events.c_str(), "w"), &std::fclose);
  if (!events) throw BadInput("cannot write --events file " + options.events);
  WatchedTarget watched(target, events.get());
  return kvick::run_workload(watched, workload, kvick::SteadyClock(), update);
}

inline BatchingRun run_batching(Session& session, const WorkloadPartOptions& options,
                                const Batching& batching, const kvick::Workload& workload,
                                const std::string& label) {
  int longest = options.max_seq_len();
  for (const kvick::WorkloadRequest& request : workload.requests) {
    longest =
        std::max(longest, static_cast<int>(request.prompt.size()) + request.num_output_tokens);
  }
  kvick::EngineCore engine(
      session.model(), {.scheduler = {.max_batch_size = options.batch_size,
                                      .max_seq_len = longest,
                                      .max_num_batched_tokens = batching.max_num_batched_tokens},
                        .cache = {.element_type = session.options().run.cache_type()}});
  kvick::EngineTarget target(engine);
  kvick::RunResult result;
  if (batching.is_static) {
    kvick::StaticBatches batches(target, options.batch_size);
    result = run_target(batches, options, workload, label);
  } else {
    result = run_target(target, options, workload, label);
  }
  return {std::move(result), engine.metrics()};
}

/// The first requests again, alone and on portable kernels.
inline std::string check_requests(Session& session, const kvick::Workload& workload,
                                  const std::vector<std::vector<kvick::TokenId>>& outputs) {
  const auto budget = static_cast<std::size_t>(session.check_tokens());
  if (budget == 0) return "";
  const kvick::ElementType cache_type = session.options().run.cache_type();
  const std::size_t alone = kvick::check_outputs(
      session.model(), workload, outputs, {.cache_type = cache_type, .max_tokens = 40 * budget});
  std::string check = kvick::detail::concat("alone (", alone, " tokens)");
  if (!session.is_synthetic() || budget > 1000) {
    const std::size_t portable = kvick::check_outputs(
        session.plain(), workload, outputs, {.cache_type = cache_type, .max_tokens = budget});
    check += kvick::detail::concat(", portable (", portable, " tokens)");
  }
  return check;
}

/// One row per metric.
inline void add_latencies(const std::string& name, const kvick::ServingMetrics& m,
                          kvick::TextRows& rows) {
  const auto ms = [](const std::optional<double>& seconds) {
    return seconds ? kvick::short_number(1e3 * *seconds) : std::string("-");
  };
  for (const auto& [metric, s] : {std::pair("TTFT", &m.time_to_first_token),
                                  {"TPOT", &m.time_per_output_token},
                                  {"ITL", &m.inter_token_latency},
                                  {"E2EL", &m.end_to_end_latency}}) {
    rows.push_back({rows.size() % 4 == 1 ? name : "", metric, ms(s->mean),
                    ms(s->standard_deviation), ms(s->median), ms(s->p90), ms(s->p95), ms(s->p99),
                    std::to_string(s->count)});
  }
}

inline kvick::ReportTable latency_table(std::string first) {
  return {"Latencies, ms",
          {{std::move(first), "latency", "mean", "std", "median", "p90", "p95", "p99", "samples"}}};
}

}  // namespace detail

inline ReportSection scheduler_part(Session& session, const WorkloadPartOptions& options) {
  kvick::WorkloadOptions wanted = detail::workload_options(session, options);
  wanted.request_rate = std::numeric_limits<double>::infinity();  // all at once
  wanted.max_concurrency = 0;
  for (kvick::TraceEntry& entry : wanted.trace) entry.arrival_seconds = 0;
  const kvick::Workload workload = kvick::make_workload(wanted);
  constexpr int kWholePrompts = 1 << 20;
  const detail::Batching ways[] = {{"static batches", true, kWholePrompts},
                                   {"continuous", false, kWholePrompts},
                                   {"continuous, chunked", false, options.budget}};
  ReportSection section{"scheduler", "Batching"};
  kvick::ReportTable table = detail::latency_table("batching");
  kvick::ReportTable steps{
      "Steps", {{"batching", "steps", "requests per step", "tokens per step", "ms per step"}}};
  std::vector<std::vector<kvick::TokenId>> outputs;
  for (const detail::Batching& way : ways) {
    section.measurements.push_back({.name = way.name, .unit = "tokens/s"});
  }
  // In turns, so that slow phases of the machine meet all alike; slow models fewer times.
  constexpr double kEnoughSeconds = 20;
  const Stopwatch time;
  for (int repetition = 0; repetition < std::min(5, session.options().num_rounds); ++repetition) {
    if (repetition > 0 && time.seconds() > kEnoughSeconds) break;
    for (std::size_t i = 0; i < std::size(ways); ++i) {
      const detail::Batching& way = ways[i];
      Measurement& m = section.measurements[i];
      const auto [result, engine] = detail::run_batching(session, options, way, workload, way.name);
      const auto metrics = kvick::serving_metrics(result.timelines, result.duration_seconds);
      m.samples.push_back(metrics.output_throughput.value());
      m.digest = kvick::digest_of(result.outputs);
      if (outputs.empty()) outputs = result.outputs;
      require_equal(m.digest, kvick::digest_of(outputs), way.name);
      if (repetition > 0) continue;
      detail::add_latencies(way.name, metrics, table.rows);
      steps.rows.push_back({way.name, std::to_string(engine.num_steps),
                            with_decimals(engine.batch_sizes.mean(), 1),
                            with_decimals(engine.step_tokens.mean(), 1),
                            kvick::short_number(1e3 * engine.step_seconds.mean())});
      section.distributions.push_back(
          {"ITL, " + way.name, "ms", milliseconds(metrics.itl_samples)});
    }
  }
  section.headline = section.measurements.size() - 1;
  const std::string check = detail::check_requests(session, workload, outputs);
  for (Measurement& m : section.measurements) m.check = check;
  section.tables = {std::move(steps), std::move(table)};
  section.note = kvick::detail::concat(
      workload.requests.size(), " requests at once, ", options.batch_size, " slots; prompts of ",
      options.prompt_low, " to ", options.prompt_high, " tokens, log-normal outputs around ",
      options.output_median, ". Static batches wait for their longest request; chunks of ",
      options.budget, " tokens per step bound the time between tokens. The outputs are equal.");
  return section;
}

inline ReportSection serve_part(Session& session, const WorkloadPartOptions& options) {
  const kvick::WorkloadOptions base = detail::workload_options(session, options);
  const detail::Batching way{"continuous, chunked", false, options.budget};
  ReportSection section{"serve", "Serving"};
  std::vector<double> rates = options.rates;
  const bool is_fixed = !options.trace.empty() || options.concurrency > 0;
  if (is_fixed) rates = {0};
  double capacity = 0;
  if (rates.empty()) {  // what can be done when all requests wait
    const kvick::Workload workload = kvick::make_workload(base);
    const auto result = detail::run_batching(session, options, way, workload, "capacity").result;
    capacity = static_cast<double>(workload.requests.size()) / result.duration_seconds;
    for (const double share : {0.5, 0.8, 1.1}) rates.push_back(share * capacity);
  }
  const kvick::LatencyLimits limits{.time_to_first_token = 1e-3 * options.ttft_limit_ms,
                                    .time_per_output_token = 1e-3 * options.tpot_limit_ms};
  kvick::ReportTable table = detail::latency_table("requests/s");
  kvick::ReportTable load{"Load",
                          {{"requests/s", "completed", "failed", "seconds", "requests/s done",
                            "goodput", "output tokens/s", "total tokens/s", "peak tokens/s",
                            "peak concurrency", "prefix hits, %", "preemptions"}}};
  kvick::Curve median{"TTFT, median", {}}, tail{"TTFT, p90", {}}, between{"ITL, median", {}};
  std::string digest, check;
  for (const double rate : rates) {
    kvick::WorkloadOptions wanted = base;
    if (rate > 0) wanted.request_rate = rate;
    const kvick::Workload workload = kvick::make_workload(wanted);
    const std::string name =
        is_fixed ? (options.trace.empty() ? "closed loop" : "trace") : kvick::short_number(rate);
    const auto [result, engine] =
        detail::run_batching(session, options, way, workload, "serve " + name);
    const auto m = kvick::serving_metrics(result.timelines, result.duration_seconds, limits);
    // Arrivals differ between rates, the requests do not.
    const std::string outputs = kvick::digest_of(result.outputs);
    if (digest.empty()) digest = outputs;
    require_equal(outputs, digest, "the output at " + name + " requests/s");
    Measurement throughput{.name = is_fixed ? name : "at " + name + " requests/s",
                           .unit = "tokens/s",
                           .samples = {m.output_throughput.value()},
                           .digest = outputs};
    if (check.empty()) check = detail::check_requests(session, workload, result.outputs);
    throughput.check = check;
    section.measurements.push_back(std::move(throughput));
    if (!options.events.empty()) {
      section.measurements.push_back({.name = "between the first and the last token",
                                      .unit = "tokens/s",
                                      .samples = {detail::watched_throughput(result.timelines)}});
    }
    detail::add_latencies(name, m, table.rows);
    const auto number = [](const std::optional<double>& value) {
      return value ? kvick::short_number(*value) : std::string("-");
    };
    load.rows.push_back(
        {name, std::to_string(m.num_completed), std::to_string(m.num_failed),
         with_decimals(m.duration_seconds, 2), number(m.request_throughput),
         number(m.request_goodput), number(m.output_throughput), number(m.total_token_throughput),
         number(m.peak_output_throughput), std::to_string(m.peak_concurrency),
         with_decimals(100 * engine.prefix_hit_rate(), 1), std::to_string(engine.num_preemptions)});
    const double x = m.output_throughput.value();
    median.points.push_back({x, 1e3 * m.time_to_first_token.median.value_or(0)});
    if (m.time_to_first_token.p90) tail.points.push_back({x, 1e3 * *m.time_to_first_token.p90});
    if (m.inter_token_latency.median) {
      between.points.push_back({x, 1e3 * *m.inter_token_latency.median});
    }
    if (&rate == &rates.back() || is_fixed) {
      section.distributions = {{"TTFT at " + name, "ms", milliseconds(m.ttft_samples)},
                               {"ITL at " + name, "ms", milliseconds(m.itl_samples)},
                               {"E2EL at " + name, "ms", milliseconds(m.e2el_samples)}};
    }
  }
  if (rates.size() > 1) {
    section.curves = {
        {"Throughput against time to first token", "output tokens/s", "ms", {median, tail}},
        {"Throughput against inter-token latency", "output tokens/s", "ms", {between}}};
  }
  section.headline = section.measurements.size() - 1;
  section.tables = {std::move(load), std::move(table)};
  const std::string arrivals = !options.trace.empty()    ? "those of a trace"
                               : options.concurrency > 0 ? "a closed loop"
                               : options.burstiness == 1 ? "Poisson arrivals"
                                                         : "gamma arrivals";
  section.note = kvick::detail::concat(
      kvick::make_workload(base).requests.size(), " requests, ", arrivals, ", ", options.batch_size,
      " slots, chunks of ", options.budget, " tokens",
      capacity > 0 ? "; the capacity is " + kvick::short_number(capacity) + " requests/s" : "",
      ". Goodput counts requests with TTFT below ", options.ttft_limit_ms, " ms and TPOT below ",
      options.tpot_limit_ms, " ms.");
  return section;
}

}  // namespace programs::bench
