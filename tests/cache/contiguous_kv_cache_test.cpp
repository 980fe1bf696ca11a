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
#include "kvick/core/half.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::expect_error;

// One row [head_dim] at the front of `bytes`, as floats.
std::vector<float> decode(ElementType type, const std::byte* bytes, int head_dim) {
  std::vector<float> row(static_cast<std::size_t>(head_dim));
  for (std::size_t i = 0; i < row.size(); ++i) {
    std::uint16_t half = 0;
    switch (type) {
      case ElementType::kF32: std::memcpy(&row[i], bytes + 4 * i, 4); break;
      case ElementType::kF16:
        std::memcpy(&half, bytes + 2 * i, 2);
        row[i] = static_cast<float>(f16::from_bits(half));
        break;
      case ElementType::kBF16:
        std::memcpy(&half, bytes + 2 * i, 2);
        row[i] = static_cast<float>(bf16::from_bits(half));
        break;
    }
  }
  return row;
}

float rounded(ElementType type, float x) {
  if (type == ElementType::kF16) return static_cast<float>(f16(x));
  if (type == ElementType::kBF16) return static_cast<float>(bf16(x));
  return x;
}

std::vector<float> key_at(const KVStorage& cache, int layer, int sequence, int head, int position) {
  return decode(cache.element_type(), cache.run(layer, sequence, head, position).keys,
                cache.head_dim());
}

std::vector<float> value_at(const KVStorage& cache, int layer, int sequence, int head,
                            int position) {
  return decode(cache.element_type(), cache.run(layer, sequence, head, position).values,
                cache.head_dim());
}

std::vector<TokenId> tokens(int count) {
  return std::vector<TokenId>(static_cast<std::size_t>(count));
}

constexpr KVCacheOptions kSmall{
    .num_layers = 2, .batch_size = 3, .num_kv_heads = 2, .max_seq_len = 4, .head_dim = 2};

using Row = std::vector<float>;

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
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
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

// ---- Random calls against a model that keeps every row as a vector of its own ----

class NaiveCache {
 public:
  struct Token {
    Row keys, values;  // [kv_heads * head_dim], rounded
  };
  struct Sequence {
    int length = 0;
    int reserved = 0;
    std::vector<std::vector<std::optional<Token>>> layers;  // [layers][reserved]

    void resize(int size) {
      reserved = size;
      for (auto& rows : layers) rows.resize(static_cast<std::size_t>(size));
    }
  };

  explicit NaiveCache(const KVCacheOptions& options)
      : sequences(static_cast<std::size_t>(options.batch_size)) {
    for (auto& sequence : sequences) {
      sequence.layers.resize(static_cast<std::size_t>(options.num_layers));
    }
  }

  std::vector<Sequence> sequences;
};

class ContiguousKVCacheOfType : public ::testing::TestWithParam<ElementType> {
 protected:
  static constexpr KVCacheOptions kOptions{
      .num_layers = 3, .batch_size = 4, .num_kv_heads = 2, .max_seq_len = 9, .head_dim = 3};

  int up_to(int limit) { return std::uniform_int_distribution<int>(0, limit)(random_); }

  Matrix random_rows(int num_rows) {
    std::uniform_real_distribution<float> values(-4, 4);
    return Matrix::NullaryExpr(num_rows, 6, [&] { return values(random_); });
  }

  Row rounded_row(const Matrix& rows, int row) {
    Row out;
    for (int i = 0; i < 6; ++i) out.push_back(rounded(GetParam(), rows(row, i)));
    return out;
  }

  void reserve(int s) {
    auto& model = model_.sequences[static_cast<std::size_t>(s)];
    const int num_tokens = up_to(6);
    const bool fits = model.length + num_tokens <= kOptions.max_seq_len;
    ASSERT_EQ(cache_.reserve(s, num_tokens), fits);
    if (fits) model.resize(std::max(model.reserved, model.length + num_tokens));
  }

