// SPDX-License-Identifier: MIT
// Measures a model on prompts, in one call.
//
//   auto report = kvick::benchmark(model, tokenizer, prompts, {.max_tokens = 100});
//   std::cout << report;               // tokens/s, latencies, a digest of what was generated
//   report.write_html("report.html");
//
// Every repetition runs all prompts on an EngineCore, batch_size of them at a time, and each
// generates max_tokens tokens, whatever the model says about the end. Before the first of them a
// warm-up does the same with few tokens. Afterwards the outputs are checked: token by token, each
// must be what the same model (or a reference that is given: another instruction set, another
// engine) chooses after the same tokens when the request is alone and all of it is computed in one
// pass. Repetitions must agree as well. A difference throws: there is no speed of a wrong result.
//
// Units     tokens/s of output, over the wall time of a repetition; latencies per request.
// Errors    Error(kArgument) for options out of range or no prompts; Error(kUnsupported) with
//           request and token if outputs differ; those of EngineCore.
// Layer     bench: may include core, text, model, sampling, serving.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/bench/digest.hpp"
#include "kvick/bench/engine_target.hpp"
#include "kvick/bench/html_report.hpp"
#include "kvick/bench/machine.hpp"
#include "kvick/bench/metrics.hpp"
#include "kvick/bench/report.hpp"
#include "kvick/bench/runner.hpp"
#include "kvick/bench/workload.hpp"
#include "kvick/core/cpu.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/thread_count.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/serving/engine_core.hpp"
#include "kvick/serving/sequence_room.hpp"
#include "kvick/text/tokenizer.hpp"

namespace kvick::inline v0_1 {

struct BenchmarkOptions {
  int max_tokens = 100;
  int batch_size = 1;  ///< prompts that run together
  int num_repetitions = 3;
  bool has_warm_up = true;
  bool checks_outputs = true;
  ElementType cache_type = ElementType::kF16;
  SamplingOptions sampling = {};  ///< greedy by default
};

struct BenchmarkReport {
  std::size_t num_requests = 0;
  std::size_t num_prompt_tokens = 0;  ///< of all requests, once
  std::size_t num_output_tokens = 0;
  std::vector<ServingMetrics> repetitions = {};
  std::vector<std::vector<TokenId>> outputs = {};       ///< [requests]
  std::string digest = {};                              ///< of the outputs
  std::size_t num_checked_tokens = 0;                   ///< found equal to the plain path's
  std::optional<std::uint64_t> peak_memory_bytes = {};  ///< of the process, before the check
  Isa isa = default_isa();                              ///< the model's, where it tells
  int num_threads = default_num_threads();              ///< likewise
  BenchmarkOptions options = {};

  // Medians over the repetitions.
  double throughput() const;         ///< output tokens/s
  double mean_latency() const;       ///< seconds per request
  double latency_per_token() const;  ///< seconds per output token of a request, prompt included

