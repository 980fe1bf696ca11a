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
#include "kvick/gguf/gguf_file.hpp"
#include "support/gguf_builder.hpp"
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

// ---- Mutations ----

/// Makes damaged copies of a valid model.
class Mutator {
 public:
  Mutator(Bytes valid, std::uint64_t seed) : valid_(std::move(valid)), random_(seed) {
    Bytes copy = valid_;
    const std::byte* const begin = copy.data();  // stays when the vector is moved
    const auto file = kvick::GgufFile::from_bytes(std::move(copy));
    const auto offset = [&](const void* place) {
      return static_cast<std::size_t>(static_cast<const std::byte*>(place) - begin);
    };
    for (const kvick::GgufValue& value : file.metadata()) {
      if (!value.is_array()) values_.push_back(offset(value.encoded().data()));
    }
    tensors_ = offset(file.tensors().front().name.data());
    header_ = offset(file.tensors().front().data.data());
    for (const auto& tensor : file.tensors()) {
      tensors_ = std::min(tensors_, offset(tensor.name.data()));
      header_ = std::min(header_, offset(tensor.data.data()));
    }
  }

  /// A damaged copy; what_was_done() says how.
  Bytes next() {
    Bytes bytes = valid_;
    what_was_done_.clear();
    do {
      mutate(bytes);
    } while (below(4) == 0);
    return bytes;
  }
  const std::string& what_was_done() const { return what_was_done_; }

 private:
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }

  std::uint64_t extreme() {
    constexpr std::uint64_t kExtremes[] = {0,
                                           1,
                                           2,
                                           31,
                                           1 << 16,
                                           (1 << 24) - 1,
                                           1 << 24,
                                           INT32_MAX,
                                           std::uint64_t{1} << 31,
                                           UINT32_MAX,
                                           std::uint64_t{1} << 32,
                                           std::uint64_t{1} << 60,
                                           INT64_MAX,
                                           std::uint64_t{1} << 63,
                                           UINT64_MAX - 31,
                                           UINT64_MAX};
    return kExtremes[below(std::size(kExtremes))];
  }

  /// Somewhere in the header, half the time where the tensors are described.
  std::size_t header_place() {
    const std::size_t begin = below(2) == 0 ? 0 : tensors_;
    return begin + below(header_ - begin);
  }
  std::size_t place(std::size_t size) {
    return std::min(below(2) == 0 ? header_place() : below(size), size - 1);
  }

  void mutate(Bytes& bytes) {
    const std::size_t at = place(bytes.size());
    // Short more often than long: many a mutant should be well enough to run.
    const std::size_t length = std::min(1 + below(std::size_t{1} << below(12)), bytes.size() - at);
    const auto note = [&](const char* what, std::size_t where) {
      what_was_done_ += std::string(what) + " at " + std::to_string(where) + "; ";
    };
    const auto put = [&](const char* what, std::size_t where, std::uint64_t value,
                         std::size_t width) {
      if (bytes.size() < where + width) return;
      note((what + (" " + std::to_string(value))).c_str(), where);
      std::memcpy(&bytes[where], &value, width);
    };
    switch (below(8)) {
      case 0:
        note("random bytes in the header", 0);
        for (std::size_t i = 1 + below(8); i > 0; --i) {
          bytes[std::min(header_place(), bytes.size() - 1)] = static_cast<std::byte>(random_());
        }
        return;
      case 1:
        note("random bytes", at);
        for (std::size_t i = 0; i < length; ++i) bytes[at + i] = static_cast<std::byte>(random_());
        return;
      case 2: return put("64-bit number", header_place(), extreme(), 8);
      case 3: return put("32-bit number", header_place(), extreme(), 4);
      case 4: return put("value", values_[below(values_.size())], extreme(), 4);
      case 5: note("truncated", at); return bytes.resize(at + 1);
      case 6: {
        note("range of another place", at);
        const std::size_t from = below(bytes.size() - length + 1);
        const Bytes range(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                          bytes.begin() + static_cast<std::ptrdiff_t>(from + length));
        const auto to = bytes.begin() + static_cast<std::ptrdiff_t>(at);
        if (below(2) == 0) {
          std::copy(range.begin(), range.end(), to);
        } else {
          bytes.insert(to, range.begin(), range.end());
        }
        return;
      }
      default:
        note("zeros", at);
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length, std::byte{0});
    }
  }

  Bytes valid_;
  std::mt19937_64 random_;
  std::vector<std::size_t> values_;  // where metadata values begin that are no arrays
  std::size_t tensors_ = 0;          // where the descriptions of tensors begin
  std::size_t header_ = 0;           // bytes before the first tensor's data
  std::string what_was_done_;
};

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
  Mutator mutator(valid_model(GetParam()), seed);
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
                          "2 * 4 layers * 1 sequences * 2 KV heads * 1048576 positions * 64",
                          kLimits);
}

}  // namespace
