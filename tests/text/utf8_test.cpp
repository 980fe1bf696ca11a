// SPDX-License-Identifier: MIT
#include "kvick/text/utf8.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using Kind = Utf8Step::Kind;

void expect_step(std::string_view text, Kind kind, std::size_t num_bytes) {
  const Utf8Step step = first_utf8_step(text);
  EXPECT_EQ(step.kind, kind) << testing::PrintToString(text);
  EXPECT_EQ(step.num_bytes, num_bytes) << testing::PrintToString(text);
}

/// Every U+FFFD of `text` as '?'.
std::string with_question_marks(std::string text) {
  for (std::size_t at; (at = text.find(kReplacementCharacter)) != std::string::npos;) {
    text.replace(at, kReplacementCharacter.size(), "?");
  }
  return text;
}

TEST(Utf8, AcceptsEveryCodePointButSurrogates) {
  for (std::uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    const std::string text = support::utf8(code_point);
    ASSERT_TRUE(is_valid_utf8(text)) << code_point;
    ASSERT_EQ(first_utf8_step(text).num_bytes, text.size()) << code_point;
    for (std::size_t length = 1; length < text.size(); ++length) {
      const std::string start = text.substr(0, length);
      ASSERT_EQ(first_utf8_step(start).kind, Kind::kIncomplete) << code_point;
      ASSERT_EQ(first_utf8_step(start).num_bytes, length) << code_point;
      ASSERT_EQ(incomplete_suffix_length("x" + start), length) << code_point;
    }
  }
}

TEST(Utf8, AcceptsNoOtherSequences) {
  // All sequences of up to 3 bytes, counted against table 3-7: 128 of one byte, 30 * 64 of two, and
  // (16 * 64 - 32 overlong - 32 surrogate) * 64 of three.
  std::size_t num_valid[4] = {};
  for (unsigned a = 0; a < 256; ++a) {
    const std::string one = {static_cast<char>(a)};
    num_valid[1] += first_utf8_step(one).kind == Kind::kCharacter;
    for (unsigned b = 0; b < 256; ++b) {
      const std::string two = one + static_cast<char>(b);
      const Utf8Step step = first_utf8_step(two);
      num_valid[2] += step.kind == Kind::kCharacter && step.num_bytes == 2;
      for (unsigned c = 0; c < 256; ++c) {
        const Utf8Step third = first_utf8_step(two + static_cast<char>(c));
        num_valid[3] += third.kind == Kind::kCharacter && third.num_bytes == 3;
      }
    }
  }
  EXPECT_EQ(num_valid[1], 128u);
  EXPECT_EQ(num_valid[2], 30u * 64);
  EXPECT_EQ(num_valid[3], (16u * 64 - 32 - 32) * 64);
  // Four bytes: the limits of the second byte.
  expect_step("\xF0\x8F\xBF\xBF", Kind::kIllFormed, 1);
  expect_step("\xF0\x90\x80\x80", Kind::kCharacter, 4);
  expect_step("\xF4\x8F\xBF\xBF", Kind::kCharacter, 4);
  expect_step("\xF4\x90\x80\x80", Kind::kIllFormed, 1);
  expect_step("\xF5\x80\x80\x80", Kind::kIllFormed, 1);
  expect_step("\xF1\x80\x80\x41", Kind::kIllFormed, 3);
}

TEST(Utf8, ReplacesMaximalSubpartsAsTheStandardsExamples) {
  // Unicode Standard, tables 3-8 to 3-11.
  EXPECT_EQ(with_question_marks(sanitize("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41")), "????????A");
  EXPECT_EQ(with_question_marks(sanitize("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41")), "????????A");
  EXPECT_EQ(with_question_marks(sanitize("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42")), "?????A??B");
  EXPECT_EQ(with_question_marks(sanitize("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41")), "????A");
}

TEST(Utf8, SanitizeKeepsWellFormedTextAndRepairsTheRest) {
  EXPECT_EQ(sanitize(""), "");
  using namespace std::string_view_literals;
  constexpr std::string_view kWellFormed = "a\0b\xC3\xBC\xE2\x82\xAC\xF0\x9F\xA6\x99"sv;
  EXPECT_EQ(sanitize(kWellFormed), kWellFormed);
  EXPECT_EQ(with_question_marks(sanitize("caf\xC3")), "caf?");
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = support::random_bytes(rng, support::below(rng, 40));
    const std::string clean = sanitize(text);
    ASSERT_TRUE(is_valid_utf8(clean));
    ASSERT_EQ(sanitize(clean), clean);
    ASSERT_EQ(clean.substr(0, valid_prefix_length(text)),
              text.substr(0, valid_prefix_length(text)));
  }
}

TEST(Utf8, ValidPrefixEndsBeforeTheFirstFault) {
  EXPECT_EQ(valid_prefix_length(""), 0u);
  EXPECT_EQ(valid_prefix_length("\xC3\xBCx\x80y"), 3u);
  EXPECT_EQ(valid_prefix_length("\xC3\xBCx\xE2\x82"), 3u);
}

TEST(Utf8, AFaultAtTheEndIsNotIncomplete) {
  EXPECT_EQ(incomplete_suffix_length(""), 0u);
  EXPECT_EQ(incomplete_suffix_length("abc"), 0u);
  EXPECT_EQ(incomplete_suffix_length("a\x80"), 0u);
  EXPECT_EQ(incomplete_suffix_length("\xC3\xBC"), 0u);
  EXPECT_EQ(incomplete_suffix_length("\xED\xA0"), 0u);  // would be a surrogate
  EXPECT_EQ(incomplete_suffix_length("\xFF"), 0u);
}

}  // namespace
}  // namespace kvick
