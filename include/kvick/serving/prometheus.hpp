// SPDX-License-Identifier: MIT
// EngineMetrics in the text format that Prometheus reads.
//
// Names begin with kvick_ and end in their unit; counters end in _total.
//
// Errors    None.
// Source    Prometheus text exposition format 0.0.4.
// Layer     serving: may include core, cache, model.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kvick/core/version.hpp"
#include "kvick/serving/metrics.hpp"
#include "kvick/serving/request.hpp"

namespace kvick::inline v0_1 {

/// Every metric with its help and type. Give it as text/plain; version=0.0.4.
inline std::string to_prometheus(const EngineMetrics& metrics);

// ---- Implementation: nothing below is API ----

namespace detail {

class PrometheusText {
 public:
  void gauge(std::string_view name, std::string_view help, double value) {
    head(name, help, "gauge");
    sample(name, "", number(value));
  }

  void counter(std::string_view name, std::string_view help, std::int64_t value) {
    head(name, help, "counter");
    sample(name, "", std::to_string(value));
  }

  void finished(const EngineMetrics& metrics) {
    constexpr std::string_view kName = "kvick_requests_finished_total";
    head(kName, "Samples that ended, by reason.", "counter");
    for (std::size_t i = 0; i < metrics.num_finished_by.size(); ++i) {
      const std::string_view reason = name(static_cast<FinishReason>(i));
      sample(kName, "{reason=\"" + std::string(reason) + "\"}",
             std::to_string(metrics.num_finished_by[i]));
    }
  }

  /// Counts of ranges add up from the lowest.
  void histogram(std::string_view name, std::string_view help, const Histogram& values) {
    head(name, help, "histogram");
    const std::string bucket = std::string(name) + "_bucket";
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < values.bounds().size(); ++i) {
      count += values.count_in(i);
      sample(bucket, "{le=\"" + number(values.bounds()[i]) + "\"}", std::to_string(count));
    }
    sample(bucket, "{le=\"+Inf\"}", std::to_string(values.count()));
    sample(std::string(name) + "_sum", "", number(values.sum()));
    sample(std::string(name) + "_count", "", std::to_string(values.count()));
  }

  std::string take() && { return std::move(text_); }

 private:
  /// As few digits as give the number back, in any locale.
  static std::string number(double value) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    return {digits, end};
  }

  void head(std::string_view name, std::string_view help, std::string_view type) {
    text_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ");
    text_.append(name).append(" ").append(type).append("\n");
  }

  void sample(std::string_view name, std::string_view labels, std::string_view value) {
    text_.append(name).append(labels).append(" ").append(value).append("\n");
  }

  std::string text_;
};

}  // namespace detail

inline std::string to_prometheus(const EngineMetrics& m) {
  detail::PrometheusText text;
  text.gauge("kvick_requests_running", "Sequences that have a slot of the cache.", m.num_running);
  text.gauge("kvick_requests_waiting", "Requests in the queue.", m.num_waiting);
  text.gauge("kvick_batch_size", "Sequences in the last step.", m.batch_size);
  text.gauge("kvick_step_tokens_last", "Tokens in the last step.", m.num_step_tokens);
  text.gauge("kvick_cache_usage_ratio", "Share of the cache in use.", m.cache_usage);
  text.gauge("kvick_prefix_hit_ratio", "Share of prompt tokens found in the cache.",
             m.prefix_hit_rate());
  text.gauge("kvick_uptime_seconds", "Time since the engine was made.", m.uptime_seconds);
  text.gauge("kvick_busy_seconds", "Time spent in steps.", m.busy_seconds);
  text.gauge("kvick_draft_seconds", "Of these, in draft sources.", m.draft_seconds);

  text.counter("kvick_steps_total", "Steps of the model.", m.num_steps);
  text.counter("kvick_requests_total", "Requests accepted, each sample once.", m.num_added);
  text.counter("kvick_requests_rejected_total", "Requests that the queue refused.", m.num_rejected);
  text.finished(m);
  text.counter("kvick_prompt_tokens_total", "Tokens of prompts.", m.num_prompt_tokens);
  text.counter("kvick_cached_tokens_total", "Tokens of prompts found in the cache.",
               m.num_cached_tokens);
  text.counter("kvick_generated_tokens_total", "New tokens.", m.num_output_tokens);
  text.counter("kvick_computed_tokens_total", "Tokens that the model computed.",
               m.num_batched_tokens);
  text.counter("kvick_draft_rounds_total", "Drafts verified, one per sequence and step.",
               m.num_draft_rounds);
  text.counter("kvick_draft_tokens_total", "Drafted tokens verified.", m.num_draft_tokens);
  text.counter("kvick_accepted_tokens_total", "Of these, accepted.", m.num_accepted_tokens);
  text.counter("kvick_preemptions_total", "Sequences that lost their slot for a while.",
               m.num_preemptions);

  text.histogram("kvick_request_queue_seconds", "From submission to the first step.",
                 m.queued_seconds);
  text.histogram("kvick_time_to_first_token_seconds", "From submission to the first new token.",
                 m.ttft_seconds);
  text.histogram("kvick_inter_token_latency_seconds", "From one new token to the next.",
                 m.itl_seconds);
  text.histogram("kvick_time_per_output_token_seconds", "Per request, after the first token.",
                 m.tpot_seconds);
  text.histogram("kvick_e2e_request_latency_seconds", "From submission to the end.",
                 m.e2el_seconds);
  text.histogram("kvick_step_seconds", "Time of a step.", m.step_seconds);
  text.histogram("kvick_step_sequences", "Sequences in a step.", m.batch_sizes);
  text.histogram("kvick_step_tokens", "Tokens in a step.", m.step_tokens);
  return std::move(text).take();
}

}  // namespace kvick::inline v0_1
