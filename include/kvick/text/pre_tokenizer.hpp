// SPDX-License-Identifier: MIT
// How byte-level BPE splits a text into words, none of which a token may cross.
//
// Every family of models has a rule of its own, published as a regular expression, or as several
// of which each splits what the ones before it left. Here each expression is a function over
// classes of characters (word_patterns.hpp). A match is a word, and so is what lies between two
// matches.
//
// Accuracy  The words of the models' own tokenizers, with the classes of Unicode 15. As in
//           llama.cpp, ignoring case does not make U+017F an "s", and text is not normalized.
//           Bytes that are no UTF-8 count as characters without a class.
// Errors    Error(kUnsupported) for a name that is not known.
// Threads   Pure functions; linear in the text, without allocation.
// Source    tokenizer.json of the models; names as in GGUF's tokenizer.ggml.pre.
// Layer     text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/text/word_patterns.hpp"

namespace kvick::inline v0_1 {

/// A rule, named after the first model known for it.
enum class SplittingRule {
  kGpt2,
  kStarCoder,
  kLlama3,
  kQwen2,
  kQwen35,
  kTekken,
  kGpt4o,
  kDeepSeekLlm,
  kDeepSeekCoder,
  kDeepSeek3,
  kFalcon,
  kBloom,
  kViking,
};

/// What the name of a pre-tokenizer says about a vocabulary.
struct PreTokenizer {
  std::string_view name;
  SplittingRule rule;
  bool ignores_merges = false;  ///< a word that is a token is never made by merging
  bool adds_bos = false;        ///< unless the file says otherwise
};

/// The pre-tokenizer of that name, or nullptr; "default" and the empty name are none.
inline const PreTokenizer* find_pre_tokenizer(std::string_view name) noexcept;

/// The same, but an unknown name is an error that lists the known ones.
inline const PreTokenizer& require_pre_tokenizer(std::string_view name);

/// The words of `text`, one after another: visit(std::string_view) for each. They make up the text.
template <class Visit>
void split_words(SplittingRule rule, std::string_view text, Visit&& visit);

// ---- Implementation: nothing below is API ----

namespace detail {

inline constexpr PreTokenizer kPreTokenizers[] = {
    {"gpt-2", SplittingRule::kGpt2},
    {"phi-2", SplittingRule::kGpt2},
    {"mpt", SplittingRule::kGpt2},
    {"olmo", SplittingRule::kGpt2},
    {"jais", SplittingRule::kGpt2},
    {"exaone4", SplittingRule::kGpt2},
    {"gigachat", SplittingRule::kGpt2},
    {"granite-docling", SplittingRule::kGpt2},
    {"mellum", SplittingRule::kGpt2},
    {"trillion", SplittingRule::kGpt2},
    {"starcoder", SplittingRule::kStarCoder},
    {"refact", SplittingRule::kStarCoder},
    {"command-r", SplittingRule::kStarCoder},
    {"smollm", SplittingRule::kStarCoder},
    {"codeshell", SplittingRule::kStarCoder},
    {"exaone", SplittingRule::kStarCoder},
    {"minerva-7b", SplittingRule::kStarCoder},
    {"llama-bpe", SplittingRule::kLlama3, true, true},
    {"llama3", SplittingRule::kLlama3, true, true},
    {"llama-v3", SplittingRule::kLlama3, true, true},
    {"falcon3", SplittingRule::kLlama3, true, true},
    {"falcon-h1", SplittingRule::kLlama3, true, true},
    {"lfm2", SplittingRule::kLlama3, true, true},
    {"pixtral", SplittingRule::kLlama3, true, true},
    {"dbrx", SplittingRule::kLlama3},
    {"smaug-bpe", SplittingRule::kLlama3},
    {"chatglm-bpe", SplittingRule::kLlama3},
    {"glm4", SplittingRule::kLlama3},
    {"qwen2", SplittingRule::kQwen2},
    {"deepseek-r1-qwen", SplittingRule::kQwen2},
    {"hunyuan", SplittingRule::kQwen2},
    {"megrez", SplittingRule::kQwen2},
    {"stablelm2", SplittingRule::kQwen2},
    {"qwen35", SplittingRule::kQwen35},
    {"tekken", SplittingRule::kTekken, true, true},
    {"gpt-4o", SplittingRule::kGpt4o},
    {"llama4", SplittingRule::kGpt4o},
    {"minimax-m2", SplittingRule::kGpt4o},
    {"deepseek-llm", SplittingRule::kDeepSeekLlm},
    {"deepseek-coder", SplittingRule::kDeepSeekCoder},
    {"deepseek-v3", SplittingRule::kDeepSeek3},
    {"hunyuan-dense", SplittingRule::kDeepSeek3},
    {"falcon", SplittingRule::kFalcon},
    {"bloom", SplittingRule::kBloom},
    {"gpt3-finnish", SplittingRule::kBloom},
    {"poro", SplittingRule::kBloom},
    {"poro-chat", SplittingRule::kBloom},
    {"viking", SplittingRule::kViking},
};

inline std::string pre_tokenizer_names() {
  std::string names;
  for (const PreTokenizer& known : kPreTokenizers) {
    if (!names.empty()) names += ", ";
    names += known.name;
  }
  return names;
}

/// Splits `text` by one expression: match(text) gives the bytes of its match at the front, or 0.
template <class Match, class Visit>
void split_by(std::string_view text, Match match, Visit&& visit) {
  std::size_t begin = 0;  // of what has not been visited
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const std::size_t length = match(rest);
    if (length == 0) {
      at += front_character(rest).num_bytes;
      continue;
    }
    if (begin < at) visit(text.substr(begin, at - begin));
    visit(rest.substr(0, length));
    begin = at += length;
  }
  if (begin < text.size()) visit(text.substr(begin));
}

/// Splits by \s+$ : the white space at the end. Not by trying every place, which would take
/// quadratic time where white space stands in the middle.
template <class Visit>
void split_trailing_space(std::string_view text, Visit&& visit) {
  std::size_t end = 0;  // of the last character that is no space
  for (std::size_t at = 0; at < text.size();) {
    const Character c = front_character(text.substr(at));
    at += c.num_bytes;
    if (c.character_class != CharacterClass::kSpace) end = at;
  }
  if (end > 0) visit(text.substr(0, end));
  if (end < text.size()) visit(text.substr(end));
}

template <class Visit>
void split_deepseek_llm(std::string_view text, Visit&& visit) {
  namespace p = patterns;
  split_by(text, p::line_break, [&](std::string_view line) {
    split_by(line, p::deepseek_word, [&](std::string_view word) {
      split_by(word, p::deepseek_punctuation, [&](std::string_view part) {
        split_trailing_space(part, [&](std::string_view spaced) {
          split_by(spaced, p::deepseek_cjk,
                   [&](std::string_view run) { split_by(run, p::numbers, visit); });
        });
      });
    });
  });
}

template <class Visit>
void split_deepseek_coder(std::string_view text, Visit&& visit) {
  namespace p = patterns;
  split_by(text, p::line_break, [&](std::string_view line) {
    split_by(line, p::spaced_letters, [&](std::string_view word) {
      split_by(word, p::spaced_punctuation, [&](std::string_view part) {
        split_by(part, p::deepseek_cjk,
                 [&](std::string_view run) { split_by(run, p::number, visit); });
      });
    });
  });
}

}  // namespace detail

