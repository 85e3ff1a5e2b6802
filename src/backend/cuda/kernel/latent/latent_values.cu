// WHAT       latent_combine of one token, and the up-projection of what it gives: one launch in place of two.
// SHAPES     As LatentValuesKernelParams says.
// NUMERICS   latent_combine's bits, then fp32 sums of 8 elements a lane and over the lanes.
// WORK       A CTA merges a whole head, as others do that have other rows of it; each of its 4 warps then has 4 rows of
//            W, which it has loaded before the wait for attention.
// ROOFLINE   Latency.
// WARM       0.3 s: fast, bf16, latent-bf16
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter latent_attention
#include "backend/cuda/kernel/latent/latent_joined.h"

#include "backend/cuda/kernel/latent/latent_combine_row.h"
#include "backend/cuda/kernel/latent/latent_short_merge.h"
#include "backend/cuda/kernel/linear/row_results.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

// Two CTAs of it and one of expert_chain have the registers of an SM: with 126 a thread, the chain began when it ended.
extern "C" __global__ void __launch_bounds__(kLatentValuesWarps* kWarpSize, 7)
    latent_values(const __grid_constant__ LatentValuesKernelParams p) {
  constexpr int kPieces = kLatentRank / kPieceElems / kWarpSize;
  __shared__ __align__(16) Bf16 x[kLatentRank];
  __shared__ uint4 all_weights[kLatentValuesWarps][kLatentValuesRows][kPieces][kWarpSize];
  let_dependents_launch();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int head = static_cast<int>(blockIdx.y);
  const int first_row = (static_cast<int>(blockIdx.x) * kLatentValuesWarps + warp) * kLatentValuesRows;  // of the head
#pragma unroll
  for (int r = 0; r < kLatentValuesRows; ++r) {
    const bool exists = first_row + r < p.out_features;
    const char* row = p.weight + (head * p.out_features + (exists ? first_row + r : 0)) * p.weight_row_bytes;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      copy_async_16(shared_address(&all_weights[warp][r][i][lane]), row + (i * kWarpSize + lane) * 16, exists);
    }
  }
  commit_copies();
  wait_for_inputs();
  if (p.shorter.num_parts > 0) {
    static_assert(kLatentValuesWarps * kWarpSize * 4 == kLatentRank);
    const int quad = static_cast<int>(threadIdx.x);
    store_quad(x, quad, merge_short_parts(p.shorter, head / kLatentRows, head % kLatentRows, quad));
  } else {
    const AttentionLatentKernelParams& a = p.attention.attention;
    LatentSequence s;
    s.first_token = 0;
    s.query_len = 1;
    s.num_items = 1;
    s.seq_len = a.seq_lens[0];
    s.num_tiles = (s.seq_len + kLatentKeys - 1) / kLatentKeys;
    const LatentSplit split{p.attention.split[0], p.attention.split[1]};
    const bool is_whole = s.seq_len <= 0 || split.reach == LatentSplit::kUncut ||
                          split.first_team(0, s.num_tiles) == split.last_team(0, s.num_tiles);
    if (is_whole) {
      const Bf16* from = static_cast<const Bf16*>(a.out) + head * a.out_strides[1];
      const int at = static_cast<int>(threadIdx.x) * kPieceElems;
      if (at < kLatentRank) store_piece(x, at, kLatentRank, true, load_piece(from, at, kLatentRank, true));
    } else {
      const LatentRowParts row = parts_of(p.attention, split, s, 0, 0, head);
      const int quad = warp * kWarpSize + lane, places[1] = {row.quad_at(quad)};
      merge_parts<8, float4>(p.attention, row, places, [&](int, const float4& four) { store_quad(x, quad, four); });
    }
  }
  wait_copies<0>();
  __syncthreads();
  float sums[kLatentValuesRows] = {};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const uint4 words = *reinterpret_cast<const uint4*>(x + (i * kWarpSize + lane) * kPieceElems);
    const Piece<Bf16> piece{{words.x, words.y, words.z, words.w}};
#pragma unroll
    for (int r = 0; r < kLatentValuesRows; ++r) {
      const uint4 row = all_weights[warp][r][i][lane];
      const Piece<Bf16> weight{{row.x, row.y, row.z, row.w}};
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) sums[r] = __fmaf_rn(value_of(piece, j), value_of(weight, j), sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kLatentValuesRows; ++r) {
    sums[r] = warp_reduce(sums[r], Sum());
    if (lane == r && first_row + r < p.out_features) {
      static_cast<Bf16*>(p.out)[head * p.out_stride + first_row + r] = from_float<Bf16>(sums[r]);
    }
  }
}

}  // namespace spate::cuda
