// SPDX-License-Identifier: MIT
// Seeded requests to measure with: how long prompts and outputs are, and when they arrive.
//
//   auto workload = kvick::make_workload(
//       {.num_requests = 200,
//        .prompt_tokens = kvick::uniform_length(32, 256),
//        .output_tokens = kvick::log_normal_length(64, 0.6, 1, 512),
//        .request_rate = 4.0,
//        .vocab_size = model.vocab_size()});
//
// Open loop: requests come at their times, whatever the server does. Gaps are gamma distributed
// with shape `burstiness` and mean 1 / request_rate: 1 is a Poisson process, below it arrivals come
// in bursts, far above they are regular. All times are then scaled so that the last request comes
// at num_requests / request_rate: runs of one rate last equally long. A request_rate of infinity
// sends all at once. Closed loop: max_concurrency requests are under way at any time, the next is
// sent when one has finished. A trace gives times and lengths itself.
//
// Outputs always have their full length: an end token that the model happens to choose does not
// count, or speeds of different models would not be comparable.
//
// Accuracy  The same options give the same requests on every machine.
// Errors    Error(kArgument) for options out of range, Error(kFormat) for a trace, with the line.
// Source    Arrivals as in vLLM's serving benchmark.
// Layer     bench: may include core.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "kvick/bench/variates.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/random.hpp"

namespace kvick::inline v0_1 {

/// Numbers of tokens; made by the functions below.
struct LengthDistribution {
  enum class Kind { kFixed, kUniform, kLogNormal };
  Kind kind = Kind::kFixed;
  int low = 1;           ///< the least, and what kFixed always is
  int high = 1;          ///< the most
  double median = 1;     ///< of kLogNormal, before it is cut to [low, high]
  double log_sigma = 0;  ///< of kLogNormal: deviation of the natural logarithm

