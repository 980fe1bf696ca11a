// SPDX-License-Identifier: MIT
// The hyperparameters of a Llama-family model, read from GGUF metadata and checked.
//
// Errors    Error(kUnsupported) for an architecture or option that the Transformer does not
// compute;
//           Error(kFormat) for values that are missing or make no sense. Never silently wrong.
// Source    GGUF metadata keys `{architecture}.*`.
// Layer     model: may include core, quant, nn, gguf.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/nn/rope.hpp"
#include "kvick/quant/block_formats.hpp"

namespace kvick::inline v0_1 {

struct ModelConfig {
  std::string architecture;  ///< "llama", "qwen2" or "qwen3"
  int num_layers = 0;
  int embedding_dim = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int ffn_dim = 0;
  int vocab_size = 0;
  int max_seq_len = 0;  ///< the context the model was made for
  float rms_epsilon = 0.0f;
  RopeOptions rope;
};

/// The configuration in a model file.
inline ModelConfig read_model_config(const GgufFile& file);

// ---- Implementation: nothing below is API ----

namespace detail {

/// Bounds that no real model comes near, so that products of a few sizes fit in 64 bits.
inline constexpr int kMaxModelSize = 1 << 24;

/// Reads `{architecture}.*` keys.
class ConfigReader {
 public:
  static constexpr std::string_view kOperation = "read_model_config";

