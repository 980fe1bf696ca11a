// SPDX-License-Identifier: MIT
#include "kvick/text/spm_tokenizer.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using support::kFirstPiece;
using Tokens = std::vector<TokenId>;

Tokens encode(const SpmTokenizer& tokenizer, std::string_view text, bool add_space = false) {
  Tokens tokens;
  tokenizer.encode(text, add_space, tokens);
  return tokens;
}

/// The definition, step by step: scan all pairs, merge the best, start again. O(n^2).
class PlainBpe {
 public:
  explicit PlainBpe(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    for (std::size_t id = 0; id < vocabulary.pieces.size(); ++id) {
      ids_[vocabulary.pieces[id]] = static_cast<TokenId>(id);
    }
  }

  Tokens encode(const std::string& text) const {
    std::string marked;
    for (const char c : text) marked += c == ' ' ? std::string("\xE2\x96\x81") : std::string(1, c);
    std::vector<std::string> symbols;
    for (std::size_t at = 0; at < marked.size(); at += symbols.back().size()) {
      const unsigned lead = static_cast<unsigned char>(marked[at]);
      symbols.push_back(marked.substr(at, lead >= 0xF0   ? 4
                                          : lead >= 0xE0 ? 3
                                          : lead >= 0xC0 ? 2
                                                         : 1));
    }
    for (;;) {
      std::optional<std::size_t> best;
      float best_score = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto token = text_token(symbols[i] + symbols[i + 1]);
        if (!token) continue;
        const float score = vocabulary_.scores[static_cast<std::size_t>(*token)];
        if (!best || score > best_score) {
          best = i;
          best_score = score;
        }
      }
      if (!best) break;
      const auto left = symbols.begin() + static_cast<std::ptrdiff_t>(*best);
      *left += *(left + 1);
      symbols.erase(left + 1);
    }
    Tokens tokens;
    for (const std::string& symbol : symbols) append(symbol, tokens);
    return tokens;
  }

 private:
  std::optional<TokenId> text_token(const std::string& text) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) return std::nullopt;
    const TokenType type = vocabulary_.types[static_cast<std::size_t>(found->second)];
    if (type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kByte) {
      return std::nullopt;
    }
    return found->second;
  }

  void append(const std::string& symbol, Tokens& tokens) const {
    if (const auto token = text_token(symbol)) {
      tokens.push_back(*token);
      return;
    }
    for (const char c : symbol) {
      auto found = ids_.find(support::byte_piece(static_cast<unsigned char>(c)));
      if (found == ids_.end()) found = ids_.find(std::string(1, c));
      const bool is_found =
          found != ids_.end() &&
          vocabulary_.types[static_cast<std::size_t>(found->second)] != TokenType::kControl;
      tokens.push_back(is_found ? found->second : vocabulary_.unk_id);
    }
  }

  const Vocabulary& vocabulary_;
  std::map<std::string, TokenId> ids_;
};

TEST(SpmTokenizer, MergesTheHighestScoreFirst) {
  Vocabulary vocabulary = support::basic_vocabulary();
  for (const char* piece : {"a", "b", "c"}) support::add_token(vocabulary, piece, -10);
  support::add_token(vocabulary, "ab", -2);  // 262
  support::add_token(vocabulary, "bc", -1);  // 263
  const SpmTokenizer tokenizer(vocabulary);
  EXPECT_EQ(encode(tokenizer, "abc"), (Tokens{kFirstPiece, 263}));
  EXPECT_EQ(encode(tokenizer, "ab"), (Tokens{262}));
}

TEST(SpmTokenizer, MergesTheLeftmostOfEqualScores) {
  Vocabulary vocabulary = support::basic_vocabulary();
  support::add_token(vocabulary, "a", -1);    // 259
  support::add_token(vocabulary, "aa", -1);   // 260
  support::add_token(vocabulary, "aaa", -1);  // 261
  const SpmTokenizer tokenizer(vocabulary);
  EXPECT_EQ(encode(tokenizer, "aaa"), (Tokens{261}));
  EXPECT_EQ(encode(tokenizer, "aaaaa"), (Tokens{261, 260}));
}

