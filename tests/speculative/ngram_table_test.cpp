// SPDX-License-Identifier: MIT
#include "kvick/speculative/ngram_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/expect_error.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace kvick;
using support::expect_error;
using Tokens = std::vector<TokenId>;

TEST(NgramTable, KnowsTheTokenThatFollowsTheLongestKnownContext) {
  NgramTable table({.vocab_size = 10});
  table.learn(Tokens{1, 2, 3, 4});
  table.learn(Tokens{5, 3, 6});
  table.learn(Tokens{7, 3, 6});
  EXPECT_EQ(table.next(Tokens{1, 2, 3}), 4);     // of three
  EXPECT_EQ(table.next(Tokens{0, 2, 3}), 4);     // of two
  EXPECT_EQ(table.next(Tokens{0, 0, 5, 3}), 6);  // of two
  EXPECT_EQ(table.next(Tokens{8, 3}), 6);        // of one: 4 once, 6 twice
  EXPECT_EQ(table.next(Tokens{9}), NgramTable::kNoNext);
  EXPECT_EQ(table.next({}), NgramTable::kNoNext);
}

TEST(NgramTable, KeepsTheMajority) {
  NgramTable table({.vocab_size = 10, .order = 1});
  for (const TokenId next : {1, 2, 2, 3, 2, 2}) table.learn(Tokens{0, next});
  EXPECT_EQ(table.next(Tokens{0}), 2);
  EXPECT_EQ(table.size(), 1);
}

TEST(NgramTable, AgreesWithAMapOverRandomTexts) {
  std::mt19937 rng(1);
  std::uniform_int_distribution<TokenId> token(0, 19);
  for (int order : {1, 2, 3, 5, 8}) {
    NgramTable table({.vocab_size = 20, .order = order});
    std::map<Tokens, std::pair<TokenId, int>> map;
    Tokens text;
    for (int i = 0; i < 3000; ++i) text.push_back(token(rng));
    table.learn(text);
    for (std::size_t i = 1; i < text.size(); ++i) {
      for (std::size_t n = 1; n <= std::min(i, static_cast<std::size_t>(order)); ++n) {
        const Tokens context(text.begin() + static_cast<std::ptrdiff_t>(i - n),
                             text.begin() + static_cast<std::ptrdiff_t>(i));
        auto& [winner, votes] = map[context];
        if (votes == 0) winner = text[i];
        votes += winner == text[i] ? 1 : -1;
        if (votes == 0) std::tie(winner, votes) = std::pair(text[i], 1);
      }
    }
    EXPECT_EQ(table.size(), static_cast<std::int64_t>(map.size()));
    const NgramTable copy = NgramTable::from_bytes(table.to_bytes(), 20);
    EXPECT_EQ(copy.size(), table.size());
    for (int i = 0; i < 2000; ++i) {
      Tokens end;
      for (int j = 0; j < order; ++j) end.push_back(token(rng));
      TokenId want = NgramTable::kNoNext;
      for (std::size_t n = end.size(); n > 0 && want == NgramTable::kNoNext; --n) {
        const auto found = map.find(Tokens(end.end() - static_cast<std::ptrdiff_t>(n), end.end()));
        if (found != map.end()) want = found->second.first;
      }
      ASSERT_EQ(table.next(end), want);
      ASSERT_EQ(copy.next(end), want);
    }
  }
}

TEST(NgramTable, LearnsNoNewContextsWhenFull) {
  NgramTable table({.vocab_size = 1000, .order = 1, .max_entries = 10});
  for (TokenId t = 0; t < 1000; ++t) table.learn(Tokens{t, 1});
  EXPECT_EQ(table.size(), 10);
  EXPECT_EQ(table.next(Tokens{9}), 1);
  EXPECT_EQ(table.next(Tokens{10}), NgramTable::kNoNext);
}

TEST(NgramTable, IsSavedAndLoaded) {
  const support::TemporaryDirectory directory;
  NgramTable table({.vocab_size = 50});
  table.learn(Tokens{1, 2, 3, 4, 5, 1, 2, 4});
  table.save(directory / "table");
  const NgramTable loaded = NgramTable::load(directory / "table", 50);
  EXPECT_EQ(loaded.size(), table.size());
  EXPECT_EQ(loaded.next(Tokens{3, 4}), 5);
  expect_error(ErrorCode::kArgument, "a table must be of the model's 51 tokens, got 50",
               [&] { NgramTable::load(directory / "table", 51); });
  expect_error(ErrorCode::kIo, "absent", [&] { NgramTable::load(directory / "absent", 50); });
}

