// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/programs.hpp"
#include "kvick/model/transformer.hpp"
#include "support/gguf_builder.hpp"
#include "support/shared_data.hpp"
#include "support/subprocess.hpp"
#include "support/tiny_model.hpp"

namespace {

using nlohmann::json;
using support::ByteString;
using support::expect_refusal;
using support::GgufBuilder;

constexpr char kProgram[] = "kvick-inspect";

class Inspect : public ::testing::Test {
 protected:
  std::string write(const GgufBuilder& file) {
    const auto path = directory_ / "file.gguf";
    support::write_bytes(path, file.build());
    return path;
  }
  std::string write(support::TinyModel model) {
    const auto path = directory_ / "tiny.gguf";
    model.writer().write(path);
    return path;
  }

  static std::string text(std::vector<std::string> arguments) {
    const auto result = support::run_program(kProgram, std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    for (const char c : result.out) {
      if (c != '\n' && (c < 0x20 || c > 0x7E)) {
        ADD_FAILURE() << "byte " << static_cast<int>(c) << " could command a terminal";
        break;
      }
    }
    return result.out;
  }
  static json facts(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const std::string out = text(arguments);
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
    return json::parse(out);
  }

  support::TemporaryDirectory directory_;
};

/// The value, or first elements, of a key.
json value_of(const json& facts, std::string_view key) {
  for (const json& entry : facts.at("metadata")) {
    if (entry.at("key") == key) return entry.contains("value") ? entry["value"] : entry["first"];
  }
  return {};
}

void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in:\n" << text;
  }
}

TEST_F(Inspect, ShowsFormatAndMetadataOfEveryType) {
  const std::string path = write(support::small_valid_gguf());
  const json found = facts({path});
  EXPECT_EQ(found["file"], path);
  EXPECT_EQ(found["version"], 3);
  EXPECT_EQ(found["alignment"], 32);
  EXPECT_EQ(found["parts"], 1);
  EXPECT_EQ(value_of(found, "general.architecture"), "test");
  EXPECT_EQ(value_of(found, "a.u8"), 200);
  EXPECT_EQ(value_of(found, "a.i8"), -100);
  EXPECT_EQ(value_of(found, "a.i16"), -30000);
  EXPECT_EQ(value_of(found, "a.u64"), std::uint64_t{1} << 40);
  EXPECT_EQ(value_of(found, "a.i64"), -1);
  EXPECT_EQ(value_of(found, "a.f32"), 1.5);
  EXPECT_EQ(value_of(found, "a.f64"), 0.1);
  EXPECT_EQ(value_of(found, "a.bool"), true);
  EXPECT_EQ(value_of(found, "a.floats"), json({0.5, -1.0, 2.0}));
  EXPECT_EQ(value_of(found, "a.bools"), json({false, true}));
  EXPECT_EQ(value_of(found, "a.ints"), json({7, -7}));
  EXPECT_EQ(value_of(found, "a.strings"), json({"one", "", "three"}));
  EXPECT_EQ(found["metadata"][0],
            json({{"key", "general.architecture"}, {"type", "string"}, {"value", "test"}}));
  expect_contains(text({path}), {path + "\nGGUF version 3, alignment 32, 1 part\n",
                                 "general.architecture  string     'test'\n", "-30000\n",
                                 "string[3]  ['one', '', 'three']\n", "bool       true\n"});
}

TEST_F(Inspect, ShowsTensorsAndTotalsByType) {
  const std::string path = write(support::small_valid_gguf());
  const json found = facts({path});
  // 4 x 2 floats and one block of 32 8-bit weights with a 16-bit scale.
  EXPECT_EQ(found["tensors"], json::parse(R"([
      {"name": "plain", "type": "f32", "shape": [4, 2], "parameters": 8, "bytes": 32},
      {"name": "blocks", "type": "q8_0", "shape": [32], "parameters": 32, "bytes": 34}])"));
  EXPECT_EQ(found["totals_by_type"], json::parse(R"({
      "f32": {"tensors": 1, "parameters": 8, "bytes": 32, "bits_per_weight": 32.0},
      "q8_0": {"tensors": 1, "parameters": 32, "bytes": 34, "bits_per_weight": 8.5}})"));
  EXPECT_EQ(
      found["total"],
      json::parse(R"({"tensors": 2, "parameters": 40, "bytes": 66, "bits_per_weight": 13.2})"));
  expect_contains(text({path}), {"  plain   f32   4 x 2  8           32\n",
                                 "  q8_0  1        32          8.500            34 bytes\n",
                                 "  all   2        40          13.200           66 bytes\n"});
}

