// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "examples/programs.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/sampling/evaluation.hpp"
#include "support/oracle.hpp"
#include "support/subprocess.hpp"
#include "support/tiny_model.hpp"
#include "support/trained_models.hpp"

namespace {

using nlohmann::json;
using support::expect_refusal;

constexpr char kProgram[] = "kvick-eval";

class Eval : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view content) {
    const auto path = directory_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string write_model(const std::string& name, const support::TinyModelOptions& options) {
    const auto path = directory_ / name;
    support::TinyModel(options).writer().write(path);
    return path;
  }

  static std::string text(std::vector<std::string> arguments) {
    const auto result = support::run_program(kProgram, std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");  // no progress bar where there is no terminal
    return result.out;
  }
  static json results(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    return json::parse(text(arguments));
  }

  support::TemporaryDirectory directory_;
};

constexpr char kIds[] = "1,5,17,99,3,42,42,8,60,2,11";  // 11 of a vocabulary of 100

TEST_F(Eval, GivesTheMeanOfTheOracle) {
  if (const auto reason = support::oracle_missing()) GTEST_SKIP() << *reason;
  const std::string model = write_model("a.gguf", {});
  const double expected =
      std::stod(support::run_tool("tools/reference.py", "nll '" + model + "' --tokens " + kIds));
  const json found = results({"-m", model, "--ids", write("ids", kIds), "--kv", "f32", "-t", "1"});
  EXPECT_NEAR(found["nll"]["mean"], expected, 2e-4);  // twice the error of logits, 1e-4
  EXPECT_NEAR(found["perplexity"]["mean"], std::exp(expected), 2e-4 * std::exp(expected));
  EXPECT_EQ(found["tokens"], 11);
  EXPECT_EQ(found["tokens_scored"], 10);
  EXPECT_EQ(found["context"], 4096);
  EXPECT_EQ(found["threads"], 1);
  EXPECT_GT(found["tokens_per_second"], 0.0);
  EXPECT_FALSE(found.contains("against"));
}

TEST_F(Eval, ScoresTextWithTheTokensOfTheVocabulary) {
  for (const std::string& model : support::trained_models()) {
    SCOPED_TRACE(model);
    const std::string text = "Once upon a time";
    // Begin of sequence, then the text.
    const std::string ids = support::run_program("kvick-tokenize", {"-m", model, "-p", text}).out;
    EXPECT_TRUE(ids.starts_with("1,")) << ids;
    const json by_ids = results({"-m", model, "--ids", write("ids", ids)});
    const json by_text = results({"-m", model, "--text", write("text", text)});
    EXPECT_EQ(by_text["tokens"], 1 + std::count(ids.begin(), ids.end(), ','));
    EXPECT_EQ(by_text["nll"], by_ids["nll"]);
    EXPECT_LT(by_text["nll"]["mean"], 1.5);  // every story begins so; a guess would be above 6
  }
}

TEST_F(Eval, ReadsIdsSeparatedByCommasOrWhiteSpace) {
  const std::string model = write_model("a.gguf", {});
  const json expected = results({"-m", model, "--ids", write("ids", "1,5,17,99")})["nll"];
  for (const std::string ids :
       {"1 5 17 99", "1\n5\n17\n99\n", "1, 5,\t17 ,99\r\n", " 1,5,\n17,99"}) {
    EXPECT_EQ(results({"-m", model, "--ids", write("ids", ids)})["nll"], expected) << ids;
  }
}

TEST_F(Eval, CutsWindowsOfTheContext) {
  const std::string model = write_model("a.gguf", {});
  const json found = results({"-m", model, "--ids", write("ids", kIds), "-c", "4"});
  EXPECT_EQ(found["context"], 4);
  EXPECT_EQ(found["tokens_scored"], 8);  // 3 + 3 + 2 of windows of 4, 4 and 3
  double sum = 0.0;
  for (const std::string window : {"1,5,17,99", "3,42,42,8", "60,2,11"}) {
    const json part = results({"-m", model, "--ids", write("ids", window)});
    sum += part["nll"]["mean"].get<double>() * part["tokens_scored"].get<double>();
  }
  EXPECT_NEAR(found["nll"]["mean"], sum / 8, 1e-14);
}

TEST_F(Eval, FindsNoDifferenceBetweenAModelAndItself) {
  const std::string model = write_model("a.gguf", {});
  const json found =
      results({"-m", model, "--against", model, "--ids", write("ids", kIds), "-t", "2"});
  const json& against = found["against"];
  EXPECT_EQ(against["nll"], found["nll"]);
  EXPECT_EQ(against["nll_difference"], json::parse(R"({"mean": 0.0, "standard_error": 0.0})"));
  EXPECT_EQ(against["kl_divergence"],
            json::parse(R"({"mean": 0.0, "standard_error": 0.0, "median": 0.0, "p99": 0.0,
                            "max": 0.0})"));
  EXPECT_EQ(against["same_top"], json::parse(R"({"mean": 1.0, "standard_error": 0.0})"));
}

TEST_F(Eval, ComparesWithTheReferenceAsTheLibraryDoes) {
  const std::string path = write_model("a.gguf", {.seed = 1});
  const std::string reference_path = write_model("b.gguf", {.seed = 2});
  const json found =
      results({"-m", path, "--against", reference_path, "--ids", write("ids", kIds)});
  kvick::Transformer model(path), reference(reference_path);
  const std::vector<kvick::TokenId> tokens = {1, 5, 17, 99, 3, 42, 42, 8, 60, 2, 11};
  const auto expected = kvick::summarize(kvick::compare_models(model, reference, tokens));
  const json& against = found["against"];
  EXPECT_EQ(found["nll"]["mean"], expected.nll.mean);
  EXPECT_EQ(against["nll"]["mean"], expected.reference_nll.mean);
  EXPECT_EQ(against["nll_difference"]["mean"], expected.nll_difference.mean);
  EXPECT_EQ(against["nll_difference"]["standard_error"], expected.nll_difference.standard_error);
  EXPECT_EQ(against["kl_divergence"]["mean"], expected.divergence.mean);
  EXPECT_EQ(against["kl_divergence"]["median"], expected.median_divergence);
  EXPECT_EQ(against["kl_divergence"]["p99"], expected.p99_divergence);
  EXPECT_EQ(against["kl_divergence"]["max"], expected.max_divergence);
  EXPECT_EQ(against["same_top"]["mean"], expected.same_top.mean);
  EXPECT_GT(expected.divergence.mean, 0.1);  // models of other weights do differ
}

TEST_F(Eval, PrintsALineForEachResult) {
  const std::string model = write_model("a.gguf", {});
  const std::string ids = write("ids", kIds);
  const std::string alone = text({"-m", model, "--ids", ids});
  for (const std::string part : {"scored           10 of 11 tokens", "\nnll ", "\nperplexity "}) {
    EXPECT_NE(alone.find(part), std::string::npos) << alone;
  }
  EXPECT_EQ(alone.find("kl divergence"), std::string::npos);
  const std::string both = text({"-m", model, "--ids", ids, "--against", model});
  for (const std::string part : {"\nkl divergence    0 +- 0 nats/token\n", "median 0, ",
                                 "\nsame top token   100 +- 0 %\n"}) {
    EXPECT_NE(both.find(part), std::string::npos) << both;
  }
}

TEST_F(Eval, UnknownErrorsAreNull) {
  const std::string model = write_model("a.gguf", {});
  const json found = results({"-m", model, "--ids", write("ids", "1,2")});
  EXPECT_EQ(found["tokens_scored"], 1);
  EXPECT_TRUE(found["nll"]["standard_error"].is_null()) << "one token has no spread";
}

TEST_F(Eval, RefusesBadInputInOneLine) {
  const std::string model = write_model("a.gguf", {.max_seq_len = 50});
  const std::string other = write_model("b.gguf", {.vocab_size = 90, .max_seq_len = 40});
  const std::string ids = write("ids", "1,2,3");
  expect_refusal(kProgram, {}, "--text");
  expect_refusal(kProgram, {"-m", model}, "--text");
  expect_refusal(kProgram, {"-m", model, "--ids", ids, "--text", ids}, "--text");
  expect_refusal(kProgram, {"-m", model, "--ids", ids, "--kv", "q8"}, "--kv");
  expect_refusal(kProgram, {"-m", model, "--ids", ids, "-c", "1"}, "--context");
  expect_refusal(kProgram, {"-m", model, "--ids", ids, "-c", "51"}, "at most the model's 50");
  expect_refusal(kProgram, {"-m", model, "--ids", ids, "-t", "0"}, "--threads");
  expect_refusal(kProgram, {"-m", model, "--ids", ids, "--against", other}, "got 100 and 90");
  expect_refusal(kProgram, {"-m", model, "--ids", ids, "--against", other, "-c", "45"},
                 "at most the model's 40");
  expect_refusal(kProgram, {"-m", (directory_ / "absent").string(), "--ids", ids}, "absent");
  expect_refusal(kProgram, {"-m", model, "--ids", (directory_ / "absent").string()}, "absent");
  expect_refusal(kProgram, {"-m", model, "--ids", directory_.path().string()}, "directory");
  expect_refusal(kProgram, {"-m", model, "--text", ids}, "tokenizer.ggml");  // no vocabulary
  for (const std::string bad : {"", " \n", "1", "1,,2", "1,2,100", "1,-2", "1,x", "1,2,", "1;2"}) {
    expect_refusal(kProgram, {"-m", model, "--ids", write("bad", bad)}, "token");
  }
  expect_refusal(kProgram, {"-m", model, "--ids", write("bad", std::string("1\0 2", 4))}, "\\x00");
}

}  // namespace
