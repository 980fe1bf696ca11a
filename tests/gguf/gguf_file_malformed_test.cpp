// SPDX-License-Identifier: MIT
// What GgufFile refuses: every rule of the format and every shape of attack published against other
// readers (by CVE number).
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/gguf/gguf_file.hpp"
#include "support/gguf_builder.hpp"

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
  // Under 80 bytes that made other readers allocate 2^31 strings or loop over 2^63 of them.
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

}  // namespace
}  // namespace kvick
