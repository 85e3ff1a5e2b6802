// WHAT       out = x W^T + bias for 1 to 8 tokens in bf16, bound by the bytes of W; or silu(gate) * up of it.
// SHAPES     As linear_wgmma.cu; in_features a multiple of 64, at least 512.
// LAYOUT     W row-major, rows at multiples of 32 bytes.
// NUMERICS   fp32 sums on the tensor core; those of the 8 warps are added in their order, so that a row's sum depends on
//            k alone: not on the grid, the group or the number of tokens. With silu as silu_and_mul of what would be
//            stored.
// WORK       As linear_codes.cu: a CTA has a run of groups of rows, its 8 warps share the k of a group, step s of 64
//            belongs to warp s % 8, and one of them, by turns, finishes the group. W goes from global memory to
//            registers, kDepth steps ahead, the first ones before the wait for the kernel before. What a lane holds is
//            operand A of mma.sync as it is: k is permuted, and x is read the same way. A group is 16 rows, or 8,
//            where 16 leave CTAs with unequal work: then the lower half of the operand is zeros. Groups of 8 are
//            walked as row_groups.h does it, those of 16 with a barrier after each: without it they take 120 registers,
//            and the small kernels around them no longer find room beside two CTAs.
// ROOFLINE   Bytes of W over 4.65 TB/s.
// WARM       0.5 s: fast, bf16, bf16-weights
// LIMITS     sm_90a; below Hopper the older kernels stay.
// TESTS      spate-conformance --backend cuda --filter "linear bf16"
#include "backend/cuda/kernel/linear/linear_rows.h"

#include "backend/cuda/kernel/linear/row_groups.h"
#include "backend/cuda/kernel/linear/row_results.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

// What a lane holds of kPair * 8 rows and 64 elements of k: with group = lane / 4 and pair = lane % 4 parts of the rows
// `group` and `group` + pair_step, and of token `group` of x.
template <int kPair>
struct RowStep {
  uint4 rows[kPair][2];  // [row][32 elements of k]: 8 of them from 8 pair on

  __device__ void load(const LinearRowsKernelParams& p, int first_row, int step) {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      const int row = min(first_row + lane / 4 + p.pair_step * r, p.out_features - 1);
      const char* from = p.weight + (row * p.weight_stride + step * kRowsTileK + lane % 4 * 8) * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) rows[r][half] = load_stream(from + 64 * half);
    }
  }
  // x: of the lane's token at the step's first element; null: zeros.
  __device__ void multiply(float (&sums)[4], const Bf16* x) const {
    const int pair = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 b = {};
      if (x != nullptr) b = *reinterpret_cast<const uint4*>(x + 32 * half + 8 * pair);
      const uint4 low = rows[0][half];
      uint4 high = {};
      if constexpr (kPair == 2) high = rows[kPair - 1][half];
      mma_m16n8k16_bf16(sums, {low.x, high.x, low.y, high.y}, {b.x, b.y});
      mma_m16n8k16_bf16(sums, {low.z, high.z, low.w, high.w}, {b.z, b.w});
    }
  }
};

template <int kPair, int kDepth>
__device__ inline void linear_rows(const LinearRowsKernelParams& p) {
  __shared__ float4 warp_sums[2][kRowsWarps][kLanes];
  let_dependents_launch();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int num_steps = (p.num_steps - warp + kRowsWarps - 1) / kRowsWarps;  // of this warp, of a group
  const auto first_group = [&](int cta) {
    return static_cast<int>(static_cast<int64_t>(p.num_groups) * cta / static_cast<int>(gridDim.x));
  };
  const int begin = first_group(static_cast<int>(blockIdx.x)), end = first_group(static_cast<int>(blockIdx.x) + 1);
  RowStep<kPair> ring[kDepth];  // a step i of a group stands at i % kDepth
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    if (d < num_steps && begin < end) ring[d].load(p, begin * p.group_step, warp + kRowsWarps * d);
  }
  wait_for_inputs();
  const Bf16* x = lane / 4 < p.num_tokens
                      ? static_cast<const Bf16*>(p.x) + lane / 4 * p.x_stride + warp * kRowsTileK
                      : nullptr;

  for (int group = begin; group < end; ++group) {
    float sums[4] = {};
    for (int first = 0; first < num_steps; first += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int i = first + d;
        if (i >= num_steps) break;
        ring[d].multiply(sums, x == nullptr ? nullptr : x + i * (kRowsWarps * kRowsTileK));
        const bool is_last = i + kDepth >= num_steps;
        if (!is_last || group + 1 < end) {
          ring[d].load(p, (is_last ? group + 1 : group) * p.group_step, warp + kRowsWarps * (is_last ? d : i + kDepth));
        }
      }
    }
    const int idx = group - begin;
    warp_sums[idx % 2][warp][lane] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    __syncthreads();  // what is read here is written again after the next one
    if (idx % kRowsWarps != warp) continue;
    float total[4] = {};
#pragma unroll
    for (int w = 0; w < kRowsWarps; ++w) {
      const float4 more = warp_sums[idx % 2][w][lane];
      total[0] += more.x;
      total[1] += more.y;
      total[2] += more.z;
      total[3] += more.w;
    }
    finish_rows<kPair>(p, total, group * p.group_step);
  }
}

// The same by row_groups.h: no warp waits for the others at the end of a group.
template <int kPair, int kDepth>
__device__ inline void linear_rows_apart(const LinearRowsKernelParams& p) {
  __shared__ GroupSums<kRowsWarps> shared;
  let_dependents_launch();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  RowGroups<RowStep<kPair>, kDepth, kRowsWarps> groups(p.num_groups, p.num_steps);
  const auto load = [&](RowStep<kPair>& step, int group, int k) { step.load(p, group * p.group_step, k); };
  groups.fill(load);
  shared.init();
  wait_for_inputs();
  const Bf16* x = lane / 4 < p.num_tokens
                      ? static_cast<const Bf16*>(p.x) + lane / 4 * p.x_stride + warp * kRowsTileK
                      : nullptr;
  groups.run(
      shared, load,
      [&](const RowStep<kPair>& step, float(&sums)[4], int i) {
        step.multiply(sums, x == nullptr ? nullptr : x + i * (kRowsWarps * kRowsTileK));
      },
      [&](int group, const float(&totals)[4]) { finish_rows<kPair>(p, totals, group * p.group_step); });
}

// 2 CTAs an SM.
#define SPATE_LINEAR_ROWS_KERNEL(name, walk, pair, depth)             \
  extern "C" __global__ void __launch_bounds__(kRowsWarps* kLanes, 2) \
      name(const __grid_constant__ LinearRowsKernelParams p) {        \
    walk<pair, depth>(p);                                             \
  }
SPATE_LINEAR_ROWS_KERNEL(linear_rows_8, linear_rows_apart, 1, 8)
SPATE_LINEAR_ROWS_KERNEL(linear_rows_16, linear_rows, 2, 4)

}  // namespace spate::cuda
