// SPDX-License-Identifier: MIT
#include "kvick/nn/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/core/math.hpp"
#include "kvick/reference/attention.hpp"
#include "nn/compute.hpp"
#include "nn/sequence.hpp"
#include "support/allocation_counter.hpp"

namespace kvick {
namespace {

using support::Compute;
using support::expect_error;
using support::random_floats;
using support::random_sequence;
using support::same_bits;
using support::Sequence;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A cache in pages of a few positions: every page lies elsewhere, and a page of keys is not next
/// to its page of values.
class PagedFake : public KVStorage {
 public:
  PagedFake(ElementType type, const KVCacheOptions& sizes, int page_size)
      : KVStorage(type, sizes, "PagedFake"), page_size_(page_size) {
    const int num_pages =
        pages_per_head() * sizes.num_layers * sizes.batch_size * sizes.num_kv_heads;
    place_.resize(static_cast<std::size_t>(num_pages));
    std::iota(place_.begin(), place_.end(), 0);
    std::shuffle(place_.begin(), place_.end(), std::mt19937(7));
    const std::size_t bytes = place_.size() * page_bytes();
    keys_.assign(bytes, std::byte{0xff});  // NaN in every element type
    values_.assign(bytes, std::byte{0xff});
  }

  int length(int) const override { return 0; }
  int reserved(int) const override { return max_seq_len(); }

  void write(int layer, int sequence, int position, ConstMatrixRef keys,
             ConstMatrixRef values) override {
    for (int token = 0; token < static_cast<int>(keys.rows()); ++token) {
      for (int head = 0; head < num_kv_heads(); ++head) {
        const std::size_t at = offset(layer, sequence, head, position + token);
        const Index column = Index{head} * head_dim();
        kernel_table(best_isa())
            .store_elements(element_type(), keys.row(token).data() + column, head_dim(),
                            keys_.data() + at);
        kernel_table(best_isa())
            .store_elements(element_type(), values.row(token).data() + column, head_dim(),
                            values_.data() + at);
      }
    }
  }

  KVRun run(int layer, int sequence, int kv_head, int position) const noexcept override {
    const std::size_t at = offset(layer, sequence, kv_head, position);
    return {keys_.data() + at, values_.data() + at, static_cast<std::ptrdiff_t>(row_bytes()),
            page_size_ - position % page_size_};
  }

 private:
  // Rows are further apart than they are long.
  std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(head_dim() + 2) * size_bytes(element_type());
  }
  std::size_t page_bytes() const noexcept {
    return static_cast<std::size_t>(page_size_) * row_bytes();
  }
  int pages_per_head() const noexcept { return (max_seq_len() - 1) / page_size_ + 1; }
  std::size_t offset(int layer, int sequence, int kv_head, int position) const noexcept {
    const int head = (layer * num_sequences() + sequence) * num_kv_heads() + kv_head;
    const int page = head * pages_per_head() + position / page_size_;
    return static_cast<std::size_t>(place_[static_cast<std::size_t>(page)]) * page_bytes() +
           static_cast<std::size_t>(position % page_size_) * row_bytes();
  }

