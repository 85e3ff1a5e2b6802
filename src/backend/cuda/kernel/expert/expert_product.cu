// WHAT       out[r] = x[r] W_m^T, where each run of rows has a matrix of its own: rows of an expert, or the rows of a
//            head.
// SHAPES     As ExpertProductKernelParams says; x act, W f32 or bf16, out act or f32.
// LAYOUT     W row-major, rows padded to 16 elements with zeros.
// NUMERICS   fp32 sums element by element along k, in one order: a row's bits do not depend on the rows beside it.
// WORK       grid.x tiles of rows (those beyond the order's count end at once), grid.y tiles of out_features; 256
//            threads, 4 x 4 outputs each.
// ROOFLINE   Not tuned: for dtypes and widths that expert_wgmma.cu cannot take.
// WARM       0.5 s: older, experts; f32, experts; older, latent; f32, latent
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter expert_mlp, --filter linear_heads
#include "backend/cuda/kernel/expert/expert_product.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

constexpr int kTileK = 16;
constexpr int kOutputs = 4;  // rows and columns of outputs a thread computes
constexpr int kThreadsN = kProductTileN / kOutputs;

template <typename Act, typename Weight>
__device__ inline void expert_product(const ExpertProductKernelParams& p) {
  // By k, so that a thread reads its four rows or columns in one access; 4 more elements a row spread the stores.
  __shared__ alignas(16) float x_smem[kTileK][kProductTileM + 4];
  __shared__ alignas(16) float weight_smem[kTileK][kProductTileN + 4];
  __shared__ int32_t source[kProductTileM];
  let_dependents_launch();
  wait_for_inputs();
  ExpertTile tile;
  if (p.order.tiles == nullptr) {
    const int tiles_of_matrix = (p.num_rows + kProductTileM - 1) / kProductTileM;
    const int first_row = static_cast<int>(blockIdx.x) % tiles_of_matrix * kProductTileM;
    tile = {static_cast<int>(blockIdx.x) / tiles_of_matrix, first_row, min(kProductTileM, p.num_rows - first_row), 0, 0};
  } else {
    if (static_cast<int>(blockIdx.x) >= *p.order.num_tiles) return;
    tile = p.order.tiles[blockIdx.x];
  }
  for (int i = threadIdx.x; i < tile.num_rows; i += kProductThreads) {
    source[i] = p.gathers ? p.order.row_tokens[tile.first_row + i] : tile.first_row + i;
  }
  __syncthreads();
  const int tile_column = blockIdx.y * kProductTileN;
  const int thread_row = threadIdx.x / kThreadsN * kOutputs, thread_column = threadIdx.x % kThreadsN * kOutputs;
  const Act* x = static_cast<const Act*>(p.x) + tile.expert * p.x_matrix_stride;
  const Weight* weight = static_cast<const Weight*>(p.weight) + tile.expert * p.weight_matrix_stride;

  float acc[kOutputs][kOutputs] = {};
  for (int tile_k = 0; tile_k < p.in_features; tile_k += kTileK) {
    for (int i = threadIdx.x; i < kProductTileM * kTileK; i += kProductThreads) {
      const int row = i / kTileK, k = tile_k + i % kTileK;
      const bool exists = row < tile.num_rows && k < p.in_features;
      x_smem[i % kTileK][row] = exists ? to_float(x[source[row] * p.x_stride + k]) : 0.0f;
    }
    for (int i = threadIdx.x; i < kProductTileN * kTileK; i += kProductThreads) {
      const int row = tile_column + i / kTileK, k = tile_k + i % kTileK;
      const bool exists = row < p.out_features && k < p.in_features;
      weight_smem[i % kTileK][i / kTileK] = exists ? to_float(weight[row * p.weight_stride + k]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTileK; ++k) {
      const float4 a = *reinterpret_cast<const float4*>(&x_smem[k][thread_row]);
      const float4 b = *reinterpret_cast<const float4*>(&weight_smem[k][thread_column]);
      const float a_values[kOutputs] = {a.x, a.y, a.z, a.w}, b_values[kOutputs] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) acc[i][j] = __fmaf_rn(a_values[i], b_values[j], acc[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      const int row = thread_row + i, column = tile_column + thread_column + j;
      if (row >= tile.num_rows || column >= p.out_features) continue;
      const int64_t offset =
          (tile.first_row + row) * p.out_stride + tile.expert * p.out_matrix_stride + column;
      if (p.is_out_f32) {
        static_cast<float*>(p.out)[offset] = acc[i][j];
      } else {
        static_cast<Act*>(p.out)[offset] = from_float<Act>(acc[i][j]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kProductThreads)
    expert_product_bf16_bf16(const __grid_constant__ ExpertProductKernelParams p) {
  expert_product<Bf16, Bf16>(p);
}
extern "C" __global__ void __launch_bounds__(kProductThreads)
    expert_product_bf16_f32(const __grid_constant__ ExpertProductKernelParams p) {
  expert_product<Bf16, float>(p);
}
extern "C" __global__ void __launch_bounds__(kProductThreads)
    expert_product_f32_bf16(const __grid_constant__ ExpertProductKernelParams p) {
  expert_product<float, Bf16>(p);
}
extern "C" __global__ void __launch_bounds__(kProductThreads)
    expert_product_f32_f32(const __grid_constant__ ExpertProductKernelParams p) {
  expert_product<float, float>(p);
}

}  // namespace spate::cuda
