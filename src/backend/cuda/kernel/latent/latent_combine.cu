// WHAT       Merges the partial sums that several CTAs of attention_latent_wgmma left of an item.
// SHAPES     As LatentWgmmaKernelParams says.
// NUMERICS   f32, the parts in the order of the keys; one rounding.
// WORK       A warp a row (query token, head); a lane has 16 columns. Rows that one CTA has finished end at once.
// ROOFLINE   Latency; a part of a row is 2 KB, from L2.
// WARM       0.1 s: fast, bf16, latent
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent_wgmma.h"

#include "backend/cuda/kernel/latent/latent_work.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

// The last sequence that starts at or before a token.
__device__ inline int find_seq(const AttentionLatentKernelParams& p, int token) {
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

extern "C" __global__ void __launch_bounds__(kLatentCombineWarps* kWarpSize)
    latent_combine(const __grid_constant__ LatentWgmmaKernelParams p) {
  constexpr int kQuads = kLatentRank / 4 / kWarpSize;
  let_dependents_launch();
  wait_for_inputs();
  const AttentionLatentKernelParams& a = p.attention;
  const int token = blockIdx.x, lane = threadIdx.x % kWarpSize;
  const int head = static_cast<int>(blockIdx.y) * kLatentCombineWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (head >= a.num_heads) return;
  const int seq = find_seq(a, token);
  const LatentSequence s = latent_sequence(a, seq);
  const int row = (token - s.first_token) * a.num_heads + head;
  if (token - s.first_token >= s.query_len) return;  // a dummy
  const int item = row / kLatentRows, member = item % p.team_size;
  const int first_unit = p.first_unit[seq] + item / p.team_size * s.num_tiles;
  const int num_of_team = units_of_team(*p.num_units, p.num_ctas / p.team_size);
  const int first_team = first_unit / num_of_team, last_team = (first_unit + s.num_tiles - 1) / num_of_team;
  if (first_team == last_team) return;

  const auto slot_of = [&](int team) {
    return static_cast<int64_t>(2 * (team * p.team_size + member) + (team == first_team)) * kLatentRows + row % kLatentRows;
  };
  float largest = -kInfinity;
  for (int team = first_team + lane; team <= last_team; team += kWarpSize) {
    largest = fmaxf(largest, p.partial_stats[slot_of(team) * 2]);
  }
  largest = warp_reduce(largest, Max());
  float total = 0.0f;
  float4 sums[kQuads] = {};
#pragma unroll 4
  for (int team = first_team; team <= last_team; ++team) {
    const int64_t slot = slot_of(team);
    const float2 stats = *reinterpret_cast<const float2*>(p.partial_stats + slot * 2);
    const float weight = exp2f(stats.x - largest);
    total = __fmaf_rn(weight, stats.y, total);
    const float4* from = reinterpret_cast<const float4*>(p.partial_sums + slot * kLatentRank) + lane;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4 part = from[i * kWarpSize];
      sums[i].x = __fmaf_rn(weight, part.x, sums[i].x);
      sums[i].y = __fmaf_rn(weight, part.y, sums[i].y);
      sums[i].z = __fmaf_rn(weight, part.z, sums[i].z);
      sums[i].w = __fmaf_rn(weight, part.w, sums[i].w);
    }
  }
  Bf16* out = static_cast<Bf16*>(a.out) + token * a.out_strides[0] + head * a.out_strides[1];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const uint2 packed = {pack_bf16(sums[i].x / total, sums[i].y / total), pack_bf16(sums[i].z / total, sums[i].w / total)};
    *reinterpret_cast<uint2*>(out + (i * kWarpSize + lane) * 4) = packed;
  }
}

}  // namespace spate::cuda
