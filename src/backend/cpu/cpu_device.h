// The CPU back-end: bf16, f32, int8 or int4 weights, fp32 sums (i32 inside a group of an integer weight), AVX2, AVX-512 with
// VNNI or AMX by cpuid, threads of its own.
//
// Every op is batch-invariant: a row's bits depend on that row and the instruction set alone, not on the batch, the number of
// threads or the cut of a prompt into chunks; DeviceOptions::deterministic changes nothing. Ops run before their call returns.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace spate {

// num_threads 0: as many as the cores that this process may use. isa: a cap, "" for the best.
Result<std::unique_ptr<Device>> make_cpu_device(const DeviceOptions& options);

}  // namespace spate
