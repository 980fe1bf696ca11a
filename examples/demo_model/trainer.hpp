// SPDX-License-Identifier: MIT
// Trains a network on stories that are told as they are needed, each once.
//
// Step s of a run sees the stories [s * batch, (s + 1) * batch) of its seed, so a run that is
// interrupted and resumed from its checkpoint takes the same steps as one that is not, to the bit
// (with the same number of threads, compiler flags and machine).
//
// Threads   Each thread takes a part of the batch, with activations and gradients of its own, which
//           are then added in the order of the threads.
// Layer     example.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numbers>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "adam_w.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/random.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/text/tokenizer.hpp"
#include "network.hpp"
#include "story_grammar.hpp"

namespace demo_model {

struct TrainingOptions {
  NetworkConfig network;
  Schedule schedule = {};
  AdamWOptions optimizer = {};
  std::uint64_t seed = 1;
  int batch_stories = 8;
  int num_threads = 2;
  double max_norm = 1.0;
};

struct StepResult {
  double loss = 0;  ///< mean, in nats per token
  double gradient_norm = 0;
  Index num_tokens = 0;
};

class Trainer {
 public:
  Trainer(const TrainingOptions& options, kvick::Tokenizer tokenizer);

  /// The next step.
  StepResult step();
  std::int64_t num_steps_done() const { return num_steps_done_; }

  /// Mean loss in nats per token over stories [0, num_stories) of another seed than the training's.
  StepResult evaluate(std::uint64_t seed, int num_stories);

  void save_checkpoint(const std::filesystem::path& path);
  /// Errors: Error(kFormat) if the checkpoint is of another network or another schedule.
  void load_checkpoint(const std::filesystem::path& path);

  std::span<const float> parameters() const { return parameters_; }

 private:
  /// What a thread has of its own.
  struct Worker {
    explicit Worker(const NetworkConfig& config, std::size_t num_gradients)
        : network(config), gradients(num_gradients) {}

    Network<float> network;
    std::vector<float> gradients;
    std::vector<TokenBatch> batches;
    double loss = 0;
  };

  /// Stories in one forward pass: enough for fast products, few enough for the cache.
  static constexpr int kStoriesPerPass = 4;

  void initialize();
  void plan(std::uint64_t seed, std::uint64_t first_story, int num_stories);
  template <class Body>
  void for_each_worker(Body&& body);
  template <class Visit>
  void visit_state(Visit&& visit);
  Index num_tokens() const;
  double total_loss() const;

  TrainingOptions options_;
  kvick::Tokenizer tokenizer_;
  std::vector<ParameterBlock> blocks_;
  std::vector<float> parameters_;
  AdamW<float> optimizer_;
  std::vector<Worker> workers_;
  std::int64_t num_steps_done_ = 0;
};

// ---- Implementation: nothing below is API ----

inline Trainer::Trainer(const TrainingOptions& options, kvick::Tokenizer tokenizer)
    : options_(options),
      tokenizer_(std::move(tokenizer)),
      blocks_(parameter_blocks(options.network)),
      parameters_(num_parameters(blocks_)),
      optimizer_(blocks_, options.optimizer) {
  for (int i = 0; i < options.num_threads; ++i) {
    workers_.emplace_back(options.network, parameters_.size());
  }
  initialize();
}

/// Normal variates by the method of Box and Muller (1958); norms are ones.
inline void Trainer::initialize() {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    // Streams of stories count from 0, those of tensors from the other end.
    kvick::PhiloxStream random(options_.seed, ~static_cast<std::uint64_t>(i));
    const auto values = std::span(parameters_).subspan(blocks_[i].offset, blocks_[i].size());
    for (float& value : values) {
      if (!blocks_[i].is_matrix()) {
        value = 1;
        continue;
      }
      const double radius = std::sqrt(-2 * std::log(random.next_uniform()));
      const double cosine = std::cos(2 * std::numbers::pi * random.next_uniform());
      value = static_cast<float>(blocks_[i].deviation * radius * cosine);
    }
  }
}

/// Deals stories to the workers.
inline void Trainer::plan(std::uint64_t seed, std::uint64_t first_story, int num_stories) {
  for (Worker& worker : workers_) worker.batches.clear();
  const int num_passes = (num_stories + kStoriesPerPass - 1) / kStoriesPerPass;
  for (int pass = 0; pass < num_passes; ++pass) {
    TokenBatch& batch =
        workers_[static_cast<std::size_t>(pass) % workers_.size()].batches.emplace_back();
    const int end = std::min((pass + 1) * kStoriesPerPass, num_stories);
    for (int i = pass * kStoriesPerPass; i < end; ++i) {
      const Story story = make_story(seed, first_story + static_cast<std::uint64_t>(i));
      batch.add(tokenizer_.encode(story.text, {.add_bos = true, .add_eos = true}));
    }
  }
}

