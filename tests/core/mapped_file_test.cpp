// SPDX-License-Identifier: MIT
#include "kvick/core/mapped_file.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/gguf_builder.hpp"

#if KVICK_HAS_MMAP
#include <sys/stat.h>
#endif

namespace kvick {
namespace {

std::vector<std::byte> counting_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

TEST(MappedFile, HoldsTheBytesOfTheFile) {
  const support::TemporaryDirectory directory;
  const auto written = counting_bytes(10000);  // ends inside a page
  support::write_bytes(directory / "file", written);
  const MappedFile file(directory / "file");
  EXPECT_TRUE(equal(file.bytes(), written));
}

TEST(MappedFile, AcceptsAnEmptyFile) {
  const support::TemporaryDirectory directory;
  support::write_bytes(directory / "empty", {});
  const MappedFile file(directory / "empty");
  EXPECT_TRUE(file.bytes().empty());
}

TEST(MappedFile, NamesAMissingFileAndTheReason) {
  const support::TemporaryDirectory directory;
  const auto path = directory / "missing.gguf";
  support::expect_error(ErrorCode::kIo, {path.string(), "No such file or directory"},
                        [&] { MappedFile file(path); });
}

TEST(MappedFile, RefusesADirectory) {
  const support::TemporaryDirectory directory;
  support::expect_error(ErrorCode::kIo, {directory.path().string()},
                        [&] { MappedFile file(directory.path()); });
}

#if KVICK_HAS_MMAP
TEST(MappedFile, RefusesAFifoWithoutWaitingForAWriter) {
  const support::TemporaryDirectory directory;
  const auto path = directory / "fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  support::expect_error(ErrorCode::kIo, {path.string(), "regular"}, [&] { MappedFile file(path); });
}
#endif

TEST(MappedFile, KeepsItsAddressWhenMoved) {
  static_assert(!std::is_copy_constructible_v<MappedFile>);
  const support::TemporaryDirectory directory;
  support::write_bytes(directory / "a", counting_bytes(5000));
  support::write_bytes(directory / "b", counting_bytes(100));
  MappedFile first(directory / "a");
  const auto bytes = first.bytes();
  MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes().data(), bytes.data());
  MappedFile third(directory / "b");
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), bytes.data());
  EXPECT_TRUE(equal(third.bytes(), counting_bytes(5000)));
}

TEST(MappedFile, KeepsTheOldContentWhenTheFileIsReplacedByRename) {
  const support::TemporaryDirectory directory;
  support::write_bytes(directory / "file", counting_bytes(5000));
  const MappedFile file(directory / "file");
  support::write_bytes(directory / "other", std::vector<std::byte>(10));
  std::filesystem::rename(directory / "other", directory / "file");
  EXPECT_TRUE(equal(file.bytes(), counting_bytes(5000)));
}

TEST(MappedFile, ReadsReleasedPagesAgain) {
  const support::TemporaryDirectory directory;
  const auto written = counting_bytes(100000);
  support::write_bytes(directory / "file", written);
  const MappedFile file(directory / "file");
  EXPECT_TRUE(equal(file.bytes(), written));
  file.release_pages(file.bytes());
  file.release_pages(file.bytes().subspan(1000, 50000));
  file.release_pages({});
  EXPECT_TRUE(equal(file.bytes(), written));
}

TEST(MappedFile, ReleasesNoPagesOfOtherMemory) {
  // Dropped anonymous pages would come back as zeros.
  const support::TemporaryDirectory directory;
  support::write_bytes(directory / "file", counting_bytes(100000));
  const MappedFile file(directory / "file");
  const auto foreign = counting_bytes(1 << 20);
  file.release_pages(foreign);
  EXPECT_TRUE(equal(foreign, counting_bytes(1 << 20)));
}

}  // namespace
}  // namespace kvick
