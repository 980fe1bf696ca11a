// SPDX-License-Identifier: MIT
// Causal grouped-query attention over a cache, for a ragged batch.
//
// Every token of a segment attends to the cached positions 0 to its own. Query head h reads KV head
// h / (num_heads / num_kv_heads).
//
// Shapes    queries, outputs [rows][num_heads * head_dim].
// Accuracy  f32 with online softmax. Keys are walked in tiles of 64 at absolute positions. The
//           tiles of each 1024 positions share one running softmax (see KernelTable::attend_tile),
//           and these splits are merged in ascending order:
//             m = max(a.m, b.m); u = exp(a.m - m); v = exp(b.m - m);
//             sums = fma(b.sums, v, a.sums * u); output = fma(b.output, v, a.output * u).
//           At the end output * (1 / total), total by the fixed tree. A query is multiplied by the
//           softmax scale first. A token's result depends on its own sequence only: not on the
//           other rows, the chunk it came in, the cache's layout, threads or ISA.
// Errors    Error(kShape) if operands do not fit the shape given at construction; Error(kArgument)
//           for an impossible shape, or segments beyond the operands or what the cache reserved.
// Threads   Tasks are (segment, KV head, block of queries). One object serves one forward pass at a
//           time. forward() does not allocate; plan() only for more tasks than ever before.
// Source    Online softmax: Milakov and Gimelshein 2018; Dao et al. 2022. Groups: Ainslie et al.
//           2023.
// Layer     nn: may include core, kernels, cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kvick/cache/kv_storage.hpp"
#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/math.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/nn/context.hpp"

namespace kvick::inline v0_1 {

struct AttentionShape {
  int num_heads = 0;  ///< a multiple of num_kv_heads
  int num_kv_heads = 0;
  int head_dim = 0;
  float softmax_scale = 0.0f;  ///< 0 means 1 / sqrt(head_dim)
};

/// Consecutive tokens of one sequence; their keys and values are in the cache already.
struct AttentionSegment {
  int sequence = 0;
  int first_position = 0;
  Index first_row = 0;  ///< of queries and outputs
  int num_tokens = 0;
};

class Attention {
 public:
  /// `num_threads` is that of the pool used later.
  Attention(const AttentionShape& shape, int num_threads);

  const AttentionShape& shape() const noexcept { return shape_; }

  /// Sets the segments of the calls to forward() that follow. They must not share rows.
  void plan(std::span<const AttentionSegment> segments);

  /// Attends with the queries of every planned segment. Rows of no segment are left as they are.
  void forward(int layer, const ConstMatrixRef& queries, const KVStorage& cache, MatrixRef outputs,
               const ComputeContext& context);

 private:
  /// A block of a segment's queries against one KV head.
  struct Task {
    int sequence;
    int kv_head;
    int first_position;
    Index first_row;
    int num_tokens;
  };

  /// What one thread works in.
  struct Scratch {
    AlignedBuffer<float> keys;       // [head_dim][kAttentionTile]
    AlignedBuffer<float> values;     // [kAttentionTile][padded head_dim]
    AlignedBuffer<float> key_row;    // [head_dim]
    AlignedBuffer<float> queries;    // [kBlockRows][head_dim]
    AlignedBuffer<float> merged;     // [kBlockRows] states: the splits so far
    AlignedBuffer<float> split;      // [kBlockRows] states: the split being walked
    std::vector<AttentionRow> rows;  // those that see keys of the current tile
  };

  int group_size() const noexcept { return shape_.num_heads / shape_.num_kv_heads; }
  int block_tokens() const noexcept { return std::max(1, kBlockRows / group_size()); }
  int block_rows() const noexcept { return block_tokens() * group_size(); }
  /// Floats from one row's state to the next.
  Index state_stride() const noexcept { return AttentionState::stride(shape_.head_dim); }

