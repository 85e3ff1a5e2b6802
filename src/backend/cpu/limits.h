// The physical limits of this machine, measured: what speeds are compared with. Takes about two seconds.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "backend/machine_limits.h"

namespace spate {

struct CpuLimits {
  int num_threads = 0;
  std::string isa;                 // one of kCpuInstructionSets
  std::string vector_int8_name;    // "vnni-int8": what the rate of 8-bit products is listed as
  double memory_bytes_per_s = 0;   // reading 1 GiB in 2 MB pages: the faster of two ways
  double memory_write_bytes_per_s = 0;  // writing it past the caches
  double fp32_flops_per_s = 0;     // fused multiply-add of the widest vectors
  double vector_bf16_flops_per_s = 0;  // VDPBF16PS or BFMMLA; 0 without them, or with a cap below them
  double vector_int8_ops_per_s = 0;  // 8-bit products summed in 32 bits: VNNI, SMMLA, SDOT, else multiply, widen, add
  double amx_bf16_flops_per_s = 0;  // 2 x 2 tiles of numbers that come from L1, without which there is no product; 0 without AMX
  double amx_int8_ops_per_s = 0;
  double amx_bf16_register_flops_per_s = 0;  // the same tiles again and again; busy neighbours slow it down less
  double amx_int8_register_ops_per_s = 0;
};

// Each figure is the median of nine samples, taken in turn with the others: neighbours on the machine make single
// readings dip by up to 40 %. num_threads 0: all usable cores. isa: a cap as --isa; empty, or none of this machine:
// what it prefers.
CpuLimits measure_cpu_limits(int num_threads, const std::string& isa = "");

// The same figures as every back-end gives them.
MachineLimits measure_cpu_machine_limits(const DeviceOptions& options);

}  // namespace spate
