// SPDX-License-Identifier: MIT
#include "kvick/gguf/gguf_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
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
using support::ByteString;
using support::expect_error;
using support::GgufBuilder;

GgufFile open(const GgufBuilder& builder) { return GgufFile::from_bytes(builder.build()); }

void expect_refused(ErrorCode code, std::initializer_list<std::string_view> parts,
                    const GgufBuilder& builder) {
  expect_error(code, parts, [&] { open(builder); });
}

/// A file with this one tensor and `data_bytes` of data.
GgufBuilder with_tensor(BuiltTensor tensor, std::size_t data_bytes = 4096) {
  GgufBuilder file;
  file.tensor(std::move(tensor));
  file.data_bytes = data_bytes;
  return file;
}

// ---- What a valid file gives

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

// ---- Header rules

TEST(GgufFile, RefusesAnEmptyFile) {
  expect_error(ErrorCode::kFormat, {"'nothing.gguf'", "truncated at byte 0"},
               [] { GgufFile::from_bytes({}, "nothing.gguf"); });
}

TEST(GgufFile, RefusesAnotherMagic) {
  GgufBuilder file;
  file.magic = "ggjt";
  expect_refused(ErrorCode::kFormat, {"'memory'", "'GGUF'", "'ggjt'"}, file);
}

TEST(GgufFile, RefusesVersion1) {
  GgufBuilder file;
  file.version = 1;
  expect_refused(ErrorCode::kUnsupported, {"'memory'", "version 1"}, file);
}

TEST(GgufFile, RefusesOtherVersions) {
  for (const std::uint32_t version : {0u, 4u, 0x7fff1234u}) {
    GgufBuilder file;
    file.version = version;
    expect_refused(ErrorCode::kUnsupported, {"2 or 3", "got " + std::to_string(version)}, file);
  }
}

TEST(GgufFile, RefusesBigEndianFiles) {
  GgufBuilder file;
  file.version = 0x03000000;  // 3 with its bytes swapped
  expect_refused(ErrorCode::kUnsupported, {"'memory'", "big-endian"}, file);
}

// ---- Metadata rules

TEST(GgufFile, RefusesMoreKeysThanCanFollow_CVE_2024_23605) {
  for (const std::uint64_t count :
       {std::uint64_t{17}, std::uint64_t{1} << 32, UINT64_MAX / 14, UINT64_MAX / 2, UINT64_MAX}) {
    GgufBuilder file;
    file.u32("key", 1);
    file.num_values = count;
    expect_refused(ErrorCode::kFormat, {"the metadata declares " + std::to_string(count)}, file);
  }
}

TEST(GgufFile, RefusesMoreTensorsThanCanFollow_CVE_2024_21836) {
  for (const std::uint64_t count :
       {std::uint64_t{200}, std::uint64_t{1} << 58, UINT64_MAX / 33, UINT64_MAX}) {
    GgufBuilder file = with_tensor({});
    file.num_tensors = count;
    expect_refused(ErrorCode::kFormat, {"the tensor list declares " + std::to_string(count)}, file);
  }
}

TEST(GgufFile, RefusesAKeyCountBelowOrAboveTheTrueOne) {
  GgufBuilder fewer = support::small_valid_gguf();
  fewer.num_values = 15;
  EXPECT_THROW(open(fewer), Error);
  GgufBuilder more = support::small_valid_gguf();
  more.num_values = 17;
  EXPECT_THROW(open(more), Error);
}

TEST(GgufFile, RefusesAStringLongerThanTheFile_CVE_2024_23496) {
  for (const std::uint64_t length : {std::uint64_t{5}, std::uint64_t{1} << 40, UINT64_MAX}) {
    GgufBuilder file;
    file.value("some.text", 8, ByteString().u64(length).text("four"));
    expect_refused(ErrorCode::kFormat, {"key 'some.text' needs " + std::to_string(length)}, file);
  }
}

TEST(GgufFile, RefusesAKeyLongerThanTheFile) {
  ByteString bytes;
  bytes.text("GGUF").u32(3).u64(0).u64(1).u64(UINT64_MAX).zeros(64);
  expect_error(ErrorCode::kFormat, {"a metadata key needs 18446744073709551615"},
               [&] { GgufFile::from_bytes(bytes.bytes()); });
}

