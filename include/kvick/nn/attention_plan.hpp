// SPDX-License-Identifier: MIT
// How the attention of a ragged batch is cut into work for threads.
//
// Tasks are (KV head, block of a segment's queries). A task that would keep one thread busy while
// others wait is cut into its splits of kAttentionSplit keys, as in decoding one long sequence with
// few KV heads. Units, what a thread takes at a time, are whole tasks or single splits, and the
// costliest come first. No choice here changes a bit of any result.
//
// Errors    None: segments that fit no cache are planned like others, and refused by who runs them.
// Threads   plan() alone; it allocates only for more work than ever before.
// Layer     nn: may include core, kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "kvick/core/matrix.hpp"
#include "kvick/kernels/attention_tile.hpp"
#include "kvick/kernels/attention_window.hpp"
#include "kvick/kernels/compute_context.hpp"

namespace kvick::inline v0_1 {

struct AttentionShape {
  int num_heads = 0;  ///< a multiple of num_kv_heads
  int num_kv_heads = 0;
  int head_dim = 0;
  float softmax_scale = 0.0f;   ///< 0 means 1 / sqrt(head_dim)
  AttentionWindow window = {};  ///< what a query sees of the positions before it
};

/// Consecutive tokens of one sequence; their keys and values are in the cache already.
struct AttentionSegment {
  int sequence = 0;
  int first_position = 0;
  Index first_row = 0;  ///< of queries and outputs
  int num_tokens = 0;
};

/// A block of a segment's queries against one KV head.
struct AttentionTask {
  int sequence;
  int kv_head;
  int first_position;
  Index first_row;
  int num_tokens;
  int num_rows;  ///< tokens times heads of a group
  int num_splits;
  Index first_partial = -1;  ///< where its states begin, in states, by split and row; -1: not cut
  Index cut_index = -1;      ///< counts the tasks that are cut; -1: not cut

  bool is_cut() const noexcept { return cut_index >= 0; }
};

/// A whole task, or one split of a task that is cut.
struct AttentionUnit {
  std::size_t task;
  int split;
  Index cost;
};

class AttentionPlan {
 public:
  /// Rows of queries that share one loading of a tile, which costs as much as some 5 rows; a
  /// multiple of the 6 rows that AVX-512 takes at a time.
  static constexpr int kBlockRows = 96;

  /// States of cut tasks, in bytes, at most; tasks beyond are not cut.
  static constexpr Index kMaxPartialBytes = Index{64} << 20;

  /// `shape` must be possible; the plan is for `num_threads`.
  AttentionPlan(const AttentionShape& shape, int num_threads) noexcept
      : shape_(shape), num_threads_(num_threads) {}

  void plan(std::span<const AttentionSegment> segments);

  std::span<const AttentionTask> tasks() const noexcept { return tasks_; }
  std::span<const AttentionUnit> units() const noexcept { return units_; }

  Index grain() const noexcept { return grain_; }        ///< units that a thread takes at a time
  Index max_rows() const noexcept { return max_rows_; }  ///< of any task
  Index num_partials() const noexcept { return num_partials_; }  ///< states of all cut tasks
  Index num_cut() const noexcept { return num_cut_; }            ///< tasks that are cut

 private:
  static constexpr Index kEnd = std::numeric_limits<Index>::max();

  int group_size() const noexcept { return shape_.num_heads / shape_.num_kv_heads; }
  void add_tasks(const AttentionSegment& segment, int kv_head);
  void add_units(std::size_t task_index, Index total_cost);
  bool cut(AttentionTask& task, Index total_cost) noexcept;
  Index cost(const AttentionTask& task, Index first_position, Index end_position) const noexcept;

