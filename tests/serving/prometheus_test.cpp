// SPDX-License-Identifier: MIT
// Against the rules of the text format, and hand-counted ranges.
#include "kvick/serving/prometheus.hpp"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

using namespace kvick;

EngineMetrics some_metrics() {
  EngineMetrics metrics;
  metrics.num_running = 3;
  metrics.cache_usage = 0.25;
  metrics.num_output_tokens = 1234567890123;
  metrics.num_finished_by[static_cast<std::size_t>(FinishReason::kLength)] = 7;
  for (const double seconds : {0.0005, 0.02, 0.02, 1000.0}) metrics.ttft_seconds.add(seconds);
  return metrics;
}

/// Every sample by its name and labels.
std::map<std::string, double> samples(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    const auto space = line.rfind(' ');
    EXPECT_TRUE(values.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << line;
  }
  return values;
}

TEST(ToPrometheus, WritesGaugesAndCounters) {
  const auto values = samples(to_prometheus(some_metrics()));
  EXPECT_EQ(values.at("kvick_requests_running"), 3);
  EXPECT_EQ(values.at("kvick_cache_usage_ratio"), 0.25);
  EXPECT_EQ(values.at("kvick_generated_tokens_total"), 1234567890123);
  EXPECT_EQ(values.at("kvick_requests_finished_total{reason=\"length\"}"), 7);
  EXPECT_EQ(values.at("kvick_requests_finished_total{reason=\"stop\"}"), 0);
}

TEST(ToPrometheus, AddsUpTheRangesOfAHistogram) {
  const auto values = samples(to_prometheus(some_metrics()));
  const std::string name = "kvick_time_to_first_token_seconds";
  EXPECT_EQ(values.at(name + "_bucket{le=\"0.001\"}"), 1);
  EXPECT_EQ(values.at(name + "_bucket{le=\"0.01\"}"), 1);
  EXPECT_EQ(values.at(name + "_bucket{le=\"0.025\"}"), 3);
  EXPECT_EQ(values.at(name + "_bucket{le=\"100\"}"), 3);
  EXPECT_EQ(values.at(name + "_bucket{le=\"+Inf\"}"), 4);
  EXPECT_EQ(values.at(name + "_count"), 4);
  EXPECT_DOUBLE_EQ(values.at(name + "_sum"), 1000.0405);
}

TEST(ToPrometheus, KeepsToTheTextFormat) {
  const std::string text = to_prometheus(some_metrics());
  ASSERT_TRUE(text.ends_with('\n'));
  const std::regex help("# HELP [a-z_0-9]+ .+"),
      type("# TYPE ([a-z_0-9]+) (counter|gauge|histogram)"),
      sample("([a-z_0-9]+)(\\{[a-z]+=\"[^\"\\\\]+\"\\})? [-+.e0-9]+");
  std::istringstream lines(text);
  std::set<std::string> families;
  std::string family, kind;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, help)) continue;
    if (std::regex_match(line, match, type)) {
      family = match[1];
      kind = match[2];
      EXPECT_TRUE(families.insert(family).second) << family << " comes twice";
      EXPECT_EQ(family.ends_with("_total"), kind == "counter") << family;
      continue;
    }
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    const std::string name = match[1];
    if (kind == "histogram") {
      EXPECT_TRUE(name == family + "_bucket" || name == family + "_sum" ||
                  name == family + "_count")
          << line;
    } else {
      EXPECT_EQ(name, family) << line;
    }
  }
}

}  // namespace
