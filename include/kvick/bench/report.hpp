// SPDX-License-Identifier: MIT
// What was measured, on what, with which parameters: as text, JSON, CSV or a page with plots.
//
// A report is a list of facts (machine, build, model, parameters: all that is needed to repeat it)
// and of sections. A section has measurements, each with the samples of its repetitions, perhaps
// the rate that the machine would allow and the digest of what was computed, and figures: spreads
// of latencies, curves, and rooflines.
//
// What was not measured is not reported: a figure that its samples cannot carry is "-" in tables
// and null in JSON.
//
// Errors    Error(kIo) if a file cannot be written.
// Layer     bench: may include core.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/bench/json_writer.hpp"
#include "kvick/bench/statistics.hpp"
#include "kvick/bench/text_table.hpp"
#include "kvick/core/replacement_file.hpp"

namespace kvick::inline v0_1 {

/// One quantity.
struct Measurement {
  std::string name;  ///< "prefill of 512 tokens"
  std::string unit;  ///< "tokens/s"
  bool more_is_better = true;
  std::vector<double> samples = {};  ///< one per repetition
  /// What the machine would allow, measured beside each sample, in the same unit; or empty.
  std::vector<double> limits = {};
  std::string limit_name = {};  ///< "int8 multiplies"
  std::string digest = {};      ///< of the outputs; empty: none
  std::string check = {};       ///< what the outputs were compared with; empty: not compared

  /// Of the limit, repetition by repetition; nothing without one.
  std::optional<Spread> share_of_limit() const;
};

/// Values of one kind, such as the latencies of requests.
struct Distribution {
  std::string name;  ///< "TTFT"
  std::string unit;  ///< "ms"
  std::vector<double> samples = {};
};

struct CurvePoint {
  double x = 0;
  double y = 0;
  std::string label = {};
};

struct Curve {
  std::string name;
  std::vector<CurvePoint> points;
};

struct CurvePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Curve> curves;
};

/// Rates beside the limits of multiplying and of memory: a kernel can reach
/// min(compute_limit, read_limit * operations per byte).
struct Roofline {
  struct Point {
    std::string name;
    double operations_per_byte;
    double gops;  ///< 10^9 operations per second
  };
  std::string title;
  double compute_limit = 0;  ///< Gop/s
  double read_limit = 0;     ///< GB/s
  std::vector<Point> points = {};
};

/// A table of its own: the first row names the columns.
struct ReportTable {
  std::string title;
  TextRows rows;
};

struct ReportSection {
  std::string id;     ///< "batch": names its measurements in comparisons
  std::string title;  ///< "Batches"
  std::string note = {};
  std::vector<Measurement> measurements = {};
  std::vector<Distribution> distributions = {};
  std::vector<CurvePlot> curves = {};
  std::vector<Roofline> rooflines = {};
  std::vector<ReportTable> tables = {};
  std::size_t headline = 0;  ///< number of the measurement that stands for the section
};

/// Names and values, in an order for people.
struct FactGroup {
  std::string name;  ///< "machine"
  std::vector<std::pair<std::string, std::string>> facts;
};

struct Report {
  std::string title;
  std::vector<FactGroup> facts;
  std::vector<ReportSection> sections;

  std::string to_json() const;
  /// One line per measurement and distribution, with a first line of names.
  std::string to_csv() const;
  /// Tables for a terminal.
  std::string to_text() const;
};

inline std::ostream& operator<<(std::ostream& out, const Report& report);

/// `text` becomes the file at `path`, complete or not at all.
inline void write_text_file(const std::filesystem::path& path, std::string_view text);

/// Columns of a section's measurements and distributions, with a row of names; no rows if it has
/// none.
inline TextRows measurement_rows(const ReportSection& section);
inline TextRows distribution_rows(const ReportSection& section);

// ---- Implementation: nothing below is API ----

