// Decode attention on Hopper, for every format of the cache (attention_decode_tile.h): CTAs share out the tiles of all
// sequences. attention_decode_ring.cu, attention_decode_ring_int8.cu.
#pragma once

#include "backend/cuda/kernel/attention/attention_decode_rope.h"
#include "backend/cuda/kernel/attention/attention_decode_run.h"

namespace spate::cuda {

// Of formats that rope: the step's keys of this piece and of the next one, by turns.
template <typename Format, bool kRopes>
struct FreshShared {
  typename Format::Fresh rows[2];
  uint64_t made[2];
};
template <typename Format>
struct FreshShared<Format, false> {};

template <typename Format>
struct DecodeRingShared {
  typename Format::Stage ring[Format::kWarps][Format::kStages];
  WarpSums<Format> sums;
  uint64_t full[Format::kWarps][Format::kStages];
  uint64_t summed, merged;  // the sums are there; the merging warp has read them
  bool is_last;
  FreshShared<Format, Format::kRopes> fresh;
};

template <typename Format>
__device__ inline void attention_decode_ring(const AttentionDecodeRingParams& params) {
  using Shared = DecodeRingShared<Format>;
  constexpr int kHeadDim = Format::kHeadDim, kWarps = Format::kWarps, kStages = Format::kStages;
  constexpr int kStageBytes = sizeof(typename Format::Stage);
  constexpr bool kHasMerger = Format::kHasMerger, kRopes = Format::kRopes;
  static_assert(kStageBytes % 1024 == 0);
  static_assert(sizeof(Shared) + 1024 <= (kRopes ? decode_rope_shared_bytes(kHeadDim)
                                                 : decode_ring_shared_bytes(kHeadDim, Format::kHasScales, kWarps)));
  static_assert(kHasMerger || !kRopes);
  extern __shared__ char dynamic_shared[];
  Shared& shared = aligned_shared<Shared>(dynamic_shared);
  let_dependents_launch();
  const AttentionPagedKernelParams& p = params.attention;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const bool is_merger = kHasMerger && warp == kWarps;
  const uint32_t full = shared_address(&shared.full[is_merger ? 0 : warp][0]);
  const uint32_t ring = shared_address(&shared.ring[is_merger ? 0 : warp][0]);
  const uint32_t summed = shared_address(&shared.summed), merged = shared_address(&shared.merged);
  if (lane == 0) {
    if (is_merger) {
      init_barrier(summed, kWarps);
      init_barrier(merged, 1);
      if constexpr (kRopes) {
        for (uint64_t& made : shared.fresh.made) init_barrier(shared_address(&made), 1);
      }
    } else {
      for (int stage = 0; stage < kStages; ++stage) init_barrier(full + 8 * static_cast<uint32_t>(stage), 1);
    }
    fence_barrier_init();
  }
  prefetch_inputs<Format::kHasScales>(params, 0);
  __syncthreads();
  if (!params.reads_early) wait_for_inputs();

  // --- this CTA's run
  const int tiles_per_kv_head = (p.heads_per_kv_head + kHeads - 1) / kHeads;
  const int num_head_tiles = p.kv.num_kv_heads * tiles_per_kv_head;
  const int lane_row = lane < p.num_seqs ? p.seq_rows[lane] : 0;
  const LaneTiles lanes(p);
  const int list_tiles = lanes.all() * num_head_tiles;
  const int num_ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  int run_tiles = max((list_tiles + num_ctas - 1) / num_ctas, kDecodeRingMinRun);
  if (Format::kHasScales && lanes.most > 0 && lanes.most == lanes.least) {
    const int whole_tiles = (run_tiles + lanes.most - 1) / lanes.most * lanes.most;
    if (whole_tiles - run_tiles <= run_tiles / 16) run_tiles = whole_tiles;
  }
  DecodePiece piece;
  if (cta * run_tiles >= list_tiles || !piece.seek(p, num_head_tiles, lanes, list_tiles, run_tiles, cta)) {
    return wait_for_inputs();
  }
  const int shuffled_row = __shfl_sync(0xffffffffu, lane_row, piece.seq % kWarpSize);
  const int seq_row = piece.seq < kWarpSize ? shuffled_row : p.seq_rows[piece.seq];

  TileLoader<Format> loader(params, piece, seq_row, ring, full, tiles_per_kv_head, num_head_tiles);

  struct Heads {
    int token, first, count;
  };
  const auto heads_of = [&](const DecodePiece& of) {
    const int kv_head = of.head_tile / tiles_per_kv_head;
    const int first_in_group = (of.head_tile - kv_head * tiles_per_kv_head) * kHeads;
    return Heads{p.cu_seqlens_q[of.seq], kv_head * p.heads_per_kv_head + first_in_group,
                 min(kHeads, p.heads_per_kv_head - first_in_group)};
  };
  typename Format::Query q;
  HeadSums<Format> sums;
  int stage = 0, num_started = 0;
  uint32_t phase = 0, num_merged = 0;
  if (params.reads_early) {
    while (!is_merger && num_started < kStages && loader.is_next_old()) loader.load(num_started++);
    if constexpr (kRopes) {
      if (is_merger) prefetch_rope<kHeadDim>(params.rope, heads_of(piece).token);
    }
  }
  wait_for_inputs();
#pragma unroll 1
  for (; !is_merger && num_started < kStages; ++num_started) loader.load(num_started);
  const auto fetch_query = [&] {
    const Heads heads = heads_of(piece);
    q.fetch(p, heads.token, heads.first, heads.count);
  };
  if (!is_merger) fetch_query();
  // The merging warp makes the step's key of a piece that has it, one piece ahead. num_made: of the pieces before it.
  uint32_t num_made = 0;
  const auto make_fresh_of = [&](const DecodePiece& of) {
    if constexpr (kRopes) {
      if (of.first + of.count == of.num_tiles) {
        make_fresh<Format>(shared.fresh.rows[num_made & 1], params, p.cu_seqlens_q[of.seq],
                           of.head_tile / tiles_per_kv_head, of.head_tile % tiles_per_kv_head == 0);
      }
      __syncwarp();
      if (lane == 0) arrive(shared_address(&shared.fresh.made[num_made & 1]));
    }
  };
  if (kRopes && is_merger) make_fresh_of(piece);
#pragma unroll 1
  for (;;) {
    const bool all_merge = !kHasMerger || piece.behind == 0;  // of the last piece: nothing else is left to do
    if (kRopes && is_merger && piece.behind > 0) {
      DecodePiece ahead = piece;
      ahead.next(p, num_head_tiles);
      ++num_made;
      make_fresh_of(ahead);
    }
    if (!is_merger) {
      if constexpr (kRopes) q.rope(params.rope, heads_of(piece).token);
      q.prepare(p);
      sums.clear();
      const int begin = p.window > 0 ? max(0, piece.keys.end - p.window) : 0, end = piece.keys.end;
#pragma unroll 1
      for (int idx = piece.template first_idx<kWarps>(warp); idx < piece.count; idx += kWarps) {
        wait_barrier(full + 8 * static_cast<uint32_t>(stage), phase);
        if constexpr (kRopes) {
          const int last = end - 1 - piece.first_key(idx);
          if (last < kTile) {  // the step's key is of this tile
            wait_barrier(shared_address(&shared.fresh.made[num_merged & 1]), num_merged / 2 & 1);
            const typename Format::Fresh& fresh = shared.fresh.rows[num_merged & 1];
            if (fresh.exists != 0) Format::take(shared.ring[warp][stage], last, fresh);
            fence_async_proxy();
            __syncwarp();
          }
        }
        sums.add(shared.ring[warp][stage], q, piece.first_key(idx), begin, end);
        __syncwarp();
        loader.load(stage);
        if (++stage == kStages) {
          stage = 0;
          phase ^= 1;
        }
      }
      if (!all_merge) {  // the next query comes while the sums are stored
        piece.next(p, num_head_tiles);
        fetch_query();
      }
      if (kHasMerger && num_merged > 0) wait_barrier(merged, (num_merged - 1) & 1);
      sums.store(shared.sums);
      __syncwarp();
      if (!all_merge) {
        if (lane == 0) arrive(summed);
        ++num_merged;
        continue;
      }
    }
    const Heads heads = heads_of(piece);
    // The sums of all warps.
    const int thread = all_merge ? static_cast<int>(threadIdx.x) : lane;
    const int num_threads = all_merge ? static_cast<int>(blockDim.x) : kWarpSize;
    const auto sync = [&] {
      if (all_merge) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    };
    if (all_merge) {
      __syncthreads();
    } else {
      wait_barrier(summed, num_merged & 1);
    }
    const bool has_first = piece.first == 0, is_whole = has_first && piece.count == piece.num_tiles;
    const int num_quads = heads.count * (kHeadDim / 4);
    float* partial_stats = params.partial + int64_t{2} * num_ctas * kHeads * kHeadDim;
    const auto row_of = [&](int slot, int head) {
      return reinterpret_cast<float4*>(params.partial + (static_cast<int64_t>(slot) * kHeads + head) * kHeadDim);
    };
    float total_max, total_sum;
    float4 total;
#pragma unroll 1
    for (int i = thread; i < num_quads; i += num_threads) {
      const int head = i / (kHeadDim / 4), quad = i % (kHeadDim / 4);
      merge_warps(shared.sums, head, quad, total_max, total_sum, total);
      if (is_whole) {
        store_out(p, heads.token, heads.first + head, quad, total, total_sum);
        continue;
      }
      const int slot = has_first ? 2 * cta + 1 : 2 * cta;
      row_of(slot, head)[quad] = total;
      if (quad == 0) {
        partial_stats[2 * (slot * kHeads + head)] = total_max;
        partial_stats[2 * (slot * kHeads + head) + 1] = total_sum;
      }
    }
    if (kHasMerger && !all_merge) {
      __syncwarp();
      if (lane == 0) arrive(merged);
    }
    if (!is_whole) {  // the CTA that comes last adds the sums of all, in order
      // CTAs that share a head tile leave partial sums: that with its first tile in slot 2 cta + 1, others in 2 cta.
      // Each cut that seek() leaves in the head tile parts two of them, all with tiles of it: num_done counts them.
      const int item_begin = piece.seq_tiles_before + piece.head_tile * piece.num_tiles;
      const int first_cta = (item_begin + kDecodeRingMinCut + run_tiles - 1) / run_tiles - 1;
      const int last_cta = (item_begin + piece.num_tiles - kDecodeRingMinCut) / run_tiles;
      sync();
      if (thread == 0) {
        fence_device();
        const int before = static_cast<int>(atomicAdd(params.num_done + first_cta, 1u));
        shared.is_last = before == last_cta - first_cta;
        if (shared.is_last) params.num_done[first_cta] = 0;
        fence_device();
      }
      sync();
      const auto slot_of = [&](int part) { return part == 0 ? 2 * first_cta + 1 : 2 * (first_cta + part); };
#pragma unroll 1
      for (int i = thread; shared.is_last && i < num_quads; i += num_threads) {
        const int head = i / (kHeadDim / 4), quad = i % (kHeadDim / 4);
        const auto stats_of = [&](int part) { return partial_stats + 2 * (slot_of(part) * kHeads + head); };
        merge_parts<8>(
            last_cta - first_cta + 1, [&](int part) { return __ldcg(stats_of(part)); },
            [&](int part) { return __ldcg(stats_of(part) + 1); },
            [&](int part) { return __ldcg(row_of(slot_of(part), head) + quad); }, total_max, total_sum, total);
        store_out(p, heads.token, heads.first + head, quad, total, total_sum);
      }
    }
    if (!kHasMerger) __syncthreads();  // the sums are read
    if (!piece.next(p, num_head_tiles)) return;
    if (!is_merger) fetch_query();
    ++num_merged;
  }
}
}  // namespace spate::cuda
