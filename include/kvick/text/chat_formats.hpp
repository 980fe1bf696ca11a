// SPDX-License-Identifier: MIT
// How families of chat models write a conversation, for files that do not carry their template or
// carry one that cannot be run. Each is a program in Jinja of our own.
//
// Left out are tools and default system messages. Where a family has no place for a system message,
// its program refuses one (ChatTemplate then puts it before the first message of the user).
//
// Threads   Pure functions.
// Source    tokenizer.chat_template of the models; names as in llama.cpp where it has the family.
// Layer     text.
#pragma once

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

// ---- Implementation: nothing below is API ----

namespace detail {

struct ChatFormat {
  ChatFamily family;
  std::string_view name;
  std::string_view source;  // in Jinja
};

// U+FF5C stands in DeepSeek's marks.
inline constexpr ChatFormat kChatFormats[] = {
    {ChatFamily::kChatMl, "chatml",
     R"({% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }})"
     R"({% endfor %}{{ '<|im_start|>assistant\n' }})"},
    {ChatFamily::kLlama2, "llama2",
     R"({% set system = '' %}{% if messages[0].role == 'system' %})"
     R"({% set system = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' %})"
     R"({% set messages = messages[1:] %}{% endif %})"
     R"({% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('not here') }})"
     R"({% elif m.role == 'user' %}{% set text = (system if loop.first else '') ~ m.content %})"
     R"({{ bos_token ~ '[INST] ' ~ text.strip() ~ ' [/INST]' }})"
     R"({% else %}{{ ' ' ~ m.content.strip() ~ ' ' ~ eos_token }}{% endif %}{% endfor %})"},
    {ChatFamily::kLlama3, "llama3",
     R"({{ bos_token }}{% for m in messages %})"
     R"({{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' }})"
     R"({{ m.content | trim ~ '<|eot_id|>' }}{% endfor %})"
     R"({{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }})"},
    // The date is the one of the models' own templates where none is given.
    {ChatFamily::kLlama31, "llama3.1",
     R"({{ bos_token }}{% set system = '' %}{% if messages[0].role == 'system' %})"
     R"({% set system = messages[0].content | trim %}{% set messages = messages[1:] %}{% endif %})"
     R"({{ '<|start_header_id|>system<|end_header_id|>\n\n' }})"
     R"({{ 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' }})"
     R"({{ system ~ '<|eot_id|>' }}{% for m in messages %})"
     R"({{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' }})"
     R"({{ m.content | trim ~ '<|eot_id|>' }}{% endfor %})"
     R"({{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }})"},
    {ChatFamily::kLlama4, "llama4",
     R"({{ bos_token }}{% for m in messages %})"
     R"({{ '<|header_start|>' ~ m.role ~ '<|header_end|>\n\n' ~ m.content | trim ~ '<|eot|>' }})"
     R"({% endfor %}{{ '<|header_start|>assistant<|header_end|>\n\n' }})"},
    {ChatFamily::kMistralV0, "mistral-v0",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'user' %})"
     R"({{ '[INST] ' ~ m.content ~ ' [/INST]' }}{% elif m.role == 'assistant' %})"
     R"({{ m.content ~ eos_token }}{% else %}{{ raise_exception('no system') }}{% endif %})"
     R"({% endfor %})"},
    {ChatFamily::kMistralV1, "mistral-v1",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'user' %})"
     R"({{ ' [INST] ' ~ m.content ~ ' [/INST]' }}{% elif m.role == 'assistant' %})"
     R"({{ ' ' ~ m.content ~ eos_token }}{% else %}{{ raise_exception('no system') }}{% endif %})"
     R"({% endfor %})"},
    {ChatFamily::kMistralV3, "mistral-v3",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'user' %})"
     R"({{ '[INST] ' ~ m.content ~ '[/INST]' }}{% elif m.role == 'assistant' %})"
     R"({{ ' ' ~ m.content | trim ~ eos_token }}{% else %}{{ raise_exception('no system') }})"
     R"({% endif %}{% endfor %})"},
    {ChatFamily::kMistralV3Tekken, "mistral-v3-tekken",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'user' %})"
     R"({{ '[INST]' ~ m.content ~ '[/INST]' }}{% elif m.role == 'assistant' %})"
     R"({{ m.content ~ eos_token }}{% else %}{{ raise_exception('no system') }}{% endif %})"
     R"({% endfor %})"},
    {ChatFamily::kMistralV7, "mistral-v7",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'user' %})"
     R"({{ '[INST] ' ~ m.content ~ '[/INST]' }}{% elif m.role == 'assistant' %})"
     R"({{ ' ' ~ m.content ~ eos_token }}{% else %})"
     R"({{ '[SYSTEM_PROMPT] ' ~ m.content ~ '[/SYSTEM_PROMPT]' }}{% endif %}{% endfor %})"},
    {ChatFamily::kMistralV7Tekken, "mistral-v7-tekken",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'user' %})"
     R"({{ '[INST]' ~ m.content ~ '[/INST]' }}{% elif m.role == 'assistant' %})"
     R"({{ m.content ~ eos_token }}{% else %})"
     R"({{ '[SYSTEM_PROMPT]' ~ m.content ~ '[/SYSTEM_PROMPT]' }}{% endif %}{% endfor %})"},
    {ChatFamily::kGemma, "gemma",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'system' %})"
     R"({{ raise_exception('no system') }}{% endif %})"
     R"({{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else 'user') ~ '\n' }})"
     R"({{ m.content | trim ~ '<end_of_turn>\n' }}{% endfor %}{{ '<start_of_turn>model\n' }})"},
    {ChatFamily::kPhi3, "phi3",
     R"({% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '<|end|>\n' }}{% endfor %})"
     R"({{ '<|assistant|>\n' }})"},
    {ChatFamily::kPhi4, "phi4",
     R"({% for m in messages %})"
     R"({{ '<|im_start|>' ~ m.role ~ '<|im_sep|>' ~ m.content ~ '<|im_end|>' }}{% endfor %})"
     R"({{ '<|im_start|>assistant<|im_sep|>' }})"},
    {ChatFamily::kPhi4Mini, "phi4-mini",
     R"({% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}{% endfor %})"
     R"({{ '<|assistant|>' }})"},
    {ChatFamily::kZephyr, "zephyr",
     R"({% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ eos_token ~ '\n' }})"
     R"({% endfor %}{{ '<|assistant|>\n' }})"},
    {ChatFamily::kDeepSeekCoder, "deepseek",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }})"
     R"({% elif m.role == 'user' %}{{ '### Instruction:\n' ~ m.content ~ '\n' }}{% else %})"
     R"({{ '### Response:\n' ~ m.content ~ '\n<|EOT|>\n' }}{% endif %}{% endfor %})"
     R"({{ '### Response:\n' }})"},
    {ChatFamily::kDeepSeek2, "deepseek2",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content ~ '\n\n' }})"
     R"({% elif m.role == 'user' %}{{ 'User: ' ~ m.content ~ '\n\n' }}{% else %})"
     R"({{ 'Assistant: ' ~ m.content ~ eos_token }}{% endif %}{% endfor %}{{ 'Assistant:' }})"},
    {ChatFamily::kDeepSeek3, "deepseek3",
     R"({{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }})"
     R"({% elif m.role == 'user' %}{{ '<｜User｜>' ~ m.content }}{% else %})"
     R"({{ '<｜Assistant｜>' ~ m.content ~ eos_token }}{% endif %}{% endfor %})"
     R"({{ '<｜Assistant｜>' }})"},
    {ChatFamily::kCommandR, "command-r",
     R"({{ bos_token }}{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|>' }})"
     R"({{ '<|CHATBOT_TOKEN|>' if m.role == 'assistant' else '<|' ~ m.role | upper ~ '_TOKEN|>' }})"
     R"({{ m.content | trim ~ '<|END_OF_TURN_TOKEN|>' }}{% endfor %})"
     R"({{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }})"},
    {ChatFamily::kChatGlm4, "chatglm4",
     R"({{ '[gMASK]<sop>' }}{% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content }})"
     R"({% endfor %}{{ '<|assistant|>\n' }})"},
    {ChatFamily::kFalcon3, "falcon3",
     R"({% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content }})"
     R"({{ (eos_token if m.role == 'assistant' else '') ~ '\n' }}{% endfor %})"
     R"({{ '<|assistant|>\n' }})"},
    {ChatFamily::kGranite, "granite",
     R"({% for m in messages %}{{ '<|start_of_role|>' ~ m.role ~ '<|end_of_role|>' }})"
     R"({{ m.content ~ '<|end_of_text|>\n' }}{% endfor %})"
     R"({{ '<|start_of_role|>assistant<|end_of_role|>' }})"},
    {ChatFamily::kOpenChat, "openchat",
     R"({{ bos_token }}{% for m in messages %})"
     R"({{ '' if m.role == 'system' else 'GPT4 Correct ' ~ m.role | title ~ ': ' }})"
     R"({{ m.content ~ '<|end_of_turn|>' }}{% endfor %}{{ 'GPT4 Correct Assistant:' }})"},
    {ChatFamily::kExaone3, "exaone3",
     R"({% for m in messages %}{{ '[|' ~ m.role ~ '|]' ~ m.content | trim }})"
     R"({{ ('' if m.role == 'user' else '[|endofturn|]') ~ '\n' }}{% endfor %})"
     R"({{ '[|assistant|]' }})"},
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

}  // namespace kvick::inline v0_1
