// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "examples/programs.hpp"
#include "support/shared_data.hpp"
#include "support/subprocess.hpp"

namespace {

using support::expect_refusal;
using support::run_program;

constexpr char kProgram[] = "kvick-tokenize";

/// What the program prints for these arguments, without the line break.
std::string tokenize(const std::vector<std::string>& arguments, std::string_view input = {}) {
  const auto result = run_program(kProgram, arguments, {.input = input});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(result.out.ends_with('\n')) << result.out;
  return result.out.substr(0, result.out.size() - 1);
}

TEST(Tokenize, WorksWithAVocabularyWithoutWeights) {
  constexpr char kModel[] = "models/vocab-llama-spm.gguf";
  const auto model = support::shared_path(kModel);
  if (!model) GTEST_SKIP() << support::missing(kModel);
  // The ids of Llama 2's tokenizer.
  EXPECT_EQ(tokenize({"-m", *model, "-p", "Hello world"}), "1,15043,3186");
  EXPECT_EQ(tokenize({"-m", *model, "-p", "Hello world", "--no-bos"}), "15043,3186");
  EXPECT_EQ(tokenize({"-m", *model, "--decode", "1,15043,3186"}), "Hello world");
}

TEST(Tokenize, TextComesFromStandardInputLessTheLineBreakAtItsEnd) {
  const support::RandomModel model;
  const std::string ids = tokenize({"-m", model.path(), "-p", "bace\nduli"});
  EXPECT_EQ(tokenize({"-m", model.path()}, "bace\nduli"), ids);
  EXPECT_EQ(tokenize({"-m", model.path()}, "bace\nduli\n"), ids);
  EXPECT_NE(tokenize({"-m", model.path()}, "bace\nduli\n\n"), ids);
}

TEST(Tokenize, DecodeGivesBackTheText) {
  const support::RandomModel model;
  for (const std::string text :
       {"bace duli, Xyz!", "\xF0\x9F\xA6\x99 n\xC3\xA4h", " two  spaces ", "-p", "[1,2]", "a\tb"}) {
    const std::string ids = tokenize({"-m", model.path(), "-p", text});
    EXPECT_EQ(tokenize({"-m", model.path(), "--decode", ids}), text) << ids;
  }
}

TEST(Tokenize, DecodeNeverPrintsBrokenUtf8) {
  const support::RandomModel model;
  // Bytes are tokens 3 + byte: the first half of a two byte character.
  EXPECT_EQ(tokenize({"-m", model.path(), "--decode", "198, 198"}), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Tokenize, ControlTokensAreTextUnlessAskedFor) {
  const support::RandomModel model;
  const std::vector<std::string> arguments = {"-m", model.path(), "--no-bos", "-p", "</s>"};
  std::vector<std::string> special = arguments;
  special.push_back("--special");
  EXPECT_EQ(tokenize(special), "2");
  EXPECT_EQ(tokenize({"-m", model.path(), "--decode", tokenize(arguments)}), "</s>");
}

TEST(Tokenize, EmptyTextHasNoTokensButTheFirst) {
  const support::RandomModel model;
  EXPECT_EQ(tokenize({"-m", model.path(), "-p", ""}), "1");
  EXPECT_EQ(tokenize({"-m", model.path(), "-p", "", "--no-bos"}), "");
}

TEST(Tokenize, ShowsEachTokenWithItsText) {
  const support::RandomModel model;
  // Bytes are tokens 3 + byte; the model puts a space before text.
  const std::string lines =
      tokenize({"-m", model.path(), "--no-bos", "-p", "\n\u00e4\"", "--pieces"});
  EXPECT_TRUE(lines.ends_with("13\t\"\\n\"\n198\t\"\\xc3\"\n167\t\"\\xa4\"\n461\t\"\\\"\""))
      << lines;
  EXPECT_EQ(tokenize({"-m", model.path(), "-p", "", "--pieces"}), "1\t\"<s>\"");
}

TEST(Tokenize, ReadsFilesAsTheyAre) {
  const support::RandomModel model;
  const std::string one = model.directory() / "one.txt";
  const std::string two = model.directory() / "two.txt";
  std::ofstream(one) << "bace\n";
  std::ofstream(two) << "duli";
  const auto ids = [&](const std::string& text) {
    return tokenize({"-m", model.path(), "-p", text});
  };
  EXPECT_EQ(tokenize({"-m", model.path(), "--file", one, "--file", two}),
            ids("bace\n") + "\n" + ids("duli"));
  expect_refusal(kProgram, {"-m", model.path(), "--file", one + "x"}, "one.txtx");
  expect_refusal(kProgram, {"-m", model.path(), "--file", one, "-p", "a"}, "--file");
}

TEST(Tokenize, TakesAListOfTextsAsJson) {
  const support::RandomModel model;
  EXPECT_EQ(tokenize({"-m", model.path(), "--json"}, R"(["", "\n"])"),
            "[[1],[" + tokenize({"-m", model.path(), "-p", "\n"}) + "]]");
  for (const char* const input : {"", "[1]", "{}", "[\"a\"", "\"a\""}) {
    expect_refusal(kProgram, {"-m", model.path(), "--json"}, "--json", {.input = input});
  }
  expect_refusal(kProgram, {"-m", model.path(), "--json", "--pieces"}, "--pieces");
}

TEST(Tokenize, ShowsWhatAChatModelReads) {
  const support::RandomModel model;
  const std::string messages = R"([{"role": "user", "content": "bace <s>"}])";
  const std::vector<std::string> chat = {"-m", model.path(), "--chat", "--chat-template", "zephyr"};
  auto text = chat, pieces = chat;
  text.push_back("--text");
  pieces.push_back("--pieces");
  EXPECT_EQ(tokenize(text, messages), "<|user|>\nbace <s></s>\n<|assistant|>\n");
  const std::string ids = tokenize(chat, messages);
  EXPECT_EQ(tokenize({"-m", model.path(), "--decode", ids}), "<|user|>\nbace <s>\n<|assistant|>\n");
  EXPECT_TRUE(tokenize(pieces, messages).starts_with("1\t\"<s>\"\n")) << ids;
  for (const char* const input : {"", "{}", "[1]", R"([{"role": "user"}])", R"("a")", "[]",
                                  R"([{"role": "tool", "content": "a"}])"}) {
    expect_refusal(kProgram, chat, "", {.input = input});
  }
  expect_refusal(kProgram, {"-m", model.path(), "--chat"}, "chatml", {.input = messages});
  expect_refusal(kProgram, {"-m", model.path(), "--chat", "--json"}, "--chat");
  expect_refusal(kProgram, {"-m", model.path(), "--text", "-p", "a"}, "--chat");
}

TEST(Tokenize, TellsItsSpeedOnRequest) {
  const support::RandomModel model;
  const auto result = run_program(kProgram, {"-m", model.path(), "-p", "bace", "--speed"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find(" of 4 bytes in "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(" tokens/s, "), std::string::npos) << result.err;
}

TEST(Tokenize, RefusesBadInputInOneLine) {
  const support::RandomModel model;
  const std::string path = model.path();
  expect_refusal(kProgram, {"-m", path, "--no-such-option"}, "--no-such-option");
  expect_refusal(kProgram, {"-m", path, "-p", "a", "--decode", "1"}, "--decode");
  expect_refusal(kProgram, {"-m", path + "\n.missing", "-p", "a"}, "missing");
  expect_refusal(kProgram, {"-m", model.directory().path(), "-p", "a"});
  for (const std::string ids : {"", ",", "1,", ",1", "1,,2", "1 2", "x", "-1", "0x1", "1.5", "554",
                                "99999999999999999999"}) {
    expect_refusal(kProgram, {"-m", path, "--decode", ids}, "[0, 554)");
  }
}

TEST(Tokenize, HelpIsNoError) {
  const auto result = run_program(kProgram, {"-h"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("--decode"), std::string::npos);
  EXPECT_EQ(result.err, "");
}

}  // namespace