  Report to_report() const;
  std::string to_json() const { return to_report().to_json(); }
  void write_html(const std::filesystem::path& path) const {
    write_text_file(path, html_report(to_report()));
  }
};

inline std::ostream& operator<<(std::ostream& out, const BenchmarkReport& report);

template <LanguageModel Model>
BenchmarkReport benchmark(Model& model, const Tokenizer& tokenizer,
                          std::span<const std::string> prompts,
                          const BenchmarkOptions& options = {});

/// The same on tokens, with any clock that has now() and wait(seconds).
template <LanguageModel Model, class Clock = SteadyClock>
BenchmarkReport benchmark(Model& model, std::span<const std::vector<TokenId>> prompts,
                          const BenchmarkOptions& options = {}, Clock&& clock = {});

struct CheckOptions {
  ElementType cache_type = ElementType::kF16;
  SamplingOptions sampling = {};
  /// Stops after the request that takes the tokens computed to this many; 0: checks all.
  std::size_t max_tokens = 0;
};

/// Throws Error(kUnsupported) unless `outputs` are what `model` chooses. Returns how many output
/// tokens were compared.
template <LanguageModel Model>
std::size_t check_outputs(Model& model, const Workload& workload,
                          std::span<const std::vector<TokenId>> outputs,
                          const CheckOptions& options = {});

// ---- Implementation: nothing below is API ----

namespace detail {

/// The output tokens of one request, each chosen from logits of a pass over all that is known.
template <LanguageModel Model>
void check_output(Model& model, typename Model::Cache& cache, Sampler& sampler, std::size_t request,
                  std::span<const TokenId> prompt, std::span<const TokenId> output) {
  std::vector<TokenId> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), output.begin(), output.end());
  cache.release(0);
  constexpr std::size_t kChunkTokens = 128;  // bounds the logits of large vocabularies
  Matrix logits(static_cast<Index>(std::min(kChunkTokens, output.size())), model.vocab_size());
  for (std::size_t at = 0; at + 1 < tokens.size();) {
    const std::size_t end = at + 1 < prompt.size() ? std::min(prompt.size(), at + kChunkTokens)
                                                   : std::min(tokens.size() - 1, at + kChunkTokens);
    // The first pass that ends the prompt wants the logits of its last token, later ones all.
    const std::size_t num_logits = end < prompt.size() ? 0 : end == prompt.size() ? 1 : end - at;
    const auto chunk = std::span<const TokenId>(tokens).subspan(at, end - at);
    require(cache.reserve(0, static_cast<int>(chunk.size())), ErrorCode::kCapacity, "benchmark",
            "the cache must have room for the length it was made for");
    const Batch batch({.sequence = 0,
                       .first_position = static_cast<int>(at),
                       .tokens = chunk,
                       .num_logits = static_cast<int>(num_logits)});
    model.forward(batch, cache, logits.topRows(static_cast<Index>(num_logits)));
    cache.commit(0, chunk);
    for (std::size_t i = 0; i < num_logits; ++i) {
      const std::size_t position = end - num_logits + i;  // of the token before the one checked
      const std::size_t index = position + 1 - prompt.size();
      const std::span<const float> row(logits.row(static_cast<Index>(i)).data(),
                                       static_cast<std::size_t>(logits.cols()));
      const TokenId expected =
          sampler.sample(row, index, std::span<const TokenId>(tokens).first(position + 1));
      require(expected == output[index], ErrorCode::kUnsupported, "benchmark",
              "outputs must be those of the plain path, got token ", output[index], " instead of ",
              expected, " at output ", index, " of request ", request);
    }
    at = end;
  }
}

}  // namespace detail

template <LanguageModel Model>
std::size_t check_outputs(Model& model, const Workload& workload,
                          std::span<const std::vector<TokenId>> outputs,
                          const CheckOptions& options) {
  std::size_t longest = 1;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    longest = std::max(longest, workload.requests[i].prompt.size() + outputs[i].size());
  }
  auto cache = model.make_cache(
      {.max_seq_len = static_cast<int>(longest), .element_type = options.cache_type});
  std::size_t num_checked = 0;
  std::size_t num_computed = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const WorkloadRequest& request = workload.requests[i];
    if (outputs[i].empty()) continue;
    SamplingOptions sampling = options.sampling;
    sampling.seed = request.seed;
    Sampler sampler(sampling);
    detail::check_output(model, cache, sampler, i, request.prompt, outputs[i]);
    num_checked += outputs[i].size();
    num_computed += request.prompt.size() + outputs[i].size();
    if (options.max_tokens != 0 && num_computed >= options.max_tokens) break;
  }
  return num_checked;
}

namespace detail {

/// A model as an engine wants it: its cache says how many sequences it has.
template <LanguageModel Model>
class CountedModel {
 public:
  class Cache : public Model::Cache {
   public:
    Cache(typename Model::Cache cache, int num_sequences)
        : Model::Cache(std::move(cache)), num_sequences_(num_sequences) {}
    int num_sequences() const noexcept { return num_sequences_; }

   private:
    int num_sequences_;
  };

  explicit CountedModel(Model& model) : model_(model) {}

  int vocab_size() const { return model_.vocab_size(); }
  int max_seq_len() const { return model_.max_seq_len(); }
  Cache make_cache(const CacheOptions& options) const {
    return {std::as_const(model_).make_cache(options), options.num_sequences};
  }
  void forward(const Batch& batch, Cache& cache, MatrixRef logits) {
    model_.forward(batch, cache, logits);
  }

