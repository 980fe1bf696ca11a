// SPDX-License-Identifier: MIT
// Causal attention with grouped queries in plain Eigen.
//
// The query at position p sees the keys 0 .. p, or the last `window` of them:
//   out = sum_j softmax_j(scale * q . k_j) v_j.
// Query head h reads KV head h / (num_heads / num_kv_heads).
//
// Shapes    q [tokens][num_heads * head_dim], row t at position first_position + t;
//           keys, values [length][num_kv_heads * head_dim], row j at position j,
//           length >= first_position + tokens; result like q.
// Accuracy  About (head_dim + 2) eps sum_d |scale q_d k_d| for a score s, which changes a weight by
//           that fraction; then (keys + 2) eps sum_j p_j |v_j| for the weighted sum. Values that a
//           later query of the same call sees must be finite.
// Errors    Error(kShape), Error(kArgument).
// Source    Vaswani et al. 2017; Ainslie et al. 2023 (GQA); Jiang et al. 2023 (window).
// Layer     reference: may include core.
#pragma once

#include <algorithm>
#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/reference/common.hpp"

namespace kvick::inline v0_1::reference {

struct AttentionOptions {
  int num_heads = 0;
  int num_kv_heads = 0;    ///< a divisor of num_heads
  int first_position = 0;  ///< position of the first query
  double scale = 1;        ///< of the scores, usually 1 / sqrt(head_dim)
  int window = 0;          ///< keys a query sees, its own included; 0: all before it
};

template <class Q, class K, class V>
RowMajorMatrix<typename Q::Scalar> attention(const Eigen::MatrixBase<Q>& q,
                                             const Eigen::MatrixBase<K>& keys,
                                             const Eigen::MatrixBase<V>& values,
                                             const AttentionOptions& options);

// ---- Implementation: nothing below is API ----

namespace detail {

inline void check_attention(Index num_tokens, Index q_cols, Index length, Index kv_cols,
                            const AttentionOptions& options) {
  constexpr std::string_view kOperation = "reference::attention";
  const auto [heads, kv_heads, first, scale, window] = options;
  require(heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0, ErrorCode::kArgument, kOperation,
          "num_heads must be a multiple of num_kv_heads, got ", heads, " and ", kv_heads);
  require(first >= 0 && window >= 0, ErrorCode::kArgument, kOperation,
          "first_position and window must be at least 0, got ", first, " and ", window);
  require(q_cols >= heads && q_cols % heads == 0, ErrorCode::kShape, kOperation,
          "q must have num_heads = ", heads, " * head_dim columns, got ", q_cols);
  require(kv_cols == q_cols / heads * kv_heads, ErrorCode::kShape, kOperation, "keys must have ",
          kv_heads, " heads * ", q_cols / heads, " columns, got ", kv_cols);
  require(length >= first + num_tokens, ErrorCode::kShape, kOperation,
          "keys must reach the last query: ", first, " + ", num_tokens, " rows, got ", length);
}

/// Scores to weights: softmax over columns [first, end) of a row, zero elsewhere.
template <class Row>
void softmax_between(Row row, Index first, Index end) {
  auto visible = row.segment(first, end - first).array();
  visible = (visible - visible.maxCoeff()).exp();
  visible /= visible.sum();
  row.head(first).setZero();
  row.tail(row.size() - end).setZero();
}

}  // namespace detail

template <class Q, class K, class V>
RowMajorMatrix<typename Q::Scalar> attention(const Eigen::MatrixBase<Q>& q,
                                             const Eigen::MatrixBase<K>& keys,
                                             const Eigen::MatrixBase<V>& values,
                                             const AttentionOptions& options) {
  using Scalar = typename Q::Scalar;
  detail::check_attention(q.rows(), q.cols(), keys.rows(), keys.cols(), options);
  detail::require(values.rows() == keys.rows() && values.cols() == keys.cols(), ErrorCode::kShape,
                  "reference::attention", "values must have the shape of keys, [", keys.rows(),
                  ", ", keys.cols(), "], got [", values.rows(), ", ", values.cols(), "]");
  const RowMajorRef<Scalar> queries(q.derived());
  const RowMajorRef<Scalar> all_keys(keys.template cast<Scalar>());
  const RowMajorRef<Scalar> all_values(values.template cast<Scalar>());
  const Index head_dim = q.cols() / options.num_heads;
  const Index end = options.first_position + q.rows();
  RowMajorMatrix<Scalar> out(q.rows(), q.cols());
  for (Index head = 0; head < options.num_heads; ++head) {
    const Index column = head * head_dim;
    const Index kv_column = head * options.num_kv_heads / options.num_heads * head_dim;
    RowMajorMatrix<Scalar> weights =
        static_cast<Scalar>(options.scale) * queries.middleCols(column, head_dim) *
        all_keys.block(0, kv_column, end, head_dim).transpose();  // [tokens][end]
    for (Index token = 0; token < q.rows(); ++token) {
      const Index visible_end = options.first_position + token + 1;
      const Index visible_first =
          options.window == 0 ? 0 : std::max<Index>(0, visible_end - options.window);
      detail::softmax_between(weights.row(token), visible_first, visible_end);
    }
    out.middleCols(column, head_dim) = weights * all_values.block(0, kv_column, end, head_dim);
  }
  return out;
}

}  // namespace kvick::inline v0_1::reference
