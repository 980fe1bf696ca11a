// SPDX-License-Identifier: MIT
// A language model of the Llama architecture for training: forward pass and its hand-written
// derivative, over batches of whole stories.
//
// Embeddings, then per layer RMSNorm, grouped-query attention with rotary positions on adjacent
// pairs, RMSNorm, gated MLP; a last RMSNorm, and logits from the embeddings (tied). The stories of
// a batch stand one after another in the rows of each matrix; attention stays within a story.
//
// Shapes    Activations are [tokens of the batch][features], weights [outputs][inputs].
// Accuracy  T is float for training, double where derivatives are checked.
// Threads   A network has the activations of one batch: one thread each. Parameters are shared.
// Source    Touvron et al. 2023 (Llama); Su et al. 2021 (RoPE); Shazeer 2020 (SwiGLU).
// Layer     example.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvick/core/matrix.hpp"

namespace demo_model {

using kvick::Index;
using kvick::TokenId;

struct NetworkConfig {
  int vocab_size = 1024;
  int embedding_dim = 256;
  int num_layers = 4;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 64;
  int ffn_dim = 768;
  int max_seq_len = 512;
  double rms_epsilon = 1e-5;
  double rope_base = 10000;

  int query_width() const { return num_heads * head_dim; }
  int key_width() const { return num_kv_heads * head_dim; }
};

/// One tensor within the array of all parameters, or of their gradients.
struct ParameterBlock {
  std::string name;  ///< in GGUF
  Index rows;
  Index cols;
  std::size_t offset;
  double deviation;  ///< of initial values; 0: a norm, which begins with ones
  bool is_matrix() const { return deviation > 0; }
  std::size_t size() const { return static_cast<std::size_t>(rows * cols); }
};

/// All tensors of a model: embeddings first, then layer by layer, then the last norm.
inline std::vector<ParameterBlock> parameter_blocks(const NetworkConfig& config);
inline std::size_t num_parameters(const std::vector<ParameterBlock>& blocks) {
  return blocks.back().offset + blocks.back().size();
}

/// Stories as inputs and the tokens that follow them.
struct TokenBatch {
  struct Range {
    Index begin;
    Index length;
  };
  std::vector<TokenId> inputs;
  std::vector<TokenId> targets;
  std::vector<Range> stories;

  /// Every token of `story` but the last is an input.
  void add(std::span<const TokenId> story) {
    stories.push_back({num_tokens(), static_cast<Index>(story.size()) - 1});
    inputs.insert(inputs.end(), story.begin(), story.end() - 1);
    targets.insert(targets.end(), story.begin() + 1, story.end());
  }
  Index num_tokens() const { return static_cast<Index>(inputs.size()); }
};

template <class T>
class Network {
 public:
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  explicit Network(const NetworkConfig& config)
      : config_(config),
        blocks_(parameter_blocks(config)),
        layers_(static_cast<std::size_t>(config.num_layers)) {}

  /// Logits [tokens][vocab_size] of a batch; they stay until the next call.
  const Matrix& forward(std::span<const T> parameters, const TokenBatch& batch);

  /// The sum of the cross-entropies of the batch's targets, in nats, after forward().
  double loss(const TokenBatch& batch) const;

  /// Adds `weight` times the derivative of loss() to `gradients`, after forward() with the same
  /// arguments. Uses up what that has stored. Returns loss().
  double backward(std::span<const T> parameters, const TokenBatch& batch, double weight,
                  std::span<T> gradients);

 private:
  using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;
  using ConstMap = Eigen::Map<const Matrix>;
  using Map = Eigen::Map<Matrix>;

  /// Tensors of a layer, in the order of parameter_blocks().
  enum Tensor { kAttentionNorm, kQuery, kKey, kValue, kOutput, kFfnNorm, kGate, kUp, kDown };
  static constexpr std::size_t kTensorsPerLayer = 9;

  /// What the backward pass needs of a layer.
  struct Layer {
    Matrix input, normed, query, key, value, attended;
    Matrix middle, ffn_normed, gate, up, hidden;
    Vector inverse_rms, ffn_inverse_rms;
    std::vector<T> probabilities;  // [story][head][length][length]
  };

