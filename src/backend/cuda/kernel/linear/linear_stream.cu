// WHAT       out = x W^T + bias for 1 to 16 tokens, bound by the bytes of W.
// SHAPES     x [num_tokens, in_features] bf16; W [out_features, in_features] bf16; bias [out_features] bf16 or null;
// out
//            [num_tokens, out_features] bf16 or f32. Row strides of x and out free.
// LAYOUT     W row-major, rows padded to 16 elements with zeros.
// NUMERICS   fp32 sums on the tensor core. Each of 8 warps sums its steps of k (step s belongs to warp s % 8), then the
// warps'
//            sums are added in their order. The order depends on in_features and on the number of row tiles, not on the
//            tokens beside a row; it is another one than linear.cu's, so a deterministic device, whose sums must not
//            depend on num_tokens, does not use this kernel.
// WORK       A CTA of 8 warps owns 16 * kRowTiles rows of W and all tokens. A lane loads 16 bytes of W: 8 neighbours
// along k of rows
//            lane / 4 and lane / 4 + 8. These are operand A of two products m16n8k16 whose k is permuted; x is read the
//            same way, so that no shuffle and no shared memory is needed. The next step's W is loaded before this
//            step's products.
// ROOFLINE   Bytes of W over 4.65 TB/s (a kernel that only reads, H200).
// WARM       0.5 s: older, fast, bf16, bf16-weights
// LIMITS     num_tokens <= 16.
// TESTS      spate-conformance --backend cuda --filter linear
#include "backend/cuda/kernel/linear/linear_parts.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

// A W chunk that no other CTA reads: past L1.
__device__ inline uint4 load_stream(const void* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

template <int kRowTiles, int kTokenTiles, int kUnroll>
__device__ inline void linear_stream(const LinearKernelParams& p) {
  constexpr int kRows = 16 * kRowTiles, kTokens = 8 * kTokenTiles, kStepK = 32 * kUnroll;
  __shared__ float sums[kLinearStreamWarps][kTokens][kRows + 1];
  let_dependents_launch();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  const int first_row = blockIdx.x * kRows;

  uint4 weight[2][kUnroll][kRowTiles][2];
  const Bf16* rows[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 16 * r + 8 * h + group;
      rows[r][h] = row < p.out_features ? static_cast<const Bf16*>(p.weight) + row * p.weight_stride : nullptr;
    }
  }
  const auto load_step = [&](uint4(&to)[kUnroll][kRowTiles][2], int step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = step * kStepK + 32 * u + kChunk * pair;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          to[u][r][h] = rows[r][h] != nullptr && k < p.weight_stride ? load_stream(rows[r][h] + k) : uint4{};
        }
      }
    }
  };

  float acc[kRowTiles][kTokenTiles][4] = {};
  const auto multiply_step = [&](const uint4(&from)[kUnroll][kRowTiles][2], int step) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = step * kStepK + 32 * u + kChunk * pair;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const Chunk chunk = load_x_chunk(p, 8 * t + group, k);
        const uint4 x = *reinterpret_cast<const uint4*>(&chunk);
        const uint32_t low[2] = {x.x, x.y}, high[2] = {x.z, x.w};
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint4 a = from[u][r][0], b = from[u][r][1];
          const uint32_t first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
          mma_m16n8k16_bf16(acc[r][t], first, low);
          mma_m16n8k16_bf16(acc[r][t], second, high);
        }
      }
    }
  };

  const int num_steps = (p.in_features + kStepK - 1) / kStepK;
  int step = warp;
  if (step < num_steps) load_step(weight[0], step);
  wait_for_inputs();  // W is an input of no other kernel's making: its loads need not wait
  for (; step < num_steps; step += 2 * kLinearStreamWarps) {
    const int next = step + kLinearStreamWarps;
    if (next < num_steps) load_step(weight[1], next);
    multiply_step(weight[0], step);
    if (next >= num_steps) break;
    if (next + kLinearStreamWarps < num_steps) load_step(weight[0], next + kLinearStreamWarps);
    multiply_step(weight[1], next);
  }

#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[warp][8 * t + 2 * pair + i % 2][16 * r + group + i / 2 * 8] = acc[r][t][i];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTokens * kRows; i += kLinearStreamWarps * 32) {
    const int token = i / kRows, row = i % kRows;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kLinearStreamWarps; ++w) sum += sums[w][token][row];
    store_out<Bf16>(p, token, first_row + row, sum);
  }
}

// CTAs an SM and steps in flight: the best of 4 pairs on the shapes of Llama-3.1-8B and Qwen3-0.6B, H200.
#define SPATE_LINEAR_STREAM_KERNEL(tokens, row_tiles, unroll, ctas)           \
  extern "C" __global__ void __launch_bounds__(kLinearStreamWarps * 32, ctas) \
      linear_stream_m##tokens(const __grid_constant__ LinearKernelParams p) { \
    linear_stream<row_tiles, tokens / 8, unroll>(p);                          \
  }
SPATE_LINEAR_STREAM_KERNEL(8, 1, 2, 3)
SPATE_LINEAR_STREAM_KERNEL(16, 2, 2, 2)

}  // namespace spate::cuda
