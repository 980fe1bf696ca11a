// SPDX-License-Identifier: MIT
// One part of kvick, the KV cache, inside an engine of one's own.
//
// The engine is a toy: two attention layers over random weights, in plain Eigen. It decodes a
// sequence twice. With the cache, each step computes one token and reads the keys and values of
// those before it. Without it, everything is computed at once. Both must give the same outputs.
#include <Eigen/Dense>
#include <cmath>
#include <iostream>
#include <vector>

#include "kvick/cache/kv_cache.hpp"

constexpr int kNumLayers = 2, kNumHeads = 4, kHeadDim = 16, kNumTokens = 24;
constexpr int kWidth = kNumHeads * kHeadDim;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Layer {
  Matrix query = Matrix::Random(kWidth, kWidth) / 8;  // 8 = sqrt(kWidth) keeps outputs near 1
  Matrix key = Matrix::Random(kWidth, kWidth) / 8;
  Matrix value = Matrix::Random(kWidth, kWidth) / 8;
};

// One head of one token: q [head_dim] over keys and values [length, head_dim].
Eigen::RowVectorXf attend(const Eigen::RowVectorXf& q, const Eigen::Ref<const Matrix>& keys,
                          const Eigen::Ref<const Matrix>& values) {
  const Eigen::RowVectorXf scores = q * keys.transpose() / std::sqrt(float{kHeadDim});
  const Eigen::RowVectorXf weights = (scores.array() - scores.maxCoeff()).exp();
  return weights * values / weights.sum();
}

// With the cache: x is one new token. Each layer stores its key and value, then reads all so far.
Matrix decode(const std::vector<Layer>& layers, kvick::KVCache<float>& cache, Matrix x) {
  int index = 0;
  for (const Layer& layer : layers) {
    cache.update(index, x * layer.key, x * layer.value);
    const auto [keys, values] = cache.get(index++);  // [batch, kv_heads, length, head_dim]
    const Matrix q = x * layer.query;
    for (int h = 0; h < kNumHeads; ++h) {
      x.middleCols(h * kHeadDim, kHeadDim) +=
          attend(q.middleCols(h * kHeadDim, kHeadDim), keys.head(0, h), values.head(0, h));
    }
  }
  return x;
}

// Without: x has all tokens, and token t looks at rows 0 .. t of the keys and values.
Matrix recompute(const std::vector<Layer>& layers, Matrix x) {
  for (const Layer& layer : layers) {
    const Matrix q = x * layer.query, keys = x * layer.key, values = x * layer.value;
    for (int t = 0; t < kNumTokens; ++t) {
      for (int h = 0; h < kNumHeads; ++h) {
        x.block(t, h * kHeadDim, 1, kHeadDim) += attend(
            q.block(t, h * kHeadDim, 1, kHeadDim), keys.block(0, h * kHeadDim, t + 1, kHeadDim),
            values.block(0, h * kHeadDim, t + 1, kHeadDim));
      }
    }
  }
  return x;
}

int main() {
  const std::vector<Layer> layers(kNumLayers);
  const Matrix tokens = Matrix::Random(kNumTokens, kWidth);
  kvick::KVCache<float> cache({.num_layers = kNumLayers,
                               .num_kv_heads = kNumHeads,
                               .max_seq_len = kNumTokens,
                               .head_dim = kHeadDim});

  Matrix decoded(kNumTokens, kWidth);
  for (int t = 0; t < kNumTokens; ++t) decoded.row(t) = decode(layers, cache, tokens.row(t));

  const Matrix expected = recompute(layers, tokens);
  const float difference = (decoded - expected).cwiseAbs().maxCoeff();
  std::cout << cache.length() << " tokens decoded with a cache of " << cache.memory_bytes()
            << " bytes; largest difference from full recomputation: " << difference << "\n";
  return difference < 1e-4f ? 0 : 1;
}
