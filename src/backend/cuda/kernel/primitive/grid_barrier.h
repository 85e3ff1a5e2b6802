// A barrier of all CTAs of a grid, and loads of what other CTAs of it have written. All CTAs stand on the SMs at once:
// one fits beside whatever ends by itself, and the next kernel's start after all of this one's have.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

__device__ inline float load_fresh(const float* address) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline uint64_t load_fresh(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__device__ inline uint64_t load_acquire(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

// One thread calls all of this. A barrier that waits a second ends the program.
class GridBarrier {
 public:
  // num_arrived: CTAs at the barriers of all grids so far, a multiple of the grid between kernels. Nothing has arrived
  // yet, or not this CTA: the count is below the next multiple.
  __device__ explicit GridBarrier(uint64_t* num_arrived) : num_arrived_(num_arrived) {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen_) : "l"(num_arrived) : "memory");
  }
  __device__ void arrive() {
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(num_arrived_), "l"(uint64_t{1}) : "memory");
    ++num_barriers_;
  }
  __device__ void wait() const {
    const uint64_t target = (seen_ / gridDim.x + num_barriers_) * gridDim.x;
    const long long start = clock64();
    while (load_acquire(num_arrived_) < target) {
      if (clock64() - start > 2000000000ll) __trap();
    }
  }

 private:
  uint64_t* num_arrived_;
  uint64_t seen_;
  uint32_t num_barriers_ = 0;
};

}  // namespace spate::cuda
