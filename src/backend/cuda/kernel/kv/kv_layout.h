// Where a token's k and v lie in a block of the paged cache; shared by the host and all kernels that touch the cache.
//
// A block is [k, v][num_kv_heads][kv_block_size][padded_head_dim]: the tokens of one head follow each other, so a warp
// that attends to 32 neighbours reads one run of memory. Heads are padded to 8 elements, which keeps every row 16-byte
// aligned; kv_write fills the padding with zeros. Of codes (int8) heads are padded to 16, and behind them the block has
// the scales, [k, v][num_kv_heads][kv_block_size] f32.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/host_device.h"

namespace spate::cuda {

constexpr int kHeadDimUnit = 8, kCodesHeadDimUnit = 16;

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
  // Of codes: the scales of a block, and which of them is a row's.
  SPATE_HOST_DEVICE float* scales(int64_t block_id) const {
    return reinterpret_cast<float*>(static_cast<char*>(data) + block_id * block_bytes + row_offset(2, 0, 0));
  }
  SPATE_HOST_DEVICE int64_t scale_idx(int part, int head, int token_in_block) const {
    return (static_cast<int64_t>(part) * num_kv_heads + head) * kv_block_size + token_in_block;
  }
};

SPATE_HOST_DEVICE constexpr int32_t padded_head_dim(int64_t head_dim, bool of_codes = false) {
  const int unit = of_codes ? kCodesHeadDimUnit : kHeadDimUnit;
  return static_cast<int32_t>((head_dim + unit - 1) / unit * unit);
}

}  // namespace spate::cuda
