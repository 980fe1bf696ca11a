// SPDX-License-Identifier: MIT
#include "kvick/bench/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "kvick/bench/html_report.hpp"
#include "support/temporary_directory.hpp"

namespace kvick {
namespace {

Report example() {
  ReportSection section{"model", "Model <&>"};
  section.measurements = {{.name = "prefill",
                           .unit = "tokens/s",
                           .samples = {90, 100, 110, 120, 130},
                           .limits = {200, 200, 200, 200, 200},
                           .limit_name = "int8 multiplies",
                           .digest = "0123456789abcdef",
                           .check = "portable"},
                          {.name = "decode, \"quoted\"", .unit = "tokens/s", .samples = {40}},
                          {.name = "nothing", .unit = "s", .more_is_better = false}};
  std::vector<double> samples;
  for (int i = 0; i < 100; ++i) samples.push_back(i);
  section.distributions = {{"ITL", "ms", samples}, {"TTFT", "ms", {5, 6}}, {"E2EL", "ms", {}}};
  section.curves = {{"Batches",
                     "batch size",
                     "tokens/s",
                     {{"q8_0", {{1, 10, ""}, {2, 19, "two"}, {4, 35, ""}}}, {"f32", {{1, 3, ""}}}}},
                    {"Empty", "x", "y", {}}};
  section.rooflines = {{"Roofline", 1500, 50, {{"decode", 2, 90}, {"prefill", 1000, 800}}}, {}};
  section.tables = {{"Extra", {{"a", "b"}, {"1", "<script>"}}}};
  return {"kvick & report",
          {{"machine", {{"cpu", "Test <CPU>"}}}, {"model", {{"name", "m"}}}},
          {section}};
}

TEST(JsonWriter, WritesWhatAParserReads) {
  JsonWriter json;
  const double infinity = std::numeric_limits<double>::infinity();
  json.begin_object().key("text").value("a\"b\\c\n\x01\u00e9").key("pi").value(3.141592653589793);
  json.key("tiny").value(5e-324).key("none").value(infinity).key("nan").value(std::nan(""));
  json.key("yes").value(true).key("count").value(std::size_t{18446744073709551615u});
  json.key("absent").value(std::optional<double>()).key("there").value(std::optional<double>(2));
  json.key("list").begin_array().value(1).begin_array().end_array().begin_object().end_object();
  json.end_array().key("bad").value("a\xff\xc0\x80\xed\xa0\x80z").end_object();
  const auto parsed = nlohmann::json::parse(json.text());
  EXPECT_EQ(parsed["text"], "a\"b\\c\n\x01\u00e9");
  EXPECT_EQ(parsed["pi"], 3.141592653589793);
  EXPECT_EQ(parsed["tiny"], 5e-324);
  EXPECT_TRUE(parsed["none"].is_null());
  EXPECT_TRUE(parsed["nan"].is_null());
  EXPECT_EQ(parsed["yes"], true);
  EXPECT_EQ(parsed["count"], 18446744073709551615u);
  EXPECT_TRUE(parsed["absent"].is_null());
  EXPECT_EQ(parsed["there"], 2);
  EXPECT_EQ(parsed["list"].dump(), "[1,[],{}]");
  const std::string mark = "\uFFFD";
  EXPECT_EQ(parsed["bad"], "a" + mark + mark + mark + mark + mark + mark + "z");
}

TEST(Report, AsJsonHasEveryFigureAndNoOther) {
  const auto json = nlohmann::json::parse(example().to_json());
  EXPECT_EQ(json["format"], "kvick-report");
  EXPECT_EQ(json["machine"]["cpu"], "Test <CPU>");
  const auto& section = json["sections"][0];
  const auto& prefill = section["measurements"][0];
  EXPECT_EQ(prefill["median"], 110);
  EXPECT_EQ(prefill["lower_quartile"], 100);
  EXPECT_EQ(prefill["samples"].size(), 5u);
  EXPECT_EQ(prefill["share_of_limit"]["median"], 0.55);
  EXPECT_EQ(prefill["digest"], "0123456789abcdef");
  EXPECT_FALSE(section["measurements"][1].contains("share_of_limit"));
  EXPECT_FALSE(section["measurements"][2].contains("median"));
  EXPECT_DOUBLE_EQ(section["distributions"][0]["p99"], 98.01);
  EXPECT_TRUE(section["distributions"][1]["p90"].is_null());  // two samples carry no p90
  EXPECT_TRUE(section["distributions"][2]["mean"].is_null());
  EXPECT_EQ(section["curves"][0]["curves"][0]["points"][1], (nlohmann::json{2, 19, "two"}));
  EXPECT_EQ(section["rooflines"][0]["points"][1]["gops"], 800);
}

TEST(Report, AsCsvHasOneLineEach) {
  const std::string csv = example().to_csv();
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
  EXPECT_NE(csv.find("model,\"decode, \"\"quoted\"\"\",tokens/s,1,40,,40,40,,,,40,,,\n"),
            std::string::npos)
      << csv;
  EXPECT_NE(csv.find("model,nothing,s,0,,,,,,,,,,,\n"), std::string::npos) << csv;
  EXPECT_NE(csv.find("int8 multiplies,0.55,0123456789abcdef\n"), std::string::npos) << csv;
}

TEST(Report, AsTextShowsDashesForWhatWasNotMeasured) {
  const std::string text = example().to_text();
  EXPECT_NE(text.find("55 % of int8 multiplies"), std::string::npos) << text;
  EXPECT_NE(text.find("0123456789abcdef = portable"), std::string::npos) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("TTFT +5.50 +0.707 +5.50 +- +- +- +ms +2")))
      << text;
}

