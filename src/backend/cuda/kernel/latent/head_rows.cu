// WHAT       Products of one row of bf16 with a bf16 matrix for each head: the up-projections of latent attention in
//            decode of one sequence.
// SHAPES     As HeadRowsKernelParams says; in_features at most 128 or 512.
// NUMERICS   fp32 sums of 8 elements a lane, then over the lanes of a row.
// WORK       A warp has 8 rows (a half of its lanes each, two at once) or 2. All its bytes of W are loaded before the
//            wait for the kernel before.
// ROOFLINE   Latency: 2 MB of W of 16 heads are 16 KB an SM.
// WARM       0.2 s: fast, bf16, latent
// LIMITS     sm_90a, as the chains of products of one token: elsewhere the tiles run.
// TESTS      spate-conformance --backend cuda --filter linear_heads
#include "backend/cuda/kernel/latent/head_rows_part.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

template <typename Rows>
__device__ inline void head_rows(const HeadRowsKernelParams& p) {
  let_dependents_launch();
  const Rows rows(p, static_cast<int>(blockIdx.x) * kHeadRowsWarps + static_cast<int>(threadIdx.x) / kWarpSize);
  wait_for_inputs();
  rows.multiply(p);
}

extern "C" __global__ void __launch_bounds__(kHeadRowsWarps* kWarpSize)
    head_rows_short(const __grid_constant__ HeadRowsKernelParams p) {
  head_rows<ShortHeadRows>(p);
}
extern "C" __global__ void __launch_bounds__(kHeadRowsWarps* kWarpSize)
    head_rows_long(const __grid_constant__ HeadRowsKernelParams p) {
  head_rows<LongHeadRows>(p);
}

}  // namespace spate::cuda
