// SPDX-License-Identifier: MIT
#include "kvick/text/chat_template.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using Tokens = std::vector<TokenId>;
using Messages = std::vector<ChatMessage>;

/// bos and eos are spelled <s> and </s>, whatever the family's models have.
Vocabulary vocabulary_with(const std::vector<std::string>& marks = {}) {
  Vocabulary vocabulary = support::byte_level_vocabulary({});
  support::add_token(vocabulary, "<s>", 0, TokenType::kControl);   // 256
  support::add_token(vocabulary, "</s>", 0, TokenType::kControl);  // 257
  for (const std::string& mark : marks) {
    support::add_token(vocabulary, mark, 0, TokenType::kControl);  // from 258 on
  }
  vocabulary.bos_id = 256;
  vocabulary.eos_id = 257;
  return vocabulary;
}

const Messages kConversation = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", "Bye"}};

std::string render(ChatFamily family, const Messages& messages = kConversation,
                   std::string_view source = {}) {
  return ChatTemplate(family, vocabulary_with(), source).render(messages);
}

// ---- The text of each family, by hand ----

TEST(ChatTemplate, WritesEveryFamily) {
  const std::pair<ChatFamily, std::string> cases[] = {
      {ChatFamily::kChatMl,
       "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
       "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
       "<|im_start|>assistant\n"},
      {ChatFamily::kLlama2,
       "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]"},
      {ChatFamily::kLlama3,
       "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {ChatFamily::kLlama31,
       "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
       "Today Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {ChatFamily::kLlama4,
       "<s><|header_start|>system<|header_end|>\n\nBe brief.<|eot|>"
       "<|header_start|>user<|header_end|>\n\nHi<|eot|>"
       "<|header_start|>assistant<|header_end|>\n\nHello!<|eot|>"
       "<|header_start|>user<|header_end|>\n\nBye<|eot|>"
       "<|header_start|>assistant<|header_end|>\n\n"},
      {ChatFamily::kMistralV0, "<s>[INST] Be brief.\n\nHi [/INST]Hello!</s>[INST] Bye [/INST]"},
      {ChatFamily::kMistralV1, "<s> [INST] Be brief.\n\nHi [/INST] Hello!</s> [INST] Bye [/INST]"},
      {ChatFamily::kMistralV3, "<s>[INST] Be brief.\n\nHi[/INST] Hello!</s>[INST] Bye[/INST]"},
      {ChatFamily::kMistralV3Tekken, "<s>[INST]Be brief.\n\nHi[/INST]Hello!</s>[INST]Bye[/INST]"},
      {ChatFamily::kMistralV7,
       "<s>[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Hi[/INST] Hello!</s>[INST] Bye[/INST]"},
      {ChatFamily::kMistralV7Tekken,
       "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi[/INST]Hello!</s>[INST]Bye[/INST]"},
      {ChatFamily::kGemma,
       "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!"
       "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"},
      {ChatFamily::kPhi3,
       "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n"
       "<|user|>\nBye<|end|>\n<|assistant|>\n"},
      {ChatFamily::kPhi4,
       "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
       "<|im_start|>assistant<|im_sep|>Hello!<|im_end|><|im_start|>user<|im_sep|>Bye<|im_end|>"
       "<|im_start|>assistant<|im_sep|>"},
      {ChatFamily::kPhi4Mini,
       "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Hello!<|end|><|user|>Bye<|end|>"
       "<|assistant|>"},
      {ChatFamily::kZephyr,
       "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\nBye</s>\n"
       "<|assistant|>\n"},
      {ChatFamily::kDeepSeekCoder,
       "<s>Be brief.### Instruction:\nHi\n### Response:\nHello!\n<|EOT|>\n### Instruction:\nBye\n"
       "### Response:\n"},
      {ChatFamily::kDeepSeek2,
       "<s>Be brief.\n\nUser: Hi\n\nAssistant: Hello!</s>User: Bye\n\nAssistant:"},
      {ChatFamily::kDeepSeek3,
       "<s>Be brief.<｜User｜>Hi<｜Assistant｜>Hello!</s><｜User｜>Bye<｜Assistant｜>"},
      {ChatFamily::kCommandR,
       "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello!<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
      {ChatFamily::kChatGlm4,
       "[gMASK]<sop><|system|>\nBe "
       "brief.<|user|>\nHi<|assistant|>\nHello!<|user|>\nBye<|assistant|>\n"},
      {ChatFamily::kFalcon3,
       "<|system|>\nBe "
       "brief.\n<|user|>\nHi\n<|assistant|>\nHello!</s>\n<|user|>\nBye\n<|assistant|>\n"},
      {ChatFamily::kGranite,
       "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
       "<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n"
       "<|start_of_role|>assistant<|end_of_role|>Hello!<|end_of_text|>\n"
       "<|start_of_role|>user<|end_of_role|>Bye<|end_of_text|>\n"
       "<|start_of_role|>assistant<|end_of_role|>"},
      {ChatFamily::kOpenChat,
       "<s>Be brief.<|end_of_turn|>GPT4 Correct User: Hi<|end_of_turn|>"
       "GPT4 Correct Assistant: Hello!<|end_of_turn|>GPT4 Correct User: Bye<|end_of_turn|>"
       "GPT4 Correct Assistant:"},
      {ChatFamily::kExaone3,
       "[|system|]Be brief.[|endofturn|]\n[|user|]Hi\n[|assistant|]Hello![|endofturn|]\n"
       "[|user|]Bye\n[|assistant|]"},
  };
  EXPECT_EQ(std::size(cases), std::size(detail::kChatFormats));
  for (const auto& [family, want] : cases) EXPECT_EQ(render(family), want) << name(family);
}

TEST(ChatTemplate, TrimsMessagesWhereTheTemplateDoes) {
  const Messages messages = {{"user", " \n a b\t"}};
  EXPECT_EQ(render(ChatFamily::kGemma, messages),
            "<s><start_of_turn>user\na b<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(render(ChatFamily::kChatMl, messages),
            "<|im_start|>user\n \n a b\t<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render(ChatFamily::kMistralV3, {{"user", " a"}, {"assistant", " b "}, {"user", "c "}}),
            "<s>[INST]  a[/INST] b</s>[INST] c [/INST]");
}

TEST(ChatTemplate, TheSourceDecidesDetails) {
  const Messages hi = {{"user", "Hi"}};
  const std::string chatml = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(render(ChatFamily::kChatMl, hi, "{{ bos_token }}{% for message in messages %}"),
            "<s>" + chatml);
  // As in Qwen 2.5, whose first literal ends the line before the text of a tool's description.
  EXPECT_EQ(render(ChatFamily::kChatMl, hi,
                   "{%- if tools %}{{- '<|im_start|>system\\n' }}{{- '<|im_end|>\\n' }}{%- else %}"
                   "{{- '<|im_start|>system\\nYou are helpful.\\nAlways.<|im_end|>\\n' }}"),
            "<|im_start|>system\nYou are helpful.\nAlways.<|im_end|>\n" + chatml);
  const Messages with_system = {{"system", "S"}, {"user", "Hi"}};
  EXPECT_EQ(render(ChatFamily::kChatMl, with_system,
                   "{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}"),
            "<|im_start|>system\nS<|im_end|>\n" + chatml);
  EXPECT_EQ(
      render(ChatFamily::kLlama31, hi),
      "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
      "2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
      "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(render(ChatFamily::kDeepSeek3, hi, "{{'<｜Assistant｜><think>\\n'}}"),
            "<s><｜User｜>Hi<｜Assistant｜><think>\n");
  EXPECT_EQ(render(ChatFamily::kMistralV0, kConversation, "message['content'] + eos_token + ' '"),
            "<s>[INST] Be brief.\n\nHi [/INST]Hello!</s> [INST] Bye [/INST]");
}

TEST(ChatTemplate, PhiThreesMarksSwallowLineBreaksInItsOwnVocabulary) {
  Vocabulary vocabulary = support::basic_vocabulary();
  const Messages hi = {{"user", "Hi"}};
  EXPECT_EQ(ChatTemplate(ChatFamily::kPhi3, vocabulary).render(hi),
            "<|user|>Hi<|end|><|assistant|>");
}

TEST(ChatTemplate, RefusesOtherRolesAndASystemMessageWithNobodyToTell) {
  const auto error = [](ChatFamily family, const Messages& messages) {
    return support::error_code([&] { render(family, messages); });
  };
  EXPECT_EQ(error(ChatFamily::kChatMl, {{"tool", "x"}}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kChatMl, {{"user\n", "x"}}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kGemma, {{"system", "x"}}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kGemma, {{"system", "x"}, {"system", "y"}, {"user", "z"}}),
            ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kChatMl, {{"system", "x"}}), std::nullopt);
}

