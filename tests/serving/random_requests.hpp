// SPDX-License-Identifier: MIT
// Random requests to a toy model, and what each of them generates alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvick/core/random.hpp"
#include "kvick/serving/generation.hpp"
#include "support/toy_model.hpp"

namespace support {

/// Many share a beginning; prompts have at most 48 tokens, outputs 110.
inline kvick::GenerationRequest random_request(kvick::PhiloxStream& random, int vocab_size) {
  kvick::GenerationRequest request;
  const auto token = [&] {
    return static_cast<kvick::TokenId>(random.next_below(static_cast<std::uint32_t>(vocab_size)));
  };
  std::vector<kvick::TokenId> prompt;
  const kvick::TokenId family = static_cast<kvick::TokenId>(random.next_below(4));
  if (random.next_below(4) == 0) prompt.assign(random.next_below(40), family);
  const auto num_own = 1 + random.next_below(9);
  for (std::uint32_t i = 0; i < num_own; ++i) prompt.push_back(token());
  request.prompt = std::move(prompt);
  kvick::GenerateOptions& options = request.options;
  options.max_new_tokens = 1 + static_cast<int>(random.next_below(110));
  options.temperature = random.next_below(3) == 0 ? 0.0f : 0.7f;
  if (random.next_below(4) == 0) options.top_k = 5;
  if (random.next_below(4) == 0) options.repetition_penalty = 1.2f;
  options.seed = random.next_below(1000);
  options.priority = static_cast<int>(random.next_below(3));
  options.num_samples = random.next_below(8) == 0 ? 3 : 1;
  if (random.next_below(3) == 0) options.stop_tokens = {token()};
  return request;
}

/// The tokens of a sample alone.
inline std::vector<kvick::TokenId> lone_tokens(const ToyModel& model,
                                               const kvick::GenerationRequest& request,
                                               int sample) {
  const kvick::GenerateOptions& options = request.options;
  return model.generate(
      *request.prompt.tokens(), options.max_new_tokens,
      kvick::detail::sampling_options(
          options, options.seed.value() + static_cast<std::uint64_t>(sample), options.stop_tokens));
}

}  // namespace support