 private:
  Model& model_;
};

template <LanguageModel Model, class Clock>
RunResult run_on_engine(Model& model, const Workload& workload, const BenchmarkOptions& options,
                        Clock& clock) {
  std::size_t longest = 0;
  for (const WorkloadRequest& request : workload.requests) {
    longest = std::max(longest,
                       request.prompt.size() + static_cast<std::size_t>(request.num_output_tokens));
  }
  EngineCore<Model> engine(
      model, {.scheduler = {.max_batch_size = options.batch_size,
                            .max_seq_len = static_cast<int>(longest),
                            .max_num_batched_tokens = std::max(512, options.batch_size)},
              .cache = {.element_type = options.cache_type}});
  EngineTarget target(engine, generate_options(options.sampling));
  return run_workload(target, workload, clock);
}

template <LanguageModel Model, class Clock>
RunResult run_batches(Model& model, const Workload& workload, const BenchmarkOptions& options,
                      Clock& clock) {
  if constexpr (!SequenceRoom<typename Model::Cache>) {
    CountedModel<Model> counted(model);
    return run_batches(counted, workload, options, clock);
  } else {
    return run_on_engine(model, workload, options, clock);
  }
}

inline void check_benchmark(std::size_t num_prompts, const BenchmarkOptions& options) {
  constexpr std::string_view kOperation = "benchmark";
  require(num_prompts > 0, ErrorCode::kArgument, kOperation, "prompts must not be empty");
  require(options.max_tokens >= 1 && options.batch_size >= 1 && options.num_repetitions >= 1,
          ErrorCode::kArgument, kOperation,
          "max_tokens, batch_size and num_repetitions must be at least 1, got ", options.max_tokens,
          ", ", options.batch_size, " and ", options.num_repetitions);
}

/// All requests at once: batch_size of them get a slot, the others follow as slots are free.
inline Workload prompt_workload(std::span<const std::vector<TokenId>> prompts,
                                const BenchmarkOptions& options) {
  Workload workload{.requests = {}, .max_concurrency = options.batch_size};
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    workload.requests.push_back({.prompt = prompts[i],
                                 .num_output_tokens = options.max_tokens,
                                 .seed = options.sampling.seed + i});
  }
  return workload;
}

/// The median over repetitions of what `value` reads from one.
template <class Value>
double median_of(const std::vector<ServingMetrics>& repetitions, Value&& value) {
  std::vector<double> values(repetitions.size());
  std::transform(repetitions.begin(), repetitions.end(), values.begin(), value);
  return quantile(values, 0.5);
}

inline double seconds_per_token(const ServingMetrics& metrics, int max_tokens) {
  return metrics.end_to_end_latency.mean.value_or(0) / max_tokens;
}

}  // namespace detail

template <LanguageModel Model, class Clock>
BenchmarkReport benchmark(Model& model, std::span<const std::vector<TokenId>> prompts,
                          const BenchmarkOptions& wanted, Clock&& clock) {
  detail::check_benchmark(prompts.size(), wanted);
  BenchmarkOptions options = wanted;
  options.sampling.min_tokens = 0;  // nothing ends before its time
  options.sampling.end_tokens.clear();
  const Workload workload = detail::prompt_workload(prompts, options);
  BenchmarkReport report{.options = options};
  if (options.has_warm_up) {
    BenchmarkOptions few = options;
    few.max_tokens = std::min(options.max_tokens, 4);
    const auto first =
        prompts.first(std::min(prompts.size(), static_cast<std::size_t>(options.batch_size)));
    detail::run_batches(model, detail::prompt_workload(first, few), few, clock);
  }
  for (int repetition = 0; repetition < options.num_repetitions; ++repetition) {
    RunResult run = detail::run_batches(model, workload, options, clock);
    report.repetitions.push_back(serving_metrics(run.timelines, run.duration_seconds));
    detail::require(repetition == 0 || run.outputs == report.outputs, ErrorCode::kUnsupported,
                    "benchmark", "repetitions must have equal outputs, got ",
                    digest_of(run.outputs), " after ", report.digest);
    report.outputs = std::move(run.outputs);
    report.digest = digest_of(report.outputs);
  }
  report.num_requests = prompts.size();
  report.num_prompt_tokens = report.repetitions.front().num_prompt_tokens;
  report.num_output_tokens = report.repetitions.front().num_output_tokens;
  report.peak_memory_bytes = kvick::peak_memory_bytes();
  if constexpr (requires { Isa(model.isa()); }) report.isa = model.isa();
  if constexpr (requires { int(model.num_threads()); }) report.num_threads = model.num_threads();
  if (options.checks_outputs) {
    report.num_checked_tokens =
        check_outputs(model, workload, report.outputs,
                      {.cache_type = options.cache_type, .sampling = options.sampling});
  }
  return report;
}

