// SPDX-License-Identifier: MIT
// The limits of this machine: what no kernel can pass, measured as the best of several loops.
//
//   int8   multiply-adds of int8, with 8-bit weights
//   int4   the same with weights of 4 bits (5 and 6 bits lie between the two); with plain AVX2 up
//          to 1.8 times as many, elsewhere as many as int8
//   f32    fused multiply-adds of f32
//   read   bytes from memory: 1 to 8 streams per thread, prefetch at several distances or none, on
//          huge pages, over 512 MiB, which no cache answers
//
// best_limit() tries all loops of a kind briefly and returns the fastest as a probe, to be measured
// interleaved with the kernels that it bounds. Compute limits depend on the ISA, because a table of
// kernels does; reading uses the widest loads of the CPU for every ISA.
//
// Units     Gop/s, 2 operations per multiply-add; GB/s of 10^9 bytes.
// Threads   As many at once as the pool has, each with its own operands.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/cpu.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/thread_pool.hpp"
#include "support/limit_loops.hpp"
#include "support/rounds.hpp"

namespace measure {

enum class LimitKind { kInt8, kInt4, kF32, kRead };

/// "int8 limit", "int4 limit", "f32 limit", "read limit": the names of their probes.
constexpr std::string_view name(LimitKind kind) noexcept {
  switch (kind) {
    case LimitKind::kInt8: return "int8 limit";
    case LimitKind::kInt4: return "int4 limit";
    case LimitKind::kF32: return "f32 limit";
    case LimitKind::kRead: return "read limit";
  }
  return "unknown limit";
}

/// Bytes that measurements of memory go through, again and again: more than caches hold.
inline constexpr std::size_t kMemoryBytes = std::size_t{512} << 20;

/// Every loop of this kind, each a probe named after its loop. None where no loop is known that
/// bounds the ISA's kernels. The pool must outlive the probes.
inline std::vector<Probe> limit_variants(LimitKind kind, kvick::Isa isa, kvick::ThreadPool& pool);

/// The fastest loop as a probe that has the name of the limit.
struct Limit {
  Probe probe;
  std::string variant;  ///< the loop's own name
};

/// The fastest of all variants by the best of five short runs; nothing where there are none.
inline std::optional<Limit> best_limit(LimitKind kind, kvick::Isa isa, kvick::ThreadPool& pool);

// ---- Implementation: nothing below is API ----

namespace detail {

/// What the operands of a loop are, all of value 1.
enum class Operands { kInt8, kInt16, kF32 };

struct ComputeVariant {
  const char* name;
  loops::ComputeLoop loop;
  double multiply_adds;  // per iteration
  Operands operands = Operands::kInt8;
};

inline constexpr double kBytesDot = loops::kOperandBytes / 2.0;
inline constexpr double kWordsDot = loops::kOperandBytes / 4.0;
inline constexpr double kPanelDot = loops::kOperandBytes / 4.0 - 16.0;

inline constexpr ComputeVariant kPortableInt8[] = {
    {"dot of int8", loops::portable_dot<std::int8_t>, kBytesDot},
    {"dot of int16", loops::portable_dot<std::int16_t>, kWordsDot, Operands::kInt16},
};
inline constexpr ComputeVariant kPortableF32[] = {
    {"multiply, add", loops::portable_multiply_add<false>, kPanelDot, Operands::kF32},
    {"std::fma", loops::portable_multiply_add<true>, kPanelDot, Operands::kF32},
};

#if defined(__x86_64__)
inline constexpr ComputeVariant kAvx2Int8[] = {
    {"sign, 6 chains", loops::avx2_multiply<loops::Avx2Way::kSign, 6>, 32 * 6},
    {"sign, 8 chains", loops::avx2_multiply<loops::Avx2Way::kSign, 8>, 32 * 8},
    {"sign, 10 chains", loops::avx2_multiply<loops::Avx2Way::kSign, 10>, 32 * 10},
    {"int16, 6 chains", loops::avx2_multiply<loops::Avx2Way::kWords, 6>, 16 * 6},
    {"int16, 8 chains", loops::avx2_multiply<loops::Avx2Way::kWords, 8>, 16 * 8},
    {"int16, 12 chains", loops::avx2_multiply<loops::Avx2Way::kWords, 12>, 16 * 12},
};
inline constexpr ComputeVariant kAvx2Int4[] = {
    {"nibbles, 4 chains", loops::avx2_multiply<loops::Avx2Way::kNibbles, 4>, 32 * 8 * 4},
    {"nibbles, 6 chains", loops::avx2_multiply<loops::Avx2Way::kNibbles, 6>, 32 * 8 * 6},
    {"nibbles, 8 chains", loops::avx2_multiply<loops::Avx2Way::kNibbles, 8>, 32 * 8 * 8},
};
inline constexpr ComputeVariant kAvxVnniInt8[] = {
    {"ymm registers, 8 chains", loops::avx_vnni_dpbusd<8, false>, 32 * 8},
    {"ymm registers, 10 chains", loops::avx_vnni_dpbusd<10, false>, 32 * 10},
    {"ymm registers, 12 chains", loops::avx_vnni_dpbusd<12, false>, 32 * 12},
    {"ymm memory, 8 chains", loops::avx_vnni_dpbusd<8, true>, 32 * 8},
    {"ymm memory, 12 chains", loops::avx_vnni_dpbusd<12, true>, 32 * 12},
};
inline constexpr ComputeVariant kAvx512Int8[] = {
    {"zmm registers, 10 chains", loops::avx512_dpbusd<10, false>, 64 * 10},
    {"zmm registers, 12 chains", loops::avx512_dpbusd<12, false>, 64 * 12},
    {"zmm registers, 16 chains", loops::avx512_dpbusd<16, false>, 64 * 16},
    {"zmm registers, 24 chains", loops::avx512_dpbusd<24, false>, 64 * 24},
    {"zmm memory, 12 chains", loops::avx512_dpbusd<12, true>, 64 * 12},
    {"zmm memory, 24 chains", loops::avx512_dpbusd<24, true>, 64 * 24},
};
inline constexpr ComputeVariant kAvx2F32[] = {
    {"ymm registers, 8 chains", loops::avx2_fma<8, false>, 8 * 8, Operands::kF32},
    {"ymm registers, 12 chains", loops::avx2_fma<12, false>, 8 * 12, Operands::kF32},
    {"ymm memory, 12 chains", loops::avx2_fma<12, true>, 8 * 12, Operands::kF32},
};
inline constexpr ComputeVariant kAvx512F32[] = {
    {"zmm registers, 10 chains", loops::avx512_fma<10, false>, 16 * 10, Operands::kF32},
    {"zmm registers, 16 chains", loops::avx512_fma<16, false>, 16 * 16, Operands::kF32},
    {"zmm registers, 24 chains", loops::avx512_fma<24, false>, 16 * 24, Operands::kF32},
    {"zmm memory, 24 chains", loops::avx512_fma<24, true>, 16 * 24, Operands::kF32},
};
#endif

inline std::span<const ComputeVariant> compute_variants(LimitKind kind, kvick::Isa isa) {
  const bool is_f32 = kind == LimitKind::kF32;
  switch (isa) {
    case kvick::Isa::kPortable:
      if (is_f32) return kPortableF32;
      return kPortableInt8;
#if defined(__x86_64__)
    case kvick::Isa::kAvx2:
      if (is_f32) return kAvx2F32;
      if (kind == LimitKind::kInt4) return kAvx2Int4;
      return kAvx2Int8;
    case kvick::Isa::kAvxVnni:
      if (is_f32) return kAvx2F32;
      return kAvxVnniInt8;
    case kvick::Isa::kAvx512Vnni:
      if (is_f32) return kAvx512F32;
      return kAvx512Int8;
#endif
    default: return {};
  }
}

inline kvick::AlignedBuffer<std::byte> make_operands(Operands operands) {
  kvick::AlignedBuffer<std::byte> bytes(loops::kOperandBytes);
  const auto fill = [&](auto one) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof one) {
      std::memcpy(bytes.data() + at, &one, sizeof one);
    }
  };
  switch (operands) {
    case Operands::kInt8: fill(std::int8_t{1}); break;
    case Operands::kInt16: fill(std::int16_t{1}); break;
    case Operands::kF32: fill(1.0f); break;
  }
  return bytes;
}

