// SPDX-License-Identifier: MIT
#include "kvick/text/byte_alphabet.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvick {
namespace {

TEST(ByteAlphabet, SpellsKnownBytes) {
  EXPECT_EQ(spelling_of_bytes(" a\n"), "\u0120a\u010a");
  EXPECT_EQ(spelling_of_bytes("\xC3\xBC"), "\u00c3\u00bc");
  EXPECT_EQ(spelling_of_bytes(std::string(1, '\0')), "\u0100");
  EXPECT_EQ(spelling_of_bytes("\x7F\x80\xA0\xAD"), "\u0121\u0122\u0142\u0143");
}

TEST(ByteAlphabet, EveryByteHasASpellingOfItsOwn) {
  std::set<std::string> spellings;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    const std::string piece = spelling_of_bytes(bytes);
    EXPECT_TRUE(spellings.insert(piece).second) << byte;
    EXPECT_EQ(bytes_of_spelling(piece), bytes);
  }
}

TEST(ByteAlphabet, OtherCharactersSpellNothing) {
  for (const std::string piece : {" ", "a b", "\n", "\u00ad", "\u0144", "\uff5c", "\x80", "\xC3"}) {
    EXPECT_EQ(bytes_of_spelling(piece), std::nullopt) << testing::PrintToString(piece);
  }
  EXPECT_EQ(bytes_of_spelling(""), "");
}

}  // namespace
}  // namespace kvick
