// Tensor maps: what the bulk copy engine (kernel/primitive/tma.h) must know of a matrix.
#pragma once

#include <array>
#include <cstdint>

#include "backend/cuda/driver_api.h"
#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

// A bf16 matrix, copied in boxes of box_rows rows by 64 columns that lie in shared memory as wgmma reads them
// (kernel/primitive/wgmma.h). `data` and the bytes of row_stride (elements) are multiples of 16; box_rows at most 256.
TensorMap make_bf16_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int box_rows);

// The same of bytes, in boxes of 128 columns. row_stride: bytes.
TensorMap make_byte_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int box_rows);
// The same of a matrix whose rows are ordered by four indices. dims and box: columns (64 in a box), then the indices,
// the fastest first; strides of the indices in bytes.
TensorMap make_bf16_map_5d(const DriverApi& api, const void* data, const std::array<int64_t, 5>& dims,
                           const std::array<int64_t, 4>& strides, const std::array<uint32_t, 5>& box);

}  // namespace spate::cuda
