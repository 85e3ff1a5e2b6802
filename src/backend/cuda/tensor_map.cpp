#include "backend/cuda/tensor_map.h"

#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr uint32_t kBoxRowBytes = 128;

TensorMap make_map(const DriverApi& api, CUtensorMapDataType type, uint32_t element_bytes, const void* data,
                   int64_t rows, int64_t columns, int64_t row_stride, int box_rows) {
  const uint64_t dims[] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t strides[] = {static_cast<uint64_t>(row_stride) * element_bytes};
  const uint32_t box[] = {kBoxRowBytes / element_bytes, static_cast<uint32_t>(box_rows)}, element_strides[] = {1, 1};
  TensorMap map;
  check_driver(api,
               api.cuTensorMapEncodeTiled(&map, type, 2, const_cast<void*>(data), dims, strides, box, element_strides,
                                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace

TensorMap make_bf16_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int box_rows) {
  return make_map(api, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, rows, columns, row_stride, box_rows);
}

TensorMap make_byte_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int box_rows) {
  return make_map(api, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, data, rows, columns, row_stride, box_rows);
}

}  // namespace spate::cuda
