// SPDX-License-Identifier: MIT
#include "kvick/cache/sequence_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cache/expect_error.hpp"
#include "cache/stored_rows.hpp"
#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/paged_kv_cache.hpp"
#include "support/temporary_directory.hpp"

namespace kvick {
namespace {

using support::expect_error;
using support::key_at;
using support::value_at;
using Bytes = std::vector<std::byte>;

constexpr int kLayers = 2, kHeads = 3, kHeadDim = 5, kLength = 40;
constexpr std::uint64_t kFingerprint = 0x0123456789abcdef;
constexpr ElementType kElementTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16,
                                         ElementType::kInt8};

ContiguousKVCache contiguous(ElementType type) {
  return {type,
          {.num_layers = kLayers,
           .batch_size = 2,
           .num_kv_heads = kHeads,
           .max_seq_len = 50,
           .head_dim = kHeadDim}};
}

PagedKVStorage paged(ElementType type, int block_tokens, int num_blocks = 0) {
  return {type,
          {.num_layers = kLayers,
           .num_sequences = 2,
           .num_kv_heads = kHeads,
           .max_seq_len = 50,
           .head_dim = kHeadDim,
           .num_blocks = num_blocks,
           .block_tokens = block_tokens}};
}

std::vector<TokenId> tokens(int count = kLength) {
  std::vector<TokenId> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 7);
  return ids;
}

template <class Cache>
void fill(Cache& cache, int sequence) {
  ASSERT_TRUE(cache.reserve(sequence, kLength + 3));  // a reservation is not exported
  for (int layer = 0; layer < kLayers; ++layer) {
    cache.write(layer, sequence, 0, Matrix::Random(kLength, kHeads * kHeadDim),
                Matrix::Random(kLength, kHeads * kHeadDim));
  }
  cache.commit(sequence, tokens());
}

void expect_same_rows(const KVStorage& a, int a_sequence, const KVStorage& b, int b_sequence) {
  ASSERT_EQ(a.length(a_sequence), b.length(b_sequence));
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      for (int position = 0; position < a.length(a_sequence); ++position) {
        ASSERT_EQ(key_at(a, layer, a_sequence, head, position),
                  key_at(b, layer, b_sequence, head, position));
        ASSERT_EQ(value_at(a, layer, a_sequence, head, position),
                  value_at(b, layer, b_sequence, head, position));
      }
    }
  }
}

TEST(SequenceState, GoesBetweenCachesOfEveryLayout) {
  for (const ElementType type : kElementTypes) {
    SCOPED_TRACE(name(type));
    ContiguousKVCache source = contiguous(type);
    fill(source, 1);
    const Bytes bytes = export_sequence(source, 1, tokens(), kFingerprint);
    EXPECT_EQ(bytes.size(), 40 + kLength * (4 + source.bytes_per_token()) + 8);

    ContiguousKVCache same = contiguous(type);
    EXPECT_EQ(import_sequence(same, 0, bytes, kFingerprint), tokens());
    expect_same_rows(same, 0, source, 1);
    for (const int block_tokens : {16, 32, 64}) {
      PagedKVStorage blocks = paged(type, block_tokens);
      EXPECT_EQ(import_sequence(blocks, 1, bytes, kFingerprint), tokens());
      expect_same_rows(blocks, 1, source, 1);
      EXPECT_EQ(export_sequence(blocks, 1, tokens(), kFingerprint), bytes);
    }
  }
}

TEST(SequenceState, ImportedBlocksAreFoundAgain) {
  PagedKVStorage source = paged(ElementType::kF16, 16);
  fill(source, 0);
  PagedKVStorage cache = paged(ElementType::kF16, 16);
  import_sequence(cache, 0, export_sequence(source, 0, tokens(), 1), 1);
  EXPECT_EQ(cache.find_prefix(tokens()).num_tokens, 32);
}

TEST(SequenceState, NoRoomIsNoError) {
  ContiguousKVCache source = contiguous(ElementType::kF32);
  fill(source, 0);
  const Bytes bytes = export_sequence(source, 0, tokens(), 1);
  PagedKVStorage small = paged(ElementType::kF32, 16, 2);
  EXPECT_EQ(import_sequence(small, 0, bytes, 1), std::nullopt);
  EXPECT_EQ(small.blocks().num_free_blocks(), 2);
}

TEST(SequenceState, AnEmptySequenceIsAState) {
  ContiguousKVCache cache = contiguous(ElementType::kF32);
  const Bytes bytes = export_sequence(cache, 0, {}, 1);
  EXPECT_EQ(import_sequence(cache, 1, bytes, 1), tokens(0));
}

