// Decode attention on Hopper of few head tiles (8 query heads of one kv head of one sequence): a cluster each.
// attention_decode_ring.cu, attention_decode_ring_int8.cu.
#pragma once

#include "backend/cuda/kernel/attention/attention_decode_tile.h"
#include "backend/cuda/kernel/primitive/cluster.h"

namespace spate::cuda {

template <typename Format>
struct DecodeClusterShared {
  typename Format::Stage ring[Format::kWarps][Format::kStages];
  WarpSums<Format> sums;
  float4 parts[kDecodeClusterCtas][Format::kHeadDim / 4];  // of query head `rank`: the sums of each CTA
  float4 part_ends[kDecodeClusterCtas];                    // their largest score and sum of 2^
  uint64_t full[Format::kWarps][Format::kStages];
  uint64_t has_parts;
};

// A cluster has the tiles of a head tile, dealt by turns to the warps of its CTAs. CTA `rank` adds the sums of query
// head `rank`, which the others have written to its shared memory.
template <typename Format>
__device__ inline void attention_decode_cluster(const AttentionDecodeRingParams& params) {
  using Shared = DecodeClusterShared<Format>;
  constexpr int kHeadDim = Format::kHeadDim, kWarps = Format::kWarps, kStages = Format::kStages;
  constexpr int kCtas = kDecodeClusterCtas, kTurn = kCtas * kWarps;
  static_assert(kCtas == kHeads);
  static_assert(sizeof(Shared) + 1024 <= decode_cluster_shared_bytes(kHeadDim, Format::kHasScales));
  extern __shared__ char dynamic_shared[];
  Shared& shared = aligned_shared<Shared>(dynamic_shared);
  let_dependents_launch();
  const AttentionPagedKernelParams& p = params.attention;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, rank = cluster_rank();
  const int first_in_group = static_cast<int>(blockIdx.x) / kCtas * kHeads, kv_head = static_cast<int>(blockIdx.y);
  const int seq = static_cast<int>(blockIdx.z);
  const int first_head = kv_head * p.heads_per_kv_head + first_in_group;
  const int num_heads = min(kHeads, p.heads_per_kv_head - first_in_group);
  const uint32_t full = shared_address(&shared.full[warp][0]), ring = shared_address(&shared.ring[warp][0]);
  if (lane == 0) {
    for (int stage = 0; stage < kStages; ++stage) init_barrier(full + 8 * static_cast<uint32_t>(stage), 1);
    if (warp == 0) init_barrier(shared_address(&shared.has_parts), 1);
    fence_barrier_init();
  }
  prefetch_inputs<Format::kHasScales>(params, seq);
  __syncwarp();
  if (threadIdx.x == 0 && rank < num_heads) {
    arrive_expecting(shared_address(&shared.has_parts), kCtas * (kHeadDim / 4 + 1) * 16);
  }
  cluster_arrive_relaxed();  // this CTA runs: its shared memory may be written
  if (!params.reads_early) wait_for_inputs();

  const int seq_row = p.seq_rows[seq], token = p.cu_seqlens_q[seq];
  const KeyRange keys = seen_keys(p, seq);
  const int num_tiles = decode_tiles(keys), first = warp * kCtas + rank;
  const int32_t* blocks = p.block_table + seq_row * p.block_table_stride;
  const int shift = 31 - __clz(p.kv.kv_block_size);
  int block_id = 0, found = kWarpSize, next = first;
  const auto load = [&](int stage) {
    if (next >= num_tiles) return;
    if (found == kWarpSize) {  // lane i: the block of the i-th next tile of the warp
      const int tile = next + kTurn * lane;
      block_id = tile < num_tiles ? blocks[(keys.begin + tile * kTile) >> shift] : 0;
      found = 0;
    }
    const int block = __shfl_sync(0xffffffffu, block_id, found++);
    if (elect_lane()) {
      const uint32_t bar = full + 8 * static_cast<uint32_t>(stage);
      arrive_expecting(bar, Format::kBytes);
      Format::copy(params, {block, kv_head, (keys.begin + next * kTile) & (p.kv.kv_block_size - 1)},
                   ring + static_cast<uint32_t>(stage) * static_cast<uint32_t>(sizeof(typename Format::Stage)), bar);
    }
    next += kTurn;
  };
  int num_started = 0;
  if (params.reads_early) {
    while (num_started < kStages && next < num_tiles - 1) load(num_started++);  // the last one has the step's key
  }
  wait_for_inputs();
#pragma unroll 1
  for (; num_started < kStages; ++num_started) load(num_started);

  HeadSums<Format> sums;
  sums.clear();
  typename Format::Query q;
  if (first < num_tiles) {
    q.fetch(p, token, first_head, num_heads);
    q.prepare(p);
  }
  const int begin = p.window > 0 ? max(0, keys.end - p.window) : 0;
  int stage = 0;
  uint32_t phase = 0;
#pragma unroll 1
  for (int tile = first; tile < num_tiles; tile += kTurn) {
    wait_barrier(full + 8 * static_cast<uint32_t>(stage), phase);
    sums.add(shared.ring[warp][stage], q, keys.begin + tile * kTile, begin, keys.end);
    __syncwarp();
    load(stage);
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  sums.store(shared.sums);
  __syncthreads();

  cluster_wait();  // all CTAs run
  float max, sum;
  float4 total;
#pragma unroll 1
  for (int i = threadIdx.x; i < num_heads * (kHeadDim / 4); i += kWarps * kWarpSize) {
    const int head = i / (kHeadDim / 4), quad = i % (kHeadDim / 4);
    merge_warps(shared.sums, head, quad, max, sum, total);
    const uint32_t bar = shared_of(shared_address(&shared.has_parts), head);
    send_four(shared_of(shared_address(&shared.parts[rank][quad]), head), total.x, total.y, total.z, total.w, bar);
    if (quad == 0) send_four(shared_of(shared_address(&shared.part_ends[rank]), head), max, sum, 0.0f, 0.0f, bar);
  }
  if (rank >= num_heads || threadIdx.x >= kHeadDim / 4) return;
  wait_cluster_barrier(shared_address(&shared.has_parts), 0);  // who has been sent all of it may end
  if (num_tiles == 0) return;
  merge_parts<kCtas>(
      kCtas, [&](int cta) { return shared.part_ends[cta].x; }, [&](int cta) { return shared.part_ends[cta].y; },
      [&](int cta) { return shared.parts[cta][threadIdx.x]; }, max, sum, total);
  store_out(p, token, first_head + rank, static_cast<int>(threadIdx.x), total, sum);
}
}  // namespace spate::cuda
