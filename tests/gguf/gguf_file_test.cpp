// SPDX-License-Identifier: MIT
#include "kvick/gguf/gguf_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/gguf_builder.hpp"
#include "support/shared_data.hpp"

namespace kvick {
namespace {

using support::BuiltTensor;
using support::expect_error;
using support::GgufBuilder;

GgufFile open(const GgufBuilder& builder) { return GgufFile::from_bytes(builder.build()); }

/// A file with this one tensor and `data_bytes` of data.
GgufBuilder with_tensor(BuiltTensor tensor, std::size_t data_bytes = 4096) {
  GgufBuilder file;
  file.tensor(std::move(tensor));
  file.data_bytes = data_bytes;
  return file;
}

TEST(GgufFile, ReadsMetadataAndTensors) {
  const GgufFile file = open(support::small_valid_gguf());
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.alignment(), 32u);
  EXPECT_EQ(file.num_parts(), 1);
  EXPECT_EQ(file.name(), "memory");
  ASSERT_EQ(file.metadata().size(), 16u);
  EXPECT_EQ(file.metadata()[0].key(), "general.architecture");
  EXPECT_EQ(file.get<std::string>("general.architecture"), "test");
  EXPECT_EQ(file.get<int>("a.u8"), 200);
  EXPECT_EQ(file.get<int>("a.i16"), -30000);
  EXPECT_EQ(file.get<std::uint64_t>("a.u64"), std::uint64_t{1} << 40);
  EXPECT_EQ(file.get<double>("a.f64"), 0.1);
  EXPECT_EQ(file.get<std::vector<float>>("a.floats"), (std::vector<float>{0.5f, -1.0f, 2.0f}));
  EXPECT_EQ(file.get<std::span<const std::string_view>>("a.strings")[2], "three");

  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor& plain = file.tensor("plain");
  EXPECT_EQ(&plain, &file.tensors()[0]);
  EXPECT_EQ(plain.type, TensorType::kF32);
  EXPECT_EQ(plain.type_name(), "f32");
  EXPECT_TRUE(plain.is_supported());
  EXPECT_EQ(plain.num_dims, 2);
  EXPECT_EQ(plain.dims, (std::array<std::uint64_t, 4>{4, 2, 1, 1}));
  EXPECT_EQ(plain.num_elements(), 8u);
  EXPECT_EQ(plain.num_rows(), 2u);
  EXPECT_EQ(plain.row_bytes(), 16u);
  EXPECT_EQ(plain.part, 0);
  ASSERT_EQ(plain.data.size(), 32u);
  EXPECT_EQ(plain.data[5], std::byte{5});  // the builder counts bytes from the data's start
  const GgufTensor& blocks = file.tensor("blocks");
  EXPECT_EQ(blocks.type, TensorType::kQ8_0);
  EXPECT_EQ(blocks.offset, plain.offset + 32);
  EXPECT_EQ(blocks.row_bytes(), 34u);
  ASSERT_EQ(blocks.data.size(), 34u);
  EXPECT_EQ(blocks.data[33], std::byte{65});
}

TEST(GgufFile, FindsNothingUnderAnUnknownName) {
  const GgufFile file = open(support::small_valid_gguf());
  EXPECT_EQ(file.find("a.u9"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
  EXPECT_EQ(file.try_get<int>("a.u9"), std::nullopt);
  EXPECT_EQ(file.get_or("a.u9", 7), 7);
  EXPECT_EQ(file.get_or("a.u8", 7), 200);
  EXPECT_EQ(file.try_get<int>("a.u8"), 200);
  EXPECT_EQ(file.find_tensor("other"), nullptr);
  expect_error(ErrorCode::kFormat, {"'memory'", "key 'a.u9' is missing"},
               [&] { file.get<int>("a.u9"); });
  expect_error(ErrorCode::kFormat, {"'memory'", "tensor 'other' is missing"},
               [&] { file.tensor("other"); });
}

TEST(GgufFile, ReportsAnOptionalKeyOfTheWrongType) {
  const GgufFile file = open(support::small_valid_gguf());
  const auto parts = {std::string_view("'a.strings'"),
                      std::string_view("found an array of string")};
  expect_error(ErrorCode::kFormat, parts, [&] { file.get_or("a.strings", 1); });
  expect_error(ErrorCode::kFormat, parts, [&] { file.try_get<int>("a.strings"); });
}

TEST(GgufFile, KeepsViewsWhenMoved) {
  static_assert(!std::is_copy_constructible_v<GgufFile>);
  GgufFile first = open(support::small_valid_gguf());
  const GgufTensor* tensor = first.find_tensor("plain");
  const std::string_view text = first.get<std::string_view>("general.architecture");
  const GgufFile second = std::move(first);
  EXPECT_EQ(second.find_tensor("plain"), tensor);
  EXPECT_EQ(second.get<std::string_view>("general.architecture").data(), text.data());
  EXPECT_EQ(text, "test");
  EXPECT_EQ(tensor->data[5], std::byte{5});
}

TEST(GgufFile, ReadsVersion2) {
  GgufBuilder file = support::small_valid_gguf();
  file.version = 2;
  EXPECT_EQ(open(file).version(), 2u);
}

TEST(GgufFile, ReadsAFileWithNothingInIt) {
  const GgufFile file = open(GgufBuilder{});
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(GgufFile, HonoursTheAlignmentInTheFile) {
  for (const std::uint32_t alignment : {1u, 2u, 4u, 64u, 4096u}) {
    SCOPED_TRACE(alignment);
    GgufBuilder builder;
    builder.u32("general.alignment", alignment);
    builder.alignment = alignment;
    builder.tensor({.name = "a", .dims = {1}, .offset = 0});
    builder.tensor({.name = "b", .dims = {1}, .offset = std::max(alignment, 4u)});
    builder.data_bytes = std::max(alignment, 4u) + 4;
    const GgufFile file = open(builder);
    EXPECT_EQ(file.alignment(), alignment);
    EXPECT_EQ(file.tensor("a").data[0], std::byte{0});
    EXPECT_EQ(file.tensor("b").data[3], static_cast<std::byte>(std::max(alignment, 4u) + 3));
  }
}

TEST(GgufFile, AllowsGapsAndAnyOrderOfOffsets) {
  GgufBuilder builder;
  builder.tensor({.name = "last", .dims = {1}, .offset = 320});
  builder.tensor({.name = "first", .dims = {1}, .offset = 64});
  builder.data_bytes = 324;
  const GgufFile file = open(builder);
  EXPECT_EQ(file.tensors()[0].name, "last");
  EXPECT_EQ(file.tensor("first").data[0], std::byte{64});
}

TEST(GgufFile, KnowsTheSizeOfEveryTypeOfTheFormat) {
  // id, block size, block bytes as the format's published table has them.
  const std::uint32_t sizes[][3] = {
      {0, 1, 4},      {1, 1, 2},      {2, 32, 18},   {3, 32, 20},    {6, 32, 22},    {7, 32, 24},
      {8, 32, 34},    {9, 32, 36},    {10, 256, 84}, {11, 256, 110}, {12, 256, 144}, {13, 256, 176},
      {14, 256, 210}, {15, 256, 292}, {16, 256, 66}, {17, 256, 74},  {18, 256, 98},  {19, 256, 50},
      {20, 32, 18},   {21, 256, 110}, {22, 256, 82}, {23, 256, 136}, {24, 1, 1},     {25, 1, 2},
      {26, 1, 4},     {27, 1, 8},     {28, 1, 8},    {29, 256, 56},  {30, 1, 2},     {34, 256, 54},
      {35, 256, 66},  {39, 32, 17},   {40, 64, 36}};
  for (const auto& [id, block_size, block_bytes] : sizes) {
    SCOPED_TRACE(id);
    const auto file = open(with_tensor({.dims = {block_size * 2, 3}, .type = id}));
    EXPECT_EQ(file.tensors()[0].row_bytes(), block_bytes * 2);
    EXPECT_EQ(file.tensors()[0].data.size(), block_bytes * 6);
  }
}

TEST(GgufFile, ListsATensorOfAnUnsupportedTypeButRefusesItsUse) {
  const GgufFile file = open(with_tensor({.name = "rare", .dims = {256}, .type = 17}));
  ASSERT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.tensors()[0].type_name(), "iq2_xs");
  EXPECT_FALSE(file.tensors()[0].is_supported());
  EXPECT_EQ(file.tensors()[0].data.size(), 74u);
  expect_error(ErrorCode::kUnsupported, {"'rare'", "iq2_xs", "q8_0"},
               [&] { file.find_tensor("rare"); });
  expect_error(ErrorCode::kUnsupported, {"'rare'", "iq2_xs"}, [&] { file.tensor("rare"); });
}

TEST(GgufFile, ReleasesPagesOfATensorAndReadsThemAgain) {
  const support::TemporaryDirectory directory;
  support::write_bytes(directory / "m.gguf", with_tensor({.dims = {50000}}, 200000).build());
  const GgufFile file(directory / "m.gguf");
  const GgufTensor& tensor = file.tensor("t");
  const std::vector<std::byte> before(tensor.data.begin(), tensor.data.end());
  file.release_pages(tensor);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), tensor.data.begin()));
}