/// Calls body(thread) once on every thread of the pool, at the same time.
template <class Body>
void on_every_thread(kvick::ThreadPool& pool, const Body& body) {
  pool.parallel_for(pool.num_threads(), [&](Index begin, Index end) {
    for (Index thread = begin; thread < end; ++thread) body(thread);
  });
}

/// A result per thread, each in a cache line of its own.
struct alignas(64) ThreadResult {
  std::uint64_t value = 0;
};

inline void require_count(std::string_view loop, std::uint64_t count, std::uint64_t expected) {
  if (count == expected) return;
  throw std::runtime_error(kvick::detail::concat("the loop '", loop, "' of a limit must do ",
                                                 expected, " steps, got ", count));
}

inline Probe compute_probe(const ComputeVariant& variant, kvick::ThreadPool& pool) {
  // 10^5 multiply-adds a call and more: a loop takes microseconds, its start tens of nanoseconds.
  const Index iterations = 1 + static_cast<Index>(1e5 / variant.multiply_adds);
  const auto num_threads = static_cast<std::size_t>(pool.num_threads());
  auto operands = std::make_shared<std::vector<kvick::AlignedBuffer<std::byte>>>();
  for (std::size_t t = 0; t < num_threads; ++t) {
    operands->push_back(make_operands(variant.operands));
  }
  auto results = std::make_shared<std::vector<ThreadResult>>(num_threads);
  const auto run = [=, &pool](Index num_calls) {
    on_every_thread(pool, [&](Index thread) {
      const auto t = static_cast<std::size_t>(thread);
      (*results)[t].value = variant.loop((*operands)[t].data(), num_calls * iterations);
    });
  };
  const auto check = [=] {
    run(1);
    for (const ThreadResult& result : *results) {
      require_count(variant.name, result.value,
                    static_cast<std::uint64_t>(variant.multiply_adds) *
                        static_cast<std::uint64_t>(iterations));
    }
  };
  const double operations = 2 * variant.multiply_adds * static_cast<double>(iterations) *
                            static_cast<double>(num_threads);
  return {variant.name, run, {{"Gop/s", operations * 1e-9}}, check};
}

