// SPDX-License-Identifier: MIT
// Interleaved measuring: every probe is timed once in every round, so that whatever else the
// machine does meets all of them alike.
//
// The first probe of a round is the next one each time. Figures are medians over the rounds, and
// comparisons are medians of the ratios *within* a round: slow phases of the machine cancel.
//
// A probe may name the limit of its speed, which is a probe too. A probe that passes its limit, by
// the median of its rounds, proves the limit wrong: see RoundsResult::require_within_limits().
//
// Units     Seconds of wall time, and amounts of work per second in the unit that Work names.
// Errors    Whatever a check throws; std::invalid_argument for probes that do not fit together.
// Threads   Probes bring their own; they run one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvick/bench/statistics.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"

namespace measure {

using kvick::Index;

/// What one call of a probe does.
struct Work {
  std::string unit;        ///< of the rate, for example "Gop/s"
  double amount = 0;       ///< per call, so that amount / seconds is in `unit`
  std::string limit = {};  ///< name of the probe that bounds the rate; empty: none
};

struct Probe {
  std::string name;
  std::function<void(Index num_calls)> run;
  std::vector<Work> work;            ///< at least one; the first is the one compared
  std::function<void()> check = {};  ///< throws if the probe computes something wrong
};

struct RoundOptions {
  int num_rounds = 11;
  double min_seconds = 0.1;  ///< per probe and round
  /// Pause before each probe: threads of other libraries may spin for 25 ms after their last call.
  double settle_seconds = 0.03;
  /// Called after every probe with the number of those done and of all.
  std::function<void(std::size_t done, std::size_t total)> progress = {};
};

using kvick::Spread;
using kvick::spread_of;

/// A probe with the seconds per call of each round.
struct ProbeResult {
  Probe probe;
  std::vector<double> seconds;

  std::vector<double> rates(const Work& work) const;
};

class RoundsResult {
 public:
  explicit RoundsResult(std::vector<ProbeResult> probes) : probes_(std::move(probes)) {}

  const std::vector<ProbeResult>& probes() const noexcept { return probes_; }
  const ProbeResult& probe(std::string_view name) const;

  /// Rate of the first work of `probe` over that of `baseline`, round by round.
  Spread ratio(const ProbeResult& probe, const ProbeResult& baseline) const;

  /// Share of its limit, round by round; nothing if the work has none.
  std::optional<Spread> share(const ProbeResult& probe, const Work& work) const;

  /// Throws std::runtime_error that names every probe whose median share is above 1.
  void require_within_limits() const;

 private:
  std::vector<ProbeResult> probes_;
};

class Rounds {
 public:
  void add(Probe probe);

  /// Checks every probe, finds how often to call each, then measures.
  RoundsResult run(const RoundOptions& options = {});

 private:
  std::vector<Probe> probes_;
};

/// Seconds of one run(num_calls).
inline double seconds_of(const Probe& probe, Index num_calls);

/// Calls that take about `seconds`, at least one. Runs the probe.
inline Index calls_within(const Probe& probe, double seconds);

/// Seconds per call, over calls that take at least `min_seconds` together. `num_calls` at a time.
inline double seconds_per_call(const Probe& probe, Index num_calls, double min_seconds);

// ---- Implementation: nothing below is API ----

inline std::vector<double> ProbeResult::rates(const Work& work) const {
  std::vector<double> rates;
  for (const double each : seconds) rates.push_back(work.amount / each);
  return rates;
}

inline const ProbeResult& RoundsResult::probe(std::string_view name) const {
  const auto found = std::find_if(probes_.begin(), probes_.end(),
                                  [&](const ProbeResult& p) { return p.probe.name == name; });
  if (found == probes_.end()) {
    throw std::invalid_argument(kvick::detail::concat("there must be a probe '", name, "'"));
  }
  return *found;
}

namespace detail {

inline Spread ratio_of(const std::vector<double>& rates, const std::vector<double>& others) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < rates.size(); ++i) ratios.push_back(rates[i] / others[i]);
  return spread_of(std::move(ratios));
}

}  // namespace detail

