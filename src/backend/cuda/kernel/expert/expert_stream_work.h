// Which steps a warp of expert_stream_kernel.h has, and the copies that bring them.
#pragma once

#include "backend/cuda/kernel/expert/expert_stream_order.h"
#include "backend/cuda/kernel/primitive/async_copy.h"

namespace spate::cuda {

// Groups, of 32 rows of W, of a tile that a CTA has.
struct StreamPhase {
  int is_down, tile;
  int first_group, num_groups;
};
__device__ inline const ExpertStreamProduct& product_of(const ExpertStreamKernelParams& p, const StreamPhase& phase) {
  return phase.is_down != 0 ? p.down : p.gate_up;
}

// Steps of a group.
struct StreamSegment {
  int group, begin, end;
};

// A warp's part of a phase. As many groups as make the same number for each warp are whole ones, and neighbours at the
// same time; steps of the rest are shared equally, the first ones of all.
struct StreamShare {
  int group, step, count;  // of the rest
  int whole, num_whole;

  StreamShare() = default;
  __device__ StreamShare(const StreamPhase& phase, int num_steps, int warp) {
    num_whole = phase.num_groups / kExpertStreamWarps;
    const int num_rest = phase.num_groups % kExpertStreamWarps;
    const auto total = static_cast<uint32_t>(num_rest * num_steps), part = static_cast<uint32_t>(warp);
    const uint32_t begin = total * part / kExpertStreamWarps, in_rest = begin / static_cast<uint32_t>(num_steps);
    count = static_cast<int>(total * (part + 1) / kExpertStreamWarps - begin);
    group = phase.first_group + static_cast<int>(in_rest);
    step = static_cast<int>(begin) - static_cast<int>(in_rest) * num_steps;
    whole = phase.first_group + num_rest + warp;
  }
  __device__ int num_steps(int of_group) const { return count + num_whole * of_group; }
  __device__ bool has_more() const { return count > 0 || num_whole > 0; }
  __device__ StreamSegment next(int num_steps) {
    if (count > 0) {
      const StreamSegment segment{group, step, min(num_steps, step + count)};
      count -= segment.end - segment.begin;
      step = 0;
      ++group;
      return segment;
    }
    const StreamSegment segment{whole, 0, num_steps};
    whole += kExpertStreamWarps;
    --num_whole;
    return segment;
  }
};

// Equal runs of groups of a product for the CTAs, the first ones longer by one. Where there are nearly as many tiles as
// CTAs, some CTAs have none and the others a tile each: it waits for nobody.
struct StreamRuns {
  int num_ctas, each, num_longer;

  __device__ StreamRuns(int num_tiles, int groups_of_tile) {
    const auto ctas = static_cast<int>(gridDim.x);
    num_ctas = is_tile_each(num_tiles) ? num_tiles : ctas;
    const auto total = static_cast<uint32_t>(num_tiles * groups_of_tile);
    each = static_cast<int>(total / static_cast<uint32_t>(num_ctas));
    num_longer = static_cast<int>(total % static_cast<uint32_t>(num_ctas));
  }
  __device__ int first(int cta) const {
    const int clamped = min(cta, num_ctas);
    return clamped * each + min(clamped, num_longer);
  }
  __device__ int cta_of(int group) const {
    const int in_longer = num_longer * (each + 1);
    return group < in_longer ? group / (each + 1) : num_longer + (group - in_longer) / each;
  }
  __device__ static bool is_tile_each(int num_tiles) {
    const auto ctas = static_cast<int>(gridDim.x);
    return num_tiles <= ctas && num_tiles * 8 >= ctas * 7;
  }
};
__device__ inline int stream_groups_of_tile(const ExpertStreamKernelParams& p, int is_down) {
  return static_cast<int>(is_down != 0 ? static_cast<uint32_t>(p.hidden_size) / 32
                                       : static_cast<uint32_t>(p.intermediate_size) / 16);
}
// CTAs that have groups of down of the tile.
__device__ inline int num_down_ctas_of(const ExpertStreamKernelParams& p, int num_tiles, int tile) {
  const int groups = stream_groups_of_tile(p, 1);
  const StreamRuns runs(num_tiles, groups);
  return runs.cta_of(tile * groups + groups - 1) - runs.cta_of(tile * groups) + 1;
}

// The phases of a CTA in order.
struct StreamPhases {
  int is_down;  // -1: none yet
  int at, end;  // groups of all tiles

