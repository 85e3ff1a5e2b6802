// The CUDA back-end: the runtime table over the driver API, the primitives of the op catalogue as kernels that NVRTC
// compiles when a model needs them (cached on disk), weights row-major, the KV cache as kernel/kv/kv_layout.h says. Fused ops are
// null: models run through the decompositions. Decode has kernels whose order of sums depends on the step's sizes; with
// DeviceOptions::deterministic only batch-invariant ones run.
#pragma once

#include <optional>

#include "backend/backend.h"

namespace spate {

// BackEnd::run_worker.
std::optional<int> run_cuda_worker(int argc, char** argv);

// Whether make_cuda_device() can be expected to work: driver, device, its compute capability and NVRTC are there. Makes
// no context and loads no kernel, so it takes no memory of the GPU.
Status probe_cuda_device(const DeviceOptions& options);

// The GPU device_idx, or one line that says why there is none: "no CUDA driver: libcuda.so.1 was not found".
Result<std::unique_ptr<Device>> make_cuda_device(const DeviceOptions& options);

}  // namespace spate
