// SPDX-License-Identifier: MIT
// Causal grouped-query attention over a cache, for a ragged batch.
//
// Every token of a segment attends to the cached positions 0 to its own, or to those of these that
// an AttentionWindow leaves it. Query head h reads KV head h / (num_heads / num_kv_heads).
//
// Shapes    queries, outputs [rows][num_heads * head_dim].
// Accuracy  f32 with online softmax. Keys are walked in tiles of 64 at absolute positions. The
//           tiles of each 1024 positions share one running softmax (see KernelTable::attend_tile),
//           and these splits are merged in ascending order:
//             m = max(a.m, b.m); u = exp(a.m - m); v = exp(b.m - m);
//             sums = fma(b.sums, v, a.sums * u); output = fma(b.output, v, a.output * u).
//           At the end output * (1 / total), total by the fixed tree. A query is multiplied by the
//           softmax scale first, and for an int8 cache then quantized with one scale
//           (KernelTable::quantize_row). Where a window has left positions between the first ones
//           and itself, a tile that holds some of both is attended to twice, the first ones first;
//           splits without visible key are not merged. A token's result depends on its own sequence
//           only: not on the other rows, the chunk it came in, the cache's layout, threads or ISA.
// Errors    Error(kShape) if operands do not fit the shape given at construction; Error(kArgument)
//           for an impossible shape, segments beyond the operands or what the cache reserved, or a
//           cache that keeps another window than the queries see.
// Threads   See AttentionPlan. Of a task that is cut into splits, who finishes the last one merges
//           them all, in order. One object serves one forward pass at a time. forward() does not
//           allocate; plan() only for more work than ever before.
// Source    Online softmax: Milakov and Gimelshein 2018; Dao et al. 2022. Groups: Ainslie et al.
//           2023.
// Layer     nn: may include core, kernels, cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kvick/cache/kv_storage.hpp"
#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/kernels/compute_context.hpp"
#include "kvick/nn/attention_plan.hpp"  // IWYU pragma: export

namespace kvick::inline v0_1 {

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
  /// What one thread works in.
  struct Scratch {
    AlignedBuffer<float> keys;                // [head_dim][kAttentionTile]
    AlignedBuffer<float> values;              // [kAttentionTile][padded head_dim]
    AlignedBuffer<float> key_scales;          // [kAttentionTile], of int8 keys
    AlignedBuffer<float> queries;             // [rows][head_dim]
    AlignedBuffer<std::int8_t> int8_queries;  // [rows][num_int8_groups][kInt8Group]
    std::vector<Int8Query> int8_rows;         // [rows]
    std::vector<QuantizedGroup> groups;       // of one query
    AlignedBuffer<float> merged;              // [rows] states: the splits so far
    AlignedBuffer<float> split;               // [rows] states: the split being walked
    std::vector<AttentionRow> rows;           // those that see keys of the current tile
  };

  int group_size() const noexcept { return shape_.num_heads / shape_.num_kv_heads; }
  /// Floats from one row's state to the next.
  Index state_stride() const noexcept { return AttentionState::stride(shape_.head_dim); }

  void make_room();

  void check_segments(int layer, Index num_rows, const KVStorage& cache) const;
  void run_task(int layer, const AttentionTask& task, const ConstMatrixRef& queries,
                const KVStorage& cache, MatrixRef& outputs, const KernelTable& kernels,
                Scratch& scratch) const;
  void run_split(int layer, const AttentionTask& task, int split, const ConstMatrixRef& queries,
                 const KVStorage& cache, MatrixRef& outputs, const KernelTable& kernels,
                 Scratch& scratch);
  /// Keys of one kind that a row sees: of the first ones, or of its window.
  enum class Part { kSinks, kWindow };
  struct Keys {
    int begin, end;  // positions
  };

  void prepare_queries(const AttentionTask& task, const ConstMatrixRef& queries,
                       const KVStorage& cache, const KernelTable& kernels, Scratch& scratch) const;
  void quantize_queries(const AttentionTask& task, const KernelTable& kernels,
                        Scratch& scratch) const;
  Keys visible(int position, Part part) const noexcept;
  bool sees_split(int position, int split) const noexcept;
  int row_position(const AttentionTask& task, int row) const noexcept {
    return task.first_position + row / group_size();
  }
  StoredTile stored_keys(int layer, const AttentionTask& task, const KVStorage& cache, int tile,
                         Keys keys, Scratch& scratch) const;
  void attend_tile(int layer, const AttentionTask& task, const KVStorage& cache, int tile,
                   Part part, const KernelTable& kernels, float* states, Scratch& scratch) const;
  void walk_split(int layer, const AttentionTask& task, const KVStorage& cache, int split,
                  const KernelTable& kernels, float* states, Scratch& scratch) const;
  void merge_split(const AttentionTask& task, int split, const KernelTable& kernels, float* merged,
                   const float* states) const noexcept;
  void store_outputs(const AttentionTask& task, float* states, MatrixRef& outputs) const;

