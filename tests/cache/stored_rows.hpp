// SPDX-License-Identifier: MIT
// Rows of caches as floats, and what a row of floats becomes when a cache stores it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvick/cache/kv_storage.hpp"
#include "kvick/core/half.hpp"

namespace support {

using Row = std::vector<float>;

/// One row [head_dim] at the front of `bytes`; integers times their scale.
inline Row decode(kvick::ElementType type, const std::byte* bytes, int head_dim,
                  float scale = 1.0f) {
  Row row(static_cast<std::size_t>(head_dim));
  for (std::size_t i = 0; i < row.size(); ++i) {
    std::uint16_t half = 0;
    switch (type) {
      case kvick::ElementType::kF32: std::memcpy(&row[i], bytes + 4 * i, 4); break;
      case kvick::ElementType::kF16:
        std::memcpy(&half, bytes + 2 * i, 2);
        row[i] = static_cast<float>(kvick::f16::from_bits(half));
        break;
      case kvick::ElementType::kBF16:
        std::memcpy(&half, bytes + 2 * i, 2);
        row[i] = static_cast<float>(kvick::bf16::from_bits(half));
        break;
      case kvick::ElementType::kInt8:
        row[i] = static_cast<float>(static_cast<std::int8_t>(bytes[i])) * scale;
        break;
    }
  }
  return row;
}

/// What a cache makes of the row of one head.
inline Row stored(kvick::ElementType type, Row row) {
  float max = 0.0f;
  for (const float x : row) max = std::max(max, std::fabs(x));
  const float inverse = max > 0.0f ? 127.0f / max : 0.0f;
  const float scale = max / 127.0f;
  for (float& x : row) {
    if (type == kvick::ElementType::kF16) x = static_cast<float>(kvick::f16(x));
    if (type == kvick::ElementType::kBF16) x = static_cast<float>(kvick::bf16(x));
    if (type == kvick::ElementType::kInt8) x = std::nearbyint(x * inverse) * scale;
  }
  return row;
}

inline Row key_at(const kvick::KVStorage& cache, int layer, int sequence, int head, int position) {
  const kvick::KVRun run = cache.run(layer, sequence, head, position);
  return decode(cache.element_type(), run.keys, cache.head_dim(),
                run.key_scales == nullptr ? 1.0f : run.key_scales[0]);
}

inline Row value_at(const kvick::KVStorage& cache, int layer, int sequence, int head,
                    int position) {
  const kvick::KVRun run = cache.run(layer, sequence, head, position);
  return decode(cache.element_type(), run.values, cache.head_dim(),
                run.value_scales == nullptr ? 1.0f : run.value_scales[0]);
}

}  // namespace support