  int draw(PhiloxStream& stream) const noexcept;
};

constexpr LengthDistribution fixed_length(int tokens) noexcept;
/// Each of low..high equally likely.
constexpr LengthDistribution uniform_length(int low, int high) noexcept;
/// Rounded, and cut to [low, high].
constexpr LengthDistribution log_normal_length(double median, double log_sigma, int low,
                                               int high) noexcept;

struct WorkloadRequest {
  double arrival_seconds = 0;  ///< after the start
  std::vector<TokenId> prompt = {};
  int num_output_tokens = 1;
  std::uint64_t seed = 0;  ///< for sampling
};

struct Workload {
  std::vector<WorkloadRequest> requests;  ///< in order of arrival
  int max_concurrency = 0;                ///< requests under way at most; 0: no limit
};

/// One request of a trace.
struct TraceEntry {
  double arrival_seconds = 0;
  int num_prompt_tokens = 1;
  int num_output_tokens = 1;
};

struct WorkloadOptions {
  int num_requests = 1;
  LengthDistribution prompt_tokens = fixed_length(128);  ///< after the shared prefix
  LengthDistribution output_tokens = fixed_length(32);
  double request_rate = std::numeric_limits<double>::infinity();  ///< per second
  double burstiness = 1;
  int max_concurrency = 0;  ///< closed loop with this many; 0: open loop
  int num_prefixes = 0;     ///< prompts begin with one of so many prefixes, chosen at random
  int prefix_tokens = 0;
  std::vector<TraceEntry> trace = {};  ///< replaces num_requests, lengths and arrivals
  std::uint64_t seed = 0;
  int vocab_size = 0;     ///< prompts are random tokens below this
  TokenId min_token = 0;  ///< and from this on; to leave out control tokens
};

inline Workload make_workload(const WorkloadOptions& options);

/// Seconds at which `count` requests arrive, ascending, see above.
inline std::vector<double> arrival_times(int count, double request_rate, double burstiness,
                                         std::uint64_t seed);

/// Lines "arrival_seconds,prompt_tokens,output_tokens" in order of arrival; a first line of names
/// and empty lines are skipped.
inline std::vector<TraceEntry> parse_trace(std::string_view text);

// ---- Implementation: nothing below is API ----

namespace detail {

/// What random numbers of a workload are for: each has streams of its own, so that a change of one
/// option leaves what others decide as it was.
enum class WorkloadDraw : std::uint64_t { kArrivals, kLengths, kPrefixes, kTokens };

inline PhiloxStream workload_stream(std::uint64_t seed, WorkloadDraw draw,
                                    std::uint64_t index = 0) noexcept {
  return PhiloxStream(seed, static_cast<std::uint64_t>(draw) << 56 | index);
}

inline void check_length(const LengthDistribution& length, std::string_view what) {
  require(length.low >= 1 && length.high >= length.low, ErrorCode::kArgument, "make_workload", what,
          " must have 1 <= low <= high, got ", length.low, " and ", length.high);
  require(length.kind != LengthDistribution::Kind::kLogNormal ||
              (length.median > 0 && length.log_sigma >= 0 && std::isfinite(length.median) &&
               std::isfinite(length.log_sigma)),
          ErrorCode::kArgument, "make_workload", what,
          " must have a positive median and a deviation of at least 0, got ", length.median,
          " and ", length.log_sigma);
}

inline void check_workload(const WorkloadOptions& options) {
  constexpr std::string_view kOperation = "make_workload";
  require(options.num_requests >= 1, ErrorCode::kArgument, kOperation,
          "num_requests must be at least 1, got ", options.num_requests);
  require(options.max_concurrency >= 0, ErrorCode::kArgument, kOperation,
          "max_concurrency must be at least 0, got ", options.max_concurrency);
  require(options.min_token >= 0 && options.vocab_size > options.min_token, ErrorCode::kArgument,
          kOperation, "vocab_size must be above min_token ", options.min_token, ", got ",
          options.vocab_size);
  require(options.num_prefixes >= 0 && options.prefix_tokens >= 0, ErrorCode::kArgument, kOperation,
          "num_prefixes and prefix_tokens must be at least 0, got ", options.num_prefixes, " and ",
          options.prefix_tokens);
  check_length(options.prompt_tokens, "prompt_tokens");
  check_length(options.output_tokens, "output_tokens");
}

inline void append_tokens(PhiloxStream stream, const WorkloadOptions& options, int count,
                          std::vector<TokenId>& tokens) {
  const auto range = static_cast<std::uint32_t>(options.vocab_size - options.min_token);
  for (int i = 0; i < count; ++i) {
    tokens.push_back(options.min_token + static_cast<TokenId>(stream.next_below(range)));
  }
}

/// The next number of `line` up to a comma, in [low, high].
template <class T>
T take_number(std::string_view& line, T low, T high, std::size_t line_number) {
  const std::string_view field = line.substr(0, line.find(','));
  line.remove_prefix(std::min(line.size(), field.size() + 1));
  T value{};
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  require(
      error == std::errc() && end == field.data() + field.size() && value >= low && value <= high,
      ErrorCode::kFormat, "parse_trace", "line ", line_number, " must be arrival_seconds,",
      "prompt_tokens,output_tokens, numbers in order of arrival, got ", in_quotes(field));
  return value;
}

}  // namespace detail

constexpr LengthDistribution fixed_length(int tokens) noexcept {
  return {LengthDistribution::Kind::kFixed, tokens, tokens};
}
constexpr LengthDistribution uniform_length(int low, int high) noexcept {
  return {LengthDistribution::Kind::kUniform, low, high};
}
constexpr LengthDistribution log_normal_length(double median, double log_sigma, int low,
                                               int high) noexcept {
  return {LengthDistribution::Kind::kLogNormal, low, high, median, log_sigma};
}

inline int LengthDistribution::draw(PhiloxStream& stream) const noexcept {
  switch (kind) {
    case Kind::kFixed: return low;
    case Kind::kUniform:
      return low + static_cast<int>(stream.next_below(static_cast<std::uint32_t>(high - low) + 1));
    case Kind::kLogNormal: break;
  }
  const double length = std::rint(median * math::exp(log_sigma * next_normal(stream)));
  return static_cast<int>(std::clamp(length, static_cast<double>(low), static_cast<double>(high)));
}

inline std::vector<double> arrival_times(int count, double request_rate, double burstiness,
                                         std::uint64_t seed) {
  constexpr std::string_view kOperation = "arrival_times";
  detail::require(count >= 0, ErrorCode::kArgument, kOperation, "count must be at least 0, got ",
                  count);
  detail::require(request_rate > 0, ErrorCode::kArgument, kOperation,
                  "request_rate must be positive, got ", request_rate);
  detail::require(burstiness > 0 && std::isfinite(burstiness), ErrorCode::kArgument, kOperation,
                  "burstiness must be positive, got ", burstiness);
  std::vector<double> times(static_cast<std::size_t>(count), 0.0);
  if (count == 0 || std::isinf(request_rate)) return times;
  PhiloxStream stream = detail::workload_stream(seed, detail::WorkloadDraw::kArrivals);
  double now = 0;
  for (double& time : times) {
    now += next_gamma(stream, burstiness);
    time = now;
  }
  // Gaps of very small shapes may all be 0: then all come at the end.
  const double last = static_cast<double>(count) / request_rate;
  for (double& time : times) time = now > 0 ? time / now * last : last;
  return times;
}

inline Workload make_workload(const WorkloadOptions& options) {
  using detail::WorkloadDraw;
  detail::check_workload(options);
  const auto stream = [&](WorkloadDraw draw, std::uint64_t index = 0) {
    return detail::workload_stream(options.seed, draw, index);
  };
  std::vector<TraceEntry> entries = options.trace;
  if (entries.empty()) {
    const bool is_closed_loop = options.max_concurrency > 0;
    const auto times = arrival_times(
        options.num_requests,
        is_closed_loop ? std::numeric_limits<double>::infinity() : options.request_rate,
        options.burstiness, options.seed);
    PhiloxStream lengths = stream(WorkloadDraw::kLengths);
    for (const double time : times) {
      const int num_prompt_tokens = options.prompt_tokens.draw(lengths);
      entries.push_back({time, num_prompt_tokens, options.output_tokens.draw(lengths)});
    }
  }
  Workload workload{.requests = {}, .max_concurrency = options.max_concurrency};
  PhiloxStream prefixes = stream(WorkloadDraw::kPrefixes);
  constexpr std::uint64_t kFirstPrefix = std::uint64_t{1} << 32;  // after all requests
  for (std::size_t i = 0; i < entries.size(); ++i) {
    WorkloadRequest request{.arrival_seconds = entries[i].arrival_seconds,
                            .num_output_tokens = entries[i].num_output_tokens,
                            .seed = options.seed + i};
    if (options.num_prefixes > 0) {
      const auto prefix = prefixes.next_below(static_cast<std::uint32_t>(options.num_prefixes));
      detail::append_tokens(stream(WorkloadDraw::kTokens, kFirstPrefix + prefix), options,
                            options.prefix_tokens, request.prompt);
    }
    detail::append_tokens(stream(WorkloadDraw::kTokens, i), options, entries[i].num_prompt_tokens,
                          request.prompt);
    workload.requests.push_back(std::move(request));
  }
  return workload;
}

inline std::vector<TraceEntry> parse_trace(std::string_view text) {
  constexpr int kMaxTokens = 1 << 24;
  std::vector<TraceEntry> entries;
  double last = 0;
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("arrival"))) continue;
    TraceEntry entry;
    entry.arrival_seconds = detail::take_number(line, last, 1e9, line_number);
    entry.num_prompt_tokens = detail::take_number(line, 1, kMaxTokens, line_number);
    entry.num_output_tokens = detail::take_number(line, 1, kMaxTokens, line_number);
    last = entry.arrival_seconds;
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace kvick::inline v0_1