inline const PreTokenizer* find_pre_tokenizer(std::string_view name) noexcept {
  for (const PreTokenizer& known : detail::kPreTokenizers) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

inline const PreTokenizer& require_pre_tokenizer(std::string_view name) {
  const PreTokenizer* const known = find_pre_tokenizer(name);
  detail::require(
      known != nullptr, ErrorCode::kUnsupported, "Tokenizer",
      "pre-tokenizer (tokenizer.ggml.pre) must be known, got ", detail::in_quotes(name),
      "; choose the one that splits text as the model's own does: ", detail::pre_tokenizer_names());
  return *known;
}

template <class Visit>
void split_words(SplittingRule rule, std::string_view text, Visit&& visit) {
  namespace p = detail::patterns;
  using detail::split_by;
  switch (rule) {
    case SplittingRule::kGpt2: return split_by(text, p::gpt2, visit);
    case SplittingRule::kStarCoder:
      return split_by(text, p::number,
                      [&](std::string_view part) { split_by(part, p::gpt2, visit); });
    case SplittingRule::kLlama3: return split_by(text, p::llama3<3>, visit);
    case SplittingRule::kQwen2: return split_by(text, p::llama3<1>, visit);
    case SplittingRule::kQwen35: return split_by(text, p::qwen35, visit);
    case SplittingRule::kTekken: return split_by(text, p::tekken, visit);
    case SplittingRule::kGpt4o: return split_by(text, p::gpt4o, visit);
    case SplittingRule::kDeepSeekLlm: return detail::split_deepseek_llm(text, visit);
    case SplittingRule::kDeepSeekCoder: return detail::split_deepseek_coder(text, visit);
    case SplittingRule::kDeepSeek3:
      return split_by(text, p::up_to_3_numbers, [&](std::string_view part) {
        split_by(part, p::deepseek3_cjk,
                 [&](std::string_view run) { split_by(run, p::deepseek3, visit); });
      });
    case SplittingRule::kFalcon:
      return split_by(text, p::falcon_punctuation, [&](std::string_view part) {
        split_by(part, p::gpt2,
                 [&](std::string_view word) { split_by(word, p::three_digits, visit); });
      });
    case SplittingRule::kBloom: return split_by(text, p::bloom, visit);
    case SplittingRule::kViking:
      return split_by(text, p::bloom,
                      [&](std::string_view part) { split_by(part, p::number, visit); });
  }
}

}  // namespace kvick::inline v0_1
