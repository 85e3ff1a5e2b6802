// The order of a step that decodes.
#pragma once

#include "backend/cuda/kernel/expert/expert_work.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

// Made by every CTA for itself, which takes less time than a kernel, and by the first one of gate_up for
// expert_combine. Which tokens chose an expert is a mask: the rank of a pair among those of its expert is the number of
// bits below its own.
//
// gate_up lets its dependents start when it has its inputs, not before. So whatever runs behind it may read the ids of
// the call without waiting: down makes its order, and loads W, while gate_up ends.
template <ExpertKind kKind, int kRows>
struct CtaOrder {
  static constexpr int kPairs = cta_order_pairs(kRows), kExperts = kCtaOrderExperts;
  ExpertOrder order;  // of the arrays below
  ExpertTile tiles[max_expert_tiles(kPairs, kExperts, kRows)];
  int32_t row_tokens[kKind == ExpertKind::kGateUp ? kPairs : 1];
  int32_t first_rows[kExperts];
  uint32_t of_warps[kExperts / 32];  // rows of a warp's experts, and their tiles << 16
  int32_t num_tiles;
};

// An id that a kernel before gate_up wrote, from L2.
__device__ inline int32_t load_expert_id(const int32_t* id) {
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(id) : "memory");
  return value;
}

// All threads of the CTA. masks: num_matrices * ceil(num_tokens / 32) words where stages will lie. gate_up waits for
// the kernels before.
template <ExpertKind kKind, int kRows>
__device__ inline void make_cta_order(const ExpertWgmmaKernelParams& p, CtaOrder<kKind, kRows>& made, uint32_t* masks) {
  using Made = CtaOrder<kKind, kRows>;
  constexpr int kRounds = (Made::kPairs + kWgmmaThreads - 1) / kWgmmaThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, k = p.num_experts_per_tok;
  const int num_experts = p.num_matrices, num_words = (p.num_pairs / k + 31) / 32;
  for (int i = thread; i < num_experts * num_words; i += kWgmmaThreads) masks[i] = 0;
  if (thread == 0) made.order = {&made.num_tiles, made.tiles, made.row_tokens, nullptr};
  __syncthreads();
  if constexpr (kKind == ExpertKind::kGateUp) {
    wait_for_inputs();
    let_dependents_launch();
  }
  int experts[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int pair = thread + i * kWgmmaThreads;
    experts[i] = pair < p.num_pairs ? load_expert_id(p.expert_ids + pair / k * p.ids_stride + pair % k) : -1;
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if (static_cast<uint32_t>(experts[i]) >= static_cast<uint32_t>(num_experts)) experts[i] = -1;
    const int token = (thread + i * kWgmmaThreads) / k;
    if (experts[i] >= 0) atomicOr(masks + experts[i] * num_words + token / 32, 1u << (token % 32));
  }
  __syncthreads();

  // A thread an expert: its rows and tiles, and those of the experts before.
  uint32_t own = 0, through = 0;
  if (thread < Made::kExperts) {
    int num_rows = 0;
    if (thread < num_experts) {
      for (int w = 0; w < num_words; ++w) num_rows += __popc(masks[thread * num_words + w]);
    }
    own = static_cast<uint32_t>(num_rows | (num_rows + kRows - 1) / kRows << 16);
    through = sum_through_lane(own);
    if (lane == 31) made.of_warps[thread / 32] = through;
  }
  __syncthreads();
  if (thread < Made::kExperts) {
    uint32_t before = through - own;
    for (int warp = 0; warp < thread / 32; ++warp) before += made.of_warps[warp];
    const int first_row = static_cast<int>(before & 0xffff), first_tile = static_cast<int>(before >> 16);
    const int num_rows = static_cast<int>(own & 0xffff), num_tiles = static_cast<int>(own >> 16);
    made.first_rows[thread] = first_row;
    for (int i = 0; i < num_tiles; ++i) {
      made.tiles[first_tile + i] = {thread, first_row + i * kRows, min(kRows, num_rows - i * kRows),
                                    static_cast<int16_t>(i), static_cast<int16_t>(num_tiles)};
    }
    if (thread == Made::kExperts - 1) made.num_tiles = first_tile + num_tiles;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kRounds && kKind == ExpertKind::kGateUp; ++i) {
    const int pair = thread + i * kWgmmaThreads, token = pair / k;
    int row = -1;
    if (experts[i] >= 0) {
      const uint32_t* mask = masks + experts[i] * num_words;
      row = made.first_rows[experts[i]] + __popc(mask[token / 32] & ((1u << (token % 32)) - 1));
      for (int w = 0; w < token / 32; ++w) row += __popc(mask[w]);
      made.row_tokens[row] = token;
    }
    if (blockIdx.x == 0 && pair < p.num_pairs) {
      p.order.pair_rows[pair] = row;
    }
  }
  fence_async_proxy();  // stages come where the masks were
  __syncthreads();
}

}  // namespace spate::cuda
