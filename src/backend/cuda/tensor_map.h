// Tensor maps: what the bulk copy engine (kernel/primitive/tma.h) must know of a matrix.
#pragma once

#include <array>
#include <cstdint>

#include "backend/cuda/driver_api.h"
#include "backend/cuda/kernel/kv/kv_layout.h"
#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

// What a miss in L2 reads from memory: the sectors that are asked for, or the 256 bytes around them. Copies that have
// every byte of a box anyway may be faster without: decode attention is, by 3 to 6 %.
enum class L2Promotion { kNone, k256Bytes };

// A bf16 matrix, copied in boxes of box_rows rows by 64 columns that lie in shared memory as wgmma reads them
// (kernel/primitive/wgmma.h). `data` and the bytes of row_stride (elements) are multiples of 16; box_rows at most 256.
TensorMap make_bf16_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int box_rows);

// The same of bytes, in boxes of 128 columns. row_stride: bytes.
// Of results that the copy engine stores: boxes of box_rows rows and 32 or 64 columns.
TensorMap make_bf16_store_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                              int box_rows, int box_columns);
TensorMap make_byte_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int box_rows);
// The same of a matrix whose rows are ordered by three indices, and by four. dims and box: columns (64 in a box), then
// the indices, the fastest first; strides of the indices in bytes.
TensorMap make_bf16_map_4d(const DriverApi& api, const void* data, const std::array<int64_t, 4>& dims,
                           const std::array<int64_t, 3>& strides, const std::array<uint32_t, 4>& box);
TensorMap make_bf16_map_5d(const DriverApi& api, const void* data, const std::array<int64_t, 5>& dims,
                           const std::array<int64_t, 4>& strides, const std::array<uint32_t, 5>& box,
                           L2Promotion promotion = L2Promotion::k256Bytes);
// The same of bytes, 128 columns in a box.
TensorMap make_byte_map_5d(const DriverApi& api, const void* data, const std::array<int64_t, 5>& dims,
                           const std::array<int64_t, 4>& strides, const std::array<uint32_t, 5>& box,
                           L2Promotion promotion = L2Promotion::k256Bytes);

// Heads of tokens, copied in boxes of box_tokens by box_heads rows of 64 columns: rows of one token follow each other.
// `data` and the bytes of both strides are multiples of 16.
struct HeadsMapParams {
  const void* data;  // [num_tokens, num_heads, head_dim] bf16
  int64_t num_tokens;
  int64_t num_heads;
  int64_t head_dim;
  int64_t token_stride;  // elements
  int64_t head_stride;
  int box_tokens;
  int box_heads;
};
TensorMap make_heads_map(const DriverApi& api, const HeadsMapParams& p);

// A bf16 cache of which head_dim is a multiple of 64, as [num_blocks][rows of a block / 8][head_dim / 64][8][64]: a box
// is box_keys whole keys of a block. In shared memory it is atoms of 8 keys by 64 columns, those of the same keys side
// by side.
TensorMap make_kv_map(const DriverApi& api, const KvLayout& kv, int64_t num_blocks, int box_keys,
                      L2Promotion promotion = L2Promotion::k256Bytes);
// The codes of an INT8 cache of which head_dim is 64 or a multiple of 128, as [num_blocks][2][rows of 128 bytes]: a box
// is box_keys whole keys of a block, and their values behind them.
TensorMap make_kv_codes_map(const DriverApi& api, const KvLayout& kv, int64_t num_blocks, int box_keys);
// Its scales, as [num_blocks][2][heads and tokens]: a box is those of box_keys keys, then of their values, not
// swizzled.
TensorMap make_kv_scales_map(const DriverApi& api, const KvLayout& kv, int64_t num_blocks, int box_keys);

}  // namespace spate::cuda
