// SPDX-License-Identifier: MIT
// A small model that drafts for the requests of an engine, all of them in each of its passes.
//
// Private to the engine. The model has a cache of its own, with a sequence per request. It keeps
// what drafts and text have in common, so a pass computes what was accepted or added since; of a
// request that it has not met, or whose sequence had to go, the whole text, at most
// `max_pass_tokens` per step, and drafts nothing before that is done. Sequences go, the longest
// unused first, where others need their slot or blocks; a text too long for the cache gets no
// drafts.
//
// Units     Times in milliseconds of the engine's clock.
// Threads   One at a time.
// Layer     serving: may include core, cache, model, sampling, speculative.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvick/cache/block_pool.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/serving/request.hpp"
#include "kvick/serving/sequence_room.hpp"
#include "kvick/speculative/draft_source.hpp"

namespace kvick::inline v0_1::detail {

/// Drafts wanted for a request, and what came of it.
struct DraftJob {
  RequestId request = 0;
  std::span<const TokenId> tokens;  ///< prompt and output
  const PrefixKey* prefix_key = nullptr;
  std::uint64_t output_index = 0;
  int max_tokens = 1;
  Sampler* sampler = nullptr;  ///< the request's own

  std::vector<TokenId>* drafts = nullptr;  ///< empty before
  double ms = 0;                           ///< its share of the time that drafting took
  bool is_measure = true;                  ///< this one's text was known, and no other was long
  std::optional<std::string> error = std::nullopt;
};

class BatchDrafter {
 public:
  BatchDrafter() = default;
  virtual ~BatchDrafter() = default;
  BatchDrafter(const BatchDrafter&) = delete;
  BatchDrafter& operator=(const BatchDrafter&) = delete;

  virtual void propose(std::span<DraftJob> jobs) = 0;
  /// The request has ended.
  virtual void forget(RequestId request) = 0;
  /// Whether the request has a sequence.
  virtual bool knows(RequestId request) const = 0;
  /// Requests that have a sequence.
  virtual int num_sequences() const noexcept = 0;
};

struct ModelDrafterOptions {
  CacheOptions cache = {};
  int max_pass_tokens = 512;
  std::function<double()> clock_ms = {};
};

template <LanguageModel Model>
class ModelDrafter final : public BatchDrafter {
 public:
  ModelDrafter(Model& model, ModelDrafterOptions options)
      : model_(model),
        options_(std::move(options)),
        cache_(std::as_const(model).make_cache(options_.cache)),
        slots_(cache_, options_.cache.num_sequences) {}

  void propose(std::span<DraftJob> jobs) override;
  void forget(RequestId request) override;
  bool knows(RequestId request) const override { return lanes_.contains(request); }
  int num_sequences() const noexcept override { return static_cast<int>(lanes_.size()); }

 private:
  /// The sequence of a request.
  struct Lane {
    int slot = kNoSlot;
    std::vector<TokenId> text;  // what is cached, and what is to be computed next
    std::int64_t last_round = 0;
  };
  struct Work {
    DraftJob* job = nullptr;
    Lane* lane = nullptr;
    bool has_logits = false;  // of the pass
  };

  Lane* lane_for(const DraftJob& job);
  void follow(Lane& lane, std::span<const TokenId> tokens);
  bool evict_idle();
  bool reserve(const Lane& lane, int num_tokens);
  std::size_t num_left(const Lane& lane) const {
    return lane.text.size() - static_cast<std::size_t>(cache_.length(lane.slot));
  }
  void run_pass();
  void build_batch();
  void evaluate();
  bool draw(Work& work, Index row);
  void fail(DraftJob& job, std::string_view what);

  Model& model_;
  ModelDrafterOptions options_;
  typename Model::Cache cache_;
  RoomSlots<typename Model::Cache> slots_;
  std::unordered_map<RequestId, Lane> lanes_;
  std::int64_t round_ = 0;

