// SPDX-License-Identifier: MIT
#include "kvick/text/unicode_categories.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using enum CharacterClass;

TEST(CharacterClass, FollowsTheGeneralCategory) {
  const std::pair<std::uint32_t, CharacterClass> cases[] = {
      {'A', kUpperCase},
      {'z', kLowerCase},
      {0x01C5, kTitleCase},
      {0x02B0, kModifierLetter},
      {0x4E2D, kOtherLetter},
      {0xAC00, kOtherLetter},
      {0x0301, kMark},
      {0x0903, kMark},
      {0x20DD, kMark},
      {'7', kNumber},
      {0x00BD, kNumber},
      {0x2167, kNumber},
      {'_', kPunctuation},
      {'(', kPunctuation},
      {0x3002, kPunctuation},
      {'$', kSymbol},
      {'`', kSymbol},
      {0x1F999, kSymbol},
      {' ', kSpace},
      {'\t', kSpace},
      {'\v', kSpace},
      {0x85, kSpace},
      {0xA0, kSpace},
      {0x3000, kSpace},
      {0x2028, kSpace},
      {0, kOther},
      {0x200B, kOther},
      {0xFEFF, kOther},
      {0xE000, kOther},
      {0x0378, kOther},
      {0xE0100, kMark},
      {0xE01EF, kMark},
      {0xE01F0, kOther},
      {0xE0041, kOther},
      {0x10FFFF, kOther},
      {0x110000, kOther},
      {0x323AF, kOtherLetter},
      {0x323B0, kOther},
      {Character::kNoCodePoint, kOther},
  };
  for (const auto& [code_point, want] : cases) {
    EXPECT_EQ(character_class(code_point), want) << std::hex << code_point;
  }
}

/// The classes by the files of Debian's package unicode-data.
std::vector<CharacterClass> classes_by_the_standard(std::istream& data, std::istream& properties) {
  const std::map<std::string, CharacterClass> by_category = {
      {"Lu", kUpperCase},      {"Ll", kLowerCase},   {"Lt", kTitleCase},
      {"Lm", kModifierLetter}, {"Lo", kOtherLetter}, {"M", kMark},
      {"N", kNumber},          {"P", kPunctuation},  {"S", kSymbol}};
  std::vector<CharacterClass> classes(0x110000, kOther);
  std::uint32_t range_begin = 0;
  for (std::string line; std::getline(data, line);) {
    std::istringstream fields(line);
    std::string code, name, category;
    std::getline(fields, code, ';');
    std::getline(fields, name, ';');
    std::getline(fields, category, ';');
    const auto last = static_cast<std::uint32_t>(std::stoul(code, nullptr, 16));
    const bool is_range = name.ends_with(", Last>");
    auto found = by_category.find(category);
    if (found == by_category.end()) found = by_category.find(category.substr(0, 1));
    for (std::uint32_t c = is_range ? range_begin : last; c <= last; ++c) {
      classes[c] = found != by_category.end() ? found->second : kOther;
    }
    range_begin = last;
  }
  for (std::string line; std::getline(properties, line);) {
    const auto semicolon = line.find(';');
    if (semicolon == std::string::npos || line.find("; White_Space ") != semicolon) continue;
    const std::size_t dots = line.find("..");
    const std::string last = dots < semicolon ? line.substr(dots + 2) : line;
    for (auto c = std::stoul(line, nullptr, 16); c <= std::stoul(last, nullptr, 16); ++c) {
      classes[c] = kSpace;
    }
  }
  return classes;
}

TEST(CharacterClass, EqualsTheStandardForEveryCodePoint) {
  std::ifstream data("/usr/share/unicode/UnicodeData.txt");
  std::ifstream properties("/usr/share/unicode/PropList.txt");
  std::string version;
  std::getline(properties, version);
  if (!data || version.find("PropList-15.") == std::string::npos) {
    GTEST_SKIP() << "the package unicode-data with Unicode 15 is not installed";
  }
  const std::vector<CharacterClass> want = classes_by_the_standard(data, properties);
  for (std::uint32_t c = 0; c < want.size(); ++c) {
    ASSERT_EQ(character_class(c), want[c]) << std::hex << c;
  }
}

TEST(CharacterSet, HoldsItsClasses) {
  const CharacterSet letters = kUpperCase | kLowerCase;
  EXPECT_TRUE(letters.contains(kUpperCase));
  EXPECT_TRUE(letters.contains(kLowerCase));
  EXPECT_FALSE(letters.contains(kMark));
  EXPECT_FALSE((~letters).contains(kLowerCase));
  EXPECT_TRUE((~letters).contains(kOther));
  EXPECT_TRUE((~letters).contains(kSpace));
}

TEST(FrontCharacter, ReadsEveryCodePoint) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string text = support::utf8(c);
    const Character front = front_character(text + "x");
    ASSERT_EQ(front.code_point, c);
    ASSERT_EQ(front.num_bytes, text.size());
    ASSERT_EQ(front.character_class, character_class(c));
  }
}

TEST(FrontCharacter, TakesOneByteOfWhatIsNoCharacter) {
  // A continuation, overlong, a surrogate, too large, cut short, no lead byte at all.
  for (const std::string text : {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE4\xB8",
                                 "\xE4", "\xF0\x9F\xA6", "\xFF", "\xC3(", "\xE4\xB8(x"}) {
    const Character front = front_character(text);
    EXPECT_EQ(front.code_point, Character::kNoCodePoint) << testing::PrintToString(text);
    EXPECT_EQ(front.num_bytes, 1u);
    EXPECT_EQ(front.character_class, kOther);
  }
}

}  // namespace
}  // namespace kvick