inline Spread RoundsResult::ratio(const ProbeResult& probe, const ProbeResult& baseline) const {
  return detail::ratio_of(probe.rates(probe.probe.work.front()),
                          baseline.rates(baseline.probe.work.front()));
}

inline std::optional<Spread> RoundsResult::share(const ProbeResult& probe, const Work& work) const {
  if (work.limit.empty()) return std::nullopt;
  const ProbeResult& limit = this->probe(work.limit);
  return detail::ratio_of(probe.rates(work), limit.rates(limit.probe.work.front()));
}

inline void RoundsResult::require_within_limits() const {
  std::string violations;
  for (const ProbeResult& result : probes_) {
    for (const Work& work : result.probe.work) {
      const auto share_of_limit = share(result, work);
      if (!share_of_limit || share_of_limit->median <= 1.0) continue;
      violations += kvick::detail::concat("\n  ", result.probe.name, " reaches ",
                                          100.0 * share_of_limit->median, " % of ", work.limit);
    }
  }
  if (violations.empty()) return;
  throw std::runtime_error(
      "a limit must not be passed: its probe is not the best one, or the rounds were too few for"
      " this noise:" +
      violations);
}

inline void Rounds::add(Probe probe) {
  if (probe.work.empty() || !probe.run) {
    throw std::invalid_argument("probe '" + probe.name + "' must have work and a function");
  }
  for (const Probe& other : probes_) {
    if (other.name == probe.name) {
      throw std::invalid_argument("names of probes must differ, got '" + probe.name + "' twice");
    }
  }
  probes_.push_back(std::move(probe));
}

inline double seconds_of(const Probe& probe, Index num_calls) {
  const auto start = std::chrono::steady_clock::now();
  probe.run(num_calls);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline Index calls_within(const Probe& probe, double seconds) {
  // The first call warms up and may be slow. Later ones are grown until they can be trusted.
  double elapsed = seconds_of(probe, 1);
  if (elapsed >= seconds) return 1;
  constexpr double kTrusted = 0.25;  // of the time wanted
  Index num_calls = 1;
  for (;;) {
    elapsed = std::max(seconds_of(probe, num_calls), 1e-9);
    const double wanted = static_cast<double>(num_calls) * seconds / elapsed;
    if (elapsed >= kTrusted * seconds) return std::max<Index>(1, std::llround(std::ceil(wanted)));
    num_calls = std::llround(std::ceil(std::min(wanted, 10.0 * static_cast<double>(num_calls))));
  }
}

inline double seconds_per_call(const Probe& probe, Index num_calls, double min_seconds) {
  double elapsed = 0;
  Index total = 0;
  do {
    elapsed += seconds_of(probe, num_calls);
    total += num_calls;
  } while (elapsed < min_seconds);
  return elapsed / static_cast<double>(total);
}

inline RoundsResult Rounds::run(const RoundOptions& options) {
  for (const Probe& probe : probes_) {
    if (probe.check) probe.check();
  }
  std::vector<ProbeResult> results;
  std::vector<Index> num_calls;
  for (const Probe& probe : probes_) {
    num_calls.push_back(calls_within(probe, 1.1 * options.min_seconds));
    results.push_back({probe, {}});
  }
  for (int round = 0; round < options.num_rounds; ++round) {
    for (std::size_t i = 0; i < probes_.size(); ++i) {
      const std::size_t at = (i + static_cast<std::size_t>(round)) % probes_.size();
      std::this_thread::sleep_for(std::chrono::duration<double>(options.settle_seconds));
      results[at].seconds.push_back(
          seconds_per_call(probes_[at], num_calls[at], options.min_seconds));
      if (options.progress) {
        options.progress(static_cast<std::size_t>(round) * probes_.size() + i + 1,
                         static_cast<std::size_t>(options.num_rounds) * probes_.size());
      }
    }
  }
  return RoundsResult(std::move(results));
}

}  // namespace measure
