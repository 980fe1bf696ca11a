// SPDX-License-Identifier: MIT
// Charts as inline SVG: bars with spread, histograms, curves, rooflines.
//
// A chart is 360 units wide and scales with the page, so that its text is legible on a phone and
// fits a column on a desk. Colors are classes (s0, s1, ... for series; ink, muted, grid), which the
// page defines for light and dark. Text is escaped; nothing is loaded.
//
// Layer     bench: may include core.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/bench/report.hpp"
#include "kvick/bench/statistics.hpp"
#include "kvick/bench/text_table.hpp"

namespace kvick::inline v0_1 {

/// Text with what HTML and SVG would read as markup replaced.
inline std::string escape_markup(std::string_view text);

/// One bar per measurement: the median, with whiskers over the quartiles. Where limits are known, a
/// bar's full length is its own limit; otherwise all bars, of one unit, share a scale.
inline std::string bar_chart(std::span<const Measurement> measurements);

/// How often which value, with median, p90 and p99 where the samples carry them.
inline std::string histogram(const Distribution& distribution);

inline std::string curve_chart(const CurvePlot& plot);

/// Both axes logarithmic.
inline std::string roofline_chart(const Roofline& roofline);

/// Steps of 1, 2 or 5 times a power of ten that cover [low, high] in about `count` parts.
inline std::vector<double> axis_ticks(double low, double high, int count);

// ---- Implementation: nothing below is API ----

inline std::string escape_markup(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

inline std::vector<double> axis_ticks(double low, double high, int count) {
  if (!(high > low) || !std::isfinite(high - low)) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough * 0.999) step = factor * power;
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    ticks.push_back(i * step + 0.0);  // no -0
  }
  return ticks;
}

namespace detail {

inline constexpr double kChartWidth = 360;
inline constexpr int kNumSeriesColors = 6;

/// SVG elements, one after another.
class Drawing {
 public:
  Drawing(double height, std::string_view description)
      : height_(height), description_(description) {}

  void line(double x1, double y1, double x2, double y2, std::string_view css_class) {
    body_ += concat("<line x1=\"", at(x1), "\" y1=\"", at(y1), "\" x2=\"", at(x2), "\" y2=\"",
                    at(y2), "\" class=\"", css_class, "\"/>");
  }
  void rectangle(double x, double y, double width, double height, std::string_view css_class) {
    body_ += concat("<rect x=\"", at(x), "\" y=\"", at(y), "\" width=\"", at(std::max(width, 0.0)),
                    "\" height=\"", at(std::max(height, 0.0)), "\" rx=\"2\" class=\"", css_class,
                    "\"/>");
  }
  void circle(double x, double y, double radius, std::string_view css_class,
              std::string_view hint = {}) {
    body_ += concat("<circle cx=\"", at(x), "\" cy=\"", at(y), "\" r=\"", at(radius), "\" class=\"",
                    css_class, "\">");
    if (!hint.empty()) body_ += "<title>" + escape_markup(hint) + "</title>";
    body_ += "</circle>";
  }
  void path(std::span<const std::pair<double, double>> points, std::string_view css_class) {
    std::string steps;
    for (const auto& [x, y] : points) {
      steps += concat(steps.empty() ? "M" : "L", at(x), " ", at(y));
    }
    body_ += concat("<path d=\"", steps, "\" class=\"", css_class, "\"/>");
  }
  /// anchor: start, middle or end.
  void text(double x, double y, std::string_view text, std::string_view css_class,
            std::string_view anchor = "start") {
    body_ += concat("<text x=\"", at(x), "\" y=\"", at(y), "\" class=\"", css_class,
                    "\" text-anchor=\"", anchor, "\">", escape_markup(text), "</text>");
  }

  std::string svg() const {
    return concat("<svg viewBox=\"0 0 ", at(kChartWidth), " ", at(height_),
                  "\" role=\"img\" aria-label=\"", escape_markup(description_), "\">", body_,
                  "</svg>");
  }

 private:
  static std::string at(double number) {
    std::string text = with_decimals(number, 1);
    if (text.ends_with(".0")) text.resize(text.size() - 2);
    return text;
  }

