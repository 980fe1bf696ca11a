// SPDX-License-Identifier: MIT
// kvick-generate with a byte-level BPE vocabulary, and its conversations.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "examples/programs.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/text/chat_template.hpp"
#include "kvick/text/tokenizer.hpp"
#include "text/text_support.hpp"

namespace {

using kvick::TokenId;
using nlohmann::json;
using support::expect_refusal;
using support::run_program;
using Tokens = std::vector<TokenId>;

constexpr char kProgram[] = "kvick-generate";

constexpr char kChatMl[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' }}";
/// Tells answers only in part, as the templates of reasoning models do.
constexpr char kForgetful[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{{ 'said' if m.role == 'assistant' else m.content }}{{ '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' }}";

/// The random model with a byte-level BPE vocabulary of as many tokens, and a chat template.
class BytesModel {
 public:
  explicit BytesModel(const std::string& pre_tokenizer = "qwen2",
                      const std::string& chat_template = kChatMl) {
    const kvick::GgufFile file(random_.path());
    kvick::GgufWriter writer;
    for (const kvick::GgufValue& value : file.metadata()) {
      if (!value.key().starts_with("tokenizer.")) writer.add(value);
    }
    kvick::Vocabulary vocabulary = support::byte_level_vocabulary({"t h", "th e", "\u0120 b"});
    support::add_token(vocabulary, "<|im_start|>", 0, kvick::TokenType::kControl);  // 259
    support::add_token(vocabulary, "<|im_end|>", 0, kvick::TokenType::kControl);
    while (vocabulary.pieces.size() < 554) {
      const std::string piece = " w" + std::to_string(vocabulary.pieces.size());
      support::add_token(vocabulary, kvick::spelling_of_bytes(piece), 0);
    }
    std::vector<std::int32_t> types;
    for (const auto type : vocabulary.types) types.push_back(static_cast<std::int32_t>(type));
    writer.add("tokenizer.ggml.model", std::string_view("gpt2"));
    writer.add("tokenizer.ggml.pre", pre_tokenizer);
    writer.add("tokenizer.ggml.tokens", vocabulary.pieces);
    writer.add("tokenizer.ggml.token_type", types);
    writer.add("tokenizer.ggml.merges", vocabulary.merges);
    writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{260});
    writer.add("tokenizer.chat_template", chat_template);
    for (const kvick::GgufTensor& tensor : file.tensors()) writer.add_tensor(tensor);
    writer.write(path());
  }

  std::string path() const { return random_.directory() / "bytes.gguf"; }

 private:
  support::RandomModel random_;
};

std::string join(const Tokens& ids) {
  std::string text;
  for (const TokenId id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

std::string generate(const std::vector<std::string>& arguments, std::string_view input = {}) {
  const auto result = run_program(kProgram, arguments, {.input = input});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(Chat, GeneratesWithAByteLevelVocabulary) {
  const BytesModel model;
  const auto result = run_program("kvick-tokenize", {"-m", model.path(), "-p", "the b"});
  EXPECT_EQ(result.out, "257,258\n");
  const std::vector<std::string> options = {"-m", model.path(), "-n", "8", "--temp", "0"};
  auto with_text = options, with_ids = options;
  with_text.insert(with_text.end(), {"-p", "the b"});
  with_ids.insert(with_ids.end(), {"--prompt-ids", "257,258"});
  EXPECT_EQ(generate(with_text), generate(with_ids));
  EXPECT_GT(generate(with_text).size(), 1u);
}

TEST(Chat, APreTokenizerThatIsNotKnownMustBeChosen) {
  const BytesModel model("of-tomorrow");
  const std::vector<std::string> arguments = {"-m", model.path(), "-p", "a", "-n", "2"};
  expect_refusal(kProgram, arguments, "of-tomorrow");
  expect_refusal("kvick-tokenize", {"-m", model.path(), "-p", "a"}, "of-tomorrow");
  auto chosen = arguments;
  chosen.insert(chosen.end(), {"--pre", "qwen2"});
  EXPECT_NE(generate(chosen), "");
}

TEST(Chat, EachTurnReadsOnlyWhatIsNewAndEqualsReadingEverything) {
  const BytesModel model;
  const std::vector<std::string> common = {"-m", model.path(), "-n",           "12",    "--temp",
                                           "0",  "--ids",      "--ignore-eos", "--json"};
  auto chat = common;
  chat.insert(chat.end(), {"--chat", "--system", "Be brief.", "-p", "one"});
  const auto printed = lines(generate(chat, "two\n\nthree\n"));
  ASSERT_EQ(printed.size(), 4u);  // three answers and the summary

  const kvick::GgufFile file(model.path());
  const kvick::Tokenizer tokenizer(file);
  const kvick::ChatTemplate format(file, tokenizer);
  std::vector<kvick::ChatMessage> messages = {{"system", "Be brief."}, {"user", "one"}};
  Tokens tokens = format.encode(tokenizer, messages);
  std::size_t num_read = tokens.size();
  for (const std::string message : {"two", "three", ""}) {
    auto alone = common;
    alone.insert(alone.end(), {"--prompt-ids", join(tokens)});
    const std::string answer = lines(generate(alone)).at(0);
    EXPECT_EQ(printed[messages.size() / 2 - 1], answer);
    for (const std::string& id : lines([&] {
           std::string by_line = answer;
           std::replace(by_line.begin(), by_line.end(), ',', '\n');
           return by_line;
         }())) {
      tokens.push_back(std::stoi(id));
    }
    if (message.empty()) break;
    messages.push_back({"assistant", "stands for what was written"});
    messages.push_back({"user", message});
    const Tokens more = format.encode_continuation(tokenizer, messages).value();
    num_read += more.size();
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  const json summary = json::parse(printed[3]);
  EXPECT_EQ(summary["prompt_tokens"], num_read);
  EXPECT_EQ(summary["generated_tokens"], 36);
}

TEST(Chat, WhatTheTemplateWritesDifferentlyIsReadAnew) {
  const BytesModel model("qwen2", kForgetful);
  const std::vector<std::string> common = {"-m", model.path(), "-n",           "12",    "--temp",
                                           "0",  "--ids",      "--ignore-eos", "--json"};
  auto chat = common;
  chat.insert(chat.end(), {"--chat"});
  const auto printed = lines(generate(chat, "one\ntwo\nthree\n"));
  ASSERT_EQ(printed.size(), 4u);

  const kvick::GgufFile file(model.path());
  const kvick::Tokenizer tokenizer(file);
  const kvick::ChatTemplate format(file, tokenizer);
  std::vector<kvick::ChatMessage> messages;
  std::size_t num_read = 0;
  Tokens before;
  for (const std::string message : {"one", "two", "three"}) {
    messages.push_back({"user", message});
    const Tokens tokens = format.encode(tokenizer, messages);
    auto alone = common;
    alone.insert(alone.end(), {"--prompt-ids", join(tokens)});
    EXPECT_EQ(printed[messages.size() / 2], lines(generate(alone)).at(0)) << message;
    num_read += tokens.size() - before.size();  // all that was read for the last turn is kept
    before = tokens;
    messages.push_back({"assistant", "any"});
  }
  EXPECT_EQ(json::parse(printed[3])["prompt_tokens"], num_read);
}

TEST(Chat, ALongConversationForgetsItsOldestTurns) {
  const BytesModel model;
  std::string input;
  for (int i = 0; i < 30; ++i) input += "message " + std::to_string(i) + "\n";
  const auto result = run_program(kProgram,
                                  {"-m", model.path(), "--chat", "--system", "Be brief.", "-c",
                                   "160", "-n", "8", "--ids", "--ignore-eos", "--temp", "0"},
                                  {.input = input});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto answers = lines(result.out);
  ASSERT_EQ(answers.size(), 30u);
  for (const std::string& answer : answers) {
    EXPECT_EQ(std::count(answer.begin(), answer.end(), ','), 7) << answer;  // 8 tokens
  }
  EXPECT_NE(result.err.find("turns are forgotten"), std::string::npos) << result.err;
  // Half of the context at a time, because what is left must be read again.
  const auto roomy = run_program(kProgram,
                                 {"-m", model.path(), "--chat", "--system", "Be brief.", "-c",
                                  "512", "-n", "8", "--ids", "--ignore-eos"},
                                 {.input = input});
  const auto notes = lines(roomy.err);
  const auto num_notes = std::count_if(notes.begin(), notes.end(), [](const std::string& line) {
    return line.find("forgotten") != std::string::npos;
  });
  EXPECT_GE(num_notes, 1) << roomy.err;
  EXPECT_LE(num_notes, 5) << roomy.err;
  // One message that is too long is refused.
  expect_refusal(kProgram, {"-m", model.path(), "--chat", "-c", "160"}, "context of 160",
                 {.input = std::string(200, 'x') + "\n"});
}

TEST(Chat, LinesMayEndAsOnOtherSystemsOrNotAtAll) {
  const BytesModel model;
  const auto num_read = [&](std::string_view input) {
    const std::string out =
        generate({"-m", model.path(), "--chat", "-n", "4", "--ignore-eos", "--json"}, input);
    return json::parse(lines(out).back())["prompt_tokens"].get<int>();
  };
  const int want = num_read("one\ntwo\n");
  EXPECT_EQ(num_read("one\r\n\r\ntwo\r\n"), want);
  EXPECT_EQ(num_read("one\ntwo"), want);
  EXPECT_EQ(num_read("one\ntwo\r\r\n"), want + 1);
  EXPECT_EQ(num_read(std::string("\xFF\xE4\0\ntwo\n", 8)), want);  // any bytes are a message
}

TEST(Chat, EndsWhenInputDoes) {
  const BytesModel model;
  EXPECT_EQ(generate({"-m", model.path(), "--chat"}), "");
  EXPECT_EQ(
      lines(generate({"-m", model.path(), "--chat", "--ids", "-n", "2", "--ignore-eos"}, "a\nb"))
          .size(),
      2u);
}

TEST(Chat, RefusesWhatCannotBe) {
  const BytesModel model("qwen2", "{{ of tomorrow }}");
  const std::string path = model.path();
  expect_refusal(kProgram, {"-m", path, "--chat", "-p", "a"}, "of tomorrow");
  expect_refusal(kProgram, {"-m", path, "--chat", "--chat-template", "x", "-p", "a"}, "chatml");
  expect_refusal(kProgram, {"-m", path, "--chat-template", "chatml", "-p", "a"}, "--chat");
  expect_refusal(kProgram, {"-m", path, "--chat", "--prompt-ids", "1"}, "--chat");
  expect_refusal(kProgram,
                 {"-m", path, "--chat", "--chat-template", "chatml", "-c", "8", "-p", "long text"},
                 "context of 8");
  EXPECT_NE(generate({"-m", path, "--chat", "--chat-template", "chatml", "-p", "a"}), "");
}

}  // namespace
