#include "cli/bench_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

namespace spate {
namespace {

// In pixels.
constexpr int kNameWidth = 330, kBarWidth = 400, kValueWidth = 190, kRowHeight = 22, kHeaderHeight = 52, kMargin = 10;
constexpr int kAxisWidth = 80, kLoadWidth = 100, kPanelHeight = 180;

std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    }
  }
  return out;
}

std::string text_at(double x, double y, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\"{}>{}</text>\n", x, y, more, escape_xml(text));
}

std::string begin_svg(int width, int height, const std::string& title, std::string_view style) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n"
      "<title>{2}</title>\n"
      "<style>text{{font:12px sans-serif;fill:#222}} {3} .grid{{stroke:#8886}} "
      "@media (prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n",
      width, height, escape_xml(title), style);
}

bool has_share(const BenchRow& row) { return row.limit > 0 && std::isfinite(row.value / row.limit); }

// Where a share ends; what is above its limit, or below nothing, stays inside the picture.
double bar_end(double share) { return kBarWidth * std::clamp(share, 0.0, 1.0); }

// Milliseconds on a logarithmic axis whose ends are 1, 2 or 5 times a power of ten.
struct LogAxis {
  double low = 1, high = 10;
  double y_low = 0, y_high = 0;  // pixels
  double y(double value) const { return y_low + (y_high - y_low) * std::log(value / low) / std::log(high / low); }
};

bool is_measured(double value) { return std::isfinite(value) && value > 0; }

// Of 1, 2, 5 times powers of ten: the largest that is at most `value`.
double round_down(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  const double digit = value / power;
  return (digit >= 5 ? 5 : digit >= 2 ? 2 : 1) * power;
}

double next_tick(double tick) { return round_down(tick * 2.6); }  // 1 -> 2, 2 -> 5, 5 -> 10

struct Curve {
  const char* label;
  const char* style;  // class
  double LatencyPoint::*value;
};

std::string draw_curve(const Curve& curve, const std::vector<LatencyPoint>& points, const LogAxis& axis, double left) {
  std::string line, marks;
  for (size_t i = 0; i < points.size(); ++i) {
    const double value = points[i].*curve.value;
    if (!is_measured(value)) continue;
    const double x = left + kLoadWidth * (static_cast<double>(i) + 0.5), y = axis.y(value);
    line += fmt::format("{:.1f},{:.1f} ", x, y);
    marks +=
        fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{} {:.1f} ms</title></circle>\n",
                    curve.style, x, y, curve.label, value);
  }
  if (line.empty()) return "";
  return fmt::format("<polyline class=\"{}\" points=\"{}\"/>\n", curve.style, line) + marks;
}

// A panel of `curves` below its name, from y = top.
std::string draw_panel(const std::string& name, const std::vector<Curve>& curves,
                       const std::vector<LatencyPoint>& points, double top) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Curve& curve : curves) {
    for (const LatencyPoint& point : points) {
      if (!is_measured(point.*curve.value)) continue;
      low = std::min(low, point.*curve.value);
      high = std::max(high, point.*curve.value);
    }
  }
  std::string svg = text_at(kMargin, top + 12, name, " font-weight=\"bold\"");
  if (high == 0) return svg + text_at(kAxisWidth, top + 32, "nothing was measured");
  LogAxis axis{
      .low = round_down(low), .high = next_tick(round_down(high)), .y_low = top + kPanelHeight, .y_high = top + 24};
  const double right = kAxisWidth + kLoadWidth * static_cast<double>(points.size());
  for (double tick = axis.low; tick < axis.high * 1.01; tick = next_tick(tick)) {
    svg += fmt::format("<line class=\"grid\" x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2:.0f}\" y2=\"{1:.1f}\"/>\n", kAxisWidth,
                       axis.y(tick), right);
    svg += text_at(kAxisWidth - 6, axis.y(tick) + 4, fmt::format("{:g} ms", tick), " text-anchor=\"end\"");
  }
  for (const Curve& curve : curves) svg += draw_curve(curve, points, axis, kAxisWidth);
  return svg;
}

}  // namespace

