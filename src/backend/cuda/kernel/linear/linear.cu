// WHAT       out = x W^T + bias.
// SHAPES     x [num_tokens, in_features] act; W [out_features, in_features] f32 or bf16; bias [out_features] act or
//            null; out [num_tokens, out_features] act or f32. Row strides of x and out free.
// LAYOUT     W row-major, rows padded to 16 elements with zeros.
// NUMERICS   fp32 sums along k in one fixed order: linear_mma in steps of 16 (the tensor core's own order inside a
//            step), linear_fma element by element. The order is the same for any num_tokens and no sum is split, so a
//            row's bits do not depend on the batch. bias is added in fp32, then one rounding.
// WORK       grid.x tiles of out_features, grid.y tiles of num_tokens; a tile of k goes through registers to shared
//            memory while the one before is multiplied.
//            linear_mma (act and W bf16, rows that linear_tile.cu cannot take): 4 warps, tensor core, 64 elements of k
//            a tile. linear_fma (the other dtypes): 256 threads, 4x4 outputs each, 16 elements of k a tile.
// ROOFLINE   Not tuned: what is fast is in linear_stream.cu and linear_tile.cu.
// WARM       0.6 s: older; f32
// LIMITS     num_tokens <= 65,535 tiles.
// TESTS      spate-conformance --backend cuda --filter linear
#include "backend/cuda/kernel/linear/linear_parts.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

// --- bf16 x bf16 on the tensor core --------------------------------------------------------------------------------

constexpr int kMmaTileK = 64;
constexpr int kRowChunks = kMmaTileK / kChunk;
constexpr int kSmemStride = kMmaTileK + kChunk;  // 36 words: the 8 rows of a fragment fall on different banks

__device__ inline Chunk load_weight_chunk(const LinearKernelParams& p, int row, int k) {
  if (row >= p.out_features || k >= p.weight_stride) return {};
  return *reinterpret_cast<const Chunk*>(static_cast<const Bf16*>(p.weight) + row * p.weight_stride + k);
}

__device__ inline uint32_t load_pair(const Bf16* address) { return *reinterpret_cast<const uint32_t*>(address); }

