// All kernels of this back-end compiled ahead of time, and what they use. Needs NVRTC, no GPU.
#pragma once

#include "backend/kernel_resources.h"

namespace spate {

// BackEnd::compile_kernels. Errors: NVRTC is missing, the folder cannot be written, a kernel does not compile.
Result<std::vector<KernelResources>> compile_cuda_kernels(const KernelCompileOptions& options);

}  // namespace spate
