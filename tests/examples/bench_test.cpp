// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/programs.hpp"
#include "support/gguf_builder.hpp"
#include "support/subprocess.hpp"
#include "support/temporary_directory.hpp"

namespace {

using nlohmann::json;
using support::expect_refusal;
using support::run_program;

constexpr char kProgram[] = "kvick-bench";

/// Small enough to measure in a blink.
std::vector<std::string> tiny_model(const support::RandomModel& model) {
  return {"-m", model.path(), "--rounds", "1", "-t", "1"};
}

const support::RandomModel& model() {
  static const support::RandomModel model(
      {"--layers", "1", "--embedding", "64", "--heads", "2", "--kv-heads", "1", "--ffn", "64"});
  return model;
}

std::vector<std::string> arguments(const std::string& command, std::vector<std::string> more) {
  std::vector<std::string> all{command};
  const auto common = tiny_model(model());
  all.insert(all.end(), common.begin(), common.end());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

json run_report(const std::string& command, std::vector<std::string> more) {
  const support::TemporaryDirectory directory;
  const std::string path = directory / "report.json";
  more.insert(more.end(), {"--json", path});
  const auto result = run_program(kProgram, arguments(command, std::move(more)));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  std::ifstream file(path);
  return json::parse(file);
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(BenchProgram, MeasuresEveryPartOfServing) {
  for (const char* command : {"serve", "scheduler"}) {
    SCOPED_TRACE(command);
    const json report =
        run_report(command, {"--requests", "6", "--slots", "3", "--prompt-low", "4",
                             "--prompt-high", "20", "--output-median", "4", "--output-high", "8"});
    const json& section = report["sections"][0];
    EXPECT_EQ(section["id"], command);
    ASSERT_EQ(section["measurements"].size(), 3u);
    const std::string digest = section["measurements"][0]["digest"];
    EXPECT_EQ(digest.size(), 16u);
    for (const json& m : section["measurements"]) {
      EXPECT_GT(m["median"], 0);
      EXPECT_EQ(m["digest"], digest);  // however requests are batched
      EXPECT_TRUE(m["checked_against"].get<std::string>().starts_with("alone")) << m;
    }
  }
}

TEST(BenchProgram, ComparesDraftsWithPlainDecoding) {
  const support::TemporaryDirectory directory;
  const std::string path = directory / "report.json";
  const auto result =
      run_program(kProgram, {"speculative", "--rounds", "1", "-t", "1", "--speculative-tokens",
                             "24", "-k", "3", "--prompt", "Once upon a time", "--json", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(path);
  const json section = json::parse(file)["sections"][0];
  const std::string digest = section["measurements"][0]["digest"];
  std::vector<std::string> names;
  for (const json& m : section["measurements"]) {
    EXPECT_EQ(m["digest"], digest) << m;  // with drafts and without
    EXPECT_GT(m["median"], 0);
    if (m["unit"] == "tokens/s") names.push_back(m["name"]);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"plain", "draft model, k = 3", "draft model, at most 3",
                                      "lookup, k = 3", "lookup, at most 3"}));
  const json& rows = section["tables"][0]["rows"];
  EXPECT_EQ(rows[1][3], "1.00");  // tokens per round, plain
  EXPECT_GT(std::stod(rows[2][3].get<std::string>()), 1);
}

TEST(BenchProgram, OneSeedMakesTheSameRequests) {
  const auto digest = [](const std::string& seed) {
    return run_report("serve",
                      {"--requests", "4", "--rates", "1000", "--prompt-high", "20", "--output-high",
                       "8", "--seed", seed})["sections"][0]["measurements"][0]["digest"]
        .get<std::string>();
  };
  EXPECT_EQ(digest("1"), digest("1"));
  EXPECT_NE(digest("1"), digest("2"));
}

TEST(BenchProgram, ServesATraceAndAClosedLoop) {
  const support::TemporaryDirectory directory;
  const std::string trace = directory / "trace.csv";
  write(trace, "arrival_seconds,prompt_tokens,output_tokens\n0,5,3\n0.01,7,2\n");
  const json report = run_report("serve", {"--trace", trace});
  const json& load = report["sections"][0]["tables"][0]["rows"][1];
  EXPECT_EQ(load[0], "trace");
  EXPECT_EQ(load[1], "2");
  const json loop = run_report("serve", {"--concurrency", "2", "--requests", "5", "--prompt-high",
                                         "20", "--output-high", "4"});
  EXPECT_EQ(loop["sections"][0]["tables"][0]["rows"][1][9], "2");  // peak concurrency
}

/// A report with chosen samples.
std::string report_text(const std::vector<double>& samples, const std::string& digest,
                        const std::string& isa = "avx2") {
  const std::vector<double> limits(samples.size(), 100.0);
  return json{{"format", "kvick-report"},
              {"version", 1},
              {"machine", {{"instruction set", isa}, {"threads", "2"}}},
              {"model", {{"name", "m"}}},
              {"sections",
               {{{"id", "model"},
                 {"measurements",
                  {{{"name", "prefill"},
                    {"unit", "tokens/s"},
                    {"more_is_better", true},
                    {"samples", samples},
                    {"limits", limits},
                    {"digest", digest}}}}}}}}
      .dump();
}

TEST(BenchProgram, ComparesReportsAndMarksNoise) {
  const support::TemporaryDirectory directory;
  const std::string a = directory / "a.json", b = directory / "b.json";
  const auto compare = [&](const std::string& after) {
    write(a, report_text({50, 51, 52, 53, 54}, "x"));
    write(b, after);
    const auto result = run_program(kProgram, {"compare", a, b});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  };
  contains(compare(report_text({100, 102, 104, 106, 108}, "x")), "better");
  contains(compare(report_text({25, 26, 27, 28, 29}, "x")), "WORSE");
  contains(compare(report_text({50.5, 51, 52, 53.5, 54}, "x")), "noise");
  contains(compare(report_text({500}, "x")), "too few samples");
  contains(compare(report_text({50, 51, 52, 53, 54}, "y")), "OTHER OUTPUT");
  contains(compare(report_text({50, 51, 52, 53, 54}, "x", "portable")), "\"avx2\" -> \"portable\"");
}

TEST(BenchProgram, ChecksSharesAgainstABaseline) {
  const support::TemporaryDirectory directory;
  const std::string report = directory / "report.json", baseline = directory / "baseline.json";
  write(report, report_text({50, 51, 52, 53, 54}, "x"));
  const auto made = run_program(kProgram, {"baseline", report, "--margin", "0.1"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(json::parse(made.out)["shares"][0]["share"], 0.52);
  write(baseline, made.out);
  const auto check = [&](const std::string& text) {
    write(report, text);
    return run_program(kProgram, {"check", report, "--baseline", baseline});
  };
  EXPECT_EQ(check(report_text({50, 51, 52, 53, 54}, "x")).exit_code, 0);
  EXPECT_EQ(check(report_text({45, 46, 47, 48, 49}, "x")).exit_code, 0);  // within the margin
  const auto low = check(report_text({40, 41, 42, 43, 44}, "x"));
  EXPECT_EQ(low.exit_code, 2);
  EXPECT_NE(low.out.find("LOWER"), std::string::npos) << low.out;
  const auto other = check(report_text({50, 51, 52, 53, 54}, "x", "portable"));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("instruction_set"), std::string::npos) << other.err;
}

TEST(BenchProgram, RefusesBadInputInOneLine) {
  const support::TemporaryDirectory directory;
  const std::string bad = directory / "bad.json";
  write(bad, "{\"format\": 3");
  expect_refusal(kProgram, {}, "subcommand");
  expect_refusal(kProgram, {"compare", bad, bad}, "no JSON");
  write(bad, "{\"format\": \"kvick-report\", \"version\": 1}");
  expect_refusal(kProgram, {"compare", bad, bad}, "no report");
  expect_refusal(kProgram, {"check", bad, "--baseline", bad}, "no report");
  expect_refusal(kProgram, {"model", "--synthetic", "gpt"}, "tinyllama-1.1b");
  expect_refusal(kProgram, {"model", "--synthetic", "tinyllama-1.1b:q9"}, "q9");
  expect_refusal(kProgram, {"model", "-m", "missing.gguf"}, "missing.gguf");
  expect_refusal(kProgram, {"model", "-m", "a", "--synthetic", "tinyllama-1.1b"}, "not both");
  expect_refusal(kProgram, {"model", "--isa", "mmx"}, "mmx");
  expect_refusal(kProgram, {"serve", "--prompt-low", "9", "--prompt-high", "8"}, "--prompt-low");
  expect_refusal(kProgram, {"batch", "--sizes", "0"}, "--sizes");
  expect_refusal(kProgram, {"speculative", "-k", "0"}, "--draft-tokens");
  expect_refusal(kProgram, {"speculative", "--speculative-tokens", "5000"}, "at most the model's");
}

}  // namespace
