// WHAT       out = x W^T + bias for many tokens.
// SHAPES     x [num_tokens, in_features] bf16; W [out_features, in_features] bf16; bias [out_features] bf16 or null;
// out
//            [num_tokens, out_features] bf16 or f32. in_features a multiple of 8, rows of x at multiples of 16 bytes.
// LAYOUT     W row-major, rows padded to 16 elements with zeros. Tiles of 64 elements of k in shared memory, a row 128
// bytes: its
//            chunk c of 16 bytes stands at c ^ (row % 8), so that the 8 rows of a matrix load fall on different banks.
// NUMERICS   fp32 sums along k in steps of 16, in order: bit-identical to linear.cu's for any num_tokens.
// WORK       A CTA owns kTileM tokens by kTileN columns; a warp 64 x 64 (large) or 32 x 32 (small). 4 stages of k are
// on their way while one is
//            multiplied. CTAs of 16 tiles of tokens follow each other over the columns, so that W is read from memory
//            once for them and x comes from L2.
// ROOFLINE   2 * num_tokens * in * out over 750 TFLOP/s (cuBLAS, H200); mma.sync reaches about two thirds of wgmma.
// WARM       1.5 s: older, bf16, bf16-weights
// TESTS      spate-conformance --backend cuda --filter linear
#include "backend/cuda/kernel/linear/linear_parts.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

constexpr int kTileK = 64, kTileRowChunks = kTileK / kChunk;
constexpr int kGroupM = 16;  // tiles of tokens that share a pass over W

// Address of 16-byte chunk `chunk` of row `row` of a tile.
__device__ inline uint32_t chunk_address(uint32_t tile, int row, int chunk) {
  return tile + static_cast<uint32_t>(row * kTileK * 2 + ((chunk ^ (row % 8)) * 16));
}

template <int kTileM, int kTileN, int kWarpM, int kWarpN>
__device__ inline void linear_tile(const LinearKernelParams& p) {
  constexpr int kWarpsN = kTileN / kWarpN, kThreads = kTileM / kWarpM * kWarpsN * 32;
  constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 8;
  constexpr uint32_t kXBytes = kTileM * kTileK * 2, kStageBytes = kXBytes + kTileN * kTileK * 2;
  static_assert(kStageBytes * kLinearTileStages <= 227 * 1024, "the stages fit into shared memory");
  extern __shared__ __align__(128) char smem[];
  let_dependents_launch();
  wait_for_inputs();
  const uint32_t stages = shared_address(smem);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;

  // Tiles of tokens fastest, kGroupM of them at a time.
  const int num_tiles_m = (p.num_tokens + kTileM - 1) / kTileM, num_tiles_n = (p.out_features + kTileN - 1) / kTileN;
  const int tiles_in_group = kGroupM * num_tiles_n, first_m = static_cast<int>(blockIdx.x) / tiles_in_group * kGroupM;
  const int group_m = min(kGroupM, num_tiles_m - first_m), in_group = static_cast<int>(blockIdx.x) % tiles_in_group;
  const int tile_row = (first_m + in_group % group_m) * kTileM, tile_column = in_group / group_m * kTileN;
  const int warp_row = warp / kWarpsN * kWarpM, warp_column = warp % kWarpsN * kWarpN;

  const auto load_stage = [&](int stage, int k) {
    const uint32_t x_tile = stages + static_cast<uint32_t>(stage) * kStageBytes, weight_tile = x_tile + kXBytes;
#pragma unroll
    for (int i = 0; i < kTileM * kTileRowChunks / kThreads; ++i) {
      const int row = (i * kThreads + threadIdx.x) / kTileRowChunks, chunk = threadIdx.x % kTileRowChunks;
      const int token = tile_row + row, column = k + chunk * kChunk;
      const bool exists = token < p.num_tokens && column < p.in_features;
      const Bf16* x = static_cast<const Bf16*>(p.x) + (exists ? token * p.x_stride + column : 0);
      copy_async_16(chunk_address(x_tile, row, chunk), x, exists);
    }
#pragma unroll
    for (int i = 0; i < kTileN * kTileRowChunks / kThreads; ++i) {
      const int row = (i * kThreads + threadIdx.x) / kTileRowChunks, chunk = threadIdx.x % kTileRowChunks;
      const int out_row = tile_column + row, column = k + chunk * kChunk;
      const bool exists = out_row < p.out_features && column < p.weight_stride;
      const Bf16* weight = static_cast<const Bf16*>(p.weight) + (exists ? out_row * p.weight_stride + column : 0);
      copy_async_16(chunk_address(weight_tile, row, chunk), weight, exists);
    }
  };

  const int num_steps = (p.in_features + kTileK - 1) / kTileK;
#pragma unroll
  for (int stage = 0; stage < kLinearTileStages - 1; ++stage) {
    if (stage < num_steps) load_stage(stage, stage * kTileK);
    commit_copies();
  }

  float acc[kFragsM][kFragsN][4] = {};
  for (int step = 0; step < num_steps; ++step) {
    wait_copies<kLinearTileStages - 2>();
    __syncthreads();  // the stage has arrived for all, and the one that is filled next was read by all
    const int next = step + kLinearTileStages - 1;
    if (next < num_steps) load_stage(next % kLinearTileStages, next * kTileK);
    commit_copies();
    const uint32_t x_tile = stages + static_cast<uint32_t>(step % kLinearTileStages) * kStageBytes;
    const uint32_t weight_tile = x_tile + kXBytes;
#pragma unroll
    for (int k = 0; k < kTileK / 16; ++k) {
      uint32_t x_frag[kFragsM][4], weight_frag[kFragsN / 2][4];
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) {  // matrices: rows 0-7 and 8-15 of k 0-7, then of k 8-15
        load_matrices(x_frag[i], chunk_address(x_tile, warp_row + 16 * i + lane % 16, 2 * k + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < kFragsN / 2; ++j) {  // matrices: columns 0-7 of k 0-7 and 8-15, then columns 8-15
        load_matrices(weight_frag[j], chunk_address(weight_tile, warp_column + 16 * j + lane % 8 + lane / 16 * 8,
                                                    2 * k + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < kFragsM; ++i) {
#pragma unroll
        for (int j = 0; j < kFragsN; ++j) {
          const uint32_t b[2] = {weight_frag[j / 2][j % 2 * 2], weight_frag[j / 2][j % 2 * 2 + 1]};
          mma_m16n8k16_bf16(acc[i][j], x_frag[i], b);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kFragsM; ++i) {
#pragma unroll
    for (int j = 0; j < kFragsN; ++j) {
      const int row = tile_row + warp_row + i * 16 + group, column = tile_column + warp_column + j * 8 + 2 * pair;
      store_out_pair(p, row, column, acc[i][j][0], acc[i][j][1]);
      store_out_pair(p, row + 8, column, acc[i][j][2], acc[i][j][3]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kLinearTileLargeThreads, 1)
    linear_tile_large(const __grid_constant__ LinearKernelParams p) {
  linear_tile<kLinearTileLargeM, kLinearTileLargeN, 64, 64>(p);
}
extern "C" __global__ void __launch_bounds__(kLinearTileSmallThreads, 3)
    linear_tile_small(const __grid_constant__ LinearKernelParams p) {
  linear_tile<kLinearTileSmallM, kLinearTileSmallN, 32, 32>(p);
}

}  // namespace spate::cuda