  static std::size_t tensor(int layer, Tensor which) {
    return 1 + kTensorsPerLayer * static_cast<std::size_t>(layer) + which;
  }
  std::size_t last_norm() const { return blocks_.size() - 1; }
  ConstMap view(std::span<const T> values, std::size_t block) const {
    const ParameterBlock& b = blocks_[block];
    return ConstMap(values.data() + b.offset, b.rows, b.cols);
  }
  Map view(std::span<T> values, std::size_t block) const {
    const ParameterBlock& b = blocks_[block];
    return Map(values.data() + b.offset, b.rows, b.cols);
  }

  void plan_rotations(const TokenBatch& batch);
  void rotate(Matrix& x, T direction) const;
  void normalize(const Matrix& x, const ConstMap& gain, Matrix& normed, Vector& inverse_rms) const;
  void normalize_backward(const Matrix& x, const ConstMap& gain, const Vector& inverse_rms,
                          const Matrix& d_normed, Map d_gain, Matrix& d_x) const;
  void attend(Layer& layer, const TokenBatch& batch) const;
  void attend_backward(const Layer& layer, const TokenBatch& batch, const Matrix& d_attended);
  void attention_backward(int index, std::span<const T> parameters, const TokenBatch& batch,
                          std::span<T> gradients);
  void mlp_backward(int index, std::span<const T> parameters, std::span<T> gradients);
  static T log_sum_exp(const Matrix& logits, Index row);

  /// Calls body(begin, length, first query column, first key column, probabilities' offset).
  template <class Body>
  void for_each_head(const TokenBatch& batch, Body&& body) const;

  NetworkConfig config_;
  std::vector<ParameterBlock> blocks_;
  std::vector<Layer> layers_;
  Matrix cosines_, sines_;  // [tokens][head_dim / 2]
  Matrix last_, last_normed_, logits_;
  Vector last_inverse_rms_;
  Matrix d_x_, d_normed_, d_query_, d_key_, d_value_, d_attended_, d_gate_, d_up_, d_hidden_;
};

// ---- Implementation: nothing below is API ----

inline std::vector<ParameterBlock> parameter_blocks(const NetworkConfig& config) {
  std::vector<ParameterBlock> blocks;
  std::size_t offset = 0;
  const auto add = [&](std::string name, int rows, int cols, double deviation) {
    blocks.push_back({std::move(name), rows, cols, offset, deviation});
    offset += blocks.back().size();
  };
  const int width = config.embedding_dim;
  // Half of what keeps variances: a model that begins near the uniform distribution learns faster.
  const auto deviation = [](int inputs) { return 0.5 / std::sqrt(inputs); };
  const double residual = 1 / std::sqrt(2.0 * config.num_layers);
  add("token_embd.weight", config.vocab_size, width, 0.02);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const auto add_matrix = [&](const char* name, int rows, int cols, double scale) {
      add(prefix + name, rows, cols, scale * deviation(cols));
    };
    add(prefix + "attn_norm.weight", 1, width, 0);
    add_matrix("attn_q.weight", config.query_width(), width, 1);
    add_matrix("attn_k.weight", config.key_width(), width, 1);
    add_matrix("attn_v.weight", config.key_width(), width, 1);
    add_matrix("attn_output.weight", width, config.query_width(), residual);
    add(prefix + "ffn_norm.weight", 1, width, 0);
    add_matrix("ffn_gate.weight", config.ffn_dim, width, 1);
    add_matrix("ffn_up.weight", config.ffn_dim, width, 1);
    add_matrix("ffn_down.weight", width, config.ffn_dim, residual);
  }
  add("output_norm.weight", 1, width, 0);
  return blocks;
}

template <class T>
void Network<T>::plan_rotations(const TokenBatch& batch) {
  const int num_pairs = config_.head_dim / 2;
  cosines_.resize(batch.num_tokens(), num_pairs);
  sines_.resize(batch.num_tokens(), num_pairs);
  for (const auto& [begin, length] : batch.stories) {
    for (int i = 0; i < num_pairs; ++i) {
      const double frequency = std::pow(config_.rope_base, -2.0 * i / config_.head_dim);
      for (Index position = 0; position < length; ++position) {
        const double angle = static_cast<double>(position) * frequency;
        cosines_(begin + position, i) = static_cast<T>(std::cos(angle));
        sines_(begin + position, i) = static_cast<T>(std::sin(angle));
      }
    }
  }
}

