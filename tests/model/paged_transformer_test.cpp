// SPDX-License-Identifier: MIT
// The transformer over paged caches: the bits of the contiguous one, whoever computed a block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "model/evaluate.hpp"
#include "support/allocation_counter.hpp"
#include "support/tiny_model.hpp"

namespace {

using namespace kvick;
using support::evaluate;
using support::TinyModel;

constexpr int kBlockSizes[] = {16, 32, 64};
constexpr ElementType kElementTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16,
                                         ElementType::kInt8};

std::vector<TokenId> random_tokens(int count, unsigned seed) {
  return support::random_tokens(count, 100, seed);
}

std::vector<TokenId> joined(std::span<const TokenId> a, std::span<const TokenId> b) {
  std::vector<TokenId> both(a.begin(), a.end());
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

/// The logits of all tokens over a contiguous cache.
Matrix evaluate(Transformer& model, std::span<const TokenId> tokens, ElementType type) {
  return evaluate(model, tokens, tokens.size(), type);
}

class PagedTransformer : public ::testing::Test {
 protected:
  PagedKVStorage make_cache(int block_tokens, ElementType type, int num_sequences = 3) const {
    return model_.make_cache({.num_sequences = num_sequences,
                              .max_seq_len = 300,
                              .element_type = type,
                              .block_tokens = block_tokens});
  }

  /// Calls test(cache, type) for every size of blocks and element type.
  template <class Test>
  void for_each_cache(Test&& test) {
    for (const ElementType type : kElementTypes) {
      for (const int block_tokens : kBlockSizes) {
        SCOPED_TRACE(::testing::Message() << name(type) << ", blocks of " << block_tokens);
        auto cache = make_cache(block_tokens, type);
        test(cache, type);
      }
    }
  }

  Transformer model_{TinyModel().file(), {.threads = 2}};
};

TEST_F(PagedTransformer, GivesTheBitsOfTheContiguousCache) {
  const auto tokens = random_tokens(150, 1);
  for_each_cache([&](PagedKVStorage& cache, ElementType type) {
    const Matrix want = evaluate(model_, tokens, type);
    ASSERT_TRUE(want.allFinite());
    int sequence = 0;
    for (const std::size_t chunk : {150u, 64u, 7u}) {
      cache.release(sequence);
      EXPECT_EQ(evaluate(model_, cache, sequence, tokens, chunk), want) << "chunks of " << chunk;
      sequence = (sequence + 1) % 2;
    }
  });
}

TEST_F(PagedTransformer, GivesTheSameBitsAfterAPrefixHit) {
  const auto shared = random_tokens(140, 2), tail = random_tokens(30, 3);
  const auto tokens = joined(shared, tail);
  for_each_cache([&](PagedKVStorage& cache, ElementType type) {
    const int size = cache.blocks().block_tokens();
    const Matrix want = evaluate(model_, tokens, type);
    evaluate(model_, cache, 0, shared, 50);
    // While the other one is held, after it was released, and with nothing but the last token left.
    const int cached = cache.attach_prefix(1, tokens);
    EXPECT_EQ(cached, 140 / size * size);
    const auto rest = [&](int length) {
      return std::span(tokens).subspan(static_cast<std::size_t>(length));
    };
    EXPECT_EQ(evaluate(model_, cache, 1, rest(cached), 17), want.bottomRows(170 - cached));
    cache.release(0);
    cache.release(1);
    const int more = cache.attach_prefix(2, tokens);
    EXPECT_EQ(more, 170 / size * size);
    EXPECT_EQ(evaluate(model_, cache, 2, rest(more), 100), want.bottomRows(170 - more));
    const auto whole = std::span(tokens).first(128);
    for (const int sequence : {0, 1}) {  // copied for the one, in place for the other
      EXPECT_EQ(cache.attach_prefix(sequence, whole), 127);
      EXPECT_EQ(evaluate(model_, cache, sequence, whole.last(1), 1), want.row(127));
      if (sequence == 0) cache.release(2);
      cache.release(sequence);
    }
  });
}

TEST_F(PagedTransformer, GivesTheSameBitsAfterForksAndTruncation) {
  const auto prompt = random_tokens(90, 4), other = random_tokens(60, 5),
             end = random_tokens(40, 6);
  for_each_cache([&](PagedKVStorage& cache, ElementType type) {
    const Matrix want_end = evaluate(model_, joined(prompt, end), type).bottomRows(40);
    const Matrix want_other = evaluate(model_, joined(prompt, other), type).bottomRows(60);
    evaluate(model_, cache, 0, prompt, 90);
    cache.fork(0, 1);
    EXPECT_EQ(evaluate(model_, cache, 0, other, 60), want_other);
    EXPECT_EQ(evaluate(model_, cache, 1, end, 13), want_end);
    cache.truncate(0, 90);  // rejected: goes on as its fork did
    EXPECT_EQ(evaluate(model_, cache, 0, end, 1), want_end);
    cache.fork(1, 2);
    cache.truncate(2, 90);
    EXPECT_EQ(evaluate(model_, cache, 2, other, 9), want_other);
    EXPECT_GT(cache.blocks().statistics().num_copies, 0u);
  });
}

// Sequences of a batch that share blocks are computed together as alone.
TEST_F(PagedTransformer, GivesTheSameBitsForABatchThatSharesBlocks) {
  const auto prompt = random_tokens(70, 7), next = random_tokens(2, 8);
  auto cache = make_cache(16, ElementType::kF16);
  evaluate(model_, cache, 0, prompt, 70);
  cache.fork(0, 1);
  Batch batch;
  for (int s : {0, 1}) {
    ASSERT_TRUE(cache.reserve(s, 1));
    batch.add({s, 70, std::span(next).subspan(static_cast<std::size_t>(s), 1), 1});
  }
  Matrix logits(2, model_.vocab_size());
  model_.forward(batch, cache, logits);
  for (int s : {0, 1}) {
    const auto alone = joined(prompt, std::span(next).subspan(static_cast<std::size_t>(s), 1));
    EXPECT_EQ(logits.row(s), evaluate(model_, alone, ElementType::kF16).bottomRows(1));
  }
}

TEST_F(PagedTransformer, GivesTheSameBitsAfterExportAndImport) {
  const auto prompt = random_tokens(90, 12), rest = random_tokens(20, 13);
  for_each_cache([&](PagedKVStorage& cache, ElementType type) {
    const Matrix want = evaluate(model_, joined(prompt, rest), type).bottomRows(20);
    evaluate(model_, cache, 0, prompt, 90);
    const auto bytes = export_sequence(cache, 0, prompt, model_.fingerprint());
    auto other = model_.make_contiguous_cache({.max_seq_len = 110, .element_type = type});
    ASSERT_EQ(import_sequence(other, 0, bytes, model_.fingerprint()), prompt);
    EXPECT_EQ(evaluate(model_, other, 0, rest, 20), want);
    ASSERT_EQ(import_sequence(cache, 1, bytes, model_.fingerprint()), prompt);
    EXPECT_EQ(evaluate(model_, cache, 1, rest, 3), want);
  });
}

TEST(Transformer, FingerprintsTellModelsAndSettingsApart) {
  const auto fingerprint = [](unsigned seed, const TransformerOptions& options,
                              TensorType type = TensorType::kQ8_0) {
    return Transformer(TinyModel({.type = type, .seed = seed}).file(), options).fingerprint();
  };
  const auto base = fingerprint(1, {.threads = 1});
  EXPECT_EQ(fingerprint(1, {.threads = 2, .isa = Isa::kPortable}), base)
      << "no bit depends on these";
  EXPECT_NE(fingerprint(2, {.threads = 1}), base);
  EXPECT_NE(fingerprint(1, {.threads = 1}, TensorType::kQ4_0), base);
  EXPECT_NE(fingerprint(1, {.threads = 1, .activations = ActivationType::kF32}), base);
  EXPECT_NE(fingerprint(1, {.threads = 1, .weights = TensorType::kQ4_0}), base);
  EXPECT_NE(fingerprint(1, {.threads = 1, .window = {100}}), base);
}

TEST_F(PagedTransformer, StepsDoNotAllocateOnceWarm) {
  const auto tokens = random_tokens(100, 9);
  auto cache = make_cache(16, ElementType::kInt8);
  Matrix logits(1, model_.vocab_size());
  Batch batch;
  const auto step = [&](int sequence, std::size_t i) {
    const auto token = std::span(tokens).subspan(i, 1);
    ASSERT_TRUE(cache.reserve(sequence, 1));
    batch.clear();
    batch.add({sequence, cache.length(sequence), token, 1});
    model_.forward(batch, cache, logits);
    cache.commit(sequence, token);
  };
  step(0, 0);
  const auto before = support::num_allocations();
  for (std::size_t i = 1; i < 40; ++i) step(0, i);
  cache.fork(0, 1);
  step(1, 50);
  cache.truncate(1, 20);
  step(1, 60);
  EXPECT_EQ(support::num_allocations(), before);
}

// ---- Windows

/// Logits over a contiguous cache, which keeps all, of a model with a window.
TEST(WindowedTransformer, GivesTheSameBitsWhetherBlocksAreGivenBackOrNot) {
  const auto tokens = random_tokens(250, 10);
  for (const AttentionWindow window : {AttentionWindow{40}, AttentionWindow{50, 5}}) {
    Transformer model(TinyModel().file(), {.threads = 2, .window = window});
    for (const ElementType type : {ElementType::kF32, ElementType::kInt8}) {
      const Matrix want = evaluate(model, tokens, type);
      ASSERT_TRUE(want.allFinite());
      for (const int block_tokens : kBlockSizes) {
        for (const std::size_t chunk : {1u, 19u, 100u}) {
          SCOPED_TRACE(::testing::Message()
                       << name(type) << ", blocks of " << block_tokens << ", chunks of " << chunk);
          // Room for the window, the chunk and the sinks; not for all 250 tokens.
          const int num_blocks = (50 + static_cast<int>(chunk)) / block_tokens + 3;
          auto cache = model.make_cache({.max_seq_len = 1000,
                                         .element_type = type,
                                         .num_blocks = num_blocks,
                                         .block_tokens = block_tokens});
          EXPECT_EQ(evaluate(model, cache, 0, tokens, chunk), want);
        }
      }
    }
  }
}

TEST(WindowedTransformer, AWindowLargerThanTheTextChangesNothing) {
  const auto tokens = random_tokens(100, 11);
  Transformer whole(TinyModel().file(), {.threads = 1});
  Transformer windowed(TinyModel().file(), {.threads = 1, .window = {100, 4}});
  Transformer smaller(TinyModel().file(), {.threads = 1, .window = {99}});
  const Matrix want = evaluate(whole, tokens, ElementType::kF32);
  EXPECT_EQ(evaluate(windowed, tokens, ElementType::kF32), want);
  const Matrix other = evaluate(smaller, tokens, ElementType::kF32);
  EXPECT_EQ(other.topRows(99), want.topRows(99));
  EXPECT_NE(other.row(99), want.row(99));
}

}  // namespace
