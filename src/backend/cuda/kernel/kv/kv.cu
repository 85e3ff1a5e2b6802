// WHAT       kv_write:        k and v of each token to its slot of the paged cache.
//            kv_copy_blocks:  whole blocks inside one layer's cache.
// SHAPES     k, v [num_tokens, num_kv_heads, head_dim] act, outer strides free; slot_mapping [num_tokens] i32, -1
//            skips; src_dst [num_copies, 2] i32, no id both source and destination.
// LAYOUT     kv_layout.h; a block's bytes are a multiple of 16.
// NUMERICS   One rounding when act is f32 and the cache bf16. An int8 cache: codes and a scale a head as
//            quantize_activations() gives them.
// WORK       kv_write: grid.x tokens, grid.y parts of a token's heads; a thread a piece of 8 elements. kv_copy_blocks:
// grid.x copies, grid.y pieces of a block. ROOFLINE   Memory. Not tuned. LIMITS     None. TESTS      spate-conformance
// --backend cuda --filter kv_write, --filter kv_copy_blocks
#include "backend/cuda/kernel/kv/kv.h"

#include "backend/cuda/kernel/kv/write_codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

template <typename Act, typename Kv>
__device__ inline void kv_write(const KvWriteKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int32_t slot = p.slot_mapping[token];
  const int pieces_of_head = p.kv.padded_head_dim / kPieceElems;
  const int piece_idx = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int row = piece_idx / pieces_of_head,
            first = piece_idx % pieces_of_head * kPieceElems;  // k heads, then v heads
  if (slot < 0 || row >= 2 * p.kv.num_kv_heads) return;
  const int part = row / p.kv.num_kv_heads, head = row % p.kv.num_kv_heads;
  const Act* source = part == 0 ? static_cast<const Act*>(p.k) + token * p.k_token_stride + head * p.k_head_stride
                                : static_cast<const Act*>(p.v) + token * p.v_token_stride + head * p.v_head_stride;
  const Piece<Act> piece = load_piece(source, first, p.kv.head_dim, p.is_aligned);
  float values[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) values[i] = value_of(piece, i);
  char* block = static_cast<char*>(p.kv.data) + slot / p.kv.kv_block_size * p.kv.block_bytes;
  Kv* to = reinterpret_cast<Kv*>(block) + p.kv.row_offset(part, head, slot % p.kv.kv_block_size);
  store_piece(to, first, p.kv.padded_head_dim, true, to_piece<Kv>(values));
}

// A head is lanes_per_head lanes, a piece each.
template <typename Act>
__device__ inline void kv_write_codes(const KvWriteKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int32_t slot = p.slot_mapping[token];
  const int piece_idx = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int row = piece_idx / p.lanes_per_head, first = piece_idx % p.lanes_per_head * kPieceElems;
  const bool exists = slot >= 0 && row < 2 * p.kv.num_kv_heads;
  const int part = row / p.kv.num_kv_heads, head = row % p.kv.num_kv_heads;
  float values[kPieceElems] = {};
  if (exists && first < p.kv.head_dim) {
    const Act* source = part == 0 ? static_cast<const Act*>(p.k) + token * p.k_token_stride + head * p.k_head_stride
                                  : static_cast<const Act*>(p.v) + token * p.v_token_stride + head * p.v_head_stride;
    const Piece<Act> piece = load_piece(source, first, p.kv.head_dim, p.is_aligned);
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) values[i] = value_of(piece, i);
  }
  write_codes(p.kv, part, head, slot, first, values, p.lanes_per_head, exists);
}

struct alignas(16) Bytes16 {
  uint64_t words[2];
};

extern "C" __global__ void kv_write_bf16_bf16(const __grid_constant__ KvWriteKernelParams p) {
  kv_write<Bf16, Bf16>(p);
}
extern "C" __global__ void kv_write_f32_bf16(const __grid_constant__ KvWriteKernelParams p) {
  kv_write<float, Bf16>(p);
}
extern "C" __global__ void kv_write_f32_f32(const __grid_constant__ KvWriteKernelParams p) {
  kv_write<float, float>(p);
}

extern "C" __global__ void kv_write_bf16_int8(const __grid_constant__ KvWriteKernelParams p) {
  kv_write_codes<Bf16>(p);
}
extern "C" __global__ void kv_write_f32_int8(const __grid_constant__ KvWriteKernelParams p) {
  kv_write_codes<float>(p);
}

extern "C" __global__ void kv_copy_blocks(const __grid_constant__ KvCopyBlocksKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const int32_t* ids = p.src_dst + blockIdx.x * p.src_dst_stride;
  const int64_t num_units = p.kv.block_bytes / 16;
  const Bytes16* src =
      reinterpret_cast<const Bytes16*>(static_cast<const char*>(p.kv.data) + ids[0] * p.kv.block_bytes);
  Bytes16* dst = reinterpret_cast<Bytes16*>(static_cast<char*>(p.kv.data) + ids[1] * p.kv.block_bytes);
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; i < num_units; i += step)
    dst[i] = src[i];
}

}  // namespace spate::cuda
