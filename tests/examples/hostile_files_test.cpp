// SPDX-License-Identifier: MIT
// Damaged and malicious model files, given to every program that opens one.
//
// Whatever the file: exit code 0, or 2 with one line on standard error; no signal, 1 GiB of address
// space, a few seconds of CPU time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/programs.hpp"
#include "support/gguf_builder.hpp"
#include "support/model_mutator.hpp"
#include "support/sanitizers.hpp"
#include "support/shared_data.hpp"
#include "support/subprocess.hpp"
#include "support/tiny_model.hpp"

namespace {

using Bytes = std::vector<std::byte>;
using Arguments = std::vector<std::string>;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
const support::ProgramOptions kLimits = {.max_memory_bytes = kGiB, .max_cpu_seconds = 10};

/// A short run of a program.
struct Run {
  std::string program;
  Arguments arguments;  // after the model
};
Run generate() { return {"kvick-generate", {"-p", "one two", "-n", "2", "-t", "1"}}; }
Run inspect() { return {"kvick-inspect", {}}; }
Run tokenize() { return {"kvick-tokenize", {"-p", "one two", "--special"}}; }
Run eval(const std::string& text) { return {"kvick-eval", {"--text", text, "-t", "1"}}; }

/// Returns whether the program accepted the model.
bool expect_orderly_end(const Run& run, const std::string& model) {
  Arguments arguments = run.arguments;
  const bool has_option = run.program != "kvick-inspect";
  arguments.insert(arguments.begin(), model);
  if (has_option) arguments.insert(arguments.begin(), "-m");
  const auto result = support::run_program(run.program, arguments, kLimits);
  SCOPED_TRACE(run.program + ": " + result.err);
  EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 2)
      << "code " << result.exit_code << ", signal " << result.signal;
  const auto num_lines = std::count(result.err.begin(), result.err.end(), '\n');
  EXPECT_LE(num_lines, 1);
  if (result.exit_code == 2) {
    EXPECT_EQ(num_lines, 1);
    EXPECT_TRUE(result.err.starts_with(run.program + ": "));
    EXPECT_EQ(result.err.find("std::"), std::string::npos);
  }
  return result.exit_code == 0;
}

/// Models of about 1 MB: q8_0 weights, and f32 weights where that file is there.
Bytes valid_model(int shard) {
  const auto stories = support::shared_path("models/stories260K.gguf");
  if (shard % 2 == 1 && stories) return support::read_bytes(*stories);
  const support::RandomModel model({"--layers", "2", "--embedding", "192", "--ffn", "576"});
  return support::read_bytes(model.path());
}

// Shards, because CTest runs tests in parallel.
constexpr int kNumShards = 8;
constexpr int kMutantsPerShard = 125;  // 1000 in all

class HostileFiles : public ::testing::TestWithParam<int> {};

TEST_P(HostileFiles, EndInAResultOrOneLine) {
  const std::uint64_t seed = 20250301 + static_cast<std::uint64_t>(GetParam());
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  const support::TemporaryDirectory directory;
  const std::string model = directory / "mutant.gguf";
  const std::string text = directory / "text";
  support::write_bytes(text, support::ByteString().text("Once upon a time").bytes());
  support::ModelMutator mutator(valid_model(GetParam()), seed);
  int num_accepted = 0;
  for (int i = 0; i < kMutantsPerShard; ++i) {
    const Bytes bytes = mutator.next();
    SCOPED_TRACE(::testing::Message() << "mutant " << i << ": " << mutator.what_was_done());
    support::write_bytes(model, bytes);
    expect_orderly_end(inspect(), model);
    num_accepted += expect_orderly_end(generate(), model) ? 1 : 0;
    if (i % 10 == 0) {
      expect_orderly_end(tokenize(), model);
      expect_orderly_end(eval(text), model);
    }
  }
  // Mutants reach both ends; a generator that only makes noise would test the magic alone.
  EXPECT_GT(num_accepted, kMutantsPerShard / 20);
  EXPECT_LT(num_accepted, kMutantsPerShard * 3 / 4);
}

INSTANTIATE_TEST_SUITE_P(Shard, HostileFiles, ::testing::Range(0, kNumShards));

// ---- Numbers that are huge and fit together ----

class HugeNumbers : public ::testing::Test {
 protected:
  /// kvick-eval refuses the model with this part in its message, and kvick-inspect shows it.
  void expect_refusal(const std::string& part) {
    support::expect_refusal("kvick-eval", {"-m", model_, "--ids", ids_}, part, kLimits);
    EXPECT_TRUE(expect_orderly_end(inspect(), model_));
  }

  support::TemporaryDirectory directory_;
  const std::string model_ = directory_ / "model.gguf";
  const std::string ids_ = [this] {
    const std::string path = directory_ / "ids";
    support::write_bytes(path, support::ByteString().text("1,2,3,4").bytes());
    return path;
  }();
};

TEST_F(HugeNumbers, AreRefusedByName) {
  support::TinyModel({.max_seq_len = INT32_MAX}).writer().write(model_);
  expect_refusal("'llama.context_length' must be in [1, 16777216]");
  support::TinyModel rope;
  rope.writer().add("llama.rope.dimension_count", std::uint32_t{1 << 24});
  rope.writer().write(model_);
  expect_refusal("'llama.rope.dimension_count'");
}

TEST_F(HugeNumbers, OfLayersDoNotAllocateLayers) {
  support::TinyModel(support::TinyModelOptions{}).writer().write(model_);
  Bytes bytes = support::read_bytes(model_);
  constexpr std::string_view kKey = "llama.block_count";
  const auto* const key = reinterpret_cast<const std::byte*>(kKey.data());
  const auto found = std::search(bytes.begin(), bytes.end(), key, key + kKey.size());
  ASSERT_NE(found, bytes.end());
  const std::uint32_t num_layers = 1 << 24;
  std::memcpy(&*found + kKey.size() + 4, &num_layers, sizeof num_layers);  // 4: the value's type
  support::write_bytes(model_, bytes);
  expect_refusal("block_count must fit the 21 tensors");
}

TEST_F(HugeNumbers, ThatNeedMemoryAreRefusedWithTheArithmetic) {
#if defined(KVICK_TEST_SANITIZED)
  GTEST_SKIP() << "sanitizers need address space";
#endif
  const support::RandomModel model({"--context", "1048576"});
  support::expect_refusal("kvick-generate", {"-m", model.path(), "-p", "x", "-c", "1048576"},
                          "4 layers * 16384 blocks * 2 KV heads * 64 tokens * 256 bytes", kLimits);
}

}  // namespace
