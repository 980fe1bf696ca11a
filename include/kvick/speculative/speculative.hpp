// SPDX-License-Identifier: MIT
// Speculative decoding: several tokens per forward pass of the model, and the same tokens as
// without.
//
//   auto result = kvick::speculative_decode(draft_model, model, prompt, {.draft_tokens = 5});
//   auto result = kvick::speculative_decode(kvick::PromptLookup(), model, prompt, {...});
//
// A round asks a DraftSource for the next k tokens, evaluates them in one forward pass behind the
// last token, and draws the token of each position until one differs from the draft: that one
// stands, what was drafted after it is void. Reading the weights is what a pass costs, so 5 tokens
// cost little more than 1.
//
// Accuracy  In the default mode, and with greedy choice in both, tokens are those of plain decoding
//           (NoDraft) with the same options, whatever is drafted: logits do not depend on the
//           batch, and each token is drawn by the same sampler from the same random numbers. See
//           speculative_sampler.hpp on the other mode.
// Cache     After each round, the cache holds what plain decoding would hold: all tokens but the
//           last, and all of them at an end token.
// Errors    Error(kArgument) for options out of range, an empty prompt and for sources that propose
//           tokens outside of the vocabulary or more than asked; what model and sampler throw. A
//           full cache is no error: the text ends. After an error, text and cache are those before
//           the round or after tokens that it had drawn; the next round goes on from there.
// Threads   One at a time.
// Source    Leviathan et al. 2023, Chen et al. 2023.
// Layer     speculative: may include core, model, sampling.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/speculative/adaptive_draft.hpp"
#include "kvick/speculative/draft_model.hpp"
#include "kvick/speculative/draft_source.hpp"
#include "kvick/speculative/evaluate_tail.hpp"
#include "kvick/speculative/speculative_sampler.hpp"
#include "kvick/speculative/statistics.hpp"

namespace kvick::inline v0_1 {

/// A token as it is drawn.
struct SpeculativeToken {
  TokenId token = 0;
  std::uint64_t output_index = 0;
  bool is_drafted = false;        ///< drafted and accepted
  std::span<const float> logits;  ///< that it was drawn from, for log probabilities
};

struct SpeculativeOptions {
  int max_new_tokens = 128;
  int draft_tokens = 5;  ///< most drafted per round, in [0, kMaxDraftTokens]
  /// Drafts fewer, or none, where that is faster. The tokens do not depend on it, except in mode
  /// kDistributionExact, where only their distribution does not.
  bool adapts = true;
  SpeculationMode mode = SpeculationMode::kSeedExact;
  SamplingOptions sampling = {};
  bool ends_at_end_tokens = true;  ///< sampling.end_tokens end the text, and are not part of it
  ElementType cache_type = ElementType::kF16;  ///< of the caches that speculative_decode makes
  /// Called with every token as it is drawn, before any later one; the text ends with the token for
  /// which it returns false.
  std::function<bool(const SpeculativeToken&)> on_token = {};
};

/// Why a text has ended.
enum class SpeculativeEnd {
  kNone,       ///< it has not
  kEndToken,   ///< one of the sampling options' end_tokens was drawn
  kLength,     ///< max_new_tokens were generated
  kCacheFull,  ///< there is no room for another token
  kCallback,   ///< on_token returned false
};

struct SpeculativeResult {
  std::vector<TokenId> tokens;  ///< after the prompt
  SpeculativeEnd end = SpeculativeEnd::kNone;
  SpeculativeStatistics stats;
};

/// Generates the continuation of one sequence, round by round. Model, cache and source are the
/// caller's and must live as long; nobody else changes this sequence meanwhile, except that it may
/// be truncated between rounds: what is missing is then evaluated again.
template <class Model, SequenceCache Cache, DraftSource Source>
class SpeculativeDecoder {
 public:
  SpeculativeDecoder(Model& model, Cache& cache, Source& source,
                     const SpeculativeOptions& options = {}, int sequence = 0);

  /// Appends tokens to the text: the prompt, later messages. Decoding may go on after it has ended,
  /// for as many new tokens as the options or `max_new_tokens` say. Output indices go on.
  void append(std::span<const TokenId> tokens) { append(tokens, options_.max_new_tokens); }
  void append(std::span<const TokenId> tokens, int max_new_tokens);

  /// Drops all tokens of the text after the first `num_tokens`, which are at most all of them. The
  /// text ends there until more are appended; output indices do not go back.
  void truncate(std::size_t num_tokens);

