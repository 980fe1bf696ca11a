// SPDX-License-Identifier: MIT
#include "kvick/text/vocabulary.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/shared_data.hpp"
#include "text/text_support.hpp"

namespace kvick {
namespace {

using support::GgufMetadata;

/// A file with `model` and the pieces <unk>, <s>, </s> and a.
GgufMetadata small_file(const std::string& model = "llama") {
  GgufMetadata metadata;
  metadata.add("tokenizer.ggml.model", model);
  metadata.add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>", "a"});
  return metadata;
}

std::optional<ErrorCode> reading_error(const GgufMetadata& metadata) {
  return support::error_code([&] { read_vocabulary(metadata.file()); });
}

TEST(ReadVocabulary, FillsInTheDefaultsOfSentencePiece) {
  const Vocabulary vocabulary = read_vocabulary(small_file().file());
  EXPECT_EQ(vocabulary.model, "llama");
  EXPECT_EQ(vocabulary.pre_tokenizer, "");
  EXPECT_EQ(vocabulary.pieces, (std::vector<std::string>{"<unk>", "<s>", "</s>", "a"}));
  EXPECT_EQ(vocabulary.scores, std::vector<float>(4, 0.0f));
  EXPECT_EQ(vocabulary.types, std::vector<TokenType>(4, TokenType::kNormal));
  EXPECT_TRUE(vocabulary.merges.empty());
  EXPECT_EQ(vocabulary.bos_id, 1);
  EXPECT_EQ(vocabulary.eos_id, 2);
  EXPECT_EQ(vocabulary.unk_id, 0);
  EXPECT_EQ(vocabulary.eot_id, kNoToken);
  EXPECT_EQ(vocabulary.eom_id, kNoToken);
  EXPECT_EQ(vocabulary.pad_id, kNoToken);
  EXPECT_EQ(vocabulary.sep_id, kNoToken);
  EXPECT_TRUE(vocabulary.add_bos);
  EXPECT_FALSE(vocabulary.add_eos);
  EXPECT_TRUE(vocabulary.add_space_prefix);
  EXPECT_FALSE(vocabulary.remove_extra_whitespaces);
}

TEST(ReadVocabulary, TakesEverythingTheFileSays) {
  GgufMetadata metadata = small_file("gpt2");
  metadata.add("tokenizer.ggml.pre", "qwen2")
      .add("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -3.5f})
      .add("tokenizer.ggml.token_type", std::vector<std::int32_t>{2, 3, 4, 5})
      .add("tokenizer.ggml.merges", std::vector<std::string>{"a b", "c d"})
      .add_u32("tokenizer.ggml.bos_token_id", 3)
      .add_u32("tokenizer.ggml.eos_token_id", 0)
      .add_u32("tokenizer.ggml.eot_token_id", 1)
      .add_u32("tokenizer.ggml.eom_token_id", 2)
      .add_u32("tokenizer.ggml.unknown_token_id", 3)
      .add_u32("tokenizer.ggml.padding_token_id", 2)
      .add_u32("tokenizer.ggml.seperator_token_id", 1)
      .add_bool("tokenizer.ggml.add_bos_token", true)
      .add_bool("tokenizer.ggml.add_eos_token", true)
      .add_bool("tokenizer.ggml.add_space_prefix", true)
      .add_bool("tokenizer.ggml.remove_extra_whitespaces", true);
  const Vocabulary vocabulary = read_vocabulary(metadata.file());
  EXPECT_EQ(vocabulary.model, "gpt2");
  EXPECT_EQ(vocabulary.pre_tokenizer, "qwen2");
  EXPECT_EQ(vocabulary.scores[3], -3.5f);
  EXPECT_EQ(vocabulary.types,
            (std::vector<TokenType>{TokenType::kUnknown, TokenType::kControl,
                                    TokenType::kUserDefined, TokenType::kUnused}));
  EXPECT_EQ(vocabulary.merges, (std::vector<std::string>{"a b", "c d"}));
  EXPECT_EQ(vocabulary.bos_id, 3);
  EXPECT_EQ(vocabulary.eos_id, 0);
  EXPECT_EQ(vocabulary.eot_id, 1);
  EXPECT_EQ(vocabulary.eom_id, 2);
  EXPECT_EQ(vocabulary.unk_id, 3);
  EXPECT_EQ(vocabulary.pad_id, 2);
  EXPECT_EQ(vocabulary.sep_id, 1);
  EXPECT_TRUE(vocabulary.add_bos);
  EXPECT_TRUE(vocabulary.add_eos);
  EXPECT_TRUE(vocabulary.add_space_prefix);
  EXPECT_TRUE(vocabulary.remove_extra_whitespaces);
}

TEST(ReadVocabulary, MinusOneMeansTheDefault) {
  GgufMetadata metadata = small_file();
  metadata.add_u32("tokenizer.ggml.padding_token_id", 0xFFFFFFFF);
  metadata.add_i32("tokenizer.ggml.eos_token_id", -1);
  const Vocabulary vocabulary = read_vocabulary(metadata.file());
  EXPECT_EQ(vocabulary.pad_id, kNoToken);
  EXPECT_EQ(vocabulary.eos_id, 2);
}

TEST(ReadVocabulary, DefaultsOutsideTheVocabularyAreNone) {
  GgufMetadata metadata;
  metadata.add("tokenizer.ggml.model", "llama");
  metadata.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
  const Vocabulary vocabulary = read_vocabulary(metadata.file());
  EXPECT_EQ(vocabulary.bos_id, 1);
  EXPECT_EQ(vocabulary.eos_id, kNoToken);
}

TEST(ReadVocabulary, OnlyByteLevelBpeHasPreTokenizers) {
  EXPECT_THROW(read_vocabulary(small_file().file(), "qwen2"), Error);
  EXPECT_EQ(read_vocabulary(small_file().file(), "").pre_tokenizer, "");
}

TEST(ReadVocabulary, RefusesWhatDoesNotFit) {
  EXPECT_EQ(reading_error(GgufMetadata()), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(GgufMetadata().add("tokenizer.ggml.model", "llama")), ErrorCode::kFormat);
  const std::vector<std::string> no_pieces;
  EXPECT_EQ(reading_error(GgufMetadata()
                              .add("tokenizer.ggml.model", "llama")
                              .add("tokenizer.ggml.tokens", no_pieces)),
            ErrorCode::kFormat);
  const char* kScores = "tokenizer.ggml.scores";
  EXPECT_EQ(reading_error(small_file().add(kScores, std::vector<float>(3))), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(small_file().add(kScores, std::vector<float>(5))), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(small_file().add(kScores, std::vector<std::int32_t>(4))),
            ErrorCode::kFormat);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(reading_error(small_file().add(kScores, std::vector<float>{0, nan, 0, 0})),
            ErrorCode::kFormat);
  const char* kTypes = "tokenizer.ggml.token_type";
  using Types = std::vector<std::int32_t>;
  EXPECT_EQ(reading_error(small_file().add(kTypes, Types{1, 1, 1})), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(small_file().add(kTypes, Types{1, 1, 1, 1, 1})), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(small_file().add(kTypes, Types{1, 1, 1, 0})), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(small_file().add(kTypes, Types{1, 1, 1, 7})), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(small_file().add(kTypes, Types{1, 1, 1, -1})), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(small_file().add(kTypes, Types{1, 1, 1, 6})), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(small_file().add(kTypes, Types{1, 1, 1, 1})), std::nullopt);
  for (const char* key :
       {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.padding_token_id", "tokenizer.ggml.seperator_token_id"}) {
    EXPECT_EQ(reading_error(small_file().add_u32(key, 3)), std::nullopt) << key;
    EXPECT_EQ(reading_error(small_file().add_u32(key, 4)), ErrorCode::kFormat) << key;
    EXPECT_EQ(reading_error(small_file().add_i32(key, -2)), ErrorCode::kFormat) << key;
    EXPECT_EQ(reading_error(small_file().add(key, "1")), ErrorCode::kFormat) << key;
  }
}

TEST(ReadVocabulary, RefusesBosThatIsAskedForButMissing) {
  GgufMetadata metadata;
  metadata.add("tokenizer.ggml.model", "llama");
  metadata.add("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  EXPECT_EQ(reading_error(metadata), ErrorCode::kFormat);
  EXPECT_EQ(reading_error(metadata.add_bool("tokenizer.ggml.add_bos_token", false)), std::nullopt);
  EXPECT_EQ(reading_error(metadata.add_bool("tokenizer.ggml.add_eos_token", true)),
            ErrorCode::kFormat);
}

TEST(CheckVocabulary, NamesTheTokenAtFault) {
  Vocabulary vocabulary = support::basic_vocabulary();
  check_vocabulary(vocabulary);
  vocabulary.pieces[70] = "<0xZZ>";
  try {
    check_vocabulary(vocabulary);
    FAIL() << "expected Error(kFormat)";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFormat);
    EXPECT_NE(error.message().find("byte token 70"), std::string_view::npos) << error.message();
    EXPECT_NE(error.message().find("<0xZZ>"), std::string_view::npos) << error.message();
  }
}

TEST(CheckVocabulary, BoundsTheLengthOfPieces) {
  Vocabulary vocabulary = support::basic_vocabulary();
  support::add_token(vocabulary, std::string(kMaxPieceBytes, 'a'), 0);
  EXPECT_EQ(support::error_code([&] { check_vocabulary(vocabulary); }), std::nullopt);
  vocabulary.types.back() = TokenType::kUserDefined;
  EXPECT_EQ(support::error_code([&] { check_vocabulary(vocabulary); }), ErrorCode::kFormat);
  vocabulary.pieces.back().resize(kMaxSpecialPieceBytes);
  EXPECT_EQ(support::error_code([&] { check_vocabulary(vocabulary); }), std::nullopt);
  vocabulary.types.back() = TokenType::kNormal;
  vocabulary.pieces.back() = std::string(kMaxPieceBytes + 1, 'a');
  EXPECT_EQ(support::error_code([&] { check_vocabulary(vocabulary); }), ErrorCode::kFormat);
}

TEST(CheckVocabulary, RefusesSpecialTokensOutsideTheVocabulary) {
  for (TokenId Vocabulary::*member :
       {&Vocabulary::bos_id, &Vocabulary::eos_id, &Vocabulary::eot_id, &Vocabulary::eom_id,
        &Vocabulary::unk_id, &Vocabulary::pad_id, &Vocabulary::sep_id}) {
    Vocabulary vocabulary = support::basic_vocabulary();
    for (const TokenId id : {TokenId{-2}, TokenId{259}, std::numeric_limits<TokenId>::max()}) {
      vocabulary.*member = id;
      EXPECT_EQ(support::error_code([&] { check_vocabulary(vocabulary); }), ErrorCode::kFormat);
    }
    vocabulary.*member = 258;
    EXPECT_EQ(support::error_code([&] { check_vocabulary(vocabulary); }), std::nullopt);
  }
}

TEST(ParseBytePiece, TakesTwoHexadecimalDigitsAndNothingElse) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(parse_byte_piece(support::byte_piece(byte)), byte);
  }
  EXPECT_EQ(parse_byte_piece("<0xab>"), 0xAB);
  for (const char* piece : {"", "<0x", "<0x0>", "<0x00", "<0x00>>", "<0xZZ>", "<0x0G>", "<0x0@>",
                            "<0x0`>", "<0x 1>", "<0x+1>", "<0X00>", "[0x00>", "<0x00]"}) {
    EXPECT_EQ(parse_byte_piece(piece), std::nullopt) << piece;
  }
}

TEST(ReadVocabulary, ReadsLlamaTwo) {
  const std::string name = "models/vocab-llama-spm.gguf";
  const auto path = support::shared_path(name);
  if (!path) GTEST_SKIP() << support::missing(name);
  const Vocabulary vocabulary = read_vocabulary(GgufFile(*path));
  ASSERT_EQ(vocabulary.pieces.size(), 32'000u);
  EXPECT_EQ(vocabulary.pieces[15043], "\xE2\x96\x81Hello");
  EXPECT_EQ(vocabulary.types[13], TokenType::kByte);
  EXPECT_EQ(vocabulary.scores[31'999], -31'740.0f);
  EXPECT_EQ(vocabulary.bos_id, 1);
}

}  // namespace
}  // namespace kvick
