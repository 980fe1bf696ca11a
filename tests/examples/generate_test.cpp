// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "examples/programs.hpp"
#include "kvick/model/transformer.hpp"
#include "support/shared_data.hpp"
#include "support/subprocess.hpp"

#if defined(__linux__)
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#endif

namespace {

using nlohmann::json;
using support::expect_refusal;
using support::ProgramResult;
using support::RandomModel;
using support::run_program;

constexpr char kProgram[] = "kvick-generate";

using Arguments = std::vector<std::string>;

Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

ProgramResult generate(const Arguments& arguments, std::string_view input = {}) {
  ProgramResult result = run_program(kProgram, arguments, {.input = input});
  EXPECT_EQ(result.exit_code, 0) << result.err << "signal " << result.signal;
  return result;
}

/// What is printed for a prompt, without the line break at the end.
std::string generate_text(const Arguments& arguments, std::string_view input = {}) {
  const std::string out = generate(arguments, input).out;
  EXPECT_TRUE(out.ends_with('\n')) << out;
  return out.substr(0, out.size() - 1);
}

/// The last line of a run with --json, and what stands before it.
struct Summarized {
  std::string text;
  json summary;
};
Summarized generate_summarized(const Arguments& arguments) {
  const std::string out = generate_text(arguments + Arguments{"--json"});
  const std::size_t last = out.rfind('\n');
  EXPECT_NE(last, std::string::npos) << out;
  return {out.substr(0, last), json::parse(out.substr(last + 1))};
}

std::string join(const std::vector<int>& ids) {
  std::string text;
  for (const int id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

std::vector<int> split(const std::string& ids) { return json::parse("[" + ids + "]"); }

/// `count` ids of text tokens of a random model.
std::vector<int> some_ids(int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(259 + i * 31 % 295);
  return ids;
}

// ---- Against another implementation ----

class GenerateGolden : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(GenerateGolden, GivesTheTokensAndLogitsOfTheFloat64Reference) {
  constexpr char kModel[] = "models/stories260K.gguf";
  constexpr char kGolden[] = "golden/stories260K.json";
  const auto model = support::shared_path(kModel);
  const auto golden = support::shared_path(kGolden);
  if (!model) GTEST_SKIP() << support::missing(kModel);
  if (!golden) GTEST_SKIP() << support::missing(kGolden);
  const auto& [kv, threads] = GetParam();
  const support::TemporaryDirectory directory;
  const std::string logits_path = directory / "logits.json";

  const json cases = json::parse(std::ifstream(*golden))["cases"];
  ASSERT_EQ(cases.size(), 8u);
  for (const json& expected : cases) {
    const std::string prompt = expected["prompt"];
    SCOPED_TRACE(prompt);
    EXPECT_EQ(run_program("kvick-tokenize", {"-m", *model, "-p", prompt}).out,
              join(expected["prompt_ids"]) + "\n");
    EXPECT_EQ(generate_text({"-m", *model, "-p", prompt, "-n", "48", "--temp", "0", "--ids",
                             "--ignore-eos", "--kv", kv, "-t", std::to_string(threads), "--logits",
                             logits_path}),
              join(expected["greedy_48"]));

    const std::vector<double> logits = json::parse(std::ifstream(logits_path));
    const std::vector<double> exact = expected["last_logits_f64"];
    ASSERT_EQ(logits.size(), exact.size());
    // f32: rounding of five layers, seen 1e-5. f16: keys and values are off by up to 2^-11 of their
    // size, which moves logits of magnitude 10 by 1e-2.
    const double tolerance = kv == "f32" ? 1e-4 : 5e-2;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(logits[i], exact[i], tolerance) << "token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kv, GenerateGolden,
                         ::testing::Combine(::testing::Values("f32", "f16"),
                                            ::testing::Values(1, 2)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::to_string(std::get<1>(test.param)) + "_threads";
                         });

// ---- Prompt ----

TEST(Generate, LongPromptsAreEvaluatedInChunksWithTheSameBits) {
  const RandomModel file(
      {"--context", "2048", "--layers", "2", "--embedding", "64", "--ffn", "96"});
  const std::string logits_path = file.directory() / "logits.json";
  kvick::Transformer model(file.path(), {.threads = 1});
  for (const int num_tokens : {512, 513, 1300}) {  // one chunk of 512, two, three
    SCOPED_TRACE(num_tokens);
    const std::vector<kvick::TokenId> prompt = some_ids(num_tokens);
    EXPECT_EQ(generate_text({"-m", file.path(), "--prompt-ids", join(prompt), "-n", "0", "--logits",
                             logits_path}),
              "");
    auto cache = model.make_cache();
    kvick::Matrix expected(1, model.vocab_size());
    ASSERT_TRUE(cache.reserve(0, num_tokens));
    model.forward(kvick::Batch({.tokens = prompt, .num_logits = 1}), cache, expected);
    const std::vector<double> logits = json::parse(std::ifstream(logits_path));
    ASSERT_EQ(logits.size(), static_cast<std::size_t>(expected.size()));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      // Written with 9 digits, so rounding to float gives the bits back.
      ASSERT_EQ(static_cast<float>(logits[i]), expected(0, static_cast<kvick::Index>(i))) << i;
    }
  }
}

TEST(Generate, PromptComesFromOptionOrStandardInputOrIds) {
  const RandomModel model;
  const Arguments options = {"-m", model.path(), "-n", "8", "--temp", "0", "--ids"};
  const std::string ids = generate_text(options + Arguments{"-p", "bace duli"});
  EXPECT_EQ(split(ids).size(), 8u);
  EXPECT_EQ(generate_text(options, "bace duli\n"), ids);
  const std::string prompt_ids =
      generate_text({"-m", model.path(), "-n", "0", "--ids"}, "bace duli");
  EXPECT_EQ(prompt_ids, "");
  std::string tokens = run_program("kvick-tokenize", {"-m", model.path(), "-p", "bace duli"}).out;
  tokens.pop_back();
  EXPECT_EQ(generate_text(options + Arguments{"--prompt-ids", tokens}), ids);
}

TEST(Generate, PromptIdsAreTakenAsTheyAre) {
  const RandomModel model;
  const auto run = generate_summarized({"-m", model.path(), "--prompt-ids", "300, 301", "-n", "1"});
  EXPECT_EQ(run.summary["prompt_tokens"], 2);
}

TEST(Generate, TextContinuesThePromptWithItsSpaces) {
  const RandomModel model;
  const auto decode = [&](const std::string& ids) {
    const std::string out =
        run_program("kvick-tokenize", {"-m", model.path(), "--decode", ids}).out;
    return out.substr(0, out.size() - 1);
  };
  const Arguments options = {"-m", model.path(), "-n", "4", "--temp", "0"};
  bool has_space = false;
  for (int prompt = 259; prompt < 279; ++prompt) {
    const std::string id = std::to_string(prompt);
    const std::string ids = generate_text(options + Arguments{"--ids", "--prompt-ids", id});
    const std::string text = generate_text(options + Arguments{"--prompt-ids", id});
    EXPECT_EQ(decode(id) + text, decode(id + "," + ids));
    has_space = has_space || text.starts_with(' ');
  }
  EXPECT_TRUE(has_space) << "no continuation tells whether the first space is kept";
}

TEST(Generate, TextAfterAControlTokenHasNoSpaceBeforeIt) {
  const RandomModel model;
  for (int seed = 0; seed < 50; ++seed) {
    const Arguments options = {"-m", model.path(), "--prompt-ids", "1",
                               "-n", "4",          "--seed",       std::to_string(seed)};
    // The syllables that begin a word are tokens 359 to 458.
    const int first = split(generate_text(options + Arguments{"--ids"})).at(0);
    if (first < 359 || first > 458) continue;
    EXPECT_FALSE(generate_text(options).starts_with(' '));
    return;
  }
  FAIL() << "no seed gave a token that begins with a space";
}

// ---- End ----

TEST(Generate, EndsWhereTheContextEnds) {
  const RandomModel model;
  const Arguments options = {"-m", model.path(), "--temp",       "0",
                             "-c", "16",         "--prompt-ids", join(some_ids(10))};
  const auto run = generate_summarized(options + Arguments{"-n", "100", "--ids"});
  EXPECT_EQ(split(run.text).size(), 6u);
  EXPECT_EQ(run.summary["generated_tokens"], 6);
  EXPECT_EQ(run.summary["finish_reason"], "length");
}

TEST(Generate, APromptMustLeaveRoomForOneToken) {
  const RandomModel model;
  const Arguments options = {"-m", model.path(), "-c", "16", "--prompt-ids"};
  generate(options + Arguments{join(some_ids(15)), "-n", "1"});
  expect_refusal(kProgram, options + Arguments{join(some_ids(16)), "-n", "1"}, "16");
  generate(options + Arguments{join(some_ids(16)), "-n", "0"});
  expect_refusal(kProgram, options + Arguments{join(some_ids(17)), "-n", "0"}, "17");
  // The model's context, 512, holds without -c.
  expect_refusal(kProgram, {"-m", model.path(), "--prompt-ids", join(some_ids(512))}, "512");
}

TEST(Generate, EndOfTextTokenEndsUnlessIgnored) {
  const RandomModel model;
  for (int seed = 0; seed < 50; ++seed) {  // token 2 is 1 of 554 that are about equally likely
    const Arguments options = {"-m",
                               model.path(),
                               "-p",
                               "a",
                               "-n",
                               "200",
                               "--temp",
                               "50",
                               "--top-k",
                               "0",
                               "--top-p",
                               "1",
                               "--min-p",
                               "0",
                               "--ids",
                               "--seed",
                               std::to_string(seed)};
    const auto all = split(generate_text(options + Arguments{"--ignore-eos"}));
    ASSERT_EQ(all.size(), 200u);
    const auto end = std::find(all.begin(), all.end(), 2);
    if (end == all.end() || end == all.begin()) continue;
    const auto run = generate_summarized(options);
    EXPECT_EQ(split(run.text), std::vector<int>(all.begin(), end));
    EXPECT_EQ(run.summary["finish_reason"], "stop");
    return;
  }
  FAIL() << "no seed gave an end of text token";
}

TEST(Generate, StopsBeforeAStopString) {
  const RandomModel model;
  const Arguments options = {"-m", model.path(), "-p", "bace", "-n", "40", "--temp", "0"};
  const std::string text = generate_text(options);
  ASSERT_GT(text.size(), 40u);
  const std::string stop = text.substr(20, 5);  // whatever tokens it spans
  const auto run = generate_summarized(options + Arguments{"--stop", "not there", "--stop", stop});
  EXPECT_EQ(run.text, text.substr(0, text.find(stop)));
  EXPECT_EQ(run.summary["finish_reason"], "stop");
  EXPECT_LT(run.summary["generated_tokens"], 40);
  // Text that only may become a stop string is printed in the end.
  EXPECT_EQ(generate_text(options + Arguments{"--stop", text.substr(text.size() - 3) + "?"}), text);
}

TEST(Generate, StopStringsAreTakenLiterally) {
  const RandomModel model;
  const Arguments options = {"-m", model.path(), "-p", "bace", "-n", "20", "--temp", "0"};
  const std::string text = generate_text(options);
  const std::string part = text.substr(5, 3);
  ASSERT_EQ(text.find('['), std::string::npos);
  EXPECT_EQ(generate_text(options + Arguments{"--stop", "[" + part + "]"}), text);
  EXPECT_EQ(generate_text(options + Arguments{"--stop", "[" + part + ",x]"}), text);
  EXPECT_EQ(generate_text(options + Arguments{"--stop", "--ids"}), text);
}

// ---- Sampling and summary ----

TEST(Generate, TheSeedDecides) {
  const RandomModel model;
  const Arguments options = {"-m", model.path(), "-p", "bace", "-n", "16", "--ids"};
  const auto random = generate_summarized(options);
  const std::string seed = random.summary["seed"].dump();
  EXPECT_EQ(generate_text(options + Arguments{"--seed", seed}), random.text);
  EXPECT_EQ(generate_text(options + Arguments{"--seed", seed, "-t", "2"}), random.text);
  EXPECT_NE(generate_text(options + Arguments{"--seed", "1"}),
            generate_text(options + Arguments{"--seed", "2"}));
  const std::string largest = "18446744073709551615";
  EXPECT_EQ(generate_summarized(options + Arguments{"--seed", largest}).summary["seed"].dump(),
            largest);
}

TEST(Generate, SummaryHasItsFields) {
  const RandomModel model;
  const auto run =
      generate_summarized({"-m", model.path(), "--prompt-ids", join(some_ids(20)), "-n", "5", "-c",
                           "64", "--kv", "f32", "-t", "2", "--temp", "0", "--ids", "--seed", "9"});
  const json& summary = run.summary;
  EXPECT_EQ(summary["model"], model.path());
  EXPECT_EQ(summary["prompt_tokens"], 20);
  EXPECT_EQ(summary["generated_tokens"], 5);
  EXPECT_EQ(summary["finish_reason"], "length");
  EXPECT_GT(summary["load_seconds"], 0.0);
  EXPECT_GT(summary["prefill_tokens_per_second"], 0.0);
  EXPECT_GT(summary["decode_tokens_per_second"], 0.0);
  EXPECT_GT(summary["peak_memory_bytes"], 1 << 20);
  // Keys and values, 4 layers, 2 heads of 64, 64 tokens, 4 bytes.
  EXPECT_EQ(summary["cache_bytes"], 2 * 4 * 2 * 64 * 64 * 4);
  EXPECT_EQ(summary["kv"], "f32");
  EXPECT_EQ(summary["context"], 64);
  EXPECT_EQ(summary["threads"], 2);
  EXPECT_EQ(summary["seed"], 9);
  EXPECT_EQ(summary["isa"], name(kvick::default_isa()));
  EXPECT_EQ(summary.size(), 14u);
}

TEST(Generate, NoTokensGiveAnEmptyLine) {
  const RandomModel model;
  const auto run = generate_summarized({"-m", model.path(), "-p", "bace", "-n", "0"});
  EXPECT_EQ(run.text, "");
  EXPECT_EQ(run.summary["generated_tokens"], 0);
  EXPECT_EQ(run.summary["decode_tokens_per_second"], 0.0);
}

// ---- Errors ----

TEST(Generate, HelpIsNoError) {
  const auto result = generate({"-h"});
  for (const std::string text : {"--prompt-ids", "=0.8", "=40", "=0.95", "=0.05", "=128", "4096"}) {
    EXPECT_NE(result.out.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(result.err, "");
}

TEST(Generate, RefusesBadOptionsInOneLine) {
  const RandomModel model;
  const Arguments good = {"-m", model.path(), "-p", "bace"};
  expect_refusal(kProgram, {}, "prompt");
  expect_refusal(kProgram, good + Arguments{"--no-such\noption"}, "--no-such");
  expect_refusal(kProgram, good + Arguments{"surplus"}, "surplus");
  expect_refusal(kProgram, good + Arguments{"--prompt-ids", "1"}, "--prompt");
  const std::vector<std::pair<std::string, std::string>> bad_values = {
      {"-n", "-1"},
      {"-n", "x"},
      {"-n", "99999999999"},
      {"-c", "0"},
      {"-c", "513"},
      {"-t", "0"},
      {"-t", "-1"},
      {"-t", "100000"},
      {"--kv", "q4"},
      {"--temp", "-1"},
      {"--temp", "nan"},
      {"--temp", "inf"},
      {"--temp", "x"},
      {"--top-k", "-1"},
      {"--top-p", "1.5"},
      {"--min-p", "-0.5"},
      {"--repeat-penalty", "0"},
      {"--frequency-penalty", "nan"},
      {"--presence-penalty", "inf"},
      {"--penalty-window", "-2"},
      {"--min-tokens", "-1"},
      {"--seed", "-1"},
      {"--seed", "x"},
      {"--seed", "18446744073709551616"},
      {"--stop", ""},
      {"--logits", "/no/such/file"}};
  for (const auto& [option, value] : bad_values) {
    expect_refusal(kProgram, good + Arguments{option, value});
  }
  expect_refusal(kProgram, good, "abacus", {.environment = {"KVICK_ISA=abacus"}});
}

TEST(Generate, PenaltiesSeePromptAndNewTokens) {
  const RandomModel model;
  const auto result = run_program(
      kProgram, {"-m", model.path(), "--prompt-ids", "300,301,302", "-n", "40", "--temp", "0",
                 "--presence-penalty", "1000", "--penalty-window", "-1", "--ids", "--ignore-eos"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // A token once seen can never again be the likeliest.
  std::set<std::string> seen = {"300", "301", "302"};
  std::istringstream ids(result.out);
  for (std::string id; std::getline(ids, id, ',');) {
    if (id.ends_with('\n')) id.pop_back();
    EXPECT_TRUE(seen.insert(id).second) << id << " again";
  }
  EXPECT_EQ(seen.size(), 43u);
}

TEST(Generate, RefusesBadPromptsInOneLine) {
  const RandomModel model;
  expect_refusal(kProgram, {"-m", model.path()}, "empty");  // standard input
  expect_refusal(kProgram, {"-m", model.path(), "-p", ""}, "empty");
  for (const std::string ids : {"", "1,,2", "1;2", "-1", "554", "4294967297"}) {
    expect_refusal(kProgram, {"-m", model.path(), "--prompt-ids", ids}, "[0, 554)");
  }
}

TEST(Generate, RefusesBadModelsInOneLine) {
  const RandomModel model;
  const std::string path = model.directory() / "bad.gguf";
  const Arguments options = {"-p", "bace", "-n", "1", "-m"};
  expect_refusal(kProgram, options + Arguments{path}, "bad.gguf");
  expect_refusal(kProgram, options + Arguments{model.directory().path()});
  expect_refusal(kProgram, options + Arguments{"/dev/null"});

  const auto bytes = support::read_bytes(model.path());
  for (int part = 0; part < 16; ++part) {  // the header is in the first 1/256
    for (const std::size_t whole : {bytes.size() / 256, bytes.size()}) {
      const std::size_t size = whole * static_cast<std::size_t>(part) / 16;
      SCOPED_TRACE(size);
      support::write_bytes(path, std::span(bytes).first(size));
      expect_refusal(kProgram, options + Arguments{path}, part == 0 ? "" : "bad.gguf");
    }
  }
  // A vocabulary alone is no model; neither is one without a vocabulary.
  const support::GgufBuilder other = support::small_valid_gguf();
  support::write_bytes(path, other.build());
  expect_refusal(kProgram, options + Arguments{path}, "general.architecture");
}

#if defined(__linux__)
TEST(Generate, EndsQuietlyWhenNobodyReads) {
  const RandomModel model;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  const auto result = run_program(kProgram, {"-m", model.path(), "-p", "bace", "-n", "500"},
                                  {.output_fd = ends[1]});
  close(ends[1]);
  EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal;
  EXPECT_EQ(result.err, "");
}

TEST(Generate, SaysWhenItCannotPrint) {
  const RandomModel model;
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  expect_refusal(kProgram, {"-m", model.path(), "-p", "bace"}, "standard output",
                 {.output_fd = full});
  close(full);
}

TEST(Generate, PrintsEveryTokenAtOnceAndNoBrokenCharacter) {
  const RandomModel model;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);  // each write is one message
  const auto result =
      run_program(kProgram,
                  {"-m", model.path(), "-p", "bace", "-n", "64", "--temp", "50", "--top-k", "0",
                   "--top-p", "1", "--min-p", "0", "--ignore-eos", "--seed", "1"},
                  {.output_fd = ends[1]});
  close(ends[1]);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> messages;
  std::string buffer(4096, '\0');
  for (ssize_t size = 1; size > 0;) {
    size = read(ends[0], buffer.data(), buffer.size());
    if (size > 0) messages.push_back(buffer.substr(0, static_cast<std::size_t>(size)));
  }
  close(ends[0]);
  // About half of the tokens are bytes, half of those the start or middle of a character.
  EXPECT_GT(messages.size(), 40u);
  EXPECT_LE(messages.size(), 65u);
  bool has_replacement = false;
  for (const std::string& message : messages) {
    EXPECT_NO_THROW(json(message).dump()) << "ill-formed UTF-8";  // dump() checks
    has_replacement = has_replacement || message.find("\xEF\xBF\xBD") != std::string::npos;
  }
  EXPECT_TRUE(has_replacement);
}
#endif

// A chat goes on from a file as if it had never stopped.
TEST(Generate, ResumesFromASavedCache) {
  const RandomModel model;
  const std::string file = model.directory() / "chat.state";
  for (const std::string kv : {"f16", "int8"}) {
    const Arguments base = {"-m", model.path(), "--kv", kv, "--temp", "0", "--ids"};
    const std::string whole =
        generate_text(base + Arguments{"--prompt-ids", "5,6,7,8,9", "-n", "9"});
    generate(base + Arguments{"--prompt-ids", "5,6,7", "-n", "0", "--save-cache", file});
    const Arguments resume =
        base + Arguments{"--load-cache", file, "--prompt-ids", "8,9", "-n", "9"};
    EXPECT_EQ(generate_text(resume), whole) << kv;
  }
  // New tokens are saved too, the last one with them.
  const Arguments base = {"-m", model.path(), "--temp", "0", "--ids", "--ignore-eos"};
  const std::string start =
      generate_text(base + Arguments{"--prompt-ids", "5,6,7", "-n", "4", "--save-cache", file});
  const std::string whole =
      generate_text(base + Arguments{"--prompt-ids", "5,6,7," + start + ",8", "-n", "9"});
  EXPECT_EQ(generate_text(base + Arguments{"--load-cache", file, "--prompt-ids", "8", "-n", "9"}),
            whole);

  const Arguments load = {"-m", model.path(), "--prompt-ids", "8", "--load-cache", file};
  expect_refusal(kProgram, load + Arguments{"--kv", "f32"}, "element type");
  expect_refusal(kProgram, load + Arguments{"--activations", "f32"}, "same model and settings");
  std::ofstream(file, std::ios::app) << "x";
  expect_refusal(kProgram, load, "truncated or altered");
  expect_refusal(kProgram, {"-m", model.path(), "--prompt-ids", "8", "--load-cache", file + "x"},
                 "cannot open");
}

TEST(Generate, WritesTheSameTextWithoutACache) {
  const RandomModel model;
  const Arguments base = {"-m", model.path(), "--prompt-ids", "5,6,7", "-n",
                          "12", "--ids",      "--seed",       "3"};
  EXPECT_EQ(generate_text(base + Arguments{"--no-cache"}), generate_text(base));
}

TEST(Generate, DraftsChangeNoText) {
  const std::string models = KVICK_DEMO_MODEL_DIR;
  const Arguments story = {"-m",     models + "/kvick-stories-3m-q8_0.gguf",
                           "-p",     "Once upon a time",
                           "-n",     "60",
                           "--seed", "3",
                           "--temp", "0.9"};
  const Arguments model = {"--draft", models + "/kvick-stories-draft-q8_0.gguf"};
  const Arguments lookup = {"--lookup"};
  const auto [text, summary] = generate_summarized(story);
  EXPECT_FALSE(summary.contains("drafted_tokens"));
  for (const Arguments& drafts : {model, lookup, model + lookup + Arguments{"--draft-tokens", "3"},
                                  model + Arguments{"--draft-tokens", "0"}}) {
    const auto [drafted_text, drafted_summary] = generate_summarized(story + drafts);
    EXPECT_EQ(drafted_text, text);
    EXPECT_LE(drafted_summary["accepted_tokens"], drafted_summary["drafted_tokens"]);
    EXPECT_EQ(drafted_summary["generated_tokens"], summary["generated_tokens"]);
  }
  // How many depends on how busy the machine is; some after two plain steps, always.
  EXPECT_GT(generate_summarized(story + model).summary["drafted_tokens"], 0);
  const std::string err = generate(story + model).err;
  EXPECT_NE(err.find("drafted "), std::string::npos) << err;
  EXPECT_NE(err.find(" accepted "), std::string::npos) << err;
}

TEST(Generate, RefusesDraftsThatDoNotFit) {
  const RandomModel model({"--seed", "1"});
  const Arguments prompt = {"-m", model.path(), "--prompt-ids", "1,2", "-n", "2"};
  expect_refusal(kProgram, prompt + Arguments{"--draft", model.directory() / "absent"}, "absent");
  expect_refusal(kProgram, prompt + Arguments{"--draft-tokens", "65"}, "--draft-tokens");
  expect_refusal(kProgram, prompt + Arguments{"--no-cache", "--lookup"}, "--no-cache");
  const std::string other = std::string(KVICK_DEMO_MODEL_DIR) + "/kvick-stories-draft-q8_0.gguf";
  expect_refusal(kProgram, prompt + Arguments{"--draft", other}, "must have the target's");
}

}  // namespace