  /// Evaluates the text now, for those who want the logits or the time of a prompt by themselves;
  /// else the next round does, with its drafts. False if the cache is full.
  bool prefill();

  /// One round. The tokens that it gave, valid until the next call; none once the text has ended.
  std::span<const TokenId> step();

  SpeculativeEnd end() const noexcept { return end_; }
  /// All tokens, those appended and those generated.
  const std::vector<TokenId>& tokens() const noexcept { return text_; }
  const SpeculativeStatistics& statistics() const noexcept { return statistics_; }
  const SpeculativeOptions& options() const noexcept { return options_; }
  const AdaptiveDraft& adaptive() const noexcept { return adaptive_; }
  /// Row 0 is of the position after the text that the last round, or prefill(), began with.
  const Matrix& logits() const noexcept { return logits_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// Whether row 0 of logits_ is what follows the text.
  bool has_logits() const {
    return is_prefilled_ && static_cast<std::size_t>(cache_.length(sequence_)) == text_.size();
  }
  int num_to_draft(bool reads_prompt) const;
  void propose(int max_tokens);
  bool evaluate();
  std::size_t draw();
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  Model& model_;
  Cache& cache_;
  Source& source_;
  SpeculativeOptions options_;
  int sequence_;
  SpeculativeSampler sampler_;
  AdaptiveDraft adaptive_;
  SpeculativeStatistics statistics_;

  std::vector<TokenId> text_;
  bool is_prefilled_ = false;    // and nothing was appended since
  bool is_source_warm_ = false;  // it has seen all that was appended
  int max_new_tokens_ = 0;
  std::uint64_t output_index_ = 0;                // of the next token
  int num_new_ = 0;                               // tokens since the last append
  SpeculativeEnd end_ = SpeculativeEnd::kLength;  // nothing to continue yet

  Draft draft_;
  std::size_t num_drawn_ = 0;  // of the last round
  Matrix logits_;              // [at least draft tokens + 1][vocab_size]
  Batch batch_;
};

/// The whole text at once, with a source or a draft model, over caches of its own.
template <class Drafter, LanguageModel Model>
SpeculativeResult speculative_decode(Drafter&& draft, Model& model, std::span<const TokenId> prompt,
                                     const SpeculativeOptions& options = {});

/// The textbook's call: greedy, k tokens drafted every round.
template <class Drafter, LanguageModel Model>
SpeculativeResult speculative_decode(Drafter&& draft, Model& model, std::span<const TokenId> prompt,
                                     int max_new_tokens, int k) {
  return speculative_decode(draft, model, prompt,
                            {.max_new_tokens = max_new_tokens, .draft_tokens = k, .adapts = false});
}

// ---- Implementation: nothing below is API ----

template <class Model, SequenceCache Cache, DraftSource Source>
SpeculativeDecoder<Model, Cache, Source>::SpeculativeDecoder(Model& model, Cache& cache,
                                                             Source& source,
                                                             const SpeculativeOptions& options,
                                                             int sequence)
    : model_(model),
      cache_(cache),
      source_(source),
      options_(options),
      sequence_(sequence),
      sampler_(options.sampling, options.mode),
      adaptive_({.max_tokens = std::max(options.draft_tokens, 0)}) {
  constexpr std::string_view kOperation = "SpeculativeDecoder";
  detail::require(options.max_new_tokens >= 0, ErrorCode::kArgument, kOperation,
                  "max_new_tokens must be at least 0, got ", options.max_new_tokens);
  detail::require(options.draft_tokens >= 0 && options.draft_tokens <= kMaxDraftTokens,
                  ErrorCode::kArgument, kOperation, "draft_tokens must be in [0, ", kMaxDraftTokens,
                  "], got ", options.draft_tokens);
}

template <class Model, SequenceCache Cache, DraftSource Source>
void SpeculativeDecoder<Model, Cache, Source>::append(std::span<const TokenId> tokens,
                                                      int max_new_tokens) {
  constexpr std::string_view kOperation = "SpeculativeDecoder::append";
  detail::require(max_new_tokens >= 0, ErrorCode::kArgument, kOperation,
                  "max_new_tokens must be at least 0, got ", max_new_tokens);
  detail::require(!text_.empty() || !tokens.empty(), ErrorCode::kArgument, kOperation,
                  "a text must have at least one token, got none");
  text_.insert(text_.end(), tokens.begin(), tokens.end());
  max_new_tokens_ = max_new_tokens;
  num_new_ = 0;
  is_source_warm_ = false;
  end_ = max_new_tokens > 0 ? SpeculativeEnd::kNone : SpeculativeEnd::kLength;
}

template <class Model, SequenceCache Cache, DraftSource Source>
void SpeculativeDecoder<Model, Cache, Source>::truncate(std::size_t num_tokens) {
  detail::require(num_tokens <= text_.size(), ErrorCode::kArgument, "SpeculativeDecoder::truncate",
                  "num_tokens must be in [0, ", text_.size(), "], got ", num_tokens);
  if (static_cast<std::size_t>(cache_.length(sequence_)) > num_tokens) {
    truncate_or_release(cache_, sequence_, static_cast<int>(num_tokens));
  }
  text_.resize(num_tokens);
  is_prefilled_ = false;
  is_source_warm_ = false;
  end_ = SpeculativeEnd::kLength;
}

template <class Model, SequenceCache Cache, DraftSource Source>
bool SpeculativeDecoder<Model, Cache, Source>::prefill() {
  if (static_cast<std::size_t>(cache_.length(sequence_)) == text_.size()) return true;
  const auto start = Clock::now();
  draft_.clear();
  is_prefilled_ = false;
  if (!evaluate()) {
    end_ = SpeculativeEnd::kCacheFull;
    return false;
  }
  const auto length = static_cast<std::size_t>(cache_.length(sequence_));
  cache_.commit(sequence_, std::span<const TokenId>(text_).subspan(length));
  is_prefilled_ = true;
  statistics_.prefill_seconds += seconds_since(start);
  return true;
}

template <class Model, SequenceCache Cache, DraftSource Source>
std::span<const TokenId> SpeculativeDecoder<Model, Cache, Source>::step() {
  if (end_ != SpeculativeEnd::kNone) return {};
  num_drawn_ = 0;
  const bool reads_prompt = num_new_ == 0;
  const bool is_evaluated = has_logits();
  const bool was_warm = is_source_warm_;

  auto start = Clock::now();
  propose(is_evaluated ? 0 : num_to_draft(reads_prompt));
  const double draft_seconds = seconds_since(start);

  start = Clock::now();
  if (!is_evaluated && !evaluate()) {
    end_ = SpeculativeEnd::kCacheFull;
    return {};
  }
  is_prefilled_ = false;
  const double verify_seconds = seconds_since(start);

  start = Clock::now();
  const std::size_t num_accepted = draw();
  statistics_.sampling_seconds += seconds_since(start);
  statistics_.record(draft_.tokens.size(), num_accepted, num_drawn_);
  statistics_.draft_seconds += draft_seconds;
  (reads_prompt ? statistics_.prefill_seconds : statistics_.verify_seconds) += verify_seconds;
  // What a prompt costs, model or source, is no measure of later rounds.
  if (!reads_prompt && was_warm == is_source_warm_) {
    adaptive_.record({.num_drafted = static_cast<int>(draft_.tokens.size()),
                      .num_accepted = static_cast<int>(num_accepted),
                      .draft_seconds = draft_seconds,
                      .verify_seconds = verify_seconds});
  }
  return std::span<const TokenId>(text_).last(num_drawn_);
}

/// As many as can be accepted and still leave the last token to the model.
template <class Model, SequenceCache Cache, DraftSource Source>
int SpeculativeDecoder<Model, Cache, Source>::num_to_draft(bool reads_prompt) const {
  constexpr int kWithPrompt = 3;  // a source that is slow at first is not timed then
  const int wanted = !options_.adapts ? options_.draft_tokens
                     : reads_prompt   ? std::min(kWithPrompt, options_.draft_tokens)
                                      : adaptive_.choose();
  const int room = cache_.max_seq_len() - static_cast<int>(text_.size());
  return std::max(0, std::min({wanted, max_new_tokens_ - num_new_ - 1, room}));
}

template <class Model, SequenceCache Cache, DraftSource Source>
void SpeculativeDecoder<Model, Cache, Source>::propose(int max_tokens) {
  draft_.clear();
  if (max_tokens == 0) return;
  is_source_warm_ = true;
  const DraftContext context{
      .tokens = text_,
      .output_index = output_index_,
      .max_tokens = max_tokens,
      .sampler = sampler_.sampler(),
      .draws_independently = options_.mode == SpeculationMode::kDistributionExact};
  source_.propose(context, draft_);
  detail::check_draft(draft_, context, model_.vocab_size(), "SpeculativeDecoder::step");
}

/// Fills a row of logits for the end of the text and one behind each drafted token. Where the cache
/// has no room for all of them, it drops the last ones; false if it has none for the text.
template <class Model, SequenceCache Cache, DraftSource Source>
bool SpeculativeDecoder<Model, Cache, Source>::evaluate() {
  const std::size_t size = text_.size();
  if (static_cast<std::size_t>(cache_.length(sequence_)) == size) {  // its logits are gone
    truncate_or_release(cache_, sequence_, static_cast<int>(size) - 1);
  }
  const auto restore = [&] { text_.resize(size); };
  for (;;) {
    const auto num_rows = static_cast<Index>(draft_.tokens.size()) + 1;
    if (logits_.rows() < num_rows) logits_.resize(num_rows, model_.vocab_size());
    text_.insert(text_.end(), draft_.tokens.begin(), draft_.tokens.end());
    bool is_evaluated = false;
    try {
      is_evaluated =
          evaluate_tail(model_, cache_, sequence_, text_, logits_.topRows(num_rows), batch_);
    } catch (...) {
      restore();
      throw;
    }
    restore();
    if (is_evaluated) return true;
    if (draft_.tokens.empty()) return false;
    draft_.tokens.pop_back();
  }
}

/// Draws tokens until one differs from the draft or the text ends, and commits what they were drawn
/// behind. The number of accepted ones.
template <class Model, SequenceCache Cache, DraftSource Source>
std::size_t SpeculativeDecoder<Model, Cache, Source>::draw() {
  const auto& end_tokens = options_.sampling.end_tokens;
  const auto vocab_size = static_cast<std::size_t>(model_.vocab_size());
  const std::size_t num_evaluated = text_.size() + draft_.tokens.size();
  std::size_t num_accepted = 0, num_committed = text_.size();
  for (std::size_t i = 0; end_ == SpeculativeEnd::kNone; ++i) {
    num_committed = text_.size();
    const std::span<const float> row(logits_.data() + i * vocab_size, vocab_size);
    const TokenId token = sampler_.sample(row, output_index_, text_, draft_, i);
    const bool is_drafted = i < draft_.tokens.size() && draft_.tokens[i] == token;
    num_accepted += is_drafted ? 1 : 0;
    const std::uint64_t index = output_index_++;
    if (options_.ends_at_end_tokens &&
        std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end()) {
      end_ = SpeculativeEnd::kEndToken;
      break;
    }
    text_.push_back(token);
    ++num_drawn_;
    ++num_new_;
    if (num_new_ >= max_new_tokens_) end_ = SpeculativeEnd::kLength;
    if (options_.on_token && !options_.on_token({token, index, is_drafted, row})) {
      end_ = SpeculativeEnd::kCallback;
    }
    if (!is_drafted) break;
  }
  const auto length = static_cast<std::size_t>(cache_.length(sequence_));
  cache_.commit(sequence_, std::span<const TokenId>(text_).subspan(length, num_committed - length));
  // Room that was reserved for rejected tokens goes back.
  if (num_committed < num_evaluated) cache_.truncate(sequence_, static_cast<int>(num_committed));
  return num_accepted;
}

template <class Drafter, LanguageModel Model>
SpeculativeResult speculative_decode(Drafter&& draft, Model& model, std::span<const TokenId> prompt,
                                     const SpeculativeOptions& options) {
  const auto wanted =
      static_cast<std::int64_t>(prompt.size()) + std::max(options.max_new_tokens, 0);
  const auto cache_options = [&](int limit) {
    return CacheOptions{.max_seq_len = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, limit)),
                        .element_type = options.cache_type};
  };
  if constexpr (LanguageModel<std::remove_cvref_t<Drafter>>) {
    DraftModel source(draft, model, cache_options(draft.max_seq_len()));
    return speculative_decode(source, model, prompt, options);
  } else {
    static_assert(DraftSource<std::remove_cvref_t<Drafter>>,
                  "draft must be a DraftSource or a LanguageModel");
    auto cache = model.make_cache(cache_options(model.max_seq_len()));
    SpeculativeDecoder decoder(model, cache, draft, options);
    decoder.append(prompt);
    while (decoder.end() == SpeculativeEnd::kNone) decoder.step();
    const auto& tokens = decoder.tokens();
    return {.tokens = {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()},
            .end = decoder.end(),
            .stats = decoder.statistics()};
  }
}

}  // namespace kvick::inline v0_1
