// SPDX-License-Identifier: MIT
// The vocabulary that the demo models share.
//
// Layer     example.
#pragma once

#include <cstdint>

#include "bpe_trainer.hpp"
#include "kvick/text/vocabulary.hpp"
#include "story_grammar.hpp"

namespace demo_model {

/// Learned from a few MB of stories; always the same for the same size.
inline kvick::Vocabulary make_vocabulary(int num_pieces) {
  constexpr std::uint64_t kSeed = 0;  // no training's
  constexpr std::uint64_t kNumStories = 4096;
  BpeTrainer trainer;
  for (std::uint64_t i = 0; i < kNumStories; ++i) trainer.add_text(make_story(kSeed, i).text);
  return trainer.train(num_pieces);
}

}  // namespace demo_model