  int page_size_;
  std::vector<int> place_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
};

ContiguousKVCache make_cache(const AttentionShape& shape, int num_sequences, int max_seq_len,
                             ElementType type = ElementType::kF32) {
  ContiguousKVCache cache(type, {.num_layers = 1,
                                 .batch_size = num_sequences,
                                 .num_kv_heads = shape.num_kv_heads,
                                 .max_seq_len = max_seq_len,
                                 .head_dim = shape.head_dim});
  for (int sequence = 0; sequence < num_sequences; ++sequence) {
    EXPECT_TRUE(cache.reserve(sequence, max_seq_len));
  }
  return cache;
}

/// Outputs of a sequence that comes in chunks. Keys of later chunks are not in the cache yet.
Matrix attend(const AttentionShape& shape, const Sequence& tokens, int chunk, KVStorage& cache,
              const ComputeContext& context) {
  Attention attention(shape, context.pool.num_threads());
  Matrix outputs = Matrix::Constant(tokens.queries.rows(), tokens.queries.cols(), kNan);
  for (int first = 0; first < tokens.length(); first += chunk) {
    const int count = std::min(chunk, tokens.length() - first);
    cache.write(0, 0, first, tokens.keys.middleRows(first, count),
                tokens.values.middleRows(first, count));
    const AttentionSegment segment = {.first_position = first, .num_tokens = count};
    attention.plan({&segment, 1});
    attention.forward(0, tokens.queries.middleRows(first, count), cache,
                      outputs.middleRows(first, count), context);
  }
  return outputs;
}

Matrix attend(const AttentionShape& shape, const Sequence& tokens, int chunk,
              const ComputeContext& context, ElementType type = ElementType::kF32) {
  ContiguousKVCache cache = make_cache(shape, 1, tokens.length(), type);
  return attend(shape, tokens, chunk, cache, context);
}

/// Outputs of the queries at these positions only, each a segment of its own.
Matrix attend_at(const AttentionShape& shape, const Sequence& tokens,
                 const std::vector<int>& positions, const ComputeContext& context) {
  ContiguousKVCache cache = make_cache(shape, 1, tokens.length());
  cache.write(0, 0, 0, tokens.keys, tokens.values);
  std::vector<AttentionSegment> segments;
  for (const int position : positions) {
    segments.push_back(
        {.first_position = position, .first_row = static_cast<Index>(position), .num_tokens = 1});
  }
  Attention attention(shape, context.pool.num_threads());
  attention.plan(segments);
  Matrix outputs = Matrix::Constant(tokens.queries.rows(), tokens.queries.cols(), kNan);
  attention.forward(0, tokens.queries, cache, outputs, context);
  return outputs;
}

/// The operand as a cache of this type keeps it.
Matrix stored_as(ElementType type, Matrix matrix) {
  for (float& value : matrix.reshaped()) {
    if (type == ElementType::kF16) value = static_cast<float>(f16(value));
    if (type == ElementType::kBF16) value = static_cast<float>(bf16(value));
  }
  return matrix;
}

// ---- The documented order of operations, written out once more for one query and head.

struct NaiveState {
  float max = -kInfinity;
  float sums[16] = {};
  std::vector<float> output;
};

float naive_join(const float* s) {
  const auto pair = [&](int i) { return s[i] + s[i + 8]; };
  const auto four = [&](int i) { return pair(i) + pair(i + 4); };
  const auto eight = [&](int i) { return four(i) + four(i + 2); };
  return eight(0) + eight(1);
}

void naive_tile(const float* query, const Matrix& keys, const Matrix& values, int begin, int end,
                Index column, NaiveState& state) {
  const Index head_dim = static_cast<Index>(state.output.size());
  std::vector<float> p(64, -kInfinity);
  float max = state.max;
  for (int j = begin; j < end; ++j) {
    float score = 0;
    for (Index d = 0; d < head_dim; ++d) score = std::fma(query[d], keys(j, column + d), score);
    p[static_cast<std::size_t>(j - begin)] = score;
    max = std::max(max, score);
  }
  max += 0.0f;
  const float rescale = math::exp(state.max - max);
  for (float& weight : p) weight = math::exp(weight - max);
  for (std::size_t i = 0; i < 16; ++i) {
    const float sum = (p[i] + p[i + 16]) + (p[i + 32] + p[i + 48]);
    state.sums[i] = std::fma(state.sums[i], rescale, sum);
  }
  for (Index d = 0; d < head_dim; ++d) {
    float& output = state.output[static_cast<std::size_t>(d)];
    output = output * rescale;
    for (int j = begin; j < end; ++j) {
      output = std::fma(p[static_cast<std::size_t>(j - begin)], values(j, column + d), output);
    }
  }
  state.max = max;
}

void naive_merge(NaiveState& a, const NaiveState& b) {
  const float max = std::max(a.max, b.max);
  const float u = math::exp(a.max - max), v = math::exp(b.max - max);
  for (int i = 0; i < 16; ++i) {
    const float scaled = a.sums[i] * u;
    a.sums[i] = std::fma(b.sums[i], v, scaled);
  }
  for (std::size_t d = 0; d < a.output.size(); ++d) {
    const float scaled = a.output[d] * u;
    a.output[d] = std::fma(b.output[d], v, scaled);
  }
  a.max = max;
}

Matrix naive(const AttentionShape& shape, const Sequence& tokens, float scale) {
  const Index head_dim = shape.head_dim;
  Matrix outputs(tokens.queries.rows(), tokens.queries.cols());
  std::vector<float> query(static_cast<std::size_t>(head_dim));
  for (int position = 0; position < tokens.length(); ++position) {
    for (Index head = 0; head < shape.num_heads; ++head) {
      const Index column = head / (shape.num_heads / shape.num_kv_heads) * head_dim;
      for (Index d = 0; d < head_dim; ++d) {
        query[static_cast<std::size_t>(d)] = tokens.queries(position, head * head_dim + d) * scale;
      }
      NaiveState merged;
      for (int split = 0; split <= position; split += 1024) {
        NaiveState state;
        state.output.resize(query.size());
        const int split_end = std::min(split + 1024, position + 1);
        for (int begin = split; begin < split_end; begin += 64) {
          naive_tile(query.data(), tokens.keys, tokens.values, begin,
                     std::min(begin + 64, split_end), column, state);
        }
        if (split == 0) {
          merged = state;
        } else {
          naive_merge(merged, state);
        }
      }
      const float inverse = 1.0f / naive_join(merged.sums);
      for (Index d = 0; d < head_dim; ++d) {
        outputs(position, head * head_dim + d) =
            merged.output[static_cast<std::size_t>(d)] * inverse;
      }
    }
  }
  return outputs;
}

class AttentionOnEveryIsa : public support::OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, AttentionOnEveryIsa, ::testing::ValuesIn(supported_isas()),
                         support::isa_name);

