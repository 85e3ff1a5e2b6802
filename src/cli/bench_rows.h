// BenchRow: what every bench prints and writes (docs/architecture.md), and the limits of the machine that its shares
// compare with.
#pragma once

#include <string>
#include <vector>

#include "backend/registry/registry.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "quant/quantization.h"

namespace spate {

struct BenchRow {
  std::string name;
  double value = 0;
  std::string unit;
  double limit = 0;  // 0: none was measured
  double goal = 0;   // 0: none was asked for
  std::string command;
  double time_us = 0;  // of one call, where that is what was measured; else 0
};

void print_row(const BenchRow& row);
// A JSON array. An empty path: nothing is written.
Status write_rows(const std::string& path, const std::vector<BenchRow>& rows);

// Empty where the back-end measures no limits.
MachineLimits measure_limits(const BackEnd& back_end, const ModelArguments& arguments);
std::vector<BenchRow> limit_rows(const BackEnd& back_end, const MachineLimits& limits, const std::string& command);
int compute_threads(const ModelArguments& arguments);  // --threads, or as many as the device takes

// The arithmetic that products of a model's weights can use at best.
double matmul_flops(const MachineLimits& limits, const Quantization& quantization);

// The shortest time that a machine needs for some work: to move the bytes or to compute, whichever takes longer.
struct Roofline {
  double memory_s = 0;
  double arithmetic_s = 0;
  bool is_memory_bound() const { return memory_s >= arithmetic_s; }
  double seconds() const { return is_memory_bound() ? memory_s : arithmetic_s; }
};

}  // namespace spate
