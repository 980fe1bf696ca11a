// SPDX-License-Identifier: MIT
// Attention over what caches may be: windowed, paged and of int8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "cache/stored_rows.hpp"
#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/paged_kv_cache.hpp"
#include "kvick/nn/attention.hpp"
#include "nn/compute.hpp"
#include "nn/sequence.hpp"

namespace kvick {
namespace {

using support::Compute;
using support::expect_error;
using support::random_floats;
using support::random_sequence;
using support::same_bits;
using support::Sequence;

/// Outputs of a sequence that comes in chunks.
template <class Cache>
Matrix attend(const AttentionShape& shape, const Sequence& tokens, int chunk, Cache& cache,
              const ComputeContext& context) {
  Attention attention(shape, context.pool.num_threads());
  Matrix outputs(tokens.queries.rows(), tokens.queries.cols());
  for (int first = 0; first < tokens.length(); first += chunk) {
    const int count = std::min(chunk, tokens.length() - first);
    EXPECT_TRUE(cache.reserve(0, count));
    cache.write(0, 0, first, tokens.keys.middleRows(first, count),
                tokens.values.middleRows(first, count));
    const AttentionSegment segment = {.first_position = first, .num_tokens = count};
    attention.plan({&segment, 1});
    attention.forward(0, tokens.queries.middleRows(first, count), cache,
                      outputs.middleRows(first, count), context);
    cache.commit(0, std::vector<TokenId>(static_cast<std::size_t>(count)));
  }
  return outputs;
}

ContiguousKVCache contiguous(const AttentionShape& shape, ElementType type, int length) {
  return {type,
          {.num_layers = 1,
           .num_kv_heads = shape.num_kv_heads,
           .max_seq_len = length,
           .head_dim = shape.head_dim}};
}

Matrix attend(const AttentionShape& shape, const Sequence& tokens, int chunk,
              const ComputeContext& context, ElementType type = ElementType::kF32) {
  ContiguousKVCache cache = contiguous(shape, type, tokens.length());
  return attend(shape, tokens, chunk, cache, context);
}

/// Rows of heads as a cache stores them.
Matrix stored(ElementType type, const Matrix& rows, int head_dim) {
  Matrix result = rows;
  for (Index i = 0; i < rows.rows(); ++i) {
    for (Index c = 0; c < rows.cols(); c += head_dim) {
      const float* const from = rows.row(i).data() + c;
      const auto row = support::stored(type, {from, from + head_dim});
      std::copy(row.begin(), row.end(), result.row(i).data() + c);
    }
  }
  return result;
}

/// Softmax attention in double over the positions that a window leaves, written out plainly.
Eigen::MatrixXd plain(const AttentionShape& shape, const Sequence& tokens) {
  const Index dim = shape.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  Eigen::MatrixXd outputs = Eigen::MatrixXd::Zero(tokens.length(), tokens.queries.cols());
  for (int p = 0; p < tokens.length(); ++p) {
    for (Index head = 0; head < shape.num_heads; ++head) {
      const Index kv = head / (shape.num_heads / shape.num_kv_heads) * dim;
      const auto query = tokens.queries.row(p).segment(head * dim, dim).cast<double>();
      std::vector<double> scores;
      std::vector<int> seen;
      for (int j = 0; j <= p; ++j) {
        const bool in_window = shape.window.size == 0 || p - j < shape.window.size;
        if (!in_window && j >= shape.window.num_sinks) continue;
        seen.push_back(j);
        scores.push_back(scale * query.dot(tokens.keys.row(j).segment(kv, dim).cast<double>()));
      }
      const double max = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      auto output = outputs.row(p).segment(head * dim, dim);
      for (std::size_t i = 0; i < seen.size(); ++i) {
        const double weight = std::exp(scores[i] - max);
        total += weight;
        output += weight * tokens.values.row(seen[i]).segment(kv, dim).cast<double>();
      }
      output /= total;
    }
  }
  return outputs;
}

class AttentionCacheOnEveryIsa : public support::OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Cpu, AttentionCacheOnEveryIsa, ::testing::ValuesIn(supported_isas()),
                         support::isa_name);

// Values of at most 1 averaged with weights that err by far less than 1e-4: a key too many or too
// few moves outputs by some 1/200.
TEST_P(AttentionCacheOnEveryIsa, SeesWhatTheWindowLeaves) {
  Compute compute(GetParam(), 2);
  for (const AttentionWindow window :
       {AttentionWindow{1}, {2, 1}, {64}, {65, 3}, {70, 64}, {30, 70}, {100, 5}, {190}, {7, 130}}) {
    SCOPED_TRACE(::testing::Message() << window.size << " and " << window.num_sinks);
    const AttentionShape shape = {
        .num_heads = 2, .num_kv_heads = 1, .head_dim = 8, .window = window};
    const Sequence tokens = random_sequence(shape, 200, 1);
    const Matrix outputs = attend(shape, tokens, 200, compute.context);
    EXPECT_LT((outputs.cast<double>() - plain(shape, tokens)).cwiseAbs().maxCoeff(), 1e-4);
  }
}

TEST_P(AttentionCacheOnEveryIsa, WindowsChangeNoBitWithChunksThreadsOrIsa) {
  for (const AttentionWindow window : {AttentionWindow{70, 5}, {1100}, {40, 1030}}) {
    SCOPED_TRACE(::testing::Message() << window.size << " and " << window.num_sinks);
    const AttentionShape shape = {
        .num_heads = 2, .num_kv_heads = 1, .head_dim = 3, .window = window};
    const Sequence tokens = random_sequence(shape, 1200, 2);
    Compute portable(Isa::kPortable);
    const Matrix want = attend(shape, tokens, 1200, portable.context);
    for (const int threads : {1, 3}) {
      Compute compute(GetParam(), threads);
      for (const int chunk : {1200, 37}) {
        EXPECT_TRUE(same_bits(attend(shape, tokens, chunk, compute.context), want)) << chunk;
      }
      PagedKVCache<float> cache({.num_layers = 1,
                                 .num_kv_heads = 1,
                                 .max_seq_len = 1200,
                                 .head_dim = 3,
                                 .block_tokens = 32,
                                 .window = window});
      EXPECT_TRUE(same_bits(attend(shape, tokens, 50, cache, compute.context), want));
    }
  }
}

// Two tokens of some heads are few rows, which kernels may read where they are stored; 50 are many.
TEST_P(AttentionCacheOnEveryIsa, NoElementTypeChangesABitWithChunksThreadsBlocksOrIsa) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16, ElementType::kInt8}) {
    for (const AttentionShape& shape :
         {AttentionShape{6, 6, 16}, {8, 1, 64}, {3, 1, 80}, {14, 2, 33}}) {
      SCOPED_TRACE(::testing::Message() << name(type) << ", head_dim " << shape.head_dim);
      const Sequence tokens = random_sequence(shape, 140, 3);
      Compute portable(Isa::kPortable);
      const Matrix want = attend(shape, tokens, 140, portable.context, type);
      Compute compute(GetParam(), 2);
      for (const int chunk : {2, 50}) {
        ASSERT_TRUE(same_bits(attend(shape, tokens, chunk, compute.context, type), want));
      }
      for (const int block_tokens : {16, 64}) {
        PagedKVStorage cache(type, {.num_layers = 1,
                                    .num_kv_heads = shape.num_kv_heads,
                                    .max_seq_len = 150,
                                    .head_dim = shape.head_dim,
                                    .block_tokens = block_tokens});
        EXPECT_TRUE(same_bits(attend(shape, tokens, 40, cache, compute.context), want));
      }
    }
  }
}

