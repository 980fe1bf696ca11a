// SPDX-License-Identifier: MIT
// What the tests of attention share: a sequence of random queries, keys and values.
#pragma once

#include "kvick/core/matrix.hpp"
#include "kvick/nn/attention_plan.hpp"
#include "nn/compute.hpp"

namespace support {

/// Queries, keys and values of one sequence, one row per position.
struct Sequence {
  kvick::Matrix queries, keys, values;
  int length() const { return static_cast<int>(queries.rows()); }
};

inline Sequence random_sequence(const kvick::AttentionShape& shape, int length, unsigned seed) {
  const kvick::Index kv_width = kvick::Index{shape.num_kv_heads} * shape.head_dim;
  const kvick::Index query_width = kvick::Index{shape.num_heads} * shape.head_dim;
  return {3 * random_floats(length, query_width, seed), random_floats(length, kv_width, seed + 1),
          random_floats(length, kv_width, seed + 2)};
}

}  // namespace support
