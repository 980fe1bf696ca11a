// SPDX-License-Identifier: MIT
// Tokenizers on English and Chinese text, one thread. Names are text/direction/vocabulary:
//
//   KVICK_VOCABULARIES=llama3.gguf:qwen3.gguf kvick_benchmarks --benchmark_filter=chinese/encode
//
// KVICK_VOCABULARIES names GGUF files, whose weights are not needed; without it, and where the
// folder of test data lies beside the project, those of GPT-2 and Llama 2 are taken. A megabyte of
// text is made of the clauses of the samples beside this file in random order. Each case first
// checks that the tokens give back the text.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/text/tokenizer.hpp"

namespace {

const std::filesystem::path kFolder = std::filesystem::path(__FILE__).parent_path();

/// The sample in pieces that end where `ends` says, and the line breaks with them.
std::vector<std::string> clauses(const std::string& sample, std::string_view language) {
  std::vector<std::string> result(1);
  for (std::size_t at = 0; at < sample.size();) {
    const std::size_t length =
        kvick::first_utf8_step(std::string_view(sample).substr(at)).num_bytes;
    const std::string character = sample.substr(at, length);
    result.back() += character;
    at += length;
    const bool is_end =
        language == "english"
            ? character == " " || character == "\n"
            : std::string_view("，。；：、！？\n").find(character) != std::string_view::npos;
    if (is_end) result.emplace_back();
  }
  if (result.back().empty()) result.pop_back();
  return result;
}

const std::string& text_of(const std::string& language) {
  static std::map<std::string, std::string> texts;
  std::string& text = texts[language];
  if (text.empty()) {
    std::ifstream file(kFolder / (language + ".txt"), std::ios::binary);
    const std::string sample{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::string> parts = clauses(sample, language);
    std::mt19937 rng(1);
    while (!parts.empty() && text.size() < 1'000'000) text += parts[rng() % parts.size()];
  }
  return text;
}

const kvick::Tokenizer& tokenizer_of(const std::string& path) {
  static std::map<std::string, std::unique_ptr<kvick::Tokenizer>> tokenizers;
  auto& tokenizer = tokenizers[path];
  if (!tokenizer) tokenizer = std::make_unique<kvick::Tokenizer>(kvick::GgufFile(path));
  return *tokenizer;
}

void run(benchmark::State& state, const std::string& path, const std::string& language,
         bool encodes) {
  const kvick::Tokenizer& tokenizer = tokenizer_of(path);
  const std::string& text = text_of(language);
  const auto tokens = tokenizer.encode(text);
  if (text.empty() || tokenizer.decode(tokens) != text) {
    return state.SkipWithError("the tokens do not give back the text");
  }
  for (auto _ : state) {
    if (encodes) {
      benchmark::DoNotOptimize(tokenizer.encode(text));
    } else {
      benchmark::DoNotOptimize(tokenizer.decode(tokens));
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size()) * state.iterations());
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens.size()),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  state.counters["bytes/token"] =
      static_cast<double>(text.size()) / static_cast<double>(tokens.size());
}

std::vector<std::string> vocabularies() {
  std::vector<std::string> paths;
  if (const char* const list = std::getenv("KVICK_VOCABULARIES")) {
    std::istringstream stream(list);
    for (std::string path; std::getline(stream, path, ':');) paths.push_back(path);
    return paths;
  }
  for (const char* const name : {"vocab-gpt-2.gguf", "vocab-llama-spm.gguf"}) {
    const auto path = kFolder / "../../../shared/models" / name;
    if (std::filesystem::exists(path)) paths.push_back(path.lexically_normal());
  }
  return paths;
}

[[maybe_unused]] const bool kIsRegistered = [] {
  for (const std::string& path : vocabularies()) {
    const std::string vocabulary = std::filesystem::path(path).stem();
    for (const std::string language : {"english", "chinese"}) {
      for (const bool encodes : {true, false}) {
        const std::string label = language + (encodes ? "/encode/" : "/decode/") + vocabulary;
        benchmark::RegisterBenchmark(
            label.c_str(), [=](benchmark::State& state) { run(state, path, language, encodes); });
      }
    }
  }
  return true;
}();

}  // namespace
