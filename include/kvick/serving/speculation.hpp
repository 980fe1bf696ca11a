// SPDX-License-Identifier: MIT
// Whether and how an engine drafts the tokens of a request.
//
// Whatever is drafted, the request gets the tokens of plain decoding with the same seed: each token
// is drawn as if nothing had been drafted, and a draft stands if it is the token drawn (kSeedExact,
// the only mode in an engine).
//
// Layer     serving: may include core, speculative.
#pragma once

#include <string_view>

#include "kvick/core/error.hpp"
#include "kvick/core/version.hpp"
#include "kvick/speculative/draft_source.hpp"

namespace kvick::inline v0_1 {

enum class DraftKind {
  kNone,
  kLookup,           ///< what followed the last time when the text read like this: PromptLookup
  kModel,            ///< the engine's draft model
  kLookupThenModel,  ///< the model where the text has no such place
};

struct SpeculationOptions {
  DraftKind kind = DraftKind::kNone;
  int draft_tokens = 5;  ///< most per step, in [0, kMaxDraftTokens]
  /// Drafts fewer, or none, where that is faster, by what drafts of this request have gained and
  /// cost. Steps that compute prompts as well teach nothing.
  bool adapts = true;
};

// ---- Implementation: nothing below is API ----

namespace detail {

inline bool uses_lookup(DraftKind kind) noexcept {
  return kind == DraftKind::kLookup || kind == DraftKind::kLookupThenModel;
}

inline bool uses_model(DraftKind kind) noexcept {
  return kind == DraftKind::kModel || kind == DraftKind::kLookupThenModel;
}

inline void check_speculation(const SpeculationOptions& options, bool has_model,
                              std::string_view operation) {
  require(options.draft_tokens >= 0 && options.draft_tokens <= kMaxDraftTokens,
          ErrorCode::kArgument, operation, "draft_tokens must be in [0, ", kMaxDraftTokens,
          "], got ", options.draft_tokens);
  require(has_model || !uses_model(options.kind), ErrorCode::kArgument, operation,
          "drafts of a model need an engine with a draft_model, got none");
}

}  // namespace detail

}  // namespace kvick::inline v0_1
