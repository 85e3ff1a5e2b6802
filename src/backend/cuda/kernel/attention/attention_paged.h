#pragma once

#include <cstdint>

#include "backend/cuda/kernel/kv/kv_layout.h"

namespace spate::cuda {

constexpr int kAttentionNumWarps = 4;
constexpr int kAttentionHeadTile = 4;  // query heads of one kv head that a CTA serves
constexpr int kAttentionMaxHeadDim = 256;

struct AttentionPagedKernelParams {
  const void* q;                // [num_tokens, num_heads, head_dim]
  void* out;                    // as q
  const int32_t* block_table;   // [max_num_seqs, block_table_stride]
  const int32_t* seq_rows;      // [num_seqs]
  const int32_t* cu_seqlens_q;  // [num_seqs + 1]
  const int32_t* seq_lens;      // [num_seqs]
  int64_t q_token_stride;
  int64_t q_head_stride;
  int64_t out_token_stride;
  int64_t out_head_stride;
  int64_t block_table_stride;
  KvLayout kv;
  int32_t num_seqs;
  int32_t heads_per_kv_head;
  int32_t window;             // 0: all keys
  int32_t skips_decodes;      // of the prefill kernels on wgmma: sequences of one query token are another kernel's
  float softmax_scale_log2e;  // softmax_scale * log2(e): the kernel works in powers of two
};

}  // namespace spate::cuda
