// SPDX-License-Identifier: MIT
#include "kvick/text/end_tokens.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using support::kFirstPiece;
using Tokens = std::vector<TokenId>;

Vocabulary vocabulary_with(const std::vector<std::string>& pieces) {
  Vocabulary vocabulary = support::basic_vocabulary();
  for (const std::string& piece : pieces) support::add_token(vocabulary, piece, 0);
  return vocabulary;
}

TokenType type_of(const Vocabulary& vocabulary, TokenId id) {
  return vocabulary.types[static_cast<std::size_t>(id)];
}

TEST(EndTokens, EosAloneEndsPlainModels) {
  Vocabulary vocabulary = vocabulary_with({"a"});
  EXPECT_EQ(mark_end_tokens(vocabulary), (Tokens{2}));
  EXPECT_EQ(vocabulary.eot_id, kNoToken);
  vocabulary.pieces[2] = "end";
  vocabulary.eos_id = kNoToken;
  EXPECT_EQ(mark_end_tokens(vocabulary), Tokens{});
}

TEST(EndTokens, NamedTokensEndWhateverTheirPiece) {
  Vocabulary vocabulary = vocabulary_with({"a", "b", "c"});
  vocabulary.eos_id = kFirstPiece + 2;
  vocabulary.eot_id = kFirstPiece;
  vocabulary.eom_id = kFirstPiece + 1;
  EXPECT_EQ(mark_end_tokens(vocabulary),
            (Tokens{2, kFirstPiece, kFirstPiece + 1, kFirstPiece + 2}));
  EXPECT_EQ(type_of(vocabulary, kFirstPiece), TokenType::kNormal);
}

TEST(EndTokens, KnownMarksEndAndBecomeControlTokens) {
  for (const char* piece : {"<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>",
                            "<end_of_turn>", "<|end|>", "<EOT>"}) {
    Vocabulary vocabulary = vocabulary_with({"a", piece});
    EXPECT_EQ(mark_end_tokens(vocabulary), (Tokens{2, kFirstPiece + 1})) << piece;
    EXPECT_EQ(type_of(vocabulary, kFirstPiece + 1), TokenType::kControl) << piece;
    EXPECT_EQ(vocabulary.eot_id, kFirstPiece + 1) << piece;
  }
  Vocabulary vocabulary = vocabulary_with({"<|eom_id|>"});
  EXPECT_EQ(mark_end_tokens(vocabulary), (Tokens{2, kFirstPiece}));
  EXPECT_EQ(vocabulary.eom_id, kFirstPiece);
  EXPECT_EQ(vocabulary.eot_id, kNoToken);
}

TEST(EndTokens, MarkupThatByteLevelBpeLearnedIsText) {
  Vocabulary vocabulary = support::byte_level_vocabulary({"< /", "</ s", "</s >", "< s"});
  support::add_token(vocabulary, "<|im_end|>", 0);  // 260
  EXPECT_EQ(mark_end_tokens(vocabulary), (Tokens{260}));
  EXPECT_EQ(type_of(vocabulary, 258), TokenType::kNormal);  // </s>
  vocabulary.types[258] = TokenType::kUserDefined;
  EXPECT_EQ(mark_end_tokens(vocabulary), (Tokens{258, 260}));
}

TEST(EndTokens, AnEotFromTheFileStays) {
  Vocabulary vocabulary = vocabulary_with({"<|im_end|>", "a"});
  vocabulary.eot_id = kFirstPiece + 1;
  EXPECT_EQ(mark_end_tokens(vocabulary), (Tokens{2, kFirstPiece, kFirstPiece + 1}));
  EXPECT_EQ(vocabulary.eot_id, kFirstPiece + 1);
}

TEST(EndTokens, EndOfAPartIsNoEndWhereThereAreParts) {
  Vocabulary parts = vocabulary_with({"<|end|>", "<|return|>", "<|call|>"});
  EXPECT_EQ(mark_end_tokens(parts), (Tokens{2, kFirstPiece + 1, kFirstPiece + 2}));
  EXPECT_EQ(type_of(parts, kFirstPiece), TokenType::kUserDefined);
  Vocabulary solar = vocabulary_with({"<|end|>", "<|flush|>", "<|calls|>"});
  EXPECT_EQ(mark_end_tokens(solar), (Tokens{2, kFirstPiece + 1, kFirstPiece + 2}));
  Vocabulary phi = vocabulary_with({"<|end|>", "<|call|>"});
  EXPECT_EQ(mark_end_tokens(phi), (Tokens{2, kFirstPiece, kFirstPiece + 1}));
}

TEST(EndTokens, SlashSIsTextWhereToolsRespond) {
  Vocabulary vocabulary = vocabulary_with({"<eos>", "<|tool_response>"});
  vocabulary.eos_id = kFirstPiece;
  EXPECT_EQ(mark_end_tokens(vocabulary), (Tokens{kFirstPiece, kFirstPiece + 1}));
  EXPECT_EQ(type_of(vocabulary, 2), TokenType::kNormal);
}

}  // namespace
}  // namespace kvick
