// SPDX-License-Identifier: MIT
// Models split over several files.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kvick/gguf/gguf_file.hpp"
#include "support/gguf_builder.hpp"

namespace kvick {
namespace {

using support::ByteString;
using support::expect_error;
using support::GgufBuilder;

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
  expect_error(ErrorCode::kUnsupported, {"3 files", "by path"},
               [] { GgufFile::from_bytes(part_of(0, 3, "t").build()); });
}

}  // namespace
}  // namespace kvick
