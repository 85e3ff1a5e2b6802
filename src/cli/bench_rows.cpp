#include "cli/bench_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/cpu_cores.h"

namespace spate {
namespace {

using nlohmann::ordered_json;

ordered_json to_json(const BenchRow& row) {
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
  for (const BenchRow& row : rows) json.push_back(to_json(row));
  std::ofstream out(path);
  out << json.dump(2) << "\n";
  if (!out) return invalid_argument("--output-json: {} cannot be written", path);
  return ok_status();
}

std::vector<BenchRow> limit_rows(const CpuLimits& limits, const std::string& command) {
  std::vector<BenchRow> rows;
  const auto add = [&](const char* name, double value, const char* unit) {
    if (value <= 0) return;
    rows.push_back({.name = fmt::format("cpu/limits/{}", name), .value = value, .unit = unit, .command = command});
  };
  add("memory-read", limits.memory_bytes_per_s / 1e9, "GB/s");
  add("fma-f32", limits.fp32_flops_per_s / 1e9, "GFLOP/s");
  add("vector-int8", limits.vector_int8_ops_per_s / 1e9, "GOP/s");
  add("amx-bf16", limits.amx_bf16_flops_per_s / 1e9, "GFLOP/s");
  add("amx-int8", limits.amx_int8_ops_per_s / 1e9, "GOP/s");
  add("amx-bf16-registers", limits.amx_bf16_register_flops_per_s / 1e9, "GFLOP/s");
  add("amx-int8-registers", limits.amx_int8_register_ops_per_s / 1e9, "GOP/s");
  return rows;
}

int compute_threads(const ModelArguments& arguments) {
  if (arguments.threads > 0) return arguments.threads;
  return static_cast<int>(usable_cores().size());
}

double float_flops(const CpuLimits& limits) { return std::max(limits.amx_bf16_flops_per_s, limits.fp32_flops_per_s); }

double matmul_flops(const CpuLimits& limits, const Quantization& quantization) {
  if (!quantization.enabled()) return float_flops(limits);
  return std::max({limits.amx_int8_ops_per_s, limits.vector_int8_ops_per_s, float_flops(limits)});
}

}  // namespace spate