// ---- Values readable by hand

// Key j is unit vector j, so a query of 200 times unit vector j picks value j: any other weight is
// exp(-200), which is 0 in float.
TEST_P(AttentionOnEveryIsa, AQueryPicksTheValueOfItsKey) {
  Compute compute(GetParam());
  const AttentionShape shape = {1, 1, 4, 1.0f};
  Sequence tokens = {Matrix::Zero(4, 4), Matrix::Identity(4, 4), Matrix(4, 4)};
  tokens.values << 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16;
  tokens.queries(0, 3) = 200;  // key 3 is not visible yet: the only visible one is 0
  tokens.queries(1, 0) = 200;
  tokens.queries(2, 2) = 200;
  tokens.queries(3, 1) = 200;
  Matrix want(4, 4);
  want << 1, 2, 3, 4, 1, 2, 3, 4, 9, 10, 11, 12, 5, 6, 7, 8;
  EXPECT_EQ(attend(shape, tokens, 4, compute.context), want);
}

TEST_P(AttentionOnEveryIsa, HeadsShareTheKeysOfTheirGroup) {
  Compute compute(GetParam());
  const AttentionShape shape = {4, 2, 1, 1.0f};
  Sequence tokens = {Matrix::Zero(2, 4), Matrix(2, 2), Matrix(2, 2)};
  tokens.queries.row(1) << 200, -200, 200, -200;
  tokens.keys << 1, 1, -1, -1;  // heads 0 and 1 read the first KV head, 2 and 3 the second
  tokens.values << 10, 20, 30, 40;
  Matrix want(2, 4);
  want << 10, 10, 20, 20, 10, 30, 20, 40;
  EXPECT_EQ(attend(shape, tokens, 2, compute.context), want);
}

// Equal scores average what is visible. Over 2^n keys nothing rounds, whatever tiles and splits
// they fill: the values are small integers.
TEST_P(AttentionOnEveryIsa, EqualScoresAverageTheVisibleValues) {
  Compute compute(GetParam());
  const AttentionShape shape = {1, 1, 1, 1.0f};
  const int length = 4096;
  Sequence tokens = {Matrix::Zero(length, 1), Matrix::Ones(length, 1), Matrix(length, 1)};
  for (int i = 0; i < length; ++i) tokens.values(i, 0) = static_cast<float>(i);
  std::vector<int> positions;
  for (int count = 1; count <= length; count *= 2) positions.push_back(count - 1);
  const Matrix outputs = attend_at(shape, tokens, positions, compute.context);
  for (int count = 1; count <= length; count *= 2) {
    EXPECT_EQ(outputs(count - 1, 0), static_cast<float>(count - 1) / 2) << count;
  }
}