/// Rotates the pairs of every head by their angles: forward with direction 1, back with -1.
template <class T>
void Network<T>::rotate(Matrix& x, T direction) const {
  const Index num_pairs = cosines_.cols();
  for (Index row = 0; row < x.rows(); ++row) {
    for (Index column = 0; column < x.cols(); column += 2) {
      const Index pair = column / 2 % num_pairs;
      const T cosine = cosines_(row, pair);
      const T sine = direction * sines_(row, pair);
      const T a = x(row, column);
      const T b = x(row, column + 1);
      x(row, column) = a * cosine - b * sine;
      x(row, column + 1) = a * sine + b * cosine;
    }
  }
}

template <class T>
void Network<T>::normalize(const Matrix& x, const ConstMap& gain, Matrix& normed,
                           Vector& inverse_rms) const {
  normed.resize(x.rows(), x.cols());
  inverse_rms.resize(x.rows());
  const T epsilon = static_cast<T>(config_.rms_epsilon);
  for (Index row = 0; row < x.rows(); ++row) {
    const T mean_square = x.row(row).squaredNorm() / static_cast<T>(x.cols());
    inverse_rms[row] = 1 / std::sqrt(mean_square + epsilon);
    normed.row(row) = inverse_rms[row] * x.row(row).cwiseProduct(gain.row(0));
  }
}

/// Adds to d_gain and d_x. With u = x * inverse_rms and g = d_normed * gain:
/// d_x = inverse_rms * (g - u * mean(g * u)).
template <class T>
void Network<T>::normalize_backward(const Matrix& x, const ConstMap& gain,
                                    const Vector& inverse_rms, const Matrix& d_normed, Map d_gain,
                                    Matrix& d_x) const {
  using Row = Eigen::Matrix<T, 1, Eigen::Dynamic>;
  Row unit(x.cols());
  Row scaled(x.cols());
  for (Index row = 0; row < x.rows(); ++row) {
    unit = inverse_rms[row] * x.row(row);
    scaled = d_normed.row(row).cwiseProduct(gain.row(0));
    d_gain.row(0) += d_normed.row(row).cwiseProduct(unit);
    const T mean = scaled.dot(unit) / static_cast<T>(x.cols());
    d_x.row(row) += inverse_rms[row] * (scaled - mean * unit);
  }
}

template <class T>
template <class Body>
void Network<T>::for_each_head(const TokenBatch& batch, Body&& body) const {
  const int heads_per_key = config_.num_heads / config_.num_kv_heads;
  Index offset = 0;
  for (const auto& [begin, length] : batch.stories) {
    for (int head = 0; head < config_.num_heads; ++head) {
      body(begin, length, Index{head} * config_.head_dim,
           Index{head / heads_per_key} * config_.head_dim, offset);
      offset += length * length;
    }
  }
}

template <class T>
void Network<T>::attend(Layer& layer, const TokenBatch& batch) const {
  Index num_probabilities = 0;
  for_each_head(batch, [&](Index, Index length, Index, Index, Index offset) {
    num_probabilities = offset + length * length;
  });
  layer.probabilities.resize(static_cast<std::size_t>(num_probabilities));
  layer.attended.resize(batch.num_tokens(), config_.query_width());
  const Index dim = config_.head_dim;
  const T scale = 1 / std::sqrt(static_cast<T>(dim));
  for_each_head(batch, [&](Index begin, Index length, Index query, Index key, Index offset) {
    Map p(layer.probabilities.data() + offset, length, length);
    p.noalias() = layer.query.block(begin, query, length, dim) *
                  layer.key.block(begin, key, length, dim).transpose();
    for (Index i = 0; i < length; ++i) {
      auto seen = p.row(i).head(i + 1);
      const T maximum = seen.maxCoeff();
      seen = (scale * (seen.array() - maximum)).exp();
      seen /= seen.sum();
      p.row(i).tail(length - i - 1).setZero();
    }
    layer.attended.block(begin, query, length, dim).noalias() =
        p * layer.value.block(begin, key, length, dim);
  });
}

/// Sets d_query_, d_key_ and d_value_, for keys and queries as they are after rotation.
template <class T>
void Network<T>::attend_backward(const Layer& layer, const TokenBatch& batch,
                                 const Matrix& d_attended) {
  const Index dim = config_.head_dim;
  const T scale = 1 / std::sqrt(static_cast<T>(dim));
  d_query_.resize(batch.num_tokens(), config_.query_width());
  d_key_.setZero(batch.num_tokens(), config_.key_width());
  d_value_.setZero(batch.num_tokens(), config_.key_width());
  Matrix d_p;
  for_each_head(batch, [&](Index begin, Index length, Index query, Index key, Index offset) {
    const ConstMap p(layer.probabilities.data() + offset, length, length);
    const auto d_out = d_attended.block(begin, query, length, dim);
    d_value_.block(begin, key, length, dim).noalias() += p.transpose() * d_out;
    d_p.noalias() = d_out * layer.value.block(begin, key, length, dim).transpose();
    // The derivative of the softmax; what is masked has probability 0 and stays 0.
    for (Index i = 0; i < length; ++i) {
      const T mean = d_p.row(i).dot(p.row(i));
      d_p.row(i) = scale * p.row(i).array() * (d_p.row(i).array() - mean);
    }
    d_query_.block(begin, query, length, dim).noalias() =
        d_p * layer.key.block(begin, key, length, dim);
    d_key_.block(begin, key, length, dim).noalias() +=
        d_p.transpose() * layer.query.block(begin, query, length, dim);
  });
}

template <class T>
const typename Network<T>::Matrix& Network<T>::forward(std::span<const T> parameters,
                                                       const TokenBatch& batch) {
  plan_rotations(batch);
  const ConstMap embeddings = view(parameters, 0);
  Matrix x(batch.num_tokens(), config_.embedding_dim);
  for (Index row = 0; row < x.rows(); ++row) {
    x.row(row) = embeddings.row(batch.inputs[static_cast<std::size_t>(row)]);
  }
  for (int i = 0; i < config_.num_layers; ++i) {
    Layer& layer = layers_[static_cast<std::size_t>(i)];
    const auto weight = [&](Tensor which) { return view(parameters, tensor(i, which)); };
    layer.input = x;
    normalize(x, weight(kAttentionNorm), layer.normed, layer.inverse_rms);
    layer.query.noalias() = layer.normed * weight(kQuery).transpose();
    layer.key.noalias() = layer.normed * weight(kKey).transpose();
    layer.value.noalias() = layer.normed * weight(kValue).transpose();
    rotate(layer.query, 1);
    rotate(layer.key, 1);
    attend(layer, batch);
    x.noalias() += layer.attended * weight(kOutput).transpose();
    layer.middle = x;
    normalize(x, weight(kFfnNorm), layer.ffn_normed, layer.ffn_inverse_rms);
    layer.gate.noalias() = layer.ffn_normed * weight(kGate).transpose();
    layer.up.noalias() = layer.ffn_normed * weight(kUp).transpose();
    layer.hidden = layer.gate.array() / (1 + (-layer.gate.array()).exp()) * layer.up.array();
    x.noalias() += layer.hidden * weight(kDown).transpose();
  }
  last_.swap(x);
  normalize(last_, view(parameters, last_norm()), last_normed_, last_inverse_rms_);
  logits_.noalias() = last_normed_ * embeddings.transpose();
  return logits_;
}

template <class T>
T Network<T>::log_sum_exp(const Matrix& logits, Index row) {
  const T maximum = logits.row(row).maxCoeff();
  return maximum + std::log((logits.row(row).array() - maximum).exp().sum());
}

template <class T>
double Network<T>::loss(const TokenBatch& batch) const {
  double sum = 0;
  for (Index row = 0; row < logits_.rows(); ++row) {
    const TokenId target = batch.targets[static_cast<std::size_t>(row)];
    sum += static_cast<double>(log_sum_exp(logits_, row) - logits_(row, target));
  }
  return sum;
}

