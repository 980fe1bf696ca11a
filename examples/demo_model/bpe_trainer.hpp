// SPDX-License-Identifier: MIT
// Learns a vocabulary of byte pairs from text, in the form of SentencePiece and Llama.
//
// The pieces are <unk>, <s>, </s>, the 256 bytes, the results of merges in the order they were
// learned, and single characters. Text is cut into runs of letters and runs of other characters,
// each with the space before it, and merges stay within a run. The score of a piece is minus its
// rank, so that kvick::SpmTokenizer repeats the merges in the order they were learned.
//
// Accuracy  The most frequent pair is merged first, the smaller one of equals: the same text gives
//           the same vocabulary on every machine.
// Errors    Error(kArgument) if the text has too few pairs for the size asked for.
// Source    Sennrich, Haddow, Birch (2016); Kudo, Richardson: SentencePiece (2018).
// Layer     example.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/text/spm_tokenizer.hpp"
#include "kvick/text/vocabulary.hpp"

namespace demo_model {

class BpeTrainer {
 public:
  /// Counts the runs of ASCII `text`, as if a space stood before it.
  void add_text(std::string_view text);

  /// The vocabulary of `num_pieces` pieces for the text added so far.
  kvick::Vocabulary train(int num_pieces) const;

 private:
  using Pair = std::pair<std::string, std::string>;
  struct Run {
    std::vector<std::string> symbols;
    std::int64_t count;
  };

  void add_run(std::string_view run);
  static Pair most_frequent_pair(const std::vector<Run>& runs);
  static void merge(const Pair& pair, Run& run);

  std::map<std::string, std::int64_t, std::less<>> counts_;  // of runs, spaces as they are
};

/// Writes the keys tokenizer.ggml.*.
inline void add_vocabulary(kvick::GgufWriter& writer, const kvick::Vocabulary& vocabulary);

// ---- Implementation: nothing below is API ----

namespace detail {

/// The apostrophe belongs to words such as don't.
constexpr bool is_word_character(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '\'';
}

inline void add_piece(kvick::Vocabulary& vocabulary, std::string piece, kvick::TokenType type,
                      float score) {
  vocabulary.pieces.push_back(std::move(piece));
  vocabulary.types.push_back(type);
  vocabulary.scores.push_back(score);
}

/// <unk>, <s>, </s> and the bytes <0x00> to <0xFF>.
inline kvick::Vocabulary vocabulary_of_bytes() {
  kvick::Vocabulary vocabulary;
  add_piece(vocabulary, "<unk>", kvick::TokenType::kUnknown, 0);
  add_piece(vocabulary, "<s>", kvick::TokenType::kControl, 0);
  add_piece(vocabulary, "</s>", kvick::TokenType::kControl, 0);
  constexpr std::string_view kHexDigits = "0123456789ABCDEF";
  for (const char high : kHexDigits) {
    for (const char low : kHexDigits) {
      add_piece(vocabulary, std::string("<0x") + high + low + ">", kvick::TokenType::kByte, 0);
    }
  }
  return vocabulary;
}

}  // namespace detail

inline void BpeTrainer::add_text(std::string_view text) {
  std::string run = " ";
  for (const char c : text) {
    const bool continues = run == " " || (c != ' ' && detail::is_word_character(run.back()) ==
                                                          detail::is_word_character(c));
    if (!continues) {
      add_run(run);
      run.clear();
    }
    run += c;
  }
  add_run(run);
}

inline void BpeTrainer::add_run(std::string_view run) {
  const auto found = counts_.find(run);
  if (found != counts_.end()) {
    ++found->second;
  } else {
    counts_.emplace(run, 1);
  }
}

inline BpeTrainer::Pair BpeTrainer::most_frequent_pair(const std::vector<Run>& runs) {
  std::map<Pair, std::int64_t> counts;
  for (const Run& run : runs) {
    for (std::size_t i = 1; i < run.symbols.size(); ++i) {
      counts[{run.symbols[i - 1], run.symbols[i]}] += run.count;
    }
  }
  kvick::detail::require(!counts.empty(), kvick::ErrorCode::kArgument, "BpeTrainer::train",
                         "the text must have enough different words, got too few");
  const auto is_rarer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(counts.begin(), counts.end(), is_rarer)->first;
}

inline void BpeTrainer::merge(const Pair& pair, Run& run) {
  std::vector<std::string> merged;
  for (std::string& symbol : run.symbols) {
    // A symbol that was just merged has grown and equals pair.first no more, but for aaa + a.
    if (!merged.empty() && merged.back() == pair.first && symbol == pair.second) {
      merged.back() += symbol;
    } else {
      merged.push_back(std::move(symbol));
    }
  }
  run.symbols = std::move(merged);
}

inline kvick::Vocabulary BpeTrainer::train(int num_pieces) const {
  std::vector<Run> runs;
  std::set<std::string> characters;
  for (const auto& [text, count] : counts_) {
    Run run{{}, count};
    for (const char c : text) {
      run.symbols.push_back(c == ' ' ? std::string(kvick::kSpaceMark) : std::string(1, c));
    }
    characters.insert(run.symbols.begin(), run.symbols.end());
    runs.push_back(std::move(run));
  }
  kvick::Vocabulary vocabulary = detail::vocabulary_of_bytes();
  const int num_merges =
      num_pieces - static_cast<int>(vocabulary.pieces.size() + characters.size());
  kvick::detail::require(num_merges >= 0, kvick::ErrorCode::kArgument, "BpeTrainer::train",
                         "pieces must be at least ", num_pieces - num_merges, ", got ", num_pieces);
  std::set<std::string> known = characters;
  float rank = 0;
  for (int i = 0; i < num_merges;) {
    const Pair pair = most_frequent_pair(runs);
    for (Run& run : runs) merge(pair, run);
    // Two merges may give the same piece; it keeps the rank of the first.
    if (!known.insert(pair.first + pair.second).second) continue;
    detail::add_piece(vocabulary, pair.first + pair.second, kvick::TokenType::kNormal, -rank++);
    ++i;
  }
  for (const std::string& character : characters) {
    detail::add_piece(vocabulary, character, kvick::TokenType::kNormal, -rank++);
  }
  return vocabulary;
}

inline void add_vocabulary(kvick::GgufWriter& writer, const kvick::Vocabulary& vocabulary) {
  std::vector<std::int32_t> types;
  for (const kvick::TokenType type : vocabulary.types) {
    types.push_back(static_cast<std::int32_t>(type));
  }
  writer.add("tokenizer.ggml.model", vocabulary.model);
  writer.add("tokenizer.ggml.tokens", vocabulary.pieces);
  writer.add("tokenizer.ggml.scores", vocabulary.scores);
  writer.add("tokenizer.ggml.token_type", types);
  writer.add("tokenizer.ggml.unknown_token_id", static_cast<std::uint32_t>(vocabulary.unk_id));
  writer.add("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(vocabulary.bos_id));
  writer.add("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(vocabulary.eos_id));
  writer.add("tokenizer.ggml.add_bos_token", true);
  writer.add("tokenizer.ggml.add_eos_token", false);
}

}  // namespace demo_model