TEST(GgufFile, RefusesAKeyLongerThanTheFormatAllows) {
  GgufBuilder longest;
  longest.u32(std::string(65535, 'k'), 1);
  EXPECT_EQ(open(longest).get<int>(std::string(65535, 'k')), 1);
  GgufBuilder longer;
  longer.u32(std::string(65536, 'k'), 1);
  expect_refused(ErrorCode::kFormat, {"1 to 65535 bytes", "got 65536"}, longer);
}

TEST(GgufFile, RefusesAnEmptyKey) {
  GgufBuilder file;
  file.u32("", 1);
  expect_refused(ErrorCode::kFormat, {"1 to 65535 bytes", "got 0"}, file);
}

TEST(GgufFile, RefusesAKeyThatStandsTwice) {
  GgufBuilder file;
  file.u32("b.twice", 1).u32("a.once", 2).text("b.twice", "x");
  expect_refused(ErrorCode::kFormat, {"key 'b.twice' stands twice"}, file);
}

TEST(GgufFile, RefusesArraysLongerThanTheFile_CVE_2024_21825) {
  // Counts whose product with the element size wraps to something small are among them.
  for (const std::uint64_t count :
       {std::uint64_t{3}, std::uint64_t{1} << 33, std::uint64_t{1} << 61,
        (std::uint64_t{1} << 61) + 1, UINT64_MAX / 8 + 1, UINT64_MAX}) {
    for (const std::uint32_t type : {10u, 11u, 12u, 8u}) {  // u64, i64, f64, string: 8 bytes each
      GgufBuilder file;
      file.array("list", type, count, ByteString().u64(0).u64(0));
      expect_refused(ErrorCode::kFormat, {"key 'list' declares " + std::to_string(count)}, file);
    }
  }
}

TEST(GgufFile, RefusesStringArraysWhoseLastStringIsTooLong) {
  GgufBuilder file;
  file.array("list", 8, 2, ByteString().string("ok").u64(100).text("short"));
  expect_refused(ErrorCode::kFormat, {"key 'list' needs 100 bytes"}, file);
}

TEST(GgufFile, RefusesASmallFileThatAsksForGigabytes) {
  // 60-odd bytes that made other readers allocate 2^31 strings or loop over 2^63 of them.
  for (const std::uint64_t count : {std::uint64_t{1} << 31, std::uint64_t{1} << 63}) {
    GgufBuilder file;
    file.array("tokenizer.ggml.tokens", 8, count, ByteString());
    ASSERT_LT(file.build().size(), 80u);
    expect_refused(ErrorCode::kFormat, {"'tokenizer.ggml.tokens'", "0 bytes are left"}, file);
  }
}

TEST(GgufFile, RefusesUnknownValueTypesAndArraysOfArrays) {
  GgufBuilder unknown;
  unknown.value("odd", 13, ByteString().u64(0));
  expect_refused(ErrorCode::kFormat, {"'memory'", "key 'odd'", "0 to 12", "got 13"}, unknown);
  GgufBuilder nested;
  nested.array("nest", 9, 1, ByteString().u32(4).u64(0));
  expect_refused(ErrorCode::kUnsupported, {"'memory'", "key 'nest'", "array of arrays"}, nested);
}

TEST(GgufFile, RefusesABadAlignment) {
  for (const std::uint32_t alignment : {0u, 3u, 48u, 0xffffffffu}) {
    GgufBuilder file;
    file.u32("general.alignment", alignment);
    expect_refused(ErrorCode::kFormat,
                   {"general.alignment", "power of two", "got " + std::to_string(alignment)}, file);
  }
  GgufBuilder text;
  text.text("general.alignment", "32");
  expect_refused(ErrorCode::kFormat, {"'general.alignment'", "found string"}, text);
  GgufBuilder wide;
  wide.value("general.alignment", 10, ByteString().u64(std::uint64_t{1} << 40));
  expect_refused(ErrorCode::kFormat, {"general.alignment", "got 1099511627776"}, wide);
}

TEST(GgufFile, QuotesUntrustedNamesInMessages) {
  GgufBuilder file;
  file.value("evil\n\x1b[31m", 13, ByteString());
  file.num_values = 1;
  file.data_bytes = 64;
  expect_refused(ErrorCode::kFormat, {"'evil\\x0a\\x1b[31m'"}, file);
}

// ---- Tensor rules

