// What latent_norm_rope_write.cu does of a token, for kernels that do it beside something else.
#pragma once

#include "backend/cuda/kernel/latent/latent_norm_rope_write.h"
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

// Rotates pairs first, first + step, ... of the token's queries.
__device__ inline void rotate_queries(const LatentNormRopeWriteKernelParams& p, int64_t token, int first, int step) {
  const int half = (p.write.kv.width - p.write.kv.kv_lora_rank) / 2;
  const float* cos = p.cos_sin + p.positions[token] * p.cos_sin_stride;
  for (int i = first; i < p.num_heads * half; i += step) {
    Bf16* x = static_cast<Bf16*>(p.q_rope) + token * p.q_token_stride + i / half * p.q_head_stride;
    rotate_pair(p, cos, half, i % half, x, x);
  }
}

// The thread's piece of the norm's weight. Before the wait for the kernel before.
__device__ inline Piece<Bf16> latent_norm_weight(const LatentNormRopeWriteKernelParams& p) {
  return load_constant_piece(static_cast<const Bf16*>(p.norm), static_cast<int>(threadIdx.x) * kPieceElems,
                             p.write.kv.kv_lora_rank, true);
}

// Where nothing that still runs writes them, before the wait: position, angles and slot of the token come near.
__device__ inline void touch_token(const LatentNormRopeWriteKernelParams& p, int64_t token) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int rotary_dim = p.write.kv.width - p.write.kv.kv_lora_rank;
  const float* cos = p.cos_sin + p.positions[token] * p.cos_sin_stride;
  asm volatile("prefetch.global.L1 [%0];" ::"l"(lane == 0 ? static_cast<const void*>(p.write.slot_mapping + token)
                                                          : cos + min(lane - 1, rotary_dim / 8 - 1) * 8));
}

// The latent vector of a token, normed and rotated, goes to its slot. All threads of a CTA call it, once in a kernel.
__device__ inline void write_latent(const LatentNormRopeWriteKernelParams& p, int64_t token,
                                    const Piece<Bf16>& weight) {
  const LatentLayout& kv = p.write.kv;
  const int thread = static_cast<int>(threadIdx.x), num_threads = static_cast<int>(blockDim.x);
  const int rank = kv.kv_lora_rank, half = (kv.width - rank) / 2;
  const float* cos = p.cos_sin + p.positions[token] * p.cos_sin_stride;
  const int32_t slot = p.write.slot_mapping[token];
  const Bf16* latent = static_cast<const Bf16*>(p.write.latent) + token * p.write.latent_stride;
  const Piece<Bf16> piece = load_piece(latent, thread * kPieceElems, rank, true);
  const float inv_rms = inv_rms_of(sum_of_cta(add_squares(piece, 0.0f)), rank, p.eps);
  if (slot < 0) return;
  char* block = static_cast<char*>(kv.data) + slot / kv.kv_block_size * kv.block_bytes;
  Bf16* to = reinterpret_cast<Bf16*>(block) + slot % kv.kv_block_size * kv.padded_width;
  store_piece(to, thread * kPieceElems, rank, true, normalized(piece, weight, inv_rms));
  for (int pair = thread; pair < half; pair += num_threads) {
    rotate_pair(p, cos, half, pair, latent + rank, to + rank);
  }
  for (int i = kv.width + thread; i < kv.padded_width; i += num_threads) to[i] = from_float<Bf16>(0.0f);
}

}  // namespace spate::cuda
