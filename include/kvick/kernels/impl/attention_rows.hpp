// SPDX-License-Identifier: MIT
// How the tuned kernels of every ISA walk the query rows of a tile.
//
// Scores and outputs are the same product: rows of weights (a query, or the softmax of its scores)
// times columns of the tile. Blocks of rows share each load of the tile; a chunk of them is scored
// before its softmax is taken, so that the keys stay in the first-level cache while they are met,
// then the values, where both together do not fit (from head_dim 128 on), and so that the latency
// of one row's softmax hides behind the others.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <algorithm>

#include "kvick/kernels/contract.hpp"

namespace kvick::inline v0_1::detail {

/// Rows whose scores are kept at a time.
inline constexpr int kChunkRows = 12;

/// What accumulated sums start from: zeros, or what they hold.
enum class SumStart { kZero, kHeld };

/// `Lanes` is what an ISA brings:
///   kBlockRows: rows that share a load of the tile;
///   accumulate(start, num_rows, weights, tile, stride, begin, end, num_columns, sums):
///     sums[r][c] = the sum of fma(weights[r][k], tile[k * stride + c], .) over k in [begin, end)
///     ascending, from `start`; for 1 to kBlockRows rows and a multiple of 16 columns;
///   score_int8(num_rows, queries, tile, scores): the scores of all keys of an int8 tile for 1 to
///     kBlockRows queries;
///   weigh(rows, num_rows, head_dim, scores): turns the scores of rows into weights, those of
///     invisible keys into 0, and rescales their states to the new maxima. `scores` is 64-byte
///     aligned.
template <class Lanes>
struct AttendRows {
  using Scores = float[kAttentionTile];

  /// Scores of a block of rows for keys up to the last one that is visible, and some more.
  static void score(const AttentionTile& tile, const AttentionRow* rows, int num_rows,
                    Scores* scores) noexcept {
    if (tile.int8_keys != nullptr) {
      const Int8Query* queries[Lanes::kBlockRows];
      for (int r = 0; r < num_rows; ++r) queries[r] = &rows[r].int8_query;
      Lanes::score_int8(num_rows, queries, tile, scores);
      return;
    }
    const float* queries[Lanes::kBlockRows];
    float* sums[Lanes::kBlockRows];
    int end_key = 0;
    for (int r = 0; r < num_rows; ++r) {
      queries[r] = rows[r].query;
      sums[r] = scores[r];
      end_key = std::max(end_key, rows[r].end_key);
    }
    const int num_columns = (end_key + 15) / 16 * 16;
    Lanes::accumulate(SumStart::kZero, num_rows, queries, tile.keys, kAttentionTile, 0,
                      tile.head_dim, num_columns, sums);
  }

  /// Adds the visible values to a block of rows: those that all rows see together, the ones before
  /// and after row by row.
  static void add_values(const AttentionTile& tile, const AttentionRow* rows, int num_rows,
                         const Scores* scores) noexcept {
    const int padded = padded_head_dim(tile.head_dim);
    const float* weights[Lanes::kBlockRows];
    float* outputs[Lanes::kBlockRows];
    int first_key = 0, end_key = kAttentionTile;
    for (int r = 0; r < num_rows; ++r) {
      weights[r] = scores[r];
      outputs[r] = rows[r].state + AttentionState::kOutput;
      first_key = std::max(first_key, rows[r].first_key);
      end_key = std::min(end_key, rows[r].end_key);
    }
    end_key = std::max(first_key, end_key);
    const auto add = [&](int first_row, int count, int begin, int end) {
      if (begin >= end) return;
      Lanes::accumulate(SumStart::kHeld, count, weights + first_row, tile.values, padded, begin,
                        end, padded, outputs + first_row);
    };
    for (int r = 0; r < num_rows; ++r) {
      add(r, 1, rows[r].first_key, std::min(first_key, rows[r].end_key));
    }
    add(0, num_rows, first_key, end_key);
    for (int r = 0; r < num_rows; ++r) add(r, 1, end_key, rows[r].end_key);
  }

  /// Up to kChunkRows rows, in blocks of near-equal size.
  static void attend_chunk(const AttentionTile& tile, const AttentionRow* rows,
                           int num_rows) noexcept {
    alignas(64) Scores scores[kChunkRows];
    const int num_blocks = (num_rows + Lanes::kBlockRows - 1) / Lanes::kBlockRows;
    const auto first_row = [=](int block) { return block * num_rows / num_blocks; };
    for (int b = 0; b < num_blocks; ++b) {
      const int first = first_row(b);
      score(tile, rows + first, first_row(b + 1) - first, scores + first);
    }
    Lanes::weigh(rows, num_rows, tile.head_dim, scores);
    for (int b = 0; b < num_blocks; ++b) {
      const int first = first_row(b);
      add_values(tile, rows + first, first_row(b + 1) - first, scores + first);
    }
  }

  static void attend_tile(const AttentionTile& tile, const AttentionRow* rows,
                          Index num_rows) noexcept {
    for (Index first = 0; first < num_rows; first += kChunkRows) {
      attend_chunk(tile, rows + first,
                   static_cast<int>(std::min<Index>(kChunkRows, num_rows - first)));
    }
  }
};

}  // namespace kvick::inline v0_1::detail