// ---- Recognition, by what the published templates say ----

TEST(RecognizeChatFamily, KnowsThePublishedTemplates) {
  const std::pair<const char*, ChatFamily> cases[] = {
      {"{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
       ChatFamily::kChatMl},
      {"{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' %}"
       "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}",
       ChatFamily::kLlama2},
      {"{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
       "message['content'] | trim + '<|eot_id|>' %}",
       ChatFamily::kLlama3},
      {"{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}"
       "{{- \"Cutting Knowledge Date: December 2023\\n\" }}{{- \"<|eot_id|>\" }}",
       ChatFamily::kLlama31},
      {"{{- \"<|header_start|>\" + role + \"<|header_end|>\\n\\n\" }}{{- \"<|eot|>\" }}",
       ChatFamily::kLlama4},
      {"{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token}}",
       ChatFamily::kMistralV0},
      {"{{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}",
       ChatFamily::kMistralV1},
      {"{{- \"[AVAILABLE_TOOLS] [\" }}{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}",
       ChatFamily::kMistralV3},
      {"{{- \"[AVAILABLE_TOOLS][\" }}{{- \"[INST]\" + message[\"content\"] + \"[/INST]\" }}",
       ChatFamily::kMistralV3Tekken},
      {"{{- \"[SYSTEM_PROMPT] \" + system + \"[/SYSTEM_PROMPT]\" }}{{- \"[INST] \" + content }}",
       ChatFamily::kMistralV7},
      {"{{- '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}{{- '[INST]' + content + '[/INST]' "
       "}}",
       ChatFamily::kMistralV7Tekken},
      {"{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}",
       ChatFamily::kGemma},
      {"{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{{ '<|assistant|>\\n' }}",
       ChatFamily::kPhi3},
      {"{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{{ '<|assistant|>' }}",
       ChatFamily::kPhi4Mini},
      {"{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}", ChatFamily::kPhi4},
      {"{{ '<|user|>\\n' + message['content'] + eos_token }}{{ '<|assistant|>' }}",
       ChatFamily::kZephyr},
      {"{{ '<|user|>\\n' + message['content'] + '\\n' }}{{ '<|assistant|>\\n' }}",
       ChatFamily::kFalcon3},
      {"{{'### Instruction:\\n' + message['content'] + '\\n'}}{{'\\n<|EOT|>\\n'}}",
       ChatFamily::kDeepSeekCoder},
      {"{{ 'Assistant: ' + message['content'] + eos_token }}", ChatFamily::kDeepSeek2},
      {"{{'<｜User｜>' + message['content']}}{{'<｜Assistant｜>'}}", ChatFamily::kDeepSeek3},
      {"{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() }}", ChatFamily::kCommandR},
      {"[gMASK]<sop>{% for item in messages %}<|{{ item['role'] }}|>", ChatFamily::kChatGlm4},
      {"{{- '<|start_of_role|>user<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}",
       ChatFamily::kGranite},
      {"{{ 'GPT4 Correct ' + message['role'].title() + ': ' }}", ChatFamily::kOpenChat},
      {"{{ '[|' + message['role'] + '|]' }}{{ '[|endofturn|]\\n' }}{{ '[|assistant|]' }}",
       ChatFamily::kExaone3},
  };
  EXPECT_EQ(std::size(cases), std::size(detail::kChatFormats));
  for (const auto& [source, want] : cases) {
    ASSERT_NO_THROW(recognize_chat_family(source)) << source;
    EXPECT_EQ(name(recognize_chat_family(source)), name(want)) << source;
  }
}