TEST(SpmTokenizer, SpacesBecomeMarks) {
  Vocabulary vocabulary = support::basic_vocabulary();
  support::add_token(vocabulary, "\xE2\x96\x81", -5);   // 259
  support::add_token(vocabulary, "\xE2\x96\x81x", -1);  // 260
  support::add_token(vocabulary, "x", -5);              // 261
  const SpmTokenizer tokenizer(vocabulary);
  EXPECT_EQ(encode(tokenizer, "x", true), (Tokens{260}));
  EXPECT_EQ(encode(tokenizer, "x", false), (Tokens{261}));
  EXPECT_EQ(encode(tokenizer, " x", true), (Tokens{259, 260}));
  EXPECT_EQ(encode(tokenizer, "x x ", false), (Tokens{261, 260, 259}));
  EXPECT_EQ(encode(tokenizer, "\xE2\x96\x81x", false), (Tokens{260}));
}

TEST(SpmTokenizer, MergesCharactersThatAreNoPiecesThemselves) {
  Vocabulary vocabulary = support::basic_vocabulary();
  support::add_token(vocabulary, "xy", -1);
  const SpmTokenizer tokenizer(vocabulary);
  EXPECT_EQ(encode(tokenizer, "xxy"), (Tokens{3 + 'x', kFirstPiece}));
}

TEST(SpmTokenizer, UnknownCharactersBecomeBytes) {
  const SpmTokenizer tokenizer(support::basic_vocabulary());
  EXPECT_EQ(encode(tokenizer, "\xF0\x9F\xA6\x99"),
            (Tokens{3 + 0xF0, 3 + 0x9F, 3 + 0xA6, 3 + 0x99}));
}

TEST(SpmTokenizer, IllFormedBytesBecomeBytesWithoutReadingPastTheEnd) {
  const SpmTokenizer tokenizer(support::basic_vocabulary());
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (byte == ' ') continue;
    // The exact allocation lets the sanitizer see a read past the end.
    const std::vector<char> text = {'a', static_cast<char>(byte)};
    EXPECT_EQ(encode(tokenizer, {text.data(), text.size()}),
              (Tokens{3 + 'a', static_cast<TokenId>(3 + byte)}));
  }
}

TEST(SpmTokenizer, MissingByteTokensFallBackToPiecesThenToUnknown) {
  Vocabulary vocabulary;
  support::add_token(vocabulary, "<unk>", 0, TokenType::kUnknown);
  support::add_token(vocabulary, "<0xc3>", 0, TokenType::kByte);  // lower case counts as well
  support::add_token(vocabulary, "\xBC", 0);
  const SpmTokenizer tokenizer(vocabulary);
  EXPECT_EQ(encode(tokenizer, "\xC3\xBC\xC3\xBD"), (Tokens{1, 2, 1, 0}));
  vocabulary.types[2] = TokenType::kControl;
  EXPECT_EQ(encode(SpmTokenizer(vocabulary), "\xC3\xBC"), (Tokens{1, 0}));
  vocabulary.unk_id = kNoToken;
  EXPECT_EQ(support::error_code([&] { SpmTokenizer refused(vocabulary); }), ErrorCode::kFormat);
}

TEST(SpmTokenizer, NoTextForgesControlOrByteTokens) {
  Vocabulary vocabulary = support::basic_vocabulary();
  for (const char* piece : {"<", "s", ">", "s>", "0", "x", "4", "1", "<0", "<0x", "<0x4", "<0x41",
                            "u", "n", "k", "<u", "<un", "<unk"}) {
    support::add_token(vocabulary, piece, -1);
  }
  const SpmTokenizer tokenizer(vocabulary);
  EXPECT_EQ(encode(tokenizer, "<s>"), (Tokens{kFirstPiece, kFirstPiece + 3}));
  EXPECT_EQ(encode(tokenizer, "<0x41>"), (Tokens{kFirstPiece + 11, kFirstPiece + 2}));
  EXPECT_EQ(encode(tokenizer, "<unk>"), (Tokens{kFirstPiece + 17, kFirstPiece + 2}));
}

TEST(SpmTokenizer, RefusesEqualPieces) {
  Vocabulary vocabulary = support::basic_vocabulary();
  support::add_token(vocabulary, "ab", 0);
  support::add_token(vocabulary, "ab", 0);
  EXPECT_EQ(support::error_code([&] { SpmTokenizer refused(vocabulary); }), ErrorCode::kFormat);
}