template <LanguageModel Model>
BenchmarkReport benchmark(Model& model, const Tokenizer& tokenizer,
                          std::span<const std::string> prompts, const BenchmarkOptions& options) {
  std::vector<std::vector<TokenId>> tokens;
  for (const std::string& prompt : prompts) tokens.push_back(tokenizer.encode(prompt));
  return benchmark(model, tokens, options);
}

inline double BenchmarkReport::throughput() const {
  return detail::median_of(repetitions,
                           [](const auto& metrics) { return metrics.output_throughput.value(); });
}

inline double BenchmarkReport::mean_latency() const {
  return detail::median_of(repetitions,
                           [](const auto& metrics) { return *metrics.end_to_end_latency.mean; });
}

inline double BenchmarkReport::latency_per_token() const {
  return detail::median_of(repetitions, [&](const auto& metrics) {
    return detail::seconds_per_token(metrics, options.max_tokens);
  });
}

inline Report BenchmarkReport::to_report() const {
  ReportSection section{"benchmark", "Benchmark"};
  Measurement throughput{.name = "throughput", .unit = "tokens/s", .digest = digest};
  Measurement latency{.name = "mean latency", .unit = "s", .more_is_better = false};
  Measurement per_token{.name = "latency per token", .unit = "ms", .more_is_better = false};
  Distribution ttft{"TTFT", "ms"}, tpot{"TPOT", "ms"}, itl{"ITL", "ms"}, e2el{"E2EL", "ms"};
  const auto append = [](Distribution& distribution, const std::vector<double>& seconds) {
    for (const double value : seconds) distribution.samples.push_back(1e3 * value);
  };
  for (const ServingMetrics& metrics : repetitions) {
    throughput.samples.push_back(metrics.output_throughput.value());
    latency.samples.push_back(*metrics.end_to_end_latency.mean);
    per_token.samples.push_back(1e3 * detail::seconds_per_token(metrics, options.max_tokens));
    append(ttft, metrics.ttft_samples);
    append(tpot, metrics.tpot_samples);
    append(itl, metrics.itl_samples);
    append(e2el, metrics.e2el_samples);
  }
  if (num_checked_tokens > 0) throughput.check = "plain path";
  section.measurements = {throughput, latency, per_token};
  if (peak_memory_bytes) {
    section.measurements.push_back({.name = "peak memory",
                                    .unit = "MB",
                                    .more_is_better = false,
                                    .samples = {1e-6 * static_cast<double>(*peak_memory_bytes)}});
  }
  section.distributions = {ttft, tpot, itl, e2el};
  const auto text = [](auto number) { return std::to_string(number); };
  return {"kvick benchmark",
          {machine_facts(isa, num_threads),
           build_facts(),
           {"parameters",
            {{"requests", text(num_requests)},
             {"prompt tokens", text(num_prompt_tokens)},
             {"output tokens", text(num_output_tokens)},
             {"batch size", text(options.batch_size)},
             {"repetitions", text(options.num_repetitions)},
             {"cache", std::string(name(options.cache_type))},
             {"temperature", short_number(static_cast<double>(options.sampling.temperature))},
             {"seed", text(options.sampling.seed)}}}},
          {section}};
}

inline std::ostream& operator<<(std::ostream& out, const BenchmarkReport& report) {
  return out << report.to_report();
}

}  // namespace kvick::inline v0_1
