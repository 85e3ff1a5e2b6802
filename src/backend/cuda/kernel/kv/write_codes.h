// A head of k or v to an int8 cache.
#pragma once

#include "backend/cuda/kernel/kv/kv_layout.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

// The lanes of a head, a power of two of neighbours, have 8 elements each: `first` and on, zeros behind the head. All
// lanes of the warp call it; is_written says whose heads go to the cache.
__device__ inline void write_codes(const KvLayout& kv, int part, int head, int slot, int first,
                                   const float (&values)[kPieceElems], int lanes_per_head, bool is_written) {
  float top = 0.0f;
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) top = Max()(top, magnitude_of(values[i]));
  for (int lane_mask = lanes_per_head / 2; lane_mask > 0; lane_mask /= 2) top = Max()(top, shuffle_xor(top, lane_mask));
  if (!is_written || first >= kv.padded_head_dim) return;
  const CodeScale scale = code_scale(top);
  int codes[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) codes[i] = code_of(values[i], scale.inverse);
  const int64_t block_id = slot / kv.kv_block_size;
  const int in_block = slot % kv.kv_block_size;
  char* block = static_cast<char*>(kv.data) + block_id * kv.block_bytes;
  *reinterpret_cast<uint2*>(block + kv.row_offset(part, head, in_block) + first) = pack_codes(codes);
  if (first == 0) kv.scales(block_id)[kv.scale_idx(part, head, in_block)] = scale.scale;
}

}  // namespace spate::cuda