TEST(GgufFile, RefusesAnUnnamedTensor) {
  expect_refused(ErrorCode::kFormat, {"name of 1 to 63 bytes", "got 0"}, with_tensor({.name = ""}));
}

TEST(GgufFile, RefusesATensorNameOf64BytesAsOtherReadersDo) {
  EXPECT_NO_THROW(open(with_tensor({.name = std::string(63, 'n')})));
  expect_refused(ErrorCode::kFormat, {"'nnn", "1 to 63 bytes", "got 64"},
                 with_tensor({.name = std::string(64, 'n')}));
}

TEST(GgufFile, RefusesATensorThatStandsTwice) {
  GgufBuilder file = with_tensor({.name = "same", .offset = 0});
  file.tensor({.name = "same", .offset = 64});
  expect_refused(ErrorCode::kFormat, {"tensor 'same' stands twice"}, file);
}

TEST(GgufFile, RefusesBadNumbersOfDimensions_CVE_2024_21802) {
  for (const std::uint32_t num_dims : {0u, 5u, 0x80000000u, 0xffffffffu}) {
    BuiltTensor tensor;
    tensor.num_dims = num_dims;
    expect_refused(ErrorCode::kFormat,
                   {"tensor 't'", "1 to 4 dimensions", "got " + std::to_string(num_dims)},
                   with_tensor(tensor));
  }
}

TEST(GgufFile, RefusesADimensionOf0) {
  expect_refused(ErrorCode::kFormat, {"tensor 't'", "> 0"}, with_tensor({.dims = {4, 0}}));
}

TEST(GgufFile, RefusesDimensionsWhoseProductOverflows_CVE_2025_53630) {
  const std::uint64_t big = std::uint64_t{1} << 32;
  // Products of 2^64 (wraps to 0), 2^63 (negative as int64), and 2^64 + 2^33 (wraps to 2^33).
  const std::vector<std::uint64_t> shapes[] = {{big, big},
                                               {std::uint64_t{1} << 31, big},
                                               {8, (std::uint64_t{1} << 61) + (1u << 30)},
                                               {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX},
                                               {UINT64_MAX}};
  for (const auto& dims : shapes) {
    expect_refused(ErrorCode::kFormat, {"tensor 't'", "fits in 64 bits", std::to_string(dims[0])},
                   with_tensor({.dims = dims}));
  }
}

TEST(GgufFile, RefusesMoreElementsThanInt64HoldsEvenIfTheirBytesFit) {
  // 2^63 weights of q4_0 are 2^63 / 32 * 18 bytes, less than 2^63.
  expect_refused(
      ErrorCode::kFormat, {"tensor 't'", "fits in 64 bits"},
      with_tensor({.dims = {std::uint64_t{1} << 31, std::uint64_t{1} << 32}, .type = 2}));
}

TEST(GgufFile, RefusesASizeInBytesThatOverflows_CVE_2026_33298) {
  // 2^62 elements fit int64, their 2^64 bytes of f32 wrap to 0.
  expect_refused(ErrorCode::kFormat, {"tensor 't'", "fits in 64 bits", "4611686018427387904"},
                 with_tensor({.dims = {std::uint64_t{1} << 62}}));
  // (2^62 + 8) * 4 wraps to 32 bytes, which the file has.
  expect_refused(ErrorCode::kFormat, {"tensor 't'", "fits in 64 bits"},
                 with_tensor({.dims = {(std::uint64_t{1} << 62) + 8}}));
}

TEST(GgufFile, RefusesSizesWhoseSumOverflows_CVE_2026_27940) {
  // Each tensor alone fits 64 bits; a sum of sizes in 64 bits would wrap.
  GgufBuilder file;
  for (int i = 0; i < 5; ++i) {
    file.tensor({.name = "t" + std::to_string(i), .dims = {(std::uint64_t{1} << 60) - 8}});
  }
  file.data_bytes = 64;
  expect_refused(ErrorCode::kFormat, {"tensor 't0' ends at byte", "but the file has"}, file);
}

TEST(GgufFile, RefusesAnOffsetWhoseEndWraps) {
  // Padded or added to the size, these offsets come out as a small number.
  for (const std::uint64_t offset : {UINT64_MAX - 31, UINT64_MAX - 63, std::uint64_t{1} << 63}) {
    expect_refused(ErrorCode::kFormat, {"tensor 't'"},
                   with_tensor({.dims = {16}, .offset = offset}));
  }
}