/// Elements closed in the order they were opened; void elements need no end.
void expect_well_formed(const std::string& html) {
  const std::regex tag("<(/?)([a-z0-9]+)([^>]*)>");
  std::vector<std::string> open;
  for (std::sregex_iterator at(html.begin(), html.end(), tag), end; at != end; ++at) {
    const std::string name = (*at)[2];
    if (name == "meta" || (*at)[3].str().ends_with('/')) continue;
    if ((*at)[1].length() == 0) {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << "</" << name << ">";
      ASSERT_EQ(open.back(), name) << "at " << at->position();
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(HtmlReport, IsOneFileThatLoadsNothing) {
  const std::string html = html_report(example());
  expect_well_formed(html);
  for (const char* load : {"http:", "https:", "src=", "href=", "@import", "url(", "<link"}) {
    EXPECT_EQ(html.find(load), std::string::npos) << load;
  }
  EXPECT_NE(html.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_NE(html.find("name=\"viewport\""), std::string::npos);
  EXPECT_EQ(html.find("<script>"), std::string::npos);  // what users name is no markup
  EXPECT_NE(html.find("Model &lt;&amp;&gt;"), std::string::npos);
  EXPECT_EQ(html.find("nan"), std::string::npos);  // no coordinate is undefined
}

TEST(HtmlReport, HoldsTheReportAsJson) {
  const std::string html = html_report(example());
  const std::string opening = "id=\"kvick-report\">";
  const std::size_t begin = html.find(opening) + opening.size();
  const std::string data = html.substr(begin, html.find("</script>", begin) - begin);
  EXPECT_EQ(nlohmann::json::parse(data), nlohmann::json::parse(example().to_json()));
}

TEST(HtmlReport, DrawsEveryFigureWithinItsFrame) {
  const std::string html = html_report(example());
  // Bars with limits, without, and of another unit; two curves, two rooflines, three distributions.
  std::size_t num_figures = 0;
  const std::regex figure("<svg viewBox=\"0 0 360 ([0-9.]+)\".*?</svg>");
  const std::regex coordinate(" (x|y|cx|cy|x1|x2|y1|y2)=\"(-?[0-9.]+)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), figure), end; at != end; ++at) {
    ++num_figures;
    const std::string svg = at->str();
    const double height = std::stod((*at)[1]);
    for (std::sregex_iterator c(svg.begin(), svg.end(), coordinate); c != end; ++c) {
      const double value = std::stod((*c)[2]);
      const bool is_x = (*c)[1].str().find('x') != std::string::npos;
      EXPECT_GE(value, 0) << c->str();
      EXPECT_LE(value, is_x ? 360 : height) << c->str();
    }
  }
  EXPECT_EQ(num_figures, 10u);
}

TEST(HtmlReport, IsWrittenAsAWhole) {
  const support::TemporaryDirectory directory;
  const std::string path = directory / "report.html";
  write_text_file(path, html_report(example()));
  std::ifstream file(path);
  const std::string content((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
  EXPECT_EQ(content, html_report(example()));
}

TEST(BarChart, ShowsMedianLimitAndShare) {
  const Report report = example();
  const auto& measurements = report.sections[0].measurements;
  const std::string svg = bar_chart(std::span(measurements).first(1));
  EXPECT_NE(svg.find("110 tokens/s, 55 %"), std::string::npos) << svg;
  // The bar's full length is the limit, 200, so 110 have 55 % of the 356 units.
  EXPECT_NE(svg.find("width=\"195.8\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("class=\"limit\""), std::string::npos) << svg;
}

TEST(AxisTicks, AreRoundNumbersWithinTheRange) {
  EXPECT_EQ(axis_ticks(0, 100, 5), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(axis_ticks(3, 9, 4), (std::vector<double>{4, 6, 8}));
  EXPECT_EQ(axis_ticks(5, 5, 4), (std::vector<double>{5}));
  EXPECT_EQ(axis_ticks(0, 0.3, 3).size(), 4u);
}

TEST(ShortNumber, HasThreeDigitsThatCount) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(1234.5), "1234");
  EXPECT_EQ(short_number(123.4), "123");
  EXPECT_EQ(short_number(12.34), "12.3");
  EXPECT_EQ(short_number(1.2345), "1.23");
  EXPECT_EQ(short_number(0.012345), "0.0123");
  EXPECT_EQ(short_number(-7e-9), "-7.00e-09");
  EXPECT_EQ(short_number(std::nan("")), "unknown");
}

}  // namespace
}  // namespace kvick