struct ReadVariant {
  std::string name;
  loops::ReadLoop loop;
  Index distance;
};

/// With the widest loads of this CPU.
template <int kStreams, bool kPrefetch, int kLocality>
loops::ReadLoop widest_read() {
#if defined(__x86_64__)
  if (kvick::is_supported(kvick::Isa::kAvx512Vnni)) {
    return loops::avx512_read<kStreams, kPrefetch, kLocality>;
  }
  if (kvick::is_supported(kvick::Isa::kAvx2)) {
    return loops::avx2_read<kStreams, kPrefetch, kLocality>;
  }
#endif
  return loops::portable_read<kStreams, kPrefetch, kLocality>;
}

template <int kStreams>
void add_read_variants(std::vector<ReadVariant>& variants) {
  constexpr int kAllLevels = 3;  // of the caches
  constexpr int kNone = 0;
  const std::string streams = std::to_string(kStreams) + (kStreams == 1 ? " stream" : " streams");
  variants.push_back({streams, widest_read<kStreams, false, kAllLevels>(), 0});
  for (const Index distance : {512, 1024, 2048, 4096, 8192, 16384}) {
    variants.push_back({streams + ", prefetch " + std::to_string(distance),
                        widest_read<kStreams, true, kAllLevels>(), distance});
  }
  variants.push_back(
      {streams + ", prefetch 4096 past caches", widest_read<kStreams, true, kNone>(), 4096});
}