TEST(GgufFile, RefusesAnAlignmentThatMovesTheDataPastTheEnd) {
  GgufBuilder file = with_tensor({});
  file.u32("general.alignment", std::uint32_t{1} << 31);
  expect_refused(ErrorCode::kFormat, {"tensor 't' ends at byte 2147483680"}, file);
}

TEST(GgufFile, RefusesATensorLargerThanTheFile_CVE_2026_7482) {
  const GgufBuilder exact = with_tensor({.dims = {16, 4}}, 256);
  EXPECT_EQ(open(exact).tensor("t").data.size(), 256u);
  const auto size = exact.build().size();
  expect_refused(ErrorCode::kFormat,
                 {"'memory'", "tensor 't' ends at byte " + std::to_string(size),
                  "the file has " + std::to_string(size - 1)},
                 with_tensor({.dims = {16, 4}}, 255));
}

TEST(GgufFile, RefusesAnOffsetBesideTheAlignment) {
  expect_refused(ErrorCode::kFormat, {"tensor 't'", "multiple of 32", "got 16"},
                 with_tensor({.offset = 16}));
}

TEST(GgufFile, RefusesRowsThatEndInsideABlock) {
  expect_refused(ErrorCode::kFormat, {"tensor 't'", "q8_0", "multiple of 32", "got 48"},
                 with_tensor({.dims = {48, 2}, .type = 8}));
}

TEST(GgufFile, RefusesTensorsThatOverlap) {
  GgufBuilder file;
  file.tensor({.name = "second", .dims = {8}, .offset = 32});
  file.tensor({.name = "first", .dims = {9}, .offset = 0});  // 36 bytes
  file.data_bytes = 64;
  expect_refused(ErrorCode::kFormat, {"'second'", "inside", "'first'"}, file);
  GgufBuilder same;
  same.tensor({.name = "a"}).tensor({.name = "b"});
  same.data_bytes = 64;
  expect_refused(ErrorCode::kFormat, {"'a'", "inside", "'b'"}, same);
}

TEST(GgufFile, RefusesTypesThatTheFormatHasRemoved) {
  for (const std::uint32_t id : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u}) {
    expect_refused(ErrorCode::kFormat, {"tensor 't'", "type " + std::to_string(id), "removed"},
                   with_tensor({.dims = {256}, .type = id}));
  }
}

TEST(GgufFile, RefusesTypesOfUnknownSize) {
  for (const std::uint32_t id : {41u, 137u, 0xffffffffu}) {
    expect_refused(ErrorCode::kUnsupported, {"tensor 't'", "type " + std::to_string(id)},
                   with_tensor({.dims = {256}, .type = id}));
  }
}

// ---- Any bytes at all

/// Touches every byte and every string that an opened file offers.
std::size_t use_everything(const GgufFile& file) {
  std::size_t sum = 0;
  for (const GgufValue& value : file.metadata()) {
    sum += value.key().size();
    for (const std::byte byte : value.encoded()) sum += static_cast<std::size_t>(byte);
    if (value.is_array() && value.element_type() == GgufType::kString) {
      for (const auto text : value.get<std::span<const std::string_view>>()) {
        for (const char c : text) sum += static_cast<unsigned char>(c);
      }
    }
    EXPECT_EQ(file.find(value.key()), &value);
  }
  for (const GgufTensor& tensor : file.tensors()) {
    EXPECT_EQ(tensor.row_bytes() * tensor.num_rows(), tensor.data.size());
    EXPECT_FALSE(tensor.name.empty());
    for (const std::byte byte : tensor.data) sum += static_cast<std::size_t>(byte);
  }
  return sum;
}

/// Whether the bytes load. Anything but success and kvick::Error fails the test.
bool loads(std::vector<std::byte> bytes) {
  try {
    use_everything(GgufFile::from_bytes(std::move(bytes)));
    return true;
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
    return false;
  }
}

