// SPDX-License-Identifier: MIT
// 100,000 random calls of every cache against a model made of vectors and maps.
//
// Every row holds the number of its prefix (the tokens up to its position, and the sequence's key),
// so that a row shared, copied, found again or overwritten by mistake shows. After each call all
// lengths and, of one layer and head in turn, all rows that a next token would see are compared,
// and the accounts of the blocks are checked.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/paged_kv_cache.hpp"

namespace kvick {
namespace {

constexpr int kNumCalls = 100'000;
constexpr int kLayers = 2, kHeads = 2, kSequences = 5, kMaxLength = 100;

/// Numbers for prefixes: of a prefix and one more token.
class Prefixes {
 public:
  int after(int prefix, TokenId token) {
    return numbers_.try_emplace({prefix, token}, static_cast<int>(numbers_.size()) + 100)
        .first->second;
  }
  /// Of no tokens; below the others.
  static int root(const PrefixKey& key) { return static_cast<int>(10 * key.adapter + key.salt); }

 private:
  std::map<std::pair<int, TokenId>, int> numbers_;
};

struct Sequence {
  PrefixKey key;
  std::vector<TokenId> tokens;   // committed
  std::vector<int> prefixes;     // one per token
  std::vector<TokenId> drafted;  // written after them
  int reserved = 0;

  int length() const { return static_cast<int>(tokens.size()); }
};

template <class Cache>
constexpr bool kIsPaged = std::is_base_of_v<PagedKVStorage, Cache>;

template <class Cache>
class ModelTest {
 public:
  ModelTest(Cache cache, unsigned seed) : cache_(std::move(cache)), random_(seed) {
    for (auto& text : texts_) {
      for (int i = 0; i < kMaxLength; ++i) text.push_back(up_to(2));
    }
  }

  void run() {
    for (int call = 0; call < kNumCalls; ++call) {
      SCOPED_TRACE(::testing::Message() << "call " << call);
      const int s = up_to(kSequences - 1);
      const int kind = up_to(39);
      if (kind < 2) {
        truncate(s);
      } else if (kind < 3) {
        release(s);
      } else if (kind < 5) {
        fork(s, up_to(kSequences - 1));
      } else if (kind < 7) {
        start(s);
      } else if (kind < 18) {
        reserve(s);
      } else if (kind < 26) {
        write(s);
      } else {
        commit(s);
      }
      if (::testing::Test::HasFatalFailure()) return;
      check_rows(call % kLayers, call / kLayers % kHeads);
      if constexpr (kIsPaged<Cache>) check_blocks();
      if (::testing::Test::HasFatalFailure()) return;
    }
    if constexpr (kIsPaged<Cache>) {  // the calls met what they were to meet
      const BlockStatistics statistics = cache_.blocks().statistics();
      EXPECT_GT(statistics.num_hit_tokens, 5000);
      EXPECT_GT(statistics.num_evictions, 500u);
      EXPECT_GT(statistics.num_copies, 500u);
    }
    EXPECT_GT(num_refused_, 100);
  }

 private:
  int up_to(int limit) { return std::uniform_int_distribution<int>(0, limit)(random_); }
  Sequence& at(int s) { return model_[static_cast<std::size_t>(s)]; }
  const AttentionWindow& window() const { return cache_.window(); }

  /// Tokens that a sequence goes on with: mostly those of a text that others go on with too.
  TokenId next_token(const Sequence& sequence, std::size_t position) {
    const auto& text = texts_[sequence.key.salt % 2];
    return up_to(30) == 0 ? up_to(2) : text[position % text.size()];
  }

  int last_prefix(const Sequence& sequence) const {
    return sequence.prefixes.empty() ? Prefixes::root(sequence.key) : sequence.prefixes.back();
  }

  void start(int s) {
    release(s);
    Sequence& model = at(s);
    if constexpr (kIsPaged<Cache>) {
      model.key = {.adapter = static_cast<std::uint64_t>(up_to(1)),
                   .salt = static_cast<std::uint64_t>(up_to(1))};
      std::vector<TokenId> prompt;
      const int size = 1 + up_to(kMaxLength - 1);
      for (int i = 0; i < size; ++i) {
        prompt.push_back(next_token(model, static_cast<std::size_t>(i)));
      }
      const PrefixHit hit = cache_.find_prefix(prompt, model.key);
      const int cached = cache_.attach_prefix(s, prompt, model.key);
      ASSERT_EQ(cached, hit.num_tokens);
      ASSERT_LT(cached, size);
      for (int i = 0; i < cached; ++i) append(model, prompt[static_cast<std::size_t>(i)]);
      model.reserved = cached;
    }
  }

