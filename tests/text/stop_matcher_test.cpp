// SPDX-License-Identifier: MIT
#include "kvick/text/stop_matcher.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using Strings = std::vector<std::string>;

struct Outcome {
  std::string text;
  std::optional<std::size_t> match;
  bool operator==(const Outcome&) const = default;
};

/// The rule as it is defined: the first end at which a stop string is complete, the longest there.
Outcome find_first_stop(const Strings& stops, std::string_view text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      if (!text.substr(0, end).ends_with(stops[i])) continue;
      if (!best || stops[i].size() > stops[*best].size()) best = i;
    }
    if (best) return {std::string(text.substr(0, end - stops[*best].size())), best};
  }
  return {std::string(text), std::nullopt};
}

/// Length of the longest suffix of `text` that starts a stop string without being one.
std::size_t longest_start(const Strings& stops, std::string_view text) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t length = 1; length < stop.size() && length <= text.size(); ++length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) {
        longest = std::max(longest, length);
      }
    }
  }
  return longest;
}

TEST(StopMatcher, PassesEverythingWithoutStopStrings) {
  StopMatcher matcher;
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_EQ(matcher.push(""), "");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_FALSE(matcher.has_matched());
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher(Strings{"\nUser:"});
  EXPECT_EQ(matcher.push("Hello\nUs"), "Hello");
  EXPECT_EQ(matcher.push("e"), "");
  EXPECT_EQ(matcher.push("d\n"), "\nUsed");
  EXPECT_EQ(matcher.push("\nUser"), "\n");
  EXPECT_EQ(matcher.push(": hi"), "");
  EXPECT_TRUE(matcher.has_matched());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_EQ(matcher.match(), 0u);
}

TEST(StopMatcher, GivesBackTheRestAtTheEnd) {
  StopMatcher matcher(Strings{"stop"});
  EXPECT_EQ(matcher.push("a sto"), "a ");
  EXPECT_EQ(matcher.finish(), "sto");
  EXPECT_FALSE(matcher.has_matched());
}

TEST(StopMatcher, TheStopThatIsCompleteFirstWins) {
  StopMatcher inner(Strings{"abcd", "bc"});
  EXPECT_EQ(inner.push("xabcd"), "xa");
  EXPECT_EQ(inner.match(), 1u);
  StopMatcher both_end_here(Strings{"c", "bc", "abc", "bc"});
  EXPECT_EQ(both_end_here.push("xabc"), "x");
  EXPECT_EQ(both_end_here.match(), 2u);
  StopMatcher equal(Strings{"a", "a"});
  EXPECT_EQ(equal.push("a"), "");
  EXPECT_EQ(equal.match(), 0u);
}

TEST(StopMatcher, RefusesAnEmptyStop) {
  EXPECT_EQ(support::error_code([] {
              StopMatcher matcher(Strings{"a", ""});
            }),
            ErrorCode::kArgument);
}

TEST(StopMatcher, EqualsTheDefinitionForAnySplit) {
  constexpr std::uint64_t kSeed = 31;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  const Strings alphabet = {"a", "b", "\xFF"};
  for (int round = 0; round < 20'000; ++round) {
    Strings stops;
    for (std::size_t n = support::below(rng, 4); n > 0; --n) {
      stops.push_back(support::random_text(rng, alphabet, 2 + support::below(rng, 6)));
    }
    const std::string text = support::random_text(rng, alphabet, support::below(rng, 60));
    const Outcome want = find_first_stop(stops, text);
    StopMatcher matcher(stops);
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = std::min(support::below(rng, 5), text.size() - at);
      out += matcher.push(std::string_view(text).substr(at, length));
      at += length;
      if (matcher.has_matched()) break;
      const std::string_view seen = std::string_view(text).substr(0, at);
      ASSERT_EQ(out.size(), at - longest_start(stops, seen)) << "round " << round;
    }
    out += matcher.finish();
    ASSERT_EQ((Outcome{out, matcher.match()}), want) << "round " << round;
  }
}

TEST(StopMatcher, LongPeriodicTextsAndStopsComplete) {
  StopMatcher matcher(Strings{std::string(5000, 'a') + "b", std::string(3000, 'a') + "c"});
  std::string out = matcher.push(std::string(2'000'000, 'a'));
  EXPECT_EQ(out.size(), 2'000'000u - 5000);
  out += matcher.push("c");
  EXPECT_EQ(out, std::string(2'000'000 - 3000, 'a'));
  EXPECT_EQ(matcher.match(), 1u);
}

}  // namespace
}  // namespace kvick