TEST_P(AttentionOnEveryIsa, ScalesByTheRootOfTheHeadSizeUnlessToldOtherwise) {
  Compute compute(GetParam());
  AttentionShape shape = {1, 1, 16};
  const Sequence tokens = random_sequence(shape, 20, 1);
  EXPECT_EQ(Attention(shape, 1).shape().softmax_scale, 0.25f);
  const Matrix by_default = attend(shape, tokens, 20, compute.context);
  shape.softmax_scale = 0.25f;
  EXPECT_TRUE(same_bits(by_default, attend(shape, tokens, 20, compute.context)));
  shape.softmax_scale = 0.5f;
  EXPECT_FALSE(same_bits(by_default, attend(shape, tokens, 20, compute.context)));
}

// ---- The documented order, over tiles, splits, groups and odd head sizes

TEST_P(AttentionOnEveryIsa, FollowsTheDocumentedOrder) {
  Compute compute(GetParam(), 2);
  struct Case {
    AttentionShape shape;
    int length;
  };
  for (const auto& [shape, length] : std::initializer_list<Case>{{{2, 2, 64}, 130},
                                                                 {{4, 2, 80}, 65},
                                                                 {{7, 1, 5}, 200},
                                                                 {{14, 2, 16}, 70},
                                                                 {{40, 1, 3}, 66},
                                                                 {{1, 1, 3}, 2100}}) {
    SCOPED_TRACE(::testing::Message()
                 << shape.num_heads << "/" << shape.num_kv_heads << " heads of " << shape.head_dim
                 << ", " << length << " tokens");
    const Sequence tokens = random_sequence(shape, length, 2);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
    EXPECT_TRUE(
        same_bits(attend(shape, tokens, length, compute.context), naive(shape, tokens, scale)));
  }
}

// ---- Against the plain layer in double

// u = 2^-24. A score errs by E = (D + 1) u sum |scale q k|: one rounding for the scaled query, D
// for the chain; its distance to the maximum (at most `range`) rounds once more, and exp errs by
// 1.8 u. Every rescaling (at most one per tile and split) is one exp, whose argument rounds, and
// one product. So a weight errs by a fraction of w = E' + (1.8 + range) u + R (2.8 + range) u, with
// E' = 2 E, as two scores meet in a difference. N products and sums add N u to numerator and
// denominator each; reciprocal and last product add 2 u.
TEST_P(AttentionOnEveryIsa, StaysInsideTheBoundOfItsRoundings) {
  constexpr double u = support::kFloatRounding;
  Compute compute(GetParam(), 2);
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    const AttentionShape shape = {2, 1, 24};
    const int length = type == ElementType::kF32 ? 1100 : 200;
    const Sequence tokens = random_sequence(shape, length, 3);
    const Matrix keys = stored_as(type, tokens.keys), values = stored_as(type, tokens.values);
    const Matrix outputs = attend(shape, tokens, length, compute.context, type);
    const double scale = 1 / std::sqrt(24.0);
    const reference::AttentionOptions options = {
        .num_heads = shape.num_heads, .num_kv_heads = shape.num_kv_heads, .scale = scale};
    const auto queries = tokens.queries.cast<double>().eval();
    const auto want = reference::attention(queries, keys, values, options);
    const auto magnitude = reference::attention(queries, keys, values.cwiseAbs().eval(), options);
    const double product = scale * static_cast<double>(tokens.queries.cwiseAbs().maxCoeff()) *
                           static_cast<double>(keys.cwiseAbs().maxCoeff()) * shape.head_dim;
    const double range = 2 * product;
    const double rescalings = length / 64.0 + 2;
    const double weight =
        2 * (shape.head_dim + 1) * u * product + (1.8 + range) * u + rescalings * (2.8 + range) * u;
    const double bound = 1.01 * (2 * weight + 2 * (length + rescalings) * u + 2 * u);
    ASSERT_LT(bound, 5e-3);  // still tells a wrong key or head from rounding
    for (Index i = 0; i < outputs.rows(); ++i) {
      for (Index j = 0; j < outputs.cols(); ++j) {
        ASSERT_NEAR(static_cast<double>(outputs(i, j)), want(i, j), bound * magnitude(i, j))
            << name(type) << " [" << i << ", " << j << "]";
      }
    }
  }
}

