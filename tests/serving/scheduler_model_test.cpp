// SPDX-License-Identifier: MIT
// Random requests against a scheduler with little room: whatever is batched, chunked, shared,
// preempted, drafted or cancelled, each request ends once and with the tokens it has alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "kvick/serving/scheduler.hpp"
#include "serving/hash_model.hpp"

namespace kvick {
namespace {

using support::HashModel;
using Tokens = std::vector<TokenId>;

constexpr int kMaxSeqLen = 120;

class RandomLoad {
 public:
  explicit RandomLoad(unsigned seed)
      : random_(seed),
        model_({.num_blocks = up_to(8, 14),
                .block_tokens = 16,
                .num_sequences = 32,
                .max_seq_len = kMaxSeqLen,
                .reuses_prefixes = up_to(0, 3) > 0}),
        scheduler_(options(), model_) {
    for (Tokens& text : texts_) {
      for (int i = 0; i < kMaxSeqLen; ++i) text.push_back(up_to(0, HashModel::kVocabSize - 1));
    }
  }

  void run(int num_requests) {
    while (num_added_ < num_requests || !scheduler_.is_done()) {
      while (num_added_ < num_requests && up_to(0, 4) < 2) add();
      if (up_to(0, 9) == 0) cancel_one();
      if (up_to(0, 2) > 0) propose_drafts();
      const Step step = scheduler_.schedule();
      if (!step) {
        ASSERT_TRUE(scheduler_.is_done());
        add();  // or nothing would ever come
        continue;
      }
      ASSERT_NO_FATAL_FAILURE(check_step(step));
      if (up_to(0, 19) == 0) {
        scheduler_.abandon(step);
        continue;
      }
      const Tokens next = model_.forward(step.batch);
      while (up_to(0, 9) == 0) cancel_one();
      now_ += up_to(1, 20);
      scheduler_.complete(step, next);
      ASSERT_NO_FATAL_FAILURE(model_.check_blocks());
      if (up_to(0, 9) == 0) {
        ASSERT_NO_FATAL_FAILURE(take_finished());
      }
    }
    take_finished();
    EXPECT_TRUE(requests_.empty()) << "each has ended once";
    EXPECT_EQ(model_.num_free_blocks(), model_.num_blocks());
    const SchedulerStatistics statistics = scheduler_.statistics();
    EXPECT_EQ(statistics.num_running, 0);
    EXPECT_EQ(statistics.num_waiting, 0);
    EXPECT_EQ(statistics.num_waiting_tokens, 0);
    EXPECT_EQ(statistics.num_finished, statistics.num_added);
    num_preemptions_ = statistics.num_preemptions;
    num_accepted_ = statistics.num_accepted_tokens;
    num_rejected_ = statistics.num_draft_tokens - statistics.num_accepted_tokens;
    num_cached_ = statistics.num_cached_tokens;
  }

  std::int64_t num_preemptions_ = 0;
  std::int64_t num_accepted_ = 0;
  std::int64_t num_rejected_ = 0;
  std::int64_t num_cached_ = 0;
  std::map<FinishReason, int> num_finished_;

 private:
  struct Sent {
    Tokens prompt;
    int max_new_tokens = 0;
    Tokens stop_tokens;
    bool is_cancelled = false;
  };