TEST(GgufFile, KeepsTheMemoryOfAModelInMemoryWhenAskedToReleaseIt) {
  const GgufFile file = open(with_tensor({.dims = {50000}}, 200000));
  file.release_pages(file.tensor("t"));
  EXPECT_EQ(file.tensor("t").data[199999], static_cast<std::byte>(199999 & 255));
}

TEST(GgufFile, ReadsManyKeysAndTensorsInAnyOrder) {
  // Duplicates and look-ups by sorting: 20,000 names in descending order, no quadratic time.
  GgufBuilder builder;
  constexpr std::uint32_t kCount = 20000;
  for (std::uint32_t i = kCount; i-- > 0;) {
    builder.u32("key." + std::to_string(i), i);
    builder.tensor({.name = "t" + std::to_string(i), .dims = {1}, .offset = i * 32});
  }
  builder.data_bytes = kCount * 32;
  const GgufFile file = open(builder);
  for (const std::uint32_t i : {0u, 1u, 777u, kCount - 1}) {
    EXPECT_EQ(file.get<std::uint32_t>("key." + std::to_string(i)), i);
    EXPECT_EQ(file.tensor("t" + std::to_string(i)).data[0], static_cast<std::byte>(i * 32));
  }
}

// ---- Real models; the expected facts were read from the files by another program