// ---- No choice of execution changes a bit

TEST_P(AttentionOnEveryIsa, ChunksChangeNothing) {
  Compute compute(GetParam(), 2);
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    const AttentionShape shape = {1, 1, 3};
    const Sequence tokens = random_sequence(shape, type == ElementType::kF32 ? 2060 : 200, 4);
    const Matrix want = attend(shape, tokens, tokens.length(), compute.context, type);
    ASSERT_TRUE(want.allFinite());
    for (const int chunk : {3, 7, 64, 100}) {
      ASSERT_TRUE(same_bits(attend(shape, tokens, chunk, compute.context, type), want)) << chunk;
    }
  }
}

TEST_P(AttentionOnEveryIsa, OneTokenAtATimeChangesNothing) {
  Compute compute(GetParam());
  const AttentionShape shape = {1, 1, 3};
  const Sequence tokens = random_sequence(shape, 2052, 5);
  EXPECT_TRUE(same_bits(attend(shape, tokens, 1, compute.context),
                        attend(shape, tokens, tokens.length(), compute.context)));
}

TEST_P(AttentionOnEveryIsa, ThreadsAndIsaChangeNothing) {
  for (const AttentionShape& shape :
       {AttentionShape{6, 6, 16}, AttentionShape{4, 2, 64}, AttentionShape{14, 2, 33}}) {
    const Sequence tokens = random_sequence(shape, 150, 6);
    Compute portable(Isa::kPortable);
    const Matrix want = attend(shape, tokens, 150, portable.context);
    for (const int threads : {1, 2, 3}) {
      Compute compute(GetParam(), threads);
      for (const int chunk : {50, 150}) {
        ASSERT_TRUE(same_bits(attend(shape, tokens, chunk, compute.context), want))
            << threads << " threads, chunks of " << chunk;
      }
    }
  }
}

// Contexts of several splits, which several threads may walk: one token, a few and a long chunk, in
// one layer after the other with the same plan.
TEST_P(AttentionOnEveryIsa, SplitsOverThreadsChangeNothing) {
  for (const AttentionShape& shape : {AttentionShape{2, 1, 4}, AttentionShape{3, 3, 5}}) {
    const Sequence tokens = random_sequence(shape, 3100, 8);
    for (const int count : {1, 5, 40}) {
      const int first = tokens.length() - count;
      Matrix want;
      for (const int threads : {1, 2, 3}) {
        Compute compute(threads == 1 ? Isa::kPortable : GetParam(), threads);
        ContiguousKVCache cache = make_cache(shape, 1, tokens.length());
        cache.write(0, 0, 0, tokens.keys, tokens.values);
        const AttentionSegment segment = {.first_position = first, .num_tokens = count};
        Attention attention(shape, threads);
        attention.plan({&segment, 1});
        for (int layer = 0; layer < 3; ++layer) {
          Matrix outputs = Matrix::Constant(count, tokens.queries.cols(), kNan);
          attention.forward(0, tokens.queries.bottomRows(count), cache, outputs, compute.context);
          if (threads == 1 && layer == 0) want = outputs;
          ASSERT_TRUE(same_bits(outputs, want)) << count << " tokens, " << threads << " threads";
        }
      }
    }
  }
}

// A plan that cuts follows one that does not, and the other way round, with more and fewer splits.
TEST_P(AttentionOnEveryIsa, PlansFollowEachOther) {
  const AttentionShape shape = {2, 1, 4};
  const Sequence tokens = random_sequence(shape, 3000, 9);
  ContiguousKVCache cache = make_cache(shape, 1, tokens.length());
  cache.write(0, 0, 0, tokens.keys, tokens.values);
  Compute one(Isa::kPortable, 1), three(GetParam(), 3);
  Attention kept(shape, 3);
  for (const int position : {2999, 10, 1500, 2500, 1023, 1024, 2999}) {
    const AttentionSegment segment = {.first_position = position, .num_tokens = 1};
    Matrix want(1, 8), outputs(1, 8);
    Attention fresh(shape, 1);
    fresh.plan({&segment, 1});
    fresh.forward(0, tokens.queries.row(position), cache, want, one.context);
    kept.plan({&segment, 1});
    kept.forward(0, tokens.queries.row(position), cache, outputs, three.context);
    ASSERT_TRUE(same_bits(outputs, want)) << position;
  }
}

