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
///   Tile: AttentionTile, or one derived from it whose keys and values are elsewhere;
///   score_floats(tile, num_rows, queries, num_keys, scores): the scores of 1 to kBlockRows queries
///     for the first keys, a multiple of 16, of a tile that is not int8;
///   add_values(tile, num_rows, weights, begin, end, outputs): adds the values of keys [begin, end)
///     to 1 to kBlockRows outputs;
///   score_int8(num_rows, queries, tile, scores): the scores of all keys of an int8 tile for 1 to
///     kBlockRows queries;
///   weigh(rows, num_rows, head_dim, scores): turns the scores of rows into weights, those of
///     invisible keys into 0, and rescales their states to the new maxima. `scores` is 64-byte
///     aligned.
template <class Lanes>
struct AttendRows {
  using Tile = typename Lanes::Tile;
  using Scores = float[kAttentionTile];

  /// Scores of a block of rows for keys up to the last one that is visible, and some more.
  static void score(const Tile& tile, const AttentionRow* rows, int num_rows,
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
    Lanes::score_floats(tile, num_rows, queries, (end_key + 15) / 16 * 16, sums);
  }

  /// Adds the visible values to a block of rows: those that all rows see together, the ones before
  /// and after row by row.
  static void add_values(const Tile& tile, const AttentionRow* rows, int num_rows,
                         const Scores* scores) noexcept {
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
      Lanes::add_values(tile, count, weights + first_row, begin, end, outputs + first_row);
    };
    for (int r = 0; r < num_rows; ++r) {
      add(r, 1, rows[r].first_key, std::min(first_key, rows[r].end_key));
    }
    add(0, num_rows, first_key, end_key);
    for (int r = 0; r < num_rows; ++r) add(r, 1, end_key, rows[r].end_key);
  }

  /// Up to kChunkRows rows, in blocks of near-equal size.
  static void attend_chunk(const Tile& tile, const AttentionRow* rows, int num_rows) noexcept {
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

  static void attend_tile(const Tile& tile, const AttentionRow* rows, Index num_rows) noexcept {
    for (Index first = 0; first < num_rows; first += kChunkRows) {
      attend_chunk(tile, rows + first,
                   static_cast<int>(std::min<Index>(kChunkRows, num_rows - first)));
    }
  }
};

}  // namespace kvick::inline v0_1::detail
