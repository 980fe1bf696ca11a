// SPDX-License-Identifier: MIT
// From the times at which tokens came out to the field's figures.
//
//   TTFT   time to first token: from sending a request to its first output
//   ITL    inter-token latency: gaps between consecutive outputs, of all requests together; an
//          output of several tokens (speculation) is one
//   TPOT   time per output token: (E2EL - TTFT) / (output tokens - 1) of a request with at least
//          two, one value per request
//   E2EL   end-to-end latency: from sending a request to its last output
//
// A request is sent when it arrives, unless a limit of concurrency holds it back; that wait is the
// client queue's and reported apart. Throughputs divide by the duration of the whole run; goodput
// counts the requests that met every limit.
//
// Units     Seconds; the report shows milliseconds. Throughput per second.
// Source    Definitions of vLLM's serving benchmark.
// Layer     bench: may include core.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvick/bench/statistics.hpp"

namespace kvick::inline v0_1 {

/// Tokens that came out together.
struct TimedOutput {
  double seconds = 0;
  int num_tokens = 1;
};

/// What happened to a request, on a clock that starts with the run.
struct RequestTimeline {
  double arrival_seconds = 0;
  double sent_seconds = 0;
  int num_prompt_tokens = 0;
  std::vector<TimedOutput> outputs = {};  ///< in order of time
  bool is_failed = false;                 ///< its figures do not count

  int num_output_tokens() const noexcept;
  std::optional<double> time_to_first_token() const noexcept;
  std::optional<double> time_per_output_token() const noexcept;
  std::optional<double> end_to_end_latency() const noexcept;
};

/// Limits a request must meet to count for goodput, in seconds.
struct LatencyLimits {
  double time_to_first_token = std::numeric_limits<double>::infinity();
  double time_per_output_token = std::numeric_limits<double>::infinity();
  double end_to_end_latency = std::numeric_limits<double>::infinity();

  bool are_met_by(const RequestTimeline& request) const noexcept;
};

struct ServingMetrics {
  std::size_t num_completed = 0;
  std::size_t num_failed = 0;
  double duration_seconds = 0;
  std::size_t num_prompt_tokens = 0;  ///< of completed requests
  std::size_t num_output_tokens = 0;

  // Per second; absent for a run of no duration.
  std::optional<double> request_throughput = std::nullopt;
  std::optional<double> output_throughput = std::nullopt;
  std::optional<double> total_token_throughput = std::nullopt;
  std::optional<double> request_goodput = std::nullopt;  ///< absent without limits

  int peak_concurrency = 0;  ///< requests between sending and last output
  /// Tokens in the best second of the clock; absent for a run of less than one.
  std::optional<double> peak_output_throughput = std::nullopt;

  SampleSummary time_to_first_token;
  SampleSummary time_per_output_token;
  SampleSummary inter_token_latency;
  SampleSummary end_to_end_latency;

  // The values behind the summaries.
  std::vector<double> ttft_samples, tpot_samples, itl_samples, e2el_samples, queue_samples;
};

inline ServingMetrics serving_metrics(std::span<const RequestTimeline> requests,
                                      double duration_seconds,
                                      const std::optional<LatencyLimits>& limits = std::nullopt);

// ---- Implementation: nothing below is API ----

inline int RequestTimeline::num_output_tokens() const noexcept {
  int count = 0;
  for (const TimedOutput& output : outputs) count += output.num_tokens;
  return count;
}

inline std::optional<double> RequestTimeline::time_to_first_token() const noexcept {
  if (outputs.empty()) return std::nullopt;
  return outputs.front().seconds - sent_seconds;
}

inline std::optional<double> RequestTimeline::end_to_end_latency() const noexcept {
  if (outputs.empty()) return std::nullopt;
  return outputs.back().seconds - sent_seconds;
}

inline std::optional<double> RequestTimeline::time_per_output_token() const noexcept {
  const int num_tokens = num_output_tokens();
  if (num_tokens < 2) return std::nullopt;
  return (outputs.back().seconds - outputs.front().seconds) / (num_tokens - 1);
}

/// The time per token of a single token counts as 0.
inline bool LatencyLimits::are_met_by(const RequestTimeline& request) const noexcept {
  if (request.is_failed || request.outputs.empty()) return false;
  return *request.time_to_first_token() <= time_to_first_token &&
         request.time_per_output_token().value_or(0) <= time_per_output_token &&
         *request.end_to_end_latency() <= end_to_end_latency;
}

namespace detail {

/// Most requests under way at once, over [sent, last output).
inline int peak_concurrency(std::span<const RequestTimeline> requests) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestTimeline& request : requests) {
    if (request.is_failed || request.outputs.empty()) continue;
    changes.emplace_back(request.sent_seconds, 1);
    changes.emplace_back(request.outputs.back().seconds, -1);
  }
  std::sort(changes.begin(), changes.end());  // at equal times, ends come first
  int current = 0;
  int peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, current += change);
  return peak;
}

