// WHAT       Merges the partial sums that several CTAs of attention_latent_wgmma left of an item.
// SHAPES     As LatentWgmmaKernelParams says.
// NUMERICS   f32, the sums in the order of the keys; one rounding. Which kernel runs changes nothing.
// WORK       latent_combine: a warp a row of the items that are cut, each of which the CTA with its second part has
//            noted. latent_combine_1, _4, _16: so many warps each row of a step of fewer rows.
// ROOFLINE   Latency; a part of a row is 2 KB, from L2.
// WARM       0.1 s: fast, bf16, latent
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent_wgmma.h"

#include "backend/cuda/kernel/latent/latent_combine_row.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

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

// kRowWarps warps each row, a part of its columns each.
template <int kRowWarps>
__device__ inline void combine_rows(const LatentWgmmaKernelParams& p) {
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
  if (s.seq_len <= 0 || token - s.first_token >= s.query_len) return;
  s.num_items = 0;
  s.num_tiles = (s.seq_len + kLatentKeys - 1) / kLatentKeys;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = static_cast<int>(blockIdx.y) * kLatentCombineWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int head = warp / kRowWarps;
  if (head >= a.num_heads) return;
  const LatentRowParts row = parts_of(p, split, s, first_unit, token, head);
  if (row.first_team == row.last_team) return;
  Bf16* out = static_cast<Bf16*>(a.out) + token * a.out_strides[0] + head * a.out_strides[1];
  if constexpr (kRowWarps == 16) {  // a column a lane
    const int quad = warp % kRowWarps * (kWarpSize / 4) + lane / 4;
    const int places[1] = {row.quad_at(quad) * 4 + lane % 4};
    out += quad_column(quad) + lane % 4 / 2 * 8 + lane % 2;
    merge_parts<kWarpSize, float>(p, row, places, [&](int, float value) { *out = from_float<Bf16>(value); });
  } else {
    constexpr int kQuads = kLatentRank / 4 / kWarpSize / kRowWarps;
    const int first_quad = warp % kRowWarps * kQuads * kWarpSize + lane;
    int places[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) places[i] = row.quad_at(first_quad + i * kWarpSize);
    merge_parts<4 * kRowWarps, float4>(
        p, row, places, [&](int i, const float4& four) { store_quad(out, first_quad + i * kWarpSize, four); });
  }
}

// A warp a row of the item that CTA blockIdx.x of the attention has the second part of.
__device__ inline void combine_cut(const LatentWgmmaKernelParams& p) {
  const AttentionLatentKernelParams& a = p.attention;
  const LatentCut cut = p.cuts[blockIdx.x];
  const int lane = threadIdx.x % kWarpSize;
  const int in_item = static_cast<int>(blockIdx.y) * kLatentCombineWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  if (in_item >= cut.num_rows) return;
  const int team = static_cast<int>(blockIdx.x) / p.team_size;
  const LatentRowParts row{team - 1, team - 1 + cut.num_more, static_cast<int>(blockIdx.x) % p.team_size, in_item};
  constexpr int kQuads = kLatentRank / 4 / kWarpSize;
  int places[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) places[i] = row.quad_at(lane + i * kWarpSize);
  const int flat = cut.first_row + in_item, token = flat / a.num_heads;
  Bf16* out = static_cast<Bf16*>(a.out) + (cut.first_token + token) * a.out_strides[0] +
              (flat - token * a.num_heads) * a.out_strides[1];
  merge_parts<4, float4>(p, row, places,
                         [&](int i, const float4& four) { store_quad(out, lane + i * kWarpSize, four); });
}

#define SPATE_COMBINE_KERNEL(name, combine)                                                    \
  extern "C" __global__ void __launch_bounds__(kLatentCombineWarps* kWarpSize, kLatentCombineCtas) \
      name(const __grid_constant__ LatentWgmmaKernelParams p) {                                    \
    let_dependents_launch();                                                                       \
    wait_for_inputs();                                                                             \
    combine(p);                                                                                    \
  }
SPATE_COMBINE_KERNEL(latent_combine, combine_cut)
SPATE_COMBINE_KERNEL(latent_combine_1, combine_rows<1>)
SPATE_COMBINE_KERNEL(latent_combine_4, combine_rows<4>)
SPATE_COMBINE_KERNEL(latent_combine_16, combine_rows<16>)

}  // namespace spate::cuda
