// WHAT       What attention over latent vectors needs of one token: latent_norm_rope_write, and the up-projection of
// the
//            part of the queries that is not rotated (head_rows.cu). One launch in place of two.
// SHAPES     As those kernels; one token.
// NUMERICS   The bits of both.
// WORK       The first CTA has the latent vector, the next ones the pairs of the queries, the others 64 rows of W each.
// ROOFLINE   Latency.
// WARM       0.3 s: fast, bf16, latent-bf16
// LIMITS     As those kernels.
// TESTS      spate-conformance --backend cuda --filter latent_attention
#include "backend/cuda/kernel/latent/latent_joined.h"

#include "backend/cuda/kernel/latent/head_rows_part.h"
#include "backend/cuda/kernel/latent/latent_norm_rope_token.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

extern "C" __global__ void __launch_bounds__(kLatentQueryThreads)
    latent_query(const __grid_constant__ LatentQueryKernelParams p) {
  let_dependents_launch();
  const int cta = static_cast<int>(blockIdx.x), first_product = 1 + p.num_pair_ctas;
  if (cta >= first_product) {
    const int warp = (cta - first_product) * kHeadRowsWarps + static_cast<int>(threadIdx.x) / kWarpSize;
    const ShortHeadRows rows(p.up, warp);
    wait_for_inputs();
    return rows.multiply(p.up);
  }
  Piece<Bf16> weight = {};
  if (cta == 0) weight = latent_norm_weight(p.write);
  if (p.reads_early) touch_token(p.write, 0);
  wait_for_inputs();
  if (cta == 0) return write_latent(p.write, 0, weight);
  rotate_queries(p.write, 0, (cta - 1) * kLatentQueryThreads + static_cast<int>(threadIdx.x),
                 p.num_pair_ctas * kLatentQueryThreads);
}

}  // namespace spate::cuda
