// SPDX-License-Identifier: MIT
// Packed linear layers against the limits of this machine and against other libraries, interleaved
// in one process: at least 11 rounds, medians of the ratios within rounds.
//
//   kvick-linear-speed [--threads N] [--isa NAME] [--peers] [--json]
//
// One layer, 5632 outputs and 2048 inputs. With 512 rows the multiply limit counts, with 1 to 8
// rows the memory's; those rotate over 512 MiB of weights. Each probe's result is checked first.
// --peers measures only what other libraries do as well: f32, and integers, on 512 rows.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kvick/core/cpu.hpp"
#include "kvick/core/thread_pool.hpp"
#include "support/limits.hpp"
#include "support/linear_case.hpp"
#include "support/peers.hpp"
#include "support/report.hpp"
#include "support/rounds.hpp"

namespace {

using kvick::Index;

constexpr Index kOutputs = 5632;
constexpr Index kInputs = 2048;

struct Setting {
  kvick::Isa isa;
  kvick::ThreadPool& pool;
  bool prints_json = false;
};

measure::Probe linear_probe(const std::string& format, Index rows,
                            kvick::ActivationType activations, measure::LimitKind limit,
                            const Setting& setting) {
  const bool is_read = limit == measure::LimitKind::kRead;
  auto linear = std::make_shared<measure::LinearCase>(format, kOutputs, kInputs, rows, activations,
                                                      setting.isa, setting.pool,
                                                      is_read ? measure::kMemoryBytes : 0);
  const bool is_float_mode = activations == kvick::ActivationType::kF32;
  measure::Probe probe;
  probe.name = format + (is_float_mode ? ", float activations" : "") + ", " + std::to_string(rows) +
               (rows == 1 ? " row" : " rows");
  probe.run = [linear](Index calls) { linear->run(calls); };
  probe.check = [linear] { linear->check(); };
  const measure::Work operations{"Gop/s", linear->num_operations() * 1e-9,
                                 is_read ? "" : std::string(name(limit))};
  const measure::Work bytes{"GB/s", linear->num_bytes() * 1e-9, std::string(name(limit))};
  if (is_read) {
    probe.work = {bytes, operations};
  } else {
    probe.work = {operations};
  }
  return probe;
}

/// The limit as a probe; false where none is known.
bool add_limit(measure::Rounds& rounds, measure::LimitKind kind, const Setting& setting) {
  auto limit = measure::best_limit(kind, setting.isa, setting.pool);
  if (!limit) return false;
  std::fprintf(stderr, "%s: %s\n", limit->probe.name.c_str(), limit->variant.c_str());
  rounds.add(std::move(limit->probe));
  return true;
}

void print(const char* title, const measure::RoundsResult& result, const std::string& baseline,
           const Setting& setting) {
  if (setting.prints_json) {
    const nlohmann::ordered_json json = {{"title", title},
                                         {"machine", measure::machine_json()},
                                         {"probes", measure::to_json(result, baseline)}};
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s\n%s\n", title, measure::table(result, baseline).c_str());
  }
  std::fflush(stdout);
  result.require_within_limits();
}

/// Other libraries' products; the name of the one that others are compared with.
std::string add_peers(measure::Rounds& rounds, const Setting& setting) {
  std::string baseline = "f32, 512 rows";
  for (measure::Probe& peer : measure::peer_probes(kOutputs, kInputs, 512, setting.pool)) {
    if (peer.name == "oneDNN f32") baseline = peer.name;
    rounds.add(std::move(peer));
  }
  return baseline;
}

void peers_only(const Setting& setting) {
  using measure::LimitKind;
  measure::Rounds rounds;
  add_limit(rounds, LimitKind::kInt8, setting);
  add_limit(rounds, LimitKind::kF32, setting);
  const auto int8 = kvick::ActivationType::kInt8;
  for (const char* format : {"q8_0", "channel8"}) {
    rounds.add(linear_probe(format, 512, int8, LimitKind::kInt8, setting));
  }
  rounds.add(linear_probe("f32", 512, int8, LimitKind::kF32, setting));
  const std::string baseline = add_peers(rounds, setting);
  print("512 rows", rounds.run(), baseline, setting);
}

void many_rows(const Setting& setting) {
  using measure::LimitKind;
  measure::Rounds rounds;
  add_limit(rounds, LimitKind::kInt8, setting);
  add_limit(rounds, LimitKind::kF32, setting);
  const auto int8 = kvick::ActivationType::kInt8;
  for (const char* format : {"q8_0", "group8", "channel8", "q4_0", "q4_k", "q5_k", "q6_k"}) {
    rounds.add(linear_probe(format, 512, int8, LimitKind::kInt8, setting));
  }
  for (const char* format : {"f32", "f16"}) {
    rounds.add(linear_probe(format, 512, int8, LimitKind::kF32, setting));
  }
  rounds.add(linear_probe("q8_0", 512, kvick::ActivationType::kF32, LimitKind::kF32, setting));
  const std::string baseline = add_peers(rounds, setting);
  print("512 rows", rounds.run(), baseline, setting);
}

void few_rows(const Setting& setting) {
  measure::Rounds rounds;
  add_limit(rounds, measure::LimitKind::kRead, setting);
  for (const char* format : {"q8_0", "q4_0", "q4_k", "q6_k", "f16"}) {
    for (const Index count : {Index{1}, Index{5}, Index{8}}) {
      rounds.add(linear_probe(format, count, kvick::ActivationType::kInt8,
                              measure::LimitKind::kRead, setting));
    }
  }
  print("1, 5 and 8 rows", rounds.run(), "q8_0, 1 row", setting);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Packed linear layers against this machine's limits and other libraries.",
               "kvick-linear-speed");
  int threads = 0;
  std::string isa;
  app.add_option("-t,--threads", threads, "default: all")->check(CLI::PositiveNumber);
  app.add_option("--isa", isa, "kernels to measure, such as avx2; default: the CPU's best");
  bool is_for_peers = false, prints_json = false;
  app.add_flag("--peers", is_for_peers, "only what other libraries do as well");
  app.add_flag("--json", prints_json, "print a line of JSON for each table");
  CLI11_PARSE(app, argc, argv);
  try {
    kvick::ThreadPool pool(threads);
    const Setting setting{isa.empty() ? kvick::default_isa() : kvick::parse_isa(isa), pool,
                          prints_json};
    if (!prints_json) {
      std::printf("%s, %d threads, %u outputs, %u inputs\n", std::string(name(setting.isa)).c_str(),
                  pool.num_threads(), static_cast<unsigned>(kOutputs),
                  static_cast<unsigned>(kInputs));
    }
    if (is_for_peers) {
      peers_only(setting);
      return 0;
    }
    many_rows(setting);
    few_rows(setting);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvick-linear-speed: %s\n", error.what());
    return 2;
  }
  return 0;
}
