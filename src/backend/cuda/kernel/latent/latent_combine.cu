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

template <int kRowWarps>
__device__ inline void combine(const LatentWgmmaKernelParams& p, const LatentSplit& split, const LatentSequence& s,
                               int seq_first_unit) {
  constexpr int kQuads = kLatentRank / 4 / kWarpSize / kRowWarps;
  const AttentionLatentKernelParams& a = p.attention;
  const int token = blockIdx.x, lane = threadIdx.x % kWarpSize;
  const int warp = static_cast<int>(blockIdx.y) * kLatentCombineWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int head = warp / kRowWarps, first_quad = warp % kRowWarps * kQuads * kWarpSize + lane;
  if (head >= a.num_heads) return;
  if (token - s.first_token >= s.query_len) return;  // a dummy
  Bf16* out = static_cast<Bf16*>(a.out) + token * a.out_strides[0] + head * a.out_strides[1];
  combine_row<kRowWarps>(p, split, s, seq_first_unit, token, head, first_quad,
                         [&](int quad, const float4& four) { store_quad(out, quad, four); });
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
