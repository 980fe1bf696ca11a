// SPDX-License-Identifier: MIT
// Attention over a tile as a cache stores it, by loading the whole tile first.
//
// Layer     kernels/impl: reached only through kernel_table.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvick/kernels/contract.hpp"

namespace kvick::inline v0_1::detail {

using LoadRows = void (*)(const ElementRows& rows, float* to) noexcept;
using AttendTile = void (*)(const AttentionTile& tile, const AttentionRow* rows,
                            Index num_rows) noexcept;

/// attend_stored_tile of the contract, from its parts.
template <LoadRows load_keys, LoadRows load_values, AttendTile attend_tile>
void attend_loaded_tile(const StoredTile& tile, const AttentionRow* rows, Index num_rows) noexcept {
  const int head_dim = tile.keys.head_dim;
  load_keys(tile.keys, tile.key_room + tile.first_key);
  load_values(tile.values, tile.value_room + Index{tile.first_key} * padded_head_dim(head_dim));
  AttentionTile loaded{tile.key_room, tile.value_room, head_dim};
  if (tile.keys.type == ElementType::kInt8) {
    std::copy_n(tile.key_scales, tile.keys.num_rows, tile.scale_room + tile.first_key);
    loaded.keys = nullptr;
    loaded.int8_keys = reinterpret_cast<const std::int8_t*>(tile.key_room);
    loaded.key_scales = tile.scale_room;
  }
  attend_tile(loaded, rows, num_rows);
}

}  // namespace kvick::inline v0_1::detail
