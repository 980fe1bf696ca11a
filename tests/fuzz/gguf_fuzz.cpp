// SPDX-License-Identifier: MIT
// libFuzzer: any bytes either load as a model and compute a token, or throw kvick::Error.
//
// The file goes all the way: container, metadata, tokenizer, configuration, weights and, if it is
// still alive and small, one forward pass.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvick/gguf/gguf_file.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/text/tokenizer.hpp"

namespace {

/// Visits every value as its own type would be read.
void read_metadata(const kvick::GgufFile& file) {
  for (const kvick::GgufValue& value : file.metadata()) {
    try {
      if (value.element_type() == kvick::GgufType::kString) {
        if (value.is_array()) {
          (void)value.get<std::vector<std::string_view>>();
        } else {
          (void)value.get<std::string_view>();
        }
      } else if (value.is_array()) {
        (void)value.get<std::vector<std::int64_t>>();
      } else {
        (void)value.get<double>();
      }
    } catch (const kvick::Error&) {
      // Another type than asked for.
    }
  }
}

void encode(const kvick::GgufFile& file) {
  try {
    const kvick::Tokenizer tokenizer(file);
    const auto tokens = tokenizer.encode("Once upon <s> a \xff time", {.parse_special = true});
    (void)tokenizer.decode(tokens);
  } catch (const kvick::Error&) {
    // No tokenizer, or a broken one.
  }
}

void compute(kvick::GgufFile file) {
  constexpr int kMaxSize = 4096;
  kvick::Transformer model(std::move(file), {.threads = 1});
  const kvick::ModelConfig& config = model.config();
  if (config.vocab_size > kMaxSize || config.ffn_dim > kMaxSize || config.num_heads > kMaxSize)
    return;
  auto cache = model.make_cache({.max_seq_len = 2});
  if (cache.memory_bytes() > (1u << 20) || !cache.reserve(0, 2)) return;
  const std::vector<kvick::TokenId> tokens = {0, config.vocab_size - 1};
  kvick::Matrix logits(1, config.vocab_size);
  model.forward(kvick::Batch({0, 0, tokens, 1}), cache, logits);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  try {
    kvick::GgufFile file = kvick::GgufFile::from_bytes(std::move(bytes), "fuzz");
    read_metadata(file);
    encode(file);
    compute(std::move(file));
  } catch (const kvick::Error&) {
    // Refused: that is the other allowed outcome.
  }
  return 0;
}
