// SPDX-License-Identifier: MIT
// Many requests on one model in your process: submit from any thread, one thread runs the model.
//
//   kvick::Engine engine("model.gguf", {.threads = 2});
//   std::string text = engine.generate("Once upon a time", {.max_new_tokens = 64});
//   auto handle = engine.submit({.prompt = "Hello", .on_token = [](const kvick::Token& t) {
//                                  std::cout << t.text; }});
//   handle.wait();
//
// See EngineCore on results, ends and failures; it is the same without a thread.
//
// Errors    The constructor throws as Transformer, Tokenizer and Scheduler do; generate() and
//           submit() as EngineCore::submit(). generate() also throws for requests that ended with
//           kError or kRejected.
// Threads   Any number may call anything; the destructor and shutdown() wait for the current step.
// Layer     serving: may include core, model, text, speculative.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/serving/engine_core.hpp"
#include "kvick/serving/engine_options.hpp"     // IWYU pragma: export
#include "kvick/serving/generation.hpp"         // IWYU pragma: export
#include "kvick/serving/generation_handle.hpp"  // IWYU pragma: export
#include "kvick/serving/metrics.hpp"            // IWYU pragma: export
#include "kvick/serving/prometheus.hpp"
#include "kvick/text/tokenizer.hpp"

namespace kvick::inline v0_1 {

template <LanguageModel Model = Transformer>
class Engine {
 public:
  /// The model and the tokenizer of a GGUF file, and the draft model of another one if the options
  /// name it.
  explicit Engine(const std::filesystem::path& path,
                  const EngineOptions& options = {}) requires std::same_as<Model, Transformer>;
  /// A model of one's own, which must outlive the engine; nobody else may use it meanwhile.
  explicit Engine(Model& model, const EngineOptions& options = {})
      : core_(model, options), worker_([this] { work(); }) {}
  Engine(Model& model, Tokenizer tokenizer, const EngineOptions& options = {})
      : core_(model, std::move(tokenizer), options), worker_([this] { work(); }) {}
  ~Engine() { shutdown(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Returns at once.
  GenerationHandle submit(GenerationRequest request) { return core_.submit(std::move(request)); }

  // These wait. The limits of the queue are for those who do not.

  /// The continuation of a text.
  std::string generate(std::string_view prompt, const GenerateOptions& options = {});
  /// Of many texts, batched.
  std::vector<std::string> generate(std::span<const std::string> prompts,
                                    const GenerateOptions& options = {});
  std::vector<std::string> generate(std::initializer_list<std::string> prompts,
                                    const GenerateOptions& options = {}) {
    return generate(std::span(prompts.begin(), prompts.size()), options);
  }
  /// What became of requests, each sample of each, in order. Does not throw for how they ended.
  std::vector<Generation> run(std::vector<GenerationRequest> requests);
  /// Of one request of one sample.
  Generation run(GenerationRequest request);

  EngineMetrics metrics() const { return core_.metrics(); }
  std::string metrics_prometheus() const { return to_prometheus(metrics()); }

  /// Refuses new requests and waits until those that were accepted have ended.
  void drain();
  /// Refuses new requests, cancels those that have not ended and ends the thread.
  void shutdown();

  const std::optional<Tokenizer>& tokenizer() const noexcept { return core_.tokenizer(); }

 private:
  class Core : public EngineCore<Model> {
   public:
    using EngineCore<Model>::EngineCore;
    using EngineCore<Model>::intake;
  };

  struct Owned {
    std::unique_ptr<Model> model;
    std::unique_ptr<Model> draft;
  };
  Engine(Owned owned, EngineOptions options);
  static Owned load(const std::filesystem::path& path, const EngineOptions& options);
  static EngineOptions with_draft(EngineOptions options, Model* draft);

  void work() noexcept;

  Owned owned_;
  Core core_;
  std::mutex join_mutex_;
  std::thread worker_;
};

Engine(const std::filesystem::path&, const EngineOptions& = {})->Engine<Transformer>;

// ---- Implementation: nothing below is API ----

template <LanguageModel Model>
Engine<Model>::Engine(const std::filesystem::path& path,
                      const EngineOptions& options) requires std::same_as<Model, Transformer>
    : Engine(load(path, options), options) {}

template <LanguageModel Model>
typename Engine<Model>::Owned Engine<Model>::load(const std::filesystem::path& path,
                                                  const EngineOptions& options) {
  const auto model_of = [](const std::filesystem::path& file, int threads) {
    return std::make_unique<Model>(file, TransformerOptions{.threads = threads});
  };
  Owned owned{.model = model_of(path, options.threads), .draft = nullptr};
  if (options.draft_path.empty()) return owned;
  std::error_code ignored;  // who cannot be opened is refused below
  const std::uintmax_t size = std::filesystem::file_size(options.draft_path, ignored);
  owned.draft = model_of(options.draft_path, draft_threads(size, options.threads));
  return owned;
}

template <LanguageModel Model>
EngineOptions Engine<Model>::with_draft(EngineOptions options, Model* draft) {
  options.draft_path.clear();
  if (draft != nullptr) options.draft_model = *draft;
  return options;
}

template <LanguageModel Model>
Engine<Model>::Engine(Owned owned, EngineOptions options)
    : owned_(std::move(owned)),
      core_(*owned_.model, Tokenizer(owned_.model->file()),
            with_draft(std::move(options), owned_.draft.get())),
      worker_([this] { work(); }) {}

/// A step that throws has found no memory for its own lists: everyone ends, the engine goes on.
template <LanguageModel Model>
void Engine<Model>::work() noexcept {
  while (!core_.intake().is_stopped()) {
    try {
      if (!core_.step()) core_.intake().wait();
    } catch (const std::exception& error) {
      core_.end_all(FinishReason::kError, error.what());
    }
  }
  core_.end_all(FinishReason::kCancelled);
}

template <LanguageModel Model>
std::vector<Generation> Engine<Model>::run(std::vector<GenerationRequest> requests) {
  std::vector<GenerationHandle> handles;
  try {
    for (GenerationRequest& request : requests) {
      handles.push_back(core_.submit(std::move(request), QueueLimits::kIgnore));
    }
  } catch (...) {  // one cannot be run: then none is
    for (GenerationHandle& handle : handles) handle.cancel();
    throw;
  }
  std::vector<Generation> generations;
  for (const GenerationHandle& handle : handles) {
    const auto results = handle.results();
    generations.insert(generations.end(), results.begin(), results.end());
  }
  return generations;
}

template <LanguageModel Model>
Generation Engine<Model>::run(GenerationRequest request) {
  detail::require(request.options.num_samples == 1, ErrorCode::kArgument, "Engine::run",
                  "num_samples must be 1 for one result, got ", request.options.num_samples);
  return core_.submit(std::move(request), QueueLimits::kIgnore).result();
}

template <LanguageModel Model>
std::vector<std::string> Engine<Model>::generate(std::span<const std::string> prompts,
                                                 const GenerateOptions& options) {
  constexpr std::string_view kOperation = "Engine::generate";
  detail::require(options.num_samples == 1, ErrorCode::kArgument, kOperation,
                  "num_samples must be 1, got ", options.num_samples, "; see submit()");
  detail::require(tokenizer().has_value(), ErrorCode::kArgument, kOperation,
                  "text needs a tokenizer, got none");
  std::vector<GenerationRequest> requests;
  for (const std::string& prompt : prompts) {
    requests.push_back({.prompt = prompt, .options = options});
  }
  std::vector<std::string> texts;
  for (Generation& generation : run(std::move(requests))) {
    const bool is_good = generation.finish_reason != FinishReason::kError &&
                         generation.finish_reason != FinishReason::kRejected;
    detail::require(is_good, ErrorCode::kUnsupported, kOperation,
                    "a request must not fail, got: ", generation.error);
    texts.push_back(std::move(generation.text));
  }
  return texts;
}

template <LanguageModel Model>
std::string Engine<Model>::generate(std::string_view prompt, const GenerateOptions& options) {
  const std::string prompts[] = {std::string(prompt)};
  return std::move(generate(prompts, options).front());
}

template <LanguageModel Model>
void Engine<Model>::drain() {
  core_.close();
  core_.intake().wait_until_idle();
}

template <LanguageModel Model>
void Engine<Model>::shutdown() {
  core_.intake().stop();
  const std::scoped_lock lock(join_mutex_);
  if (worker_.joinable()) worker_.join();
}

}  // namespace kvick::inline v0_1
