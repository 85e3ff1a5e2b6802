#include "cli/bench_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/cpu_cores.h"
#include "cli/llm_arguments.h"

namespace spate {
namespace {

using nlohmann::ordered_json;

ordered_json row_json(const BenchRow& row) {
  ordered_json json{{"name", row.name}, {"value", row.value}, {"unit", row.unit}};
  if (row.time_us > 0) json["time_us"] = row.time_us;
  if (row.limit > 0) {
    json["limit"] = row.limit;
    json["share"] = row.value / row.limit;
  }
  if (row.goal > 0) json["goal"] = row.goal;
  json["command"] = row.command;
  return json;
}

}  // namespace

void print_row(const BenchRow& row) {
  std::printf("%-56s", row.name.c_str());
  if (row.time_us > 0) std::printf(" %10.1f us", row.time_us);
  std::printf(" %12.1f %-8s", row.value, row.unit.c_str());
  if (row.limit > 0) std::printf("  limit %12.1f  share %5.1f %%", row.limit, 100 * row.value / row.limit);
  if (row.goal > 0) std::printf("  goal %10.1f", row.goal);
  std::printf("\n");
  std::fflush(stdout);
}

Status write_rows(const std::string& path, const std::vector<BenchRow>& rows) {
  if (path.empty()) return ok_status();
  ordered_json json = ordered_json::array();
  for (const BenchRow& row : rows) json.push_back(row_json(row));
  std::ofstream out(path);
  out << json.dump(2) << "\n";
  if (!out) return invalid_argument("--output-json: {} cannot be written", path);
  return ok_status();
}

MachineLimits measure_limits(const BackEnd& back_end, const ModelArguments& arguments) {
  if (back_end.measure_limits == nullptr) return {};
  DeviceOptions options = device_options(arguments);
  options.num_threads = compute_threads(arguments);
  return back_end.measure_limits(options);
}

std::vector<BenchRow> limit_rows(const BackEnd& back_end, const MachineLimits& limits, const std::string& command) {
  std::vector<BenchRow> rows;
  for (const MachineLimits::Rate& rate : limits.rates) {
    if (rate.per_s <= 0) continue;
    rows.push_back({.name = fmt::format("{}/limits/{}", back_end.name, rate.name),
                    .value = rate.per_s / 1e9,
                    .unit = rate.giga_unit,
                    .command = command});
  }
  return rows;
}

int compute_threads(const ModelArguments& arguments) {
  return arguments.threads > 0 ? arguments.threads : default_num_threads();
}

double matmul_flops(const MachineLimits& limits, const Quantization& quantization) {
  return quantization.linear.quantizes_activations() ? limits.int8_ops_per_s : limits.float_flops_per_s;
}

}  // namespace spate
