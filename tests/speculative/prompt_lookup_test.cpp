// SPDX-License-Identifier: MIT
#include "kvick/speculative/prompt_lookup.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/speculative/ngram_table.hpp"

namespace {

using namespace kvick;
using support::expect_error;
using Tokens = std::vector<TokenId>;

template <class Source>
Tokens propose(Source& source, const Tokens& text, int max_tokens) {
  Sampler sampler;
  Draft draft;
  source.propose({.tokens = text, .max_tokens = max_tokens, .sampler = sampler}, draft);
  EXPECT_TRUE(draft.probabilities.empty());
  return draft.tokens;
}

TEST(PromptLookup, ProposesWhatFollowedTheLongestMatch) {
  PromptLookup lookup;
  //                    v longest match of 1 2 3           v later, but only 2 3
  EXPECT_EQ(propose(lookup, {9, 1, 2, 3, 4, 5, 6, 8, 2, 3, 7, 7, 1, 2, 3}, 3), (Tokens{4, 5, 6}));
}

TEST(PromptLookup, PrefersTheLatestOfEquallyLongMatches) {
  PromptLookup lookup;
  EXPECT_EQ(propose(lookup, {1, 2, 5, 8, 1, 2, 6, 9, 1, 2}, 1), (Tokens{6}));
}

TEST(PromptLookup, ProposesNothingWithoutAMatch) {
  PromptLookup lookup;
  EXPECT_EQ(propose(lookup, {1}, 4), Tokens{});
  EXPECT_EQ(propose(lookup, {1, 2}, 4), Tokens{});
  EXPECT_EQ(propose(lookup, {1, 2, 3, 4, 5, 2}, 4), Tokens{});  // 2 matches, 5 2 does not
  PromptLookup single({.min_match = 1});
  EXPECT_EQ(propose(single, {1, 2, 3, 4, 5, 2}, 2), (Tokens{3, 4}));
}

TEST(PromptLookup, RepeatsALoopBeyondTheEndOfTheText) {
  PromptLookup lookup;
  EXPECT_EQ(propose(lookup, {1, 2, 3, 1, 2, 3, 1, 2}, 7), (Tokens{3, 1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(propose(lookup, {5, 5, 5}, 4), (Tokens{5, 5, 5, 5}));
}

/// The definition: the longest equal end, the latest of those, among all places.
Tokens naive(const Tokens& text, std::size_t min_match, std::size_t max_match, int max_tokens) {
  std::size_t best = 0, best_length = min_match - 1;
  for (std::size_t place = text.size() - 1; place > 0; --place) {
    std::size_t n = 0;
    while (n < std::min(place, max_match) && text[place - 1 - n] == text[text.size() - 1 - n]) ++n;
    if (n > best_length) {
      best_length = n;
      best = place;
    }
  }
  Tokens drafts;
  if (best == 0) return drafts;
  Tokens longer = text;
  for (int i = 0; i < max_tokens; ++i) {
    longer.push_back(longer[best + static_cast<std::size_t>(i)]);
    drafts.push_back(longer.back());
  }
  return drafts;
}

TEST(PromptLookup, FindsWhatASearchOfTheWholeTextFinds) {
  std::mt19937 rng(1);
  for (int min_match : {1, 2, 3}) {
    PromptLookup lookup({.min_match = min_match, .max_match = 8, .max_candidates = 5000});
    for (int vocab_size : {2, 5, 40}) {
      std::uniform_int_distribution<TokenId> token(0, vocab_size - 1);
      Tokens text;
      for (int i = 0; i < 1200; ++i) {
        text.push_back(token(rng));
        if (i % 7 == 0) {
          ASSERT_EQ(propose(lookup, text, 5),
                    naive(text, static_cast<std::size_t>(min_match), 8, 5))
              << "text of " << text.size() << " of " << vocab_size << " tokens";
        }
      }
    }
  }
}

// What was rejected, or another text, is not remembered.
TEST(PromptLookup, FollowsATextThatIsTakenBackOrReplaced) {
  std::mt19937 rng(2);
  std::uniform_int_distribution<TokenId> token(0, 4);
  PromptLookup lookup({.max_candidates = 5000});
  Tokens text;
  for (int i = 0; i < 1000; ++i) {
    if (rng() % 10 == 0) text.resize(rng() % (text.size() + 1));
    if (rng() % 50 == 0) std::fill(text.begin(), text.end(), token(rng));
    text.push_back(token(rng));
    ASSERT_EQ(propose(lookup, text, 3), naive(text, 2, 32, 3)) << "round " << i;
  }
}

TEST(PromptLookup, RefusesOptionsOutOfRange) {
  expect_error(ErrorCode::kArgument, "min_match must be in [1, 16], got 0",
               [] { PromptLookup lookup({.min_match = 0}); });
  expect_error(ErrorCode::kArgument, "max_match must be at least min_match = 4, got 3",
               [] { PromptLookup lookup({.min_match = 4, .max_match = 3}); });
  expect_error(ErrorCode::kArgument, "max_candidates must be at least 1, got 0",
               [] { PromptLookup lookup({.max_candidates = 0}); });
}

TEST(CombinedDraft, AsksInOrderUntilOneProposes) {
  struct Fixed {
    void propose(const DraftContext&, Draft& draft) {
      ++num_asked;
      draft.tokens = tokens;
    }
    Tokens tokens;
    int num_asked = 0;
  };
  struct Counted {
    explicit Counted(Fixed& fixed) : fixed_(fixed) {}
    void propose(const DraftContext& context, Draft& draft) { fixed_.propose(context, draft); }
    Fixed& fixed_;
  };
  Fixed none, some{{7, 8}}, other{{9}};
  CombinedDraft combined{Counted(none), Counted(some), Counted(other)};
  EXPECT_EQ(propose(combined, {1, 2}, 4), (Tokens{7, 8}));
  EXPECT_EQ(none.num_asked, 1);
  EXPECT_EQ(some.num_asked, 1);
  EXPECT_EQ(other.num_asked, 0);
}

}  // namespace
