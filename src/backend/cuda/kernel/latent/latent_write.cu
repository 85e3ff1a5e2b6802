// WHAT       The latent vector of each token to its slot of the paged cache.
// SHAPES     latent [num_tokens, width] act, row stride free; slot_mapping [num_tokens] i32, -1 skips.
// LAYOUT     latent.h; the padding becomes zeros.
// NUMERICS   One rounding when act is f32 and the cache bf16; codes as primitive/codes.h has them.
// WORK       grid.x tokens; a thread a piece of 8 elements.
// ROOFLINE   Latency: 1,152 bytes a token.
// WARM       0.1 s: latent
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent.h"

#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

template <typename Act, typename Kv>
__device__ inline void latent_write(const LatentWriteKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int32_t slot = p.slot_mapping[token];
  if (slot < 0) return;
  const Act* from = static_cast<const Act*>(p.latent) + token * p.latent_stride;
  char* block = static_cast<char*>(p.kv.data) + slot / p.kv.kv_block_size * p.kv.block_bytes;
  Kv* to = reinterpret_cast<Kv*>(block) + slot % p.kv.kv_block_size * p.kv.padded_width;
  for (int first = threadIdx.x * kPieceElems; first < p.kv.padded_width; first += blockDim.x * kPieceElems) {
    const Piece<Act> piece = load_piece(from, first, p.kv.width, p.is_aligned);
    float values[kPieceElems];
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) values[i] = value_of(piece, i);
    store_piece(to, first, p.kv.padded_width, true, to_piece<Kv>(values));
  }
}

// Every piece has a thread.
template <typename Act>
__device__ inline void latent_write_codes(const LatentWriteKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int32_t slot = p.slot_mapping[token];
  if (slot < 0) return;
  const int first = static_cast<int>(threadIdx.x) * kPieceElems, rank = p.kv.kv_lora_rank;
  const Piece<Act> piece =
      load_piece(static_cast<const Act*>(p.latent) + token * p.latent_stride, first, p.kv.width, p.is_aligned);
  float tops[2] = {};
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) {
    const float magnitude = magnitude_of(value_of(piece, i));
    tops[0] = Max()(tops[0], first + i < rank ? magnitude : 0.0f);
    tops[1] = Max()(tops[1], first + i < rank ? 0.0f : magnitude);
  }
  CodeScale scales[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) scales[i] = code_scale(block_reduce(tops[i], Max()));
  if (first >= p.kv.padded_width) return;
  int codes[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) {
    codes[i] = code_of(value_of(piece, i), first + i < rank ? scales[0].inverse : scales[1].inverse);
  }
  char* block = static_cast<char*>(p.kv.data) + slot / p.kv.kv_block_size * p.kv.block_bytes;
  const int in_block = slot % p.kv.kv_block_size;
  *reinterpret_cast<uint2*>(block + int64_t{in_block} * p.kv.padded_width + first) = pack_codes(codes);
  if (first > 0) return;
  float* to = p.kv.scales(block, in_block);
  to[0] = scales[0].scale;
  to[1] = scales[1].scale;
}

extern "C" __global__ void latent_write_bf16_int8(const __grid_constant__ LatentWriteKernelParams p) {
  latent_write_codes<Bf16>(p);
}
extern "C" __global__ void latent_write_f32_int8(const __grid_constant__ LatentWriteKernelParams p) {
  latent_write_codes<float>(p);
}
extern "C" __global__ void latent_write_bf16_bf16(const __grid_constant__ LatentWriteKernelParams p) {
  latent_write<Bf16, Bf16>(p);
}
extern "C" __global__ void latent_write_f32_bf16(const __grid_constant__ LatentWriteKernelParams p) {
  latent_write<float, Bf16>(p);
}
extern "C" __global__ void latent_write_f32_f32(const __grid_constant__ LatentWriteKernelParams p) {
  latent_write<float, float>(p);
}

}  // namespace spate::cuda
