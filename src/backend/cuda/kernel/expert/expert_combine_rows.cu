// WHAT       expert_combine_norm of expert_combine.cu, of many tokens of few experts.
// SHAPES     As ExpertCombineNormKernelParams says; y bf16.
// NUMERICS   The bits of expert_combine_norm.
// WORK       A CTA a token. Its rows of y come to shared memory by bulk copies, which take no registers: six CTAs an SM
//            instead of three, and twice as many bytes on their way.
// ROOFLINE   Memory: 2 bytes of each pair and element, 8 of each token and element.
// WARM       0.2 s: bf16, experts
// LIMITS     sm_90a; kCombineRows experts a token, kCombineRowsWidth elements, a multiple of 8.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_combine.h"

#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/tma.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

extern "C" __global__ void __launch_bounds__(kCombineRowsThreads, kCombineRowsCtas)
    expert_combine_norm_rows(const __grid_constant__ ExpertCombineNormKernelParams params) {
  __shared__ TokenRows found;
  __shared__ alignas(128) Bf16 rows[kCombineRows][kCombineRowsWidth];
  __shared__ uint64_t arrived;
  let_dependents_launch();
  const ExpertCombineKernelParams& p = params.combine;
  const RmsNormKernelParams& norm = params.add.norm;
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(threadIdx.x) * kPieceElems, width = norm.width;
  const uint32_t barrier = shared_address(&arrived);
  if (threadIdx.x == 0) {
    init_barrier(barrier, 1);
    fence_barrier_init();
  }
  wait_for_inputs();
  const int num_rows = find_rows(p, token, found);
  if (static_cast<int>(threadIdx.x) < num_rows) {
    const auto row_bytes = static_cast<uint32_t>(width) * 2;
    if (threadIdx.x == 0) arrive_expecting(barrier, static_cast<uint32_t>(num_rows) * row_bytes);
    const Bf16* row = static_cast<const Bf16*>(p.y) + found.rows[threadIdx.x] * p.y_stride;
    copy_bytes(shared_address(rows[threadIdx.x]), row, row_bytes, barrier);
  }
  Bf16* residual = static_cast<Bf16*>(params.add.residual) + token * params.add.residual_stride;
  Piece<Bf16> piece = load_piece(static_cast<const Bf16*>(residual), first, width, norm.is_aligned);
  const Piece<Bf16> weight = load_constant_piece(static_cast<const Bf16*>(norm.weight), first, width, norm.is_aligned);
  if (num_rows > 0) wait_barrier(barrier, 0);
  if (first < width) {
    const Piece<Bf16> out = combined_piece<Bf16>(p, token, first, [&](float(&sums)[kPieceElems]) {
#pragma unroll
      for (int r = 0; r < kCombineRows; ++r) {
        if (r >= num_rows) break;
        const uint4 quad = *reinterpret_cast<const uint4*>(rows[r] + first);
        const Piece<Bf16> of_row{{quad.x, quad.y, quad.z, quad.w}};
#pragma unroll
        for (int i = 0; i < kPieceElems; ++i) sums[i] = __fmaf_rn(found.weights[r], value_of(of_row, i), sums[i]);
      }
    });
    float sums[kPieceElems];
#pragma unroll
    for (int j = 0; j < kPieceElems; ++j) sums[j] = value_of(piece, j) + value_of(out, j);
    piece = to_piece<Bf16>(sums);
    store_piece(residual, first, width, norm.is_aligned, piece);
  }
  const float inv_rms = inv_rms_of(sum_of_cta(add_squares(piece, 0.0f)), width, norm.eps);
  Bf16* out = static_cast<Bf16*>(norm.out) + token * norm.out_token_stride;
  store_piece(out, first, width, norm.is_aligned, normalized(piece, weight, inv_rms));
}

}  // namespace spate::cuda