// kWarpsM * kWarpsN = 4 warps; a warp computes (kTileM / kWarpsM) x (kTileN / kWarpsN) outputs in fragments of 16 x 8.
template <int kTileM, int kTileN, int kWarpsM, int kWarpsN>
__device__ inline void linear_mma_tile(const LinearKernelParams& p) {
  constexpr int kFragsM = kTileM / kWarpsM / 16, kFragsN = kTileN / kWarpsN / 8;
  constexpr int kXChunks = kTileM * kRowChunks / kLinearMmaThreads;
  constexpr int kWeightChunks = kTileN * kRowChunks / kLinearMmaThreads;
  static_assert(
      kWarpsM * kWarpsN * 32 == kLinearMmaThreads && kXChunks > 0 && kWeightChunks > 0 && kFragsM > 0 && kFragsN > 0,
      "the tile is cut evenly");
  __shared__ alignas(16) Bf16 x_smem[kTileM][kSmemStride];
  __shared__ alignas(16) Bf16 weight_smem[kTileN][kSmemStride];
  let_dependents_launch();
  wait_for_inputs();
  const int tile_row = blockIdx.y * kTileM, tile_column = blockIdx.x * kTileN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  const int warp_row = warp / kWarpsN * (kTileM / kWarpsM), warp_column = warp % kWarpsN * (kTileN / kWarpsN);

  Chunk x_chunks[kXChunks], weight_chunks[kWeightChunks];
  const auto load_tile = [&](int tile_k) {
#pragma unroll
    for (int i = 0; i < kXChunks; ++i) {
      const int chunk = i * kLinearMmaThreads + threadIdx.x;
      x_chunks[i] = load_x_chunk(p, tile_row + chunk / kRowChunks, tile_k + chunk % kRowChunks * kChunk);
    }
#pragma unroll
    for (int i = 0; i < kWeightChunks; ++i) {
      const int chunk = i * kLinearMmaThreads + threadIdx.x;
      weight_chunks[i] = load_weight_chunk(p, tile_column + chunk / kRowChunks, tile_k + chunk % kRowChunks * kChunk);
    }
  };
  const auto store_tile = [&] {
#pragma unroll
    for (int i = 0; i < kXChunks; ++i) {
      const int chunk = i * kLinearMmaThreads + threadIdx.x;
      *reinterpret_cast<Chunk*>(&x_smem[chunk / kRowChunks][chunk % kRowChunks * kChunk]) = x_chunks[i];
    }
#pragma unroll
    for (int i = 0; i < kWeightChunks; ++i) {
      const int chunk = i * kLinearMmaThreads + threadIdx.x;
      *reinterpret_cast<Chunk*>(&weight_smem[chunk / kRowChunks][chunk % kRowChunks * kChunk]) = weight_chunks[i];
    }
  };

  float acc[kFragsM][kFragsN][4] = {};
  load_tile(0);
  for (int tile_k = 0; tile_k < p.in_features; tile_k += kMmaTileK) {
    store_tile();
    __syncthreads();
    if (tile_k + kMmaTileK < p.in_features) load_tile(tile_k + kMmaTileK);
#pragma unroll
    for (int k = 0; k < kMmaTileK; k += 16) {
      uint32_t x_frag[kFragsM][4], weight_frag[kFragsN][2];
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) {
        const int row = warp_row + i * 16 + group, column = k + 2 * pair;
        x_frag[i][0] = load_pair(&x_smem[row][column]);
        x_frag[i][1] = load_pair(&x_smem[row + 8][column]);
        x_frag[i][2] = load_pair(&x_smem[row][column + 8]);
        x_frag[i][3] = load_pair(&x_smem[row + 8][column + 8]);
      }
#pragma unroll
      for (int j = 0; j < kFragsN; ++j) {
        const int row = warp_column + j * 8 + group, column = k + 2 * pair;
        weight_frag[j][0] = load_pair(&weight_smem[row][column]);
        weight_frag[j][1] = load_pair(&weight_smem[row][column + 8]);
      }
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) {
#pragma unroll
        for (int j = 0; j < kFragsN; ++j) mma_m16n8k16_bf16(acc[i][j], x_frag[i], weight_frag[j]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < kFragsM; ++i) {
#pragma unroll
    for (int j = 0; j < kFragsN; ++j) {
      const int row = tile_row + warp_row + i * 16 + group, column = tile_column + warp_column + j * 8 + 2 * pair;
      store_out<Bf16>(p, row, column, acc[i][j][0]);
      store_out<Bf16>(p, row, column + 1, acc[i][j][1]);
      store_out<Bf16>(p, row + 8, column, acc[i][j][2]);
      store_out<Bf16>(p, row + 8, column + 1, acc[i][j][3]);
    }
  }
}

// --- every other pair of dtypes ------------------------------------------------------------------------------------

constexpr int kFmaTileK = 16;
constexpr int kFmaOutputs = 4;  // rows and columns of outputs a thread computes
constexpr int kFmaThreadsN = kLinearFmaTileN / kFmaOutputs;

template <typename Act, typename Weight>
__device__ inline void linear_fma(const LinearKernelParams& p) {
  // By k, so that a thread reads its four rows or columns in one access; 4 more elements a row spread the stores.
  __shared__ alignas(16) float x_smem[kFmaTileK][kLinearFmaTileM + 4];
  __shared__ alignas(16) float weight_smem[kFmaTileK][kLinearFmaTileN + 4];
  let_dependents_launch();
  wait_for_inputs();
  const int tile_row = blockIdx.y * kLinearFmaTileM, tile_column = blockIdx.x * kLinearFmaTileN;
  const int thread_row = threadIdx.x / kFmaThreadsN * kFmaOutputs,
            thread_column = threadIdx.x % kFmaThreadsN * kFmaOutputs;
  const Act* x = static_cast<const Act*>(p.x);
  const Weight* weight = static_cast<const Weight*>(p.weight);

  float acc[kFmaOutputs][kFmaOutputs] = {};
  for (int tile_k = 0; tile_k < p.in_features; tile_k += kFmaTileK) {
    for (int i = threadIdx.x; i < kLinearFmaTileM * kFmaTileK; i += kLinearFmaThreads) {
      const int row = tile_row + i / kFmaTileK, k = tile_k + i % kFmaTileK;
      const bool exists = row < p.num_tokens && k < p.in_features;
      x_smem[i % kFmaTileK][i / kFmaTileK] = exists ? to_float(x[row * p.x_stride + k]) : 0.0f;
    }
    for (int i = threadIdx.x; i < kLinearFmaTileN * kFmaTileK; i += kLinearFmaThreads) {
      const int row = tile_column + i / kFmaTileK, k = tile_k + i % kFmaTileK;
      const bool exists = row < p.out_features && k < p.in_features;
      weight_smem[i % kFmaTileK][i / kFmaTileK] = exists ? to_float(weight[row * p.weight_stride + k]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kFmaTileK; ++k) {
      const float4 a = *reinterpret_cast<const float4*>(&x_smem[k][thread_row]);
      const float4 b = *reinterpret_cast<const float4*>(&weight_smem[k][thread_column]);
      const float a_values[kFmaOutputs] = {a.x, a.y, a.z, a.w}, b_values[kFmaOutputs] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < kFmaOutputs; ++i) {
#pragma unroll
        for (int j = 0; j < kFmaOutputs; ++j) acc[i][j] = __fmaf_rn(a_values[i], b_values[j], acc[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kFmaOutputs; ++i) {
#pragma unroll
    for (int j = 0; j < kFmaOutputs; ++j) {
      store_out<Act>(p, tile_row + thread_row + i, tile_column + thread_column + j, acc[i][j]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kLinearMmaThreads)
    linear_mma(const __grid_constant__ LinearKernelParams p) {
  linear_mma_tile<kLinearMmaTileM, kLinearMmaTileN, 2, 2>(p);
}
extern "C" __global__ void __launch_bounds__(kLinearFmaThreads)
    linear_fma_bf16_f32(const __grid_constant__ LinearKernelParams p) {
  linear_fma<Bf16, float>(p);
}
extern "C" __global__ void __launch_bounds__(kLinearFmaThreads)
    linear_fma_f32_bf16(const __grid_constant__ LinearKernelParams p) {
  linear_fma<float, Bf16>(p);
}
extern "C" __global__ void __launch_bounds__(kLinearFmaThreads)
    linear_fma_f32_f32(const __grid_constant__ LinearKernelParams p) {
  linear_fma<float, float>(p);
}

}  // namespace spate::cuda
