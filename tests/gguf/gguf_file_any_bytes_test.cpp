// SPDX-License-Identifier: MIT
// Any bytes at all: GgufFile loads them or throws Error, within memory the file warrants.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/gguf/gguf_file.hpp"
#include "support/allocation_counter.hpp"
#include "support/gguf_builder.hpp"

namespace kvick {
namespace {

using support::ByteString;
using support::GgufBuilder;

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

/// Whether the bytes load. Anything but success and kvick::Error fails the test, and so does an
/// allocation that the size of the file does not warrant.
bool loads(std::vector<std::byte> bytes) {
  // The densest content is a key of 14 bytes, kept in a GgufValue of 72 in a vector that doubles:
  // 2 * 72 / 14 < 16. Messages and their streams need up to 1 KB.
  const std::size_t bound = 16 * bytes.size() + 1024;
  support::reset_largest_allocation();
  const auto check_allocations = [&] { EXPECT_LE(support::largest_allocation(), bound); };
  try {
    const GgufFile file = GgufFile::from_bytes(std::move(bytes));
    check_allocations();
    use_everything(file);
    return true;
  } catch (const Error& error) {
    check_allocations();
    EXPECT_FALSE(error.message().empty());
    return false;
  }
}

TEST(GgufFile, AllocatesNoMoreThanTheFileWarrants) {
  GgufBuilder strings;
  strings.array("tokenizer.ggml.tokens", 8, std::uint64_t{1} << 31, ByteString().zeros(64));
  EXPECT_FALSE(loads(strings.build()));
  // Counts that the bytes left allow, for content that breaks off at once.
  ByteString values;
  values.text("GGUF").u32(3).u64(0).u64(70000).u64(UINT64_MAX).zeros(1 << 20);
  EXPECT_FALSE(loads(values.bytes()));
  ByteString tensors;
  tensors.text("GGUF").u32(3).u64(30000).u64(0).u64(UINT64_MAX).zeros(1 << 20);
  EXPECT_FALSE(loads(tensors.bytes()));
  // The densest content there is: keys of one byte and empty strings.
  ByteString texts;
  for (int i = 0; i < 100000; ++i) texts.string("");
  GgufBuilder dense;
  dense.array("list", 8, 100000, texts);
  EXPECT_TRUE(loads(dense.build()));
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

}  // namespace
}  // namespace kvick