  AttentionShape shape_;
  int num_threads_;
  std::vector<AttentionTask> tasks_;
  std::vector<AttentionUnit> units_;
  Index grain_ = 1;
  Index max_rows_ = 0;
  Index num_partials_ = 0;
  Index num_cut_ = 0;
};

// ---- Implementation: nothing below is API ----

inline void AttentionPlan::plan(std::span<const AttentionSegment> segments) {
  tasks_.clear();
  units_.clear();
  max_rows_ = num_partials_ = num_cut_ = 0;
  for (const AttentionSegment& segment : segments) {
    for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) add_tasks(segment, kv_head);
  }
  Index total_cost = 0;
  for (const AttentionTask& task : tasks_) total_cost += cost(task, 0, kEnd);
  for (std::size_t i = 0; i < tasks_.size(); ++i) add_units(i, total_cost);
  std::sort(units_.begin(), units_.end(), [](const AttentionUnit& a, const AttentionUnit& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.task < b.task;
  });
  // A unit of cost is two multiplications for each element of a head.
  const bool is_small = total_cost <= detail::kSerialWork / (2 * shape_.head_dim);
  grain_ = is_small ? std::max<Index>(static_cast<Index>(units_.size()), 1) : 1;
}

inline void AttentionPlan::add_tasks(const AttentionSegment& segment, int kv_head) {
  const int block_tokens = std::max(1, kBlockRows / group_size());
  for (Index token = 0; token < segment.num_tokens; token += block_tokens) {
    const int num_tokens =
        static_cast<int>(std::min<Index>(block_tokens, segment.num_tokens - token));
    const Index first_position =
        segment.first_position + token;  // what fits no cache may be larger
    tasks_.push_back(
        {.sequence = segment.sequence,
         .kv_head = kv_head,
         .first_position = static_cast<int>(first_position),
         .first_row = segment.first_row + token,
         .num_tokens = num_tokens,
         .num_rows = num_tokens * group_size(),
         .num_splits = static_cast<int>((first_position + num_tokens - 1) / kAttentionSplit + 1)});
    max_rows_ = std::max<Index>(max_rows_, tasks_.back().num_rows);
  }
}

/// About the time that a task takes over some positions.
inline Index AttentionPlan::cost(const AttentionTask& task, Index first_position,
                                 Index end_position) const noexcept {
  constexpr Index kLoading = 5;  // a tile is loaded in the time of some 5 rows
  const Index end = std::min(end_position, Index{task.first_position} + task.num_tokens);
  const auto num_keys = [=](Index begin, Index until) {
    return std::max<Index>(std::min(end, until) - std::max(first_position, begin), 0);
  };
  const Index window = shape_.window.first_position(task.first_position);
  const Index sinks = std::min<Index>(shape_.window.num_sinks, window);
  return (num_keys(0, sinks) + num_keys(window, end)) * (task.num_rows + kLoading);
}

inline void AttentionPlan::add_units(std::size_t task_index, Index total_cost) {
  AttentionTask& task = tasks_[task_index];
  if (!cut(task, total_cost)) {
    units_.push_back({task_index, 0, cost(task, 0, kEnd)});
    return;
  }
  for (int split = 0; split < task.num_splits; ++split) {
    const Index begin = Index{split} * kAttentionSplit;
    units_.push_back({task_index, split, cost(task, begin, begin + kAttentionSplit)});
  }
}

/// Cuts a task that is more than a quarter of a thread's share; whether it did.
inline bool AttentionPlan::cut(AttentionTask& task, Index total_cost) noexcept {
  if (num_threads_ == 1 || task.num_splits <= 1) return false;
  if (cost(task, 0, kEnd) <= total_cost / (Index{4} * num_threads_)) return false;
  constexpr Index kFloatBytes = sizeof(float);
  const Index max_partials =
      kMaxPartialBytes / (AttentionState::stride(shape_.head_dim) * kFloatBytes);
  const Index num_states = Index{task.num_splits} * task.num_rows;
  if (num_states > max_partials - num_partials_) return false;
  task.first_partial = num_partials_;
  task.cut_index = num_cut_++;
  num_partials_ += num_states;
  return true;
}

}  // namespace kvick::inline v0_1
