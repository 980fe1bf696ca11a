// SPDX-License-Identifier: MIT
// Attention over one tile of keys and values, in plain C++: the definition that every other
// implementation must equal.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kvick/core/math.hpp"
#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/impl/portable/conversions.hpp"  // IWYU pragma: export
#include "kvick/kernels/impl/stored_tile.hpp"

namespace kvick::inline v0_1::detail::portable {

inline float float_score(const AttentionTile& tile, const AttentionRow& row, int j) noexcept {
  float score = 0.0f;
  for (int d = 0; d < tile.head_dim; ++d) {
    score = std::fma(row.query[d], tile.keys[d * kAttentionTile + j], score);
  }
  return score;
}

inline float int8_score(const AttentionTile& tile, const Int8Query& query, int j) noexcept {
  std::int32_t dot = 0;
  for (int g = 0; g < num_int8_groups(tile.head_dim); ++g) {
    const std::int8_t* const group = tile.int8_keys + (g * kAttentionTile + j) * kInt8Group;
    for (int i = 0; i < kInt8Group; ++i) dot += query.values[g * kInt8Group + i] * group[i];
  }
  const float scale = query.scale * tile.key_scales[j];
  return std::fma(static_cast<float>(dot), scale, 0.0f);
}

inline void attend_row(const AttentionTile& tile, const AttentionRow& row) noexcept {
  const int head_dim = tile.head_dim;
  float& max = row.state[AttentionState::max_offset(head_dim)];
  float* sums = row.state + AttentionState::kSums;
  float* output = row.state + AttentionState::kOutput;

  float p[kAttentionTile];
  std::fill_n(p, kAttentionTile, -std::numeric_limits<float>::infinity());
  float new_max = max;
  for (int j = row.first_key; j < row.end_key; ++j) {
    const float score =
        tile.int8_keys != nullptr ? int8_score(tile, row.int8_query, j) : float_score(tile, row, j);
    p[j] = score;
    new_max = std::max(new_max, score);
  }
  new_max += 0.0f;  // -0 becomes +0: lanes meet the two zeros in other orders
  // A row whose every score so far is -inf keeps a finite reference, so that exp sees no NaN.
  const float reference = new_max == -std::numeric_limits<float>::infinity() ? 0.0f : new_max;
  const float rescale = math::exp(max - reference);
  for (float& value : p) value = math::exp(value - reference);
  for (int i = 0; i < kPartialSums; ++i) {
    sums[i] = std::fma(sums[i], rescale, (p[i] + p[i + 16]) + (p[i + 32] + p[i + 48]));
  }
  for (int d = 0; d < padded_head_dim(head_dim); ++d) {
    float sum = output[d] * rescale;
    for (int j = row.first_key; j < row.end_key; ++j) {
      sum = std::fma(p[j], tile.values[j * padded_head_dim(head_dim) + d], sum);
    }
    output[d] = sum;
  }
  max = new_max;
}

inline void attend_tile(const AttentionTile& tile, const AttentionRow* rows,
                        Index num_rows) noexcept {
  for (Index r = 0; r < num_rows; ++r) attend_row(tile, rows[r]);
}

inline void attend_stored_tile(const StoredTile& tile, const AttentionRow* rows,
                               Index num_rows) noexcept {
  attend_loaded_tile<load_keys, load_values, attend_tile>(tile, rows, num_rows);
}

inline void merge_states(float* state, const float* later, int head_dim) noexcept {
  const int max_offset = AttentionState::max_offset(head_dim);
  const float max = std::max(state[max_offset], later[max_offset]);
  const float reference = max == -std::numeric_limits<float>::infinity() ? 0.0f : max;
  const float u = math::exp(state[max_offset] - reference);
  const float v = math::exp(later[max_offset] - reference);
  for (int i = 0; i < max_offset; ++i) state[i] = std::fma(later[i], v, state[i] * u);
  state[max_offset] = max;
}

}  // namespace kvick::inline v0_1::detail::portable
