// SPDX-License-Identifier: MIT
#include "kvick/reference/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "reference/operands.hpp"

namespace kvick::reference {
namespace {

using support::epsilon;
using support::expect_error;
using support::random_matrix;

template <class Scalar>
class ReferenceAttention : public ::testing::Test {};
TYPED_TEST_SUITE(ReferenceAttention, support::Scalars);

// Key j is the unit vector j, so a query of 200 times unit vector j picks value j: the weight of
// any other key is exp(-200), less than half a unit in the last place of every result.
template <class Scalar>
RowMajorMatrix<Scalar> unit_rows(std::initializer_list<Index> units, Scalar length) {
  RowMajorMatrix<Scalar> rows = RowMajorMatrix<Scalar>::Zero(static_cast<Index>(units.size()), 4);
  Index row = 0;
  for (const Index unit : units) rows(row++, unit) = length;
  return rows;
}

TYPED_TEST(ReferenceAttention, AQueryPicksTheValueOfItsKey) {
  const auto keys = unit_rows<TypeParam>({0, 1, 2, 3}, 1);
  const auto q = unit_rows<TypeParam>({3, 0, 2}, 200);  // positions 1, 2, 3
  RowMajorMatrix<TypeParam> values(4, 4), want(3, 4);
  values << 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16;
  // The query at position 1 looks for key 3, which it must not see: keys 0 and 1 weigh the same.
  want << 3, 4, 5, 6, 1, 2, 3, 4, 9, 10, 11, 12;
  EXPECT_EQ(attention(q, keys, values, {.num_heads = 1, .num_kv_heads = 1, .first_position = 1}),
            want);
}

TYPED_TEST(ReferenceAttention, HeadsShareTheKeysOfTheirGroup) {
  RowMajorMatrix<TypeParam> q(1, 4), keys(2, 2), values(2, 2), want(1, 4);
  q << 200, -200, 200, -200;  // 4 heads of one element
  keys << 1, 1, -1, -1;       // 2 KV heads: heads 0 and 1 read the first, 2 and 3 the second
  values << 10, 20, 30, 40;
  want << 10, 30, 20, 40;
  EXPECT_EQ(attention(q, keys, values, {.num_heads = 4, .num_kv_heads = 2, .first_position = 1}),
            want);
}

TYPED_TEST(ReferenceAttention, EqualScoresAverageTheVisibleValues) {
  const RowMajorMatrix<TypeParam> zeros = RowMajorMatrix<TypeParam>::Zero(5, 1);
  RowMajorMatrix<TypeParam> values(5, 1);
  values << 6, 12, 24, 48, 96;
  const auto expect = [&](int window, const std::vector<double>& want) {
    const auto out =
        attention(zeros, zeros, values, {.num_heads = 1, .num_kv_heads = 1, .window = window});
    for (Index t = 0; t < 5; ++t) {
      const double mean = want[static_cast<std::size_t>(t)];
      EXPECT_NEAR(static_cast<double>(out(t, 0)), mean, 7 * epsilon<TypeParam>() * mean) << t;
    }
  };
  expect(0, {6, 9, 14, 22.5, 37.2});
  expect(1, {6, 12, 24, 48, 96});
  expect(2, {6, 9, 18, 36, 72});
  expect(3, {6, 9, 14, 28, 56});
  expect(100, {6, 9, 14, 22.5, 37.2});
}

TYPED_TEST(ReferenceAttention, ScaleMultipliesTheScores) {
  RowMajorMatrix<TypeParam> q(1, 1), keys(2, 1), values(2, 1);
  q << 2;
  keys << 1, 0;
  values << 1, 0;
  // Scores ln(3) and 0: weights 3/4 and 1/4.
  const auto out = attention(
      q, keys, values,
      {.num_heads = 1, .num_kv_heads = 1, .first_position = 1, .scale = std::log(3.0) / 2});
  EXPECT_NEAR(static_cast<double>(out(0, 0)), 0.75, 8 * epsilon<TypeParam>());
}

// One output row in double, and how far Scalar arithmetic may be from it.
struct Expected {
  std::vector<double> out, bound;
};

template <class Scalar>
Expected expected_row(const RowMajorMatrix<Scalar>& q, const RowMajorMatrix<Scalar>& keys,
                      const RowMajorMatrix<Scalar>& values, const AttentionOptions& options,
                      Index token, Index head) {
  const Index dim = q.cols() / options.num_heads;
  const Index kv_head = head / (options.num_heads / options.num_kv_heads);
  const Index position = options.first_position + token;
  const Index first = options.window == 0 ? 0 : std::max<Index>(0, position - options.window + 1);
  std::vector<double> weights;
  double sum = 0, largest_magnitude = 0;
  for (Index j = first; j <= position; ++j) {
    double score = 0, magnitude = 0;
    for (Index d = 0; d < dim; ++d) {
      const double product = options.scale * static_cast<double>(q(token, head * dim + d)) *
                             static_cast<double>(keys(j, kv_head * dim + d));
      score += product;
      magnitude += std::fabs(product);
    }
    weights.push_back(std::exp(score));  // scores are small here: no maximum needed
    sum += weights.back();
    largest_magnitude = std::max(largest_magnitude, magnitude);
  }
  // A score is off by (dim + 2) epsilon magnitude and rounded once more when the maximum is
  // subtracted; that error enters the numerator and the denominator of a weight. Then exp, division
  // and the weighted sum.
  const double relative = (2 * static_cast<double>(dim + 3) * largest_magnitude +
                           static_cast<double>(2 * weights.size() + 8)) *
                          epsilon<Scalar>();
  Expected expected;
  for (Index d = 0; d < dim; ++d) {
    double out = 0, magnitude = 0;
    for (Index j = first; j <= position; ++j) {
      const double term = weights[static_cast<std::size_t>(j - first)] / sum *
                          static_cast<double>(values(j, kv_head * dim + d));
      out += term;
      magnitude += std::fabs(term);
    }
    expected.out.push_back(out);
    expected.bound.push_back(relative * magnitude);
  }
  return expected;
}

TYPED_TEST(ReferenceAttention, StaysInsideItsBound) {
  constexpr Index kDim = 6;
  for (const auto& options :
       {AttentionOptions{.num_heads = 1, .num_kv_heads = 1, .scale = 1},
        AttentionOptions{.num_heads = 4, .num_kv_heads = 4, .first_position = 3, .scale = 0.4},
        AttentionOptions{
            .num_heads = 6, .num_kv_heads = 2, .first_position = 20, .scale = 2, .window = 5}}) {
    const auto q = random_matrix<TypeParam>(7, options.num_heads * kDim, 1);
    const auto keys = random_matrix<TypeParam>(30, options.num_kv_heads * kDim, 2);
    const auto values = random_matrix<TypeParam>(30, options.num_kv_heads * kDim, 3);
    const auto out = attention(q, keys, values, options);
    for (Index token = 0; token < 7; ++token) {
      for (Index head = 0; head < options.num_heads; ++head) {
        const auto expected = expected_row(q, keys, values, options, token, head);
        for (Index d = 0; d < kDim; ++d) {
          const auto i = static_cast<std::size_t>(d);
          ASSERT_NEAR(static_cast<double>(out(token, head * kDim + d)), expected.out[i],
                      expected.bound[i])
              << "token " << token << " head " << head << " dim " << d;
        }
      }
    }
  }
}

TYPED_TEST(ReferenceAttention, NeverReadsKeysBeyondTheLastQuery) {
  const auto q = random_matrix<TypeParam>(2, 4, 1);
  auto keys = random_matrix<TypeParam>(6, 4, 2), values = random_matrix<TypeParam>(6, 4, 3);
  const AttentionOptions options{.num_heads = 2, .num_kv_heads = 2, .first_position = 1};
  const auto want = attention(q, keys, values, options);
  keys.bottomRows(3).setConstant(std::numeric_limits<TypeParam>::quiet_NaN());
  values.bottomRows(3).setConstant(std::numeric_limits<TypeParam>::quiet_NaN());
  EXPECT_EQ(attention(q, keys, values, options), want);
}

TYPED_TEST(ReferenceAttention, LargeScoresDoNotOverflow) {
  const RowMajorMatrix<TypeParam> q = RowMajorMatrix<TypeParam>::Constant(1, 1, 1000);
  RowMajorMatrix<TypeParam> keys(2, 1), values(2, 1);
  keys << 1000, -1000;
  values << 3, 5;
  EXPECT_EQ(
      attention(q, keys, values, {.num_heads = 1, .num_kv_heads = 1, .first_position = 1})(0, 0),
      TypeParam(3));
}

TYPED_TEST(ReferenceAttention, RefusesWhatDoesNotFit) {
  const RowMajorMatrix<TypeParam> q = RowMajorMatrix<TypeParam>::Zero(2, 6);
  const RowMajorMatrix<TypeParam> kv = RowMajorMatrix<TypeParam>::Zero(4, 3);
  const AttentionOptions good{.num_heads = 2, .num_kv_heads = 1, .first_position = 2};
  EXPECT_NO_THROW(attention(q, kv, kv, good));
  const auto refuse = [&](ErrorCode code, const std::string& part, AttentionOptions options) {
    expect_error(code, part, [&] { attention(q, kv, kv, options); });
  };
  refuse(ErrorCode::kArgument, "multiple of num_kv_heads, got 3 and 2",
         {.num_heads = 3, .num_kv_heads = 2});
  refuse(ErrorCode::kArgument, "got 0 and 0", {});
  refuse(ErrorCode::kArgument, "got -1 and 0",
         {.num_heads = 2, .num_kv_heads = 1, .first_position = -1});
  refuse(ErrorCode::kArgument, "got 0 and -1", {.num_heads = 2, .num_kv_heads = 1, .window = -1});
  refuse(ErrorCode::kShape, "q must have num_heads = 4 * head_dim columns, got 6",
         {.num_heads = 4, .num_kv_heads = 1});
  refuse(ErrorCode::kShape, "keys must have 2 heads * 3 columns, got 3",
         {.num_heads = 2, .num_kv_heads = 2});
  refuse(ErrorCode::kShape, "keys must reach the last query: 3 + 2 rows, got 4",
         {.num_heads = 2, .num_kv_heads = 1, .first_position = 3});
  expect_error(ErrorCode::kShape, "values must have the shape of keys, [4, 3], got [4, 2]",
               [&] { attention(q, kv, kv.leftCols(2), good); });
}

}  // namespace
}  // namespace kvick::reference
