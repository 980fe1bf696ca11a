// SPDX-License-Identifier: MIT
// A report as one page: style, plots and data within, nothing to load, no script that runs.
//
// Light and dark follow the reader's system; figures stand side by side where there is room, and
// one below the other on a phone; wide tables scroll within themselves. The report as JSON is part
// of the page, in an element with the id kvick-report.
//
// Layer     bench: may include core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kvick/bench/charts.hpp"
#include "kvick/bench/report.hpp"

namespace kvick::inline v0_1 {

inline std::string html_report(const Report& report);

// ---- Implementation: nothing below is API ----

namespace detail {

inline constexpr std::string_view kReportStyle = R"css(
:root{color-scheme:light dark;--page:#f6f5f2;--card:#fff;--ink:#1d2026;--muted:#636873;
--grid:#e4e2dc;
--track:#eeece7;--c0:#2f6bd8;--c1:#d4572a;--c2:#12876a;--c3:#8250c4;--c4:#b07a00;--c5:#c0356d}
@media(prefers-color-scheme:dark){:root{--page:#121418;--card:#1b1e24;--ink:#e9e7e2;
--muted:#9ba1ac;
--grid:#333842;--track:#262a32;--c0:#6ea0ff;--c1:#ff8f66;--c2:#45c9a2;--c3:#bd93f5;--c4:#e5b64a;
--c5:#f57fab}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1160px;margin:0 auto;padding:28px 16px 48px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}h2{font-size:20px;margin:36px 0 12px}
h3{font-size:15px;margin:0 0 10px}p{margin:8px 0}.note,.sub{color:var(--muted)}
.sub{margin:0 0 20px;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:12px;
align-items:start}
.card{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:14px 16px;
margin:0;min-width:0}
.grid figure{max-width:560px}
.tile b{display:block;font-size:24px;line-height:1.3;font-weight:650}.tile i{font-size:14px;
font-style:normal;font-weight:400}.tile span{color:var(--muted);font-size:14px}
.tile small{display:block;font-size:13px;color:var(--muted)}
figcaption{font-weight:600;font-size:15px;margin-bottom:8px}
svg{display:block;width:100%;height:auto;font-size:11px;overflow:visible}
svg .ink{fill:var(--ink)}svg .value{fill:var(--ink);font-weight:600}
svg .tick{fill:var(--muted);font-size:10px}svg .label{fill:var(--muted)}
svg .grid{stroke:var(--grid)}svg .axis{stroke:var(--muted)}svg .track{fill:var(--track)}
svg .whisker{stroke:var(--ink);stroke-width:1.5}svg .limit{stroke:var(--c1);stroke-width:2.5}
svg .mark{stroke:var(--c1);stroke-dasharray:3 2}svg .curve{fill:none;stroke-width:2}
svg .roof{fill:none;stroke:var(--muted);stroke-width:2}
svg .dot{stroke:var(--card);stroke-width:1}
.bar.s0,.dot.s0{fill:var(--c0)}.bar.s1,.dot.s1{fill:var(--c1)}.bar.s2,.dot.s2{fill:var(--c2)}
.bar.s3,.dot.s3{fill:var(--c3)}.bar.s4,.dot.s4{fill:var(--c4)}.bar.s5,.dot.s5{fill:var(--c5)}
.curve.s0{stroke:var(--c0)}.curve.s1{stroke:var(--c1)}.curve.s2{stroke:var(--c2)}
.curve.s3{stroke:var(--c3)}.curve.s4{stroke:var(--c4)}.curve.s5{stroke:var(--c5)}
.scroll{overflow-x:auto}h3:not(:first-child),.scroll+.scroll{margin-top:20px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--grid);
white-space:nowrap}
th{color:var(--muted);font-weight:500}tr:last-child td{border-bottom:0}
dl{display:grid;grid-template-columns:minmax(90px,auto) 1fr;gap:4px 14px;margin:0;font-size:14px}
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}
)css";

inline std::string html_table(const TextRows& rows) {
  std::string html = "<div class=\"scroll\"><table>";
  for (const auto& row : rows) {
    const std::string_view cell_name = &row == &rows.front() ? "th" : "td";
    html += "<tr>";
    for (const std::string& cell : row) {
      html += concat("<", cell_name, ">", escape_markup(cell), "</", cell_name, ">");
    }
    html += "</tr>";
  }
  return html + "</table></div>";
}

inline std::string html_card(std::string_view caption, const std::string& content) {
  return concat("<figure class=\"card\"><figcaption>", escape_markup(caption), "</figcaption>",
                content, "</figure>");
}

/// One chart of bars per unit, and for those with limits, in the order they first appear.
inline std::string bar_cards(const ReportSection& section) {
  std::vector<std::vector<Measurement>> groups;
  for (const Measurement& measurement : section.measurements) {
    const auto same_unit = [&](const auto& group) {
      return group.front().unit == measurement.unit &&
             group.front().limits.empty() == measurement.limits.empty();
    };
    auto group = std::find_if(groups.begin(), groups.end(), same_unit);
    if (group == groups.end()) group = groups.insert(groups.end(), std::vector<Measurement>());
    group->push_back(measurement);
  }
  std::string html;
  for (const auto& group : groups) {
    const Measurement& first = group.front();
    html += html_card(
        first.limits.empty()
            ? first.unit + (first.more_is_better ? ", more is better" : ", less is better")
            : first.unit + ", and share of the machine's limit",
        bar_chart(group));
  }
  return html;
}

inline std::string html_section(const ReportSection& section) {
  std::string html = concat("<section><h2>", escape_markup(section.title), "</h2>");
  if (!section.note.empty()) html += "<p class=\"note\">" + escape_markup(section.note) + "</p>";
  html += "<div class=\"grid\">" + bar_cards(section);
  for (const CurvePlot& plot : section.curves) html += html_card(plot.title, curve_chart(plot));
  for (const Roofline& roofline : section.rooflines) {
    html += html_card(roofline.title, roofline_chart(roofline));
  }
  for (const Distribution& distribution : section.distributions) {
    html += html_card(concat(distribution.name, ", ", distribution.samples.size(), " samples"),
                      histogram(distribution));
  }
  html += "</div>";
  std::string tables;
  for (const TextRows& rows : {measurement_rows(section), distribution_rows(section)}) {
    if (!rows.empty()) tables += html_table(rows);
  }
  for (const ReportTable& table : section.tables) {
    if (!table.title.empty()) tables += "<h3>" + escape_markup(table.title) + "</h3>";
    tables += html_table(table.rows);
  }
  if (!tables.empty()) {
    html += "<div class=\"card\" style=\"margin-top:12px\">" + tables + "</div>";
  }
  return html + "</section>";
}

/// The headline of each section that has one.
inline std::string html_tiles(const Report& report) {
  std::string html;
  for (const ReportSection& section : report.sections) {
    if (section.headline >= section.measurements.size()) continue;
    const Measurement& m = section.measurements[section.headline];
    if (m.samples.empty()) continue;
    const auto share = m.share_of_limit();
    html += concat("<div class=\"card tile\"><span>", escape_markup(section.title), "</span><b>",
                   short_number(spread_of(m.samples).median), " <i>", escape_markup(m.unit),
                   "</i></b><small>", escape_markup(m.name));
    if (share) {
      html += concat(", ", with_decimals(100 * share->median, 0), " % of ",
                     escape_markup(m.limit_name));
    }
    html += "</small></div>";
  }
  return html.empty() ? html : "<div class=\"tiles\">" + html + "</div>";
}

inline std::string html_facts(const Report& report) {
  std::string html = "<section><h2>How it was measured</h2><div class=\"grid\">";
  for (const FactGroup& group : report.facts) {
    html += "<div class=\"card\"><h3>" + escape_markup(group.name) + "</h3><dl>";
    for (const auto& [name, value] : group.facts) {
      html += concat("<dt>", escape_markup(name), "</dt><dd>", escape_markup(value), "</dd>");
    }
    html += "</dl></div>";
  }
  return html + "</div></section>";
}

/// JSON that cannot end the element it stands in.
inline std::string embedded_json(const Report& report) {
  std::string escaped;
  for (const char c : report.to_json()) {
    if (c == '<') {
      escaped += "\\u003c";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

/// "CPU, instruction set, threads" of the facts of the machine.
inline std::string subtitle(const Report& report) {
  std::string text;
  for (const FactGroup& group : report.facts) {
    if (group.name != "machine" && group.name != "model") continue;
    for (const auto& [name, value] : group.facts) {
      if (name != "cpu" && name != "name") continue;
      text += (text.empty() ? "" : "; ") + value;
    }
  }
  return text;
}

}  // namespace detail

inline std::string html_report(const Report& report) {
  std::string html = detail::concat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>",
      escape_markup(report.title), "</title><style>", detail::kReportStyle,
      "</style></head>\n<body><main><h1>", escape_markup(report.title), "</h1><p class=\"sub\">",
      escape_markup(detail::subtitle(report)), "</p>", detail::html_tiles(report));
  for (const ReportSection& section : report.sections) html += detail::html_section(section) + "\n";
  html += detail::html_facts(report);
  return html + "</main><script type=\"application/json\" id=\"kvick-report\">" +
         detail::embedded_json(report) + "</script></body></html>\n";
}

}  // namespace kvick::inline v0_1
