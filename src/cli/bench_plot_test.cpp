// bench_plot_test.cpp
//
// Goal     A table of shares, and latencies over load, become pictures that any XML reader takes; no row can leave or
//          break them.
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

// The numbers of `name` in the elements of `svg` that begin with `element`.
std::vector<double> attributes(const std::string& svg, const std::string& element, const std::string& name) {
  std::vector<double> values;
  for (size_t at = svg.find(element); at != std::string::npos; at = svg.find(element, at + 1)) {
    const size_t value = svg.find(name + "=\"", at);
    REQUIRE(value != std::string::npos);
    values.push_back(std::stod(svg.substr(value + name.size() + 2)));
  }
  return values;
}

TEST_CASE("latency over load: equal ratios are equal distances, higher latency is higher up, p99 is above the median") {
  const std::string svg = plot_latency("m", {{.load = "1/s",
                                              .output_throughput = 40,
                                              .ttft_ms_median = 10,
                                              .ttft_ms_p99 = 20,
                                              .itl_ms_median = 3,
                                              .itl_ms_p99 = 4},
                                             {.load = "2/s",
                                              .output_throughput = 80,
                                              .ttft_ms_median = 20,
                                              .ttft_ms_p99 = 40,
                                              .itl_ms_median = 3,
                                              .itl_ms_p99 = 5},
                                             {.load = "4/s",
                                              .output_throughput = 90,
                                              .ttft_ms_median = 80,
                                              .ttft_ms_p99 = 900,
                                              .itl_ms_median = 6,
                                              .itl_ms_p99 = 70}});
  const std::vector<double> median = attributes(svg, "<circle class=\"median\"", "cy"),
                            p99 = attributes(svg, "<circle class=\"p99\"", "cy");
  REQUIRE(median.size() == 6);  // three of TTFT, three of ITL
  REQUIRE(p99.size() == 6);
  CHECK(median[0] - median[1] == doctest::Approx((median[1] - median[2]) / 2).epsilon(0.01));
  CHECK(p99[0] == median[1]);  // 20 ms both
  for (size_t i = 0; i < 6; ++i) CHECK(p99[i] < median[i]);
  CHECK(median[0] - p99[2] < 180);  // inside a panel
  CHECK(count(svg, "<polyline") == 4);
  CHECK(svg.find(">10 ms<") != std::string::npos);
  CHECK(svg.find(">1000 ms<") != std::string::npos);
  CHECK(svg.find("TTFT p99 900.0 ms") != std::string::npos);
  CHECK(svg.find(">90 tok/s<") != std::string::npos);
}

TEST_CASE("latency over load: runs that measured nothing have no point, names are text") {
  const std::string svg = plot_latency("<m>", {{.load = "<1", .ttft_ms_median = 0.004, .ttft_ms_p99 = 0.004},
                                               {.load = "2", .ttft_ms_median = std::nan(""), .ttft_ms_p99 = 0}});
  CHECK(count(svg, "<circle") == 2);
  CHECK(svg.find("nothing was measured") != std::string::npos);  // of ITL
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
  CHECK(svg.find("&lt;1") != std::string::npos);
  CHECK(count(svg, "<text") == count(svg, "</text>"));
}

TEST_CASE("a plot that cannot be written names its file") {
  CHECK(write_plot("", "t", {}).ok());
  const Status status = write_plot("/nonexistent/plot.svg", "t", {});
  CHECK(status.message() == "--plot: /nonexistent/plot.svg cannot be written");
}

}  // namespace
}  // namespace spate
