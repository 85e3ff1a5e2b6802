// The latent cache, and attention over it by any kernel.
//
// A block is [kv_block_size][padded width]: the vectors of its tokens follow each other, each padded to 8 elements,
// which keeps them at multiples of 16 bytes. Of codes (int8) they are padded to 16, and behind them the block has the
// scales, [kv_block_size][2] f32: of the compressed and of the rotated elements.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/kv/kv_layout.h"

namespace spate::cuda {

struct LatentLayout {
  void* data;
  int64_t block_bytes;
  int32_t kv_block_size;
  int32_t kv_lora_rank;
  int32_t width;         // kv_lora_rank + qk_rope_head_dim
  int32_t padded_width;  // elements from a token to the next

  // Of codes: the two scales of a token of a block.
  SPATE_HOST_DEVICE float* scales(char* block, int token_in_block) const {
    return reinterpret_cast<float*>(block + int64_t{kv_block_size} * padded_width) + 2 * token_in_block;
  }
};

// Blocks are copied in units of 16 bytes.
SPATE_HOST_DEVICE constexpr int64_t latent_codes_block_bytes(int64_t kv_block_size, int64_t width) {
  return (kv_block_size * (padded_head_dim(width, true) + 8) + 15) / 16 * 16;
}

struct LatentWriteKernelParams {
  const void* latent;           // [num_tokens, width]
  const int32_t* slot_mapping;  // [num_tokens], -1: skip
  int64_t latent_stride;
  LatentLayout kv;
  int32_t is_aligned;  // rows of latent start at multiples of 16 bytes
};

constexpr int kLatentWarps = 4;
constexpr int kLatentHeadTile = 2;   // query heads that a CTA of attention_latent serves
constexpr int kLatentMaxRank = 512;
constexpr int kLatentMaxWidth = 640;

struct AttentionLatentKernelParams {
  const void* q_latent;         // [num_tokens, num_heads, kv_lora_rank]
  const void* q_rope;           // [num_tokens, num_heads, qk_rope_head_dim]
  void* out;                    // [num_tokens, num_heads, kv_lora_rank]
  const int32_t* block_table;   // [max_num_seqs, block_table_stride]
  const int32_t* seq_rows;      // [num_seqs]
  const int32_t* cu_seqlens_q;  // [num_seqs + 1]
  const int32_t* seq_lens;      // [num_seqs]
  int64_t q_latent_strides[2];  // of a token, of a head; elements
  int64_t q_rope_strides[2];
  int64_t out_strides[2];
  int64_t block_table_stride;
  LatentLayout kv;
  int32_t num_seqs;
  int32_t num_heads;
  float softmax_scale_log2e;  // softmax_scale * log2(e): the kernels work in powers of two
};

}  // namespace spate::cuda