  void write(int s) {
    auto& model = model_.sequences[static_cast<std::size_t>(s)];
    const int position = model.length + up_to(model.reserved - model.length);
    const int count = up_to(model.reserved - position);
    const int layer = up_to(kOptions.num_layers - 1);
    const Matrix keys = random_rows(count), values = random_rows(count);
    cache_.write(layer, s, position, keys, values);
    for (int i = 0; i < count; ++i) {
      model.layers[static_cast<std::size_t>(layer)][static_cast<std::size_t>(position + i)] = {
          rounded_row(keys, i), rounded_row(values, i)};
    }
  }

  void commit(int s) {
    auto& model = model_.sequences[static_cast<std::size_t>(s)];
    const int count = up_to(model.reserved - model.length);
    cache_.commit(s, tokens(count));
    model.length += count;
  }

  void truncate(int s) {
    auto& model = model_.sequences[static_cast<std::size_t>(s)];
    const int length = up_to(model.length);
    cache_.truncate(s, length);
    model.length = length;
    model.resize(length);
  }

  void release(int s) {
    auto& model = model_.sequences[static_cast<std::size_t>(s)];
    cache_.release(s);
    model.length = 0;
    model.resize(0);
  }

  void fork(int from, int to) {
    if (from == to) return;
    release(to);
    cache_.fork(from, to);
    auto& model = model_.sequences[static_cast<std::size_t>(to)];
    model = model_.sequences[static_cast<std::size_t>(from)];
    model.resize(model.length);
  }

  void compare() const {
    for (int s = 0; s < kOptions.batch_size; ++s) {
      const auto& model = model_.sequences[static_cast<std::size_t>(s)];
      ASSERT_EQ(cache_.length(s), model.length);
      ASSERT_EQ(cache_.reserved(s), model.reserved);
      for (int layer = 0; layer < kOptions.num_layers; ++layer) {
        for (int position = 0; position < model.reserved; ++position) {
          const auto& token =
              model.layers[static_cast<std::size_t>(layer)][static_cast<std::size_t>(position)];
          if (token) compare_token(*token, layer, s, position);
        }
      }
    }
  }

  void compare_token(const NaiveCache::Token& token, int layer, int s, int position) const {
    Row keys, values;
    for (int head = 0; head < kOptions.num_kv_heads; ++head) {
      // Through the run that starts at 0, as readers do it.
      const KVRun run = cache_.run(layer, s, head, 0);
      ASSERT_GT(run.num_tokens, position);
      const auto offset = position * run.stride_bytes;
      for (const float x : decode(GetParam(), run.keys + offset, 3)) keys.push_back(x);
      for (const float x : decode(GetParam(), run.values + offset, 3)) values.push_back(x);
    }
    ASSERT_EQ(keys, token.keys) << "layer " << layer << " sequence " << s << " at " << position;
    ASSERT_EQ(values, token.values) << "layer " << layer << " sequence " << s << " at " << position;
  }

  static constexpr unsigned kSeed = 20240817;
  std::mt19937 random_{kSeed};
  ContiguousKVCache cache_{GetParam(), kOptions};
  NaiveCache model_{kOptions};
};

TEST_P(ContiguousKVCacheOfType, EqualsANaiveModelUnderRandomCalls) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  for (int step = 0; step < 3000; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    const int s = up_to(kOptions.batch_size - 1);
    switch (up_to(11)) {
      case 0: truncate(s); break;
      case 1: release(s); break;
      case 2: fork(s, up_to(kOptions.batch_size - 1)); break;
      case 3:
      case 4: reserve(s); break;
      case 5:
      case 6: commit(s); break;
      default: write(s);
    }
    ASSERT_NO_FATAL_FAILURE(compare());
  }
}

INSTANTIATE_TEST_SUITE_P(Cache, ContiguousKVCacheOfType,
                         ::testing::Values(ElementType::kF32, ElementType::kF16,
                                           ElementType::kBF16),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace kvick
