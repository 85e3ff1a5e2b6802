// Merges the partial sums that several CTAs of attention_latent_wgmma left of a row.
#pragma once

#include "backend/cuda/kernel/latent/latent_work.h"
#include "backend/cuda/kernel/primitive/bf16.h"

namespace spate::cuda {

// A lane's quads of a row of a token and head, quads first_quad, first_quad + 32, ... of the row. Calls
// use(quad of the row, the merged four). Does nothing where one CTA has finished the row.
template <int kRowWarps>
__device__ inline void combine_row(const LatentWgmmaKernelParams& p, const LatentSplit& split, const LatentSequence& s,
                                   int seq_first_unit, int token, int head, int first_quad, auto use) {
  constexpr int kQuads = kLatentRank / 4 / kWarpSize / kRowWarps;
  constexpr int kAhead = kRowWarps == 1 ? 4 : 16;  // parts that are read at once
  const AttentionLatentKernelParams& a = p.attention;
  const int lane = threadIdx.x % kWarpSize;
  const int row = (token - s.first_token) * a.num_heads + head;
  const int item = row / kLatentRows, member = item % p.team_size;
  const int first_unit = seq_first_unit + item / p.team_size * s.num_tiles;
  const int first_team = split.first_team(first_unit, s.num_tiles),
            last_team = split.last_team(first_unit, s.num_tiles);
  if (first_team == last_team) return;

  const auto slot_of = [&](int team) {
    return static_cast<int64_t>(2 * (team * p.team_size + member) + (team == first_team));
  };
  const int in_item = row % kLatentRows;
  int quads[kQuads];  // in a slot
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int quad = first_quad + i * kWarpSize, thread = in_item / 16 * kWarpSize + in_item % 8 * 4 + quad % 4;
    quads[i] = static_cast<int>(LatentSums::quad_of(0, quad / 64, in_item / 8 % 2, quad % 64 / 4, thread));
  }
  float4 parts[kAhead][kQuads];
  const auto load_parts = [&](int begin) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j > last_team) break;
      const float4* from =
          reinterpret_cast<const float4*>(p.partial_sums) + LatentSums::quad_of(slot_of(begin + j), 0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) parts[j][i] = from[quads[i]];
    }
  };
  load_parts(first_team);
  float largest = -kInfinity;
  for (int team = first_team + lane; team <= last_team; team += kWarpSize) {
    largest = fmaxf(largest, p.partial_stats[(slot_of(team) * kLatentRows + in_item) * 2]);
  }
  largest = warp_reduce(largest, Max());
  float total = 0.0f, lane_weight = 0.0f;  // of part `lane` of 32
  float4 sums[kQuads] = {};
  for (int first = first_team; first <= last_team; first += kAhead) {
    if (first != first_team) load_parts(first);
    const int place = (first - first_team) % kWarpSize;
    if (place == 0) {
      const int team = first + lane;
      float part_total = 0.0f;
      lane_weight = 0.0f;
      if (team <= last_team) {
        const float2 stats =
            *reinterpret_cast<const float2*>(p.partial_stats + (slot_of(team) * kLatentRows + in_item) * 2);
        lane_weight = exp2f(stats.x - largest);
        part_total = lane_weight * stats.y;
      }
      total += warp_reduce(part_total, Sum());
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const float weight = __shfl_sync(kAllLanes, lane_weight, place + j);
      if (first + j > last_team) break;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        sums[i].x = __fmaf_rn(weight, parts[j][i].x, sums[i].x);
        sums[i].y = __fmaf_rn(weight, parts[j][i].y, sums[i].y);
        sums[i].z = __fmaf_rn(weight, parts[j][i].z, sums[i].z);
        sums[i].w = __fmaf_rn(weight, parts[j][i].w, sums[i].w);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    use(first_quad + i * kWarpSize,
        make_float4(sums[i].x / total, sums[i].y / total, sums[i].z / total, sums[i].w / total));
  }
}

// Where the four of a quad go in a row: two neighbours, and two 8 further.
__device__ inline void store_quad(Bf16* row, int quad, const float4& four) {
  Bf16* to = row + quad / 4 * 16 + quad % 4 * 2;
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(four.x, four.y);
  *reinterpret_cast<uint32_t*>(to + 8) = pack_bf16(four.z, four.w);
}

}  // namespace spate::cuda
