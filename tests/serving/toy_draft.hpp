// SPDX-License-Identifier: MIT
// A draft model for the toy model: right most of the time. And requests that speculate at random.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>

#include "kvick/core/matrix.hpp"
#include "kvick/core/random.hpp"
#include "kvick/model/batch.hpp"
#include "kvick/serving/generation.hpp"
#include "support/toy_model.hpp"

namespace support {

/// The toy model itself, but of `num_wrong` in 8 texts it gives logits the wrong way round.
class ToyDraft : public ToyModel {
 public:
  explicit ToyDraft(int num_wrong, const ToyModelOptions& options = {})
      : ToyModel(options), num_wrong_(num_wrong) {}

  void forward(const kvick::Batch& batch, Cache& cache, kvick::MatrixRef logits) {
    ToyModel::forward(batch, cache, logits);
    if (on_forward) on_forward(batch);
    for (kvick::Index row = 0; row < logits.rows(); ++row) {
      float* const values = logits.row(row).data();
      const auto bits = static_cast<std::uint32_t>(values[0] * 0x1p22f);
      if (static_cast<int>(bits % 8) < num_wrong_) std::reverse(values, values + vocab_size());
    }
  }

  std::function<void(const kvick::Batch&)> on_forward;

 private:
  int num_wrong_;
};

/// Of every kind and length, adaptive or not. Some texts repeat themselves.
inline void speculate_at_random(kvick::PhiloxStream& random, kvick::GenerateOptions& options) {
  constexpr std::array kKinds{kvick::DraftKind::kNone, kvick::DraftKind::kLookup,
                              kvick::DraftKind::kModel, kvick::DraftKind::kLookupThenModel};
  if (random.next_below(8) == 0) return;  // as the engine says
  options.speculation = {.kind = kKinds[random.next_below(4)],
                         .draft_tokens = static_cast<int>(random.next_below(13)),
                         .adapts = random.next_below(3) == 0};
  if (random.next_below(4) == 0) options.logit_bias = {{7, 3.5f}, {8, 3.5f}};
}

}  // namespace support
