// bench_runs_test.cpp
//
// Goal     A row of spate bench table (--row-seconds) is the median of its runs behind a warm-up, within its time, and
//          has a figure even where one run takes longer than all of it.
// Method   Runs of invented durations; the figure of a run is its number.
#include "cli/bench_runs.h"

#include <limits>

#include "base/test.h"

namespace spate {
namespace {

struct Row {
  std::vector<int> runs;  // that began
  double value = 0;
};

// Runs of these durations, the last of them again and again.
Row row_of(int num_runs, double row_s, const std::vector<double>& durations) {
  Row row;
  const Result<double> value = median_of_runs(
      num_runs, row_s,
      [&](int run_idx) -> Result<BenchTimes> {
        row.runs.push_back(run_idx);
        return BenchTimes{.total_s = durations[std::min(static_cast<size_t>(run_idx), durations.size() - 1)],
                          .num_output_tokens = run_idx};
      },
      [](const BenchTimes& times) { return static_cast<double>(times.num_output_tokens); });
  REQUIRE(value.ok());
  row.value = *value;
  return row;
}

using Runs = std::vector<int>;
constexpr double kUnboundedRow = std::numeric_limits<double>::infinity();

TEST_CASE("a row without a bound is the median of all runs but the first, which warms up") {
  const Row row = row_of(5, kUnboundedRow, {100, 1});
  CHECK(row.runs == Runs{0, 1, 2, 3, 4, 5});
  CHECK(row.value == 3);
}

TEST_CASE("a row begins no run that would end behind its time") {
  CHECK(row_of(5, 10, {2}).runs == Runs{0, 1, 2, 3, 4});  // the fifth ends at 10 s, a sixth would at 12
  CHECK(row_of(5, 10, {2}).value == 2.5);                 // of 1 to 4
  CHECK(row_of(5, 10, {4, 3}).runs == Runs{0, 1, 2});     // a slow warm-up counts as time, not as a figure
  CHECK(row_of(5, 10, {4, 3}).value == 1.5);
}

TEST_CASE("a row whose first run takes most of its time, or more, is that run") {
  for (const double seconds : {6.0, 10.0, 500.0}) {
    const Row row = row_of(3, 10, {seconds});
    CHECK(row.runs == Runs{0});
    CHECK(row.value == 0);
  }
  CHECK(row_of(3, 10, {5}).runs == Runs{0, 1});  // one that fits twice warms up
  CHECK(row_of(3, 10, {5}).value == 1);
}

TEST_CASE("a run that fails ends the row with its error") {
  int runs = 0;
  const auto fails = [&](int) -> Result<BenchTimes> {
    ++runs;
    return unavailable("no more");
  };
  CHECK(median_of_runs(3, 10, fails, [](const BenchTimes&) { return 1.0; }).status().message() == "no more");
  CHECK(runs == 1);
}

}  // namespace
}  // namespace spate