inline double peak_output_throughput(std::span<const RequestTimeline> requests) {
  std::map<double, int> tokens_of_second;
  int peak = 0;
  for (const RequestTimeline& request : requests) {
    if (request.is_failed) continue;
    for (const TimedOutput& output : request.outputs) {
      int& tokens = tokens_of_second[std::floor(output.seconds)];
      peak = std::max(peak, tokens += output.num_tokens);
    }
  }
  return peak;
}

inline void collect(const RequestTimeline& request, ServingMetrics& metrics) {
  ++metrics.num_completed;
  metrics.num_prompt_tokens += static_cast<std::size_t>(request.num_prompt_tokens);
  metrics.num_output_tokens += static_cast<std::size_t>(request.num_output_tokens());
  metrics.ttft_samples.push_back(*request.time_to_first_token());
  metrics.e2el_samples.push_back(*request.end_to_end_latency());
  metrics.queue_samples.push_back(request.sent_seconds - request.arrival_seconds);
  if (const auto tpot = request.time_per_output_token()) metrics.tpot_samples.push_back(*tpot);
  for (std::size_t i = 1; i < request.outputs.size(); ++i) {
    metrics.itl_samples.push_back(request.outputs[i].seconds - request.outputs[i - 1].seconds);
  }
}

}  // namespace detail

inline ServingMetrics serving_metrics(std::span<const RequestTimeline> requests,
                                      double duration_seconds,
                                      const std::optional<LatencyLimits>& limits) {
  ServingMetrics metrics;
  metrics.duration_seconds = duration_seconds;
  std::size_t num_good = 0;
  for (const RequestTimeline& request : requests) {
    if (request.is_failed || request.outputs.empty()) {
      ++metrics.num_failed;
      continue;
    }
    detail::collect(request, metrics);
    if (limits && limits->are_met_by(request)) ++num_good;
  }
  if (duration_seconds > 0) {
    const auto per_second = [&](std::size_t count) {
      return static_cast<double>(count) / duration_seconds;
    };
    metrics.request_throughput = per_second(metrics.num_completed);
    metrics.output_throughput = per_second(metrics.num_output_tokens);
    metrics.total_token_throughput =
        per_second(metrics.num_prompt_tokens + metrics.num_output_tokens);
    if (limits) metrics.request_goodput = per_second(num_good);
  }
  metrics.peak_concurrency = detail::peak_concurrency(requests);
  if (duration_seconds >= 1) {
    metrics.peak_output_throughput = detail::peak_output_throughput(requests);
  }
  metrics.time_to_first_token = summarize(metrics.ttft_samples);
  metrics.time_per_output_token = summarize(metrics.tpot_samples);
  metrics.inter_token_latency = summarize(metrics.itl_samples);
  metrics.end_to_end_latency = summarize(metrics.e2el_samples);
  return metrics;
}

}  // namespace kvick::inline v0_1
