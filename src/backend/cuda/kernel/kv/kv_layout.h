// Where a token's k and v lie in a block of the paged cache; shared by the host and all kernels that touch the cache.
//
// A block is [k, v][num_kv_heads][kv_block_size][padded_head_dim]: the tokens of one head follow each other, so a warp
// that attends to 32 neighbours reads one run of memory. Heads are padded to 8 elements, which keeps every row 16-byte
// aligned; kv_write fills the padding with zeros.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/host_device.h"

namespace spate::cuda {

constexpr int kHeadDimUnit = 8;

struct KvLayout {
  void* data;
  int64_t block_bytes;
  int32_t num_kv_heads;
  int32_t kv_block_size;
  int32_t head_dim;
  int32_t padded_head_dim;

  // Elements from the start of a block to row `token_in_block` of part 0 (k) or 1 (v) of a head.
  SPATE_HOST_DEVICE int64_t row_offset(int part, int head, int token_in_block) const {
    return ((static_cast<int64_t>(part) * num_kv_heads + head) * kv_block_size + token_in_block) * padded_head_dim;
  }
};

SPATE_HOST_DEVICE constexpr int32_t padded_head_dim(int64_t head_dim) {
  return static_cast<int32_t>((head_dim + kHeadDimUnit - 1) / kHeadDimUnit * kHeadDimUnit);
}

}  // namespace spate::cuda
