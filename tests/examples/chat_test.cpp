// SPDX-License-Identifier: MIT
// kvick-generate with a byte-level BPE vocabulary, and its conversations.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
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

/// The random model with a byte-level BPE vocabulary of as many tokens, and a ChatML template.
class BytesModel {
 public:
  explicit BytesModel(const std::string& pre_tokenizer = "qwen2",
                      const std::string& chat_template = "<|im_start|>...<|im_end|>") {
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
    messages.push_back({"assistant", "not used"});
    messages.push_back({"user", message});
    const Tokens more = format.encode_continuation(tokenizer, messages);
    num_read += more.size();
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  const json summary = json::parse(printed[3]);
  EXPECT_EQ(summary["prompt_tokens"], num_read);
  EXPECT_EQ(summary["generated_tokens"], 36);
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