  double height_;
  std::string description_;
  std::string body_;
};

inline std::string series_class(std::string_view kind, std::size_t index) {
  return concat(kind, " s", index % kNumSeriesColors);
}

/// A range of values along a range of the drawing.
struct Axis {
  double low, high;   // values
  double begin, end;  // in the drawing
  bool is_log = false;

  double operator()(double value) const {
    const double part =
        is_log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return begin + std::clamp(part, 0.0, 1.0) * (end - begin);
  }
};

inline std::string tick_text(double value) {
  if (std::fabs(value) >= 1e4) return short_number(value / 1000) + "k";
  std::string text = with_decimals(value, 3);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text;
}

/// Powers of ten within the range, with 2 and 5 between them where the range is short.
inline std::vector<double> log_ticks(double low, double high) {
  const bool is_short = high / low < 30;
  std::vector<double> ticks;
  const int last = static_cast<int>(std::floor(std::log10(high)));
  for (int exponent = static_cast<int>(std::floor(std::log10(low))); exponent <= last; ++exponent) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, exponent);
      if ((factor == 1.0 || is_short) && tick >= low * 0.999 && tick <= high * 1.001) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks;
}

inline void draw_axes(Drawing& drawing, const Axis& x, const Axis& y, std::string_view x_label,
                      std::string_view y_label) {
  const auto ticks = [](const Axis& axis, int count) {
    return axis.is_log ? log_ticks(axis.low, axis.high) : axis_ticks(axis.low, axis.high, count);
  };
  for (const double tick : ticks(y, 4)) {
    drawing.line(x.begin, y(tick), x.end, y(tick), "grid");
    drawing.text(x.begin - 5, y(tick) + 3.5, tick_text(tick), "tick", "end");
  }
  for (const double tick : ticks(x, 5)) {
    drawing.line(x(tick), y.begin, x(tick), y.begin + 3, "grid");
    drawing.text(x(tick), y.begin + 14, tick_text(tick), "tick", "middle");
  }
  drawing.line(x.begin, y.begin, x.end, y.begin, "axis");
  drawing.text((x.begin + x.end) / 2, y.begin + 28, x_label, "label", "middle");
  drawing.text(2, 11, y_label, "label");
}

/// The ends of an axis that shows all values and, unless they are far from it, 0.
inline std::pair<double, double> value_range(std::span<const double> values) {
  double low = *std::min_element(values.begin(), values.end());
  double high = *std::max_element(values.begin(), values.end());
  if (low > 0 && low < 0.7 * high) low = 0;
  if (high == low) high = low + (low == 0 ? 1 : std::fabs(low));
  const double margin = 0.05 * (high - low);
  return {low == 0 ? 0 : low - margin, high + margin};
}

inline std::string name_with_unit(const Measurement& measurement, double value) {
  return short_number(value) + " " + measurement.unit;
}

}  // namespace detail

inline std::string bar_chart(std::span<const Measurement> measurements) {
  constexpr double kRowHeight = 38;
  constexpr double kLeft = 2;
  double most = 0;
  for (const Measurement& m : measurements) {
    for (const double sample : m.samples) most = std::max(most, sample);
  }
  detail::Drawing drawing(kRowHeight * static_cast<double>(measurements.size()) + 2,
                          "bars of " + std::to_string(measurements.size()) + " measurements");
  double y = 0;
  for (const Measurement& m : measurements) {
    drawing.text(kLeft, y + 12, m.name, "ink");
    if (!m.samples.empty()) {
      const Spread spread = spread_of(m.samples);
      const auto share = m.share_of_limit();
      const double full = share ? spread_of(m.limits).median : most;
      const detail::Axis x{0, full > 0 ? full : 1, kLeft, detail::kChartWidth - 2};
      drawing.text(detail::kChartWidth - 2, y + 12,
                   detail::name_with_unit(m, spread.median) +
                       (share ? ", " + with_decimals(100 * share->median, 0) + " %" : ""),
                   "value", "end");
      drawing.rectangle(kLeft, y + 18, detail::kChartWidth - 4, 12, "track");
      drawing.rectangle(kLeft, y + 18, x(spread.median) - kLeft, 12, "bar s0");
      if (m.samples.size() > 1) {
        drawing.line(x(spread.lower_quartile), y + 24, x(spread.upper_quartile), y + 24, "whisker");
        for (const double end : {spread.lower_quartile, spread.upper_quartile}) {
          drawing.line(x(end), y + 20.5, x(end), y + 27.5, "whisker");
        }
      }
      if (share) drawing.line(x.end, y + 15.5, x.end, y + 32.5, "limit");
    } else {
      drawing.text(detail::kChartWidth - 2, y + 12, "not measured", "tick", "end");
    }
    y += kRowHeight;
  }
  return drawing.svg();
}

