// SPDX-License-Identifier: MIT
// Writes a small model of the Llama architecture with random weights: a file to try programs with
// where no real model is at hand. What it generates is noise.
//
//   kvick-random-model random.gguf --seed 1
//
// Weights have variance 1 / inputs, and those that add to the residual stream 1 / (2 layers) of
// that, so activations stay near unit variance. The same options give the same bytes on every
// machine.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/math.hpp"
#include "kvick/core/random.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/quant/block_formats.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "kvick/text/spm_tokenizer.hpp"
#include "kvick/text/vocabulary.hpp"
#include "support/model_metadata.hpp"
#include "support/program.hpp"

namespace {

using kvick::TokenType;

struct Options {
  std::string path;
  std::uint64_t seed = 0;
  int num_layers = 4;
  int embedding_dim = 256;
  int num_heads = 4;
  int num_kv_heads = 2;
  int ffn_dim = 768;
  int max_seq_len = 512;

  int head_dim() const { return embedding_dim / num_heads; }
};

void check(const Options& options) {
  const auto require = [](bool ok, const char* rule) {
    if (!ok) throw programs::BadInput(rule);
  };
  require(options.embedding_dim % 32 == 0 && options.ffn_dim % 32 == 0,
          "--embedding and --ffn must be multiples of 32, the block of q8_0");
  require(options.embedding_dim % (2 * options.num_heads) == 0,
          "--embedding must be a multiple of 2 * --heads: a head has an even size");
  require(options.num_heads % options.num_kv_heads == 0,
          "--heads must be a multiple of --kv-heads");
}

/// Nothing if help was asked for.
std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Writes a small GGUF model of the Llama architecture with random weights.",
               "kvick-random-model");
  app.add_option("OUT.gguf", options.path, "the file to write")->required();
  programs::add_seed_option(app, options.seed, "of the weights")->default_str("0");
  const auto add_size = [&](const char* option, int& value, int max, const char* what) {
    app.add_option(option, value, what)->check(CLI::Range(1, max))->capture_default_str();
  };
  add_size("--layers", options.num_layers, 256, "");
  add_size("--embedding", options.embedding_dim, 16384, "size of a hidden state");
  add_size("--heads", options.num_heads, 256, "attention heads");
  add_size("--kv-heads", options.num_kv_heads, 256, "heads of keys and values");
  add_size("--ffn", options.ffn_dim, 65536, "size of the layer within a gated MLP");
  add_size("--context", options.max_seq_len, 1 << 20, "tokens");
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  check(options);
  return options;
}

// ---- Vocabulary ----

class VocabularyBuilder {
 public:
  void add(std::string piece, TokenType type) {
    // Earlier pieces merge first, as in Llama's vocabulary: scores 0, -1, -2, ...
    const bool is_text = type == TokenType::kNormal;
    scores_.push_back(is_text ? -static_cast<float>(num_text_pieces_++) : 0.0f);
    pieces_.push_back(std::move(piece));
    types_.push_back(static_cast<std::int32_t>(type));
  }

  void write_to(kvick::GgufWriter& writer) const {
    writer.add("tokenizer.ggml.model", "llama");
    writer.add("tokenizer.ggml.tokens", pieces_);
    writer.add("tokenizer.ggml.scores", scores_);
    writer.add("tokenizer.ggml.token_type", types_);
    writer.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
    writer.add("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    writer.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    writer.add("tokenizer.ggml.add_bos_token", true);
  }

  int size() const { return static_cast<int>(pieces_.size()); }
  int num_text_pieces() const { return num_text_pieces_; }

 private:
  std::vector<std::string> pieces_;
  std::vector<float> scores_;
  std::vector<std::int32_t> types_;
  int num_text_pieces_ = 0;
};

/// Three control tokens, all bytes, then text: syllables, syllables that begin a word, characters.
VocabularyBuilder make_vocabulary() {
  VocabularyBuilder vocabulary;
  vocabulary.add("<unk>", TokenType::kUnknown);
  vocabulary.add("<s>", TokenType::kControl);
  vocabulary.add("</s>", TokenType::kControl);
  constexpr std::string_view kHexDigits = "0123456789ABCDEF";
  for (const char high : kHexDigits) {
    for (const char low : kHexDigits) {
      vocabulary.add(std::string("<0x") + high + low + ">", TokenType::kByte);
    }
  }
  const std::string space(kvick::kSpaceMark);
  for (const std::string& start : {std::string(), space}) {
    for (const char consonant : std::string_view("bcdfghjklmnpqrstvwxz")) {
      for (const char vowel : std::string_view("aeiou")) {
        vocabulary.add(start + consonant + vowel, TokenType::kNormal);
      }
    }
  }
  vocabulary.add(space, TokenType::kNormal);
  for (char c = '!'; c <= '~'; ++c) vocabulary.add(std::string(1, c), TokenType::kNormal);
  return vocabulary;
}

// ---- Weights ----

/// Fills `values` with normal variates by the method of Box and Muller (1958).
void fill_normal(kvick::PhiloxStream& stream, double deviation, std::span<float> values) {
  constexpr double kTwoPi = 6.283185307179586;
  for (float& value : values) {
    const double radius = std::sqrt(-2.0 * kvick::math::log(stream.next_uniform()));
    const double cosine = kvick::math::cos(kTwoPi * stream.next_uniform());
    value = static_cast<float>(deviation * radius * cosine);
  }
}

/// Adds the tensors of a model, each with random numbers of its own. Matrices are made row by row
/// when the file is written.
class WeightWriter {
 public:
  WeightWriter(kvick::GgufWriter& writer, std::uint64_t seed) : writer_(writer), seed_(seed) {}

