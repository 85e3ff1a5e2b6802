// bench_plot_test.cpp
//
// Goal     A table of shares becomes a picture that any XML reader takes, and no row can leave it or break it.
// Method   Rows at the edges; the text is read back by its elements.
#include "cli/bench_plot.h"

#include <cmath>
#include <filesystem>

#include "base/test.h"

namespace spate {
namespace {

size_t count(const std::string& text, std::string_view part) {
  size_t num = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++num;
  return num;
}

TEST_CASE("a plot has a bar for each row with a limit, and a tick for its goal") {
  const std::string svg =
      plot_shares("two cores", {{.name = "cpu/limits/memory", .value = 30, .unit = "GB/s"},
                                {.name = "a", .value = 25, .unit = "tok/s", .limit = 50, .goal = 40},
                                {.name = "b", .value = 10, .unit = "tok/s", .limit = 40}});
  CHECK(count(svg, "<rect class=\"bar\"") == 2);
  CHECK(count(svg, "<line class=\"goal\"") == 1);
  CHECK(svg.find("width=\"200.0\"") != std::string::npos);  // 50 % of 400
  CHECK(svg.find("width=\"100.0\"") != std::string::npos);
  CHECK(svg.find("25.0 tok/s, 50 %") != std::string::npos);
  CHECK(svg.find("memory") == std::string::npos);
}

TEST_CASE("names are text, and figures beyond the limit stay in the picture") {
  const std::string svg =
      plot_shares("<a> & \"b\"", {{.name = "</text><script>x\x01", .value = 90, .unit = "u", .limit = 60, .goal = 70},
                                  {.name = "nan", .value = std::nan(""), .unit = "u", .limit = 60}});
  CHECK(svg.find("<script>") == std::string::npos);
  CHECK(svg.find("&lt;a&gt; &amp; &quot;b&quot;") != std::string::npos);
  CHECK(svg.find('\x01') == std::string::npos);
  CHECK(svg.find("width=\"400.0\"") != std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(count(svg, "<text") == count(svg, "</text>"));
}

TEST_CASE("a plot that cannot be written names its file") {
  CHECK(write_plot("", "t", {}).ok());
  const Status status = write_plot("/nonexistent/plot.svg", "t", {});
  CHECK(status.message() == "--plot: /nonexistent/plot.svg cannot be written");
}

}  // namespace
}  // namespace spate