inline std::string histogram(const Distribution& distribution) {
  constexpr std::size_t kNumBins = 30;
  constexpr double kHeight = 150;
  detail::Drawing drawing(kHeight, "how often which " + distribution.name + " was measured");
  if (distribution.samples.empty()) {
    drawing.text(detail::kChartWidth / 2, kHeight / 2, "not measured", "tick", "middle");
    return drawing.svg();
  }
  const auto [low, high] = detail::value_range(distribution.samples);
  std::array<int, kNumBins> counts{};
  for (const double sample : distribution.samples) {
    const double part = (sample - low) / (high - low) * static_cast<double>(kNumBins);
    ++counts[std::min(static_cast<std::size_t>(part), kNumBins - 1)];
  }
  const double most = *std::max_element(counts.begin(), counts.end());
  const detail::Axis x{low, high, 6, detail::kChartWidth - 10};
  const detail::Axis y{0, most, 112, 30};
  const double width = (x.end - x.begin) / static_cast<double>(kNumBins);
  for (std::size_t i = 0; i < kNumBins; ++i) {
    if (counts[i] == 0) continue;
    const double top = std::min(y(counts[i]), y.begin - 1.5);
    drawing.rectangle(x.begin + width * static_cast<double>(i) + 0.5, top, width - 1, y.begin - top,
                      "bar s0");
  }
  for (const double tick : axis_ticks(low, high, 5)) {
    drawing.line(x(tick), y.begin, x(tick), y.begin + 3, "grid");
    drawing.text(x(tick), y.begin + 14, detail::tick_text(tick), "tick", "middle");
  }
  drawing.line(x.begin, y.begin, x.end, y.begin, "axis");
  drawing.text((x.begin + x.end) / 2, y.begin + 29,
               distribution.name + " (" + distribution.unit + ")", "label", "middle");
  const SampleSummary summary = summarize(distribution.samples);
  double row = 10;
  for (const auto& [label, value] :
       {std::pair("median", summary.median), {"p90", summary.p90}, {"p99", summary.p99}}) {
    if (!value) continue;
    drawing.line(x(*value), row + 2, x(*value), y.begin, "mark");
    const bool is_right = x(*value) > 0.7 * detail::kChartWidth;
    drawing.text(x(*value) + (is_right ? -3 : 3), row + 2,
                 detail::concat(label, " ", short_number(*value)), "tick",
                 is_right ? "end" : "start");
    row += 11;
  }
  return drawing.svg();
}

