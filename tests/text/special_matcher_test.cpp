// SPDX-License-Identifier: MIT
#include "kvick/text/special_matcher.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using Tokens = std::vector<std::pair<std::string, TokenId>>;

/// The rule as it is defined: one token after another, longest first, in what is left of the text.
std::vector<SpecialMatch> search_one_after_another(Tokens tokens, const std::string& text) {
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
    return a.first.size() != b.first.size() ? a.first.size() > b.first.size() : a.second < b.second;
  });
  std::vector<SpecialMatch> matches;
  std::vector<bool> is_taken(text.size(), false);
  for (const auto& [piece, token] : tokens) {
    for (std::size_t at = 0; at + piece.size() <= text.size();) {
      bool fits = text.compare(at, piece.size(), piece) == 0;
      for (std::size_t i = 0; i < piece.size(); ++i) fits = fits && !is_taken[at + i];
      if (!fits) {
        ++at;
        continue;
      }
      for (std::size_t i = 0; i < piece.size(); ++i) is_taken[at + i] = true;
      matches.push_back({at, piece.size(), token});
      at += piece.size();
    }
  }
  std::sort(matches.begin(), matches.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return matches;
}

using Matches = std::vector<SpecialMatch>;

TEST(SpecialMatcher, PrefersTheLongerEvenIfItStartsLater) {
  const SpecialMatcher matcher(Tokens{{"ab", 1}, {"bcd", 2}});
  EXPECT_EQ(matcher.find("abcd"), (Matches{{1, 3, 2}}));
  EXPECT_EQ(matcher.find("abab"), (Matches{{0, 2, 1}, {2, 2, 1}}));
  EXPECT_EQ(matcher.find("xabx"), (Matches{{1, 2, 1}}));
}

TEST(SpecialMatcher, PrefersTheLowerTokenThenTheEarlierPlace) {
  const SpecialMatcher matcher(Tokens{{"ab", 2}, {"ba", 1}});
  EXPECT_EQ(matcher.find("aba"), (Matches{{1, 2, 1}}));
  EXPECT_EQ(matcher.find("bab"), (Matches{{0, 2, 1}}));
  EXPECT_EQ(SpecialMatcher(Tokens{{"aa", 3}}).find("aaa"), (Matches{{0, 2, 3}}));
}

TEST(SpecialMatcher, FallsBackToAShorterOneThatFits) {
  const SpecialMatcher matcher(Tokens{{"abc", 1}, {"a", 2}, {"bcde", 3}});
  EXPECT_EQ(matcher.find("abcde"), (Matches{{0, 1, 2}, {1, 4, 3}}));
}

TEST(SpecialMatcher, MatchesNothingWithoutTokensOrText) {
  EXPECT_TRUE(SpecialMatcher().find("abc").empty());
  EXPECT_TRUE(SpecialMatcher(Tokens{{"", 1}}).find("abc").empty());
  EXPECT_TRUE(SpecialMatcher(Tokens{{"a", 1}}).find("").empty());
}

TEST(SpecialMatcher, EqualsSearchingOneTokenAfterAnother) {
  constexpr std::uint64_t kSeed = 21;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  for (int round = 0; round < 20'000; ++round) {
    std::set<std::string> pieces;
    const std::size_t num_pieces = 1 + support::below(rng, 12);
    while (pieces.size() < num_pieces) {
      pieces.insert(support::random_text(rng, {"a", "b", "\xFF"}, 1 + support::below(rng, 9)));
    }
    Tokens tokens;
    for (const std::string& piece : pieces) {
      tokens.emplace_back(piece, static_cast<TokenId>(tokens.size()));
    }
    std::shuffle(tokens.begin(), tokens.end(), rng);
    const std::string text = support::random_text(rng, {"a", "b", "\xFF"}, support::below(rng, 40));
    ASSERT_EQ(SpecialMatcher(tokens).find(text), search_one_after_another(tokens, text))
        << "round " << round << ", text " << testing::PrintToString(text);
  }
}

TEST(SpecialMatcher, ManyNestedTokensInALongTextComplete) {
  Tokens tokens;
  for (std::size_t length = 1; length <= 200; ++length) {
    tokens.emplace_back(std::string(length, 'a'), static_cast<TokenId>(length));
  }
  const std::vector<SpecialMatch> matches = SpecialMatcher(tokens).find(std::string(100'050, 'a'));
  ASSERT_EQ(matches.size(), 501u);  // 500 of the longest and one of 50
  EXPECT_EQ(matches.back(), (SpecialMatch{100'000, 50, 50}));
}

}  // namespace
}  // namespace kvick
