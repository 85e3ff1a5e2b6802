// WHAT       Merges the partial sums that several CTAs of attention_latent_wgmma left of an item.
// SHAPES     As LatentWgmmaKernelParams says.
// NUMERICS   f32, the sums in the order of the keys; one rounding. row_warps changes nothing.
// WORK       A warp a row (query token, head), or four where rows are few, a quarter of the columns each. A lane has 4
//            columns in a row. Rows that one CTA has finished end at once.
// ROOFLINE   Latency; a part of a row is 2 KB, from L2.
// WARM       0.1 s: fast, bf16, latent
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent_wgmma.h"

#include "backend/cuda/kernel/latent/latent_work.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

constexpr uint32_t kAllLanes = 0xffffffffu;

// The last sequence that starts at or before a token.
__device__ inline int find_seq(const AttentionLatentKernelParams& p, int token) {
  // One query token each.
  if (token < p.num_seqs && p.cu_seqlens_q[token] == token && p.cu_seqlens_q[token + 1] > token) return token;
  int low = 0, high = p.num_seqs - 1;
  while (low < high) {
    const int mid = (low + high + 1) / 2;
    if (p.cu_seqlens_q[mid] <= token) {
      low = mid;
    } else {
      high = mid - 1;
    }
  }
  return low;
}

template <int kRowWarps>
__device__ inline void combine(const LatentWgmmaKernelParams& p, const LatentSplit& split) {
  constexpr int kQuads = kLatentRank / 4 / kWarpSize / kRowWarps;
  constexpr int kAhead = kRowWarps == 1 ? 2 : 8;  // parts that are read at once
  const AttentionLatentKernelParams& a = p.attention;
  const int token = blockIdx.x, lane = threadIdx.x % kWarpSize;
  const int warp = static_cast<int>(blockIdx.y) * kLatentCombineWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int head = warp / kRowWarps, first_quad = warp % kRowWarps * kQuads * kWarpSize + lane;
  if (head >= a.num_heads) return;
  const int seq = find_seq(a, token);
  const LatentSequence s = latent_sequence(a, seq);
  const int row = (token - s.first_token) * a.num_heads + head;
  if (token - s.first_token >= s.query_len) return;  // a dummy
  const int item = row / kLatentRows, member = item % p.team_size;
  const int first_unit = p.first_unit[seq] + item / p.team_size * s.num_tiles;
  const int first_team = split.first_team(first_unit, s.num_tiles), last_team = split.last_team(first_unit, s.num_tiles);
  if (first_team == last_team) return;

  const auto slot_of = [&](int team) {
    return static_cast<int64_t>(2 * (team * p.team_size + member) + (team == first_team)) * kLatentRows + row % kLatentRows;
  };
  float4 parts[kAhead][kQuads];
  const auto load_parts = [&](int first) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const float* from = p.partial_sums + slot_of(min(first + j, last_team)) * kLatentRank;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        parts[j][i] = *(reinterpret_cast<const float4*>(from) + first_quad + i * kWarpSize);
      }
    }
  };
  load_parts(first_team);
  float largest = -kInfinity;
  for (int team = first_team + lane; team <= last_team; team += kWarpSize) {
    largest = fmaxf(largest, p.partial_stats[slot_of(team) * 2]);
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
        const float2 stats = *reinterpret_cast<const float2*>(p.partial_stats + slot_of(team) * 2);
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
  Bf16* out = static_cast<Bf16*>(a.out) + token * a.out_strides[0] + head * a.out_strides[1];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const uint2 packed = {pack_bf16(sums[i].x / total, sums[i].y / total), pack_bf16(sums[i].z / total, sums[i].w / total)};
    *reinterpret_cast<uint2*>(out + (first_quad + i * kWarpSize) * 4) = packed;
  }
}

extern "C" __global__ void __launch_bounds__(kLatentCombineWarps* kWarpSize, kLatentCombineCtas)
    latent_combine(const __grid_constant__ LatentWgmmaKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const LatentSplit split{p.split[0], p.split[1]};
  if (split.reach == LatentSplit::kUncut) return;
  if (p.row_warps == kLatentRowWarps) {
    combine<kLatentRowWarps>(p, split);
  } else {
    combine<1>(p, split);
  }
}

}  // namespace spate::cuda
