// SPDX-License-Identifier: MIT
#include "kvick/text/piece_index.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

TEST(PieceIndex, FindsExactlyThePieces) {
  constexpr std::uint64_t kSeed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  std::map<std::string, TokenId> expected;
  std::vector<std::string> pieces;
  while (pieces.size() < 5000) {
    // Two letters, so that texts of 1 to 20 bytes are near to each other.
    std::string piece = support::random_text(rng, {"a", "b"}, 1 + support::below(rng, 20));
    if (expected.emplace(piece, static_cast<TokenId>(pieces.size())).second) {
      pieces.push_back(std::move(piece));
    }
  }
  const PieceIndex index(pieces);
  for (int i = 0; i < 100'000; ++i) {
    const std::string text = support::random_text(rng, {"a", "b"}, 1 + support::below(rng, 22));
    const auto found = expected.find(text);
    ASSERT_EQ(index.find(text), found == expected.end() ? kNoToken : found->second) << text;
  }
  for (const auto& [piece, token] : expected) ASSERT_EQ(index.find(piece), token) << piece;
}

TEST(PieceIndex, TellsApartBytesAtEveryPlace) {
  std::vector<std::string> pieces;
  for (std::size_t length = 1; length <= 20; ++length) {
    pieces.push_back(std::string(length, '\0'));
    for (std::size_t i = 0; i < length; ++i) {
      pieces.push_back(std::string(length, '\0'));
      pieces.back()[i] = '\x80';
    }
  }
  const PieceIndex index(pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(index.find(pieces[i]), static_cast<TokenId>(i));
  }
}

TEST(PieceIndex, LeavesOutEmptyPieces) {
  const PieceIndex index(std::vector<std::string>{"", "a", ""});
  EXPECT_EQ(index.find(""), kNoToken);
  EXPECT_EQ(index.find("a"), 1);
  EXPECT_EQ(index.max_piece_bytes(), 1u);
  EXPECT_EQ(PieceIndex(std::vector<std::string>{}).find("a"), kNoToken);
}

TEST(PieceIndex, RefusesEqualPieces) {
  const std::vector<std::string> pieces = {"a", "bc", "bc"};
  EXPECT_EQ(support::error_code([&] { PieceIndex index(pieces); }), ErrorCode::kFormat);
}

}  // namespace
}  // namespace kvick
