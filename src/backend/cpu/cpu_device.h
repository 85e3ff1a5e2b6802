// The CPU back-end: bf16, f32, int8 or int4 weights, fp32 sums (i32 inside a group of an integer weight), the best
// instruction set of the machine, threads of its own.
//
// Every op is batch-invariant: a row's bits depend on that row and the instruction set alone, not on the batch, the
// number of threads or the cut of a prompt into chunks. DeviceOptions::deterministic only keeps latent attention in its
// absorbed form (min_expanded_query_len). Ops run before their call returns.
#pragma once

#include <memory>
#include <string_view>

#include "backend/backend.h"
#include "base/topology.h"

namespace spate {

// What DeviceOptions::isa may be, the better behind the others. The first is the baseline of the program.
#ifdef __aarch64__
inline constexpr std::string_view kCpuInstructionSets[] = {"neon", "neondot", "neoni8mm", "neonbf16"};
#else
inline constexpr std::string_view kCpuInstructionSets[] = {"avx2", "avxvnni", "avx512", "avx512bf16", "amx"};
#endif

// num_threads 0: default_num_threads() (base/cpu_cores.h). isa: a cap, "" for the best.
// On several nodes of memory threads stay on the nodes of the calling thread's cores even if core_ids is empty, and
// weights lie where the threads that decode read them.
Result<std::unique_ptr<Device>> make_cpu_device(const DeviceOptions& options);
// On a part of the machine, or for tests on another one.
Result<std::unique_ptr<Device>> make_cpu_device_on(const Topology& topology, const DeviceOptions& options);

}  // namespace spate
