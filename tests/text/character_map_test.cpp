// SPDX-License-Identifier: MIT
#include "kvick/text/character_map.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

/// The bytes of a map with these units, and texts "a\0bc\0\0": at 0 "a", at 2 "bc", at 5 nothing.
std::string map_of(const std::vector<std::uint32_t>& units) {
  std::string bytes;
  const auto add = [&](std::size_t value) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  };
  add(4 * units.size());
  for (const std::uint32_t unit : units) add(unit);
  return bytes + std::string("a\0bc\0\0", 6);
}

constexpr std::uint32_t unit(std::uint32_t label, std::uint32_t offset, bool ends_a_rule) {
  return label | offset << 10 | (ends_a_rule ? 0x100u : 0u);
}
constexpr std::uint32_t value(std::uint32_t begin) { return begin | 0x80000000; }

/// Rules: "A" becomes "a", "AB" becomes "bc", "Z" vanishes.
std::vector<std::uint32_t> three_rules() {
  std::vector<std::uint32_t> units(1024);
  units[0] = unit(0, 256, false);
  units[256 ^ 'A'] = unit('A', 512, true);  // 321, its value at 321 ^ 512
  units[321 ^ 512] = value(0);
  units[321 ^ 512 ^ 'B'] = unit('B', 256, true);  // 833 ^ 66 = 771, its value at 771 ^ 256
  units[771 ^ 256] = value(2);
  units[256 ^ 'Z'] = unit('Z', 512, true);  // 346, its value at 346 ^ 512
  units[346 ^ 512] = value(5);
  return units;
}

TEST(CharacterMap, TheLongestRuleWins) {
  const CharacterMap map(map_of(three_rules()));
  EXPECT_EQ(map.find("Ax").text, "a");
  EXPECT_EQ(map.find("Ax").length, 1u);
  EXPECT_EQ(map.find("ABx").text, "bc");
  EXPECT_EQ(map.find("AB").length, 2u);
  EXPECT_EQ(map.find("Z").length, 1u);
  EXPECT_EQ(map.find("Z").text, "");
  for (const char* const text : {"", "x", "BA", "xA"}) EXPECT_EQ(map.find(text).length, 0u);
  EXPECT_EQ(map.find(std::string_view("\0A", 2)).length, 0u);
  EXPECT_EQ(CharacterMap().find("A").length, 0u);
  EXPECT_EQ(CharacterMap("").find("A").length, 0u);
}

TEST(CharacterMap, RefusesWhatIsNoMap) {
  const std::string good = map_of(three_rules());
  for (const std::string& bytes :
       {std::string("x"), std::string(4, '\0'), std::string("\3\0\0\0abcd", 8),
        good.substr(0, 1000), std::string(8, '\xFF')}) {
    EXPECT_EQ(support::error_code([&] { CharacterMap refused(bytes); }), ErrorCode::kFormat);
  }
  EXPECT_EQ(support::error_code([&] { CharacterMap refused(good + std::string(257, 'x')); }),
            ErrorCode::kFormat);
}

TEST(CharacterMap, ATrieThatLeadsAstrayMatchesNothingTooLong) {
  constexpr std::uint64_t kSeed = 93;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::uint32_t> units(1 + support::below(rng, 600));
    for (auto& u : units) {
      u = unit(static_cast<std::uint32_t>(support::below(rng, 256)),
               static_cast<std::uint32_t>(support::below(rng, 1024)), support::below(rng, 2) == 0);
      if (support::below(rng, 16) == 0) u = static_cast<std::uint32_t>(rng());
    }
    const CharacterMap map(map_of(units));
    const std::string text = support::random_bytes(rng, 100);
    for (std::size_t at = 0; at < text.size(); ++at) {
      const auto match = map.find(std::string_view(text).substr(at));
      ASSERT_LE(match.length, 64u);
      ASSERT_LE(match.text.size(), 2u);
    }
  }
}

}  // namespace
}  // namespace kvick