/// Memory to read, touched by the threads that read it.
class ReadBuffer {
 public:
  explicit ReadBuffer(kvick::ThreadPool& pool) : words_(kMemoryBytes / sizeof(std::uint64_t)) {
    pool.parallel_for(static_cast<Index>(words_.size()), [&](Index begin, Index end) {
      std::fill(words_.begin() + begin, words_.begin() + end, std::uint64_t{1});
    });
  }

  /// Part i of n, in whole units of 2 KiB: eight streams of four cache lines.
  std::span<const std::byte> part(Index i, Index n) const noexcept {
    constexpr Index kUnit = 2048;
    const Index units = static_cast<Index>(words_.size_bytes()) / kUnit;
    const auto* const start = reinterpret_cast<const std::byte*>(words_.data());
    const Index begin = units * i / n * kUnit;
    const Index end = units * (i + 1) / n * kUnit;
    return {start + begin, static_cast<std::size_t>(end - begin)};
  }

 private:
  kvick::AlignedBuffer<std::uint64_t> words_;
};

inline Probe read_probe(const ReadVariant& variant, std::shared_ptr<const ReadBuffer> buffer,
                        kvick::ThreadPool& pool) {
  auto results =
      std::make_shared<std::vector<ThreadResult>>(static_cast<std::size_t>(pool.num_threads()));
  const auto run = [=, &pool](Index num_calls) {
    on_every_thread(pool, [&](Index thread) {
      const std::span<const std::byte> part = buffer->part(thread, pool.num_threads());
      for (Index call = 0; call < num_calls; ++call) {
        (*results)[static_cast<std::size_t>(thread)].value =
            variant.loop(part.data(), part.data() + part.size(), variant.distance);
      }
    });
  };
  const auto check = [=] {
    run(1);
    std::uint64_t total = 0;
    for (const ThreadResult& result : *results) total += result.value;
    require_count(variant.name, total, kMemoryBytes / sizeof(std::uint64_t));
  };
  return {variant.name, run, {{"GB/s", static_cast<double>(kMemoryBytes) * 1e-9}}, check};
}

}  // namespace detail

inline std::vector<Probe> limit_variants(LimitKind kind, kvick::Isa isa, kvick::ThreadPool& pool) {
  std::vector<Probe> probes;
  if (kind == LimitKind::kRead) {
    std::vector<detail::ReadVariant> variants;
    detail::add_read_variants<1>(variants);
    detail::add_read_variants<2>(variants);
    detail::add_read_variants<4>(variants);
    detail::add_read_variants<8>(variants);
    const auto buffer = std::make_shared<const detail::ReadBuffer>(pool);
    for (const auto& variant : variants) {
      probes.push_back(detail::read_probe(variant, buffer, pool));
    }
  } else {
    for (const auto& variant : detail::compute_variants(kind, isa)) {
      probes.push_back(detail::compute_probe(variant, pool));
    }
  }
  return probes;
}

inline std::optional<Limit> best_limit(LimitKind kind, kvick::Isa isa, kvick::ThreadPool& pool) {
  constexpr double kSeconds = 0.01;
  constexpr int kNumRounds = 5;
  const std::vector<Probe> variants = limit_variants(kind, isa, pool);
  if (variants.empty()) return std::nullopt;
  std::vector<Index> num_calls;
  for (const Probe& probe : variants) {
    probe.check();
    num_calls.push_back(calls_within(probe, kSeconds));
  }
  std::size_t best = 0;
  double best_rate = 0;
  for (int round = 0; round < kNumRounds; ++round) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const double seconds = seconds_per_call(variants[i], num_calls[i], kSeconds);
      const double rate = variants[i].work.front().amount / seconds;
      if (rate <= best_rate) continue;
      best = i;
      best_rate = rate;
    }
  }
  Limit limit{variants[best], variants[best].name};
  limit.probe.name = name(kind);
  return limit;
}

}  // namespace measure