  AttentionShape shape_;
  AttentionPlan plan_;
  std::vector<AttentionSegment> segments_;
  std::vector<Scratch> scratch_;           // [threads]
  AlignedBuffer<float> partials_;          // states of the cut tasks, see AttentionTask
  std::vector<std::atomic<int>> pending_;  // splits not walked yet, by cut task
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

inline void reset_state(float* state, int head_dim) noexcept {
  std::fill_n(state, AttentionState::stride(head_dim), 0.0f);
  state[AttentionState::max_offset(head_dim)] = kMinusInfinity;
}

/// Lets a buffer hold at least `count` floats. Growing loses what it holds.
template <class T>
void grow(AlignedBuffer<T>& buffer, Index count) {
  const auto size = static_cast<std::size_t>(count);
  if (buffer.size() < size) buffer = AlignedBuffer<T>(std::max(size, 2 * buffer.size()));
}

}  // namespace detail

inline Attention::Attention(const AttentionShape& shape, int num_threads)
    : shape_(shape), plan_(shape, num_threads) {
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
  const Index padded = padded_head_dim(shape.head_dim);
  for (int i = 0; i < num_threads; ++i) {
    Scratch scratch;
    detail::grow(scratch.keys, Index{shape.head_dim} * kAttentionTile);
    detail::grow(scratch.key_scales, kAttentionTile);
    scratch.groups.resize(static_cast<std::size_t>(num_groups(shape.head_dim)));
    detail::grow(scratch.values, kAttentionTile * padded);
    scratch_.push_back(std::move(scratch));
  }
}

inline void Attention::plan(std::span<const AttentionSegment> segments) {
  segments_.assign(segments.begin(), segments.end());
  plan_.plan(segments);
  make_room();
}

/// Memory for all that is planned.
inline void Attention::make_room() {
  const Index rows = plan_.max_rows();
  for (Scratch& scratch : scratch_) {
    detail::grow(scratch.queries, rows * shape_.head_dim);
    detail::grow(scratch.merged, rows * state_stride());
    detail::grow(scratch.split, rows * state_stride());
    detail::grow(scratch.int8_queries, rows * num_int8_groups(shape_.head_dim) * kInt8Group);
    scratch.rows.reserve(static_cast<std::size_t>(rows));
    scratch.int8_rows.resize(std::max(scratch.int8_rows.size(), static_cast<std::size_t>(rows)));
  }
  detail::grow(partials_, plan_.num_partials() * state_stride());
  const auto num_cut = static_cast<std::size_t>(plan_.num_cut());
  if (pending_.size() < num_cut) pending_ = std::vector<std::atomic<int>>(2 * num_cut);
  for (const AttentionTask& task : plan_.tasks()) {
    if (task.is_cut()) pending_[static_cast<std::size_t>(task.cut_index)] = task.num_splits;
  }
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
  detail::require(!cache.window().is_bounded() || cache.window() == shape_.window,
                  ErrorCode::kArgument, kOperation, "the cache must keep the window of ",
                  shape_.window.size, " and ", shape_.window.num_sinks,
                  " first positions that queries see, got ", cache.window().size, " and ",
                  cache.window().num_sinks);
  check_segments(layer, queries.rows(), cache);
  context.pool.parallel_for(
      static_cast<Index>(plan_.units().size()), plan_.grain(),
      [&](Index begin, Index end, int thread) {
        Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
        for (Index i = begin; i < end; ++i) {
          const AttentionUnit& unit = plan_.units()[static_cast<std::size_t>(i)];
          const AttentionTask& task = plan_.tasks()[unit.task];
          if (!task.is_cut()) {
            run_task(layer, task, queries, cache, outputs, context.kernels, scratch);
          } else {
            run_split(layer, task, unit.split, queries, cache, outputs, context.kernels, scratch);
          }
        }
      });
}

inline void Attention::run_task(int layer, const AttentionTask& task, const ConstMatrixRef& queries,
                                const KVStorage& cache, MatrixRef& outputs,
                                const KernelTable& kernels, Scratch& scratch) const {
  prepare_queries(task, queries, cache, kernels, scratch);
  float* const merged = scratch.merged.data();
  walk_split(layer, task, cache, 0, kernels, merged, scratch);
  for (int split = 1; split < task.num_splits; ++split) {
    walk_split(layer, task, cache, split, kernels, scratch.split.data(), scratch);
    merge_split(task, split, kernels, merged, scratch.split.data());
  }
  store_outputs(task, merged, outputs);
}