  void check_segments(int layer, Index num_rows, const KVStorage& cache) const;
  void run_task(int layer, const Task& task, const ConstMatrixRef& queries, const KVStorage& cache,
                MatrixRef& outputs, const KernelTable& kernels, Scratch& scratch) const;
  void scale_queries(const Task& task, const ConstMatrixRef& queries, Scratch& scratch) const;
  void load_tile(int layer, const Task& task, const KVStorage& cache, int first_position,
                 int num_keys, Scratch& scratch) const;
  void walk_split(int layer, const Task& task, const KVStorage& cache, int first_position,
                  const KernelTable& kernels, float* states, Scratch& scratch) const;
  void store_outputs(const Task& task, MatrixRef& outputs, Scratch& scratch) const;

  /// Rows of queries (tokens times heads of a group) that share one loading of a tile.
  static constexpr int kBlockRows = 32;

  AttentionShape shape_;
  std::vector<AttentionSegment> segments_;
  std::vector<Task> tasks_;
  Index grain_ = 1;               // tasks that a thread takes at a time
  std::vector<Scratch> scratch_;  // [threads]
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline void reset_state(float* state, int head_dim) noexcept {
  std::fill_n(state, AttentionState::stride(head_dim), 0.0f);
  state[AttentionState::max_offset(head_dim)] = kMinusInfinity;
}

/// a = a merged with b, where b covers the later positions.
inline void merge_states(float* a, const float* b, int head_dim) noexcept {
  const int max_offset = AttentionState::max_offset(head_dim);
  const float max = std::max(a[max_offset], b[max_offset]);
  const float reference = max == kMinusInfinity ? 0.0f : max;
  const float u = math::exp(a[max_offset] - reference);
  const float v = math::exp(b[max_offset] - reference);
  for (int i = 0; i < max_offset; ++i) a[i] = std::fma(b[i], v, a[i] * u);  // sums, then output
  a[max_offset] = max;
}

}  // namespace detail

inline Attention::Attention(const AttentionShape& shape, int num_threads) : shape_(shape) {
  constexpr const char* kOperation = "Attention";
  detail::require(
      shape.num_kv_heads > 0 && shape.head_dim > 0 && shape.num_heads > 0 &&
          shape.num_heads % shape.num_kv_heads == 0,
      ErrorCode::kArgument, kOperation,
      "num_heads must be a positive multiple of num_kv_heads and head_dim positive, got ",
      shape.num_heads, ", ", shape.num_kv_heads, " and ", shape.head_dim);
  detail::require(std::isfinite(shape.softmax_scale), ErrorCode::kArgument, kOperation,
                  "softmax_scale must be finite, got ", shape.softmax_scale);
  detail::require(num_threads > 0, ErrorCode::kArgument, kOperation,
                  "num_threads must be positive, got ", num_threads);
  if (shape_.softmax_scale == 0.0f) {
    shape_.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  }
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  const auto rows = static_cast<std::size_t>(block_rows());
  const auto state = static_cast<std::size_t>(state_stride());
  for (int i = 0; i < num_threads; ++i) {
    Scratch scratch;
    scratch.keys = AlignedBuffer<float>(head_dim * kAttentionTile);
    scratch.values = AlignedBuffer<float>(
        kAttentionTile * static_cast<std::size_t>(padded_head_dim(shape.head_dim)));
    scratch.key_row = AlignedBuffer<float>(head_dim);
    scratch.queries = AlignedBuffer<float>(rows * head_dim);
    scratch.merged = AlignedBuffer<float>(rows * state);
    scratch.split = AlignedBuffer<float>(rows * state);
    scratch.rows.reserve(rows);
    scratch_.push_back(std::move(scratch));
  }
}

inline void Attention::plan(std::span<const AttentionSegment> segments) {
  segments_.assign(segments.begin(), segments.end());
  tasks_.clear();
  Index work = 0;
  for (const AttentionSegment& segment : segments) {
    const Index num_keys = Index{segment.first_position} + segment.num_tokens;
    work += segment.num_tokens * num_keys * shape_.num_heads * shape_.head_dim;
    for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
      for (int token = 0; token < segment.num_tokens; token += block_tokens()) {
        tasks_.push_back({segment.sequence, kv_head, segment.first_position + token,
                          segment.first_row + token,
                          std::min(block_tokens(), segment.num_tokens - token)});
      }
    }
  }
  grain_ = work <= detail::kSerialWork ? static_cast<Index>(tasks_.size()) : 1;
}