  // Of the pass; they only grow.
  std::vector<Work> working_;
  Batch batch_;
  Matrix logits_;
};

// ---- Implementation: nothing below is API ----

template <LanguageModel Model>
void ModelDrafter<Model>::forget(RequestId request) {
  const auto found = lanes_.find(request);
  if (found == lanes_.end()) return;
  slots_.end(found->second.slot);
  lanes_.erase(found);
}

template <LanguageModel Model>
void ModelDrafter<Model>::fail(DraftJob& job, std::string_view what) {
  job.error = std::string(what);
  job.drafts->clear();
  forget(job.request);
}

/// Makes room by the sequence that was not used for longest; false if all are in use.
template <LanguageModel Model>
bool ModelDrafter<Model>::evict_idle() {
  const auto oldest = std::min_element(lanes_.begin(), lanes_.end(), [](auto& a, auto& b) {
    return a.second.last_round < b.second.last_round;
  });
  if (oldest == lanes_.end() || oldest->second.last_round == round_) return false;
  forget(oldest->first);
  return true;
}

template <LanguageModel Model>
typename ModelDrafter<Model>::Lane* ModelDrafter<Model>::lane_for(const DraftJob& job) {
  if (const auto found = lanes_.find(job.request); found != lanes_.end()) {
    follow(found->second, job.tokens);
    return &found->second;
  }
  std::optional<int> slot;
  do {
    slot = slots_.begin(job.tokens, *job.prefix_key, {}, 0);
  } while (!slot && evict_idle());
  if (!slot) return nullptr;
  Lane& lane = lanes_[job.request];
  lane = {.slot = *slot, .text = {job.tokens.begin(), job.tokens.end()}, .last_round = round_};
  return &lane;
}

/// Keeps of the cache what is true of the text, but never all of it: its last logits are gone.
template <LanguageModel Model>
void ModelDrafter<Model>::follow(Lane& lane, std::span<const TokenId> tokens) {
  const auto differs =
      std::mismatch(lane.text.begin(), lane.text.end(), tokens.begin(), tokens.end());
  const auto num_same = static_cast<int>(differs.second - tokens.begin());
  const int num_kept = std::min(num_same, static_cast<int>(tokens.size()) - 1);
  if (cache_.length(lane.slot) > num_kept) truncate_or_release(cache_, lane.slot, num_kept);
  lane.text.erase(differs.first, lane.text.end());
  lane.text.insert(lane.text.end(), differs.second, tokens.end());
}

template <LanguageModel Model>
void ModelDrafter<Model>::propose(std::span<DraftJob> jobs) {
  constexpr std::size_t kLongTail = kMaxDraftTokens + 1;  // all accepted, and one more
  ++round_;
  for (const DraftJob& job : jobs) {  // before any of them looks for a slot
    const auto found = lanes_.find(job.request);
    if (found != lanes_.end()) found->second.last_round = round_;
  }
  working_.clear();
  bool has_long_tail = false;
  for (DraftJob& job : jobs) {
    if (job.tokens.size() > static_cast<std::size_t>(cache_.max_seq_len())) continue;
    job.is_measure = lanes_.contains(job.request);
    Lane* const lane = lane_for(job);
    if (lane == nullptr) continue;
    working_.push_back({.job = &job, .lane = lane});
    has_long_tail = has_long_tail || num_left(*lane) > kLongTail;
  }
  // Those that have most to compute must not hold up the others.
  std::stable_sort(working_.begin(), working_.end(), [&](const Work& a, const Work& b) {
    return num_left(*a.lane) < num_left(*b.lane);
  });
  while (!working_.empty()) run_pass();
  for (DraftJob& job : jobs) job.is_measure = job.is_measure && !has_long_tail;
}

template <LanguageModel Model>
bool ModelDrafter<Model>::reserve(const Lane& lane, int num_tokens) {
  if (cache_.length(lane.slot) + num_tokens > cache_.max_seq_len()) return false;
  while (!cache_.reserve(lane.slot, num_tokens)) {
    if (!evict_idle()) return false;
  }
  return true;
}

/// What each has to compute, as far as the budget goes; those without any leave.
template <LanguageModel Model>
void ModelDrafter<Model>::build_batch() {
  batch_.clear();
  auto left = static_cast<std::size_t>(options_.max_pass_tokens);
  std::erase_if(working_, [&](Work& work) {
    const Lane& lane = *work.lane;
    const auto first = static_cast<std::size_t>(cache_.length(lane.slot));
    const std::size_t count = std::min(num_left(lane), left);
    if (count == 0 || !reserve(lane, static_cast<int>(count))) return true;
    work.has_logits = first + count == lane.text.size();
    batch_.add({.sequence = lane.slot,
                .first_position = static_cast<int>(first),
                .tokens = std::span<const TokenId>(lane.text).subspan(first, count),
                .num_logits = work.has_logits ? 1 : 0});
    left -= count;
    return false;
  });
}

template <LanguageModel Model>
void ModelDrafter<Model>::evaluate() {
  const Index num_rows = batch_.num_logits();
  if (logits_.rows() < num_rows) logits_.resize(num_rows, model_.vocab_size());
  model_.forward(batch_, cache_, logits_.topRows(num_rows));
  for (const Segment& segment : batch_.segments()) cache_.commit(segment.sequence, segment.tokens);
}

template <LanguageModel Model>
void ModelDrafter<Model>::run_pass() {
  const double start_ms = options_.clock_ms();
  build_batch();
  if (working_.empty()) return;
  std::optional<std::string> error;
  try {
    evaluate();
  } catch (const std::exception& failure) {
    error = failure.what();
  } catch (...) {
    error = "the draft model threw something that is no std::exception";
  }
  if (error) {
    for (Work& work : working_) fail(*work.job, *error);
    working_.clear();
    return;
  }
  const double share_ms = (options_.clock_ms() - start_ms) / static_cast<double>(working_.size());
  Index row = 0;
  std::erase_if(working_, [&](Work& work) {
    work.job->ms += share_ms;
    return !work.has_logits || !draw(work, row++);
  });
}

/// The next draft, drawn as the request would draw it; whether another one is wanted.
template <LanguageModel Model>
bool ModelDrafter<Model>::draw(Work& work, Index row) {
  DraftJob& job = *work.job;
  std::vector<TokenId>& text = work.lane->text;
  try {
    const std::span<const float> logits(logits_.row(row).data(),
                                        static_cast<std::size_t>(logits_.cols()));
    const TokenId token = job.sampler->sample(logits, job.output_index + job.drafts->size(), text);
    job.drafts->push_back(token);
    text.push_back(token);
  } catch (const std::exception& error) {
    fail(job, error.what());
    return false;
  }
  const auto& ends = job.sampler->options().end_tokens;
  const bool is_end = std::find(ends.begin(), ends.end(), job.drafts->back()) != ends.end();
  return !is_end && job.drafts->size() < static_cast<std::size_t>(job.max_tokens);
}

}  // namespace kvick::inline v0_1::detail
