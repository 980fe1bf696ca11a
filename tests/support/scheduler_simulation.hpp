// SPDX-License-Identifier: MIT
// A scheduler at work without a model: a cost takes the place of the forward pass and the clock
// jumps, so that policies can be compared over 100,000 requests in seconds.
//
// Units     Milliseconds, tokens.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kvick/bench/variates.hpp"
#include "kvick/core/random.hpp"
#include "kvick/serving/scheduler.hpp"

namespace support {

struct SimulatedRequest {
  double arrival_ms = 0;
  int num_prompt_tokens = 0;
  int num_output_tokens = 0;
};

// ---- Workloads

/// Lengths between two bounds, both included.
struct Lengths {
  int least = 1;
  int most = 1;
  bool is_log_uniform = false;  ///< every factor between lengths equally likely; else every length

  int draw(kvick::PhiloxStream& random) const {
    const double u = random.next_uniform();
    const double low = least, high = most + 1.0;
    const double length = is_log_uniform ? low * std::pow(high / low, u) : low + (high - low) * u;
    return std::min(most, static_cast<int>(length));
  }
};

/// Gaps between arrivals follow a gamma distribution of mean 1 / rate: Poisson arrivals at
/// burstiness 1, bursts below 1.
struct Workload {
  int num_requests = 0;
  double requests_per_s = 0;  ///< 0: all at once
  double burstiness = 1;
  Lengths prompts;
  Lengths outputs;
  std::uint64_t seed = 1;
};

inline std::vector<SimulatedRequest> make_requests(const Workload& workload) {
  kvick::PhiloxStream random(workload.seed);
  std::vector<SimulatedRequest> requests;
  double at = 0;
  for (int i = 0; i < workload.num_requests; ++i) {
    if (workload.requests_per_s > 0) {
      const double shape = workload.burstiness;
      at += kvick::next_gamma(random, shape) / shape * 1000 / workload.requests_per_s;
    }
    const int prompt = workload.prompts.draw(random);
    requests.push_back({at, prompt, workload.outputs.draw(random)});
  }
  return requests;
}

/// Two loads at once, Poisson each: chats that decode for long, and prompts of kLongPrompt tokens
/// with short answers; in order of arrival.
struct ChatsAndLongPrompts {
  int num_chats = 0;
  double chats_per_s = 0;
  int num_prompts = 0;
  double prompts_per_s = 0;
};

inline constexpr int kLongPrompt = 1024;

inline std::vector<SimulatedRequest> make_requests(const ChatsAndLongPrompts& load) {
  auto requests = make_requests({.num_requests = load.num_chats,
                                 .requests_per_s = load.chats_per_s,
                                 .prompts = {32, 64},
                                 .outputs = {100, 300}});
  const auto prompts = make_requests({.num_requests = load.num_prompts,
                                      .requests_per_s = load.prompts_per_s,
                                      .prompts = {kLongPrompt, kLongPrompt},
                                      .outputs = {16, 16},
                                      .seed = 2});
  requests.insert(requests.end(), prompts.begin(), prompts.end());
  std::sort(requests.begin(), requests.end(),
            [](const auto& a, const auto& b) { return a.arrival_ms < b.arrival_ms; });
  return requests;
}

// ---- The machine

/// What a forward pass takes: matrix products by their rows, interpolated between measured ones,
/// and attention by the positions that tokens see.
class MachineCost {
 public:
  struct Point {
    double num_rows;
    double ms;
  };
  /// Milliseconds per position. The tokens of a prompt share what they read of the cache; a token
  /// alone has it to itself.
  struct PerPosition {
    double prompt = 0;
    double decode = 0;
  };

  /// At least two points in ascending order; beyond the last, its slope goes on.
  MachineCost(std::vector<Point> points, PerPosition per_position)
      : points_(std::move(points)), per_position_(per_position) {}