TEST_F(Inspect, AbbreviatesLongArraysAndTexts) {
  GgufBuilder file;
  ByteString numbers;
  for (int i = 0; i < 1000; ++i) numbers.u32(static_cast<std::uint32_t>(i));
  file.array("numbers", 4, 1000, numbers);
  file.text("template", std::string(5000, 'x'));
  file.array("empty", 8, 0, {});
  const std::string path = write(file);
  const json found = facts({path});
  EXPECT_EQ(found["metadata"][0],
            json::parse(R"({"key": "numbers", "type": "array", "element_type": "u32",
                            "count": 1000, "first": [0, 1, 2, 3, 4, 5, 6, 7]})"));
  EXPECT_EQ(value_of(found, "template"), std::string(5000, 'x'));  // JSON is for programs
  EXPECT_EQ(value_of(found, "empty"), json::array());
  expect_contains(text({path}), {"u32[1000]  [0, 1, 2, 3, 4, 5, 6, 7, ...]\n",
                                 "'" + std::string(80, 'x') + "...' (5000 bytes)\n",
                                 "string[0]  []\n", "no tensors\n"});
}

TEST_F(Inspect, ShowsNumbersThatJsonDoesNotHave) {
  GgufBuilder file;
  const float infinity = std::numeric_limits<float>::infinity();
  file.array("odd", 6, 3, ByteString().number(infinity).number(-infinity).number(3.5f));
  const std::string path = write(file);
  EXPECT_EQ(value_of(facts({path}), "odd"), json({nullptr, nullptr, 3.5}));
  expect_contains(text({path}), {"[inf, -inf, 3.5]\n"});
}

TEST_F(Inspect, EscapesWhateverTheFileHolds) {
  GgufBuilder file;
  const std::string evil = "\x1b]0;owned\x07\xff\xc2\x9b\x7f\n";  // ESC, no UTF-8, CSI, DEL
  file.text("key" + evil, evil);
  file.array("list", 8, 1, ByteString().string(evil));
  file.tensor({.name = "t" + evil});
  file.data_bytes = 32;
  const std::string path = write(file);
  expect_contains(text({path}), {"key\\x1b]0;owned\\x07\\xff\\xc2\\x9b\\x7f\\x0a", "'\\x1b]0;",
                                 "['\\x1b]0;", "  t\\x1b]0;"});
  const std::string replaced = "\x1b]0;owned\x07\xef\xbf\xbd\xc2\x9b\x7f\n";  // \xff is U+FFFD
  const json found = facts({path});
  EXPECT_EQ(value_of(found, "key" + replaced), replaced);
  EXPECT_EQ(value_of(found, "list"), json({replaced}));
  EXPECT_EQ(found["tensors"][0]["name"], "t" + replaced);
}

TEST_F(Inspect, MemoryIsWhatTheModelAndItsCacheTake) {
  const std::string path = write(support::TinyModel({.max_seq_len = 500}));
  const kvick::Transformer model(path);
  const auto cache_bytes = [&](int context, kvick::ElementType type) {
    return model.make_cache({.max_seq_len = context, .element_type = type}).memory_bytes();
  };
  std::size_t weights = 0;
  for (const auto& tensor : model.file().tensors()) weights += tensor.data.size();
  for (const int context : {500, 77}) {
    const json memory = facts({path, "-c", std::to_string(context)})["memory"];
    const std::size_t f32 = cache_bytes(context, kvick::ElementType::kF32);
    const std::size_t f16 = cache_bytes(context, kvick::ElementType::kF16);
    EXPECT_EQ(memory, json({{"context", context},
                            {"weights_bytes", weights},
                            {"cache_f32_bytes", f32},
                            {"cache_f16_bytes", f16},
                            {"total_f32_bytes", weights + f32},
                            {"total_f16_bytes", weights + f16}}));
  }
  EXPECT_EQ(facts({path})["memory"]["context"], 500);
  // 2 (keys, values) * 2 layers * 2 KV heads * 500 tokens * 24 elements * 2 bytes
  expect_contains(text({path}), {"memory for a context of 500 tokens\n",
                                 "cache f16            196,608 bytes (192.00 KiB)\n"});
}