/// One split of a cut task; the last one to finish merges all.
inline void Attention::run_split(int layer, const AttentionTask& task, int split,
                                 const ConstMatrixRef& queries, const KVStorage& cache,
                                 MatrixRef& outputs, const KernelTable& kernels, Scratch& scratch) {
  const Index split_size = task.num_rows * state_stride();
  float* const merged = partials_.data() + task.first_partial * state_stride();
  prepare_queries(task, queries, cache, kernels, scratch);
  walk_split(layer, task, cache, split, kernels, merged + split * split_size, scratch);
  std::atomic<int>& pending = pending_[static_cast<std::size_t>(task.cut_index)];
  if (pending.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  pending.store(task.num_splits, std::memory_order_relaxed);  // for the next layer
  for (int s = 1; s < task.num_splits; ++s) {
    merge_split(task, s, kernels, merged, merged + s * split_size);
  }
  store_outputs(task, merged, outputs);
}

inline void Attention::prepare_queries(const AttentionTask& task, const ConstMatrixRef& queries,
                                       const KVStorage& cache, const KernelTable& kernels,
                                       Scratch& scratch) const {
  const Index width = Index{group_size()} * shape_.head_dim;  // the group's heads are adjacent
  Eigen::Map<Matrix>(scratch.queries.data(), task.num_tokens, width) =
      queries.block(task.first_row, task.kv_head * width, task.num_tokens, width) *
      shape_.softmax_scale;
  if (cache.element_type() == ElementType::kInt8) quantize_queries(task, kernels, scratch);
}

inline void Attention::quantize_queries(const AttentionTask& task, const KernelTable& kernels,
                                        Scratch& scratch) const {
  const int head_dim = shape_.head_dim;
  const Index stride = Index{num_int8_groups(head_dim)} * kInt8Group;
  for (int r = 0; r < task.num_rows; ++r) {
    const float* const query = scratch.queries.data() + Index{r} * head_dim;
    const auto total = kernels.quantize_row(query, head_dim, scratch.groups.data());
    std::int8_t* const values = scratch.int8_queries.data() + r * stride;
    for (Index d = 0; d < stride; d += kGroupSize) {  // zeros follow the last element of a group
      const std::int8_t* const from =
          scratch.groups[static_cast<std::size_t>(d / kGroupSize)].values;
      std::copy_n(from, std::min<Index>(kGroupSize, stride - d), values + d);
    }
    scratch.int8_rows[static_cast<std::size_t>(r)] = {values, total.scale, total.minus_sum};
  }
}

/// The positions of one kind that the query at `position` sees. Where both kinds meet, all are of
/// its window.
inline Attention::Keys Attention::visible(int position, Part part) const noexcept {
  const int window = shape_.window.first_position(position);
  const bool meet = window <= shape_.window.num_sinks;
  if (part == Part::kWindow) return {meet ? 0 : window, position + 1};
  return {0, meet ? 0 : shape_.window.num_sinks};
}

inline bool Attention::sees_split(int position, int split) const noexcept {
  const int begin = split * kAttentionSplit;
  if (position < begin) return false;
  const Keys window = visible(position, Part::kWindow);
  return begin < visible(position, Part::kSinks).end || window.begin - begin < kAttentionSplit;
}

/// Positions `keys` of the tile that begins at `tile`, as far as the cache has them adjacent.
inline StoredTile Attention::stored_keys(int layer, const AttentionTask& task,
                                         const KVStorage& cache, int tile, Keys keys,
                                         Scratch& scratch) const {
  const int position = keys.begin;
  const KVRun run = cache.run(layer, task.sequence, task.kv_head, position);
  // Transposing reads lines in an order that hardware does not foresee: asked for one tile ahead,
  // loading and attending to a tile of 8 rows in memory takes 1,450 ns in place of 3,000.
  KVRun upcoming;
  const int end_position = task.first_position + task.num_tokens;
  if (position >= visible(task.first_position, Part::kWindow).begin &&
      end_position - position > kAttentionTile) {
    upcoming = cache.run(layer, task.sequence, task.kv_head, position + kAttentionTile);
  }
  const ElementRows rows{.type = cache.element_type(),
                         .data = run.keys,
                         .stride_bytes = run.stride_bytes,
                         .num_rows = std::min(keys.end - position, run.num_tokens),
                         .head_dim = shape_.head_dim,
                         .upcoming = upcoming.keys};
  StoredTile stored{.keys = rows,
                    .values = rows,
                    .key_scales = run.key_scales,
                    .first_key = position - tile,
                    .key_room = scratch.keys.data(),
                    .value_room = scratch.values.data(),
                    .scale_room = scratch.key_scales.data()};
  stored.values.data = run.values;
  stored.values.upcoming = upcoming.values;
  stored.values.scales = run.value_scales;
  return stored;
}

/// Lets all rows that see keys of one kind in a tile attend to them.
inline void Attention::attend_tile(int layer, const AttentionTask& task, const KVStorage& cache,
                                   int tile, Part part, const KernelTable& kernels, float* states,
                                   Scratch& scratch) const {
  const int head_dim = shape_.head_dim;
  const int tile_end = tile + std::min(kAttentionTile, std::numeric_limits<int>::max() - tile);
  Keys seen{tile_end, tile};
  scratch.rows.clear();
  for (int r = 0; r < task.num_rows; ++r) {
    const Keys keys = visible(row_position(task, r), part);
    const int begin = std::max(keys.begin, tile);
    const int end = std::min(keys.end, tile_end);
    if (begin >= end) continue;
    seen = {std::min(seen.begin, begin), std::max(seen.end, end)};
    scratch.rows.push_back({scratch.queries.data() + Index{r} * head_dim,
                            states + r * state_stride(), begin - tile, end - tile,
                            scratch.int8_rows[static_cast<std::size_t>(r)]});
  }
  if (scratch.rows.empty()) return;
  const auto num_rows = static_cast<Index>(scratch.rows.size());
  StoredTile stored = stored_keys(layer, task, cache, tile, seen, scratch);
  if (stored.keys.num_rows == seen.end - seen.begin) {
    return kernels.attend_stored_tile(stored, scratch.rows.data(), num_rows);
  }
  for (;;) {
    kernels.load_keys(stored.keys, stored.key_room + stored.first_key);
    kernels.load_values(stored.values,
                        stored.value_room + Index{stored.first_key} * padded_head_dim(head_dim));
    if (stored.key_scales != nullptr) {
      std::copy_n(stored.key_scales, stored.keys.num_rows, stored.scale_room + stored.first_key);
    }
    seen.begin += stored.keys.num_rows;
    if (seen.begin == seen.end) break;
    stored = stored_keys(layer, task, cache, tile, seen, scratch);
  }
  AttentionTile operand{scratch.keys.data(), scratch.values.data(), head_dim};
  if (cache.element_type() == ElementType::kInt8) {
    operand.keys = nullptr;
    operand.int8_keys = reinterpret_cast<const std::int8_t*>(scratch.keys.data());
    operand.key_scales = scratch.key_scales.data();
  }
  kernels.attend_tile(operand, scratch.rows.data(), num_rows);
}

/// The states of one split, from fresh ones.
inline void Attention::walk_split(int layer, const AttentionTask& task, const KVStorage& cache,
                                  int split, const KernelTable& kernels, float* states,
                                  Scratch& scratch) const {
  const int first_position = split * kAttentionSplit;
  // One more split may begin beyond the largest int.
  const int end_position =
      first_position +
      std::min(kAttentionSplit, task.first_position + task.num_tokens - first_position);
  for (int r = 0; r < task.num_rows; ++r) {
    detail::reset_state(states + r * state_stride(), shape_.head_dim);
  }
  for (int tile = first_position; tile < end_position; tile += kAttentionTile) {
    if (shape_.window.is_bounded()) {
      attend_tile(layer, task, cache, tile, Part::kSinks, kernels, states, scratch);
    }
    attend_tile(layer, task, cache, tile, Part::kWindow, kernels, states, scratch);
  }
}

/// Merges the states of a split into those of all before it.
inline void Attention::merge_split(const AttentionTask& task, int split, const KernelTable& kernels,
                                   float* merged, const float* states) const noexcept {
  for (int r = 0; r < task.num_rows; ++r) {
    if (!sees_split(row_position(task, r), split)) continue;
    kernels.merge_states(merged + r * state_stride(), states + r * state_stride(), shape_.head_dim);
  }
}

inline void Attention::store_outputs(const AttentionTask& task, float* states,
                                     MatrixRef& outputs) const {
  using Head = Eigen::Map<Eigen::RowVectorXf>;
  const int head_dim = shape_.head_dim;
  for (int r = 0; r < task.num_rows; ++r) {
    float* const state = states + r * state_stride();
    const float inverse = 1.0f / join_partial_sums(state + AttentionState::kSums);
    const Index head = Index{task.kv_head} * group_size() + r % group_size();
    outputs.block(task.first_row + r / group_size(), head * head_dim, 1, head_dim) =
        Head(state + AttentionState::kOutput, head_dim) * inverse;
  }
}

}  // namespace kvick::inline v0_1
