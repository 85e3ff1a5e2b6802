// WHAT       rms_norm of the first kv_lora_rank elements of a latent vector, rope of the others, the vector to its slot
// of the
//            paged cache; rope of the queries' part. One launch in place of four.
// SHAPES     As LatentNormRopeWriteKernelParams says, bf16. The latent vectors stay as they were.
// LAYOUT     latent.h; the padding becomes zeros. Pairs as rope.cu has them.
// NUMERICS   The bits of rms_norm, rope and latent_write one after the other.
// WORK       grid.x tokens. The first CTA of a token has the latent vector, a piece of 8 elements a thread; the others
// share the
//            pairs of its heads.
// ROOFLINE   Latency: 2 KB a token and 16 heads.
// WARM       0.2 s: bf16, latent
// LIMITS     kv_lora_rank a multiple of 8, at most 1,024.
// TESTS      spate-conformance --backend cuda --filter latent_norm_rope_write
#include "backend/cuda/kernel/latent/latent_norm_rope_token.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

extern "C" __global__ void __launch_bounds__(kLatentWriteThreads)
    latent_norm_rope_write(const __grid_constant__ LatentNormRopeWriteKernelParams p) {
  let_dependents_launch();
  const int64_t token = blockIdx.x;
  Piece<Bf16> weight = {};
  if (blockIdx.y == 0) weight = latent_norm_weight(p);
  wait_for_inputs();
  if (blockIdx.y == 0) return write_latent(p, token, weight);
  rotate_queries(p, token, static_cast<int>((blockIdx.y - 1) * kLatentWriteThreads + threadIdx.x),
                 static_cast<int>(gridDim.y - 1) * kLatentWriteThreads);
}

}  // namespace spate::cuda