TEST_F(Inspect, SaysWhyTheMemoryOfAFileThatCannotRunIsUnknown) {
  const auto expect_reason = [&](const std::string& path, const std::string& reason) {
    const json memory = facts({path, "-c", "1000000"})["memory"];
    ASSERT_EQ(memory.size(), 1u) << memory;
    EXPECT_NE(memory["unknown_because"].get<std::string>().find(reason), std::string::npos)
        << memory;
    expect_contains(text({path}), {"memory is unknown", reason});
  };
  expect_reason(write(support::small_valid_gguf()), "general.architecture must be llama");
  expect_reason(write(GgufBuilder()), "general.architecture");

  GgufBuilder iq2;  // a type that can be listed and not computed
  iq2.text("general.architecture", "llama");
  iq2.tensor({.name = "token_embd.weight", .dims = {256}, .type = 17});
  iq2.data_bytes = 74;
  const std::string path = write(iq2);
  EXPECT_EQ(facts({path})["totals_by_type"]["iq2_xs"]["bits_per_weight"], 2.3125);
  iq2.u32("llama.block_count", 1).u32("llama.embedding_length", 256);
  iq2.u32("llama.attention.head_count", 1).u32("llama.feed_forward_length", 1);
  iq2.u32("llama.context_length", 1);
  expect_reason(write(iq2), "iq2_xs");

  support::TinyModel strange;
  strange.writer().add("llama.final_logit_softcapping", 30.0f);
  expect_reason(write(std::move(strange)), "final_logit_softcapping");
}

TEST_F(Inspect, ReadsVocabulariesWithoutWeights) {
  constexpr char kModel[] = "models/vocab-llama-spm.gguf";
  const auto path = support::shared_path(kModel);
  if (!path) GTEST_SKIP() << support::missing(kModel);
  const json found = facts({*path});
  EXPECT_EQ(found["total"]["tensors"], 0);
  EXPECT_EQ(value_of(found, "tokenizer.ggml.tokens")[0], "<unk>");
  expect_contains(found["memory"]["unknown_because"], {"'token_embd.weight' is missing"});
}

TEST_F(Inspect, ReadsATrainedModel) {
  constexpr char kModel[] = "models/stories260K.gguf";
  const auto path = support::shared_path(kModel);
  if (!path) GTEST_SKIP() << support::missing(kModel);
  const json found = facts({*path});
  // 2 * 512 * 64 of tokens, a norm of 64, and 5 layers of 2 * 64 * 64 + 2 * 32 * 64 + 3 * 172 * 64
  // + 2 * 64.
  EXPECT_EQ(found["total"]["parameters"], 65536 + 64 + 5 * (8192 + 4096 + 33024 + 128));
  EXPECT_EQ(found["memory"]["cache_f32_bytes"], 2 * 5 * 4 * 128 * 8 * 4);
  // 1e-05, not the digits of the nearest double to the float.
  expect_contains(text({*path}), {"llama.attention.layer_norm_rms_epsilon  f32          1e-05\n"});
}

TEST_F(Inspect, RefusesBadInputInOneLine) {
  expect_refusal(kProgram, {(directory_ / "absent.gguf").string()}, "absent.gguf");
  expect_refusal(kProgram, {directory_.path().string()});
  const auto garbage = directory_ / "garbage.gguf";
  support::write_bytes(garbage, ByteString().text("GGML and more").bytes());
  expect_refusal(kProgram, {garbage.string()}, "must start with 'GGUF'");
  const std::string path = write(support::TinyModel({.max_seq_len = 500}));
  expect_refusal(kProgram, {path, "-c", "501"},
                 "--context must be at most the model's 500, got 501");
  expect_refusal(kProgram, {path, "-c", "0"}, "--context");
  expect_refusal(kProgram, {path, "--no-such-option"}, "--no-such-option");
}

}  // namespace
