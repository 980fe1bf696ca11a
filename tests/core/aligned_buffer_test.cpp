// SPDX-License-Identifier: MIT
#include "kvick/core/aligned_buffer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace kvick {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSizes[] = {
    1, 7, 63, 64, 65, 4096, 2 * kMiB, 2 * kMiB - 1, 2 * kMiB + 1, 5 * kMiB + 3, 16 * kMiB};

static_assert(!std::is_copy_constructible_v<AlignedBuffer<float>>);
static_assert(!std::is_copy_assignable_v<AlignedBuffer<float>>);
static_assert(std::is_nothrow_move_constructible_v<AlignedBuffer<float>>);
static_assert(std::is_nothrow_move_assignable_v<AlignedBuffer<float>>);

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

TEST(AlignedBuffer, IsZeroAtFirstAndWritableToTheLastByte) {
  for (const std::size_t size : kSizes) {
    SCOPED_TRACE(::testing::Message() << size << " bytes");
    AlignedBuffer<unsigned char> buffer(size);
    ASSERT_EQ(buffer.size(), size);
    ASSERT_EQ(buffer.size_bytes(), size);
    EXPECT_EQ(static_cast<std::size_t>(std::count(buffer.begin(), buffer.end(), 0)), size);
    std::fill(buffer.begin(), buffer.end(), static_cast<unsigned char>(0xa5));
    EXPECT_EQ(buffer[0], 0xa5);
    EXPECT_EQ(buffer[size - 1], 0xa5);
  }
}

// Memory that was in use before must be zeroed again.
TEST(AlignedBuffer, IsZeroWhereFreedMemoryIsReused) {
  for (int round = 0; round < 20; ++round) {
    AlignedBuffer<std::uint32_t> buffer(1000);
    ASSERT_EQ(std::count(buffer.begin(), buffer.end(), 0u), 1000);
    std::fill(buffer.begin(), buffer.end(), 0xffffffffu);
  }
}

TEST(AlignedBuffer, StartsOnACacheLineAndLargeOnesOnAHugePage) {
  for (const std::size_t size : kSizes) {
    for (int i = 0; i < 3; ++i) {
      const AlignedBuffer<char> odd(static_cast<std::size_t>(i) * 4096 + 1);  // shifts the next
      const AlignedBuffer<char> buffer(size);
      EXPECT_EQ(address(buffer.data()) % 64, 0u) << size;
#if defined(__linux__)
      if (size >= 2 * kMiB) {
        EXPECT_EQ(address(buffer.data()) % (2 * kMiB), 0u) << size;
      }
#endif
    }
  }
}

#if defined(__linux__)

// The flags of the mapping that holds `pointer`, from /proc/self/smaps; empty if not found.
std::string mapping_flags(const void* pointer) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool is_inside = false;
  while (std::getline(smaps, line)) {
    std::uintptr_t first = 0, last = 0;
    char dash = 0;
    std::istringstream head(line);
    if (head >> std::hex >> first >> dash >> last && dash == '-') {
      is_inside = first <= address(pointer) && address(pointer) < last;
    } else if (is_inside && line.rfind("VmFlags:", 0) == 0) {
      return line + " ";
    }
  }
  return "";
}

TEST(AlignedBuffer, LargeOnesAskForHugePages) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    GTEST_SKIP() << "this kernel has no transparent huge pages";
  }
  const AlignedBuffer<char> large(4 * kMiB);
  const std::string flags = mapping_flags(large.data());
  if (flags.empty()) GTEST_SKIP() << "/proc/self/smaps shows no flags";
  EXPECT_NE(flags.find(" hg "), std::string::npos) << flags;
}

std::size_t mapped_pages() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

TEST(AlignedBuffer, GivesMappingsBack) {
  const std::size_t before = mapped_pages();
  ASSERT_GT(before, 0u);
  for (int i = 0; i < 200; ++i) const AlignedBuffer<char> buffer(3 * kMiB + 1);
  // A leak of the buffers would be 153,600 pages, of the ends that alignment cuts off 102,400.
  EXPECT_LT(mapped_pages(), before + 2000);
}

#endif

TEST(AlignedBuffer, EmptyOnesHaveNoMemory) {
  const AlignedBuffer<double> none;
  const AlignedBuffer<double> zero(0);
  for (const auto* buffer : {&none, &zero}) {
    EXPECT_EQ(buffer->data(), nullptr);
    EXPECT_EQ(buffer->size(), 0u);
    EXPECT_TRUE(buffer->empty());
    EXPECT_EQ(buffer->begin(), buffer->end());
    EXPECT_TRUE(buffer->span().empty());
  }
}

TEST(AlignedBuffer, MovingHandsTheElementsOverAndEmptiesTheSource) {
  for (const std::size_t count : {std::size_t{10}, kMiB}) {  // heap and mapping
    AlignedBuffer<int> a(count);
    a[count - 1] = 42;
    const int* const elements = a.data();
    AlignedBuffer<int> b(std::move(a));
    EXPECT_EQ(b.data(), elements);
    EXPECT_EQ(b.size(), count);
    EXPECT_TRUE(a.empty());           // NOLINT(bugprone-use-after-move): the promise under test
    EXPECT_EQ(a.data(), nullptr);     // NOLINT(bugprone-use-after-move)
    AlignedBuffer<int> c(3 * count);  // its own elements must be freed
    c = std::move(b);
    EXPECT_EQ(c.data(), elements);
    EXPECT_EQ(c.size(), count);
    EXPECT_EQ(c[count - 1], 42);
    EXPECT_TRUE(b.empty());  // NOLINT(bugprone-use-after-move)
    AlignedBuffer<int>& self = c;
    c = std::move(self);
    ASSERT_EQ(c.data(), elements);
    EXPECT_EQ(c[count - 1], 42);
  }
}

TEST(AlignedBuffer, SwapsAndViews) {
  AlignedBuffer<int> a(2), b(3);
  a[0] = 1;
  b[0] = 2;
  a.swap(b);
  EXPECT_EQ(a.size(), 3u);
  EXPECT_EQ(a[0], 2);
  EXPECT_EQ(b.span().size(), 2u);
  EXPECT_EQ(b.span()[0], 1);
  EXPECT_EQ(std::as_const(b).span().data(), b.data());
  EXPECT_EQ(b.end() - b.begin(), 2);
}

std::string capacity_error(std::size_t num_doubles) {
  try {
    const AlignedBuffer<double> buffer(num_doubles);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCapacity);
    return std::string(error.message());
  }
  ADD_FAILURE() << "no error for " << num_doubles << " doubles";
  return "";
}

TEST(AlignedBuffer, NamesASizeThatOverflows) {
  EXPECT_EQ(capacity_error(std::numeric_limits<std::size_t>::max()),
            "[AlignedBuffer] size must fit in memory, got 18446744073709551615 * 8");
  EXPECT_EQ(capacity_error(std::size_t{1} << 60),
            "[AlignedBuffer] size must fit in memory, got 1152921504606846976 * 8");
}

TEST(AlignedBuffer, NamesTheBytesWhenMemoryIsRefused) {
  EXPECT_EQ(capacity_error(std::size_t{1} << 59),
            "[AlignedBuffer] memory must be available, got a refusal of 4611686018427387904 bytes");
}

}  // namespace
}  // namespace kvick
