// Words in global memory by which CTAs tell each other that something is there.
#pragma once

#include <cstdint>

namespace spate::cuda {

__device__ inline uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace spate::cuda