TEST_P(AttentionOnEveryIsa, PagesChangeNothing) {
  Compute compute(GetParam(), 2);
  const AttentionShape shape = {4, 2, 20};
  const Sequence tokens = random_sequence(shape, 300, 7);
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    const Matrix want = attend(shape, tokens, 300, compute.context, type);
    for (const int page_size : {1, 3, 16}) {
      for (const int chunk : {7, 300}) {
        PagedFake cache(type,
                        {.num_layers = 1, .num_kv_heads = 2, .max_seq_len = 301, .head_dim = 20},
                        page_size);
        ASSERT_TRUE(same_bits(attend(shape, tokens, chunk, cache, compute.context), want))
            << name(type) << ", pages of " << page_size << ", chunks of " << chunk;
      }
    }
  }
}

// A batch of a decoding step, a chunk and a prompt; one neighbour's keys and values are NaN and
// infinite, and it comes first, so that its leftovers lie in all scratch memory.
TEST_P(AttentionOnEveryIsa, NeighboursInTheBatchChangeNothing) {
  const AttentionShape shape = {4, 2, 8};
  const Sequence a = random_sequence(shape, 150, 10), b = random_sequence(shape, 90, 20);
  Sequence broken = random_sequence(shape, 70, 30);
  broken.keys.setConstant(kNan);
  broken.values.setConstant(kInfinity);
  Compute one(Isa::kPortable);
  const Matrix want_a = attend(shape, a, 150, one.context);
  const Matrix want_b = attend(shape, b, 90, one.context);
  for (const int threads : {1, 2, 3}) {
    Compute compute(GetParam(), threads);
    ContiguousKVCache cache = make_cache(shape, 4, 150);
    cache.write(0, 3, 0, broken.keys, broken.values);
    cache.write(0, 2, 0, a.keys, a.values);
    cache.write(0, 0, 0, b.keys, b.values);
    const AttentionSegment segments[] = {
        {.sequence = 3, .first_position = 0, .first_row = 0, .num_tokens = 70},
        {.sequence = 2, .first_position = 149, .first_row = 70, .num_tokens = 1},
        {.sequence = 0, .first_position = 20, .first_row = 73, .num_tokens = 70}};
    Matrix queries = Matrix::Constant(145, 32, kNan);
    queries.topRows(70) = broken.queries;
    queries.row(70) = a.queries.row(149);
    queries.middleRows(73, 70) = b.queries.middleRows(20, 70);
    Matrix outputs = Matrix::Constant(145, 40, 7.0f);
    Attention attention(shape, threads);
    attention.plan(segments);
    attention.forward(0, queries, cache, outputs.middleCols(3, 32), compute.context);
    EXPECT_TRUE(same_bits(outputs.block(70, 3, 1, 32), want_a.row(149))) << threads;
    EXPECT_TRUE(same_bits(outputs.block(73, 3, 70, 32), want_b.middleRows(20, 70))) << threads;
    EXPECT_TRUE((outputs.middleRows(71, 2).array() == 7.0f).all()) << "rows of no segment";
    EXPECT_TRUE((outputs.bottomRows(2).array() == 7.0f).all()) << "rows of no segment";
    EXPECT_TRUE((outputs.leftCols(3).array() == 7.0f).all());
    EXPECT_TRUE((outputs.rightCols(5).array() == 7.0f).all());
  }
}

TEST_P(AttentionOnEveryIsa, ReadsItsOwnLayer) {
  Compute compute(GetParam());
  const AttentionShape shape = {1, 1, 4};
  const Sequence first = random_sequence(shape, 10, 40), second = random_sequence(shape, 10, 50);
  ContiguousKVCache cache(ElementType::kF32,
                          {.num_layers = 2, .num_kv_heads = 1, .max_seq_len = 10, .head_dim = 4});
  ASSERT_TRUE(cache.reserve(0, 10));
  cache.write(0, 0, 0, first.keys, first.values);
  cache.write(1, 0, 0, second.keys, second.values);
  Attention attention(shape, 1);
  const AttentionSegment segment = {.num_tokens = 10};
  attention.plan({&segment, 1});
  Matrix outputs(10, 4);
  attention.forward(1, second.queries, cache, outputs, compute.context);
  EXPECT_TRUE(same_bits(outputs, attend(shape, second, 10, compute.context)));
  attention.forward(0, first.queries, cache, outputs, compute.context);
  EXPECT_TRUE(same_bits(outputs, attend(shape, first, 10, compute.context)));
}

