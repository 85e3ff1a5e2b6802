// WHAT       Merges the partial sums that several CTAs of attention_latent_wgmma left of an item.
// SHAPES     As LatentWgmmaKernelParams says.
// NUMERICS   f32, the sums in the order of the keys; one rounding. row_warps changes nothing.
// WORK       A warp a row (query token, head), or four where rows are few, a quarter of the columns each. A lane has
//            quads of a row as LatentSums has them. Rows that one CTA has finished end at once.
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
__device__ inline void combine(const LatentWgmmaKernelParams& p, const LatentSplit& split, const LatentSequence& s,
                               int seq_first_unit) {
  constexpr int kQuads = kLatentRank / 4 / kWarpSize / kRowWarps;
  constexpr int kAhead = kRowWarps == 1 ? 4 : 16;  // parts that are read at once
  const AttentionLatentKernelParams& a = p.attention;
  const int token = blockIdx.x, lane = threadIdx.x % kWarpSize;
  const int warp = static_cast<int>(blockIdx.y) * kLatentCombineWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int head = warp / kRowWarps, first_quad = warp % kRowWarps * kQuads * kWarpSize + lane;
  if (head >= a.num_heads) return;
  const int row = (token - s.first_token) * a.num_heads + head;
  if (token - s.first_token >= s.query_len) return;  // a dummy
  const int item = row / kLatentRows, member = item % p.team_size;
  const int first_unit = seq_first_unit + item / p.team_size * s.num_tiles;
  const int first_team = split.first_team(first_unit, s.num_tiles), last_team = split.last_team(first_unit, s.num_tiles);
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
        const float2 stats = *reinterpret_cast<const float2*>(p.partial_stats + (slot_of(team) * kLatentRows + in_item) * 2);
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
    const int quad = first_quad + i * kWarpSize;
    Bf16* to = out + quad / 4 * 16 + quad % 4 * 2;
    *reinterpret_cast<uint32_t*>(to) = pack_bf16(sums[i].x / total, sums[i].y / total);
    *reinterpret_cast<uint32_t*>(to + 8) = pack_bf16(sums[i].z / total, sums[i].w / total);
  }
}

extern "C" __global__ void __launch_bounds__(kLatentCombineWarps* kWarpSize, kLatentCombineCtas)
    latent_combine(const __grid_constant__ LatentWgmmaKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  // Read at once, as if each token was a sequence.
  const AttentionLatentKernelParams& a = p.attention;
  const int token = blockIdx.x;
  int seq = min(token, a.num_seqs - 1);
  LatentSequence s;
  s.first_token = a.cu_seqlens_q[seq];
  s.query_len = a.cu_seqlens_q[seq + 1] - s.first_token;
  s.seq_len = a.seq_lens[seq];
  int first_unit = p.first_unit[seq];
  const LatentSplit split{p.split[0], p.split[1]};
  if (split.reach == LatentSplit::kUncut) return;
  if (s.first_token != token || s.query_len < 1) {
    seq = find_seq(a, token);
    s.first_token = a.cu_seqlens_q[seq];
    s.query_len = a.cu_seqlens_q[seq + 1] - s.first_token;
    s.seq_len = a.seq_lens[seq];
    first_unit = p.first_unit[seq];
  }
  if (s.seq_len <= 0) return;
  s.num_items = 0;
  s.num_tiles = (s.seq_len + kLatentKeys - 1) / kLatentKeys;
  if (p.row_warps == kLatentRowWarps) {
    combine<kLatentRowWarps>(p, split, s, first_unit);
  } else {
    combine<1>(p, split, s, first_unit);
  }
}

}  // namespace spate::cuda