TEST(GgufFile, RefusesEveryTruncationOfAValidFile) {
  const auto whole = support::small_valid_gguf().build();
  ASSERT_TRUE(loads(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(loads({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}))
        << "cut at byte " << size;
  }
}

TEST(GgufFile, SurvivesRandomMutations) {
  constexpr std::uint64_t kSeed = 20240607;
  constexpr int kNumMutants = 20000;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  const std::uint64_t telling[] = {0,
                                   1,
                                   2,
                                   8,
                                   31,
                                   32,
                                   255,
                                   65536,
                                   INT32_MAX,
                                   UINT32_MAX,
                                   std::uint64_t{1} << 32,
                                   std::uint64_t{1} << 61,
                                   INT64_MAX,
                                   std::uint64_t{1} << 63,
                                   UINT64_MAX - 31,
                                   UINT64_MAX};
  std::mt19937_64 random(kSeed);
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  const auto valid = support::small_valid_gguf().build();
  int num_loaded = 0;
  for (int i = 0; i < kNumMutants; ++i) {
    auto bytes = valid;
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
      const std::size_t at = below(bytes.size() - 8);
      switch (below(5)) {
        case 0: bytes[at] = static_cast<std::byte>(random()); break;
        case 1: bytes[at] ^= std::byte{1} << below(8); break;
        case 2: std::memcpy(&bytes[at], &telling[below(std::size(telling))], 8); break;
        case 3: std::memcpy(&bytes[at], &telling[below(std::size(telling))], 4); break;
        case 4: bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at)); break;
      }
    }
    num_loaded += loads(std::move(bytes)) ? 1 : 0;
  }
  // Mutants reach both ends; a generator that only makes noise would test the magic alone.
  EXPECT_GT(num_loaded, kNumMutants / 100);
  EXPECT_LT(num_loaded, kNumMutants * 3 / 4);
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

// ---- Split models

/// Part `part` (from 0) of `num_parts` with one tensor called `tensor`.
GgufBuilder part_of(std::uint16_t part, std::uint16_t num_parts, const std::string& tensor) {
  GgufBuilder file;
  if (part == 0) file.text("general.architecture", "split");
  file.value("split.no", 2, ByteString().number(part));
  file.value("split.count", 2, ByteString().number(num_parts));
  file.value("split.tensors.count", 5, ByteString().number<std::int32_t>(num_parts));
  file.tensor({.name = tensor, .dims = {part + 1u}});
  file.data_bytes = 4 * (part + 1u);
  return file;
}

/// A directory with model-00001-of-00003.gguf and its other two parts.
class SplitModel {
 public:
  SplitModel() {
    for (std::uint16_t part = 0; part < 3; ++part) write(part, part_of(part, 3, name_of(part)));
  }
  static std::string name_of(int part) { return "tensor" + std::to_string(part); }
  std::filesystem::path path(int part) const {
    return directory_ / ("model-0000" + std::to_string(part + 1) + "-of-00003.gguf");
  }
  void write(int part, const GgufBuilder& file) const {
    support::write_bytes(path(part), file.build());
  }
  const support::TemporaryDirectory& directory() const { return directory_; }

 private:
  support::TemporaryDirectory directory_;
};

TEST(GgufFileSplit, OpensAllPartsFromTheFirst) {
  const SplitModel model;
  const GgufFile file(model.path(0));
  EXPECT_EQ(file.num_parts(), 3);
  EXPECT_EQ(file.name(), model.path(0).string());
  EXPECT_EQ(file.get<std::string>("general.architecture"), "split");
  ASSERT_EQ(file.tensors().size(), 3u);
  for (int part = 0; part < 3; ++part) {
    const GgufTensor& tensor = file.tensor(SplitModel::name_of(part));
    EXPECT_EQ(&tensor, &file.tensors()[static_cast<std::size_t>(part)]);
    EXPECT_EQ(tensor.part, part);
    EXPECT_EQ(tensor.num_elements(), static_cast<std::uint64_t>(part) + 1);
    EXPECT_EQ(tensor.data[3], std::byte{3});
    file.release_pages(tensor);
    EXPECT_EQ(tensor.data[3], std::byte{3});
  }
}

TEST(GgufFileSplit, AcceptsAnyIntegerWidthAndAMissingTensorCount) {
  const SplitModel model;
  GgufBuilder first;
  first.value("split.no", 11, ByteString().u64(0)).u32("split.count", 3);
  first.tensor({.name = "tensor0"});
  first.data_bytes = 32;
  model.write(0, first);
  EXPECT_EQ(GgufFile(model.path(0)).tensors().size(), 3u);
}

TEST(GgufFileSplit, OpensAWholeModelWhoseCountIs0Or1UnderAnyName) {
  // Merging tools leave split.count = 0 and users keep the old name.
  const SplitModel model;
  for (const std::uint16_t count : {std::uint16_t{0}, std::uint16_t{1}}) {
    GgufBuilder merged;
    merged.value("split.count", 2, ByteString().number(count));
    model.write(0, merged);
    EXPECT_EQ(GgufFile(model.path(0)).num_parts(), 1);
  }
}

