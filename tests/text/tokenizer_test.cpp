// SPDX-License-Identifier: MIT
#include "kvick/text/tokenizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/shared_data.hpp"
#include "text/text_support.hpp"

namespace kvick {
namespace {

using support::kFirstPiece;
using Tokens = std::vector<TokenId>;

const std::string kLlamaVocabulary = "models/vocab-llama-spm.gguf";
const std::string kMark = "\xE2\x96\x81";

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos;) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

/// a = 259, mark = 260, mark+a = 261, user-defined [U] = 262, control [C] = 263, unused z = 264.
Vocabulary small_vocabulary() {
  Vocabulary vocabulary = support::basic_vocabulary();
  support::add_token(vocabulary, "a", -3);
  support::add_token(vocabulary, kMark, -3);
  support::add_token(vocabulary, kMark + "a", -1);
  support::add_token(vocabulary, "[U]", 0, TokenType::kUserDefined);
  support::add_token(vocabulary, "[C]", 0, TokenType::kControl);
  support::add_token(vocabulary, "z", 0, TokenType::kUnused);
  return vocabulary;
}
constexpr TokenId kA = 259, kSpace = 260, kSpaceA = 261, kUser = 262, kControl = 263, kUnused = 264;

constexpr TokenId byte_token(char c) { return 3 + static_cast<unsigned char>(c); }

const EncodeOptions kNoBos = {.add_bos = false};
const EncodeOptions kParseSpecial = {.add_bos = false, .parse_special = true};

/// Cases of golden/tokenizer/<name>, with the vocabulary models/vocab-<name>.gguf.
void expect_golden_tokens(const std::string& name, std::size_t least_cases) {
  const std::string golden = "golden/tokenizer/" + name;
  const std::string model = "models/vocab-" + name + ".gguf";
  for (const std::string& file : {model, golden + ".inp", golden + ".out"}) {
    if (!support::shared_path(file)) GTEST_SKIP() << support::missing(file);
  }
  const Tokenizer tokenizer{GgufFile(*support::shared_path(model))};
  // Every case is followed by the separator, every answer by a line feed.
  const auto texts =
      split(read_text(*support::shared_path(golden + ".inp")), "\n__ggml_vocab_test__\n");
  const auto answers = split(read_text(*support::shared_path(golden + ".out")), "\n");
  ASSERT_EQ(texts.size(), answers.size());
  ASSERT_GE(texts.size(), least_cases);
  for (std::size_t i = 0; i + 1 < texts.size(); ++i) {
    std::istringstream answer(answers[i]);
    const Tokens want{std::istream_iterator<TokenId>(answer), {}};
    EXPECT_EQ(tokenizer.encode(texts[i], kNoBos), want) << testing::PrintToString(texts[i]);
    EXPECT_EQ(tokenizer.decode(want), texts[i]);
  }
}

TEST(Tokenizer, GivesTheGoldenTokensOfLlamaTwo) { expect_golden_tokens("llama-spm", 40); }
TEST(Tokenizer, GivesTheGoldenTokensOfGptTwo) { expect_golden_tokens("gpt-2", 40); }

TEST(Tokenizer, GivesTheGoldenPromptsOfStories) {
  const std::string model = "models/stories260K.gguf";
  const std::string golden = "golden/stories260K.json";
  if (!support::shared_path(model)) GTEST_SKIP() << support::missing(model);
  if (!support::shared_path(golden)) GTEST_SKIP() << support::missing(golden);
  const Tokenizer tokenizer{GgufFile(*support::shared_path(model))};
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  const auto cases = nlohmann::json::parse(read_text(*support::shared_path(golden))).at("cases");
  ASSERT_FALSE(cases.empty());
  for (const auto& item : cases) {
    const auto prompt = item.at("prompt").get<std::string>();
    const auto want = item.at("prompt_ids").get<Tokens>();
    EXPECT_EQ(tokenizer.encode(prompt), want) << prompt;
    EXPECT_EQ(tokenizer.decode(want), prompt);
  }
}

TEST(Tokenizer, AddsBosAndEosAsAsked) {
  Vocabulary vocabulary = small_vocabulary();
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.encode(""), (Tokens{1}));
  EXPECT_EQ(tokenizer.encode("a"), (Tokens{1, kSpaceA}));
  EXPECT_EQ(tokenizer.encode("", kNoBos), Tokens{});
  EXPECT_EQ(tokenizer.encode("a", {.add_eos = true}), (Tokens{1, kSpaceA, 2}));
  vocabulary.add_bos = false;
  vocabulary.add_eos = true;
  EXPECT_EQ(Tokenizer(vocabulary).encode("a"), (Tokens{kSpaceA, 2}));
  vocabulary.bos_id = kNoToken;
  const Tokenizer without_bos(vocabulary);
  EXPECT_EQ(support::error_code([&] { without_bos.encode("a", {.add_bos = true}); }),
            ErrorCode::kArgument);
}

