// SPDX-License-Identifier: MIT
#include "kvick/cache/kv_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/expect_error.hpp"
#include "kvick/core/half.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::expect_error;

using Shape = std::array<Index, 4>;

constexpr KVCacheOptions kSmall{
    .num_layers = 3, .batch_size = 2, .num_kv_heads = 2, .max_seq_len = 5, .head_dim = 2};

// first, first + 1, ...: the rows [2][2][num_tokens][2] of kSmall.
std::vector<float> count_from(float first, int num_tokens) {
  std::vector<float> rows(static_cast<std::size_t>(8 * num_tokens));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

// One whole step of kSmall with the same rows in every layer.
template <class Cache>
void step(Cache& cache, float first, int num_tokens) {
  const auto rows = count_from(first, num_tokens);
  for (int layer = 0; layer < cache.num_layers(); ++layer) cache.update(layer, rows, rows);
}

TEST(KVCache, KeepsRowsWhereTheTextbookPutsThem) {
  KVCache<float> cache(kSmall);
  const auto k = count_from(0, 2), v = count_from(100, 2);
  for (int layer : {0, 1, 2}) cache.update(layer, k, v);
  step(cache, 1000, 1);

  EXPECT_EQ(cache.length(), 3);
  const auto [keys, values] = cache.get(2);
  EXPECT_EQ(keys.shape(), (Shape{2, 2, 3, 2}));
  EXPECT_EQ(values.shape(), (Shape{2, 2, 3, 2}));
  // k is [batch 2][heads 2][tokens 2][dim 2]: batch 1, head 0, token 1, dim 0 is its element 10.
  EXPECT_EQ(keys(0, 0, 0, 0), 0);
  EXPECT_EQ(keys(0, 0, 1, 1), 3);
  EXPECT_EQ(keys(0, 1, 0, 0), 4);
  EXPECT_EQ(keys(1, 0, 1, 0), 10);
  EXPECT_EQ(values(1, 1, 1, 1), 115);
  // The second step has one token: batch 1, head 1, dim 0 is its element 6.
  EXPECT_EQ(keys(0, 0, 2, 0), 1000);
  EXPECT_EQ(keys(1, 1, 2, 0), 1006);
}

TEST(KVCache, AllLayersOfAStepWriteAtTheSameOffset) {
  // The classic fault is to move the length while layer 0 is updated: the other layers then write
  // one step too far, and layer 1 shows a row of zeros.
  KVCache<float> cache(kSmall);
  step(cache, 1, 1);
  for (const int layer : {0, 1, 2}) {
    EXPECT_EQ(cache.length(), 1) << "before layer " << layer;
    EXPECT_EQ(cache.layer_length(layer), 1);
    EXPECT_EQ(cache.get(layer).keys.shape(), (Shape{2, 2, 1, 2}));
    const auto rows = count_from(static_cast<float>(100 * (layer + 1)), 2);
    cache.update(layer, rows, rows);
    if (layer == 2) break;
    EXPECT_EQ(cache.layer_length(layer), 3) << "includes the rows just written";
    EXPECT_EQ(cache.get(layer).keys.shape(), (Shape{2, 2, 3, 2}));
    EXPECT_EQ(cache.get(layer).keys(0, 0, 1, 0), static_cast<float>(100 * (layer + 1)));
  }
  EXPECT_EQ(cache.length(), 3);
  for (const int layer : {0, 1, 2}) {
    EXPECT_EQ(cache.get(layer).keys(0, 0, 0, 0), 1);
    EXPECT_EQ(cache.get(layer).keys(0, 0, 1, 0), static_cast<float>(100 * (layer + 1)));
    EXPECT_EQ(cache.get(layer).values(1, 1, 2, 1), static_cast<float>(100 * (layer + 1) + 15));
  }
}

TEST(KVCache, LayersMayComeInAnyOrder) {
  KVCache<float> cache(kSmall);
  for (const auto& order : {std::array{2, 0, 1}, std::array{1, 2, 0}}) {
    const int before = cache.length();
    for (const int layer : order) {
      EXPECT_EQ(cache.length(), before);
      const auto rows = count_from(static_cast<float>(layer), 1);
      cache.update(layer, rows, rows);
    }
    EXPECT_EQ(cache.length(), before + 1);
    for (const int layer : order) {
      EXPECT_EQ(cache.get(layer).keys(0, 0, before, 0), static_cast<float>(layer));
    }
  }
}

TEST(KVCache, ViewsGiveHeadsAsMatricesOrRows) {
  KVCache<float> floats(kSmall);
  KVCache<f16> halves(kSmall);
  step(floats, 0, 3);
  step(halves, 0, 3);
  const auto head = floats.get(0).keys.head(1, 0);  // elements 12 .. 17 of the step
  const auto rows = halves.get(0).keys.head(1, 0);
  EXPECT_EQ(head, (Matrix(3, 2) << 12, 13, 14, 15, 16, 17).finished());
  ASSERT_EQ(rows.rows(), 3);
  ASSERT_EQ(rows.cols(), 2);
  for (Index token = 0; token < 3; ++token) {
    ASSERT_EQ(rows.row(token).size(), 2u);
    EXPECT_EQ(rows.row(token)[0], f16(head(token, 0)));
    EXPECT_EQ(rows.row(token)[1], f16(head(token, 1)));
  }
}

TEST(KVCache, TakesEigenMatrices) {
  const KVCacheOptions options{.num_layers = 1, .num_kv_heads = 2, .max_seq_len = 8, .head_dim = 3};
  const auto element = [](const KVCache<float>& cache, int head, int token, int dim) {
    return cache.get(0).keys(0, head, token, dim);
  };

  KVCache<float> cache(options);
  Matrix rows(4, 3);  // [heads 2 * tokens 2, dim 3]
  rows << 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12;
  cache.update(0, rows, 2 * rows);  // a matrix and an expression
  EXPECT_EQ(cache.length(), 2);
  EXPECT_EQ(element(cache, 0, 1, 0), 4);
  EXPECT_EQ(element(cache, 1, 0, 2), 9);
  EXPECT_EQ(cache.get(0).values(0, 1, 1, 2), 24);

  const Matrix projection = rows.reshaped<Eigen::RowMajor>(2, 6);
  cache.update(0, projection.row(1), projection.row(0));  // [batch 1, heads 2 * dim 3]: one token
  EXPECT_EQ(cache.length(), 3);
  EXPECT_EQ(element(cache, 0, 2, 0), 7);
  EXPECT_EQ(element(cache, 1, 2, 2), 12);

  const Vector column = projection.row(0).transpose();
  cache.update(0, column, column);
  EXPECT_EQ(element(cache, 1, 3, 0), 4);

  const Eigen::Map<const Matrix> map(rows.data(), 2, 3);
  cache.update(0, map, map);
  EXPECT_EQ(element(cache, 1, 4, 0), 4);

  const Matrix wide = (Matrix(2, 4) << 1, 2, 3, 99, 4, 5, 6, 99).finished();
  const Eigen::MatrixXf column_major = wide.leftCols(3);
  cache.update(0, wide.leftCols(3), column_major);
  EXPECT_EQ(element(cache, 1, 5, 2), 6);
  EXPECT_EQ(cache.get(0).values(0, 1, 5, 2), 6);

  // Two tokens as a projection yields them are in another order than [heads][tokens].
  expect_error(ErrorCode::kShape,
               "must be [new_tokens * 2, 3] or, for one new token, [1, 6], got [2, 6]",
               [&] { cache.update(0, projection, projection); });
}

TEST(KVCache, TakesTheProjectionsOfABatch) {
  KVCache<float> cache(kSmall);
  Matrix k(2, 5);  // [batch 2, heads 2 * dim 2], and a column that does not belong to it
  k << 1, 2, 3, 4, 99, 5, 6, 7, 8, 99;
  for (int layer : {0, 1, 2}) cache.update(layer, k.leftCols(4), k.leftCols(4));
  const auto keys = cache.get(1).keys;
  EXPECT_EQ(keys(0, 1, 0, 0), 3);
  EXPECT_EQ(keys(1, 0, 0, 1), 6);
  EXPECT_EQ(keys(1, 1, 0, 1), 8);
}

TEST(KVCache, RefusesAStepThatDoesNotHoldTogether) {
  KVCache<float> cache(kSmall);
  step(cache, 1, 1);
  const auto two = count_from(50, 2), one = count_from(70, 1);
  cache.update(1, two, two);
  expect_error(ErrorCode::kArgument, "got layer 1 again with 2 layers to go",
               [&] { cache.update(1, two, two); });
  expect_error(ErrorCode::kShape, "the same number of new tokens, got 1 in layer 0 after 2",
               [&] { cache.update(0, one, one); });
  // The step goes on as if nothing had happened.
  cache.update(0, two, two);
  cache.update(2, two, two);
  EXPECT_EQ(cache.length(), 3);
  EXPECT_EQ(cache.get(1).keys(0, 0, 1, 0), 50);
  EXPECT_EQ(cache.get(0).keys(0, 0, 2, 0), 52);
}

TEST(KVCache, RefusesWrongSizesAndLayers) {
  KVCache<float> cache(kSmall);
  const auto rows = count_from(0, 1);
  const std::vector<float> none, odd(12), two(16);
  const auto shape = [&](const std::string& part, const auto& k, const auto& v) {
    expect_error(ErrorCode::kShape, part, [&] { cache.update(0, k, v); });
  };
  shape("new_tokens * 2 sequences * 2 KV heads * 2 floats, got 8 and 16", rows, two);
  shape("floats, got 12 and 12", odd, odd);
  shape("at least one new token, got none", none, none);
  shape("the same new tokens, got 1 and 2", Matrix(4, 2), Matrix(8, 2));
  shape("got [3, 2]", Matrix(3, 2), Matrix(4, 2));
  shape("got [0, 0]", Matrix(), Matrix());
  for (const int bad : {-1, 3}) {
    const std::string part = "layer must be in [0, 3), got " + std::to_string(bad);
    expect_error(ErrorCode::kArgument, part, [&] { cache.update(bad, rows, rows); });
    expect_error(ErrorCode::kArgument, part, [&] { cache.get(bad); });
    expect_error(ErrorCode::kArgument, part, [&] { cache.layer_length(bad); });
  }
  step(cache, 0, 5);  // none of the above has begun a step of another size
  EXPECT_EQ(cache.length(), 5);
}

TEST(KVCache, AFullCacheRefusesAndGoesOn) {
  KVCache<float> cache(kSmall);
  step(cache, 1, 4);
  const auto two = count_from(90, 2);
  expect_error(ErrorCode::kCapacity, "length 4 + 2 new tokens exceeds max_seq_len 5",
               [&] { cache.update(0, two, two); });
  EXPECT_EQ(cache.length(), 4);
  EXPECT_EQ(cache.layer_length(0), 4);
  EXPECT_EQ(cache.reserved(0), 4);
  step(cache, 50, 1);
  EXPECT_EQ(cache.length(), 5);
  EXPECT_EQ(cache.get(0).keys(0, 0, 3, 0), 7) << "row 3 of the first step is intact";
  EXPECT_EQ(cache.get(0).keys(0, 0, 4, 0), 50);
  const auto one = count_from(90, 1);
  expect_error(ErrorCode::kCapacity, "length 5 + 1 new tokens", [&] { cache.update(0, one, one); });
}

TEST(KVCache, TruncateRollsBackRejectedTokens) {
  KVCache<float> cache(kSmall);
  step(cache, 1, 4);
  cache.truncate(cache.length() - 3);
  EXPECT_EQ(cache.length(), 1);
  EXPECT_EQ(cache.get(0).keys.shape(), (Shape{2, 2, 1, 2}));
  step(cache, 70, 1);
  EXPECT_EQ(cache.get(2).keys(0, 0, 0, 0), 1);
  EXPECT_EQ(cache.get(2).keys(0, 0, 1, 0), 70);
  expect_error(ErrorCode::kArgument, "length must be in [0, 2] of sequence 0, got 3",
               [&] { cache.truncate(3); });
  expect_error(ErrorCode::kArgument, "got -1", [&] { cache.truncate(-1); });
  EXPECT_EQ(cache.length(), 2);
  cache.clear();
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(cache.get(0).keys.shape(), (Shape{2, 2, 0, 2}));
}

TEST(KVCache, TruncateAbandonsAnUnfinishedStep) {
  KVCache<float> cache(kSmall);
  step(cache, 1, 1);
  const auto two = count_from(50, 2), one = count_from(70, 1);
  cache.update(0, two, two);
  cache.truncate(cache.length());
  EXPECT_EQ(cache.length(), 1);
  EXPECT_EQ(cache.layer_length(0), 1);
  EXPECT_EQ(cache.reserved(1), 1);
  for (int layer : {0, 1, 2}) cache.update(layer, one, one);  // another size, layer 0 once more
  EXPECT_EQ(cache.length(), 2);
  EXPECT_EQ(cache.get(0).keys(0, 0, 1, 0), 70);
}

TEST(KVCache, NeedsSequencesOfOneLength) {
  KVCache<float> cache(kSmall);
  const auto one = count_from(0, 1);
  ASSERT_TRUE(cache.reserve(1, 1));
  for (int layer : {0, 1, 2}) cache.write(layer, 1, 0, Matrix::Ones(1, 4), Matrix::Ones(1, 4));
  cache.commit(1, std::array<TokenId, 1>{7});
  EXPECT_EQ(cache.length(1), 1);

  const std::string part =
      "all sequences must have one length, got 0 in sequence 0 and 1 in sequence 1";
  expect_error(ErrorCode::kArgument, part, [&] { cache.length(); });
  expect_error(ErrorCode::kArgument, part, [&] { cache.layer_length(0); });
  expect_error(ErrorCode::kArgument, part, [&] { cache.get(0); });
  expect_error(ErrorCode::kArgument, part, [&] { cache.update(0, one, one); });
  expect_error(ErrorCode::kArgument, "[0, 0] of sequence 0, got 1", [&] { cache.truncate(1); });
  EXPECT_EQ(cache.length(1), 1);

  cache.fork(1, 0);
  step(cache, 5, 1);
  EXPECT_EQ(cache.length(), 2);
  EXPECT_EQ(cache.get(0).keys(0, 0, 0, 0), 1);
}

TEST(KVCache, NoticesWhenSequencesChangeDuringAStep) {
  const auto one = count_from(0, 1);
  const std::string part = "sequence 1 must stay at length 2 with positions below 3 reserved";
  for (const int change : {0, 1, 2}) {
    KVCache<float> cache(kSmall);
    step(cache, 0, 2);
    cache.update(0, one, one);
    if (change == 0) cache.truncate(1, 2);  // drops the reservation, and with it the step's rows
    if (change == 1) cache.release(1);
    if (change == 2) cache.commit(1, std::array<TokenId, 1>{7});
    expect_error(ErrorCode::kArgument, part, [&] { cache.update(1, one, one); });
    expect_error(ErrorCode::kArgument, part, [&] { cache.get(1); });
    cache.clear();
    step(cache, 0, 3);
    EXPECT_EQ(cache.length(), 3);
  }
}

TEST(KVCache, IsAStorageForAForwardPassToo) {
  KVCache<bf16> cache(kSmall);
  step(cache, 3, 2);
  const KVStorage& storage = cache;
  EXPECT_EQ(storage.element_type(), ElementType::kBF16);
  EXPECT_EQ(storage.num_layers(), 3);
  EXPECT_EQ(storage.num_sequences(), 2);
  EXPECT_EQ(storage.num_kv_heads(), 2);
  EXPECT_EQ(storage.max_seq_len(), 5);
  EXPECT_EQ(storage.head_dim(), 2);
  EXPECT_EQ(storage.length(1), 2);
  const KVRun run = storage.run(0, 1, 1, 1);
  EXPECT_EQ(run.num_tokens, 1);
  EXPECT_EQ(*reinterpret_cast<const bf16*>(run.keys), bf16(17));  // element 14 of the step
}

TEST(KVCache, MovesWithItsRows) {
  KVCache<float> cache(kSmall);
  step(cache, 1, 2);
  KVCache<float> other(std::move(cache));
  EXPECT_EQ(other.length(), 2);
  EXPECT_EQ(other.get(0).keys(0, 0, 0, 0), 1);
  static_assert(!std::is_copy_constructible_v<KVCache<float>>);
}

TEST(KVCache, UpdateDoesNotAllocate) {
  KVCache<f16> cache(kSmall);
  const auto rows = count_from(0, 1);
  const Matrix matrix = Matrix::Random(4, 2);
  const auto before = support::num_allocations();
  for (int layer : {0, 1, 2}) cache.update(layer, rows, rows);
  for (int layer : {0, 1, 2}) cache.update(layer, matrix, matrix);
  const auto [keys, values] = cache.get(0);
  cache.truncate(1);
  cache.clear();
  EXPECT_EQ(support::num_allocations(), before);
  EXPECT_EQ(keys.shape(), values.shape());
}

// ---- Random steps against a model that keeps each layer as a vector of tokens ----

template <class T>
class KVCacheOf : public ::testing::Test {
 protected:
  using Token = std::vector<T>;  // [batch][kv_heads][head_dim]
  struct Layer {
    std::vector<Token> keys, values;
  };

  static constexpr KVCacheOptions kOptions{
      .num_layers = 4, .batch_size = 2, .num_kv_heads = 3, .max_seq_len = 12, .head_dim = 5};
  static constexpr std::size_t kTokenSize = 2 * 3 * 5;

  int up_to(int limit) { return std::uniform_int_distribution<int>(0, limit)(random_); }

  std::vector<float> random_rows(int num_tokens) {
    std::uniform_real_distribution<float> values(-9, 9);
    std::vector<float> rows(kTokenSize * static_cast<std::size_t>(num_tokens));
    for (float& x : rows) x = values(random_);
    return rows;
  }

  static void append(std::vector<Token>& tokens, const std::vector<float>& rows, int num_tokens) {
    for (int t = 0; t < num_tokens; ++t) {
      Token token;
      for (int head = 0; head < 2 * 3; ++head) {
        for (int d = 0; d < 5; ++d) {
          token.push_back(T(rows[static_cast<std::size_t>((head * num_tokens + t) * 5 + d)]));
        }
      }
      tokens.push_back(token);
    }
  }

  std::size_t length() const { return static_cast<std::size_t>(length_); }

  // A layer is updated in this step if it has more tokens than the others keep.
  bool is_updated(int layer) const {
    return layers_[static_cast<std::size_t>(layer)].keys.size() > length();
  }

  void update() {
    const int layer = up_to(kOptions.num_layers - 1);
    const int num_tokens = 1 + up_to(3);
    const auto k = random_rows(num_tokens), v = random_rows(num_tokens);
    const bool allowed = length_ + num_tokens <= kOptions.max_seq_len && !is_updated(layer) &&
                         (step_tokens_ == 0 || num_tokens == step_tokens_);
    try {
      cache_.update(layer, k, v);
      ASSERT_TRUE(allowed);
    } catch (const Error& error) {
      ASSERT_FALSE(allowed) << error.what();
      return;
    }
    step_tokens_ = num_tokens;
    append(layers_[static_cast<std::size_t>(layer)].keys, k, num_tokens);
    append(layers_[static_cast<std::size_t>(layer)].values, v, num_tokens);
    for (int i = 0; i < kOptions.num_layers; ++i) {
      if (!is_updated(i)) return;
    }
    length_ += num_tokens;
    step_tokens_ = 0;
  }

  void truncate(int length) {
    cache_.truncate(length);
    length_ = length;
    step_tokens_ = 0;
    for (Layer& layer : layers_) {
      layer.keys.resize(this->length());
      layer.values.resize(this->length());
    }
  }

  void compare() const {
    ASSERT_EQ(cache_.length(), length_);
    for (int i = 0; i < kOptions.num_layers; ++i) {
      const Layer& layer = layers_[static_cast<std::size_t>(i)];
      const auto num_tokens = static_cast<Index>(layer.keys.size());
      ASSERT_EQ(cache_.layer_length(i), num_tokens);
      const auto [keys, values] = cache_.get(i);
      ASSERT_EQ(keys.shape(), (Shape{2, 3, num_tokens, 5}));
      ASSERT_EQ(values.shape(), (Shape{2, 3, num_tokens, 5}));
      for (Index t = 0; t < num_tokens; ++t) {
        ASSERT_EQ(token_of(keys, t), layer.keys[static_cast<std::size_t>(t)]) << i << " at " << t;
        ASSERT_EQ(token_of(values, t), layer.values[static_cast<std::size_t>(t)])
            << i << " at " << t;
      }
    }
  }

  static Token token_of(const KVView<T>& view, Index t) {
    Token token;
    for (int b = 0; b < 2; ++b) {
      for (int h = 0; h < 3; ++h) {
        for (int d = 0; d < 5; ++d) token.push_back(view(b, h, t, d));
      }
    }
    return token;
  }

  static constexpr unsigned kSeed = 4711;
  std::mt19937 random_{kSeed};
  KVCache<T> cache_{kOptions};
  std::vector<Layer> layers_{4};
  int length_ = 0;
  int step_tokens_ = 0;
};

using ElementTypes = ::testing::Types<float, f16, bf16>;
TYPED_TEST_SUITE(KVCacheOf, ElementTypes);

TYPED_TEST(KVCacheOf, EqualsANaiveModelUnderRandomCalls) {
  SCOPED_TRACE(::testing::Message() << "seed " << this->kSeed);
  int num_steps = 0;
  for (int call = 0; call < 3000; ++call) {
    SCOPED_TRACE(::testing::Message() << "call " << call);
    const int before = this->length_;
    if (this->up_to(24) == 0) {
      this->truncate(this->up_to(this->length_));
    } else {
      ASSERT_NO_FATAL_FAILURE(this->update());
    }
    num_steps += this->length_ > before;
    ASSERT_NO_FATAL_FAILURE(this->compare());
  }
  EXPECT_GT(num_steps, 50) << "the calls must reach complete steps to test anything";
}

// The largest magnitude of a row is 127 times its scale.
TEST(KVCache, ViewsOfIntegersComeWithTheirScales) {
  KVCache<std::int8_t> cache(
      {.num_layers = 1, .batch_size = 2, .num_kv_heads = 2, .max_seq_len = 3, .head_dim = 3});
  const std::vector<float> k = {127, -1, 0, 1, 1, 1, -254, 2, 4, 0, 0, 0};
  const std::vector<float> v(12, -12.7f);
  cache.update(0, k, v);
  const auto [keys, values] = cache.get(0);
  EXPECT_EQ(keys(0, 0, 0, 0), 127);
  EXPECT_EQ(keys(0, 0, 0, 1), -1);
  EXPECT_EQ(keys.scale(0, 0, 0), 1.0f);
  EXPECT_EQ(keys(0, 1, 0, 2), 127);
  EXPECT_EQ(keys.scale(0, 1, 0), 1.0f / 127.0f);
  EXPECT_EQ(keys.head(1, 0).row(0)[0], -127);
  EXPECT_EQ(keys.head(1, 0).row(0)[2], 2);
  EXPECT_EQ(keys.scale(1, 0, 0), 2.0f);
  EXPECT_EQ(keys.scale(1, 1, 0), 0.0f);
  EXPECT_EQ(values(1, 1, 0, 0), -127);
  EXPECT_EQ(values.scale(1, 1, 0), 12.7f / 127.0f);
}

}  // namespace
}  // namespace kvick
