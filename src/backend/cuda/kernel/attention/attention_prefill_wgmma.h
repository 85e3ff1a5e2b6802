// attention_prefill_wgmma.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/attention/expand_kv.h"
#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

constexpr int kPrefillWgmmaRows = 128;                                    // of a tile: a query token and a head each
constexpr int kPrefillWgmmaKeys = 128;                                    // of a tile
constexpr int kPrefillWgmmaBoxKeys = 16;                                  // of a copy; they lie in one block
constexpr int kPrefillWgmmaStages = 2;                                    // of K, of V, and of Q
constexpr int kPrefillWgmmaConsumers = 2;                                 // warpgroups, 64 rows each
constexpr int kPrefillWgmmaThreads = 128 * (kPrefillWgmmaConsumers + 1);  // and one that loads

// Stages at a multiple of 1,024 bytes, then their barriers, then scales of a stage's keys.
constexpr int prefill_wgmma_shared_bytes(int head_dim, bool has_key_scales = false) {
  return 1024 + kPrefillWgmmaStages * ((kPrefillWgmmaRows + 2 * kPrefillWgmmaKeys) * head_dim * 2 + 6 * 8 +
                                       (has_key_scales ? kPrefillWgmmaKeys * 4 : 0));
}

struct AttentionPrefillWgmmaParams {
  AttentionPagedKernelParams attention;  // over a bf16 cache, or over what expand_kv.cu made of an INT8 cache
  TensorMap q;              // make_heads_map: boxes of kPrefillWgmmaRows / packed_heads tokens by packed_heads
  TensorMap kv;             // make_kv_map: boxes of kPrefillWgmmaBoxKeys
  uint32_t* work_counters;  // [2] 0; the kernel leaves them so
  int32_t packed_heads;     // heads of a kv head that share a tile: a power of two
  int32_t num_head_tiles;   // num_heads / packed_heads
};

}  // namespace spate::cuda
