// SPDX-License-Identifier: MIT
// The draft model of an engine, of whatever type.
//
//   kvick::EngineCore core(model, tokenizer,
//                          {.speculation = {.kind = kvick::DraftKind::kModel},
//                           .draft_model = small_model});
//
// Layer     serving: may include core, gguf, model, speculative.
#pragma once

#include <algorithm>
#include <concepts>
#include <functional>
#include <memory>
#include <utility>

#include "kvick/core/version.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/serving/model_drafter.hpp"
#include "kvick/speculative/draft_model.hpp"

namespace kvick::inline v0_1 {

class EngineDraftModel {
 public:
  EngineDraftModel() = default;  ///< none
  /// The model must outlive the engine; nobody else uses it meanwhile.
  template <class Model>
      EngineDraftModel(Model& model) requires(!std::same_as<Model, EngineDraftModel>) &&
      LanguageModel<Model>;

  explicit operator bool() const noexcept { return make_ != nullptr; }

  /// Throws Error(kArgument) unless its tokens are the target's, see check_same_vocabulary().
  template <class Target>
  void check(const Target& target) const;

  /// Sequences as long as the model is made for, at most.
  std::unique_ptr<detail::BatchDrafter> make(detail::ModelDrafterOptions options) const {
    return make_(std::move(options));
  }

 private:
  struct Vocabulary {
    int size = 0;
    int vocab_size() const noexcept { return size; }
  };
  struct FileVocabulary : Vocabulary {
    const GgufFile* gguf = nullptr;
    const GgufFile& file() const noexcept { return *gguf; }
  };

  FileVocabulary vocabulary_;
  std::function<std::unique_ptr<detail::BatchDrafter>(detail::ModelDrafterOptions)> make_;
};

// ---- Implementation: nothing below is API ----

template <class Model>
    EngineDraftModel::EngineDraftModel(Model& model) requires(
        !std::same_as<Model, EngineDraftModel>) &&
    LanguageModel<Model> : make_([&model](detail::ModelDrafterOptions options) {
      const int longest = model.max_seq_len();
      options.cache.max_seq_len = std::min(options.cache.max_seq_len, longest);
      return std::make_unique<detail::ModelDrafter<Model>>(model, std::move(options));
    }) {
  vocabulary_.size = model.vocab_size();
  if constexpr (requires {
                  { model.file() } -> std::convertible_to<const GgufFile&>;
                }) {
    vocabulary_.gguf = &model.file();
  }
}

template <class Target>
void EngineDraftModel::check(const Target& target) const {
  if (vocabulary_.gguf != nullptr) {
    check_same_vocabulary(vocabulary_, target);
  } else {
    check_same_vocabulary(static_cast<const Vocabulary&>(vocabulary_), target);
  }
}

}  // namespace kvick::inline v0_1
