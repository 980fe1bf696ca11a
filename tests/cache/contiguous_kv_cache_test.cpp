// SPDX-License-Identifier: MIT
#include "kvick/cache/contiguous_kv_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/expect_error.hpp"
#include "cache/stored_rows.hpp"
#include "support/allocation_counter.hpp"
#include "support/fp_mode.hpp"
#include "support/resident_memory.hpp"

namespace kvick {
namespace {

using support::decode;
using support::expect_error;
using support::key_at;
using support::Row;
using support::value_at;

std::vector<TokenId> tokens(int count) {
  return std::vector<TokenId>(static_cast<std::size_t>(count));
}

constexpr KVCacheOptions kSmall{
    .num_layers = 2, .batch_size = 3, .num_kv_heads = 2, .max_seq_len = 4, .head_dim = 2};

TEST(ContiguousKVCache, StoresEachHeadOfEachToken) {
  ContiguousKVCache cache(ElementType::kF32, kSmall);
  Matrix keys(2, 4), values(2, 4);  // columns: head 0 dims 0, 1, head 1 dims 0, 1
  keys << 1, 2, 3, 4, 5, 6, 7, 8;
  values << -1, -2, -3, -4, -5, -6, -7, -8;

  ASSERT_TRUE(cache.reserve(1, 2));
  for (int layer : {0, 1}) cache.write(layer, 1, 0, keys * (layer + 1), values);
  cache.commit(1, tokens(2));

  EXPECT_EQ(cache.length(1), 2);
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_EQ(key_at(cache, 0, 1, 0, 0), (Row{1, 2}));
  EXPECT_EQ(key_at(cache, 0, 1, 1, 0), (Row{3, 4}));
  EXPECT_EQ(key_at(cache, 0, 1, 0, 1), (Row{5, 6}));
  EXPECT_EQ(key_at(cache, 1, 1, 1, 1), (Row{14, 16}));
  EXPECT_EQ(value_at(cache, 1, 1, 1, 1), (Row{-7, -8}));
}

TEST(ContiguousKVCache, RunReachesOverRowsNotYetCommitted) {
  ContiguousKVCache cache(ElementType::kF16, kSmall);
  ASSERT_TRUE(cache.reserve(0, 3));
  cache.write(0, 0, 0, Matrix::Constant(3, 4, 1.5f), Matrix::Constant(3, 4, 2.5f));
  const KVRun run = cache.run(0, 0, 1, 1);
  EXPECT_EQ(run.num_tokens, 2);
  EXPECT_EQ(run.stride_bytes, 2 * 2);  // head_dim * sizeof(f16)
  EXPECT_EQ(decode(ElementType::kF16, run.keys + run.stride_bytes, 2), (Row{1.5f, 1.5f}));
  EXPECT_EQ(decode(ElementType::kF16, run.values + run.stride_bytes, 2), (Row{2.5f, 2.5f}));
}

TEST(ContiguousKVCache, ReserveIsAllOrNothing) {
  ContiguousKVCache cache(ElementType::kF32, kSmall);
  EXPECT_TRUE(cache.reserve(0, 3));
  EXPECT_FALSE(cache.reserve(0, 5));
  EXPECT_FALSE(cache.reserve(0, std::numeric_limits<int>::max()));
  EXPECT_EQ(cache.reserved(0), 3);
  cache.commit(0, tokens(1));
  EXPECT_EQ(cache.reserved(0), 3) << "what is left stays reserved";
  EXPECT_TRUE(cache.reserve(0, 1));
  EXPECT_EQ(cache.reserved(0), 3) << "an earlier, larger reservation stays";
  EXPECT_TRUE(cache.reserve(0, 3));
  EXPECT_EQ(cache.reserved(0), 4);
  EXPECT_FALSE(cache.reserve(0, 4));
  EXPECT_EQ(cache.reserved(1), 0);
}

TEST(ContiguousKVCache, TruncateDropsRowsAndReservation) {
  ContiguousKVCache cache(ElementType::kF32, kSmall);
  ASSERT_TRUE(cache.reserve(2, 4));
  cache.commit(2, tokens(3));
  cache.truncate(2, 1);
  EXPECT_EQ(cache.length(2), 1);
  EXPECT_EQ(cache.reserved(2), 1);
  expect_error(ErrorCode::kCapacity, "0 reserved in sequence 2",
               [&] { cache.commit(2, tokens(1)); });
  EXPECT_TRUE(cache.reserve(2, 3));
}

TEST(ContiguousKVCache, ForkCopiesCommittedRowsAndThenGoesItsOwnWay) {
  ContiguousKVCache cache(ElementType::kBF16, kSmall);
  const Matrix first = Matrix::Constant(1, 4, 1), second = Matrix::Constant(1, 4, 2);
  ASSERT_TRUE(cache.reserve(0, 3));
  for (int layer : {0, 1}) cache.write(layer, 0, 0, first, second);
  cache.commit(0, tokens(1));

  cache.fork(0, 2);
  EXPECT_EQ(cache.length(2), 1);
  EXPECT_EQ(cache.reserved(2), 1) << "a reservation is not inherited";
  ASSERT_TRUE(cache.reserve(2, 1));
  cache.write(0, 0, 1, second, second);
  cache.write(0, 2, 1, first, first);
  cache.truncate(0, 0);
  for (int layer : {0, 1}) {
    EXPECT_EQ(key_at(cache, layer, 2, 1, 0), (Row{1, 1}));
    EXPECT_EQ(value_at(cache, layer, 2, 1, 0), (Row{2, 2}));
  }
  EXPECT_EQ(key_at(cache, 0, 2, 0, 1), (Row{1, 1}));
  expect_error(ErrorCode::kArgument, "sequence 2 must be empty, got 1 tokens and 1 reserved",
               [&] { cache.fork(0, 2); });
}

TEST(ContiguousKVCache, MemoryBytesAreExact) {
  const KVCacheOptions options{
      .num_layers = 3, .batch_size = 5, .num_kv_heads = 7, .max_seq_len = 11, .head_dim = 13};
  EXPECT_EQ(ContiguousKVCache(ElementType::kF32, options).memory_bytes(), 2u * 15015 * 4);
  EXPECT_EQ(ContiguousKVCache(ElementType::kF16, options).memory_bytes(), 2u * 15015 * 2);
  EXPECT_EQ(ContiguousKVCache(ElementType::kBF16, options).memory_bytes(), 2u * 15015 * 2);
  // Rows of integers are padded to groups of four and have a scale.
  EXPECT_EQ(ContiguousKVCache(ElementType::kInt8, options).memory_bytes(), 2u * 1155 * (16 + 4));
}

// int8 takes a quarter of f32, and a scale for each key and value.
TEST(ContiguousKVCache, BytesPerTokenAreExact) {
  const KVCacheOptions options{
      .num_layers = 22, .num_kv_heads = 4, .max_seq_len = 100, .head_dim = 64};
  const auto bytes = [&](ElementType type) {
    const ContiguousKVCache cache(type, options);
    EXPECT_EQ(cache.memory_bytes(), 100 * cache.bytes_per_token());
    return cache.bytes_per_token();
  };
  EXPECT_EQ(bytes(ElementType::kF32), 2u * 22 * 4 * 64 * 4);
  EXPECT_EQ(bytes(ElementType::kF16), 2u * 22 * 4 * 64 * 2);
  EXPECT_EQ(bytes(ElementType::kBF16), 2u * 22 * 4 * 64 * 2);
  EXPECT_EQ(bytes(ElementType::kInt8), 2u * 22 * 4 * (64 + 4));
}

// The largest magnitude becomes 127 times the scale, halves go to even.
TEST(ContiguousKVCache, QuantizesEachRowOfAHeadByItsOwnScale) {
  ContiguousKVCache cache(ElementType::kInt8,
                          {.num_layers = 1, .num_kv_heads = 2, .max_seq_len = 4, .head_dim = 5});
  Matrix keys(2, 10), values = Matrix::Zero(2, 10);
  keys << 127, -63.5f, 1.5f, 0.5f, 0.49f, 0, 0, 0, 0, 0,  //
      -2, 1, 0.25f, 0, 2, 1e-35f, 0, 0, 0, 0;
  values(0, 7) = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(cache.reserve(0, 2));
  cache.write(0, 0, 0, keys, values);
  EXPECT_EQ(key_at(cache, 0, 0, 0, 0), (Row{127, -64, 2, 0, 0}));
  EXPECT_EQ(cache.run(0, 0, 0, 0).key_scales[0], 1.0f);
  EXPECT_EQ(key_at(cache, 0, 0, 1, 0), (Row{0, 0, 0, 0, 0}));
  const float scale = 2.0f / 127.0f;
  EXPECT_EQ(key_at(cache, 0, 0, 0, 1), (Row{-127 * scale, 64 * scale, 16 * scale, 0, 127 * scale}));
  EXPECT_EQ(key_at(cache, 0, 0, 1, 1), (Row{0, 0, 0, 0, 0})) << "below 2^-100";
  EXPECT_TRUE(std::isnan(cache.run(0, 0, 1, 0).value_scales[0])) << "not finite";
  EXPECT_EQ(cache.run(0, 0, 0, 1).stride_bytes, 8) << "whole groups of four";
}

TEST(ContiguousKVCache, QuantizesAlikeInEveryFloatingPointMode) {
  const KVCacheOptions options{
      .num_layers = 1, .num_kv_heads = 2, .max_seq_len = 64, .head_dim = 40};
  const Matrix rows = Matrix::Random(64, 80);
  ContiguousKVCache want(ElementType::kInt8, options);
  ASSERT_TRUE(want.reserve(0, 64));
  want.write(0, 0, 0, rows, rows);
  for (const support::FpMode mode : support::foreign_fp_modes()) {
    ContiguousKVCache cache(ElementType::kInt8, options);
    ASSERT_TRUE(cache.reserve(0, 64));
    {
      const support::ScopedFpMode scope(mode);
      cache.write(0, 0, 0, rows, rows);
    }
    for (int position = 0; position < 64; ++position) {
      EXPECT_EQ(key_at(cache, 0, 0, 1, position), key_at(want, 0, 0, 1, position)) << mode;
    }
  }
}

TEST(ContiguousKVCache, RefusesInt8HeadsThatAreTooLong) {
  expect_error(ErrorCode::kUnsupported, "head_dim of an int8 cache must be at most 1024, got 1025",
               [] {
                 ContiguousKVCache cache(
                     ElementType::kInt8,
                     {.num_layers = 1, .num_kv_heads = 1, .max_seq_len = 1, .head_dim = 1025});
               });
}

TEST(ContiguousKVCache, TouchesItsMemoryIfAsked) {
  for (const bool touches : {false, true}) {
    const std::size_t before = support::resident_bytes();
    const ContiguousKVCache cache(ElementType::kF16, {.num_layers = 4,
                                                      .num_kv_heads = 4,
                                                      .max_seq_len = 33000,
                                                      .head_dim = 128,
                                                      .touches_memory = touches});
    const auto grown = static_cast<double>(support::resident_bytes() - before);
    const auto size = static_cast<double>(cache.memory_bytes());  // 258 MiB
    EXPECT_NEAR(grown / size, touches ? 1.0 : 0.0, 0.01);
  }
}

TEST(ContiguousKVCache, RefusesOptionsThatMakeNoSense) {
  for (int KVCacheOptions::*size :
       {&KVCacheOptions::num_layers, &KVCacheOptions::batch_size, &KVCacheOptions::num_kv_heads,
        &KVCacheOptions::max_seq_len, &KVCacheOptions::head_dim}) {
    for (const int value : {0, -1, std::numeric_limits<int>::min()}) {
      KVCacheOptions options = kSmall;
      options.*size = value;
      expect_error(ErrorCode::kArgument, " must be at least 1, got " + std::to_string(value),
                   [&] { ContiguousKVCache cache(ElementType::kF32, options); });
    }
  }
  expect_error(ErrorCode::kArgument, "num_layers must",
               [] { ContiguousKVCache cache(ElementType::kF32, {}); });
}

TEST(ContiguousKVCache, ShowsTheArithmeticOfASizeThatDoesNotFit) {
  // More than 64 bits, and more than an address space (2^62 bytes) that no system grants.
  for (const int layers : {1 << 30, 1 << 10}) {
    const KVCacheOptions options{.num_layers = layers,
                                 .batch_size = 1 << 20,
                                 .num_kv_heads = 8,
                                 .max_seq_len = 1 << 20,
                                 .head_dim = 128};
    expect_error(ErrorCode::kCapacity,
                 "got 2 * " + std::to_string(layers) +
                     " layers * 1048576 sequences * 8 KV heads * 1048576 positions * 128 elements "
                     "* 4 bytes",
                 [&] { ContiguousKVCache cache(ElementType::kF32, options); });
  }
}

TEST(ContiguousKVCache, RefusesBadCallsAndStaysAsItWas) {
  ContiguousKVCache cache(ElementType::kF32, kSmall);
  const Matrix row = Matrix::Constant(1, 4, 1), two = Matrix::Constant(2, 4, 9);
  ASSERT_TRUE(cache.reserve(0, 2));
  cache.write(0, 0, 0, row, row);
  cache.commit(0, tokens(1));

  const auto argument = [&](const std::string& part, auto&& call) {
    expect_error(ErrorCode::kArgument, part, call);
  };
  for (const int bad : {-1, 3}) {
    const std::string part = "sequence must be in [0, 3), got " + std::to_string(bad);
    argument(part, [&] { cache.length(bad); });
    argument(part, [&] { cache.reserved(bad); });
    argument(part, [&] { std::ignore = cache.reserve(bad, 1); });
    argument(part, [&] { cache.commit(bad, tokens(0)); });
    argument(part, [&] { cache.truncate(bad, 0); });
    argument(part, [&] { cache.release(bad); });
    argument(part, [&] { cache.fork(bad, 1); });
    argument(part, [&] { cache.fork(0, bad); });
    argument(part, [&] { cache.write(0, bad, 1, row, row); });
  }
  for (const int bad : {-1, 2}) {
    argument("layer must be in [0, 2), got " + std::to_string(bad),
             [&] { cache.write(bad, 0, 1, row, row); });
  }
  argument("num_tokens must be at least 0, got -1", [&] { std::ignore = cache.reserve(0, -1); });
  argument("length must be in [0, 1] of sequence 0, got 2", [&] { cache.truncate(0, 2); });
  argument("length must be in [0, 1] of sequence 0, got -1", [&] { cache.truncate(0, -1); });
  argument("sequence 0 must be empty", [&] { cache.fork(0, 0); });
  argument("reserved positions [1, 2) of sequence 0, got [0, 1)",
           [&] { cache.write(0, 0, 0, two.row(0), row); });
  argument("reserved positions [1, 2) of sequence 0, got [1, 3)",
           [&] { cache.write(0, 0, 1, two, two); });
  argument("got [2147483647, 2147483649)",
           [&] { cache.write(0, 0, std::numeric_limits<int>::max(), two, two); });
  expect_error(ErrorCode::kShape, "2 heads * 2 = 4 columns, got 3 and 4",
               [&] { cache.write(0, 0, 1, Matrix::Zero(1, 3), row); });
  expect_error(ErrorCode::kShape, "got 2 and 1 rows", [&] { cache.write(0, 0, 1, two, row); });
  expect_error(ErrorCode::kCapacity, "got 2 with 1 reserved in sequence 0",
               [&] { cache.commit(0, tokens(2)); });

  EXPECT_EQ(cache.length(0), 1);
  EXPECT_EQ(cache.reserved(0), 2);
  EXPECT_EQ(key_at(cache, 0, 0, 0, 0), (Row{1, 1}));
}

TEST(ContiguousKVCache, TakesRowsWithAStrideAndColumnMajorOnes) {
  ContiguousKVCache cache(ElementType::kF32, kSmall);
  const Matrix wide = (Matrix(2, 5) << 1, 2, 3, 4, 99, 5, 6, 7, 8, 99).finished();
  const Eigen::MatrixXf column_major = wide.leftCols(4);
  ASSERT_TRUE(cache.reserve(0, 2));
  cache.write(0, 0, 0, wide.leftCols(4), column_major);
  EXPECT_EQ(key_at(cache, 0, 0, 1, 1), (Row{7, 8}));
  EXPECT_EQ(value_at(cache, 0, 0, 1, 1), (Row{7, 8}));
}

TEST(ContiguousKVCache, DoesNotAllocateAfterConstruction) {
  for (const ElementType type :
       {ElementType::kF32, ElementType::kF16, ElementType::kBF16, ElementType::kInt8}) {
    ContiguousKVCache cache(type, kSmall);
    const Matrix rows = Matrix::Random(2, 4);
    const auto ids = tokens(2);
    const auto before = support::num_allocations();
    std::ignore = cache.reserve(0, 2);
    cache.write(0, 0, 0, rows, rows);
    cache.commit(0, ids);
    cache.fork(0, 1);
    cache.truncate(0, 1);
    cache.release(0);
    EXPECT_EQ(support::num_allocations(), before) << name(type);
  }
}

TEST(ContiguousKVCache, ThreadsWriteDifferentRowsAtOnce) {
  ContiguousKVCache cache(ElementType::kF16, kSmall);
  for (int s = 0; s < 3; ++s) ASSERT_TRUE(cache.reserve(s, 4));
  // Thread 0 writes the even positions of every layer and sequence, thread 1 the odd ones.
  const auto write_half = [&](int parity) {
    for (int layer = 0; layer < 2; ++layer) {
      for (int s = 0; s < 3; ++s) {
        for (int position = parity; position < 4; position += 2) {
          const auto x = static_cast<float>(100 * layer + 10 * s + position);
          cache.write(layer, s, position, Matrix::Constant(1, 4, x), Matrix::Constant(1, 4, -x));
        }
      }
    }
  };
  std::thread other([&] { write_half(1); });
  write_half(0);
  other.join();
  for (int layer = 0; layer < 2; ++layer) {
    for (int s = 0; s < 3; ++s) {
      for (int position = 0; position < 4; ++position) {
        const auto x = static_cast<float>(100 * layer + 10 * s + position);
        for (int head : {0, 1}) {
          EXPECT_EQ(key_at(cache, layer, s, head, position), (Row{x, x}));
          EXPECT_EQ(value_at(cache, layer, s, head, position), (Row{-x, -x}));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvick
