// SPDX-License-Identifier: MIT
// Other libraries' matrix products, measured beside ours: Eigen always, oneDNN and OpenBLAS where
// CMake found them. They use the threads that OMP_NUM_THREADS and OPENBLAS_NUM_THREADS give them.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/quant/quantize.hpp"
#include "kvick/reference/linear.hpp"
#include "support/linear_case.hpp"
#include "support/rounds.hpp"

#if defined(KVICK_HAS_DNNL)
#include <oneapi/dnnl/dnnl.hpp>
#endif
#if defined(KVICK_HAS_OPENBLAS)
#include <cblas.h>
#endif

namespace measure {

/// Products of [rows][in] and [out][in] by the peers at hand, each with its check.
inline std::vector<Probe> peer_probes(Index out_features, Index in_features, Index rows,
                                      kvick::ThreadPool& pool);

// ---- Implementation: nothing below is API ----

namespace detail {

/// Operands that all peers share.
struct PeerOperands {
  Matrix x;
  Matrix weights;
  Matrix expected;

  PeerOperands(Index out_features, Index in_features, Index rows)
      : x(random_floats(rows, in_features, 3)),
        weights(random_floats(out_features, in_features, 2)),
        expected(kvick::reference::linear(x, weights)) {}

  double gop() const {
    return 2e-9 * static_cast<double>(x.rows()) * static_cast<double>(weights.size());
  }

  void check(const Matrix& y, float share) const {
    const float error = (y - expected).cwiseAbs().maxCoeff();
    const float bound = share * expected.cwiseAbs().maxCoeff();
    if (!(error <= bound)) {
      throw std::runtime_error(
          kvick::detail::concat("a peer must be within ", bound, " of Eigen, got ", error));
    }
  }
};

using SharedOperands = std::shared_ptr<const PeerOperands>;

inline Probe peer_probe(std::string name, const SharedOperands& operands, float share,
                        std::function<void(Matrix& y)> multiply) {
  auto y = std::make_shared<Matrix>(Matrix::Zero(operands->x.rows(), operands->weights.rows()));
  Probe probe;
  probe.name = std::move(name);
  probe.run = [y, multiply](Index calls) {
    for (Index i = 0; i < calls; ++i) multiply(*y);
  };
  probe.work = {Work{"Gop/s", operands->gop()}};
  probe.check = [y, multiply, operands, share] {
    multiply(*y);
    operands->check(*y, share);
  };
  return probe;
}

#if defined(KVICK_HAS_DNNL)

/// A matrix product whose weights are brought into oneDNN's own order once.
class DnnlProduct {
 public:
  DnnlProduct(Index rows, Index in_features, Index out_features, dnnl::memory::data_type x_type,
              dnnl::memory::data_type w_type, const void* x, const void* weights)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    const memory::desc x_desc({rows, in_features}, x_type, memory::format_tag::ab);
    const memory::desc plain({in_features, out_features}, w_type, memory::format_tag::ba);
    const memory::desc any({in_features, out_features}, w_type, memory::format_tag::any);
    const memory::desc y_desc({rows, out_features}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x_desc, any, y_desc),
                                                   engine_);
    primitive_ = dnnl::matmul(description);
    x_ = memory(x_desc, engine_, const_cast<void*>(x));  // read only
    y_desc_ = y_desc;
    memory given(plain, engine_, const_cast<void*>(weights));
    weights_ = memory(description.weights_desc(), engine_);
    dnnl::reorder(given, weights_).execute(stream_, given, weights_);
    stream_.wait();
  }

  void run(float* y) {
    dnnl::memory out(y_desc_, engine_, y);
    primitive_.execute(stream_,
                       {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, out}});
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  dnnl::memory x_;
  dnnl::memory weights_;
  dnnl::memory::desc y_desc_;
};

inline void add_dnnl(const SharedOperands& operands, std::vector<Probe>& probes) {
  using Type = dnnl::memory::data_type;
  const Index rows = operands->x.rows();
  const Index in = operands->x.cols();
  const Index out = operands->weights.rows();
  auto floats = std::make_shared<DnnlProduct>(rows, in, out, Type::f32, Type::f32,
                                              operands->x.data(), operands->weights.data());
  probes.push_back(
      peer_probe("oneDNN f32", operands, 1e-4f, [floats](Matrix& y) { floats->run(y.data()); }));
  // One scale for each operand, applied when the result is checked: the plain integer product.
  auto x = std::make_shared<kvick::QuantizedTensor>(kvick::quantize(operands->x));
  auto weights = std::make_shared<kvick::QuantizedTensor>(kvick::quantize(operands->weights));
  auto integers = std::make_shared<DnnlProduct>(rows, in, out, Type::s8, Type::s8, x->values.data(),
                                                weights->values.data());
  Probe probe = peer_probe("oneDNN int8, one scale", operands, 2e-2f,
                           [integers](Matrix& y) { integers->run(y.data()); });
  auto y = std::make_shared<Matrix>(Matrix::Zero(rows, out));
  probe.check = [y, integers, x, weights, operands] {
    integers->run(y->data());
    *y *= x->scale * weights->scale;
    operands->check(*y, 2e-2f);
  };
  probes.push_back(std::move(probe));
}

#endif

}  // namespace detail

inline std::vector<Probe> peer_probes(Index out_features, Index in_features, Index rows,
                                      [[maybe_unused]] kvick::ThreadPool& pool) {
  const auto operands =
      std::make_shared<const detail::PeerOperands>(out_features, in_features, rows);
  std::vector<Probe> probes;
  probes.push_back(detail::peer_probe(
      "Eigen f32, 1 thread", operands, 1e-4f,
      [operands](Matrix& y) { y.noalias() = operands->x * operands->weights.transpose(); }));
#if defined(KVICK_HAS_DNNL)
  detail::add_dnnl(operands, probes);
#endif
#if defined(KVICK_HAS_OPENBLAS)
  openblas_set_num_threads(pool.num_threads());
  probes.push_back(detail::peer_probe("OpenBLAS f32", operands, 1e-4f, [operands](Matrix& y) {
    const auto m = static_cast<blasint>(operands->x.rows());
    const auto n = static_cast<blasint>(operands->weights.rows());
    const auto k = static_cast<blasint>(operands->x.cols());
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, operands->x.data(), k,
                operands->weights.data(), k, 0.0f, y.data(), n);
  }));
#endif
  return probes;
}

}  // namespace measure