TEST(Tokenizer, NeverAddsBosOrEosTwice) {
  Vocabulary vocabulary = small_vocabulary();
  vocabulary.add_eos = true;
  const Tokenizer tokenizer(vocabulary);
  const EncodeOptions special = {.parse_special = true};
  EXPECT_EQ(tokenizer.encode("<s>a</s>", special), (Tokens{1, kSpaceA, 2}));
  EXPECT_EQ(tokenizer.encode("<s>", special), (Tokens{1, 2}));
  EXPECT_EQ(tokenizer.encode("</s>", special), (Tokens{1, 2}));
  EXPECT_EQ(tokenizer.encode("</s>a", special), (Tokens{1, 2, kSpaceA, 2}));
  EXPECT_EQ(tokenizer.encode("<s><s>a", special), (Tokens{1, 1, kSpaceA, 2}));  // as it is written
  EXPECT_EQ(tokenizer.encode("a<s>", special), (Tokens{1, kSpaceA, 1, 2}));
  // As text it is text.
  EXPECT_EQ(tokenizer.encode("<s>").size(), 2 + 3 + 1u);
}

TEST(Tokenizer, EncodesPartsAsOneTextWithMarksWhereTheyAreAllowed) {
  const Tokenizer tokenizer(small_vocabulary());
  const auto encode = [&](std::vector<TextPart> parts) { return tokenizer.encode(parts, kNoBos); };
  // "a" after "[C]" begins a stretch; within a stretch, parts join.
  EXPECT_EQ(encode({{"[C]", true}, {"a", false}}), (Tokens{kControl, kSpaceA}));
  EXPECT_EQ(encode({{"[C] ", true}, {"a", false}}), (Tokens{kControl, kSpace, kSpaceA}));
  EXPECT_EQ(encode({{"[U", false}, {"]", true}}), (Tokens{kUser}));
  // A control token needs a part that allows it, and one part alone.
  const Tokens as_text = tokenizer.encode("[C]", kNoBos);
  EXPECT_EQ(encode({{"[C]", false}}), as_text);
  EXPECT_EQ(encode({{"[C", true}, {"]", true}}), as_text);
  EXPECT_EQ(encode({{"[", true}, {"C]", false}}), as_text);
  EXPECT_EQ(encode({}), Tokens{});
  EXPECT_EQ(tokenizer.encode("a", {.add_bos = false, .continues_text = true}), (Tokens{kA}));
  EXPECT_EQ(
      tokenizer.encode("[C]a", {.add_bos = false, .parse_special = true, .continues_text = true}),
      (Tokens{kControl, kSpaceA}));
}

TEST(Tokenizer, PutsASpaceBeforeTextAtTheStartAndAfterSpecialTokens) {
  Vocabulary vocabulary = small_vocabulary();
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.encode("a[U]a", kNoBos), (Tokens{kSpaceA, kUser, kSpaceA}));
  EXPECT_EQ(tokenizer.encode("[U][U]a", kNoBos), (Tokens{kUser, kUser, kSpaceA}));
  EXPECT_EQ(tokenizer.encode("[U] a", kNoBos), (Tokens{kUser, kSpace, kSpaceA}));
  vocabulary.add_space_prefix = false;
  EXPECT_EQ(Tokenizer(vocabulary).encode("a[U]a", kNoBos), (Tokens{kA, kUser, kA}));
}

