// Merges the partial sums that several CTAs of attention_latent_wgmma left of a row.
#pragma once

#include "backend/cuda/kernel/latent/latent_work.h"
#include "backend/cuda/kernel/primitive/bf16.h"

namespace spate::cuda {

// The parts of a row of an item: those that CTAs first_team * team_size + member, ... left.
struct LatentRowParts {
  int first_team, last_team, member;
  int in_item;  // the row

  // In a slot, where the row has a quad of its columns.
  __device__ int quad_at(int quad) const {
    const int thread = in_item / 16 * kWarpSize + in_item % 8 * 4 + quad % 4;
    return static_cast<int>(LatentSums::quad_of(0, quad / 64, in_item / 8 % 2, quad % 64 / 4, thread));
  }
};

__device__ inline LatentRowParts parts_of(const LatentWgmmaKernelParams& p, const LatentSplit& split,
                                          const LatentSequence& s, int seq_first_unit, int token, int head) {
  const int row = (token - s.first_token) * p.attention.num_heads + head;
  const int item = row / kLatentRows;
  const int first_unit = seq_first_unit + item / p.team_size * s.num_tiles;
  return {split.first_team(first_unit, s.num_tiles), split.last_team(first_unit, s.num_tiles), item % p.team_size,
          row % kLatentRows};
}

__device__ inline void add_part(float4& sum, float weight, const float4& part) {
  sum.x = __fmaf_rn(weight, part.x, sum.x);
  sum.y = __fmaf_rn(weight, part.y, sum.y);
  sum.z = __fmaf_rn(weight, part.z, sum.z);
  sum.w = __fmaf_rn(weight, part.w, sum.w);
}
__device__ inline void add_part(float& sum, float weight, float part) { sum = __fmaf_rn(weight, part, sum); }
__device__ inline float4 over(const float4& sum, float total) {
  return make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
}
__device__ inline float over(float sum, float total) { return sum / total; }

// A lane's values of a row, quads or single ones, at places[i] of a slot, kAhead parts at once. Calls use(i, merged).
template <int kAhead, typename Value, int kCount>
__device__ inline void merge_parts(const LatentWgmmaKernelParams& p, const LatentRowParts& row,
                                   const int (&places)[kCount], auto use) {
  static_assert(kWarpSize % kAhead == 0);
  const int lane = threadIdx.x % kWarpSize;
  const auto slot_of = [&](int team) {
    return static_cast<int64_t>(2 * (team * p.team_size + row.member) + (team == row.first_team));
  };
  Value parts[kAhead][kCount];
  const auto load_parts = [&](int begin) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j > row.last_team) break;
      const Value* from =
          reinterpret_cast<const Value*>(p.partial_sums + slot_of(begin + j) * kLatentRows * kLatentRank);
#pragma unroll
      for (int i = 0; i < kCount; ++i) parts[j][i] = from[places[i]];
    }
  };
  const auto stats_of = [&](int team) {
    if (team > row.last_team) return make_float2(-kInfinity, 0.0f);
    return *reinterpret_cast<const float2*>(p.partial_stats + (slot_of(team) * kLatentRows + row.in_item) * 2);
  };
  load_parts(row.first_team);
  float2 own = stats_of(row.first_team + lane);  // of part `lane` of 32
  float largest = own.x;
  for (int team = row.first_team + kWarpSize + lane; team <= row.last_team; team += kWarpSize) {
    largest = fmaxf(largest, stats_of(team).x);
  }
  largest = warp_reduce(largest, Max());
  float total = 0.0f, lane_weight = 0.0f;
  Value sums[kCount] = {};
  for (int first = row.first_team; first <= row.last_team; first += kAhead) {
    if (first != row.first_team) load_parts(first);
    const int place = (first - row.first_team) % kWarpSize;
    if (place == 0) {
      if (first != row.first_team) own = stats_of(first + lane);
      lane_weight = exp2f(own.x - largest);
      total += warp_reduce(lane_weight * own.y, Sum());
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const float weight = __shfl_sync(kAllLanes, lane_weight, place + j);
      if (first + j > row.last_team) break;
#pragma unroll
      for (int i = 0; i < kCount; ++i) add_part(sums[i], weight, parts[j][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) use(i, over(sums[i], total));
}

// Where the four of a quad go in a row: two neighbours, and two 8 further.
__device__ inline int quad_column(int quad) { return quad / 4 * 16 + quad % 4 * 2; }
__device__ inline void store_quad(Bf16* row, int quad, const float4& four) {
  Bf16* to = row + quad_column(quad);
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(four.x, four.y);
  *reinterpret_cast<uint32_t*>(to + 8) = pack_bf16(four.z, four.w);
}

}  // namespace spate::cuda