  /// Of all matrix products.
  double rows(double num_rows) const {
    const auto next = std::find_if(points_.begin() + 1, points_.end() - 1,
                                   [&](const Point& point) { return point.num_rows >= num_rows; });
    const Point& to = *next;
    const Point& from = *(next - 1);
    const double slope = (to.ms - from.ms) / (to.num_rows - from.num_rows);
    return from.ms + slope * (std::max(num_rows, points_.front().num_rows) - from.num_rows);
  }
  /// Of one sequence's `num_tokens` from position `first` on.
  double attention(double first, double num_tokens) const {
    const double num_positions = num_tokens * (first + (num_tokens + 1) / 2);
    return num_positions * (num_tokens > 1 ? per_position_.prompt : per_position_.decode);
  }

 private:
  std::vector<Point> points_;
  PerPosition per_position_;
};

// ---- What came of it

/// Counts of values in steps of 1 %.
class LogHistogram {
 public:
  void add(double value, std::int64_t count = 1) {
    const double step = std::log(std::max(value, kLeast) / kLeast) / kLogStep;
    const auto i = static_cast<std::size_t>(step);
    if (i >= counts_.size()) counts_.resize(i + 1);
    counts_[i] += count;
    num_values_ += count;
    max_ = std::max(max_, value);
  }
  /// The value that a share of the values does not exceed, to 1 %; 0 without values.
  double percentile(double share) const {
    std::int64_t left = static_cast<std::int64_t>(share * static_cast<double>(num_values_));
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      left -= counts_[i];
      if (left < 0) return kLeast * std::exp((static_cast<double>(i) + 0.5) * kLogStep);
    }
    return max_;
  }
  double max() const { return max_; }
  std::int64_t num_values() const { return num_values_; }

 private:
  static constexpr double kLeast = 1e-3;
  static constexpr double kLogStep = 0.00995033;  // ln 1.01

  std::vector<std::int64_t> counts_;
  std::int64_t num_values_ = 0;
  double max_ = 0;
};

struct SimulationResult {
  double duration_ms = 0;
  std::int64_t num_output_tokens = 0;
  std::int64_t num_steps = 0;
  std::int64_t num_decode_steps = 0;        ///< in which a request that had tokens got another
  std::int64_t num_mixed_decode_steps = 0;  ///< of these, with tokens of prompts
  std::int64_t num_preemptions = 0;
  double scheduling_us_per_step = 0;  ///< real time in schedule() and complete()
  LogHistogram ttft_ms;
  LogHistogram itl_ms;

  double tokens_per_s() const {
    return 1000 * static_cast<double>(num_output_tokens) / duration_ms;
  }
};

// ---- Policies

/// Batches of up to `batch_size` requests, prompts padded to the longest, until all are done.
inline SimulationResult simulate_static(const std::vector<SimulatedRequest>& requests,
                                        int batch_size, const MachineCost& cost) {
  SimulationResult result;
  double now = 0;
  for (std::size_t first = 0; first < requests.size();) {
    now = std::max(now, requests[first].arrival_ms);
    std::size_t end = first;
    int prompt = 0, output = 0;
    while (end < requests.size() && end - first < static_cast<std::size_t>(batch_size) &&
           requests[end].arrival_ms <= now) {
      prompt = std::max(prompt, requests[end].num_prompt_tokens);
      output = std::max(output, requests[end].num_output_tokens);
      ++end;
    }
    const auto num_rows = static_cast<double>(end - first);
    now += cost.rows(num_rows * prompt) + num_rows * cost.attention(0, prompt);
    std::vector<std::int64_t> num_going(static_cast<std::size_t>(output) + 1);
    for (std::size_t i = first; i < end; ++i) {
      result.ttft_ms.add(now - requests[i].arrival_ms);
      result.num_output_tokens += requests[i].num_output_tokens;
      for (int k = 1; k < requests[i].num_output_tokens; ++k) {
        ++num_going[static_cast<std::size_t>(k)];
      }
    }
    ++result.num_steps;
    for (int k = 1; k < output; ++k, ++result.num_steps, ++result.num_decode_steps) {
      const double ms = cost.rows(num_rows) + num_rows * cost.attention(prompt + k - 1, 1);
      now += ms;
      result.itl_ms.add(ms, num_going[static_cast<std::size_t>(k)]);
    }
    first = end;
  }
  result.duration_ms = now;
  return result;
}