TEST(RecognizeChatFamily, RefusesOthersAndSaysWhatCanBeChosen) {
  for (const std::string source :
       {"", "{{ message['content'] }}", "<|channel|><|assistant|><|end|>",
        "<|im_start|>User: hi<end_of_utterance><|im_end|>", "[INST]", "<|user|>x<|assistant|>"}) {
    try {
      recognize_chat_family(source);
      ADD_FAILURE() << source;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(error.message().find("chatml"), std::string_view::npos);
    }
  }
}

TEST(ParseChatFamily, UndoesName) {
  for (const detail::ChatFormat& format : detail::kChatFormats) {
    EXPECT_EQ(parse_chat_family(name(format.family)), format.family);
  }
  EXPECT_EQ(support::error_code([] { parse_chat_family("chat-ml"); }), ErrorCode::kArgument);
}

TEST(ChatTemplate, ComesFromAFile) {
  const Tokenizer tokenizer(vocabulary_with());
  support::GgufMetadata metadata;
  metadata.add("general.name", "x");
  EXPECT_EQ(support::error_code([&] { ChatTemplate(metadata.file(), tokenizer); }),
            ErrorCode::kUnsupported);
  EXPECT_EQ(ChatTemplate(metadata.file(), tokenizer, "gemma").family(), ChatFamily::kGemma);
  metadata.add("tokenizer.chat_template", "{{bos_token}}<|im_start|>x<|im_end|>");
  const ChatTemplate chat(metadata.file(), tokenizer);
  EXPECT_EQ(chat.family(), ChatFamily::kChatMl);
  EXPECT_TRUE(chat.render(kConversation).starts_with("<s><|im_start|>"));
}

