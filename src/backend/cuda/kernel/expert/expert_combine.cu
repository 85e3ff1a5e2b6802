// WHAT       out = sigmoid(shared_gate) * shared + sum of expert_weights[i] * y[row of pair i], of each token.
// SHAPES     As ExpertCombineKernelParams says.
// NUMERICS   f32; the shared part first, then the experts by rising id, which is the order of their rows; one rounding.
// WORK       grid.x tokens, grid.y parts of a row; a thread a piece of 8 elements.
// ROOFLINE   Memory: 4 bytes of each pair and element, from L2 where a step is small.
// LIMITS     num_experts_per_tok <= 64.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_product.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

constexpr int kMaxPairs = 64;

template <typename Act>
__device__ inline void expert_combine(const ExpertCombineKernelParams& p) {
  __shared__ int32_t unsorted[kMaxPairs], rows[kMaxPairs];
  __shared__ float weights[kMaxPairs];
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int k = p.num_experts_per_tok, pair = static_cast<int>(threadIdx.x);
  int row = -1;
  float weight = 0;
  if (pair < k) {
    unsorted[pair] = row = p.pair_rows[token * k + pair];
    weight = p.expert_weights[token * p.weights_stride + pair];
  }
  int num_rows = __syncthreads_count(row >= 0);
  if (row >= 0) {
    int rank = 0;
    for (int i = 0; i < k; ++i) rank += unsorted[i] >= 0 && unsorted[i] < row;
    rows[rank] = row;
    weights[rank] = weight;
  }
  __syncthreads();
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPieceElems, width = p.hidden_size;
  if (first >= width) return;
  float sums[kPieceElems] = {};
  if (p.shared != nullptr) {
    const float gate = p.shared_gate != nullptr ? p.shared_gate[token * p.shared_gate_stride] : 0.0f;
    const float factor = p.shared_gate != nullptr ? 1.0f / (1.0f + expf(-gate)) : 1.0f;
    const Act* shared = static_cast<const Act*>(p.shared) + token * p.shared_stride;
    const Piece<Act> piece = load_piece(shared, first, width, p.is_aligned);
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) sums[i] = factor * value_of(piece, i);
  }
#pragma unroll 8
  for (int r = 0; r < num_rows; ++r) {
    const Piece<float> piece = load_piece(p.y + rows[r] * p.y_stride, first, width, true);
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) sums[i] = __fmaf_rn(weights[r], value_of(piece, i), sums[i]);
  }
  Act* out = static_cast<Act*>(p.out) + token * p.out_stride;
  store_piece(out, first, width, p.is_aligned, to_piece<Act>(sums));
}

extern "C" __global__ void expert_combine_bf16(const __grid_constant__ ExpertCombineKernelParams p) {
  expert_combine<Bf16>(p);
}
extern "C" __global__ void expert_combine_f32(const __grid_constant__ ExpertCombineKernelParams p) {
  expert_combine<float>(p);
}

}  // namespace spate::cuda
