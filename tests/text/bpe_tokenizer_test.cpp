// SPDX-License-Identifier: MIT
#include "kvick/text/bpe_tokenizer.hpp"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvick/text/streaming_decoder.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/shared_data.hpp"
#include "text/text_support.hpp"

namespace kvick {
namespace {

using Tokens = std::vector<TokenId>;
using support::byte_level_vocabulary;

Tokens encode(const BpeTokenizer& tokenizer, std::string_view text) {
  Tokens tokens;
  tokenizer.encode(text, tokens);
  return tokens;
}

/// The definition, step by step: scan all pairs, merge the best, start again. O(n^2).
class PlainBpe {
 public:
  explicit PlainBpe(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) {
      ranks_.try_emplace(vocabulary.merges[i], i);
    }
    for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
      ids_[vocabulary.pieces[id]] = static_cast<TokenId>(id);
    }
  }

  void encode_word(std::string_view word, bool ignores_merges, Tokens& tokens) const {
    const auto whole = ids_.find(spelling_of_bytes(word));
    if (ignores_merges && whole != ids_.end()) {
      tokens.push_back(whole->second);
      return;
    }
    std::vector<std::string> symbols;
    for (const char c : word) symbols.push_back(spelling_of_bytes(std::string(1, c)));
    for (;;) {
      std::optional<std::size_t> best;
      std::size_t best_rank = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto rank = ranks_.find(symbols[i] + " " + symbols[i + 1]);
        if (rank == ranks_.end() || (best && rank->second >= best_rank)) continue;
        best = i;
        best_rank = rank->second;
      }
      if (!best) break;
      const auto left = symbols.begin() + static_cast<std::ptrdiff_t>(*best);
      *left += *(left + 1);
      symbols.erase(left + 1);
    }
    for (const std::string& symbol : symbols) tokens.push_back(ids_.at(symbol));
  }

  Tokens encode(std::string_view text) const {
    const PreTokenizer& pre = require_pre_tokenizer(vocabulary_.pre_tokenizer);
    Tokens tokens;
    split_words(pre.rule, text,
                [&](std::string_view word) { encode_word(word, pre.ignores_merges, tokens); });
    return tokens;
  }

 private:
  const Vocabulary& vocabulary_;
  std::map<std::string, std::size_t> ranks_;
  std::map<std::string, TokenId> ids_;
};

TEST(BpeTokenizer, MergesTheLowestRankFirst) {
  const BpeTokenizer tokenizer(byte_level_vocabulary({"b c", "a b", "a bc"}));
  EXPECT_EQ(encode(tokenizer, "abc"), (Tokens{258}));
  EXPECT_EQ(encode(tokenizer, "abb"), (Tokens{257, 'b'}));
  EXPECT_EQ(encode(BpeTokenizer(byte_level_vocabulary({"a b", "b c"})), "abc"), (Tokens{256, 'c'}));
}

TEST(BpeTokenizer, MergesTheLeftmostOfEqualsFirst) {
  const BpeTokenizer tokenizer(byte_level_vocabulary({"a a", "aa a", "aa aa"}));
  EXPECT_EQ(encode(tokenizer, "aaa"), (Tokens{257}));
  EXPECT_EQ(encode(tokenizer, "aaaa"), (Tokens{258}));
  EXPECT_EQ(encode(tokenizer, "aaaaa"), (Tokens{256, 257}));
}

TEST(BpeTokenizer, NeverMergesOverTheBordersOfWords) {
  const BpeTokenizer tokenizer(byte_level_vocabulary({"a \u0120", "\u0120 b"}));
  EXPECT_EQ(encode(tokenizer, "a b"), (Tokens{'a', 257}));
}

TEST(BpeTokenizer, ATokenThatMergingDoesNotReachIsNotUsed) {
  // "abc" is a token, but "ab" is merged first and "ab c" is no merge.
  Vocabulary vocabulary = byte_level_vocabulary({"a b", "b c", "a bc"});
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "abc"), (Tokens{256, 'c'}));
  // Where merges are ignored, a whole word is its token; a part of a word is not.
  vocabulary.pre_tokenizer = "llama-bpe";
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "abc"), (Tokens{258}));
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "xabc"), (Tokens{'x', 256, 'c'}));
}

TEST(BpeTokenizer, NoTextForgesControlTokens) {
  Vocabulary vocabulary = byte_level_vocabulary({"a b", "ab c", "x abc"});
  vocabulary.types[257] = TokenType::kControl;
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "abc"), (Tokens{256, 'c'}));
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "xabc"), (Tokens{'x', 256, 'c'}));
  vocabulary.pre_tokenizer = "llama-bpe";
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "abc"), (Tokens{256, 'c'}));
}

TEST(BpeTokenizer, RefusesMergesOfWhatIsNoPiece) {
  for (const char* merge : {"a", "a ", " a", "ab c", "a bc", "b a", "", "\u4e2d a"}) {
    Vocabulary vocabulary = byte_level_vocabulary({"a b"});
    vocabulary.merges.push_back(merge);
    EXPECT_EQ(support::error_code([&] { BpeTokenizer refused(vocabulary); }), ErrorCode::kFormat)
        << merge;
  }
}

