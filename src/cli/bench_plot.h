// plot_shares(): a table of bench rows as a picture: how much of its limit each row reaches.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench_rows.h"

namespace spate {

// An SVG document: a bar a row that has a limit, from 0 to 100 % of it, a tick at its goal. Light and dark pages.
std::string plot_shares(const std::string& title, const std::vector<BenchRow>& rows);
// To a file. An empty path: nothing is written.
Status write_plot(const std::string& path, const std::string& title, const std::vector<BenchRow>& rows);

}  // namespace spate