  /// A q8_0 matrix [rows][columns]. Rows before `first_row` are zero.
  void add_matrix(const std::string& name, int rows, int columns, double deviation,
                  int first_row = 0) {
    const auto make_rows = [=, stream = kvick::PhiloxStream(seed_, num_tensors_)](
                               const kvick::GgufSink& sink) mutable {
      std::vector<float> row(static_cast<std::size_t>(columns));
      std::vector<std::byte> blocks(row.size() / 32 * 34);
      for (int i = 0; i < rows; ++i) {
        if (i >= first_row) fill_normal(stream, deviation, row);
        kvick::quantize(kvick::TensorType::kQ8_0, row, blocks);
        sink(blocks);
      }
    };
    writer_.add_tensor(name, kvick::TensorType::kQ8_0, dims({columns, rows}), make_rows);
    ++num_tensors_;
  }

  /// An f32 vector of ones.
  void add_norm(const std::string& name, int size) {
    const std::vector<float> ones(static_cast<std::size_t>(size), 1.0f);
    writer_.add_tensor(
        name, kvick::TensorType::kF32, dims({size}),
        [ones](const kvick::GgufSink& sink) { sink(std::as_bytes(std::span(ones))); });
  }

 private:
  static std::vector<std::uint64_t> dims(std::initializer_list<int> sizes) {
    return std::vector<std::uint64_t>(sizes.begin(), sizes.end());
  }

  kvick::GgufWriter& writer_;
  std::uint64_t seed_;
  std::uint64_t num_tensors_ = 0;  // with random numbers
};

void add_layer(WeightWriter& weights, const Options& options, int layer) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const int width = options.embedding_dim;
  const int key_width = options.num_kv_heads * options.head_dim();
  const double input = 1.0 / std::sqrt(width);
  const double residual = 1.0 / std::sqrt(2.0 * options.num_layers);
  weights.add_norm(prefix + "attn_norm.weight", width);
  weights.add_matrix(prefix + "attn_q.weight", width, width, input);
  weights.add_matrix(prefix + "attn_k.weight", key_width, width, input);
  weights.add_matrix(prefix + "attn_v.weight", key_width, width, input);
  weights.add_matrix(prefix + "attn_output.weight", width, width, residual * input);
  weights.add_norm(prefix + "ffn_norm.weight", width);
  weights.add_matrix(prefix + "ffn_gate.weight", options.ffn_dim, width, input);
  weights.add_matrix(prefix + "ffn_up.weight", options.ffn_dim, width, input);
  weights.add_matrix(prefix + "ffn_down.weight", width, options.ffn_dim,
                     residual / std::sqrt(options.ffn_dim));
}

void add_weights(kvick::GgufWriter& writer, const Options& options,
                 const VocabularyBuilder& vocabulary) {
  WeightWriter weights(writer, options.seed);
  const int width = options.embedding_dim;
  weights.add_matrix("token_embd.weight", vocabulary.size(), width, 1.0);
  for (int layer = 0; layer < options.num_layers; ++layer) add_layer(weights, options, layer);
  weights.add_norm("output_norm.weight", width);
  // Logits of 0 for control and byte tokens: about half of the others have more. So the noise ends
  // by chance only and is text that a terminal can show.
  weights.add_matrix("output.weight", vocabulary.size(), width, 1.0 / std::sqrt(width),
                     vocabulary.size() - vocabulary.num_text_pieces());
}

void add_metadata(kvick::GgufWriter& writer, const Options& options) {
  programs::add_llama_sizes(writer, {.num_layers = options.num_layers,
                                     .max_seq_len = options.max_seq_len,
                                     .embedding_dim = options.embedding_dim,
                                     .ffn_dim = options.ffn_dim,
                                     .num_heads = options.num_heads,
                                     .num_kv_heads = options.num_kv_heads,
                                     .head_dim = options.head_dim()});
  writer.add("general.name", "random weights, seed " + std::to_string(options.seed));
  writer.add("general.file_type", std::uint32_t{7});  // mostly q8_0
}

void run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) return;
  const VocabularyBuilder vocabulary = make_vocabulary();
  kvick::GgufWriter writer;
  add_metadata(writer, *options);
  vocabulary.write_to(writer);
  add_weights(writer, *options, vocabulary);
  writer.write(options->path);
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-random-model", [&] { run(argc, argv); });
}
