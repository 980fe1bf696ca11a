// SPDX-License-Identifier: MIT
// The results of interleaved rounds as a table and as JSON.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "examples/support/table.hpp"
#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_count.hpp"
#include "support/rounds.hpp"

namespace measure {

/// One line per probe and work: median, quartiles, least and most, share of the limit, and the
/// ratio to `baseline` unless that is empty.
inline std::string table(const RoundsResult& result, std::string_view baseline = {});

/// The same figures, and the seconds per call of every round.
inline nlohmann::ordered_json to_json(const RoundsResult& result, std::string_view baseline = {});

/// What figures depend on: the CPU, and how many of its threads this process may use.
inline nlohmann::ordered_json machine_json();

// ---- Implementation: nothing below is API ----

namespace detail {

/// At least four digits that count, right-aligned.
inline std::string number(double value) {
  char text[32];
  const int decimals = value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;
  std::snprintf(text, sizeof text, "%9.*f", decimals, value);
  return text;
}

inline std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%5.1f %%", 100.0 * share);
  return text;
}

inline std::string times(const Spread& ratio) {
  char text[64];
  std::snprintf(text, sizeof text, "%6.3f x [%.3f, %.3f]", ratio.median, ratio.lower_quartile,
                ratio.upper_quartile);
  return text;
}

inline nlohmann::ordered_json to_json(const Spread& spread) {
  return {{"median", spread.median},
          {"min", spread.min},
          {"max", spread.max},
          {"lower_quartile", spread.lower_quartile},
          {"upper_quartile", spread.upper_quartile}};
}

}  // namespace detail

inline std::string table(const RoundsResult& result, std::string_view baseline) {
  programs::Rows rows{{"probe", "   median", "quartiles", "", "      min", "      max", "unit",
                       "share of limit", baseline.empty() ? "" : "over " + std::string(baseline)}};
  for (const ProbeResult& probe : result.probes()) {
    for (const Work& work : probe.probe.work) {
      const bool is_first = &work == &probe.probe.work.front();
      const Spread rate = spread_of(probe.rates(work));
      const auto share = result.share(probe, work);
      rows.push_back({is_first ? probe.probe.name : "", detail::number(rate.median),
                      detail::number(rate.lower_quartile), detail::number(rate.upper_quartile),
                      detail::number(rate.min), detail::number(rate.max), work.unit,
                      share ? detail::percent(share->median) + " of " + work.limit : "",
                      is_first && !baseline.empty()
                          ? detail::times(result.ratio(probe, result.probe(baseline)))
                          : ""});
    }
  }
  return programs::table(rows);
}

inline nlohmann::ordered_json to_json(const RoundsResult& result, std::string_view baseline) {
  auto probes = nlohmann::ordered_json::array();
  for (const ProbeResult& probe : result.probes()) {
    auto rates = nlohmann::ordered_json::array();
    for (const Work& work : probe.probe.work) {
      nlohmann::ordered_json rate = detail::to_json(spread_of(probe.rates(work)));
      rate["unit"] = work.unit;
      if (const auto share = result.share(probe, work)) {
        rate["limit"] = work.limit;
        rate["share_of_limit"] = detail::to_json(*share);
      }
      rates.push_back(std::move(rate));
    }
    nlohmann::ordered_json entry{
        {"name", probe.probe.name}, {"rates", std::move(rates)}, {"seconds", probe.seconds}};
    if (!baseline.empty()) {
      entry["ratio"] = detail::to_json(result.ratio(probe, result.probe(baseline)));
      entry["baseline"] = baseline;
    }
    probes.push_back(std::move(entry));
  }
  return probes;
}

inline nlohmann::ordered_json machine_json() {
  return {{"cpu", kvick::cpu_brand()}, {"threads", kvick::default_num_threads()}};
}

}  // namespace measure