TEST(BpeTokenizer, MissingBytesBecomeUnknownOrAreRefused) {
  Vocabulary vocabulary = byte_level_vocabulary({"a b"});
  vocabulary.types['x'] = TokenType::kControl;  // no text any more
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "ab"), (Tokens{256}));
  EXPECT_EQ(support::error_code([&] { encode(BpeTokenizer(vocabulary), "axb"); }),
            ErrorCode::kArgument);
  support::add_token(vocabulary, "<unk>", 0, TokenType::kUnknown);
  vocabulary.unk_id = 257;
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "axab"), (Tokens{'a', 257, 256}));
  // A byte token will do as well.
  support::add_token(vocabulary, "<0x78>", 0, TokenType::kByte);
  EXPECT_EQ(encode(BpeTokenizer(vocabulary), "axab"), (Tokens{'a', 258, 256}));
}

TEST(BpeTokenizer, RefusesAnUnknownPreTokenizer) {
  for (const std::string name : {"", "default", "gpt-5"}) {
    const Vocabulary vocabulary = byte_level_vocabulary({}, name);
    EXPECT_EQ(support::error_code([&] { BpeTokenizer refused(vocabulary); }),
              ErrorCode::kUnsupported);
  }
}

/// Merges of what there is so far, at random.
std::vector<std::string> random_merges(support::Rng& rng, const std::string& alphabet) {
  std::vector<std::string> pieces;
  for (const char c : alphabet) pieces.push_back(spelling_of_bytes(std::string(1, c)));
  std::set<std::string> known(pieces.begin(), pieces.end());
  std::vector<std::string> merges;
  for (std::size_t i = 0; i < 1 + support::below(rng, 40); ++i) {
    const std::string left = pieces[support::below(rng, pieces.size())];
    const std::string right = pieces[support::below(rng, pieces.size())];
    if (!known.insert(left + right).second) continue;
    pieces.push_back(left + right);
    merges.push_back(left + " " + right);
  }
  std::shuffle(merges.begin(), merges.end(), rng);  // a merge may come before those of its parts
  return merges;
}

TEST(BpeTokenizer, EqualsTheDefinitionOnRandomMerges) {
  constexpr std::uint64_t kSeed = 42;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  const std::string alphabets[] = {"ab", "abc ", "a\u4e2d\u56fd\u00e9", "\xE4\xB8\xAD\xFF"};
  for (int round = 0; round < 1500; ++round) {
    const std::string& alphabet = alphabets[support::below(rng, std::size(alphabets))];
    const char* const pre = support::below(rng, 2) == 0 ? "gpt-2" : "llama-bpe";
    const Vocabulary vocabulary = byte_level_vocabulary(random_merges(rng, alphabet), pre);
    const BpeTokenizer tokenizer(vocabulary);
    const PlainBpe plain(vocabulary);
    for (int i = 0; i < 10; ++i) {
      std::string text;
      for (std::size_t n = support::below(rng, 60); n > 0; --n) {
        text += alphabet[support::below(rng, alphabet.size())];
      }
      ASSERT_EQ(encode(tokenizer, text), plain.encode(text))
          << "round " << round << ", text " << testing::PrintToString(text);
    }
  }
}

