// WHAT       sample.cu for vocabularies of which 8 CTAs have the values in their shared memory: three sizes of slices.
// SHAPES     This, and what follows, as there.
// WARM       4 s: always
// TESTS      spate-conformance --backend cuda --filter sample
#include "backend/cuda/kernel/sample/sample_row.h"

namespace spate::cuda {

#define SPATE_SAMPLE_KERNEL(size)                                                         \
  extern "C" __global__ void __launch_bounds__(kSampleThreads, 1)                         \
      SPATE_CLUSTER sample_cluster_##size(const __grid_constant__ SampleKernelParams p) { \
    extern __shared__ __align__(16) char slice[];                                         \
    sample_row<kSampleClusterCtas>(p, reinterpret_cast<float*>(slice));                   \
  }
SPATE_SAMPLE_KERNEL(small)
SPATE_SAMPLE_KERNEL(medium)
SPATE_SAMPLE_KERNEL(large)

}  // namespace spate::cuda