TEST(Tokenizer, MatchesControlTokensOnlyOnRequest) {
  const Tokenizer tokenizer(small_vocabulary());
  EXPECT_EQ(tokenizer.encode("a[C]", kParseSpecial), (Tokens{kSpaceA, kControl}));
  EXPECT_EQ(tokenizer.encode("a[C]", kNoBos),
            (Tokens{kSpaceA, byte_token('['), byte_token('C'), byte_token(']')}));
  EXPECT_EQ(tokenizer.encode("<s><unk></s>", kParseSpecial), (Tokens{1, 0, 2}));
  const Tokens plain = tokenizer.encode("<s><unk></s>", kNoBos);
  EXPECT_TRUE(std::none_of(plain.begin(), plain.end(), [](TokenId id) { return id <= 2; }));
  EXPECT_EQ(tokenizer.decode(plain), "<s><unk></s>");
}

TEST(Tokenizer, EndMarksTypedAsTextAreControlTokens) {
  Vocabulary vocabulary = small_vocabulary();
  support::add_token(vocabulary, "<|im_end|>", 0, TokenType::kUserDefined);  // 265
  const Tokenizer tokenizer(vocabulary);
  EXPECT_TRUE(tokenizer.is_end_of_generation(265));
  EXPECT_TRUE(tokenizer.is_end_of_generation(2));
  EXPECT_FALSE(tokenizer.is_end_of_generation(1));
  EXPECT_EQ(tokenizer.vocabulary().eot_id, 265);
  EXPECT_EQ(tokenizer.encode("<|im_end|>", kParseSpecial), (Tokens{265}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<|im_end|>", kNoBos)), "<|im_end|>");
  EXPECT_EQ(tokenizer.decode(Tokens{265}), "");
}

TEST(Tokenizer, DecodesTokensAsTheyPrint) {
  const Tokenizer tokenizer(small_vocabulary());
  EXPECT_EQ(tokenizer.token_bytes(kSpaceA), " a");
  EXPECT_EQ(tokenizer.token_bytes(byte_token('\n')), "\n");
  EXPECT_EQ(tokenizer.token_bytes(byte_token('\0')), std::string_view("\0", 1));
  EXPECT_EQ(tokenizer.token_bytes(kUser), "[U]");
  EXPECT_EQ(tokenizer.token_bytes(kUnused), "z");
  EXPECT_EQ(tokenizer.token_bytes(kControl), "");
  EXPECT_EQ(tokenizer.token_bytes(0), "");
  EXPECT_EQ(tokenizer.piece(kSpaceA), kMark + "a");
  EXPECT_EQ(tokenizer.piece(kControl), "[C]");
  const Tokens tokens = {1, kSpaceA, kControl, byte_token('\xFF'), 0, 2};
  EXPECT_EQ(tokenizer.decode(tokens), "a\xFF");
  EXPECT_EQ(tokenizer.decode(tokens, {.print_special = true}), "<s>a[C]\xFF<unk></s>");
}

TEST(Tokenizer, DecodeTakesAwayOneLeadingSpace) {
  Vocabulary vocabulary = small_vocabulary();
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.decode(Tokens{kSpaceA, kSpaceA}), "a a");
  EXPECT_EQ(tokenizer.decode(Tokens{kSpace, kSpaceA}), " a");
  EXPECT_EQ(tokenizer.decode(Tokens{kA, kSpaceA}), "a a");
  EXPECT_EQ(tokenizer.decode(Tokens{1, kSpaceA, kUser, kSpaceA}), "a[U]a");
  EXPECT_EQ(tokenizer.decode(Tokens{kSpaceA, kSpaceA}, {.continues_text = true}), " a a");
  vocabulary.add_space_prefix = false;
  EXPECT_EQ(Tokenizer(vocabulary).decode(Tokens{kSpaceA, kSpaceA}), " a a");
}

TEST(Tokenizer, RefusesTokensOutsideTheVocabulary) {
  const Tokenizer tokenizer(small_vocabulary());
  for (const TokenId token : {-1, 265, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(support::error_code([&] { tokenizer.decode(Tokens{token}); }), ErrorCode::kArgument);
    EXPECT_EQ(support::error_code([&] { tokenizer.piece(token); }), ErrorCode::kArgument);
    EXPECT_EQ(support::error_code([&] { tokenizer.token_bytes(token); }), ErrorCode::kArgument);
    EXPECT_EQ(support::error_code([&] { tokenizer.is_end_of_generation(token); }),
              ErrorCode::kArgument);
  }
}

TEST(Tokenizer, NamesAModelItDoesNotSupport) {
  Vocabulary vocabulary = small_vocabulary();
  vocabulary.model = "rwkv";
  try {
    const Tokenizer tokenizer(vocabulary);
    FAIL() << "expected Error(kUnsupported)";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("rwkv"), std::string_view::npos) << error.message();
  }
}

TEST(Tokenizer, RefusesBadVocabularies) {
  const auto construction_error = [](const auto& change) {
    Vocabulary vocabulary = small_vocabulary();
    change(vocabulary);
    return support::error_code([&] { Tokenizer tokenizer(vocabulary); });
  };
  EXPECT_EQ(construction_error([](Vocabulary&) {}), std::nullopt);
  EXPECT_EQ(construction_error([](Vocabulary& v) { v = Vocabulary(); }), ErrorCode::kFormat);
  EXPECT_EQ(construction_error([](Vocabulary& v) { v.scores.pop_back(); }), ErrorCode::kFormat);
  EXPECT_EQ(construction_error([](Vocabulary& v) { v.types.clear(); }), ErrorCode::kFormat);
  EXPECT_EQ(construction_error([](Vocabulary& v) { v.pieces.back() = "a"; }), ErrorCode::kFormat);
  EXPECT_EQ(construction_error([](Vocabulary& v) { v.bos_id = 265; }), ErrorCode::kFormat);
  EXPECT_EQ(construction_error([](Vocabulary& v) { v.pieces[259].clear(); }), std::nullopt);
}

/// Like a real vocabulary, but arbitrary: any bytes, any types, any flags.
Vocabulary hostile_vocabulary(support::Rng& rng) {
  Vocabulary vocabulary;
  const std::size_t num_tokens = support::below(rng, 60);
  for (std::size_t i = 0; i < num_tokens; ++i) {
    std::string piece =
        support::below(rng, 2) == 0
            ? support::random_bytes(rng, support::below(rng, 6))
            : support::random_text(rng, {"a", " ", kMark, "<0x41>", "</s>", "<|end|>"},
                                   support::below(rng, 4));
    auto type = TokenType{static_cast<std::int32_t>(1 + support::below(rng, 5))};
    if (parse_byte_piece(piece) && support::below(rng, 2) == 0) type = TokenType::kByte;
    if (support::below(rng, 400) == 0) type = TokenType{static_cast<std::int32_t>(rng())};
    support::add_token(vocabulary, std::move(piece), static_cast<float>(support::below(rng, 4)),
                       type);
  }
  const auto random_id = [&] { return static_cast<TokenId>(support::below(rng, 80)) - 5; };
  if (support::below(rng, 4) == 0) vocabulary.unk_id = random_id();
  if (support::below(rng, 4) == 0) vocabulary.eot_id = random_id();
  vocabulary.add_space_prefix = support::below(rng, 2) == 0;
  return vocabulary;
}

TEST(Tokenizer, HostileVocabulariesAreRefusedOrWork) {
  constexpr std::uint64_t kSeed = 51;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  int num_refused = 0;
  int num_accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    std::optional<Tokenizer> tokenizer;
    const auto refusal = support::error_code([&] { tokenizer.emplace(hostile_vocabulary(rng)); });
    if (refusal) {
      EXPECT_EQ(*refusal, ErrorCode::kFormat);
      ++num_refused;
      continue;
    }
    ++num_accepted;
    for (const bool parse_special : {false, true}) {
      std::string text = support::random_bytes(rng, support::below(rng, 20));
      text += support::random_text(rng, {"a", " ", kMark, "<0x41>", "</s>", "<|end|>", "\xE2"}, 8);
      const Tokens tokens =
          tokenizer->encode(text, {.add_bos = false, .parse_special = parse_special});
      for (const TokenId token : tokens) {
        ASSERT_TRUE(token >= 0 && token < tokenizer->vocab_size()) << "round " << round;
        const bool is_control = tokenizer->type(token) == TokenType::kControl;
        ASSERT_TRUE(parse_special || !is_control || token == tokenizer->unk_id())
            << "round " << round << ", token " << token;
      }
      tokenizer->decode(tokens, {.print_special = true});
    }
  }
  EXPECT_GT(num_refused, 100);
  EXPECT_GT(num_accepted, 100);
}

