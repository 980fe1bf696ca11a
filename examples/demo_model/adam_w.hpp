// SPDX-License-Identifier: MIT
// The optimizer AdamW, the schedule of its learning rate and the clipping of gradients.
//
// Source    Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019); clipping by norm:
//           Pascanu, Mikolov, Bengio (2013).
// Layer     example.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

#include "network.hpp"

namespace demo_model {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double decay = 0.1;  ///< of matrices; norms do not decay
};

template <class T>
class AdamW {
 public:
  AdamW(std::vector<ParameterBlock> blocks, const AdamWOptions& options = {})
      : blocks_(std::move(blocks)),
        options_(options),
        first_(num_parameters(blocks_)),
        second_(num_parameters(blocks_)) {}

  /// Update number `step`, counted from 1.
  void update(std::int64_t step, double learning_rate, std::span<const T> gradients,
              std::span<T> parameters);

  /// Running means of gradients and of their squares: with the parameters, all there is to save.
  std::span<T> first_moments() { return first_; }
  std::span<T> second_moments() { return second_; }

 private:
  std::vector<ParameterBlock> blocks_;
  AdamWOptions options_;
  std::vector<T> first_, second_;
};

/// Scales `gradients` so that their norm is at most `max_norm`. Returns the norm before.
template <class T>
double clip_norm(std::span<T> gradients, double max_norm);

struct Schedule {
  double peak = 2e-3;
  std::int64_t num_warmup_steps = 100;
  std::int64_t num_steps = 1000;
  double final_share = 0.02;  ///< of the peak, at the last step
};

/// Linear warm-up, then half a cosine; for steps from 1 to num_steps.
inline double learning_rate(const Schedule& schedule, std::int64_t step);

// ---- Implementation: nothing below is API ----

template <class T>
void AdamW<T>::update(std::int64_t step, double learning_rate, std::span<const T> gradients,
                      std::span<T> parameters) {
  using Array = Eigen::Array<T, Eigen::Dynamic, 1>;
  const auto exponent = static_cast<double>(step);
  // The means begin at 0; these factors undo that.
  const T correction1 = static_cast<T>(1 / (1 - std::pow(options_.beta1, exponent)));
  const T correction2 = static_cast<T>(1 / (1 - std::pow(options_.beta2, exponent)));
  const T beta1 = static_cast<T>(options_.beta1);
  const T beta2 = static_cast<T>(options_.beta2);
  const T epsilon = static_cast<T>(options_.epsilon);
  const T rate = static_cast<T>(learning_rate);
  for (const ParameterBlock& block : blocks_) {
    const auto size = static_cast<Index>(block.size());
    const Eigen::Map<const Array> gradient(gradients.data() + block.offset, size);
    Eigen::Map<Array> value(parameters.data() + block.offset, size);
    Eigen::Map<Array> first(first_.data() + block.offset, size);
    Eigen::Map<Array> second(second_.data() + block.offset, size);
    first = beta1 * first + (1 - beta1) * gradient;
    second = beta2 * second + (1 - beta2) * gradient.square();
    const T decay = static_cast<T>(block.is_matrix() ? options_.decay : 0);
    value -=
        rate * (first * correction1 / ((second * correction2).sqrt() + epsilon) + decay * value);
  }
}

template <class T>
double clip_norm(std::span<T> gradients, double max_norm) {
  Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> values(gradients.data(),
                                                        static_cast<Index>(gradients.size()));
  const double norm = std::sqrt(static_cast<double>(values.square().sum()));
  if (norm > max_norm) values *= static_cast<T>(max_norm / norm);
  return norm;
}

inline double learning_rate(const Schedule& schedule, std::int64_t step) {
  if (step <= schedule.num_warmup_steps) {
    return schedule.peak * static_cast<double>(step) /
           static_cast<double>(schedule.num_warmup_steps);
  }
  const double progress = static_cast<double>(step - schedule.num_warmup_steps) /
                          static_cast<double>(schedule.num_steps - schedule.num_warmup_steps);
  const double share = 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
  return schedule.peak * (schedule.final_share + (1 - schedule.final_share) * share);
}

}  // namespace demo_model
