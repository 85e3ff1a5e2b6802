// WHAT       out = sigmoid(shared_gate) * shared + sum of expert_weights[i] * y[row of pair i], of each token.
//            expert_combine_norm: residual += out; norm.out = rms_norm(residual), without out.
// SHAPES     As ExpertCombineKernelParams says.
// NUMERICS   f32; the shared part first, then the experts by rising id, which is the order of their rows; one rounding.
//            expert_combine_norm has the bits of expert_combine, then add_rms_norm.
// WORK       grid.x tokens, grid.y parts of a row; a thread a piece of 8 elements. expert_combine_norm: a CTA a row,
//            1 or 2 pieces a thread.
// ROOFLINE   Memory: 4 bytes of each pair and element, 2 where y is bf16 (..._y16), from L2 where a step is small.
// WARM       0.6 s: experts
// LIMITS     num_experts_per_tok <= 64. expert_combine_norm: bf16, width <= 8,192.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_combine.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

template <typename Act, typename Y>
__device__ inline void expert_combine(const ExpertCombineKernelParams& p) {
  __shared__ TokenRows found;
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int num_rows = find_rows(p, token, found);
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPieceElems;
  if (first >= p.hidden_size) return;
  Act* out = static_cast<Act*>(p.out) + token * p.out_stride;
  store_piece(out, first, p.hidden_size, p.is_aligned, combined_piece<Act>(p, token, first, [&](float(&sums)[kPieceElems]) {
    add_rows<Y>(p, first, num_rows, found, sums);
  }));
}

template <int kPieces, typename Y>
__device__ inline void expert_combine_norm(const ExpertCombineNormKernelParams& params) {
  __shared__ TokenRows found;
  let_dependents_launch();
  const ExpertCombineKernelParams& p = params.combine;
  const RmsNormKernelParams& norm = params.add.norm;
  const int64_t token = blockIdx.x;
  const auto first_of = [&](int i) {
    return (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kPieceElems;
  };
  Piece<Bf16> weight[kPieces], pieces[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    weight[i] = load_constant_piece(static_cast<const Bf16*>(norm.weight), first_of(i), norm.width, norm.is_aligned);
  }
  wait_for_inputs();
  Bf16* residual = static_cast<Bf16*>(params.add.residual) + token * params.add.residual_stride;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    pieces[i] = load_piece(static_cast<const Bf16*>(residual), first_of(i), norm.width, norm.is_aligned);
  }
  const int num_rows = find_rows(p, token, found);
  float sum_of_squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (first_of(i) < norm.width) {
      const Piece<Bf16> out = combined_piece<Bf16>(p, token, first_of(i), [&](float(&sums)[kPieceElems]) {
        add_rows<Y>(p, first_of(i), num_rows, found, sums);
      });
      float sums[kPieceElems];
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) sums[j] = value_of(pieces[i], j) + value_of(out, j);
      pieces[i] = to_piece<Bf16>(sums);
      store_piece(residual, first_of(i), norm.width, norm.is_aligned, pieces[i]);
    }
    sum_of_squares = add_squares(pieces[i], sum_of_squares);
  }
  const float inv_rms = inv_rms_of(sum_of_cta(sum_of_squares), norm.width, norm.eps);
  Bf16* out = static_cast<Bf16*>(norm.out) + token * norm.out_token_stride;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    store_piece(out, first_of(i), norm.width, norm.is_aligned, normalized(pieces[i], weight[i], inv_rms));
  }
}

#define SPATE_COMBINE_KERNEL(name, Act, Y)                                              \
  extern "C" __global__ void name(const __grid_constant__ ExpertCombineKernelParams p) { \
    expert_combine<Act, Y>(p);                                                           \
  }
#define SPATE_COMBINE_NORM_KERNEL(name, pieces, Y)                \
  extern "C" __global__ void __launch_bounds__(kNormMaxThreads)   \
      name(const __grid_constant__ ExpertCombineNormKernelParams p) { \
    expert_combine_norm<pieces, Y>(p);                            \
  }
SPATE_COMBINE_KERNEL(expert_combine_bf16, Bf16, float)
SPATE_COMBINE_KERNEL(expert_combine_y16, Bf16, Bf16)
SPATE_COMBINE_KERNEL(expert_combine_f32, float, float)
SPATE_COMBINE_NORM_KERNEL(expert_combine_norm_1, 1, float)
SPATE_COMBINE_NORM_KERNEL(expert_combine_norm_2, 2, float)
SPATE_COMBINE_NORM_KERNEL(expert_combine_norm_y16_1, 1, Bf16)
SPATE_COMBINE_NORM_KERNEL(expert_combine_norm_y16_2, 2, Bf16)

}  // namespace spate::cuda