template <class Body>
void Trainer::for_each_worker(Body&& body) {
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < workers_.size(); ++i) {
    threads.emplace_back([&body, &worker = workers_[i]] { body(worker); });
  }
  body(workers_.front());
}

inline Index Trainer::num_tokens() const {
  Index sum = 0;
  for (const Worker& worker : workers_) {
    for (const TokenBatch& batch : worker.batches) sum += batch.num_tokens();
  }
  return sum;
}

inline double Trainer::total_loss() const {
  double sum = 0;
  for (const Worker& worker : workers_) sum += worker.loss;
  return sum;
}

inline StepResult Trainer::step() {
  const auto first_story = static_cast<std::uint64_t>(num_steps_done_) *
                           static_cast<std::uint64_t>(options_.batch_stories);
  plan(options_.seed, first_story, options_.batch_stories);
  StepResult result;
  result.num_tokens = num_tokens();
  const double weight = 1 / static_cast<double>(result.num_tokens);
  for_each_worker([&](Worker& worker) {
    std::fill(worker.gradients.begin(), worker.gradients.end(), 0.0f);
    worker.loss = 0;
    for (const TokenBatch& batch : worker.batches) {
      worker.network.forward(parameters_, batch);
      worker.loss += worker.network.backward(parameters_, batch, weight, worker.gradients);
    }
  });
  result.loss = total_loss() * weight;

  std::vector<float>& gradients = workers_.front().gradients;
  const auto size = static_cast<Index>(gradients.size());
  for (std::size_t i = 1; i < workers_.size(); ++i) {
    Eigen::Map<Eigen::ArrayXf>(gradients.data(), size) +=
        Eigen::Map<const Eigen::ArrayXf>(workers_[i].gradients.data(), size);
  }
  result.gradient_norm = clip_norm(std::span(gradients), options_.max_norm);
  ++num_steps_done_;
  optimizer_.update(num_steps_done_, learning_rate(options_.schedule, num_steps_done_), gradients,
                    parameters_);
  return result;
}

inline StepResult Trainer::evaluate(std::uint64_t seed, int num_stories) {
  kvick::detail::require(seed != options_.seed, kvick::ErrorCode::kArgument, "Trainer::evaluate",
                         "the seed must differ from the training's, got ", seed);
  plan(seed, 0, num_stories);
  for_each_worker([&](Worker& worker) {
    worker.loss = 0;
    for (const TokenBatch& batch : worker.batches) {
      worker.network.forward(parameters_, batch);
      worker.loss += worker.network.loss(batch);
    }
  });
  StepResult result;
  result.num_tokens = num_tokens();
  result.loss = total_loss() / static_cast<double>(result.num_tokens);
  return result;
}

/// Calls visit(tensor name, values) for all that a checkpoint holds.
template <class Visit>
void Trainer::visit_state(Visit&& visit) {
  visit("parameters", std::span(parameters_));
  visit("first_moments", optimizer_.first_moments());
  visit("second_moments", optimizer_.second_moments());
}

inline void Trainer::save_checkpoint(const std::filesystem::path& path) {
  kvick::GgufWriter writer;
  writer.add("training.num_steps_done", num_steps_done_);
  writer.add("training.num_steps", options_.schedule.num_steps);
  writer.add("training.seed", options_.seed);
  writer.add("training.batch_stories", static_cast<std::int64_t>(options_.batch_stories));
  visit_state([&](const char* name, std::span<float> values) {
    writer.add_tensor(name, kvick::TensorType::kF32, {values.size()}, std::as_bytes(values));
  });
  writer.write(path);
}

inline void Trainer::load_checkpoint(const std::filesystem::path& path) {
  const kvick::GgufFile file(path);
  const auto require_same = [&](const char* what, auto expected, auto found) {
    kvick::detail::require(expected == found, kvick::ErrorCode::kFormat, "Trainer::load_checkpoint",
                           what, " must be ", expected, ", got ", found);
  };
  require_same("the number of steps", options_.schedule.num_steps,
               file.get<std::int64_t>("training.num_steps"));
  require_same("the seed", options_.seed, file.get<std::uint64_t>("training.seed"));
  require_same("stories per step", std::int64_t{options_.batch_stories},
               file.get<std::int64_t>("training.batch_stories"));
  visit_state([&](const char* name, std::span<float> values) {
    const auto bytes = file.tensor(name).data;
    require_same("bytes of parameters", values.size_bytes(), bytes.size());
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(values).begin());
  });
  num_steps_done_ = file.get<std::int64_t>("training.num_steps_done");
}

}  // namespace demo_model