/// Pieces of a few characters with few different scores, some byte tokens missing, any types.
Vocabulary random_vocabulary(support::Rng& rng, const std::vector<std::string>& alphabet) {
  Vocabulary vocabulary;
  support::add_token(vocabulary, "<unk>", 0, TokenType::kUnknown);
  const bool has_all_bytes = support::below(rng, 2) == 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!has_all_bytes && support::below(rng, 2) == 0) continue;
    support::add_token(vocabulary, support::byte_piece(byte), 0, TokenType::kByte);
  }
  const std::size_t num_pieces = 1 + support::below(rng, 40);
  const std::size_t num_scores = 1 + support::below(rng, 6);
  std::set<std::string> pieces(vocabulary.pieces.begin(), vocabulary.pieces.end());
  for (std::size_t i = 0; i < num_pieces; ++i) {
    const std::string piece = support::random_text(rng, alphabet, 1 + support::below(rng, 5));
    if (!pieces.insert(piece).second) continue;
    const TokenType type = support::below(rng, 8) != 0 ? TokenType::kNormal
                           : support::below(rng, 2)    ? TokenType::kControl
                                                       : TokenType::kUserDefined;
    support::add_token(vocabulary, piece, -static_cast<float>(support::below(rng, num_scores)),
                       type);
  }
  if (support::below(rng, 8) == 0) {
    vocabulary.scores.back() = std::numeric_limits<float>::infinity();
    vocabulary.scores[vocabulary.scores.size() / 2] = -std::numeric_limits<float>::infinity();
  }
  return vocabulary;
}

TEST(SpmTokenizer, EqualsTheDefinitionOnRandomVocabularies) {
  constexpr std::uint64_t kSeed = 41;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  // Ill-formed pieces included: single continuation bytes and cut characters.
  const std::vector<std::string> alphabets[] = {
      {"a", "b"},
      {"a", "b", "\xE2\x96\x81", "\xC3\xBC"},
      {"a", "\xC3\xBC", "\xC3\xBD", "\xF0\x9F\xA6\x99", "\xE2\x96\x81", "\xE2", "\x96", "\xC3"}};
  for (int round = 0; round < 3000; ++round) {
    const auto& alphabet = alphabets[support::below(rng, std::size(alphabets))];
    const Vocabulary vocabulary = random_vocabulary(rng, alphabet);
    const SpmTokenizer tokenizer(vocabulary);
    const PlainBpe plain(vocabulary);
    std::vector<std::string> letters = alphabet;
    letters.insert(letters.end(), {" ", "z", "\xFF", "\xE2\x82"});
    for (int i = 0; i < 10; ++i) {
      const std::string text =
          support::random_text(rng, i < 5 ? alphabet : letters, support::below(rng, 60));
      ASSERT_EQ(encode(tokenizer, text), plain.encode(text))
          << "round " << round << ", text " << testing::PrintToString(text);
    }
  }
}

TEST(SpmTokenizer, LongRunsMergeAsBriefOnes) {
  Vocabulary vocabulary = support::basic_vocabulary();
  for (std::size_t length = 1; length <= kMaxPieceBytes; length *= 2) {
    support::add_token(vocabulary, std::string(length, 'a'), -static_cast<float>(length));
  }
  const SpmTokenizer tokenizer(vocabulary);
  const Tokens tokens = encode(tokenizer, std::string(1'000'000, 'a'));
  // 1,000,000 = 976 * 1024 + 512 + 64: halves are merged from the left, the rest stays behind.
  ASSERT_EQ(tokens.size(), 978u);
  EXPECT_EQ(tokens[0], kFirstPiece + 10);
  EXPECT_EQ(tokens[976], kFirstPiece + 9);
  EXPECT_EQ(tokens[977], kFirstPiece + 6);
}

TEST(SpmTokenizer, ARunOfGrowingPiecesCompletes) {
  Vocabulary vocabulary = support::basic_vocabulary();
  for (std::size_t length = 1; length <= kMaxPieceBytes; ++length) {
    support::add_token(vocabulary, std::string(length, 'a'), static_cast<float>(length));
  }
  const Tokens tokens = encode(SpmTokenizer(vocabulary), std::string(200'000, 'a'));
  ASSERT_EQ(tokens.size(), 196u);  // 195 of 1024 and one of 320
  EXPECT_EQ(tokens.back(), kFirstPiece + 319);
}

}  // namespace
}  // namespace kvick