TEST(BpeTokenizer, DeepMergesOfALongTextTakeLinearTime) {
  // a, aa, aaaa ... up to 1024 bytes, and a chain that grows by one letter at a time.
  std::vector<std::string> merges;
  for (std::size_t length = 1; length < 1024; length *= 2) {
    merges.push_back(std::string(length, 'a') + " " + std::string(length, 'a'));
  }
  for (std::size_t length = 1; length < 1024; ++length) {
    merges.push_back(std::string(length, 'b') + " b");
  }
  const BpeTokenizer tokenizer(byte_level_vocabulary(merges));
  const Tokens tokens = encode(tokenizer, std::string(1'000'000, 'a'));
  ASSERT_EQ(tokens.size(), 978u);  // 976 * 1024 + 512 + 64
  EXPECT_EQ(tokens[976], 256 + 8);
  EXPECT_EQ(tokens[977], 256 + 5);
  // All "bb" come first, since they have the lowest rank, and no two of them merge.
  EXPECT_EQ(encode(tokenizer, std::string(1'000'000, 'b')).size(), 500'000u);
}

// ---- As part of Tokenizer ----

TEST(ByteLevelTokenizer, TokensStandForTheirBytes) {
  Vocabulary vocabulary = byte_level_vocabulary({"\u0120 a"});
  support::add_token(vocabulary, "<think>", 0, TokenType::kUserDefined);         // 257
  support::add_token(vocabulary, "  ", 0, TokenType::kUserDefined);              // 258
  support::add_token(vocabulary, "<\uff5cmark\uff5c>", 0, TokenType::kControl);  // 259
  support::add_token(vocabulary, "\u00e9", 0, TokenType::kUnused);               // equals byte 0xE9
  vocabulary.pieces.back() = "\u4e2d";  // 260, outside of the alphabet
  vocabulary.add_space_prefix = true;   // which byte-level BPE ignores
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.token_bytes(256), " a");
  EXPECT_EQ(tokenizer.token_bytes(0xE9), "\xE9");
  EXPECT_EQ(tokenizer.token_bytes(258), "  ");
  EXPECT_EQ(tokenizer.token_bytes(259), "");
  EXPECT_EQ(tokenizer.token_bytes(260), "\u4e2d");
  EXPECT_EQ(tokenizer.encode(" a<think>  a"), (Tokens{256, 257, 258, 'a'}));
  EXPECT_EQ(tokenizer.decode(Tokens{256, 259, 256}), " a a");
  EXPECT_EQ(tokenizer.encode("<\uff5cmark\uff5c>", {.parse_special = true}), (Tokens{259}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<\uff5cmark\uff5c>")), "<\uff5cmark\uff5c>");
}

/// Random bytes, and well-formed text with the words of vocabularies.
std::string random_mixture(support::Rng& rng) {
  std::string text = support::random_bytes(rng, support::below(rng, 12));
  text += support::random_text(rng,
                               {"the", " Hello", "ing", " ", "  ", "\n", "<|endoftext|>", "12", ".",
                                "\u4e2d\u56fd", "\u00e9", "'s", "\U0001f999", "\xE4\xB8", "\xFF"},
                               support::below(rng, 20));
  return text;
}

void expect_properties(const Tokenizer& tokenizer, std::uint64_t seed, int num_rounds) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  support::Rng rng(seed);
  for (int round = 0; round < num_rounds; ++round) {
    const std::string text = random_mixture(rng);
    const Tokens tokens = tokenizer.encode(text);
    ASSERT_EQ(tokenizer.decode(tokens), text) << testing::PrintToString(text);
    // At every split, the first tokens stream as they decode, and so does the rest.
    const std::string whole = sanitize(text);
    StreamingDecoder decoder(tokenizer);
    std::string streamed;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      streamed += decoder.push(tokens[i]);
      const std::string first = tokenizer.decode(std::span(tokens).first(i + 1));
      const std::size_t held_back = incomplete_suffix_length(first);
      ASSERT_EQ(streamed, sanitize(std::string_view(first).substr(0, first.size() - held_back)));
    }
    ASSERT_EQ(streamed + decoder.finish(), whole);
  }
}

TEST(ByteLevelTokenizer, DecodesToTheSameBytesWhateverTheyAre) {
  expect_properties(Tokenizer(byte_level_vocabulary({"t h", "th e", "\u0120 H", "\u00e4 \u00b8"})),
                    64, 1000);
}

TEST(ByteLevelTokenizer, DecodesToTheSameBytesForGptTwo) {
  const std::string name = "models/vocab-gpt-2.gguf";
  const auto path = support::shared_path(name);
  if (!path) GTEST_SKIP() << support::missing(name);
  expect_properties(Tokenizer(GgufFile(*path)), 65, 1000);
}

TEST(ByteLevelTokenizer, HostileTextsComplete) {
  const std::string name = "models/vocab-gpt-2.gguf";
  const auto path = support::shared_path(name);
  if (!path) GTEST_SKIP() << support::missing(name);
  const Tokenizer tokenizer{GgufFile(*path)};
  constexpr std::size_t kNumBytes = 1'000'000;
  support::Rng rng(66);
  for (const std::string& text :
       {std::string(kNumBytes, 'a'), std::string(kNumBytes, ' '), std::string(kNumBytes, '\xE4'),
        std::string(kNumBytes, '\0'), support::random_bytes(rng, kNumBytes),
        support::random_text(rng, {"a", "b"}, kNumBytes),
        support::random_text(rng, {"\u4e2d", "\u56fd"}, kNumBytes / 3),
        support::random_text(rng, {"<|endoftext|"}, kNumBytes / 12)}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(ByteLevelTokenizer, ThePreTokenizerCanBeChosen) {
  support::GgufMetadata metadata;
  const Vocabulary made = byte_level_vocabulary({"1 2"});
  metadata.add("tokenizer.ggml.model", "gpt2")
      .add("tokenizer.ggml.tokens", made.pieces)
      .add("tokenizer.ggml.merges", made.merges)
      .add("tokenizer.ggml.pre", "of-tomorrow");
  EXPECT_EQ(support::error_code([&] { Tokenizer refused(metadata.file()); }),
            ErrorCode::kUnsupported);
  EXPECT_EQ(Tokenizer(metadata.file(), "gpt-2").encode("12"), (Tokens{256}));
  EXPECT_EQ(Tokenizer(metadata.file(), "qwen2").encode("12"), (Tokens{'1', '2'}));
  // Llama 3 begins with bos unless the file says otherwise.
  metadata.add_u32("tokenizer.ggml.bos_token_id", 256);
  EXPECT_EQ(Tokenizer(metadata.file(), "llama-bpe").encode("x"), (Tokens{256, 'x'}));
  metadata.add_bool("tokenizer.ggml.add_bos_token", false);
  EXPECT_EQ(Tokenizer(metadata.file(), "llama-bpe").encode("x"), (Tokens{'x'}));
}

}  // namespace
}  // namespace kvick