/// Well-formed text of any code points, many of them spaces, without U+2581.
std::string random_valid_text(support::Rng& rng, std::size_t num_characters) {
  std::string text;
  for (std::size_t i = 0; i < num_characters; ++i) {
    const std::uint32_t limits[] = {0x80, 0x800, 0x3000, 0x10000, 0x110000};
    auto code_point = static_cast<std::uint32_t>(
        support::below(rng, limits[support::below(rng, std::size(limits))]));
    if (code_point == 0x2581 || (code_point >= 0xD800 && code_point <= 0xDFFF)) code_point = ' ';
    text += support::below(rng, 4) == 0 ? " " : support::utf8(code_point);
  }
  return text;
}

void expect_round_trips(const Tokenizer& tokenizer, const std::vector<std::string>& words,
                        std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  support::Rng rng(seed);
  for (int round = 0; round < 1000; ++round) {
    std::string text = random_valid_text(rng, support::below(rng, 40));
    text += support::random_text(rng, words, support::below(rng, 20));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text)
        << "round " << round << ", text " << testing::PrintToString(text);
  }
}

TEST(Tokenizer, DecodeUndoesEncode) {
  const std::vector<std::string> words = {"a", " ", "  ", "[U]", "[C]", "<s>", "z", "\n", "<0x41>"};
  Vocabulary vocabulary = small_vocabulary();
  expect_round_trips(Tokenizer(vocabulary), words, 61);
  vocabulary.add_space_prefix = false;
  expect_round_trips(Tokenizer(vocabulary), words, 62);
}