  void append(Sequence& model, TokenId token) {
    model.prefixes.push_back(prefixes_.after(last_prefix(model), token));
    model.tokens.push_back(token);
  }

  /// Whether there is room, by the tables alone.
  bool fits(int s, int num_tokens) {
    const Sequence& model = at(s);
    const int end = model.length() + num_tokens;
    if (end > kMaxLength) return false;
    if (end <= model.reserved) return true;
    if constexpr (kIsPaged<Cache>) {
      const int size = cache_.blocks().block_tokens();
      const auto table = cache_.blocks().table(s);
      int needed = (end + size - 1) / size - static_cast<int>(table.size());
      if (model.length() % size != 0 && model.reserved == model.length()) {
        needed += num_holders()[table.back()] > 1 ? 1 : 0;
      }
      const int num_used = static_cast<int>(num_holders().size());
      return needed <= cache_.blocks().num_blocks() - num_used;
    }
    return true;
  }

  void reserve(int s) {
    const int num_tokens = up_to(40);
    const bool has_room = fits(s, num_tokens);
    ASSERT_EQ(cache_.reserve(s, num_tokens), has_room);
    num_refused_ += has_room ? 0 : 1;
    Sequence& model = at(s);
    if (has_room) model.reserved = std::max(model.reserved, model.length() + num_tokens);
  }

  /// Drafts tokens for all that is reserved and writes their rows.
  void write(int s) {
    Sequence& model = at(s);
    const int count = model.reserved - model.length();
    model.drafted.clear();
    Matrix rows(count, kHeads);
    int prefix = last_prefix(model);
    for (int i = 0; i < count; ++i) {
      const auto position = model.tokens.size() + static_cast<std::size_t>(i);
      model.drafted.push_back(next_token(model, position));
      prefix = prefixes_.after(prefix, model.drafted.back());
      for (int head = 0; head < kHeads; ++head) rows(i, head) = content(prefix, 0, head);
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      const Matrix keys = rows.array() + static_cast<float>(layer);
      cache_.write(layer, s, model.length(), keys, -keys);
    }
  }

  void commit(int s) {
    Sequence& model = at(s);
    const int count = up_to(static_cast<int>(model.drafted.size()));
    const std::span accepted(model.drafted.data(), static_cast<std::size_t>(count));
    cache_.commit(s, accepted);
    for (const TokenId token : accepted) append(model, token);
    model.drafted.erase(model.drafted.begin(), model.drafted.begin() + count);
  }

  void truncate(int s) {
    Sequence& model = at(s);
    const int length = up_to(model.length());
    if (!keeps_all_seen_at(s, length)) {
      EXPECT_THROW(cache_.truncate(s, length), Error);
      return;
    }
    cache_.truncate(s, length);
    model.tokens.resize(static_cast<std::size_t>(length));
    model.prefixes.resize(static_cast<std::size_t>(length));
    model.drafted.clear();
    model.reserved = length;
  }

  void release(int s) {
    cache_.release(s);
    at(s) = {};
  }

  void fork(int from, int to) {
    if (from == to) return;
    release(to);
    cache_.fork(from, to);
    at(to) = at(from);
    at(to).drafted.clear();
    at(to).reserved = at(to).length();
  }

  /// Exact in f32 below 2^24.
  static float content(int prefix, int layer, int head) {
    return static_cast<float>(prefix * 4 + head * 2 + layer);
  }

  bool is_seen(int position, int length) const {
    return position < length &&
           (position >= window().first_position(length) || position < window().num_sinks);
  }

  bool keeps_all_seen_at([[maybe_unused]] int s, [[maybe_unused]] int length) {
    if constexpr (kIsPaged<Cache>) {
      const auto table = cache_.blocks().table(s);
      const int size = cache_.blocks().block_tokens();
      for (int p = 0; p < length; ++p) {
        if (is_seen(p, length) && table[static_cast<std::size_t>(p / size)] == kNoBlock) {
          return false;
        }
      }
    }
    return true;
  }