/// With a checksum that fits.
std::vector<std::byte> sealed(std::vector<std::byte> bytes) {
  const std::uint64_t sum =
      state_checksum(std::span(bytes).first(bytes.size() - sizeof(std::uint64_t)));
  std::memcpy(bytes.data() + bytes.size() - sizeof sum, &sum, sizeof sum);
  return bytes;
}

TEST(NgramTable, RefusesBytesThatAreNoTable) {
  NgramTable table({.vocab_size = 50, .order = 2});
  table.learn(Tokens{1, 2, 3});
  const auto bytes = table.to_bytes();
  const auto with = [&](std::size_t at, auto value) {
    auto changed = bytes;
    std::memcpy(changed.data() + at, &value, sizeof value);
    return sealed(std::move(changed));
  };
  const auto refuses = [](const std::vector<std::byte>& wrong, const std::string& part) {
    expect_error(ErrorCode::kFormat, part, [&] { NgramTable::from_bytes(wrong, 50); });
  };
  EXPECT_EQ(NgramTable::from_bytes(sealed(bytes), 50).size(), 3);
  refuses({}, "at least 40 bytes, got 0");
  refuses(with(0, 'K'), "must begin with");
  refuses(with(12, 0), "order must be in [1, 8], got 0");
  refuses(with(12, 1 << 30), "order must be in [1, 8]");
  refuses(with(16, std::int64_t{-1}), "max_entries");
  refuses(with(16, std::int64_t{1} << 60), "max_entries");
  refuses(with(16, std::int64_t{2}), "of its 3 entries, at most 2");
  refuses(with(24, std::int64_t{4}), "of its 4 entries");
  refuses(with(24, std::int64_t{-1}), "of its -1 entries");
  for (std::size_t word = 0; word < 4; ++word) {  // context, context, next, votes
    refuses(with(32 + 4 * word, -2), "entry 0");
    if (word < 3) refuses(with(32 + 4 * word, 50), "entry 0");
  }
  refuses(with(32 + 4 * 1, -1), "entry 0");  // no context at all
  auto twice = bytes;
  std::memcpy(twice.data() + 32 + 16, twice.data() + 32, 16);
  refuses(sealed(twice), "must differ");
  // Any byte changed, any length cut.
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto changed = bytes;
    changed[i] ^= std::byte{0x40};
    EXPECT_THROW(NgramTable::from_bytes(changed, 50), Error) << "byte " << i;
    EXPECT_THROW(NgramTable::from_bytes(std::span(bytes).first(i), 50), Error) << "length " << i;
  }
}

TEST(NgramTable, RefusesOptionsAndTokensOutOfRange) {
  expect_error(ErrorCode::kArgument, "vocab_size must be at least 1, got 0",
               [] { NgramTable table(NgramTableOptions{}); });
  expect_error(ErrorCode::kArgument, "order must be in [1, 8], got 9",
               [] { NgramTable table({.vocab_size = 5, .order = 9}); });
  expect_error(ErrorCode::kArgument, "max_entries",
               [] { NgramTable table({.vocab_size = 5, .max_entries = 0}); });
  NgramTable table({.vocab_size = 5});
  expect_error(ErrorCode::kArgument, "tokens must be in [0, 5), got 5", [&] {
    table.learn(Tokens{1, 5});
  });
  EXPECT_EQ(table.size(), 0);
}

TEST(NgramDraft, FollowsTheTableTokenByToken) {
  NgramTable table({.vocab_size = 10});
  table.learn(Tokens{1, 2, 3, 4, 5});
  NgramDraft source(table);
  Sampler sampler;
  const auto propose = [&](const Tokens& text, int max_tokens) {
    Draft draft;
    source.propose({.tokens = text, .max_tokens = max_tokens, .sampler = sampler}, draft);
    return draft.tokens;
  };
  EXPECT_EQ(propose({9, 1}, 2), (Tokens{2, 3}));
  EXPECT_EQ(propose({9, 1}, 9), (Tokens{2, 3, 4, 5}));
  EXPECT_EQ(propose({5}, 9), Tokens{});
}

}  // namespace