  ConfigReader(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  std::string key(std::string_view suffix) const { return prefix_ + std::string(suffix); }

  /// A positive size; a per-layer array must repeat one value.
  std::optional<int> find_size(std::string_view suffix) const {
    const GgufValue* const value = file_.find(key(suffix));
    if (value == nullptr) return std::nullopt;
    if (!value->is_array()) return check_size(suffix, value->get<std::int64_t>());
    const auto values = value->get<std::vector<std::int64_t>>();
    require(!values.empty(), ErrorCode::kFormat, kOperation, in_quotes(key(suffix)),
            " must not be an empty array");
    for (const std::int64_t other : values) {
      require(other == values.front(), ErrorCode::kUnsupported, kOperation, in_quotes(key(suffix)),
              " must be the same in every layer, got ", values.front(), " and ", other);
    }
    return check_size(suffix, values.front());
  }

  int size(std::string_view suffix) const {
    const auto found = find_size(suffix);
    require(found.has_value(), ErrorCode::kFormat, kOperation, "the file must have the key ",
            in_quotes(key(suffix)));
    return *found;
  }

  double number_or(std::string_view suffix, double fallback) const {
    return file_.get_or<double>(key(suffix), fallback);
  }

  const GgufFile& file() const noexcept { return file_; }

 private:
  int check_size(std::string_view suffix, std::int64_t value) const {
    require(value > 0 && value <= kMaxModelSize, ErrorCode::kFormat, kOperation,
            in_quotes(key(suffix)), " must be in [1, ", kMaxModelSize, "], got ", value);
    return static_cast<int>(value);
  }

  const GgufFile& file_;
  std::string prefix_;
};

inline std::vector<float> read_freq_factors(const GgufFile& file, std::size_t num_pairs) {
  const GgufTensor* const tensor = file.find_tensor("rope_freqs.weight");
  if (tensor == nullptr) return {};
  require(tensor->num_elements() == num_pairs, ErrorCode::kFormat, ConfigReader::kOperation,
          "tensor 'rope_freqs.weight' must have ", num_pairs, " values, got ",
          tensor->num_elements());
  std::vector<float> factors(num_pairs);
  dequantize(tensor->type, tensor->data, factors);
  return factors;
}

inline RopeOptions read_rope_options(const ConfigReader& reader, const ModelConfig& config) {
  RopeOptions rope;
  rope.head_dim = config.head_dim;
  rope.rotary_dim = reader.find_size("rope.dimension_count").value_or(config.head_dim);
  rope.form = config.architecture == "llama" ? RopeForm::kAdjacentPairs : RopeForm::kHalfSplit;
  rope.freq_base = reader.number_or("rope.freq_base", 10000.0);
  require(rope.rotary_dim <= config.head_dim && rope.rotary_dim % 2 == 0, ErrorCode::kFormat,
          ConfigReader::kOperation, in_quotes(reader.key("rope.dimension_count")),
          " must be even and at most the head size ", config.head_dim, ", got ", rope.rotary_dim);
  rope.freq_factors =
      read_freq_factors(reader.file(), static_cast<std::size_t>(rope.rotary_dim / 2));

  const GgufFile& file = reader.file();
  const double old_linear_factor = reader.number_or("rope.scale_linear", 1.0);
  rope.factor = reader.number_or("rope.scaling.factor", old_linear_factor);
  if (rope.factor == 0.0) rope.factor = 1.0;  // converters write 0 for "not scaled"
  const auto type = file.get_or<std::string>(reader.key("rope.scaling.type"), "linear");
  rope.original_context_length =
      reader.find_size("rope.scaling.original_context_length").value_or(config.max_seq_len);
  if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    rope.attention_factor = reader.number_or("rope.scaling.attn_factor", 1.0);
    rope.beta_fast = reader.number_or("rope.scaling.yarn_beta_fast", rope.beta_fast);
    rope.beta_slow = reader.number_or("rope.scaling.yarn_beta_slow", rope.beta_slow);
  } else if (type == "linear") {
    rope.scaling = rope.factor == 1.0 ? RopeScaling::kNone : RopeScaling::kLinear;
  } else {
    require(type == "none", ErrorCode::kUnsupported, ConfigReader::kOperation,
            in_quotes(reader.key("rope.scaling.type")), " must be none, linear or yarn, got ",
            in_quotes(type));
  }
  return rope;
}

/// Rows of the embedding; the tokenizer must have as many tokens.
inline int read_vocab_size(const GgufFile& file) {
  const std::uint64_t rows = file.tensor("token_embd.weight").num_rows();
  require(rows <= kMaxModelSize, ErrorCode::kFormat, ConfigReader::kOperation,
          "tensor 'token_embd.weight' must have at most ", kMaxModelSize, " rows, got ", rows);
  const GgufValue* const tokens = file.find("tokenizer.ggml.tokens");
  require(tokens == nullptr || tokens->num_elements() == rows, ErrorCode::kFormat,
          ConfigReader::kOperation, "tensor 'token_embd.weight' must have one row for each of the ",
          tokens == nullptr ? 0 : tokens->num_elements(), " tokens, got ", rows);
  return static_cast<int>(rows);
}

/// Options of the format that change the result and are not computed here.
inline void refuse_unsupported_options(const ConfigReader& reader) {
  const auto refuse = [&](std::string_view suffix, std::string_view what) {
    throw Error(
        ErrorCode::kUnsupported, ConfigReader::kOperation,
        concat("models with ", what, " are not supported, got ", in_quotes(reader.key(suffix))));
  };
  if (reader.file().get_or<std::int64_t>(reader.key("expert_count"), 0) > 0) {
    refuse("expert_count", "mixture of experts");
  }
  for (const std::string_view suffix : {"attn_logit_softcapping", "final_logit_softcapping",
                                        "logit_scale", "residual_scale", "embedding_scale"}) {
    if (reader.file().find(reader.key(suffix)) != nullptr)
      refuse(suffix, "scaled or capped values");
  }
}

}  // namespace detail

inline ModelConfig read_model_config(const GgufFile& file) {
  constexpr std::string_view kOperation = detail::ConfigReader::kOperation;
  ModelConfig config;
  config.architecture = file.get<std::string>("general.architecture");
  detail::require(config.architecture == "llama" || config.architecture == "qwen2" ||
                      config.architecture == "qwen3",
                  ErrorCode::kUnsupported, kOperation,
                  "general.architecture must be llama, qwen2 or qwen3, got ",
                  detail::in_quotes(config.architecture));
  const detail::ConfigReader reader(file, config.architecture);
  detail::refuse_unsupported_options(reader);

  config.num_layers = reader.size("block_count");
  config.embedding_dim = reader.size("embedding_length");
  config.num_heads = reader.size("attention.head_count");
  config.num_kv_heads = reader.find_size("attention.head_count_kv").value_or(config.num_heads);
  config.ffn_dim = reader.size("feed_forward_length");
  config.max_seq_len = reader.size("context_length");
  config.head_dim =
      reader.find_size("attention.key_length").value_or(config.embedding_dim / config.num_heads);
  config.vocab_size = detail::read_vocab_size(file);
  config.rms_epsilon = file.get<float>(reader.key("attention.layer_norm_rms_epsilon"));

  detail::require(config.num_heads % config.num_kv_heads == 0, ErrorCode::kFormat, kOperation,
                  "attention.head_count must be a multiple of attention.head_count_kv, got ",
                  config.num_heads, " and ", config.num_kv_heads);
  detail::require(config.head_dim > 0, ErrorCode::kFormat, kOperation,
                  "embedding_length must be at least attention.head_count, got ",
                  config.embedding_dim, " and ", config.num_heads);
  detail::require(config.num_heads <= detail::kMaxModelSize / config.head_dim, ErrorCode::kFormat,
                  kOperation, "heads * head size must be at most ", detail::kMaxModelSize, ", got ",
                  config.num_heads, " * ", config.head_dim);
  const int value_length = reader.find_size("attention.value_length").value_or(config.head_dim);
  detail::require(value_length == config.head_dim, ErrorCode::kUnsupported, kOperation,
                  "attention.value_length must equal attention.key_length = ", config.head_dim,
                  ", got ", value_length);
  detail::require(std::isfinite(config.rms_epsilon) && config.rms_epsilon >= 0.0f,
                  ErrorCode::kFormat, kOperation,
                  "attention.layer_norm_rms_epsilon must not be negative, got ",
                  config.rms_epsilon);
  config.rope = detail::read_rope_options(reader, config);
  return config;
}

}  // namespace kvick::inline v0_1
