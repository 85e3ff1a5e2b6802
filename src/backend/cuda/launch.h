// Kernel launches, and the record of them that a fatal error prints.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel_list.h"

namespace spate::cuda {

struct LaunchGrid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
  int num_threads = 0;  // a CTA
  // Its CTAs may stand on the SMs before the kernel ahead has ended, where the device can do that. Kernels that fill
  // the SMs lose by it: they take the room of those ahead that still have CTAs to place.
  bool is_early = true;
  // Its dependents start when all its CTAs have their inputs (primitive/grid_dependency.h): whatever ran before it has
  // ended by then.
  bool launches_late = false;
  // So many CTAs along x run at once and reach each other's shared memory (kernel/primitive/cluster.h); x is a
  // multiple. More than 1 only where CudaDevice::launches_early().
  int cluster = 1;
  // Of dynamic shared memory, at most that of kKernels; -1: all of it.
  int shared_bytes = -1;
};

// A size that the record names: {"num_tokens", 17}. `name` is a literal.
struct NamedSize {
  const char* name;
  int64_t value;
};

void launch_kernel(Stream& stream, KernelId kernel, const LaunchGrid& grid, const void* params,
                   std::initializer_list<NamedSize> sizes);

// Puts a kernel with one struct as its parameter on the stream. A refused launch is fatal.
template <typename Params>
void launch(Stream& stream, KernelId kernel, const LaunchGrid& grid, const Params& params,
            std::initializer_list<NamedSize> sizes) {
  launch_kernel(stream, kernel, grid, &params, sizes);
}

// Stops the program when a driver call failed: what was tried, the driver's words, and this thread's last launches.
void check_driver(const DriverApi& api, CUresult result, const char* what);

// The last launches of this thread, newest first, a line each: "rope_bf16 grid 17 x 1, 128 threads: num_tokens 17".
std::string last_launches();
// Makes a failed CHECK print them.
void install_failure_hook();

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Threads for work items that a CTA strides over: a multiple of 32, at most `limit`.
constexpr int num_threads_for(int64_t num_items, int limit) {
  const int64_t rounded = ceil_div(num_items < 1 ? 1 : num_items, 32) * 32;
  return static_cast<int>(rounded < limit ? rounded : limit);
}

}  // namespace spate::cuda
