// SPDX-License-Identifier: MIT
// Two reports side by side, and a report beside a baseline of shares of the machine's limits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kvick/bench/statistics.hpp"
#include "kvick/bench/text_table.hpp"
#include "support/program.hpp"
#include "support/table.hpp"

namespace programs::bench {

using Json = nlohmann::ordered_json;

inline Json read_json(const std::string& path) {
  try {
    return Json::parse(read_file(path));
  } catch (const Json::exception&) {
    throw BadInput(kvick::detail::in_quotes(path) + " is no JSON");
  }
}

/// Measurements of a report, in order.
struct StoredMeasurement {
  std::string section, name, unit;
  bool more_is_better = true;
  std::vector<double> samples;
  std::vector<double> shares;  // of the limit
  std::string digest;
};

inline std::vector<StoredMeasurement> read_measurements(const std::string& path) {
  const Json report = read_json(path);
  std::vector<StoredMeasurement> result;
  try {
    if (report.at("format") != "kvick-report" || report.at("version") != 1) {
      throw BadInput(kvick::detail::in_quotes(path) + " is no report of this version");
    }
    for (const Json& section : report.at("sections")) {
      for (const Json& m : section.at("measurements")) {
        StoredMeasurement stored{section.at("id"),       m.at("name"),    m.at("unit"),
                                 m.at("more_is_better"), m.at("samples"), {},
                                 m.value("digest", "")};
        if (m.contains("limits")) {
          const std::vector<double> limits = m.at("limits");
          for (std::size_t i = 0; i < std::min(limits.size(), stored.samples.size()); ++i) {
            stored.shares.push_back(stored.samples[i] / limits[i]);
          }
        }
        result.push_back(std::move(stored));
      }
    }
  } catch (const Json::exception& error) {
    throw BadInput(kvick::detail::in_quotes(path) + " is no report: " + error.what());
  }
  return result;
}

/// What differs in the facts of two reports and may explain other numbers.
inline std::string differing_facts(const Json& a, const Json& b) {
  std::string text;
  for (const char* group : {"machine", "build", "model", "parameters"}) {
    if (!a.contains(group) || !b.contains(group)) continue;
    for (const auto& [key, value] : a[group].items()) {
      const Json other = b[group].contains(key) ? b[group][key] : Json("absent");
      if (other == value || key == "date" || key == "command") continue;
      text += kvick::detail::concat("  ", group, ", ", printable(key), ": ",
                                    printable(value.dump()), " -> ", printable(other.dump()), "\n");
    }
  }
  return text;
}

/// b over a for every measurement that both have.
inline std::string compare_reports(const std::string& a_path, const std::string& b_path) {
  const auto before = read_measurements(a_path);
  const auto after = read_measurements(b_path);
  Rows rows{{"measurement", "before", "after", "unit", "ratio", "95 % interval", "verdict"}};
  bool has_same = false;
  for (const StoredMeasurement& a : before) {
    const auto b = std::find_if(after.begin(), after.end(), [&](const StoredMeasurement& other) {
      return other.section == a.section && other.name == a.name && other.unit == a.unit;
    });
    if (b == after.end() || a.samples.empty() || b->samples.empty()) continue;
    has_same = true;
    const kvick::RatioEstimate ratio = kvick::estimate_ratio(b->samples, a.samples);
    std::string verdict;
    if (!ratio.has_interval()) {
      verdict = "too few samples to tell";
    } else if (ratio.is_noise()) {
      verdict = "noise";
    } else {
      verdict = (ratio.ratio > 1) == a.more_is_better ? "better" : "WORSE";
    }
    if (a.digest != b->digest) verdict += "; OTHER OUTPUT";
    rows.push_back({printable(a.section + ": " + a.name),
                    kvick::short_number(kvick::spread_of(a.samples).median),
                    kvick::short_number(kvick::spread_of(b->samples).median), printable(a.unit),
                    with_decimals(ratio.ratio, 3),
                    ratio.has_interval()
                        ? with_decimals(*ratio.low, 3) + " .. " + with_decimals(*ratio.high, 3)
                        : "-",
                    verdict});
  }
  if (!has_same) throw BadInput("the reports must have a measurement in common");
  const std::string facts = differing_facts(read_json(a_path), read_json(b_path));
  return table(rows) + (facts.empty() ? "" : "\nnot the same:\n" + facts);
}

/// Shares of limits of a report, to be kept. Times would be another machine's.
inline std::string make_baseline(const std::string& report_path, double margin) {
  const Json report = read_json(report_path);
  Json shares = Json::array();
  for (const StoredMeasurement& m : read_measurements(report_path)) {
    if (m.shares.empty()) continue;
    shares.push_back({{"section", m.section},
                      {"name", m.name},
                      {"share", std::stod(with_decimals(kvick::spread_of(m.shares).median, 3))}});
  }
  const Json baseline = {{"format", "kvick-baseline"},
                         {"instruction_set", report["machine"]["instruction set"]},
                         {"threads", report["machine"]["threads"]},
                         {"model", report["model"]["name"]},
                         {"margin", margin},
                         {"shares", shares}};
  return baseline.dump(2) + "\n";
}

/// One line per share. Fails (false) if one is lower than the baseline's by more than the margin
/// and than chance explains: then even the upper quartile of the rounds is too low.
inline bool check_baseline(const std::string& report_path, const std::string& baseline_path,
                           std::string& text) {
  const Json baseline = read_json(baseline_path);
  const Json report = read_json(report_path);
  const auto measurements = read_measurements(report_path);
  bool is_good = true;
  try {
    if (baseline.at("format") != "kvick-baseline") throw BadInput("the baseline must be one");
    for (const auto& [ours, theirs] :
         {std::pair("instruction_set", report["machine"]["instruction set"]),
          {"model", report["model"]["name"]}}) {
      if (baseline.at(ours) != theirs) {
        throw BadInput(kvick::detail::concat("the report must be of the baseline's ", ours, " ",
                                             baseline.at(ours).dump(), ", got ",
                                             printable(theirs.dump())));
      }
    }
    const double margin = baseline.at("margin");
    Rows rows{{"share of limit", "baseline", "now", "verdict"}};
    for (const Json& entry : baseline.at("shares")) {
      const auto found =
          std::find_if(measurements.begin(), measurements.end(), [&](const StoredMeasurement& m) {
            return m.section == entry.at("section") && m.name == entry.at("name");
          });
      const std::string name =
          entry.at("section").get<std::string>() + ": " + entry.at("name").get<std::string>();
      const double wanted = entry.at("share");
      if (found == measurements.end() || found->shares.empty()) {
        rows.push_back({printable(name), with_decimals(wanted, 3), "-", "NOT MEASURED"});
        is_good = false;
        continue;
      }
      const kvick::Spread share = kvick::spread_of(found->shares);
      const bool is_low = share.upper_quartile < wanted * (1 - margin);
      is_good = is_good && !is_low;
      rows.push_back({printable(name), with_decimals(wanted, 3), with_decimals(share.median, 3),
                      is_low ? "LOWER" : "ok"});
    }
    text = table(rows);
  } catch (const Json::exception& error) {
    throw BadInput(kvick::detail::in_quotes(baseline_path) + " is no baseline: " + error.what());
  }
  return is_good;
}

}  // namespace programs::bench
