// WHAT       Reads memory and does nothing with it: the rate that kernels bound by memory are compared with.
// SHAPES     data: num_pieces of 16 bytes.
// LAYOUT     Any.
// NUMERICS   None.
// WORK       A CTA takes 8 pieces a thread at a time, from a place that moves on with the grid.
// ROOFLINE   It is the roofline: 4.65 TB/s on an H200.
// WARM       0.1 s: bench
// LIMITS     num_pieces a multiple of kReadPieces * kLimitThreads.
// TESTS      spate bench limits --device cuda
#include "backend/cuda/kernel/limits/limits.h"
#include "backend/cuda/kernel/limits/random_operand.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

extern "C" __global__ void __launch_bounds__(kLimitThreads) limit_memory_read(const __grid_constant__ MemoryReadParams p) {
  let_dependents_launch();
  wait_for_inputs();
  constexpr int64_t kCtaPieces = kReadPieces * kLimitThreads;
  const uint4* data = static_cast<const uint4*>(p.data) + threadIdx.x;
  uint32_t sum = 0;
  for (int pass = 0; pass < p.num_passes; ++pass) {
    for (int64_t first = blockIdx.x * kCtaPieces; first < p.num_pieces; first += gridDim.x * kCtaPieces) {
      uint4 pieces[kReadPieces];
#pragma unroll
      for (int i = 0; i < kReadPieces; ++i) pieces[i] = __ldcs(data + first + i * kLimitThreads);
#pragma unroll
      for (int i = 0; i < kReadPieces; ++i) sum |= pieces[i].x & pieces[i].y & pieces[i].z & pieces[i].w;
    }
  }
  if (sum == kNeverBits) *p.out = sum;
}

}  // namespace spate::cuda