/// The scheduler with its clock replaced, over any room. `on_step(step, from_ms, to_ms)` sees each
/// step before it is completed.
template <class MakeScheduler>
SimulationResult simulate_scheduler(
    const std::vector<SimulatedRequest>& requests, kvick::SchedulerOptions options,
    const MachineCost& cost, MakeScheduler&& make_scheduler,
    const std::function<void(const kvick::Step&, double, double)>& on_step = {}) {
  using Clock = std::chrono::steady_clock;
  double now = 0;
  options.clock_ms = [&now] { return now; };
  auto scheduler = make_scheduler(options);
  SimulationResult result;
  std::vector<double> last_token_ms(requests.size(), -1);
  std::vector<kvick::TokenId> tokens;
  Clock::duration spent{};
  std::size_t num_arrived = 0;
  const auto arrive_until = [&](double end) {
    for (; num_arrived < requests.size() && requests[num_arrived].arrival_ms <= end;
         ++num_arrived) {
      const SimulatedRequest& request = requests[num_arrived];
      now = std::max(now, request.arrival_ms);
      const auto salt = static_cast<std::uint64_t>(num_arrived);  // no two share a prefix
      scheduler->add_request({.prompt = std::vector<kvick::TokenId>(
                                  static_cast<std::size_t>(request.num_prompt_tokens)),
                              .max_new_tokens = request.num_output_tokens,
                              .prefix_key = {.salt = salt}});
    }
  };
  for (;;) {
    arrive_until(now);
    const auto start = Clock::now();
    const kvick::Step step = scheduler->schedule();
    spent += Clock::now() - start;
    if (!step) {
      if (num_arrived == requests.size()) break;
      now = requests[num_arrived].arrival_ms;
      continue;
    }
    double ms = cost.rows(static_cast<double>(step.batch.num_tokens()));
    bool has_prompts = false, has_decodes = false;
    for (std::size_t i = 0; i < step.segments.size(); ++i) {
      const kvick::Segment& segment = step.batch.segments()[i];
      ms += cost.attention(segment.first_position, static_cast<double>(segment.tokens.size()));
      const bool is_decode = step.segments[i].output_index > 0;
      (is_decode ? has_decodes : has_prompts) = true;
    }
    const double end = now + ms;
    if (on_step) on_step(step, now, end);
    arrive_until(end);
    now = end;
    for (const kvick::StepSegment& segment : step.segments) {
      if (segment.num_rows == 0) continue;
      const auto id = static_cast<std::size_t>(segment.request);
      if (last_token_ms[id] < 0) {
        result.ttft_ms.add(now - requests[id].arrival_ms);
      } else {
        result.itl_ms.add(now - last_token_ms[id]);
      }
      last_token_ms[id] = now;
      ++result.num_output_tokens;
    }
    ++result.num_steps;
    if (has_decodes) ++result.num_decode_steps;
    if (has_decodes && has_prompts) ++result.num_mixed_decode_steps;
    tokens.assign(static_cast<std::size_t>(step.batch.num_logits()), 0);
    const auto done = Clock::now();
    scheduler->complete(step, tokens);
    spent += Clock::now() - done;
    if (result.num_steps % 1024 == 0) scheduler->take_finished();
  }
  result.duration_ms = now;
  result.num_preemptions = scheduler->statistics().num_preemptions;
  result.scheduling_us_per_step = std::chrono::duration<double, std::micro>(spent).count() /
                                  static_cast<double>(std::max<std::int64_t>(result.num_steps, 1));
  return result;
}

/// With room for all slots at full length.
inline SimulationResult simulate(
    const std::vector<SimulatedRequest>& requests, const kvick::SchedulerOptions& options,
    const MachineCost& cost,
    const std::function<void(const kvick::Step&, double, double)>& on_step = {}) {
  const auto make = [](const kvick::SchedulerOptions& with_clock) {
    return std::make_unique<kvick::Scheduler<>>(with_clock);
  };
  return simulate_scheduler(requests, options, cost, make, on_step);
}

}  // namespace support