inline std::string curve_chart(const CurvePlot& plot) {
  constexpr double kPlotHeight = 190;
  std::vector<double> xs, ys;
  for (const Curve& curve : plot.curves) {
    for (const CurvePoint& point : curve.points) {
      xs.push_back(point.x);
      ys.push_back(point.y);
    }
  }
  const bool has_legend = plot.curves.size() > 1;
  const double legend_height = has_legend ? 16.0 * static_cast<double>(plot.curves.size()) : 0.0;
  detail::Drawing drawing(kPlotHeight + 34 + legend_height, plot.title);
  if (xs.empty()) {
    drawing.text(detail::kChartWidth / 2, kPlotHeight / 2, "not measured", "tick", "middle");
    return drawing.svg();
  }
  ys.push_back(0);  // rates and times are read from 0
  const auto [x_low, x_high] = detail::value_range(xs);
  const auto [y_low, y_high] = detail::value_range(ys);
  const detail::Axis x{x_low, x_high, 44, detail::kChartWidth - 10};
  const detail::Axis y{y_low, y_high, kPlotHeight, 20};
  detail::draw_axes(drawing, x, y, plot.x_label, plot.y_label);
  for (std::size_t i = 0; i < plot.curves.size(); ++i) {
    const Curve& curve = plot.curves[i];
    std::vector<std::pair<double, double>> points;
    for (const CurvePoint& point : curve.points) points.emplace_back(x(point.x), y(point.y));
    if (points.size() > 1) drawing.path(points, detail::series_class("curve", i));
    for (std::size_t p = 0; p < points.size(); ++p) {
      const CurvePoint& point = curve.points[p];
      drawing.circle(
          points[p].first, points[p].second, 3, detail::series_class("dot", i),
          detail::concat(curve.name, ": ", short_number(point.x), ", ", short_number(point.y)));
      if (point.label.empty()) continue;
      const bool is_right = points[p].first > 0.8 * detail::kChartWidth;
      drawing.text(points[p].first + (is_right ? -6 : 6), points[p].second - 5, point.label, "tick",
                   is_right ? "end" : "start");
    }
    if (!has_legend) continue;
    const double row = kPlotHeight + 44 + 16.0 * static_cast<double>(i);
    drawing.rectangle(46, row - 8, 10, 10, detail::series_class("bar", i));
    drawing.text(62, row + 1, curve.name, "ink");
  }
  return drawing.svg();
}

inline std::string roofline_chart(const Roofline& roofline) {
  constexpr double kPlotHeight = 200;
  const double legend_height = 16.0 * static_cast<double>(roofline.points.size());
  detail::Drawing drawing(kPlotHeight + 36 + legend_height, roofline.title);
  if (!(roofline.compute_limit > 0 && roofline.read_limit > 0)) {
    drawing.text(detail::kChartWidth / 2, kPlotHeight / 2, "not measured", "tick", "middle");
    return drawing.svg();
  }
  const double ridge = roofline.compute_limit / roofline.read_limit;
  double x_low = ridge / 4, x_high = ridge * 4, y_low = roofline.compute_limit / 4;
  for (const Roofline::Point& point : roofline.points) {
    x_low = std::min(x_low, point.operations_per_byte / 2);
    x_high = std::max(x_high, point.operations_per_byte * 2);
    y_low = std::min(y_low, point.gops / 2);
  }
  y_low = std::min(y_low, x_low * roofline.read_limit);
  const detail::Axis x{x_low, x_high, 44, detail::kChartWidth - 10, true};
  const detail::Axis y{y_low, roofline.compute_limit * 1.6, kPlotHeight, 20, true};
  detail::draw_axes(drawing, x, y, "operations per byte of weights", "Gop/s");
  const double from = std::max(x_low, y_low / roofline.read_limit);
  const std::pair<double, double> roof[] = {{x(from), y(from * roofline.read_limit)},
                                            {x(ridge), y(roofline.compute_limit)},
                                            {x(x_high), y(roofline.compute_limit)}};
  drawing.path(roof, "roof");
  drawing.text(x.end, y(roofline.compute_limit) - 5,
               short_number(roofline.compute_limit) + " Gop/s", "tick", "end");
  drawing.text(x(from) + 5, y(from * roofline.read_limit) - 8,
               short_number(roofline.read_limit) + " GB/s", "tick");
  for (std::size_t i = 0; i < roofline.points.size(); ++i) {
    const Roofline::Point& point = roofline.points[i];
    drawing.circle(x(point.operations_per_byte), y(point.gops), 4.5,
                   detail::series_class("dot", i + 1), point.name);
    const double row = kPlotHeight + 46 + 16.0 * static_cast<double>(i);
    drawing.rectangle(4, row - 8, 10, 10, detail::series_class("bar", i + 1));
    const double roof_here =
        std::min(roofline.compute_limit, roofline.read_limit * point.operations_per_byte);
    drawing.text(20, row + 1,
                 detail::concat(point.name, ": ", short_number(point.gops), " Gop/s, ",
                                with_decimals(100 * point.gops / roof_here, 0), " % of the roof"),
                 "ink");
  }
  return drawing.svg();
}

}  // namespace kvick::inline v0_1
