// The physical limits of a GPU, measured: what speeds are compared with. Takes about half a second, and a GiB of its
// memory where that is free.
#pragma once

#include "backend/backend.h"
#include "backend/machine_limits.h"

namespace spate {

// "memory-read" and the products of the tensor core in bf16 and 8-bit codes, from registers (mma.sync) and, on Hopper,
// from shared memory (wgmma). Empty, with a line in the log, where the GPU cannot be used.
MachineLimits measure_cuda_machine_limits(const DeviceOptions& options);

}  // namespace spate