namespace detail {

inline std::string number_or_dash(const std::optional<double>& number) {
  return number ? short_number(*number) : "-";
}

inline void write_spread(JsonWriter& json, const Spread& spread) {
  json.key("median").value(spread.median).key("min").value(spread.min);
  json.key("max").value(spread.max).key("lower_quartile").value(spread.lower_quartile);
  json.key("upper_quartile").value(spread.upper_quartile);
}

inline void write_summary(JsonWriter& json, const SampleSummary& summary) {
  json.key("count").value(summary.count).key("mean").value(summary.mean);
  json.key("std").value(summary.standard_deviation).key("min").value(summary.min);
  json.key("median").value(summary.median).key("p90").value(summary.p90);
  json.key("p95").value(summary.p95).key("p99").value(summary.p99).key("max").value(summary.max);
}

inline void write_measurement(JsonWriter& json, const Measurement& measurement) {
  json.begin_object().key("name").value(measurement.name).key("unit").value(measurement.unit);
  json.key("more_is_better").value(measurement.more_is_better);
  json.key("samples").value(std::span<const double>(measurement.samples));
  if (!measurement.samples.empty()) write_spread(json, spread_of(measurement.samples));
  if (const auto share = measurement.share_of_limit()) {
    json.key("limit").value(measurement.limit_name).key("limits");
    json.value(std::span<const double>(measurement.limits));
    json.key("share_of_limit").begin_object();
    write_spread(json, *share);
    json.end_object();
  }
  if (!measurement.digest.empty()) json.key("digest").value(measurement.digest);
  if (!measurement.check.empty()) json.key("checked_against").value(measurement.check);
  json.end_object();
}

inline void write_curve_plot(JsonWriter& json, const CurvePlot& plot) {
  json.begin_object().key("title").value(plot.title).key("x").value(plot.x_label);
  json.key("y").value(plot.y_label).key("curves").begin_array();
  for (const Curve& curve : plot.curves) {
    json.begin_object().key("name").value(curve.name).key("points").begin_array();
    for (const CurvePoint& point : curve.points) {
      json.begin_array().value(point.x).value(point.y).value(point.label).end_array();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

inline void write_roofline(JsonWriter& json, const Roofline& roofline) {
  json.begin_object().key("title").value(roofline.title);
  json.key("compute_limit_gops").value(roofline.compute_limit);
  json.key("read_limit_gbs").value(roofline.read_limit).key("points").begin_array();
  for (const Roofline::Point& point : roofline.points) {
    json.begin_object().key("name").value(point.name).key("operations_per_byte");
    json.value(point.operations_per_byte).key("gops").value(point.gops).end_object();
  }
  json.end_array().end_object();
}

inline void write_section(JsonWriter& json, const ReportSection& section) {
  json.begin_object().key("id").value(section.id).key("title").value(section.title);
  json.key("note").value(section.note).key("measurements").begin_array();
  for (const Measurement& measurement : section.measurements) write_measurement(json, measurement);
  json.end_array().key("distributions").begin_array();
  for (const Distribution& distribution : section.distributions) {
    json.begin_object().key("name").value(distribution.name).key("unit").value(distribution.unit);
    write_summary(json, summarize(distribution.samples));
    json.key("samples").value(std::span<const double>(distribution.samples)).end_object();
  }
  json.end_array().key("curves").begin_array();
  for (const CurvePlot& plot : section.curves) write_curve_plot(json, plot);
  json.end_array().key("rooflines").begin_array();
  for (const Roofline& roofline : section.rooflines) write_roofline(json, roofline);
  json.end_array().key("tables").begin_array();
  for (const ReportTable& table : section.tables) {
    json.begin_object().key("title").value(table.title).key("rows").begin_array();
    for (const auto& row : table.rows) {
      json.begin_array();
      for (const std::string& cell : row) json.value(cell);
      json.end_array();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

/// Quoted where the text has a comma, a quote or a line break.
inline std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

inline std::string exact_number(double number) {
  JsonWriter json;
  return json.value(number).text();
}

}  // namespace detail

inline std::optional<Spread> Measurement::share_of_limit() const {
  if (limits.empty() || limits.size() != samples.size()) return std::nullopt;
  std::vector<double> shares;
  for (std::size_t i = 0; i < samples.size(); ++i) shares.push_back(samples[i] / limits[i]);
  return spread_of(std::move(shares));
}

inline std::string Report::to_json() const {
  JsonWriter json;
  json.begin_object().key("format").value("kvick-report").key("version").value(1);
  json.key("title").value(title);
  for (const FactGroup& group : facts) {
    json.key(group.name).begin_object();
    for (const auto& [name, value] : group.facts) json.key(name).value(value);
    json.end_object();
  }
  json.key("sections").begin_array();
  for (const ReportSection& section : sections) detail::write_section(json, section);
  json.end_array().end_object();
  return json.text() + "\n";
}

inline std::string Report::to_csv() const {
  std::string csv =
      "section,name,unit,count,mean,std,min,median,p90,p95,p99,max,limit,share_of_limit,digest\n";
  const auto add = [&](const std::string& section, const std::string& name, const std::string& unit,
                       std::span<const double> samples, const std::string& rest) {
    const SampleSummary s = summarize(samples);
    csv += detail::csv_field(section) + ',' + detail::csv_field(name) + ',' +
           detail::csv_field(unit) + ',' + std::to_string(s.count);
    for (const auto& number :
         {s.mean, s.standard_deviation, s.min, s.median, s.p90, s.p95, s.p99, s.max}) {
      csv += ',' + (number ? detail::exact_number(*number) : std::string());
    }
    csv += rest + '\n';
  };
  for (const ReportSection& section : sections) {
    for (const Measurement& m : section.measurements) {
      const auto share = m.share_of_limit();
      add(section.id, m.name, m.unit, m.samples,
          ',' + detail::csv_field(m.limit_name) + ',' +
              (share ? detail::exact_number(share->median) : "") + ',' + m.digest);
    }
    for (const Distribution& d : section.distributions) {
      add(section.id, d.name, d.unit, d.samples, ",,,");
    }
  }
  return csv;
}

inline TextRows measurement_rows(const ReportSection& section) {
  if (section.measurements.empty()) return {};
  TextRows rows{{"measurement", "median", "quartiles", "unit", "share of limit", "digest"}};
  for (const Measurement& m : section.measurements) {
    if (m.samples.empty()) {
      rows.push_back({m.name, "-", "", m.unit, "", ""});
      continue;
    }
    const Spread spread = spread_of(m.samples);
    const auto share = m.share_of_limit();
    rows.push_back(
        {m.name, short_number(spread.median),
         m.samples.size() == 1
             ? ""
             : short_number(spread.lower_quartile) + " .. " + short_number(spread.upper_quartile),
         m.unit, share ? with_decimals(100 * share->median, 0) + " % of " + m.limit_name : "",
         m.digest.empty() ? "" : m.digest + (m.check.empty() ? "" : " = " + m.check)});
  }
  return rows;
}

inline TextRows distribution_rows(const ReportSection& section) {
  if (section.distributions.empty()) return {};
  TextRows rows{{"latency", "mean", "std", "median", "p90", "p95", "p99", "unit", "samples"}};
  for (const Distribution& distribution : section.distributions) {
    const SampleSummary s = summarize(distribution.samples);
    std::vector<std::string> row{distribution.name};
    for (const auto& number : {s.mean, s.standard_deviation, s.median, s.p90, s.p95, s.p99}) {
      row.push_back(detail::number_or_dash(number));
    }
    row.insert(row.end(), {distribution.unit, std::to_string(s.count)});
    rows.push_back(std::move(row));
  }
  return rows;
}

inline std::string Report::to_text() const {
  std::string text = title + "\n";
  for (const FactGroup& group : facts) {
    TextRows rows;
    for (const auto& [name, value] : group.facts) rows.push_back({name, value});
    text += "\n" + group.name + "\n" + text_table(rows);
  }
  for (const ReportSection& section : sections) {
    text += "\n" + section.title + "\n";
    text += text_table(measurement_rows(section)) + text_table(distribution_rows(section));
    for (const ReportTable& table : section.tables) {
      if (!table.title.empty()) text += table.title + "\n";
      text += text_table(table.rows);
    }
    if (!section.note.empty()) text += "  " + section.note + "\n";
  }
  return text;
}

inline std::ostream& operator<<(std::ostream& out, const Report& report) {
  return out << report.to_text();
}

inline void write_text_file(const std::filesystem::path& path, std::string_view text) {
  ReplacementFile file(path, "write_text_file");
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace kvick::inline v0_1
