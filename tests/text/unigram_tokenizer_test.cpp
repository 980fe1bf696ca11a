// SPDX-License-Identifier: MIT
#include "kvick/text/unigram_tokenizer.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kvick/text/tokenizer.hpp"
#include "text/text_support.hpp"

namespace kvick {
namespace {

using Tokens = std::vector<TokenId>;
const std::string kMark = "\xE2\x96\x81";

/// <pad> = 0, </s> = 1, <unk> = 2, as T5 has them.
Vocabulary unigram_vocabulary(const std::vector<std::pair<std::string, float>>& pieces) {
  Vocabulary vocabulary;
  vocabulary.model = "t5";
  support::add_token(vocabulary, "<pad>", 0, TokenType::kControl);
  support::add_token(vocabulary, "</s>", 0, TokenType::kControl);
  support::add_token(vocabulary, "<unk>", 0, TokenType::kUnknown);
  for (const auto& [piece, score] : pieces) support::add_token(vocabulary, piece, score);
  vocabulary.bos_id = kNoToken;
  vocabulary.eos_id = 1;
  vocabulary.unk_id = 2;
  vocabulary.add_bos = false;
  vocabulary.add_space_prefix = false;
  return vocabulary;
}

Tokens encode(const Vocabulary& vocabulary, std::string_view text, bool add_space = false) {
  Tokens tokens;
  UnigramTokenizer(vocabulary).encode(text, add_space, tokens);
  return tokens;
}

TEST(UnigramTokenizer, TakesThePiecesOfTheHighestSum) {
  const Vocabulary vocabulary =
      unigram_vocabulary({{"a", -1}, {"b", -1}, {"ab", -1.5f}, {"bc", -3}, {"c", -1}});
  EXPECT_EQ(encode(vocabulary, "ab"), (Tokens{5}));      // -1.5 against -2
  EXPECT_EQ(encode(vocabulary, "abc"), (Tokens{5, 7}));  // -2.5 against -4 and -3
  EXPECT_EQ(encode(vocabulary, "bc"), (Tokens{4, 7}));   // -2 against -3
  EXPECT_EQ(encode(vocabulary, ""), Tokens{});
}

TEST(UnigramTokenizer, UnknownNeighboursAreOneToken) {
  const Vocabulary vocabulary = unigram_vocabulary({{"a", -1}, {"\xC3", -1}});
  EXPECT_EQ(encode(vocabulary, "axya\xE4\xB8\xADxa"), (Tokens{3, 2, 3, 2, 3}));
  EXPECT_EQ(encode(vocabulary, "\xFF"), (Tokens{2}));
  EXPECT_EQ(encode(vocabulary, "\xC3\xA4"), (Tokens{2}));  // a part of a character is none
}

TEST(UnigramTokenizer, SpacesAreAsTheVocabularySays) {
  Vocabulary vocabulary = unigram_vocabulary({{"a", -1}, {kMark, -1}});
  EXPECT_EQ(encode(vocabulary, " a  a "), (Tokens{4, 3, 4, 4, 3, 4}));
  EXPECT_EQ(encode(vocabulary, "a a", true), (Tokens{4, 3, 4, 3}));
  EXPECT_EQ(encode(vocabulary, " a", true), (Tokens{4, 4, 3}));
  vocabulary.remove_extra_whitespaces = true;
  EXPECT_EQ(encode(vocabulary, "  a   a  "), (Tokens{3, 4, 3}));
  EXPECT_EQ(encode(vocabulary, "  a   a  ", true), (Tokens{4, 3, 4, 3}));
  EXPECT_EQ(encode(vocabulary, "   ", true), Tokens{});
}

TEST(UnigramTokenizer, RefusesVocabulariesItCannotUse) {
  Vocabulary vocabulary = unigram_vocabulary({{"a", -1}});
  vocabulary.unk_id = kNoToken;
  EXPECT_EQ(support::error_code([&] { encode(vocabulary, "a"); }), ErrorCode::kFormat);
  vocabulary = unigram_vocabulary({{"a", -std::numeric_limits<float>::infinity()}});
  EXPECT_EQ(support::error_code([&] { encode(vocabulary, "a"); }), ErrorCode::kFormat);
  vocabulary = unigram_vocabulary({{"a", -1}});
  vocabulary.precompiled_charsmap = "x";
  EXPECT_EQ(support::error_code([&] { encode(vocabulary, "a"); }), ErrorCode::kFormat);
}

/// All ways to cut `text`, one after another: exponential. Of equal sums the one with the longer
/// last piece.
struct Cut {
  double score = -std::numeric_limits<double>::infinity();
  Tokens tokens;
};
Cut best_cut(const std::map<std::string, std::pair<double, TokenId>>& pieces,
             const std::string& text, double unknown_score) {
  if (text.empty()) return {0, {}};
  Cut best;
  const auto offer = [&](std::size_t begin, double score, TokenId token) {
    Cut cut = best_cut(pieces, text.substr(0, begin), unknown_score);
    cut.score += score;
    cut.tokens.push_back(token);
    if (cut.score > best.score) best = cut;
  };
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    const auto found = pieces.find(text.substr(begin));
    if (found != pieces.end()) offer(begin, found->second.first, found->second.second);
  }
  const std::size_t last = text.size() - 1;
  if (!pieces.contains(text.substr(last))) offer(last, unknown_score, 2);
  return best;
}

TEST(UnigramTokenizer, EqualsTheBestOfAllCutsOnRandomVocabularies) {
  constexpr std::uint64_t kSeed = 43;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  std::uniform_real_distribution<float> score(-12, 0);  // equal sums hardly occur
  for (int round = 0; round < 300; ++round) {
    std::map<std::string, std::pair<double, TokenId>> pieces;
    std::vector<std::pair<std::string, float>> list;
    double lowest = 0;
    for (std::size_t i = 0; i < 12; ++i) {
      const std::string piece =
          support::random_text(rng, {"a", "b", "c"}, 1 + support::below(rng, 4));
      if (pieces.contains(piece)) continue;
      list.emplace_back(piece, score(rng));
      pieces[piece] = {list.back().second, static_cast<TokenId>(2 + list.size())};
      lowest = std::min<double>(lowest, list.back().second);
    }
    const Vocabulary vocabulary = unigram_vocabulary(list);
    for (int i = 0; i < 5; ++i) {
      const std::string text = support::random_text(rng, {"a", "b", "c"}, support::below(rng, 10));
      Tokens want;
      for (const TokenId token : best_cut(pieces, text, lowest - 10).tokens) {
        if (token != 2 || want.empty() || want.back() != 2) want.push_back(token);
      }
      ASSERT_EQ(encode(vocabulary, text), want) << "round " << round << ", " << text;
    }
  }
}

TEST(UnigramTokenizer, HostileTextsTakeLinearTime) {
  std::vector<std::pair<std::string, float>> pieces;
  for (std::size_t length = 1; length <= kMaxPieceBytes; length *= 2) {
    pieces.emplace_back(std::string(length, 'a'), -1.0f);
  }
  const Vocabulary vocabulary = unigram_vocabulary(pieces);
  EXPECT_EQ(encode(vocabulary, std::string(100 * kMaxPieceBytes, 'a')), Tokens(100, 13));
  EXPECT_EQ(encode(vocabulary, std::string(1'000'000, ' ')), (Tokens{2}));
  EXPECT_EQ(encode(vocabulary, std::string(1'000'000, '\xE4')), (Tokens{2}));
}

// ---- As part of Tokenizer ----

TEST(UnigramVocabulary, IsReadWithTheDefaultsOfT5) {
  support::GgufMetadata metadata;
  metadata.add("tokenizer.ggml.model", "t5")
      .add("tokenizer.ggml.tokens",
           std::vector<std::string>{"<pad>", "</s>", "<unk>", kMark + "a", "a", kMark})
      .add("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -1, -2, -3})
      .add("tokenizer.ggml.token_type", std::vector<std::int32_t>{3, 3, 2, 1, 1, 1})
      .add_bool("tokenizer.ggml.add_space_prefix", true)
      .add_bool("tokenizer.ggml.remove_extra_whitespaces", true);
  const Tokenizer tokenizer(metadata.file());
  EXPECT_EQ(tokenizer.encode(" a   aa "), (Tokens{3, 3, 4, 1}));
  EXPECT_EQ(tokenizer.encode("a</s>", {.parse_special = true}), (Tokens{3, 1}));
  EXPECT_EQ(tokenizer.decode(Tokens{3, 3, 4, 1}), "a aa");
}

TEST(Tokenizer, SentencePieceBpeRemovesExtraSpacesWhereTheVocabularySays) {
  Vocabulary vocabulary = support::basic_vocabulary();
  support::add_token(vocabulary, kMark, -1);  // 259
  support::add_token(vocabulary, "a", -1);
  vocabulary.add_bos = false;
  EXPECT_EQ(Tokenizer(vocabulary).encode(" a  a "), (Tokens{259, 259, 260, 259, 259, 260, 259}));
  vocabulary.remove_extra_whitespaces = true;
  EXPECT_EQ(Tokenizer(vocabulary).encode(" a  a "), (Tokens{259, 260, 259, 260}));
  EXPECT_EQ(Tokenizer(vocabulary).encode("  "), Tokens{});
}

}  // namespace
}  // namespace kvick