TEST(SequenceState, RefusesEveryChangedOrMissingByte) {
  ContiguousKVCache source = contiguous(ElementType::kInt8);
  fill(source, 0);
  const Bytes bytes = export_sequence(source, 0, tokens(), kFingerprint);
  ContiguousKVCache cache = contiguous(ElementType::kInt8);
  const auto refuse = [&](std::span<const std::byte> state) {
    EXPECT_THROW(import_sequence(cache, 0, state, kFingerprint), Error);
  };
  std::mt19937 random(1);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes changed = bytes;
    changed[i] ^= static_cast<std::byte>(1u << random() % 8);
    refuse(changed);
    refuse(std::span(bytes).first(i));
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  refuse(longer);
  EXPECT_EQ(cache.reserved(0), 0);
  EXPECT_EQ(import_sequence(cache, 0, bytes, kFingerprint), tokens());
}

// Fields that lie with a checksum that fits.
TEST(SequenceState, RefusesFieldsThatLie) {
  ContiguousKVCache source = contiguous(ElementType::kF32);
  fill(source, 0);
  const Bytes bytes = export_sequence(source, 0, tokens(), 1);
  ContiguousKVCache cache = contiguous(ElementType::kF32);
  for (const std::uint64_t num_tokens :
       {std::uint64_t{0}, std::uint64_t{39}, std::uint64_t{41}, std::uint64_t{1} << 31,
        std::uint64_t{1} << 61, ~std::uint64_t{0}}) {
    Bytes lying = bytes;
    std::memcpy(lying.data() + offsetof(StateHeader, num_tokens), &num_tokens, 8);
    const std::uint64_t sum = state_checksum(std::span(lying).first(lying.size() - 8));
    std::memcpy(lying.data() + lying.size() - 8, &sum, 8);
    expect_error(ErrorCode::kFormat, "must have the bytes of its " + std::to_string(num_tokens),
                 [&] { import_sequence(cache, 0, lying, 1); });
  }
}

TEST(SequenceState, RefusesWhatBelongsElsewhere) {
  ContiguousKVCache source = contiguous(ElementType::kF16);
  fill(source, 0);
  const Bytes bytes = export_sequence(source, 0, tokens(), 1);
  const auto refused = [&](const std::string& part, auto&& call) {
    expect_error(ErrorCode::kArgument, part, call);
  };
  refused("the same model", [&] { import_sequence(source, 1, bytes, 2); });
  refused("must be empty, got 40 tokens", [&] { import_sequence(source, 0, bytes, 1); });
  refused("tokens must be the 40 of sequence 0, got 39",
          [&] { export_sequence(source, 0, tokens(39), 1); });
  ContiguousKVCache other_type = contiguous(ElementType::kBF16);
  refused("element type 2, got 2, 3 of 5 and 1", [&] { import_sequence(other_type, 0, bytes, 1); });
  ContiguousKVCache other_heads(
      ElementType::kF16,
      {.num_layers = kLayers, .num_kv_heads = 1, .max_seq_len = 50, .head_dim = 3 * kHeadDim});
  refused("1 KV heads of 15", [&] { import_sequence(other_heads, 0, bytes, 1); });
  PagedKVCache<f16> windowed({.num_layers = kLayers,
                              .num_kv_heads = kHeads,
                              .max_seq_len = 50,
                              .head_dim = kHeadDim,
                              .window = {10}});
  expect_error(ErrorCode::kUnsupported, "got one with a window of 10",
               [&] { import_sequence(windowed, 0, bytes, 1); });
}

TEST(SequenceState, GoesThroughAFile) {
  const support::TemporaryDirectory directory;
  const auto path = directory / "chat.state";
  ContiguousKVCache cache = contiguous(ElementType::kInt8);
  fill(cache, 0);
  save_sequence(path, cache, 0, tokens(), kFingerprint);
  EXPECT_EQ(load_sequence(path, cache, 1, kFingerprint), tokens());
  expect_same_rows(cache, 0, cache, 1);
  std::ofstream(path, std::ios::app) << "x";
  cache.release(1);
  expect_error(ErrorCode::kFormat, "truncated or altered",
               [&] { load_sequence(path, cache, 1, kFingerprint); });
  expect_error(ErrorCode::kIo, "cannot open",
               [&] { load_sequence(directory / "none", cache, 1, kFingerprint); });
  expect_error(ErrorCode::kIo, "cannot create", [&] {
    save_sequence(directory / "no" / "where", cache, 0, tokens(), kFingerprint);
  });
}

TEST(SequenceState, SavingReplacesTheOldFileAsAWhole) {
  const support::TemporaryDirectory directory;
  const auto path = directory / "chat.state";
  ContiguousKVCache cache = contiguous(ElementType::kF16);
  fill(cache, 0);
  save_sequence(path, cache, 0, tokens(), 1);
  const MappedFile old(path);
  const std::vector<std::byte> before(old.bytes().begin(), old.bytes().end());
  save_sequence(path, cache, 0, tokens(), 2);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), old.bytes().begin()))
      << "whoever reads the old file must keep it";
  EXPECT_EQ(load_sequence(path, cache, 1, 2), tokens());
}

}  // namespace
}  // namespace kvick
