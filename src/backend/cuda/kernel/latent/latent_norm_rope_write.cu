// WHAT       rms_norm of the first kv_lora_rank elements of a latent vector, rope of the others, the vector to its slot
// of the
//            paged cache; rope of the queries' part. One launch in place of four.
// SHAPES     As LatentNormRopeWriteKernelParams says, bf16. The latent vectors stay as they were.
// LAYOUT     latent.h; the padding becomes zeros. Pairs as rope.cu has them.
// NUMERICS   The bits of rms_norm, rope and latent_write one after the other.
// WORK       grid.x tokens. The first CTA of a token has the latent vector, a piece of 8 elements a thread; the others
// share the
//            pairs of its heads.
// ROOFLINE   Latency: 2 KB a token and 16 heads.
// WARM       0.2 s: bf16, latent
// LIMITS     kv_lora_rank a multiple of 8, at most 1,024.
// TESTS      spate-conformance --backend cuda --filter latent_norm_rope_write
#include "backend/cuda/kernel/latent/latent_norm_rope_write.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

// (a, b) of pair `pair` of x, rotated, to the same places of `to`.
__device__ inline void rotate_pair(const LatentNormRopeWriteKernelParams& p, const float* cos, int half, int pair,
                                   const Bf16* x, Bf16* to) {
  const int first = p.is_interleaved ? 2 * pair : pair, second = p.is_interleaved ? 2 * pair + 1 : pair + half;
  const float a = to_float(x[first]), b = to_float(x[second]), c = cos[pair], s = cos[half + pair];
  to[first] = from_float<Bf16>(a * c - b * s);
  to[second] = from_float<Bf16>(b * c + a * s);
}

extern "C" __global__ void __launch_bounds__(kLatentWriteThreads)
    latent_norm_rope_write(const __grid_constant__ LatentNormRopeWriteKernelParams p) {
  let_dependents_launch();
  const LatentLayout& kv = p.write.kv;
  const int64_t token = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), rank = kv.kv_lora_rank, half = (kv.width - rank) / 2;
  Piece<Bf16> weight = {};
  if (blockIdx.y == 0) weight = load_constant_piece(static_cast<const Bf16*>(p.norm), thread * kPieceElems, rank, true);
  wait_for_inputs();
  const float* cos = p.cos_sin + p.positions[token] * p.cos_sin_stride;
  if (blockIdx.y > 0) {
    const int step = static_cast<int>(gridDim.y - 1) * kLatentWriteThreads;
    for (int i = static_cast<int>(blockIdx.y - 1) * kLatentWriteThreads + thread; i < p.num_heads * half; i += step) {
      Bf16* x = static_cast<Bf16*>(p.q_rope) + token * p.q_token_stride + i / half * p.q_head_stride;
      rotate_pair(p, cos, half, i % half, x, x);
    }
    return;
  }
  const int32_t slot = p.write.slot_mapping[token];
  const Bf16* latent = static_cast<const Bf16*>(p.write.latent) + token * p.write.latent_stride;
  const Piece<Bf16> piece = load_piece(latent, thread * kPieceElems, rank, true);
  const float inv_rms = inv_rms_of(sum_of_cta(add_squares(piece, 0.0f)), rank, p.eps);
  if (slot < 0) return;
  char* block = static_cast<char*>(kv.data) + slot / kv.kv_block_size * kv.block_bytes;
  Bf16* to = reinterpret_cast<Bf16*>(block) + slot % kv.kv_block_size * kv.padded_width;
  store_piece(to, thread * kPieceElems, rank, true, normalized(piece, weight, inv_rms));
  for (int pair = thread; pair < half; pair += kLatentWriteThreads) {
    rotate_pair(p, cos, half, pair, latent + rank, to + rank);
  }
  for (int i = kv.width + thread; i < kv.padded_width; i += kLatentWriteThreads) to[i] = from_float<Bf16>(0.0f);
}

}  // namespace spate::cuda