TEST(Tokenizer, DecodeUndoesEncodeForLlamaTwo) {
  const auto path = support::shared_path(kLlamaVocabulary);
  if (!path) GTEST_SKIP() << support::missing(kLlamaVocabulary);
  expect_round_trips(Tokenizer(GgufFile(*path)),
                     {"the", " ", "  ", "Hello", "ing", "</s>", "<0x0A>", "\n", "\t", "12", "."},
                     63);
}

TEST(Tokenizer, AdversarialTextsComplete) {
  const auto path = support::shared_path(kLlamaVocabulary);
  if (!path) GTEST_SKIP() << support::missing(kLlamaVocabulary);
  const Tokenizer tokenizer{GgufFile(*path)};
  constexpr std::size_t kNumBytes = 1'000'000;
  constexpr std::uint64_t kSeed = 71;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  for (const std::string& text :
       {std::string(kNumBytes, 'a'), std::string(kNumBytes, ' '), std::string(kNumBytes, '\xE2'),
        support::random_text(rng, {"a", "b"}, kNumBytes),
        support::random_text(rng, {kMark}, kNumBytes / 3),
        support::random_text(rng, {"\xE2\x96"}, kNumBytes / 2)}) {
    const Tokens tokens = tokenizer.encode(text, kParseSpecial);
    EXPECT_FALSE(tokens.empty());
  }
  // Arbitrary bytes come back if no lead byte swallows a part of a marked space.
  std::string bytes = support::random_bytes(rng, kNumBytes);
  std::replace(bytes.begin(), bytes.end(), ' ', '_');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer(small_vocabulary());
  const std::string text = "a a[U]  za \xF0\x9F\xA6\x99";
  const Tokens want = tokenizer.encode(text);
  std::atomic<int> num_equal = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, copy = tokenizer] {
      for (int round = 0; round < 200; ++round) {
        num_equal += tokenizer.encode(text) == want && copy.decode(want) == text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_equal, 4 * 200);
}

}  // namespace
}  // namespace kvick