// Scores so far apart that single tiles vanish, and splits too: the later maximum wins over all
// that came before, and a lower one adds nothing.
TEST_P(AttentionOnEveryIsa, SplitsOfVeryDifferentScoresMerge) {
  Compute compute(GetParam());
  const AttentionShape shape = {1, 1, 1, 1.0f};
  for (const int winner : {0, 70, 1023, 1024, 2047, 2048, 2499}) {
    Sequence tokens = {Matrix::Ones(2500, 1), Matrix::Constant(2500, 1, -500.0f),
                       Matrix::Constant(2500, 1, 3.0f)};
    tokens.keys(winner, 0) = 500;
    tokens.values(winner, 0) = 42;
    const Matrix outputs =
        attend_at(shape, tokens, {std::max(0, winner - 1), winner, 2499}, compute.context);
    EXPECT_EQ(outputs(winner, 0), 42.0f) << winner;
    EXPECT_EQ(outputs(2499, 0), 42.0f) << winner;
    if (winner > 0) {
      // A mean of threes: 2048 terms at most, each sum and product within half an ulp.
      EXPECT_NEAR(outputs(winner - 1, 0), 3.0f, 3.0f * 2500 * 0x1p-23f) << winner;
    }
  }
}

TEST(Attention, DoesNotAllocateOnceWarm) {
  Compute compute(best_isa(), 2);
  const AttentionShape shape = {4, 2, 16};
  const Sequence tokens = random_sequence(shape, 200, 60);
  ContiguousKVCache cache = make_cache(shape, 2, 200);
  for (const int sequence : {0, 1}) cache.write(0, sequence, 0, tokens.keys, tokens.values);
  const AttentionSegment prompt[] = {{.num_tokens = 60},
                                     {.sequence = 1, .first_row = 60, .num_tokens = 60}};
  const AttentionSegment step[] = {
      {.first_position = 60, .num_tokens = 1},
      {.sequence = 1, .first_position = 60, .first_row = 1, .num_tokens = 1}};
  const Matrix queries = tokens.queries.topRows(120);
  Matrix outputs(120, 64);
  Attention attention(shape, 2);
  attention.plan(prompt);
  const std::size_t before = support::num_allocations();
  attention.forward(0, queries, cache, outputs, compute.context);
  attention.plan(step);
  attention.forward(0, queries, cache, outputs, compute.context);
  attention.plan(prompt);
  EXPECT_EQ(support::num_allocations(), before);
}

// Decoding in a context of several splits, one position after the other.
TEST(Attention, DoesNotAllocateWhileDecodingALongContext) {
  Compute compute(best_isa(), 2);
  const AttentionShape shape = {4, 1, 8};
  const Sequence tokens = random_sequence(shape, 2200, 61);
  ContiguousKVCache cache = make_cache(shape, 1, 2200);
  cache.write(0, 0, 0, tokens.keys, tokens.values);
  Attention attention(shape, 2);
  Matrix outputs(1, 32);
  std::size_t before = 0;
  for (int position = 2100; position < 2200; ++position) {
    const AttentionSegment step = {.first_position = position, .num_tokens = 1};
    attention.plan({&step, 1});
    attention.forward(0, tokens.queries.row(position), cache, outputs, compute.context);
    if (position == 2100) before = support::num_allocations();
  }
  EXPECT_EQ(support::num_allocations(), before);
}

TEST(Attention, NoTokensAreNoWork) {
  Compute compute(Isa::kPortable);
  const AttentionShape shape = {2, 1, 4};
  ContiguousKVCache cache = make_cache(shape, 1, 4);
  Attention attention(shape, 1);
  Matrix outputs = Matrix::Constant(3, 8, 7.0f);
  const Matrix queries = Matrix::Zero(3, 8);
  attention.forward(0, queries, cache, outputs, compute.context);  // never planned
  const AttentionSegment none = {.num_tokens = 0};
  attention.plan({&none, 1});
  attention.forward(0, queries, cache, outputs, compute.context);
  attention.plan({});
  attention.forward(0, queries, cache, outputs, compute.context);
  EXPECT_TRUE((outputs.array() == 7.0f).all());
}

