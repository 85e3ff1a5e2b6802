// expand_kv.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/attention/attention_paged.h"

namespace spate::cuda {

constexpr int kExpandWarps = 8;
constexpr int kExpandPieceCodes = 2048;  // of neighbouring rows: what a warp takes at once

// The expanded blocks of a bounded workspace may not hold all sequences of a step: pass i takes the i-th run of
// sequences that fit.
struct ExpandKvParams {
  AttentionPagedKernelParams attention;  // over the INT8 cache
  KvLayout expanded;                     // block_bytes: expanded_block_bytes()
  int32_t* block_table;                  // [num_seqs, block_table_stride], written for the sequences of this pass
  int32_t* seq_rows;                     // [num_seqs]: 0, 1, 2, ...
  int32_t* seq_lens;                     // [num_seqs]: of the sequences of this pass; of others 0
  int32_t block_table_stride;
  int32_t num_blocks;  // of `expanded`
  int32_t pass_idx;
};

// A block of a bf16 cache, then the scales of k, [num_kv_heads][kv_block_size] f32.
SPATE_HOST_DEVICE constexpr int64_t expanded_scales_offset(const KvLayout& kv) {
  return int64_t{2} * kv.num_kv_heads * kv.kv_block_size * kv.head_dim * 2;
}
SPATE_HOST_DEVICE constexpr int64_t expanded_block_bytes(const KvLayout& kv) {
  return expanded_scales_offset(kv) + int64_t{kv.num_kv_heads} * kv.kv_block_size * 4;
}

}  // namespace spate::cuda
