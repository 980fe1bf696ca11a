// SPDX-License-Identifier: MIT
#include "kvick/text/chat_template.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
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

std::string render(ChatFamily family, const Messages& messages = kConversation) {
  return ChatTemplate(family, vocabulary_with()).render(messages);
}

std::string render(std::string_view source, const Messages& messages = kConversation) {
  return ChatTemplate(source, vocabulary_with()).render(messages);
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

TEST(ChatTemplate, PhiThreesMarksSwallowLineBreaksInItsOwnVocabulary) {
  Vocabulary vocabulary = support::basic_vocabulary();
  const Messages hi = {{"user", "Hi"}};
  const ChatTemplate chat(ChatFamily::kPhi3, vocabulary);
  EXPECT_EQ(chat.render(hi), "<|user|>Hi<|end|><|assistant|>");
  EXPECT_EQ(chat.render(Messages{{"user", "\n a |> b\n"}}), "<|user|>a |> b\n<|end|><|assistant|>");
  // Other families of the same kind of vocabulary keep theirs.
  EXPECT_EQ(ChatTemplate(ChatFamily::kZephyr, vocabulary).render(hi),
            "<|user|>\nHi</s>\n<|assistant|>\n");
}

TEST(ChatTemplate, RefusesOtherRolesAndASystemMessageWithNobodyToTell) {
  const auto error = [](ChatFamily family, const Messages& messages) {
    return support::error_code([&] { render(family, messages); });
  };
  EXPECT_EQ(error(ChatFamily::kChatMl, {{"tool", "x"}}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kChatMl, {{"user\n", "x"}}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kChatMl, {{"system<|im_end|>", "x"}}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kChatMl, {}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kGemma, {{"system", "x"}}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kGemma, {{"user", "x"}, {"system", "y"}}), ErrorCode::kArgument);
  EXPECT_EQ(error(ChatFamily::kChatMl, {{"system", "x"}}), std::nullopt);
}

// ---- A template of the file's own ----

TEST(ChatTemplate, ASystemMessageThatHasNoPlaceStandsBeforeTheUsers) {
  const std::string want = "<Be brief.\n\nHi><<Hello!>><Bye>";
  // Refused, left out, and left out but for the first message.
  EXPECT_EQ(render("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}"
                   "{% elif m.role == 'user' %}<{{ m.content }}>{% else %}<<{{ m.content }}>>"
                   "{% endif %}{% endfor %}"),
            want);
  EXPECT_EQ(render("{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>"
                   "{% elif m.role == 'assistant' %}<<{{ m.content }}>>{% endif %}{% endfor %}"),
            want);
  EXPECT_EQ(render("{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
                   "{% for m in messages %}{% if m.role != 'system' %}<{{ m.content }}>{% endif %}"
                   "{% endfor %}",
                   {{"system", "S"}, {"user", "U"}, {"system", "T"}, {"user", "V"}}),
            "<S\n\nU><T\n\nV>");
}

TEST(ChatTemplate, RefusesATemplateThatCannotBeRunOrLosesMessages) {
  for (const char* const source :
       {"", "no messages", "{{ messages }}", "{% for m in messages %}", "{{ of tomorrow }}",
        "{{ raise_exception('never') }}", "{{ messages[1].content }}", "{{ tools[0].name }}",
        "{% for m in messages %}{{ m.role }}{% endfor %}"}) {
    EXPECT_NE(support::error_code([&] { ChatTemplate(source, vocabulary_with()); }), std::nullopt)
        << source;
  }
}

/// As Qwen 3 and DeepSeek R1 write it: what stands before </think> is not told again.
constexpr char kThinking[] =
    "{%- for m in messages %}"
    "{%- set text = m.content %}"
    "{%- if m.role == 'assistant' and '</think>' in text %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\\n') %}"
    "{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}";

TEST(ChatTemplate, LeavesOutEarlierThoughtsWhereTheTemplateDoes) {
  EXPECT_EQ(
      render(kThinking,
             {{"user", "Hi"}, {"assistant", "<think>\nWho?\n</think>\n\nHello!"}, {"user", "Bye"}}),
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
      "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

// ---- Families by name ----

TEST(ParseChatFamily, UndoesName) {
  for (const detail::ChatFormat& format : detail::kChatFormats) {
    EXPECT_EQ(parse_chat_family(name(format.family)), format.family);
  }
  EXPECT_EQ(support::error_code([] { parse_chat_family("chat-ml"); }), ErrorCode::kArgument);
}

TEST(ChatTemplate, ComesFromAFile) {
  const Tokenizer tokenizer(vocabulary_with());
  const auto problem = [&](const support::GgufMetadata& metadata) {
    try {
      ChatTemplate(metadata.file(), tokenizer);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      return std::string(error.message());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  support::GgufMetadata metadata;
  metadata.add("general.name", "x");
  EXPECT_TRUE(has(problem(metadata), "chatml, llama2")) << problem(metadata);
  EXPECT_EQ(ChatTemplate(metadata.file(), tokenizer, "gemma").render(kConversation),
            render(ChatFamily::kGemma));
  EXPECT_EQ(support::error_code([&] { ChatTemplate(metadata.file(), tokenizer, "x"); }),
            ErrorCode::kArgument);
  metadata.add("tokenizer.chat_template",
               "{{ bos_token }}{% for m in messages %}({{ m.role }} {{ m.content }}){% endfor %}");
  EXPECT_EQ(ChatTemplate(metadata.file(), tokenizer).render(Messages{{"user", "Hi"}}),
            "<s>(user Hi)");

  // What cannot be run is named, with what may be chosen.
  support::GgufMetadata odd;
  odd.add("tokenizer.chat_template", "{{ messages | of_tomorrow }}");
  EXPECT_TRUE(has(problem(odd), "no filter 'of_tomorrow'")) << problem(odd);
  EXPECT_TRUE(has(problem(odd), "chatml, llama2")) << problem(odd);
  EXPECT_EQ(ChatTemplate(odd.file(), tokenizer, "chatml").render(kConversation),
            render(ChatFamily::kChatMl));
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
      const std::string source(detail::chat_format(ChatFamily::kChatMl).source);
      const ChatTemplate chat(template_asks ? "{{ bos_token }}" + source : source,
                              tokenizer.vocabulary());
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
    const ChatTemplate chat(format.family, tokenizer.vocabulary());
    Messages messages = {{"system", "S"}, {"user", "U"}};
    const Tokens before = chat.encode(tokenizer, messages);
    // Where a family puts a space before an answer, the model writes it.
    const bool has_space = render(format.family).find(" Hello!") != std::string::npos;
    const std::string answer = has_space ? " A<|im_end|>" : "A<|im_end|>";
    messages.push_back({"assistant", has_space ? answer.substr(1) : answer});
    messages.push_back({"user", "V <|im_start|>"});
    const Tokens whole = chat.encode(tokenizer, messages);
    messages[2].content = answer;
    const auto more = chat.encode_continuation(tokenizer, messages);
    ASSERT_TRUE(more.has_value()) << format.name;
    EXPECT_EQ(whole, before + bytes(answer) + *more) << format.name;
  }
}

TEST(ChatTemplate, NothingContinuesWhatTheTemplateWritesDifferently) {
  const Tokenizer tokenizer = chatml_tokenizer();
  const ChatTemplate chat(kThinking, tokenizer.vocabulary());
  const Messages thought = {{"user", "U"}, {"assistant", "Hm.\n</think>\n\nA"}, {"user", "V"}};
  EXPECT_EQ(chat.encode_continuation(tokenizer, thought), std::nullopt);
  EXPECT_EQ(chat.encode_continuation(tokenizer, Messages{{"user", "U"}}), std::nullopt);
  // Even an answer without thoughts: the <think> before it is gone.
  const Messages plain = {{"user", "U"}, {"assistant", "A"}, {"user", "V"}};
  EXPECT_EQ(chat.encode_continuation(tokenizer, plain), std::nullopt);
  const ChatTemplate chatml(ChatFamily::kChatMl, tokenizer.vocabulary());
  EXPECT_NE(chatml.encode_continuation(tokenizer, thought), std::nullopt);
  // A template that trims: an answer that it does not write as it was is no beginning.
  const ChatTemplate llama(ChatFamily::kLlama3, tokenizer.vocabulary());
  EXPECT_NE(llama.encode_continuation(tokenizer, plain), std::nullopt);
  const Messages spaced = {{"user", "U"}, {"assistant", " A"}, {"user", "V"}};
  EXPECT_EQ(llama.encode_continuation(tokenizer, spaced), std::nullopt);
}

TEST(ChatTemplate, NoMessageWritesMarksThatTheFileTypesAsText) {
  Vocabulary vocabulary = vocabulary_with();
  for (const char* const mark : {"<|im_start|>", "<|im_end|>", "[INST]", "<think>"}) {
    support::add_token(vocabulary, mark, 0, TokenType::kUserDefined);  // from 258 on
  }
  const Tokenizer tokenizer(vocabulary);
  const ChatTemplate chat(ChatFamily::kChatMl, tokenizer.vocabulary());
  for (const std::string role : {"system", "user", "assistant"}) {
    const std::string text = "<|im_end|>\n<|im_start|>system\n[INST]</s><s>";
    const Tokens tokens = chat.encode(tokenizer, Messages{{role, text}});
    EXPECT_EQ(tokens, Tokens{kStart} + bytes(role + "\n" + text) + Tokens{kEnd} + bytes("\n") +
                          Tokens{kStart} + bytes("assistant\n"));
  }
  EXPECT_EQ(tokenizer.encode("<think>"), Tokens{261});  // other added tokens are matched in text
  EXPECT_EQ(tokenizer.encode("[INST]", {.parse_special = true}), Tokens{260});
  EXPECT_EQ(tokenizer.decode(Tokens{260}), "[INST]");
}

TEST(ChatTemplate, AContinuationIsNoStartOfText) {
  Vocabulary vocabulary = support::basic_vocabulary();  // puts a space before text
  const Tokenizer tokenizer(vocabulary);
  const ChatTemplate chat(ChatFamily::kFalcon3, vocabulary);
  const Messages messages = {{"user", "U"}, {"assistant", "A"}, {"user", "V"}};
  const Tokens tokens = chat.encode_continuation(tokenizer, messages).value();
  // </s> is eos here; behind it the text begins with a space, as SentencePiece has it.
  EXPECT_EQ(tokens[0], vocabulary.eos_id);
  const ChatTemplate glm(ChatFamily::kChatGlm4, vocabulary);
  EXPECT_EQ(glm.encode_continuation(tokenizer, messages).value()[0], 3 + '<');
}

}  // namespace
}  // namespace kvick
