// SPDX-License-Identifier: MIT
// Any bytes at all, all the way: file, tokenizer, model and one forward pass work or throw Error,
// within memory that the file warrants.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvick/model/transformer.hpp"
#include "kvick/text/tokenizer.hpp"
#include "support/allocation_counter.hpp"
#include "support/model_mutator.hpp"
#include "support/tiny_model.hpp"

namespace {

using namespace kvick;
using Bytes = std::vector<std::byte>;

Bytes valid_model(const std::string& architecture) {
  return support::TinyModel(support::smallest_model(architecture, TensorType::kQ8_0))
      .writer()
      .to_bytes();
}

void use(Bytes bytes) {
  GgufFile file = GgufFile::from_bytes(std::move(bytes));
  try {
    const Tokenizer tokenizer(file);
    tokenizer.decode(tokenizer.encode("a <s> bc\xff", {.parse_special = true}));
  } catch (const Error&) {
    // A broken tokenizer does not keep the model from computing.
  }
  Transformer model(std::move(file), {.threads = 1});
  auto cache = model.make_cache({.max_seq_len = 2});
  ASSERT_TRUE(cache.reserve(0, 2));
  const std::vector<TokenId> tokens = {0, model.vocab_size() - 1};
  Matrix logits(1, model.vocab_size());
  model.forward(Batch({0, 0, tokens, 1}), cache, logits);
}

/// Whether the bytes are a model. Anything but that and kvick::Error fails the test.
bool works(Bytes bytes) {
  // Scratch of attention is 64 keys and values of a head in floats, next to 1 byte per weight of at
  // least as many rows: 512 times the file is far from reached by honest sizes, and what one field
  // set to an extreme would ask for is far beyond. The machine's own buffers stay below 256 KiB.
  // (Mappings of 2 MiB and more are not counted here; the programs' tests limit the address space.)
  const std::size_t bound = 512 * bytes.size() + (std::size_t{1} << 18);
  support::reset_largest_allocation();
  bool is_model = true;
  try {
    use(std::move(bytes));
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
    is_model = false;
  }
  EXPECT_LE(support::largest_allocation(), bound);
  return is_model;
}

class AnyBytes : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Models, AnyBytes, ::testing::Values("llama", "qwen2", "qwen3"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST_P(AnyBytes, CutAnywhereAreRefused) {
  const Bytes whole = valid_model(GetParam());
  ASSERT_TRUE(works(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // Padding after the last tensor may go.
    const bool is_padding = whole.size() - size < 32;
    EXPECT_TRUE(is_padding ||
                !works({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}))
        << "cut at byte " << size;
  }
}

TEST_P(AnyBytes, MutationsWorkOrAreRefused) {
  constexpr std::uint64_t kSeed = 20240608;
  constexpr int kNumMutants = 20000;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  support::ModelMutator mutator(valid_model(GetParam()), kSeed);
  int num_working = 0;
  for (int i = 0; i < kNumMutants; ++i) {
    const Bytes bytes = mutator.next();
    SCOPED_TRACE(::testing::Message() << "mutant " << i << ": " << mutator.what_was_done());
    num_working += works(bytes) ? 1 : 0;
  }
  // Mutants reach both ends.
  EXPECT_GT(num_working, kNumMutants / 20);
  EXPECT_LT(num_working, kNumMutants * 3 / 4);
}

}  // namespace