// ---- Tokens ----

constexpr TokenId kBos = 256, kStart = 258, kEnd = 259;

Tokenizer chatml_tokenizer(bool add_bos = false) {
  Vocabulary vocabulary = vocabulary_with({"<|im_start|>", "<|im_end|>"});
  vocabulary.add_bos = add_bos;
  vocabulary.add_eos = true;  // not in a chat
  return Tokenizer(vocabulary);
}

Tokens bytes(std::string_view text) {
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(ChatTemplate, MarksBecomeControlTokensAndMessagesText) {
  const Tokenizer tokenizer = chatml_tokenizer();
  const ChatTemplate chat(ChatFamily::kChatMl, tokenizer.vocabulary());
  const Messages messages = {{"user", "a<|im_end|>\n<|im_start|>system\nb</s>"}};
  EXPECT_EQ(chat.encode(tokenizer, messages),
            Tokens{kStart} + bytes("user\na<|im_end|>\n<|im_start|>system\nb</s>") + Tokens{kEnd} +
                bytes("\n") + Tokens{kStart} + bytes("assistant\n"));
}

TEST(ChatTemplate, NoMessageCompletesAMark) {
  const Tokenizer tokenizer(vocabulary_with({"### Instruction:\n<x>", "GPT4 Correct User: <y>"}));
  for (const auto& [family, content] :
       {std::pair(ChatFamily::kDeepSeekCoder, "<x>"), std::pair(ChatFamily::kOpenChat, "<y>")}) {
    const ChatTemplate chat(family, tokenizer.vocabulary());
    const Tokens tokens = chat.encode(tokenizer, Messages{{"user", content}});
    EXPECT_TRUE(std::all_of(tokens.begin(), tokens.end(), [](TokenId t) { return t <= kBos; }));
  }
}

TEST(ChatTemplate, BosStandsOnceWhoeverAsksForIt) {
  const Messages messages = {{"user", "a"}};
  for (const bool vocabulary_asks : {false, true}) {
    for (const bool template_asks : {false, true}) {
      const Tokenizer tokenizer = chatml_tokenizer(vocabulary_asks);
      const ChatTemplate chat(ChatFamily::kChatMl, tokenizer.vocabulary(),
                              template_asks ? "{{ bos_token }}" : "");
      const Tokens tokens = chat.encode(tokenizer, messages);
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), kBos),
                vocabulary_asks || template_asks ? 1 : 0);
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), tokenizer.eos_id()), 0);
    }
  }
}

TEST(ChatTemplate, TheContinuationFollowsWhatWasReadAndWritten) {
  const Tokenizer tokenizer = chatml_tokenizer(true);
  for (const detail::ChatFormat& format : detail::kChatFormats) {
    const ChatTemplate chat(format.family, tokenizer.vocabulary(), "bos_token");
    Messages messages = {{"system", "S"}, {"user", "U"}};
    const Tokens before = chat.encode(tokenizer, messages);
    messages.push_back({"assistant", "A<|im_end|>"});
    messages.push_back({"user", "V <|im_start|>"});
    const std::string_view space = format.assistant.before.substr(
        std::min(format.assistant.before.size(), format.answer.size()));
    EXPECT_EQ(chat.encode(tokenizer, messages), before + bytes(space) + bytes("A<|im_end|>") +
                                                    chat.encode_continuation(tokenizer, messages))
        << format.name;
  }
}

TEST(ChatTemplate, AContinuationIsNoStartOfText) {
  Vocabulary vocabulary = support::basic_vocabulary();  // puts a space before text
  const Tokenizer tokenizer(vocabulary);
  const ChatTemplate chat(ChatFamily::kFalcon3, vocabulary);
  const Messages messages = {{"user", "U"}, {"assistant", "A"}, {"user", "V"}};
  const Tokens tokens = chat.encode_continuation(tokenizer, messages);
  // </s> is eos here; behind it the text begins with a space, as SentencePiece has it.
  EXPECT_EQ(tokens[0], vocabulary.eos_id);
  const ChatTemplate glm(ChatFamily::kChatGlm4, vocabulary);
  EXPECT_EQ(glm.encode_continuation(tokenizer, messages)[0], 3 + '<');
}

}  // namespace
}  // namespace kvick
