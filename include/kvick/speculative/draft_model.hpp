// SPDX-License-Identifier: MIT
// A small model that drafts for a large one of the same vocabulary.
//
//   kvick::DraftModel draft(small_model, large_model);
//   kvick::speculative_decode(draft, large_model, prompt, options);
//
// Drafting k tokens takes k forward passes of the small model. Its cache keeps what the last texts
// have in common: tokens that the target did not accept are taken back, and those that were
// accepted or added are evaluated with the next draft, the last drafted one included.
//
// Errors    Error(kArgument) if the vocabularies differ: in size or, where both models have a file
//           with a tokenizer, in a piece.
// Memory    A cache of one sequence, as long as the options say.
// Threads   One at a time; the small model is used by nobody else meanwhile.
// Layer     speculative: may include core, model, sampling.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/speculative/draft_source.hpp"
#include "kvick/speculative/evaluate_tail.hpp"
#include "kvick/speculative/rejection_sampling.hpp"

namespace kvick::inline v0_1 {

/// Throws unless tokens of `draft` are tokens of `target`: as many and, where both have a file that
/// names the pieces of its tokenizer, with the same pieces.
template <class Small, class Target>
void check_same_vocabulary(const Small& draft, const Target& target);

/// A DraftSource.
template <LanguageModel Model>
class DraftModel {
 public:
  /// Drafts for `target`, whose vocabulary is checked. Of `cache`, the number of sequences is not
  /// used; where the text outgrows it, nothing more is drafted.
  template <class Target>
  DraftModel(Model& model, const Target& target, const CacheOptions& cache = {})
      : DraftModel((check_same_vocabulary(model, target), model), cache) {}

  void propose(const DraftContext& context, Draft& draft);

  /// The cached tokens are the first of the last text, of which all but the last draft are true.
  const typename Model::Cache& cache() const noexcept { return cache_; }
  /// What is cached, and perhaps a token more.
  std::span<const TokenId> text() const noexcept { return text_; }

 private:
  DraftModel(Model& model, CacheOptions cache);

  /// Makes text_ `tokens`, and keeps of the cache what is true of them.
  void follow(std::span<const TokenId> tokens);
  TokenId draw(const DraftContext& context, Draft& draft);
  std::span<const float> row() const noexcept {
    return {logits_.data(), static_cast<std::size_t>(logits_.size())};
  }

  Model& model_;
  typename Model::Cache cache_;
  std::vector<TokenId> text_;
  Matrix logits_;  // [1][vocab_size], of the last token of text_
  Batch batch_;
};

template <class Model, class Target>
DraftModel(Model&, const Target&) -> DraftModel<Model>;
template <class Model, class Target>
DraftModel(Model&, const Target&, const CacheOptions&) -> DraftModel<Model>;

/// The threads that a draft model of so many bytes should have beside a model with `num_threads`:
/// a small one gains nothing by more than one, which would be in the large one's way.
constexpr int draft_threads(std::uintmax_t num_bytes, int num_threads) noexcept {
  return num_bytes < (std::uintmax_t{16} << 20) ? 1 : num_threads;
}

// ---- Implementation: nothing below is API ----

template <class Small, class Target>
void check_same_vocabulary(const Small& draft, const Target& target) {
  constexpr std::string_view kOperation = "check_same_vocabulary";
  detail::require(draft.vocab_size() == target.vocab_size(), ErrorCode::kArgument, kOperation,
                  "a draft model must have the target's ", target.vocab_size(), " tokens, got ",
                  draft.vocab_size());
  if constexpr (requires { draft.file(), target.file(); }) {
    using Pieces = std::vector<std::string>;
    constexpr std::string_view kKey = "tokenizer.ggml.tokens";
    const auto pieces = draft.file().template try_get<Pieces>(kKey);
    const auto wanted = target.file().template try_get<Pieces>(kKey);
    if (!pieces || !wanted) return;  // a model without a tokenizer: nothing to compare
    const auto [own, other] =
        std::mismatch(pieces->begin(), pieces->end(), wanted->begin(), wanted->end());
    if (own == pieces->end() || other == wanted->end()) return;
    throw Error(ErrorCode::kArgument, kOperation,
                detail::concat("a draft model must have the target's tokens, but token ",
                               own - pieces->begin(), " must be ", detail::in_quotes(*other),
                               ", got ", detail::in_quotes(*own)));
  }
}

template <LanguageModel Model>
DraftModel<Model>::DraftModel(Model& model, CacheOptions cache)
    : model_(model),
      cache_([&] {
        cache.num_sequences = 1;
        return model.make_cache(cache);
      }()),
      logits_(1, model.vocab_size()) {}

template <LanguageModel Model>
void DraftModel<Model>::propose(const DraftContext& context, Draft& draft) {
  follow(context.tokens);
  const auto& end_tokens = context.sampler.options().end_tokens;
  for (int i = 0; i < context.max_tokens; ++i) {
    if (!evaluate_tail(model_, cache_, 0, text_, logits_, batch_)) return;  // the cache is full
    cache_.commit(
        0, std::span<const TokenId>(text_).subspan(static_cast<std::size_t>(cache_.length(0))));
    const TokenId token = draw(context, draft);
    draft.tokens.push_back(token);
    text_.push_back(token);
    // Nothing follows the end. To stop there is no choice among what was drawn: the tokens before
    // it are proposed either way, and so is the end.
    if (std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end()) return;
  }
}

template <LanguageModel Model>
void DraftModel<Model>::follow(std::span<const TokenId> tokens) {
  const auto [own, other] = std::mismatch(text_.begin(), text_.end(), tokens.begin(), tokens.end());
  const auto num_same = other - tokens.begin();
  // Of a text that is cached as a whole, the last token is evaluated again: its logits are gone.
  const auto num_kept = std::min<std::ptrdiff_t>(
      {cache_.length(0), num_same, static_cast<std::ptrdiff_t>(tokens.size()) - 1});
  truncate_or_release(cache_, 0, static_cast<int>(num_kept));
  text_.erase(own, text_.end());
  text_.insert(text_.end(), other, tokens.end());
}

template <LanguageModel Model>
TokenId DraftModel<Model>::draw(const DraftContext& context, Draft& draft) {
  const std::uint64_t output_index = context.output_index + draft.tokens.size();
  Sampler& sampler = context.sampler;
  if (!context.draws_independently || sampler.options().temperature == 0.0f) {
    return sampler.sample(row(), output_index, text_);
  }
  const std::size_t vocab_size = row().size();
  draft.probabilities.resize((draft.tokens.size() + 1) * vocab_size);
  const auto q = std::span(draft.probabilities).last(vocab_size);
  sampler.probabilities(row(), output_index, text_, q);
  return sample_from(
      q, detail::keyed_uniform(sampler.options().seed, output_index, 0, detail::Draw::kDraft));
}

}  // namespace kvick::inline v0_1