TEST(GgufFileSplit, NamesPart1WhenAnotherPartIsOpened) {
  const SplitModel model;
  expect_error(ErrorCode::kFormat, {"part 2 of 3", "open part 1, 'model-00001-of-00003.gguf'"},
               [&] { GgufFile file(model.path(1)); });
}

TEST(GgufFileSplit, NamesTheMissingParts) {
  const SplitModel model;
  std::filesystem::remove(model.path(1));
  expect_error(ErrorCode::kIo, {"3 parts", "missing", "'model-00002-of-00003.gguf'"},
               [&] { GgufFile file(model.path(0)); });
}

TEST(GgufFileSplit, RefusesMorePartsThanFilesExist) {
  const support::TemporaryDirectory directory;
  const auto path = directory / "m-00001-of-60000.gguf";
  support::write_bytes(path, part_of(0, 60000, "t").build());
  expect_error(ErrorCode::kIo, {"60000 parts", "'m-00002-of-60000.gguf'", "..."},
               [&] { GgufFile file(path); });
  GgufBuilder endless;
  endless.u32("split.count", UINT32_MAX);
  support::write_bytes(path, endless.build());
  expect_error(ErrorCode::kFormat, {"split.count", "99999", "got 4294967295"},
               [&] { GgufFile file(path); });
}

TEST(GgufFileSplit, RefusesAFirstPartWhoseNameHidesTheOthers) {
  const SplitModel model;
  const auto path = model.directory() / "renamed.gguf";
  std::filesystem::copy(model.path(0), path);
  expect_error(ErrorCode::kFormat, {"renamed.gguf", "must be named '...-00001-of-00003.gguf'"},
               [&] { GgufFile file(path); });
}

TEST(GgufFileSplit, RefusesPartsThatContradictTheirNames) {
  const SplitModel model;
  model.write(2, part_of(1, 3, "tensor2"));
  expect_error(ErrorCode::kFormat, {"model-00003-of-00003.gguf", "part 3 of 3", "say part 2 of 3"},
               [&] { GgufFile file(model.path(0)); });
  model.write(2, part_of(2, 4, "tensor2"));
  expect_error(ErrorCode::kFormat, {"model-00003-of-00003.gguf", "say part 3 of 4"},
               [&] { GgufFile file(model.path(0)); });
  model.write(2, GgufBuilder{});
  expect_error(ErrorCode::kFormat, {"model-00003-of-00003.gguf", "say part 1 of 1"},
               [&] { GgufFile file(model.path(0)); });
}

TEST(GgufFileSplit, RefusesAPartNumberBeyondTheCount) {
  const SplitModel model;
  model.write(0, part_of(3, 3, "t"));
  expect_error(ErrorCode::kFormat, {"split.no", "split.count = 3", "got 3"},
               [&] { GgufFile file(model.path(0)); });
}

TEST(GgufFileSplit, RefusesAWrongTotalOfTensors) {
  const SplitModel model;
  GgufBuilder part = part_of(2, 3, "tensor2");
  part.tensor({.name = "extra", .dims = {1}, .offset = 32});
  part.data_bytes = 36;
  model.write(2, part);
  expect_error(ErrorCode::kFormat, {"split.tensors.count is 3", "4 tensors"},
               [&] { GgufFile file(model.path(0)); });
}

TEST(GgufFileSplit, RefusesATensorThatStandsInTwoParts) {
  const SplitModel model;
  model.write(2, part_of(2, 3, "tensor0"));
  expect_error(ErrorCode::kFormat, {"tensor 'tensor0' stands twice"},
               [&] { GgufFile file(model.path(0)); });
}

TEST(GgufFileSplit, NamesAMalformedPart) {
  const SplitModel model;
  support::write_bytes(model.path(1), std::vector<std::byte>(10));
  expect_error(ErrorCode::kFormat, {"model-00002-of-00003.gguf"},
               [&] { GgufFile file(model.path(0)); });
}

TEST(GgufFileSplit, RefusesAPartInMemory) {
  expect_refused(ErrorCode::kUnsupported, {"3 files", "by path"}, part_of(0, 3, "t"));
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
