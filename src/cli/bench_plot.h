// Results of benches as pictures: SVG documents for light and dark pages.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench_rows.h"

namespace spate {

// A bar for each row that has a limit, from 0 to 100 % of it, with a tick at its goal.
std::string plot_shares(const std::string& title, const std::vector<BenchRow>& rows);
// The latencies of one run of a load. A value that is not above 0 was not measured.
struct LatencyPoint {
  std::string load;              // "4/s", "16"
  double output_throughput = 0;  // tokens/s
  double ttft_ms_median = 0, ttft_ms_p99 = 0;
  double itl_ms_median = 0, itl_ms_p99 = 0;
};
// Two panels, TTFT and ITL: median and p99 in milliseconds on a logarithmic axis over the loads, which stand at equal
// distances with the throughput that was reached below them.
std::string plot_latency(const std::string& title, const std::vector<LatencyPoint>& points);

// The error names --plot.
Status write_svg(const std::string& path, const std::string& svg);
// plot_shares() to a file. An empty path: nothing is written.
Status write_plot(const std::string& path, const std::string& title, const std::vector<BenchRow>& rows);

}  // namespace spate
