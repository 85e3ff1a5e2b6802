#include "cli/bench_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace spate {
namespace {

// In pixels.
constexpr int kNameWidth = 330, kBarWidth = 400, kValueWidth = 190, kRowHeight = 22, kHeaderHeight = 52, kMargin = 10;

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

bool has_share(const BenchRow& row) { return row.limit > 0 && std::isfinite(row.value / row.limit); }

// Where a share ends; what is above its limit, or below nothing, stays inside the picture.
double bar_end(double share) { return kBarWidth * std::clamp(share, 0.0, 1.0); }

}  // namespace

std::string plot_shares(const std::string& title, const std::vector<BenchRow>& rows) {
  const auto num_rows = static_cast<int>(std::count_if(rows.begin(), rows.end(), has_share));
  const int width = kNameWidth + kBarWidth + kValueWidth + 2 * kMargin;
  const int bottom = kHeaderHeight + num_rows * kRowHeight;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n"
      "<title>{2}</title>\n"
      "<style>text{{font:12px sans-serif;fill:#222}} .bar{{fill:#3b7dd8}} .goal{{stroke:#d0492b;stroke-width:2}} "
      ".grid{{stroke:#8886}} @media (prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n",
      width, bottom + kMargin, escape_xml(title));
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

Status write_plot(const std::string& path, const std::string& title, const std::vector<BenchRow>& rows) {
  if (path.empty()) return ok_status();
  std::ofstream out(path);
  out << plot_shares(title, rows);
  out.close();
  if (!out) return invalid_argument("--plot: {} cannot be written", path);
  return ok_status();
}

}  // namespace spate
