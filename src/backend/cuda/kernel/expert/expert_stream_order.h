// The order of rows of expert_stream_kernel.h: tiles of the rows of one expert, made by every CTA for itself.
#pragma once

#include "backend/cuda/kernel/expert/expert_stream.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

struct StreamTile {
  int16_t expert, num_rows;
  int32_t first_row;
};

// The order of rows, that every CTA makes for itself.
struct StreamOrder {
  StreamTile tiles[kExpertStreamMaxTiles];
  uint16_t row_tokens[kExpertStreamPairs];
  int16_t first_rows[kExpertStreamExperts];
  uint32_t of_warps[kExpertStreamExperts / 32];  // rows of a warp's experts, and their tiles << 16
  int32_t num_tiles;
};

// All threads. tile_rows: of a tile at most. masks: num_experts * ceil(num_tokens / 32) words.
__device__ inline void make_stream_order(const ExpertStreamKernelParams& p, int tile_rows, StreamOrder& made,
                                         uint32_t* masks) {
  constexpr int kRounds = kExpertStreamPairs / kExpertStreamThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, k = p.num_experts_per_tok;
  const int num_words = (p.num_pairs / k + 31) / 32;
  for (int i = thread; i < p.num_experts * num_words; i += kExpertStreamThreads) masks[i] = 0;
  __syncthreads();
  wait_for_inputs();
  int experts[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int pair = thread + i * kExpertStreamThreads;
    experts[i] = pair < p.num_pairs ? p.expert_ids[pair / k * p.ids_stride + pair % k] : -1;
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if (static_cast<uint32_t>(experts[i]) >= static_cast<uint32_t>(p.num_experts)) experts[i] = -1;
    const int token = (thread + i * kExpertStreamThreads) / k;
    if (experts[i] >= 0) atomicOr(masks + experts[i] * num_words + token / 32, 1u << (token % 32));
  }
  __syncthreads();
  uint32_t own = 0, through = 0;  // a thread an expert: its rows and tiles, and those of the experts before
  if (thread < kExpertStreamExperts) {
    int num_rows = 0;
    if (thread < p.num_experts) {
#pragma unroll 1
      for (int w = 0; w < num_words; ++w) num_rows += __popc(masks[thread * num_words + w]);
    }
    // 12 bits of rows, 10 of first tiles, 10 of further ones
    own = static_cast<uint32_t>(num_rows) | (num_rows > 0 ? 1u << 12 : 0u) |
          static_cast<uint32_t>(num_rows > 0 ? (num_rows - 1) / tile_rows : 0) << 22;
    through = sum_through_lane(own);
    if (lane == 31) made.of_warps[thread / 32] = through;
  }
  __syncthreads();
  if (thread < kExpertStreamExperts) {
    uint32_t before = through - own;
#pragma unroll 1
    for (int warp = 0; warp < thread / 32; ++warp) before += made.of_warps[warp];
    uint32_t all = before - (through - own);
#pragma unroll 1
    for (int warp = thread / 32; warp < kExpertStreamExperts / 32; ++warp) all += made.of_warps[warp];
    const int first_row = static_cast<int>(before & 0xfff), num_rows = static_cast<int>(own & 0xfff);
    const int num_tiles = static_cast<int>(own >> 12 & 0x3ff) + static_cast<int>(own >> 22);
    made.first_rows[thread] = static_cast<int16_t>(first_row);
#pragma unroll 1
    for (int i = 0; i < num_tiles; ++i) {
      const uint32_t tile = i == 0 ? before >> 12 & 0x3ff : (all >> 12 & 0x3ff) + (before >> 22) + i - 1;
      made.tiles[tile] = {static_cast<int16_t>(thread), static_cast<int16_t>(min(tile_rows, num_rows - i * tile_rows)),
                          first_row + i * tile_rows};
    }
    if (thread == 0) made.num_tiles = static_cast<int>((all >> 12 & 0x3ff) + (all >> 22));
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int pair = thread + i * kExpertStreamThreads, token = pair / k;
    int row = -1;
    if (experts[i] >= 0) {
      const uint32_t* mask = masks + experts[i] * num_words;
      row = made.first_rows[experts[i]] + __popc(mask[token / 32] & ((1u << (token % 32)) - 1));
#pragma unroll 1
      for (int w = 0; w < token / 32; ++w) row += __popc(mask[w]);
      made.row_tokens[row] = static_cast<uint16_t>(token);
    }
    if (blockIdx.x == 0 && pair < p.num_pairs) p.pair_rows[pair] = row;
  }
  __syncthreads();
}

}  // namespace spate::cuda
