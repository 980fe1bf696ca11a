// SPDX-License-Identifier: MIT
#include "kvick/text/streaming_decoder.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using support::kFirstPiece;
using Tokens = std::vector<TokenId>;

/// Pieces that begin and end within characters: no tokenizer should make them, but models do.
Tokenizer tokenizer_with_parts() {
  Vocabulary vocabulary = support::basic_vocabulary();
  support::add_token(vocabulary, "a\xE2\x82", 0);                       // 259
  support::add_token(vocabulary, "\xAC\xF0\x9F", 0);                    // 260
  support::add_token(vocabulary, "\xE2\x96\x81hi", 0);                  // 261
  support::add_token(vocabulary, "", 0);                                // 262
  support::add_token(vocabulary, "[C]", 0, TokenType::kControl);        // 263
  support::add_token(vocabulary, "[\xC3", 0, TokenType::kUserDefined);  // 264
  support::add_token(vocabulary, "\xBC \xE2\x96\x81", 0);               // 265
  return Tokenizer(vocabulary);
}

constexpr TokenId byte_token(unsigned byte) { return static_cast<TokenId>(3 + byte); }

TEST(StreamingDecoder, HoldsBackIncompleteCharacters) {
  StreamingDecoder decoder(tokenizer_with_parts());
  EXPECT_EQ(decoder.push(259), "a");             // and the start of the euro sign
  EXPECT_EQ(decoder.push(260), "\xE2\x82\xAC");  // and the start of a llama
  EXPECT_EQ(decoder.push(byte_token(0xA6)), "");
  EXPECT_EQ(decoder.push(byte_token(0x99)), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamingDecoder, ReplacesWhatCanNeverComplete) {
  StreamingDecoder decoder(tokenizer_with_parts());
  EXPECT_EQ(decoder.push(byte_token(0xFF)), kReplacementCharacter);
  EXPECT_EQ(decoder.push(byte_token(0xE2)), "");
  EXPECT_EQ(decoder.push(byte_token('x')), std::string(kReplacementCharacter) + "x");
  EXPECT_EQ(decoder.push(byte_token(0xF0)), "");
  EXPECT_EQ(decoder.push(byte_token(0x9F)), "");
  EXPECT_EQ(decoder.push(byte_token(0xC3)), kReplacementCharacter);
  EXPECT_EQ(decoder.finish(), kReplacementCharacter);
}

TEST(StreamingDecoder, TreatsTheLeadingSpaceAsDecodeDoes) {
  StreamingDecoder start(tokenizer_with_parts());
  EXPECT_EQ(start.push(1), "");
  EXPECT_EQ(start.push(261), "hi");
  EXPECT_EQ(start.push(261), " hi");
  EXPECT_EQ(start.push(263), "");
  EXPECT_EQ(start.push(261), "hi");
  StreamingDecoder continuation(tokenizer_with_parts(), {.continues_text = true});
  EXPECT_EQ(continuation.push(261), " hi");
  StreamingDecoder printing(tokenizer_with_parts(), {.print_special = true});
  EXPECT_EQ(printing.push(263), "[C]");
}

TEST(StreamingDecoder, StartsAnewAfterFinish) {
  StreamingDecoder decoder(tokenizer_with_parts());
  decoder.push(261);
  decoder.push(byte_token(0xE2));
  EXPECT_EQ(decoder.finish(), kReplacementCharacter);
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(261), "hi");
}

TEST(StreamingDecoder, OutlivesTheTokenizerItWasMadeFrom) {
  StreamingDecoder decoder{tokenizer_with_parts()};  // a temporary
  EXPECT_EQ(decoder.push(261), "hi");
}

TEST(StreamingDecoder, RefusesTokensOutsideTheVocabulary) {
  StreamingDecoder decoder(tokenizer_with_parts());
  EXPECT_EQ(support::error_code([&] { decoder.push(266); }), ErrorCode::kArgument);
  EXPECT_EQ(decoder.push(261), "hi");
}

TEST(StreamingDecoder, MakesUpTheSanitizedDecodeOfAnyTokens) {
  constexpr std::uint64_t kSeed = 81;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  const Tokenizer tokenizer = tokenizer_with_parts();
  const std::vector<unsigned> bytes = {'a',  0x20, 0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xE0,
                                       0xE2, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  for (int round = 0; round < 20'000; ++round) {
    const DecodeOptions options = {.print_special = support::below(rng, 2) == 0,
                                   .continues_text = support::below(rng, 2) == 0};
    Tokens tokens;
    for (std::size_t n = support::below(rng, 30); n > 0; --n) {
      tokens.push_back(support::below(rng, 3) == 0
                           ? static_cast<TokenId>(kFirstPiece + support::below(rng, 7))
                           : byte_token(bytes[support::below(rng, bytes.size())]));
    }
    StreamingDecoder decoder(tokenizer, options);
    std::string text;
    for (const TokenId token : tokens) {
      text += decoder.push(token);
      ASSERT_TRUE(is_valid_utf8(text)) << "round " << round;
    }
    text += decoder.finish();
    ASSERT_EQ(text, sanitize(tokenizer.decode(tokens, options))) << "round " << round;
  }
}

TEST(StreamingDecoder, BytesMaySplitAnywhere) {
  constexpr std::uint64_t kSeed = 82;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  StreamingDecoder decoder(tokenizer_with_parts());
  for (int round = 0; round < 5000; ++round) {
    const std::string bytes = support::random_text(
        rng, {"a", "\xC3\xBC", "\xE2\x82\xAC", "\xF0\x9F\xA6\x99", "\xE2", "\xF4", "\x90", "\x80"},
        12);
    std::string text;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t length = support::below(rng, 6);
      text += decoder.push_bytes(std::string_view(bytes).substr(at, length));
      at += length;
    }
    text += decoder.finish();
    ASSERT_EQ(text, sanitize(bytes)) << "round " << round;
  }
}

}  // namespace
}  // namespace kvick
