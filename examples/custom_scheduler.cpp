// SPDX-License-Identifier: MIT
// kvick's scheduler over a model and a cache of one's own: continuous batching in 60 lines.
//
// The toy model keeps the tokens of each slot, and its next token is their sum modulo 100. Requests
// join and leave the batch as they come and end; long prompts are computed in chunks beside them.
#include <iostream>
#include <numeric>
#include <vector>

#include "kvick/serving/scheduler.hpp"

using kvick::TokenId;

struct ToyModel {
  std::vector<std::vector<TokenId>> cache;  // by slot

  // One token for each row of logits the batch wants: here, the last of a segment at most.
  std::vector<TokenId> forward(const kvick::Batch& batch) {
    std::vector<TokenId> next;
    for (const kvick::Segment& segment : batch.segments()) {
      auto& tokens = cache[static_cast<std::size_t>(segment.sequence)];
      tokens.resize(static_cast<std::size_t>(segment.first_position));  // a slot may be new again
      tokens.insert(tokens.end(), segment.tokens.begin(), segment.tokens.end());
      if (segment.num_logits == 0) continue;  // in the middle of a prompt
      next.push_back(std::accumulate(tokens.begin(), tokens.end(), 0) % 100);
    }
    return next;
  }
};

int main() {
  constexpr int kBatchSize = 3;
  ToyModel model{std::vector<std::vector<TokenId>>(kBatchSize)};
  kvick::Scheduler scheduler(
      {.max_batch_size = kBatchSize, .max_seq_len = 64, .max_num_batched_tokens = 8});

  std::vector<kvick::RequestId> ids;
  for (int i = 1; i <= 5; ++i) {
    const std::vector<TokenId> prompt(static_cast<std::size_t>(4 * i), i);
    ids.push_back(*scheduler.add_request({.prompt = prompt, .max_new_tokens = 6 - i}));
  }

  while (const auto step = scheduler.schedule()) {
    std::cout << "step " << step.number << ":";
    for (const kvick::Segment& segment : step.batch.segments()) {
      std::cout << "  slot " << segment.sequence << " +" << segment.tokens.size();
    }
    std::cout << "\n";
    scheduler.complete(step, model.forward(step.batch));
  }

  for (const kvick::RequestId id : ids) {
    std::cout << "request " << id << ":";
    for (const TokenId token : scheduler.output(id)) std::cout << " " << token;
    std::cout << "\n";
  }
  return scheduler.output(ids[0])[0] == 4 ? 0 : 1;
}