  void check_rows(int layer, int head) {
    for (int s = 0; s < kSequences; ++s) {
      const Sequence& model = at(s);
      ASSERT_EQ(cache_.length(s), model.length());
      ASSERT_EQ(cache_.reserved(s), model.reserved);
      for (int position = 0; position < model.length();) {
        if (!is_seen(position, model.length())) {
          ++position;
          continue;
        }
        const KVRun run = cache_.run(layer, s, head, position);
        const int end = std::min(model.length(), position + run.num_tokens);
        const auto* keys = reinterpret_cast<const float*>(run.keys);
        const auto* values = reinterpret_cast<const float*>(run.values);
        for (; position < end; ++position, ++keys, ++values) {
          const float want =
              content(model.prefixes[static_cast<std::size_t>(position)], layer, head);
          ASSERT_EQ(*keys, want) << "sequence " << s << " at " << position;
          ASSERT_EQ(*values, -want) << "sequence " << s << " at " << position;
        }
      }
    }
  }

  /// How many tables name each block.
  std::map<BlockId, int> num_holders() {
    std::map<BlockId, int> holders;
    for (int s = 0; s < kSequences; ++s) {
      for (const BlockId block : cache_.blocks().table(s)) {
        if (block != kNoBlock) ++holders[block];
      }
    }
    return holders;
  }

  void check_blocks() {
    const BlockManager& blocks = cache_.blocks();
    const auto holders = num_holders();
    int num_shared = 0, num_cached = 0;
    for (BlockId block = 0; block < blocks.num_blocks(); ++block) {
      const auto held = holders.find(block);
      const int count = held == holders.end() ? 0 : held->second;
      ASSERT_EQ(blocks.pool().ref_count(block), count) << "block " << block;
      num_shared += count > 1 ? 1 : 0;
      num_cached += count == 0 && blocks.pool().is_published(block) ? 1 : 0;
    }
    const BlockStatistics statistics = blocks.statistics();
    ASSERT_EQ(statistics.num_used, static_cast<int>(holders.size()));
    ASSERT_EQ(statistics.num_shared, num_shared);
    ASSERT_EQ(statistics.num_cached, num_cached);
    ASSERT_EQ(statistics.num_used + statistics.num_cached + statistics.num_empty,
              blocks.num_blocks());
  }

  Cache cache_;
  std::mt19937 random_;
  std::vector<Sequence> model_ = std::vector<Sequence>(kSequences);
  Prefixes prefixes_;
  std::vector<TokenId> texts_[2];
  int num_refused_ = 0;
};

template <class Cache>
void run_model_test(Cache cache, unsigned seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  ModelTest<Cache>(std::move(cache), seed).run();
}

PagedKVCache<float> paged(int block_tokens, int num_blocks, AttentionWindow window = {}) {
  return PagedKVCache<float>({.num_layers = kLayers,
                              .num_sequences = kSequences,
                              .num_kv_heads = kHeads,
                              .max_seq_len = kMaxLength,
                              .head_dim = 1,
                              .num_blocks = num_blocks,
                              .block_tokens = block_tokens,
                              .window = window});
}

TEST(ContiguousKVCache, EqualsAModelOfMapsUnderRandomCalls) {
  run_model_test(ContiguousKVCache(ElementType::kF32, {.num_layers = kLayers,
                                                       .batch_size = kSequences,
                                                       .num_kv_heads = kHeads,
                                                       .max_seq_len = kMaxLength,
                                                       .head_dim = 1}),
                 20240817);
}

TEST(PagedKVCache, EqualsAModelOfMapsUnderRandomCalls) { run_model_test(paged(16, 24), 20240818); }

TEST(PagedKVCache, EqualsAModelOfMapsInFewBlocks) { run_model_test(paged(32, 8), 20240819); }

TEST(PagedKVCache, EqualsAModelOfMapsWithAWindow) {
  run_model_test(paged(16, 14, {.size = 20, .num_sinks = 3}), 20240820);
}

}  // namespace
}  // namespace kvick