std::string plot_latency(const std::string& title, const std::vector<LatencyPoint>& points) {
  const int width = kAxisWidth + kLoadWidth * std::max<int>(4, static_cast<int>(points.size())) + kMargin;
  const int panel_step = kPanelHeight + 24, labels_top = kHeaderHeight + 2 * panel_step;
  std::string svg = begin_svg(width, labels_top + 44, title,
                              ".median,.p99{stroke-width:2;fill:none} .median{stroke:#3b7dd8} .p99{stroke:#d0492b}");
  svg += text_at(kMargin, 20, title, " font-weight=\"bold\"");
  int x = kAxisWidth;
  for (const char* style : {"median", "p99"}) {
    svg += fmt::format("<line class=\"{0}\" x1=\"{1}\" y1=\"36\" x2=\"{2}\" y2=\"36\"/>\n", style, x, x + 24);
    svg += text_at(x + 30, 40, style);
    x += 100;
  }
  svg += draw_panel(
      "TTFT",
      {{"TTFT median", "median", &LatencyPoint::ttft_ms_median}, {"TTFT p99", "p99", &LatencyPoint::ttft_ms_p99}},
      points, kHeaderHeight);
  svg += draw_panel(
      "ITL", {{"ITL median", "median", &LatencyPoint::itl_ms_median}, {"ITL p99", "p99", &LatencyPoint::itl_ms_p99}},
      points, kHeaderHeight + panel_step);
  for (size_t i = 0; i < points.size(); ++i) {
    const double middle = kAxisWidth + kLoadWidth * (static_cast<double>(i) + 0.5);
    svg += text_at(middle, labels_top + 12, points[i].load, " text-anchor=\"middle\"");
    svg += text_at(middle, labels_top + 30, fmt::format("{:.0f} tok/s", points[i].output_throughput),
                   " text-anchor=\"middle\"");
  }
  return svg + "</svg>\n";
}

std::string plot_shares(const std::string& title, const std::vector<BenchRow>& rows) {
  const auto num_rows = static_cast<int>(std::count_if(rows.begin(), rows.end(), has_share));
  const int width = kNameWidth + kBarWidth + kValueWidth + 2 * kMargin;
  const int bottom = kHeaderHeight + num_rows * kRowHeight;
  std::string svg =
      begin_svg(width, bottom + kMargin, title, ".bar{fill:#3b7dd8} .goal{stroke:#d0492b;stroke-width:2}");
  const int left = kMargin + kNameWidth;
  svg += text_at(kMargin, 20, title, " font-weight=\"bold\"");
  for (const int percent : {0, 25, 50, 75, 100}) {
    const double x = left + kBarWidth * percent / 100.0;
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.0f}\" y1=\"{1}\" x2=\"{0:.0f}\" y2=\"{2}\"/>\n", x, kHeaderHeight,
                       bottom);
    svg += text_at(x, kHeaderHeight - 8, fmt::format("{} %", percent), " text-anchor=\"middle\"");
  }
  int y = kHeaderHeight;
  for (const BenchRow& row : rows) {
    if (!has_share(row)) continue;
    const double share = row.value / row.limit;
    svg += text_at(left - 6, y + 15, row.name, " text-anchor=\"end\"");
    svg += fmt::format("<rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"/>\n", left, y + 4,
                       bar_end(share), kRowHeight - 8);
    if (row.goal > 0 && row.goal <= row.limit) {
      const double x = left + bar_end(row.goal / row.limit);
      svg += fmt::format("<line class=\"goal\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>\n", x, y + 1,
                         y + kRowHeight - 1);
    }
    svg += text_at(left + kBarWidth + 8, y + 15, fmt::format("{:.1f} {}, {:.0f} %", row.value, row.unit, 100 * share));
    y += kRowHeight;
  }
  return svg + "</svg>\n";
}

Status write_svg(const std::string& path, const std::string& svg) {
  std::ofstream out(path);
  out << svg;
  out.close();
  if (!out) return invalid_argument("--plot: {} cannot be written", path);
  return ok_status();
}

Status write_plot(const std::string& path, const std::string& title, const std::vector<BenchRow>& rows) {
  if (path.empty()) return ok_status();
  return write_svg(path, plot_shares(title, rows));
}

}  // namespace spate