/// What run() of the cache and the rows of the operands rely on.
inline void Attention::check_segments(int layer, Index num_rows, const KVStorage& cache) const {
  constexpr const char* kOperation = "Attention::forward";
  detail::require(layer >= 0 && layer < cache.num_layers(), ErrorCode::kArgument, kOperation,
                  "layer must be in [0, ", cache.num_layers(), "), got ", layer);
  for (const AttentionSegment& segment : segments_) {
    const auto [sequence, first_position, first_row, num_tokens] = segment;
    detail::require(num_tokens >= 0 && first_row >= 0 && first_row <= num_rows - num_tokens,
                    ErrorCode::kArgument, kOperation, "a segment must lie in the ", num_rows,
                    " rows of queries, got ", num_tokens, " tokens from row ", first_row);
    detail::require(sequence >= 0 && sequence < cache.num_sequences(), ErrorCode::kArgument,
                    kOperation, "sequence must be in [0, ", cache.num_sequences(), "), got ",
                    sequence);
    const int reserved = cache.reserved(sequence);
    detail::require(first_position >= 0 && first_position <= reserved - num_tokens,
                    ErrorCode::kArgument, kOperation, "a segment must lie in the ", reserved,
                    " positions reserved for sequence ", sequence, ", got ", num_tokens,
                    " tokens from position ", first_position);
  }
}

inline void Attention::forward(int layer, const ConstMatrixRef& queries, const KVStorage& cache,
                               MatrixRef outputs, const ComputeContext& context) {
  constexpr const char* kOperation = "Attention::forward";
  const Index width = Index{shape_.num_heads} * shape_.head_dim;
  detail::require(
      queries.cols() == width && outputs.cols() == width && outputs.rows() == queries.rows(),
      ErrorCode::kShape, kOperation, "queries and outputs must have ", width, " columns, got [",
      queries.rows(), ", ", queries.cols(), "] and [", outputs.rows(), ", ", outputs.cols(), "]");
  detail::require(
      cache.num_kv_heads() == shape_.num_kv_heads && cache.head_dim() == shape_.head_dim,
      ErrorCode::kShape, kOperation, "the cache must have ", shape_.num_kv_heads, " KV heads of ",
      shape_.head_dim, ", got ", cache.num_kv_heads(), " of ", cache.head_dim());
  detail::require(context.pool.num_threads() <= static_cast<int>(scratch_.size()),
                  ErrorCode::kArgument, kOperation, "the pool must have at most the ",
                  scratch_.size(), " threads given at construction, got ",
                  context.pool.num_threads());
  check_segments(layer, queries.rows(), cache);
  context.pool.parallel_for(
      static_cast<Index>(tasks_.size()), grain_, [&](Index begin, Index end, int thread) {
        for (Index i = begin; i < end; ++i) {
          run_task(layer, tasks_[static_cast<std::size_t>(i)], queries, cache, outputs,
                   context.kernels, scratch_[static_cast<std::size_t>(thread)]);
        }
      });
}