TEST(GgufFileRealModel, OpensStories260K) {
  const auto path = support::shared_path("models/stories260K.gguf");
  if (!path) GTEST_SKIP() << support::missing("models/stories260K.gguf");
  const GgufFile file(*path);
  EXPECT_EQ(file.metadata().size(), 19u);
  EXPECT_EQ(file.get<std::string_view>("general.architecture"), "llama");
  EXPECT_EQ(file.get<int>("llama.block_count"), 5);
  EXPECT_EQ(file.get<int>("llama.feed_forward_length"), 172);
  EXPECT_EQ(file.get<float>("llama.attention.layer_norm_rms_epsilon"), 1e-5f);
  EXPECT_EQ(file.get<std::uint32_t>("tokenizer.ggml.padding_token_id"), UINT32_MAX);
  EXPECT_EQ(file.get<std::vector<float>>("tokenizer.ggml.scores").size(), 512u);
  const auto tokens = file.get<std::span<const std::string_view>>("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens.size(), 512u);
  EXPECT_EQ(tokens[0], "<unk>");

  ASSERT_EQ(file.tensors().size(), 48u);
  EXPECT_EQ(file.tensors()[0].name, "token_embd.weight");
  EXPECT_EQ(file.tensors()[47].name, "blk.4.ffn_norm.weight");
  const GgufTensor& down = file.tensor("blk.3.ffn_down.weight");
  EXPECT_EQ(down.type, TensorType::kF32);
  EXPECT_EQ(down.num_dims, 2);
  EXPECT_EQ(down.dims, (std::array<std::uint64_t, 4>{172, 64, 1, 1}));
  EXPECT_EQ(down.row_bytes(), 172u * 4);
  EXPECT_EQ(down.data.size(), 172u * 64 * 4);
  EXPECT_EQ(file.tensor("output_norm.weight").num_dims, 1);
}

TEST(GgufFileRealModel, OpensTheLlamaVocabulary) {
  const auto path = support::shared_path("models/vocab-llama-spm.gguf");
  if (!path) GTEST_SKIP() << support::missing("models/vocab-llama-spm.gguf");
  const GgufFile file(*path);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata().size(), 22u);
  const auto tokens = file.get<std::span<const std::string_view>>("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens.size(), 32000u);
  EXPECT_EQ(tokens[1], "<s>");
  EXPECT_EQ(tokens[3], "<0x00>");
  EXPECT_TRUE(file.get<bool>("tokenizer.ggml.add_bos_token"));
  EXPECT_FALSE(file.get<bool>("tokenizer.ggml.add_eos_token"));
}

TEST(GgufFileRealModel, OpensTheGpt2Vocabulary) {
  const auto path = support::shared_path("models/vocab-gpt-2.gguf");
  if (!path) GTEST_SKIP() << support::missing("models/vocab-gpt-2.gguf");
  const GgufFile file(*path);
  EXPECT_EQ(file.get<std::string>("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(file.get<std::vector<std::string_view>>("tokenizer.ggml.tokens").size(), 50257u);
  EXPECT_EQ(file.get<std::vector<std::string_view>>("tokenizer.ggml.merges").size(), 50000u);
  EXPECT_EQ(file.get<std::vector<std::int32_t>>("tokenizer.ggml.token_type").size(), 50257u);
  EXPECT_EQ(file.get<int>("tokenizer.ggml.eos_token_id"), 50256);
}

}  // namespace
}  // namespace kvick
