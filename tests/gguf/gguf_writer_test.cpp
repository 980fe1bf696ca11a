// SPDX-License-Identifier: MIT
#include "kvick/gguf/gguf_writer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/gguf/gguf_file.hpp"
#include "support/gguf_builder.hpp"
#include "support/shared_data.hpp"

#if defined(__linux__)
#include <sys/resource.h>

#include <csignal>
#endif

namespace kvick {
namespace {

using support::ByteString;
using support::expect_error;

const std::array<float, 8> kFloats = {0, 1, 2, 3, 4, 5, 6, 7};
const std::span<const std::byte> kFloatBytes = std::as_bytes(std::span(kFloats));

void expect_same_content(const GgufFile& a, const GgufFile& b) {
  ASSERT_EQ(a.metadata().size(), b.metadata().size());
  for (std::size_t i = 0; i < a.metadata().size(); ++i) {
    const GgufValue& x = a.metadata()[i];
    const GgufValue& y = b.metadata()[i];
    EXPECT_EQ(x.key(), y.key());
    EXPECT_EQ(x.type(), y.type()) << x.key();
    EXPECT_EQ(x.element_type(), y.element_type()) << x.key();
    EXPECT_EQ(x.num_elements(), y.num_elements()) << x.key();
    EXPECT_TRUE(std::ranges::equal(x.encoded(), y.encoded())) << x.key();
  }
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    const GgufTensor& x = a.tensors()[i];
    const GgufTensor& y = b.tensors()[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.type, y.type) << x.name;
    EXPECT_EQ(x.dims, y.dims) << x.name;
    EXPECT_EQ(x.num_dims, y.num_dims) << x.name;
    EXPECT_TRUE(std::ranges::equal(x.data, y.data)) << x.name;
  }
}

GgufWriter copy_of(const GgufFile& file) {
  GgufWriter writer;
  for (const GgufValue& value : file.metadata()) writer.add(value);
  for (const GgufTensor& tensor : file.tensors()) writer.add_tensor(tensor);
  return writer;
}

TEST(GgufWriter, WritesTheBytesOfTheFormat) {
  GgufWriter writer;
  writer.add("k", std::uint32_t{7});
  writer.add("s", "hi");
  writer.add_tensor("t", TensorType::kF32, {1}, kFloatBytes.first(4));
  // Laid out by hand from the format's description.
  ByteString expected;
  expected.text("GGUF").u32(3).u64(1).u64(2);
  expected.u64(1).text("k").u32(4).u32(7);
  expected.u64(1).text("s").u32(8).u64(2).text("hi");
  expected.u64(1).text("t").u32(1).u64(1).u32(0).u64(0);
  ASSERT_EQ(expected.bytes().size(), 97u);
  expected.zeros(31);               // data starts at byte 128
  expected.number(0.0f).zeros(28);  // padded to 32
  EXPECT_EQ(writer.to_bytes(), expected.bytes());
}

TEST(GgufWriter, WritesEveryTypeSoThatItIsReadBack) {
  GgufWriter writer;
  writer.add("u8", std::numeric_limits<std::uint8_t>::max());
  writer.add("i8", std::numeric_limits<std::int8_t>::min());
  writer.add("u16", std::numeric_limits<std::uint16_t>::max());
  writer.add("i16", std::numeric_limits<std::int16_t>::min());
  writer.add("u32", std::numeric_limits<std::uint32_t>::max());
  writer.add("i32", std::numeric_limits<std::int32_t>::min());
  writer.add("u64", std::numeric_limits<std::uint64_t>::max());
  writer.add("i64", std::numeric_limits<std::int64_t>::min());
  writer.add("f32", 1.5f);
  writer.add("f64", 0.1);
  writer.add("bool", true);
  writer.add("literal", "text");
  writer.add("string", std::string("more text"));
  writer.add("view", std::string_view("a\0b", 3));
  writer.add("floats", std::vector<float>{0.5f, -1.0f});
  writer.add("ints", {1, -2, 3});
  writer.add("bools", std::vector<bool>{true, false});
  writer.add("strings", std::vector<std::string>{"x", "", "yz"});
  writer.add("views", {std::string_view("p"), std::string_view("q")});
  writer.add("none", std::vector<std::uint16_t>{});

  const GgufFile file = GgufFile::from_bytes(writer.to_bytes());
  const auto type_of = [&](std::string_view key) { return name(file.find(key)->element_type()); };
  for (const std::string_view key :
       {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "bool", "string"}) {
    EXPECT_EQ(type_of(key), key);
  }
  EXPECT_EQ(file.get<std::uint8_t>("u8"), 255u);
  EXPECT_EQ(file.get<std::int8_t>("i8"), -128);
  EXPECT_EQ(file.get<std::uint64_t>("u64"), UINT64_MAX);
  EXPECT_EQ(file.get<std::int64_t>("i64"), INT64_MIN);
  EXPECT_EQ(file.get<float>("f32"), 1.5f);
  EXPECT_EQ(file.get<double>("f64"), 0.1);
  EXPECT_TRUE(file.get<bool>("bool"));
  EXPECT_EQ(file.get<std::string>("literal"), "text");
  EXPECT_EQ(file.get<std::string>("string"), "more text");
  EXPECT_EQ(file.get<std::string_view>("view"), std::string_view("a\0b", 3));
  EXPECT_EQ(file.get<std::vector<float>>("floats"), (std::vector<float>{0.5f, -1.0f}));
  EXPECT_EQ(file.get<std::vector<int>>("ints"), (std::vector<int>{1, -2, 3}));
  EXPECT_EQ(type_of("ints"), "i32");
  EXPECT_EQ(file.get<std::vector<bool>>("bools"), (std::vector<bool>{true, false}));
  EXPECT_EQ(file.get<std::vector<std::string>>("strings"),
            (std::vector<std::string>{"x", "", "yz"}));
  EXPECT_EQ(file.get<std::vector<std::string>>("views"), (std::vector<std::string>{"p", "q"}));
  EXPECT_TRUE(file.get<std::vector<int>>("none").empty());
  EXPECT_EQ(type_of("none"), "u16");
}

TEST(GgufWriter, WritesTensorsSoThatTheyAreReadBack) {
  GgufWriter writer;
  writer.add_tensor("a", TensorType::kF32, {2, 2}, kFloatBytes.first(16));
  writer.add_tensor("b", TensorType::kF16, {1, 2, 3, 2}, kFloatBytes.first(24));
  writer.add_tensor("c", TensorType::kF32, std::vector<std::uint64_t>{8}, kFloatBytes);
  const GgufFile file = GgufFile::from_bytes(writer.to_bytes());
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_TRUE(std::ranges::equal(file.tensor("a").data, kFloatBytes.first(16)));
  EXPECT_EQ(file.tensor("b").num_dims, 4);
  EXPECT_EQ(file.tensor("b").dims, (std::array<std::uint64_t, 4>{1, 2, 3, 2}));
  EXPECT_EQ(file.tensor("b").type, TensorType::kF16);
  EXPECT_TRUE(std::ranges::equal(file.tensor("c").data, kFloatBytes));
}

TEST(GgufWriter, CopiesWhatWasRead) {
  const GgufFile original = GgufFile::from_bytes(support::small_valid_gguf().build());
  const auto bytes = copy_of(original).to_bytes();
  const GgufFile copy = GgufFile::from_bytes(bytes);
  expect_same_content(original, copy);
  EXPECT_EQ(copy_of(copy).to_bytes(), bytes);  // and the same bytes each time
}

TEST(GgufWriter, CopiesTensorsOfTypesThatCannotBeComputedWith) {
  support::GgufBuilder builder;
  builder.tensor({.name = "rare", .dims = {256}, .type = 17});
  builder.data_bytes = 74;
  const GgufFile original = GgufFile::from_bytes(builder.build());
  expect_same_content(original, GgufFile::from_bytes(copy_of(original).to_bytes()));
}

TEST(GgufWriter, CopiesARealModel) {
  const auto path = support::shared_path("models/stories260K.gguf");
  if (!path) GTEST_SKIP() << support::missing("models/stories260K.gguf");
  const support::TemporaryDirectory directory;
  const GgufFile original(*path);
  copy_of(original).write(directory / "copy.gguf");
  expect_same_content(original, GgufFile(directory / "copy.gguf"));
}

TEST(GgufWriter, AlignsDataAsTheKeySays) {
  for (const std::uint32_t alignment : {1u, 8u, 4096u}) {
    SCOPED_TRACE(alignment);
    GgufWriter writer;
    writer.add("general.alignment", alignment);
    writer.add_tensor("a", TensorType::kF32, {1}, kFloatBytes.first(4));
    writer.add_tensor("b", TensorType::kF32, {1}, kFloatBytes.subspan(4, 4));
    const GgufFile file = GgufFile::from_bytes(writer.to_bytes());
    EXPECT_EQ(file.alignment(), alignment);
    EXPECT_EQ(file.tensor("b").offset - file.tensor("a").offset, std::max(alignment, 4u));
    EXPECT_TRUE(std::ranges::equal(file.tensor("b").data, kFloatBytes.subspan(4, 4)));
  }
}

TEST(GgufWriter, StreamsTensorsFromProducers) {
  int num_calls = 0;
  GgufWriter writer;
  writer.add_tensor("t", TensorType::kF32, {8}, [&](const GgufSink& sink) {
    ++num_calls;
    sink(kFloatBytes.first(5));
    sink({});
    sink(kFloatBytes.subspan(5));
  });
  EXPECT_EQ(num_calls, 0);
  const support::TemporaryDirectory directory;
  writer.write(directory / "m.gguf");
  EXPECT_EQ(num_calls, 1);
  EXPECT_TRUE(std::ranges::equal(GgufFile(directory / "m.gguf").tensor("t").data, kFloatBytes));
}

TEST(GgufWriter, RefusesAProducerThatGivesTooLittleOrTooMuch) {
  for (const std::size_t size : {std::size_t{28}, std::size_t{0}}) {
    GgufWriter writer;
    writer.add_tensor("t", TensorType::kF32, {8},
                      [&](const GgufSink& sink) { sink(kFloatBytes.first(size)); });
    expect_error(ErrorCode::kArgument, {"'t'", "32 bytes", "gave " + std::to_string(size)},
                 [&] { writer.to_bytes(); });
  }
  GgufWriter writer;
  writer.add_tensor("t", TensorType::kF32, {8}, [&](const GgufSink& sink) {
    sink(kFloatBytes);
    sink(kFloatBytes.first(1));
    ADD_FAILURE() << "the first byte too many must end the writing";
  });
  expect_error(ErrorCode::kArgument, {"'t'", "32 bytes", "gave 33"}, [&] { writer.to_bytes(); });
}

TEST(GgufWriter, RefusesWhatTheReaderWouldRefuse) {
  const auto code = ErrorCode::kArgument;
  GgufWriter writer;
  writer.add("twice", 1);
  expect_error(code, {"'twice'", "added before"}, [&] { writer.add("twice", "x"); });
  expect_error(code, {"1 to 65535 bytes", "got 0"}, [&] { writer.add("", 1); });
  expect_error(code, {"got 65536"}, [&] { writer.add(std::string(65536, 'k'), 1); });
  expect_error(code, {"power of two", "got 3"},
               [&] { writer.add("general.alignment", std::uint32_t{3}); });
  expect_error(code, {"u32", "got i32"}, [&] { writer.add("general.alignment", 64); });

  const auto add = [&](std::string_view name, TensorType type,
                       const std::vector<std::uint64_t>& dims, std::size_t num_bytes) {
    writer.add_tensor(name, type, dims, kFloatBytes.first(num_bytes));
  };
  add("t", TensorType::kF32, {8}, 32);
  expect_error(code, {"'t'", "added before"}, [&] { add("t", TensorType::kF32, {1}, 4); });
  expect_error(code, {"1 to 63 bytes", "got 0"}, [&] { add("", TensorType::kF32, {1}, 4); });
  expect_error(code, {"got 64"}, [&] { add(std::string(64, 'n'), TensorType::kF32, {1}, 4); });
  expect_error(code, {"'u'", "1 to 4 dimensions", "got 0"},
               [&] { add("u", TensorType::kF32, {}, 4); });
  expect_error(code, {"got 5"}, [&] { add("u", TensorType::kF32, {1, 1, 1, 1, 1}, 4); });
  expect_error(code, {"'u'", "> 0"}, [&] { add("u", TensorType::kF32, {0}, 0); });
  expect_error(code, {"'u'", "multiple of 32", "got 31"},
               [&] { add("u", TensorType::kQ8_0, {31}, 32); });
  expect_error(code, {"'u'", "64 bits"}, [&] { add("u", TensorType::kF32, {UINT64_MAX, 2}, 32); });
  expect_error(code, {"'u'", "removed"}, [&] { add("u", TensorType{4}, {32}, 32); });
  expect_error(ErrorCode::kUnsupported, {"'u'", "type 99"},
               [&] { add("u", TensorType{99}, {32}, 32); });
  expect_error(code, {"'u'", "needs 32 bytes", "got 28"},
               [&] { add("u", TensorType::kF32, {8}, 28); });

  // A refused call leaves nothing behind.
  const GgufFile file = GgufFile::from_bytes(writer.to_bytes());
  EXPECT_EQ(file.metadata().size(), 1u);
  EXPECT_EQ(file.tensors().size(), 1u);
}

TEST(GgufWriter, RefusesTensorsThatNoFileCanHold) {
  GgufWriter writer;
  const auto never = [](const GgufSink&) { FAIL() << "nothing may be written"; };
  for (const char* name : {"a", "b"}) {
    writer.add_tensor(name, TensorType::kF32, {(std::uint64_t{1} << 60) + 8}, never);
  }
  expect_error(ErrorCode::kArgument, {"'b'", "2^63"}, [&] { writer.to_bytes(); });
}

TEST(GgufWriter, MergesASplitModelWhenTheSplitKeysAreLeftOut) {
  const support::TemporaryDirectory directory;
  for (std::uint16_t part = 0; part < 2; ++part) {
    GgufWriter writer;
    writer.add("split.no", part);
    writer.add("split.count", std::uint16_t{2});
    writer.add("split.tensors.count", std::int32_t{2});
    writer.add_tensor("t" + std::to_string(part), TensorType::kF32, {8}, kFloatBytes);
    writer.write(directory / ("m-0000" + std::to_string(part + 1) + "-of-00002.gguf"));
  }
  const GgufFile split(directory / "m-00001-of-00002.gguf");
  GgufWriter merged;
  for (const GgufValue& value : split.metadata()) {
    if (!value.key().starts_with("split.")) merged.add(value);
  }
  for (const GgufTensor& tensor : split.tensors()) merged.add_tensor(tensor);
  merged.write(directory / "m.gguf");
  const GgufFile whole(directory / "m.gguf");
  EXPECT_EQ(whole.num_parts(), 1);
  EXPECT_TRUE(std::ranges::equal(whole.tensor("t1").data, kFloatBytes));
}

std::size_t num_files(const std::filesystem::path& directory) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST(GgufWriter, ReplacesAFileWhileItIsRead) {
  const support::TemporaryDirectory directory;
  const auto path = directory / "m.gguf";
  GgufWriter first;
  first.add_tensor("t", TensorType::kF32, {8}, kFloatBytes);
  first.write(path);
  const GgufFile old(path);
  GgufWriter second = copy_of(old);  // reads its data from the file that it replaces
  second.add("new", true);
  second.write(path);
  EXPECT_TRUE(std::ranges::equal(old.tensor("t").data, kFloatBytes));
  EXPECT_TRUE(GgufFile(path).get<bool>("new"));
  EXPECT_EQ(num_files(directory.path()), 1u);
}

TEST(GgufWriter, LeavesTheOldFileAndNoTraceWhenWritingFails) {
  const support::TemporaryDirectory directory;
  const auto path = directory / "m.gguf";
  GgufWriter().write(path);
  const auto before = support::read_bytes(path);
  GgufWriter writer;
  writer.add_tensor("t", TensorType::kF32, {8},
                    [](const GgufSink&) { throw std::runtime_error("the source went away"); });
  EXPECT_THROW(writer.write(path), std::runtime_error);
  EXPECT_EQ(support::read_bytes(path), before);
  EXPECT_EQ(num_files(directory.path()), 1u);
}

TEST(GgufWriter, LeavesForeignTemporaryFilesAlone) {
  const support::TemporaryDirectory directory;
  const std::vector<std::byte> foreign(3);
  support::write_bytes(directory / "m.gguf.tmp0", foreign);
  GgufWriter().write(directory / "m.gguf");
  EXPECT_EQ(support::read_bytes(directory / "m.gguf.tmp0"), foreign);
  EXPECT_EQ(num_files(directory.path()), 2u);
}

TEST(GgufWriter, NamesThePathAndTheReasonWhenItCannotWrite) {
  const support::TemporaryDirectory directory;
  expect_error(ErrorCode::kIo, {(directory / "none").string(), "No such file or directory"},
               [&] { GgufWriter().write(directory / "none" / "m.gguf"); });
  std::filesystem::create_directory(directory / "taken");
  expect_error(ErrorCode::kIo, {(directory / "taken").string(), "directory"},
               [&] { GgufWriter().write(directory / "taken"); });
  EXPECT_EQ(num_files(directory.path()), 1u);
}

#if defined(__linux__)
TEST(GgufWriter, ReportsADiskThatTakesNoMore) {
  const support::TemporaryDirectory directory;
  GgufWriter writer;
  const std::vector<std::byte> data(1 << 20);
  writer.add_tensor("t", TensorType::kF32, {1 << 18}, data);
  // A limit on the size of files stands for a full disk; without the handler it is a signal.
  ::rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  ::rlimit tight = old;
  tight.rlim_cur = 100000;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  expect_error(ErrorCode::kIo, {"write", "m.gguf", "File too large"},
               [&] { writer.write(directory / "m.gguf"); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(num_files(directory.path()), 0u);
}
#endif

}  // namespace
}  // namespace kvick