  __device__ bool next(const ExpertStreamKernelParams& p, int num_tiles, StreamPhase& phase) {
    while (at >= end) {
      if (is_down > 0) return false;
      ++is_down;
      const StreamRuns runs(num_tiles, stream_groups_of_tile(p, is_down));
      at = runs.first(static_cast<int>(blockIdx.x));
      end = runs.first(static_cast<int>(blockIdx.x) + 1);
    }
    const int groups = stream_groups_of_tile(p, is_down);
    phase.is_down = is_down;
    phase.tile = static_cast<int>(static_cast<uint32_t>(at) / static_cast<uint32_t>(groups));
    phase.first_group = at - phase.tile * groups;
    phase.num_groups = min(groups - phase.first_group, end - at);
    at += phase.num_groups;
    return true;
  }
};

// What the copies of a warp are to bring. It is in shared memory: one of its groups takes many steps.
struct StreamCursor {
  StreamPhases phases;
  int is_down, num_steps;  // of the phase
  StreamShare share;       // what is left of it
  const char* matrix;
};

__device__ inline void copy_streamed_16(uint32_t shared, const char* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// Of what no other warp reads, first to leave L2.
__device__ inline void copy_streamed_16_once(uint32_t shared, const char* global) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000ull;  // what createpolicy.fractional.L2::evict_first makes of 1.0
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "l"(kEvictFirst)
               : "memory");
}

// The copies of a warp, through all of its phases.
template <int kMultipliers, int kRows>
class StreamLoads {
 public:
  static constexpr int kStepBytes = expert_stream_step_bytes(kMultipliers);

  // cursor: shared memory of the warp's.
  __device__ StreamLoads(const ExpertStreamKernelParams& p, const StreamOrder& order, StreamCursor& cursor)
      : p_(p), order_(order), cursor_(cursor) {
    reset();
  }
  // To the first step.
  __device__ void reset() {
    __syncwarp();
    cursor_.phases = {-1, 0, 0};
    cursor_.share.count = cursor_.share.num_whole = 0;
    left_ = 0;
    __syncwarp();
  }
  // One step more to the slot, of which the lane has its place, if there is one.
  __device__ void next(uint32_t slot) {
    if (left_ == 0) find();
    if (left_ > 0) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const char* high = from_ + to_high_;
      copy_streamed_16_once(slot, from_);
      copy_streamed_16_once(slot + 512, from_ + 512);
      copy_streamed_16_once(slot + 1024, high);
      copy_streamed_16_once(slot + 1536, high + 512);
      if (lane < 2 * kMultipliers) copy_streamed_16(slot + 2048, from_ + to_multipliers_);
      from_ += kChunkBytes;
      --left_;
    }
    commit_copies();
  }

 private:
  static constexpr uint32_t kChunkBytes = kInt4CodeBytes + kWgmmaTileRows * kMultipliers;

  // The next segment: what the warp has of a group.
  __device__ void find() {
    const uint32_t lane = threadIdx.x % 32;
    StreamCursor now = cursor_;
    while (!now.share.has_more()) {
      StreamPhase phase;
      if (!now.phases.next(p_, order_.num_tiles, phase)) return;
      const ExpertStreamProduct& product = product_of(p_, phase);
      now.matrix = product.weight + order_.tiles[phase.tile].expert * product.layout.matrix_bytes;
      now.is_down = phase.is_down;
      now.num_steps = product.layout.num_steps;
      now.share = StreamShare(phase, now.num_steps, static_cast<int>(threadIdx.x) / 32);
    }
    const StreamSegment segment = now.share.next(now.num_steps);
    // IntegerLayout's code_offset() and multiplier_offset(), in 32 bits.
    const uint32_t group = static_cast<uint32_t>(segment.group);
    const uint32_t low = now.is_down != 0 ? group * 32 : group * 16;
    const uint32_t high = now.is_down != 0 ? low + 16 : static_cast<uint32_t>(p_.intermediate_size) + low;
    const auto chunk_of = [&](uint32_t row) {
      return (row / kWgmmaTileRows * static_cast<uint32_t>(now.num_steps) + static_cast<uint32_t>(segment.begin)) *
             kChunkBytes;
    };
    const uint32_t own = chunk_of(low) + low % kWgmmaTileRows * kInt4RowBytes + lane * 16;
    from_ = now.matrix + own;
    to_high_ = chunk_of(high) + high % kWgmmaTileRows * kInt4RowBytes + lane * 16 - own;
    const uint32_t row = lane / kMultipliers % 2 != 0 ? high : low;
    to_multipliers_ = static_cast<int32_t>(chunk_of(row) + kInt4CodeBytes + row % kWgmmaTileRows * kMultipliers +
                                           lane % kMultipliers * 16 - own);
    left_ = segment.end - segment.begin;
    __syncwarp();
    cursor_ = now;  // the same of all lanes
    __syncwarp();
  }

  const ExpertStreamKernelParams& p_;
  const StreamOrder& order_;
  StreamCursor& cursor_;
  const char* from_;  // the lane's codes of the low rows; the ways to those of the high ones and to multipliers
  uint32_t to_high_;
  int32_t to_multipliers_;
  int left_ = 0;  // of a group
};

}  // namespace spate::cuda
