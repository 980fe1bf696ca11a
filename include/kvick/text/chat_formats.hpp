// SPDX-License-Identifier: MIT
// How families of chat models write a conversation, and which family a template belongs to.
//
// Model files carry their template as a program in Jinja. It is not run: templates in use belong to
// a few families, which differ in the marks around a message. A family is recognized by marks that
// no other has, and a template of none is an error, never a guess.
//
// Left out are tools, and default system messages, except where a template states one in full.
//
// Threads   Pure functions.
// Source    tokenizer.chat_template of the models; names as in llama.cpp where it has the family.
// Layer     text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kvick/core/error.hpp"

namespace kvick::inline v0_1 {

enum class ChatFamily {
  kChatMl,  ///< Qwen, SmolLM, Yi, Hermes and many others
  kLlama2,
  kLlama3,
  kLlama31,  ///< and 3.2, 3.3: a system message that begins with dates
  kLlama4,
  kMistralV0,  ///< 7B Instruct 0.1 and 0.2 as first published
  kMistralV1,
  kMistralV3,
  kMistralV3Tekken,
  kMistralV7,
  kMistralV7Tekken,
  kGemma,
  kPhi3,
  kPhi4,
  kPhi4Mini,
  kZephyr,  ///< and TinyLlama
  kDeepSeekCoder,
  kDeepSeek2,
  kDeepSeek3,  ///< and R1
  kCommandR,
  kChatGlm4,
  kFalcon3,
  kGranite,
  kOpenChat,
  kExaone3,
};

/// The name of a family, such as "chatml".
inline std::string_view name(ChatFamily family);

/// The family of that name; an unknown name is Error(kArgument) that lists the known ones.
inline ChatFamily parse_chat_family(std::string_view name);

/// The family that a file's tokenizer.chat_template belongs to; Error(kUnsupported) if none is
/// known.
inline ChatFamily recognize_chat_family(std::string_view chat_template);

// ---- Implementation: nothing below is API ----

namespace detail {

/// What stands before and after a message. {bos} and {eos} are the vocabulary's tokens.
struct ChatFrame {
  std::string_view before;
  std::string_view after;
};

struct ChatStyle {
  bool system_joins_user = false;      // a system message stands within the next user message
  bool trims = false;                  // white space around messages is dropped
  bool trims_assistant = false;        // around the assistant's only
  std::string_view system_start = {};  // begins every system message; then there always is one
};

struct ChatFormat {
  ChatFamily family;
  std::string_view name;
  std::string_view start;
  ChatFrame system;
  ChatFrame user;
  ChatFrame assistant;
  std::string_view answer;  // what the model's answer follows
  ChatStyle style = {};
};

// U+FF5C and U+2581 stand in DeepSeek's marks.
inline constexpr ChatFormat kChatFormats[] = {
    {ChatFamily::kChatMl,
     "chatml",
     "",
     {"<|im_start|>system\n", "<|im_end|>\n"},
     {"<|im_start|>user\n", "<|im_end|>\n"},
     {"<|im_start|>assistant\n", "<|im_end|>\n"},
     "<|im_start|>assistant\n"},
    {ChatFamily::kLlama2,
     "llama2",
     "",
     {"<<SYS>>\n", "\n<</SYS>>\n\n"},
     {"{bos}[INST] ", " [/INST]"},
     {" ", " {eos}"},
     "",
     {.system_joins_user = true, .trims = true}},
    {ChatFamily::kLlama3,
     "llama3",
     "{bos}",
     {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     {.trims = true}},
    {ChatFamily::kLlama31,
     "llama3.1",
     "{bos}",
     {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     {.trims = true,
      // The templates' own date where none is given: the same prompt on every day.
      .system_start = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"}},
    {ChatFamily::kLlama4,
     "llama4",
     "{bos}",
     {"<|header_start|>system<|header_end|>\n\n", "<|eot|>"},
     {"<|header_start|>user<|header_end|>\n\n", "<|eot|>"},
     {"<|header_start|>assistant<|header_end|>\n\n", "<|eot|>"},
     "<|header_start|>assistant<|header_end|>\n\n",
     {.trims = true}},
    {ChatFamily::kMistralV0,
     "mistral-v0",
     "{bos}",
     {"", "\n\n"},
     {"[INST] ", " [/INST]"},
     {"", "{eos}"},
     "",
     {.system_joins_user = true}},
    {ChatFamily::kMistralV1,
     "mistral-v1",
     "{bos}",
     {"", "\n\n"},
     {" [INST] ", " [/INST]"},
     {" ", "{eos}"},
     "",
     {.system_joins_user = true}},
    {ChatFamily::kMistralV3,
     "mistral-v3",
     "{bos}",
     {"", "\n\n"},
     {"[INST] ", "[/INST]"},
     {" ", "{eos}"},
     "",
     {.system_joins_user = true, .trims_assistant = true}},
    {ChatFamily::kMistralV3Tekken,
     "mistral-v3-tekken",
     "{bos}",
     {"", "\n\n"},
     {"[INST]", "[/INST]"},
     {"", "{eos}"},
     "",
     {.system_joins_user = true}},
    {ChatFamily::kMistralV7,
     "mistral-v7",
     "{bos}",
     {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
     {"[INST] ", "[/INST]"},
     {" ", "{eos}"},
     ""},
    {ChatFamily::kMistralV7Tekken,
     "mistral-v7-tekken",
     "{bos}",
     {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     {"[INST]", "[/INST]"},
     {"", "{eos}"},
     ""},
    {ChatFamily::kGemma,
     "gemma",
     "{bos}",
     {"", "\n\n"},
     {"<start_of_turn>user\n", "<end_of_turn>\n"},
     {"<start_of_turn>model\n", "<end_of_turn>\n"},
     "<start_of_turn>model\n",
     {.system_joins_user = true, .trims = true}},
    {ChatFamily::kPhi3,
     "phi3",
     "",
     {"<|system|>\n", "<|end|>\n"},
     {"<|user|>\n", "<|end|>\n"},
     {"<|assistant|>\n", "<|end|>\n"},
     "<|assistant|>\n"},
    {ChatFamily::kPhi4,
     "phi4",
     "",
     {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
     {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
     {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"},
     "<|im_start|>assistant<|im_sep|>"},
    {ChatFamily::kPhi4Mini,
     "phi4-mini",
     "",
     {"<|system|>", "<|end|>"},
     {"<|user|>", "<|end|>"},
     {"<|assistant|>", "<|end|>"},
     "<|assistant|>"},
    {ChatFamily::kZephyr,
     "zephyr",
     "",
     {"<|system|>\n", "{eos}\n"},
     {"<|user|>\n", "{eos}\n"},
     {"<|assistant|>\n", "{eos}\n"},
     "<|assistant|>\n"},
    {ChatFamily::kDeepSeekCoder,
     "deepseek",
     "{bos}",
     {"", ""},
     {"### Instruction:\n", "\n"},
     {"### Response:\n", "\n<|EOT|>\n"},
     "### Response:\n"},
    {ChatFamily::kDeepSeek2,
     "deepseek2",
     "{bos}",
     {"", "\n\n"},
     {"User: ", "\n\n"},
     {"Assistant: ", "{eos}"},
     "Assistant:"},
    {ChatFamily::kDeepSeek3,
     "deepseek3",
     "{bos}",
     {"", ""},
     {"<｜User｜>", ""},
     {"<｜Assistant｜>", "{eos}"},
     "<｜Assistant｜>"},
    {ChatFamily::kCommandR,
     "command-r",
     "{bos}",
     {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     {"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     {"<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
     {.trims = true}},
    {ChatFamily::kChatGlm4,
     "chatglm4",
     "[gMASK]<sop>",
     {"<|system|>\n", ""},
     {"<|user|>\n", ""},
     {"<|assistant|>\n", ""},
     "<|assistant|>\n"},
    {ChatFamily::kFalcon3,
     "falcon3",
     "",
     {"<|system|>\n", "\n"},
     {"<|user|>\n", "\n"},
     {"<|assistant|>\n", "{eos}\n"},
     "<|assistant|>\n"},
    {ChatFamily::kGranite,
     "granite",
     "",
     {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"},
     {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},
     {"<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"},
     "<|start_of_role|>assistant<|end_of_role|>"},
    {ChatFamily::kOpenChat,
     "openchat",
     "{bos}",
     {"", "<|end_of_turn|>"},
     {"GPT4 Correct User: ", "<|end_of_turn|>"},
     {"GPT4 Correct Assistant: ", "<|end_of_turn|>"},
     "GPT4 Correct Assistant:"},
    {ChatFamily::kExaone3,
     "exaone3",
     "",
     {"[|system|]", "[|endofturn|]\n"},
     {"[|user|]", "\n"},
     {"[|assistant|]", "[|endofturn|]\n"},
     "[|assistant|]",
     {.trims = true}},
};

inline const ChatFormat& chat_format(ChatFamily family) {
  for (const ChatFormat& format : kChatFormats) {
    if (format.family == family) return format;
  }
  throw Error(ErrorCode::kArgument, "ChatTemplate", "family must be one of ChatFamily");
}

inline std::string chat_family_names() {
  std::string names;
  for (const ChatFormat& format : kChatFormats) {
    if (!names.empty()) names += ", ";
    names += format.name;
  }
  return names;
}

/// A template may write a line break within a literal as it is or as \n.
inline bool has_line_after(std::string_view source, std::string_view mark) {
  const std::string as_is = std::string(mark) + "\n";
  const std::string escaped = std::string(mark) + "\\n";
  return source.find(as_is) != std::string_view::npos ||
         source.find(escaped) != std::string_view::npos;
}

}  // namespace detail

inline std::string_view name(ChatFamily family) { return detail::chat_format(family).name; }

inline ChatFamily parse_chat_family(std::string_view name) {
  for (const detail::ChatFormat& format : detail::kChatFormats) {
    if (format.name == name) return format.family;
  }
  throw Error(ErrorCode::kArgument, "parse_chat_family",
              detail::concat("chat family must be one of ", detail::chat_family_names(), ", got ",
                             detail::in_quotes(name)));
}

inline ChatFamily recognize_chat_family(std::string_view source) {
  const auto has = [&](std::string_view mark) { return source.find(mark) != std::string::npos; };
  using enum ChatFamily;
  if (has("<|im_start|>") && has("<|im_sep|>")) return kPhi4;
  // SmolVLM begins its turns otherwise.
  if (has("<|im_start|>") && has("<|im_end|>") && !has("<end_of_utterance>")) return kChatMl;
  if (has("[INST]")) {
    if (has("[SYSTEM_PROMPT]")) return has("[INST] ") ? kMistralV7 : kMistralV7Tekken;
    if (has("<<SYS>>")) return kLlama2;
    if (has(" [INST]") && has(" [/INST]")) return kMistralV1;
    if (has("[AVAILABLE_TOOLS]")) return has("[INST] ") ? kMistralV3 : kMistralV3Tekken;
    if (has("[INST] ") && has(" [/INST]")) return kMistralV0;
  }
  if (has("<|start_header_id|>") && has("<|eot_id|>")) {
    return has("Cutting Knowledge Date: December 2023") ? kLlama31 : kLlama3;
  }
  if (has("<|header_start|>") && has("<|eot|>")) return kLlama4;
  if (has("<start_of_turn>") && has("<end_of_turn>")) return kGemma;
  if (has("[gMASK]<sop>")) return kChatGlm4;
  if (has("<|assistant|>") && has("<|end|>") && !has("<|channel|>")) {
    return detail::has_line_after(source, "<|end|>") ? kPhi3 : kPhi4Mini;
  }
  if (has("<|user|>") && has("<|assistant|>")) {
    if (has("<|user|>\\n' + message['content'] + eos_token")) return kZephyr;
    if (has("<|user|>\\n' + message['content'] + '\\n'")) return kFalcon3;
  }
  if (has("### Instruction:") && has("<|EOT|>")) return kDeepSeekCoder;
  if (has("'Assistant: ' + message['content'] + eos_token")) return kDeepSeek2;
  if (has("<｜User｜>") && has("<｜Assistant｜>")) return kDeepSeek3;
  if (has("<|START_OF_TURN_TOKEN|>") && has("<|CHATBOT_TOKEN|>")) return kCommandR;
  if (has("<|start_of_role|>") && has("<|end_of_text|>")) return kGranite;
  if (has("GPT4 Correct ")) return kOpenChat;
  if (has("[|assistant|]") && has("[|endofturn|]") && !has("[|tool|]")) return kExaone3;
  throw Error(ErrorCode::kUnsupported, "ChatTemplate",
              detail::concat("the file's chat template must be of a known family, got ",
                             detail::in_quotes(source),
                             "; choose the family it is like: ", detail::chat_family_names()));
}

}  // namespace kvick::inline v0_1
