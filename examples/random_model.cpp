// SPDX-License-Identifier: MIT
// Writes a small model of the Llama architecture with random weights: a file to try programs with
// where no real model is at hand. What it generates is noise.
//
//   kvick-random-model random.gguf --seed 1
//   kvick-random-model random.gguf --shape tinyllama-1.1b --type q4_0
//
// With --shape the file has the size of a real model, to measure with.
// Weights have variance 1 / inputs, and those that add to the residual stream 1 / (2 layers) of
// that, so activations stay near unit variance. The same options give the same bytes on every
// machine.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "kvick/bench/synthetic_model.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "support/program.hpp"
#include "support/tensor_types.hpp"

namespace {

struct Options {
  std::string path;
  std::uint64_t seed = 0;
  int num_layers = 4;
  int embedding_dim = 256;
  int num_heads = 4;
  int num_kv_heads = 2;
  int ffn_dim = 768;
  int max_seq_len = 512;
  std::string shape;  // of a known model, instead of the sizes; may be empty
  std::string type = "q8_0";
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
  app.add_option("--shape", options.shape,
                 "the sizes of a model, instead of those above: " + kvick::model_shape_names())
      ->type_name("NAME");
  app.add_option("--type", options.type, "of matrices: " + programs::type_names())
      ->capture_default_str();
  if (!programs::parse_command_line(app, argc, argv)) return std::nullopt;
  if (options.shape.empty()) check(options);
  return options;
}

kvick::ModelShape shape_of(const Options& options) {
  if (!options.shape.empty()) return kvick::find_model_shape(options.shape);
  return {.name = {},
          .num_layers = options.num_layers,
          .embedding_dim = options.embedding_dim,
          .num_heads = options.num_heads,
          .num_kv_heads = options.num_kv_heads,
          .head_dim = options.embedding_dim / options.num_heads,
          .ffn_dim = options.ffn_dim,
          .vocab_size = kvick::kMinSyntheticVocabulary,
          .max_seq_len = options.max_seq_len};
}

void run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) return;
  // Normal weights are what tests of small models expect; those of real sizes are to be made fast.
  const kvick::SyntheticModelOptions weights{
      .type = programs::parse_tensor_type("--type", options->type),
      .seed = options->seed,
      .has_normal_weights = options->shape.empty()};
  kvick::synthetic_model(shape_of(*options), weights).write(options->path);
}

}  // namespace

int main(int argc, char** argv) {
  return programs::run("kvick-random-model", [&] { run(argc, argv); });
}