inline void Attention::run_task(int layer, const Task& task, const ConstMatrixRef& queries,
                                const KVStorage& cache, MatrixRef& outputs,
                                const KernelTable& kernels, Scratch& scratch) const {
  const int head_dim = shape_.head_dim;
  const Index stride = state_stride();
  const int num_rows = task.num_tokens * group_size();
  const int last_position = task.first_position + task.num_tokens - 1;
  scale_queries(task, queries, scratch);
  for (int split = 0; split <= last_position; split += kAttentionSplit) {
    float* const states = split == 0 ? scratch.merged.data() : scratch.split.data();
    for (int r = 0; r < num_rows; ++r) detail::reset_state(states + r * stride, head_dim);
    walk_split(layer, task, cache, split, kernels, states, scratch);
    if (split == 0) continue;
    for (int r = 0; r < num_rows; ++r) {
      if (task.first_position + r / group_size() < split) continue;  // sees nothing of this split
      detail::merge_states(scratch.merged.data() + r * stride, states + r * stride, head_dim);
    }
  }
  store_outputs(task, outputs, scratch);
}

inline void Attention::scale_queries(const Task& task, const ConstMatrixRef& queries,
                                     Scratch& scratch) const {
  const Index width = Index{group_size()} * shape_.head_dim;  // the group's heads are adjacent
  float* out = scratch.queries.data();
  for (int token = 0; token < task.num_tokens; ++token) {
    const float* const in =
        queries.data() + (task.first_row + token) * queries.outerStride() + task.kv_head * width;
    for (Index i = 0; i < width; ++i) *out++ = in[i] * shape_.softmax_scale;
  }
}

inline void Attention::load_tile(int layer, const Task& task, const KVStorage& cache,
                                 int first_position, int num_keys, Scratch& scratch) const {
  const int head_dim = shape_.head_dim;
  const Index padded = padded_head_dim(head_dim);
  const ElementType type = cache.element_type();
  float* const row = scratch.key_row.data();
  float* const lanes = scratch.keys.data();
  int key = 0;
  while (key < num_keys) {
    const KVRun run = cache.run(layer, task.sequence, task.kv_head, first_position + key);
    const int end = std::min(num_keys, key + run.num_tokens);
    const std::byte* keys = run.keys;
    const std::byte* values = run.values;
    for (; key < end; ++key, keys += run.stride_bytes, values += run.stride_bytes) {
      load_elements(type, keys, head_dim, row);
      for (Index d = 0; d < head_dim; ++d) lanes[d * kAttentionTile + key] = row[d];
      load_elements(type, values, head_dim, scratch.values.data() + key * padded);
    }
  }
}

inline void Attention::walk_split(int layer, const Task& task, const KVStorage& cache,
                                  int first_position, const KernelTable& kernels, float* states,
                                  Scratch& scratch) const {
  const int head_dim = shape_.head_dim;
  const int end_position =
      std::min(first_position + kAttentionSplit, task.first_position + task.num_tokens);
  const AttentionTile tile{scratch.keys.data(), scratch.values.data(), head_dim};
  for (int begin = first_position; begin < end_position; begin += kAttentionTile) {
    load_tile(layer, task, cache, begin, std::min(kAttentionTile, end_position - begin), scratch);
    scratch.rows.clear();
    for (int r = 0; r < task.num_tokens * group_size(); ++r) {
      const int position = task.first_position + r / group_size();
      if (position < begin) continue;
      scratch.rows.push_back({scratch.queries.data() + Index{r} * head_dim,
                              states + r * state_stride(), 0,
                              std::min(kAttentionTile, position - begin + 1)});
    }
    kernels.attend_tile(tile, scratch.rows.data(), static_cast<Index>(scratch.rows.size()));
  }
}

inline void Attention::store_outputs(const Task& task, MatrixRef& outputs, Scratch& scratch) const {
  const int head_dim = shape_.head_dim;
  for (int r = 0; r < task.num_tokens * group_size(); ++r) {
    float* const state = scratch.merged.data() + r * state_stride();
    const float inverse = 1.0f / join_partial_sums(state + AttentionState::kSums);
    const Index head = Index{task.kv_head} * group_size() + r % group_size();
    float* const out = outputs.data() +
                       (task.first_row + r / group_size()) * outputs.outerStride() +
                       head * head_dim;
    for (int d = 0; d < head_dim; ++d) out[d] = state[AttentionState::kOutput + d] * inverse;
  }
}

}  // namespace kvick::inline v0_1