  int up_to(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

  SchedulerOptions options() {
    const int batch_size = up_to(1, 32);
    return {.max_batch_size = batch_size,
            .max_num_batched_tokens = batch_size + up_to(0, 60),
            .max_step_ms = up_to(0, 1) * 10.0,
            .min_prefill_share = 0.1 * up_to(1, 10),
            .ageing_ms = 10.0 * up_to(0, 10),
            .clock_ms = [this] { return now_; }};
  }

  void add() {
    Request request;
    const Tokens& text = texts_[static_cast<std::size_t>(up_to(0, 2))];
    request.prompt.assign(text.begin(), text.begin() + up_to(1, 100));
    if (up_to(0, 1) == 0) request.prompt.back() = up_to(0, HashModel::kVocabSize - 1);
    request.max_new_tokens =
        std::min(up_to(1, 60), kMaxSeqLen - static_cast<int>(request.prompt.size()));
    request.priority = up_to(-2, 2);
    request.num_samples = up_to(0, 4) == 0 ? up_to(2, 5) : 1;
    if (up_to(0, 9) == 0) request.timeout_ms = up_to(1, 2000);
    for (int i = up_to(0, 20); i > 0; --i) {
      request.stop_tokens.push_back(up_to(0, HashModel::kVocabSize - 1));
    }
    const Sent sent{request.prompt, request.max_new_tokens, request.stop_tokens};
    const int num_samples = request.num_samples;
    const auto id = scheduler_.add_request(std::move(request));
    ASSERT_TRUE(id.has_value());
    for (int i = 0; i < num_samples; ++i) requests_[*id + i] = sent;
    num_added_ += num_samples;
  }

  RequestId any_request() {
    auto found = requests_.lower_bound(up_to(0, num_added_));
    return found == requests_.end() ? requests_.begin()->first : found->first;
  }

  void cancel_one() {
    if (requests_.empty()) return;
    const RequestId id = any_request();
    requests_[id].is_cancelled |= scheduler_.cancel(id);
    EXPECT_FALSE(scheduler_.cancel(id));
    EXPECT_TRUE(scheduler_.is_done(id));
  }

  /// What will come, with a mistake somewhere.
  void propose_drafts() {
    for (int i = 0; i < 3 && !requests_.empty(); ++i) {
      const RequestId id = any_request();
      const auto so_far = scheduler_.tokens(id);
      Tokens drafts = HashModel::continuation(so_far, up_to(1, 8));
      const int mistake = up_to(0, 12);
      if (mistake < static_cast<int>(drafts.size())) ++drafts[static_cast<std::size_t>(mistake)];
      scheduler_.set_drafts(id, drafts);
    }
  }

  void check_step(const Step& step) {
    const SchedulerOptions& options = scheduler_.options();
    ASSERT_LE(step.batch.num_tokens(), options.max_num_batched_tokens);
    ASSERT_EQ(step.batch.segments().size(), step.segments.size());
    ASSERT_LE(static_cast<int>(step.segments.size()), options.max_batch_size);
    Index row = 0;
    for (std::size_t i = 0; i < step.segments.size(); ++i) {
      const StepSegment& entry = step.segments[i];
      const Segment& segment = step.batch.segments()[i];
      ASSERT_LT(segment.sequence, options.max_batch_size);
      ASSERT_EQ(entry.first_row, row);
      ASSERT_EQ(entry.num_rows, segment.num_logits);
      row += entry.num_rows;
      ASSERT_FALSE(scheduler_.is_done(entry.request));
      const auto known = scheduler_.tokens(entry.request);
      const auto first = static_cast<std::size_t>(segment.first_position);
      const auto count = segment.tokens.size() - static_cast<std::size_t>(entry.num_drafts);
      ASSERT_LE(first + count, known.size());
      ASSERT_EQ(entry.num_rows > 0, first + count == known.size()) << "no logits inside a prompt";
      for (std::size_t k = 0; k < count; ++k) ASSERT_EQ(segment.tokens[k], known[first + k]);
    }
  }

  void take_finished() {
    for (const RequestOutput& output : scheduler_.take_finished()) {
      const auto found = requests_.find(output.id);
      ASSERT_NE(found, requests_.end()) << "ended twice";
      const Sent& sent = found->second;
      ++num_finished_[output.reason];
      const auto count = static_cast<int>(output.tokens.size());
      ASSERT_EQ(output.tokens, HashModel::continuation(sent.prompt, count));
      ASSERT_EQ(output.progress.num_output_tokens, count);
      ASSERT_LE(count, sent.max_new_tokens);
      const auto stop = std::find_first_of(output.tokens.begin(), output.tokens.end(),
                                           sent.stop_tokens.begin(), sent.stop_tokens.end());
      if (output.reason == FinishReason::kStop) {
        ASSERT_EQ(stop, output.tokens.end() - 1);
      } else {
        ASSERT_EQ(stop, output.tokens.end());
      }
      const int num_fit = model_.num_blocks() * 16 - static_cast<int>(sent.prompt.size());
      if (output.reason == FinishReason::kLength) {
        ASSERT_GE(count, std::min(sent.max_new_tokens, num_fit));
      }
      ASSERT_EQ(output.reason == FinishReason::kCancelled, sent.is_cancelled);
      requests_.erase(found);
    }
  }

  double now_ = 0;
  std::mt19937 random_;
  HashModel model_;
  Scheduler<HashModel> scheduler_;
  std::array<Tokens, 3> texts_;
  std::map<RequestId, Sent> requests_;
  int num_added_ = 0;
};

TEST(SchedulerModel, EachRequestEndsOnceWithTheTokensItHasAlone) {
  std::int64_t num_preemptions = 0, num_accepted = 0, num_rejected = 0, num_cached = 0;
  std::map<FinishReason, int> num_finished;
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomLoad load(seed);
    load.run(100);
    if (HasFailure()) return;
    num_preemptions += load.num_preemptions_;
    num_accepted += load.num_accepted_;
    num_rejected += load.num_rejected_;
    num_cached += load.num_cached_;
    for (const auto& [reason, count] : load.num_finished_) num_finished[reason] += count;
  }
  // The load met what it was to meet.
  EXPECT_GT(num_preemptions, 500);
  EXPECT_GT(num_accepted, 2000);
  EXPECT_GT(num_rejected, 2000);
  EXPECT_GT(num_cached, 20'000);
  for (const auto reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
                            FinishReason::kTimeout}) {
    EXPECT_GT(num_finished[reason], 100) << name(reason);
  }
}

}  // namespace
}  // namespace kvick
