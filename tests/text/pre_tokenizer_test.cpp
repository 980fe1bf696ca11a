// SPDX-License-Identifier: MIT
#include "kvick/text/pre_tokenizer.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_directory.hpp"
#include "text/text_support.hpp"

namespace kvick {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Words words(SplittingRule rule, std::string_view text) {
  Words result;
  split_words(rule, text, [&](std::string_view word) { result.emplace_back(word); });
  return result;
}

const std::map<std::string, SplittingRule> kRules = {
    {"gpt2", SplittingRule::kGpt2},
    {"starcoder", SplittingRule::kStarCoder},
    {"llama3", SplittingRule::kLlama3},
    {"qwen2", SplittingRule::kQwen2},
    {"qwen35", SplittingRule::kQwen35},
    {"tekken", SplittingRule::kTekken},
    {"gpt4o", SplittingRule::kGpt4o},
    {"deepseek-llm", SplittingRule::kDeepSeekLlm},
    {"deepseek-coder", SplittingRule::kDeepSeekCoder},
    {"deepseek3", SplittingRule::kDeepSeek3},
    {"falcon", SplittingRule::kFalcon},
    {"bloom", SplittingRule::kBloom},
    {"viking", SplittingRule::kViking},
};

// ---- By hand ----

TEST(SplitWords, Gpt2) {
  const auto rule = SplittingRule::kGpt2;
  EXPECT_EQ(words(rule, "Hello  world's 12345!?\n\n x"),
            (Words{"Hello", " ", " world", "'s", " 12345", "!?", "\n\n", " x"}));
  EXPECT_EQ(words(rule, "I'LL we'll "), (Words{"I", "'", "LL", " we", "'ll", " "}));
  EXPECT_EQ(words(rule, "a\nb"), (Words{"a", "\n", "b"}));
  EXPECT_EQ(words(rule, ""), Words{});
}

TEST(SplitWords, StarCoderTakesDigitsOneByOneAndLooksNoFurther) {
  EXPECT_EQ(words(SplittingRule::kStarCoder, "ab  12 x"),
            (Words{"ab", "  ", "1", "2", " x"}));  // GPT-2 would leave " " for the number
}

TEST(SplitWords, Llama3) {
  const auto rule = SplittingRule::kLlama3;
  EXPECT_EQ(words(rule, "I'LL pay 12345 $a.b\n\n  x"),
            (Words{"I", "'LL", " pay", " ", "123", "45", " $", "a", ".b", "\n\n", " ", " x"}));
  EXPECT_EQ(words(rule, "end.\r\n\n \n  "), (Words{"end", ".\r\n\n", " \n", "  "}));
  EXPECT_EQ(words(SplittingRule::kQwen2, "x123"), (Words{"x", "1", "2", "3"}));
}

TEST(SplitWords, Qwen35KeepsMarksWithTheirLetters) {
  const std::string marked = "e\u0301t";
  EXPECT_EQ(words(SplittingRule::kQwen35, marked + " 12"), (Words{marked, " ", "1", "2"}));
  EXPECT_EQ(words(SplittingRule::kQwen2, marked), (Words{"e", "\u0301t"}));
}

TEST(SplitWords, TekkenAndGpt4oSplitAtCapitals) {
  EXPECT_EQ(words(SplittingRule::kTekken, "HTTPServer getName's 123 /*\n//"),
            (Words{"HTTPServer", " get", "Name", "'s", " ", "1", "2", "3", " /*\n//"}));
  EXPECT_EQ(words(SplittingRule::kGpt4o, "getName's DON'T 1234"),
            (Words{"get", "Name's", " DON'T", " ", "123", "4"}));
  // A letter without case ends a word of capitals: the match steps back to it.
  EXPECT_EQ(words(SplittingRule::kTekken, "中AB"), (Words{"中", "AB"}));
  EXPECT_EQ(words(SplittingRule::kTekken, "A中B"), (Words{"A中", "B"}));
  EXPECT_EQ(words(SplittingRule::kTekken, "\u0301AB"), (Words{"\u0301", "AB"}));
}

TEST(SplitWords, DeepSeek) {
  EXPECT_EQ(words(SplittingRule::kDeepSeekLlm, "Hi, \u4f60\u597d123\n  "),
            (Words{"Hi", ",", " ", "\u4f60\u597d", "123", "\n", "  "}));
  EXPECT_EQ(words(SplittingRule::kDeepSeekCoder, "if (x1==\u4f60)\n"),
            (Words{"if", " (", "x", "1", "==", "\u4f60", ")", "\n"}));
  EXPECT_EQ(words(SplittingRule::kDeepSeek3, "a.b 1234 \u4f60\u3042x\n#include"),
            (Words{"a", ".b", " ", "123", "4", " ", "\u4f60\u3042", "x", "\n", "#include"}));
}

TEST(SplitWords, Falcon) {
  EXPECT_EQ(words(SplittingRule::kFalcon, "a+b, 12345"),
            (Words{"a", "+", "b", ",", " ", "123", "45"}));
}

TEST(SplitWords, Bloom) {
  EXPECT_EQ(words(SplittingRule::kBloom, "Hi, it's  12 (ok)."),
            (Words{"Hi", ",", " it's", " ", " 12", " (", "ok", ")."}));
  EXPECT_EQ(words(SplittingRule::kViking, "a12"), (Words{"a", "1", "2"}));
}

// ---- By the published expressions ----

/// Texts in which every kind of character meets every other.
std::string random_text(support::Rng& rng) {
  static const std::vector<std::string> alphabet = {
      "a",      "b",          "s",          "t",          "re",     "LL",
      "'",      "'s",         "'Ve",        "A",          "Z",      " ",
      " ",      "  ",         "\n",         "\r",         "\t",     "\r\n",
      "\u0085", "\u00a0",     "\u3000",     "\u2028",     "1",      "23",
      "4567",   "\u00bd",     "\u0663",     "!",          ".",      "/",
      "_",      "(",          "|",          "$",          "`",      "~",
      "\u4e2d", "\u3042",     "\uac00",     "\u00e9",     "\u00c9", "\u01c5",
      "\u02b0", "\u0301",     "\u0940",     "\u3002",     "\uff0c", "\u2019",
      "\u2026", "\u0964",     "\u1d27",     "\u20ac",     "\ue000", "\u200d",
      "\ufeff", "\U0001f999", "\U00010400", "\U000e0101", "\uff21", std::string(1, '\0')};
  std::string text = support::random_text(rng, alphabet, support::below(rng, 24));
  if (support::below(rng, 4) == 0) {
    const auto c = static_cast<std::uint32_t>(support::below(rng, 0x30000));
    // What Unicode 15 leaves unassigned may have a class in newer versions.
    text += support::utf8(character_class(c) == CharacterClass::kOther ? 'x' : c);
    text += support::random_text(rng, alphabet, support::below(rng, 8));
  }
  return text;
}

TEST(SplitWords, EqualsThePublishedExpressionsOnRandomTexts) {
  if (std::system("node --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no node was found";
  constexpr std::uint64_t kSeed = 91;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  json cases = json::array();
  for (int i = 0; i < 1500; ++i) {
    for (const auto& [name, rule] : kRules) cases.push_back({name, random_text(rng)});
  }
  const support::TemporaryDirectory directory;
  const std::string input = directory / "cases.json";
  const std::string output = directory / "words.json";
  std::ofstream(input) << cases;
  const auto script = std::filesystem::path(__FILE__).parent_path() / "split_by_regex.mjs";
  const std::string command = "node '" + script.string() + "' <'" + input + "' >'" + output + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  const json want = json::parse(std::ifstream(output));
  ASSERT_EQ(want.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto text = cases[i][1].get<std::string>();
    ASSERT_EQ(words(kRules.at(cases[i][0]), text), want[i].get<Words>())
        << cases[i][0] << " " << cases[i].dump(-1, ' ', true);
  }
}

// ---- Any bytes ----

TEST(SplitWords, WordsMakeUpTheTextWhateverItsBytes) {
  constexpr std::uint64_t kSeed = 92;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  for (int round = 0; round < 2000; ++round) {
    std::string text = support::random_bytes(rng, support::below(rng, 20));
    text += random_text(rng) + support::random_bytes(rng, support::below(rng, 3));
    for (const auto& rule : kRules) {
      std::string joined;
      split_words(rule.second, text, [&](std::string_view word) {
        ASSERT_FALSE(word.empty()) << rule.first;
        joined += word;
      });
      ASSERT_EQ(joined, text) << rule.first;
    }
  }
}

/// Quadratic time would be minutes.
TEST(SplitWords, HostileTextsTakeLinearTime) {
  constexpr std::size_t kNumBytes = 200'000;
  std::vector<std::string> texts;
  for (const char c : {'a', 'A', ' ', '\n', '1', '.', '\'', '\x80', '\xE4', '\xFF'}) {
    texts.emplace_back(kNumBytes, c);
    texts.push_back(texts.back() + "x");
    texts.push_back(texts.back() + "\u4e2d");
  }
  for (const std::string part :
       {"\u4e2d", "\u0301", "A\u0301", " \n", "\u3000", "a ", "'s", "\u4e2d "}) {
    std::string text;
    while (text.size() < kNumBytes / 4) text += part;
    texts.push_back(text);
    texts.push_back(text + "A");
  }
  for (const std::string& text : texts) {
    for (const auto& [name, rule] : kRules) {
      std::size_t num_bytes = 0;
      split_words(rule, text, [&](std::string_view word) { num_bytes += word.size(); });
      EXPECT_EQ(num_bytes, text.size()) << name;
    }
  }
}

// ---- Names ----

TEST(PreTokenizer, KnowsTheNamesInUse) {
  const std::pair<const char*, SplittingRule> cases[] = {
      {"gpt-2", SplittingRule::kGpt2},
      {"llama-bpe", SplittingRule::kLlama3},
      {"qwen2", SplittingRule::kQwen2},
      {"deepseek-llm", SplittingRule::kDeepSeekLlm},
      {"deepseek-coder", SplittingRule::kDeepSeekCoder},
      {"deepseek-v3", SplittingRule::kDeepSeek3},
      {"starcoder", SplittingRule::kStarCoder},
      {"refact", SplittingRule::kStarCoder},
      {"command-r", SplittingRule::kStarCoder},
      {"smollm", SplittingRule::kStarCoder},
      {"codeshell", SplittingRule::kStarCoder},
      {"falcon", SplittingRule::kFalcon},
      {"mpt", SplittingRule::kGpt2},
      {"olmo", SplittingRule::kGpt2},
      {"dbrx", SplittingRule::kLlama3},
      {"tekken", SplittingRule::kTekken},
      {"gpt-4o", SplittingRule::kGpt4o},
      {"phi-2", SplittingRule::kGpt2},
      {"stablelm2", SplittingRule::kQwen2},
      {"poro-chat", SplittingRule::kBloom},
      {"viking", SplittingRule::kViking},
      {"jais", SplittingRule::kGpt2},
      {"chatglm-bpe", SplittingRule::kLlama3},
      {"bloom", SplittingRule::kBloom}};
  for (const auto& [name, rule] : cases) {
    EXPECT_EQ(require_pre_tokenizer(name).rule, rule) << name;
    EXPECT_EQ(require_pre_tokenizer(name).name, name);
  }
  EXPECT_TRUE(require_pre_tokenizer("llama-bpe").ignores_merges);
  EXPECT_FALSE(require_pre_tokenizer("dbrx").ignores_merges);
}

TEST(PreTokenizer, RefusesOthersByName) {
  for (const std::string name : {"", "default", "gpt-3", "qwen2 ", "new\nline"}) {
    EXPECT_EQ(find_pre_tokenizer(name), nullptr);
    try {
      require_pre_tokenizer(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(error.message().find("llama-bpe"), std::string_view::npos);
      EXPECT_NE(error.message().find("choose"), std::string_view::npos);
      EXPECT_EQ(error.message().find('\n'), std::string_view::npos);
    }
  }
  try {
    require_pre_tokenizer("gpt-3");
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("'gpt-3'"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace kvick