template <class T>
void Network<T>::mlp_backward(int index, std::span<const T> parameters, std::span<T> gradients) {
  Layer& layer = layers_[static_cast<std::size_t>(index)];
  const auto weight = [&](Tensor which) { return view(parameters, tensor(index, which)); };
  const auto gradient = [&](Tensor which) { return view(gradients, tensor(index, which)); };
  gradient(kDown).noalias() += d_x_.transpose() * layer.hidden;
  d_hidden_.noalias() = d_x_ * weight(kDown);
  // hidden = gate * sigmoid(gate) * up
  const auto gate = layer.gate.array();
  Matrix& sigmoid = layer.hidden;  // not needed any more
  sigmoid = 1 / (1 + (-gate).exp());
  d_up_ = d_hidden_.array() * gate * sigmoid.array();
  d_gate_ =
      d_hidden_.array() * layer.up.array() * sigmoid.array() * (1 + gate * (1 - sigmoid.array()));
  gradient(kGate).noalias() += d_gate_.transpose() * layer.ffn_normed;
  gradient(kUp).noalias() += d_up_.transpose() * layer.ffn_normed;
  d_normed_.noalias() = d_gate_ * weight(kGate);
  d_normed_.noalias() += d_up_ * weight(kUp);
  normalize_backward(layer.middle, weight(kFfnNorm), layer.ffn_inverse_rms, d_normed_,
                     gradient(kFfnNorm), d_x_);
}

template <class T>
void Network<T>::attention_backward(int index, std::span<const T> parameters,
                                    const TokenBatch& batch, std::span<T> gradients) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const auto weight = [&](Tensor which) { return view(parameters, tensor(index, which)); };
  const auto gradient = [&](Tensor which) { return view(gradients, tensor(index, which)); };
  gradient(kOutput).noalias() += d_x_.transpose() * layer.attended;
  d_attended_.noalias() = d_x_ * weight(kOutput);
  attend_backward(layer, batch, d_attended_);
  rotate(d_query_, -1);
  rotate(d_key_, -1);
  gradient(kQuery).noalias() += d_query_.transpose() * layer.normed;
  gradient(kKey).noalias() += d_key_.transpose() * layer.normed;
  gradient(kValue).noalias() += d_value_.transpose() * layer.normed;
  d_normed_.noalias() = d_query_ * weight(kQuery);
  d_normed_.noalias() += d_key_ * weight(kKey);
  d_normed_.noalias() += d_value_ * weight(kValue);
  normalize_backward(layer.input, weight(kAttentionNorm), layer.inverse_rms, d_normed_,
                     gradient(kAttentionNorm), d_x_);
}

template <class T>
double Network<T>::backward(std::span<const T> parameters, const TokenBatch& batch, double weight,
                            std::span<T> gradients) {
  const double sum = loss(batch);
  // logits_ becomes its own derivative: weight * (softmax - one at the target).
  for (Index row = 0; row < logits_.rows(); ++row) {
    const T total = log_sum_exp(logits_, row);
    logits_.row(row) = (logits_.row(row).array() - total).exp();
    logits_(row, batch.targets[static_cast<std::size_t>(row)]) -= 1;
  }
  logits_ *= static_cast<T>(weight);
  Map d_embeddings = view(gradients, 0);
  d_embeddings.noalias() += logits_.transpose() * last_normed_;
  d_normed_.noalias() = logits_ * view(parameters, 0);
  d_x_.setZero(last_.rows(), last_.cols());
  normalize_backward(last_, view(parameters, last_norm()), last_inverse_rms_, d_normed_,
                     view(gradients, last_norm()), d_x_);
  for (int i = config_.num_layers - 1; i >= 0; --i) {
    mlp_backward(i, parameters, gradients);
    attention_backward(i, parameters, batch, gradients);
  }
  for (Index row = 0; row < d_x_.rows(); ++row) {
    d_embeddings.row(batch.inputs[static_cast<std::size_t>(row)]) += d_x_.row(row);
  }
  return sum;
}

}  // namespace demo_model
