#pragma once

#include <cstdint>

#include "backend/cuda/kernel/kv/kv_layout.h"

namespace spate::cuda {

struct KvWriteKernelParams {
  const void* k;  // [num_tokens, num_kv_heads, head_dim]
  const void* v;
  const int32_t* slot_mapping;  // [num_tokens], -1: skip
  int64_t k_token_stride;
  int64_t k_head_stride;
  int64_t v_token_stride;
  int64_t v_head_stride;
  KvLayout kv;
  int32_t is_aligned;      // every row of k and v starts at a multiple of 16 bytes
  int32_t lanes_per_head;  // of an int8 cache: a power of two, 8 * lanes_per_head >= head_dim; at most 32
};

struct KvCopyBlocksKernelParams {
  const int32_t* src_dst;  // [num_copies, 2] block ids
  int64_t src_dst_stride;
  KvLayout kv;
};

}  // namespace spate::cuda