// ---- Errors

TEST(Attention, RejectsAnImpossibleShape) {
  const auto expect = [](const char* part, const AttentionShape& shape, int num_threads = 1) {
    expect_error(ErrorCode::kArgument, part, [&] { Attention attention(shape, num_threads); });
  };
  expect("got 0, 1 and 4", {0, 1, 4});
  expect("got -2, 1 and 4", {-2, 1, 4});
  expect("got 2, 0 and 4", {2, 0, 4});
  expect("got 2, 1 and 0", {2, 1, 0});
  expect("got 3, 2 and 4", {3, 2, 4});
  expect("softmax_scale must be finite, got inf", {2, 1, 4, kInfinity});
  expect("softmax_scale must be finite", {2, 1, 4, kNan});
  expect("num_threads must be positive, got 0", {2, 1, 4}, 0);
}

TEST(Attention, RejectsOperandsThatDoNotFit) {
  const AttentionShape shape = {4, 2, 8};
  ContiguousKVCache good = make_cache(shape, 2, 10);
  ContiguousKVCache other_heads = make_cache({4, 1, 8}, 2, 10);
  ContiguousKVCache other_dim = make_cache({4, 2, 16}, 2, 10);
  Compute one(Isa::kPortable, 1), two(Isa::kPortable, 2);
  const auto call = [&](Index q_rows, Index q_cols, Index o_rows, Index o_cols, KVStorage& cache,
                        const AttentionSegment& segment, Compute& compute, int layer = 0) {
    const Matrix queries = Matrix::Zero(q_rows, q_cols);
    Matrix outputs(o_rows, o_cols);
    Attention attention(shape, 1);
    attention.plan({&segment, 1});
    attention.forward(layer, queries, cache, outputs, compute.context);
  };
  const AttentionSegment fits = {.num_tokens = 3};
  EXPECT_NO_THROW(call(3, 32, 3, 32, good, fits, one));
  const ErrorCode shape_code = ErrorCode::kShape;
  expect_error(shape_code, "got [3, 31]", [&] { call(3, 31, 3, 32, good, fits, one); });
  expect_error(shape_code, "[3, 33]", [&] { call(3, 32, 3, 33, good, fits, one); });
  expect_error(shape_code, "[2, 32]", [&] { call(3, 32, 2, 32, good, fits, one); });
  expect_error(shape_code, "got 1 of 8", [&] { call(3, 32, 3, 32, other_heads, fits, one); });
  expect_error(shape_code, "got 2 of 16", [&] { call(3, 32, 3, 32, other_dim, fits, one); });
  const auto rejected = [&](const char* part, const AttentionSegment& segment, Compute& compute,
                            int layer = 0) {
    expect_error(ErrorCode::kArgument, part,
                 [&] { call(3, 32, 3, 32, good, segment, compute, layer); });
  };
  constexpr int kMax = std::numeric_limits<int>::max();
  rejected("at most the 1 threads", fits, two);
  rejected("layer must be in [0, 1), got 1", fits, one, 1);
  rejected("layer must be in [0, 1), got -1", fits, one, -1);
  rejected("got 4 tokens from row 0", {.num_tokens = 4}, one);
  rejected("got 2 tokens from row 2", {.first_row = 2, .num_tokens = 2}, one);
  rejected("got 2 tokens from row -1", {.first_row = -1, .num_tokens = 2}, one);
  rejected("got -1 tokens", {.num_tokens = -1}, one);
  rejected("sequence must be in [0, 2), got 2", {.sequence = 2, .num_tokens = 3}, one);
  rejected("sequence must be in [0, 2), got -1", {.sequence = -1, .num_tokens = 3}, one);
  rejected("3 tokens from position 8", {.first_position = 8, .num_tokens = 3}, one);
  rejected("3 tokens from position -1", {.first_position = -1, .num_tokens = 3}, one);
  rejected("from position 2147483647", {.first_position = kMax, .num_tokens = 3}, one);
}

}  // namespace
}  // namespace kvick