// Against attention in double over the rows as stored, what is left is the rounding of queries:
// each element by at most half a 127th of the largest, so scores by e = scale * (|q|max / 254) *
// sum |k|, and weights by a factor of exp(2 e) at most.
TEST_P(AttentionCacheOnEveryIsa, Int8ErrsByNoMoreThanItsRoundings) {
  Compute compute(GetParam());
  const AttentionShape shape = {4, 2, 64};
  const Sequence tokens = random_sequence(shape, 200, 4);
  const Sequence as_stored = {tokens.queries, stored(ElementType::kInt8, tokens.keys, 64),
                              stored(ElementType::kInt8, tokens.values, 64)};
  const Matrix outputs = attend(shape, tokens, 200, compute.context, ElementType::kInt8);
  const Eigen::MatrixXd want = plain(shape, as_stored);
  const double largest = static_cast<double>(tokens.queries.cwiseAbs().maxCoeff());
  double largest_sum = 0;
  for (Index c = 0; c < as_stored.keys.cols(); c += 64) {
    const auto sums = as_stored.keys.middleCols(c, 64).cwiseAbs().rowwise().sum();
    largest_sum = std::max(largest_sum, static_cast<double>(sums.maxCoeff()));
  }
  const double e = 1.0 / 8.0 * largest / 254 * largest_sum;
  const double bound = std::exp(2 * e) - 1 + 1e-4;
  EXPECT_LT(bound, 0.15) << "or the test says little";
  const double error = (outputs.cast<double>() - want).cwiseAbs().maxCoeff();
  EXPECT_LT(error, bound * static_cast<double>(as_stored.values.cwiseAbs().maxCoeff()));
  EXPECT_GT(error, 0.0);
}

TEST(AttentionCache, RejectsACacheThatKeepsAnotherWindow) {
  Compute compute(Isa::kPortable);
  const PagedKVCacheOptions options{
      .num_layers = 1, .num_kv_heads = 1, .max_seq_len = 10, .head_dim = 4, .window = {5, 1}};
  PagedKVCache<float> cache(options);
  ASSERT_TRUE(cache.reserve(0, 3));
  const Matrix queries = Matrix::Zero(3, 4);
  Matrix outputs(3, 4);
  const AttentionSegment segment = {.num_tokens = 3};
  for (const AttentionWindow window : {AttentionWindow{}, {5}, {6, 1}}) {
    Attention attention({1, 1, 4, 0.0f, window}, 1);
    attention.plan({&segment, 1});
    expect_error(ErrorCode::kArgument, "first positions that queries see, got 5 and 1",
                 [&] { attention.forward(0, queries, cache, outputs, compute.context); });
  }
  Attention attention({1, 1, 4, 0.0f, {5, 1}}, 1);
  attention.plan({&segment, 1});
  EXPECT_NO_THROW(attention.forward(0, queries, cache, outputs, compute.context));
}

}  // namespace
}  // namespace kvick
