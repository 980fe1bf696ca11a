// SPDX-License-Identifier: MIT
// What each granularity of symmetric quantization costs and loses on a model of your own.
//
//   kvick-quantization-quality MODEL.gguf IDS.txt     (token ids, separated by commas or spaces)
//
// Every matrix of the model is quantized and dequantized, at 8 and 4 bits, with one scale per
// tensor, per output channel and per group of 128, 64 and 32 inputs, and the model is then run with
// those weights in f32: all that is lost is lost by the weights. Bits per weight count the f32
// scales; the loss is the mean negative log-likelihood of the tokens, against the model as it is.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvick/gguf/gguf_file.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/quant/block_formats.hpp"
#include "kvick/quant/quantization_error.hpp"
#include "kvick/quant/quantize.hpp"
#include "kvick/sampling/evaluation.hpp"

namespace {

using kvick::Index;
using kvick::Matrix;

struct Result {
  double bits_per_weight = 0.0;
  double worst_snr_db = INFINITY;
  kvick::ComparisonSummary loss;
};

std::vector<kvick::TokenId> read_ids(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (char& c : text) c = c == ',' || c == '[' || c == ']' ? ' ' : c;
  std::istringstream words(text);
  return {std::istream_iterator<kvick::TokenId>(words), std::istream_iterator<kvick::TokenId>()};
}

bool is_matrix(const kvick::GgufTensor& tensor) {
  return tensor.num_dims == 2 && tensor.name.ends_with(".weight");
}

Matrix floats_of(const kvick::GgufTensor& tensor) {
  Matrix values(static_cast<Index>(tensor.num_rows()), static_cast<Index>(tensor.dims[0]));
  kvick::dequantize(tensor.type, tensor.data,
                    {values.data(), static_cast<std::size_t>(values.size())});
  return values;
}

/// The model with every matrix quantized and back.
kvick::GgufFile with_quantized_weights(const kvick::GgufFile& file,
                                       const kvick::QuantizationScheme& scheme, Result& result) {
  kvick::GgufWriter writer;
  for (const kvick::GgufValue& value : file.metadata()) writer.add(value);
  std::vector<Matrix> restored;
  restored.reserve(file.tensors().size());
  double num_bits = 0.0;
  double num_weights = 0.0;
  for (const kvick::GgufTensor& tensor : file.tensors()) {
    if (!is_matrix(tensor)) {
      writer.add_tensor(tensor);
      continue;
    }
    const Matrix original = floats_of(tensor);
    const kvick::QuantizedMatrix quantized = kvick::quantize(original, scheme);
    restored.push_back(kvick::dequantize(quantized));
    const double snr = kvick::measure_error(original, restored.back()).snr_db;
    result.worst_snr_db = std::min(result.worst_snr_db, snr);
    num_bits += 8.0 * static_cast<double>(quantized.size_bytes());
    num_weights += static_cast<double>(original.size());
    const Matrix& values = restored.back();
    writer.add_tensor(
        tensor.name, kvick::TensorType::kF32, {tensor.dims[0], tensor.dims[1]},
        std::as_bytes(std::span(values.data(), static_cast<std::size_t>(values.size()))));
  }
  result.bits_per_weight = num_bits / num_weights;
  return kvick::GgufFile::from_bytes(writer.to_bytes());
}

Result measure(const std::string& path, const std::vector<kvick::TokenId>& ids,
               const kvick::QuantizationScheme& scheme) {
  Result result;
  const kvick::GgufFile file(path);
  kvick::Transformer reference(path, {.activations = kvick::ActivationType::kF32});
  kvick::Transformer model(with_quantized_weights(file, scheme, result));
  result.loss = kvick::summarize(kvick::compare_models(
      model, reference, ids, {.context = std::min(512, reference.max_seq_len())}));
  return result;
}

void print_row(const char* name, int num_bits, const Result& result) {
  std::printf("| %s | %d | %.2f | %.1f | %+.2f %% | %.4f | %.1f %% |\n", name, num_bits,
              result.bits_per_weight, result.worst_snr_db,
              100.0 * result.loss.nll_difference.mean / result.loss.reference_nll.mean,
              result.loss.divergence.mean, 100.0 * result.loss.same_top.mean);
  std::fflush(stdout);
}

void run(const std::string& path, const std::vector<kvick::TokenId>& ids) {
  std::printf(
      "| scale per | bits | bits/weight | worst SNR (dB) | loss | KL (nats) | same top |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int bits : {8, 4}) {
    const kvick::QuantizeOptions options{.num_bits = bits};
    print_row("tensor", bits, measure(path, ids, kvick::per_tensor(options)));
    print_row("output channel", bits, measure(path, ids, kvick::per_channel(options)));
    for (const int size : {128, 64, 32}) {
      const std::string name = "group of " + std::to_string(size);
      print_row(name.c_str(), bits, measure(path, ids, kvick::per_group(size, options)));
    }
    const kvick::QuantizeOptions best{.num_bits = bits, .scale = kvick::ScaleChoice::kLeastSquares};
    print_row("group of 32, least squares", bits, measure(path, ids, kvick::per_group(32, best)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: kvick-quantization-quality MODEL.gguf IDS.txt\n");
    return 2;
  }
  try {
    run(argv[1], read_ids(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvick-quantization-quality: %s\n", error.what());
    return 2;
  }
  return EXIT_SUCCESS;
}
