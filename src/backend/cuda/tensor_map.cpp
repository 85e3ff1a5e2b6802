#include "backend/cuda/tensor_map.h"

#include <algorithm>

#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr uint32_t kBoxRowBytes = 128;
constexpr uint32_t kMaxRank = 5;

TensorMap encode(const DriverApi& api, CUtensorMapDataType type, const void* data, uint32_t rank, const uint64_t* dims,
                 const uint64_t* strides, const uint32_t* box, L2Promotion promotion = L2Promotion::k256Bytes,
                 CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  constexpr uint32_t kElementStrides[kMaxRank] = {1, 1, 1, 1, 1};
  TensorMap map;
  check_driver(api,
               api.cuTensorMapEncodeTiled(&map, type, rank, const_cast<void*>(data), dims, strides, box,
                                          kElementStrides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                          promotion == L2Promotion::kNone ? CU_TENSOR_MAP_L2_PROMOTION_NONE
                                                                          : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return map;
}

TensorMap make_map(const DriverApi& api, CUtensorMapDataType type, uint32_t element_bytes, const void* data,
                   int64_t rows, int64_t columns, int64_t row_stride, int box_rows) {
  const uint64_t dims[] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t strides[] = {static_cast<uint64_t>(row_stride) * element_bytes};
  const uint32_t box[] = {kBoxRowBytes / element_bytes, static_cast<uint32_t>(box_rows)};
  return encode(api, type, data, 2, dims, strides, box);
}

template <size_t kRank>
TensorMap make_map_of(const DriverApi& api, CUtensorMapDataType type, const void* data,
                      const std::array<int64_t, kRank>& dims, const std::array<int64_t, kRank - 1>& strides,
                      const std::array<uint32_t, kRank>& box, L2Promotion promotion) {
  std::array<uint64_t, kRank> unsigned_dims;
  std::array<uint64_t, kRank - 1> unsigned_strides;
  std::copy(dims.begin(), dims.end(), unsigned_dims.begin());
  std::copy(strides.begin(), strides.end(), unsigned_strides.begin());
  return encode(api, type, data, kRank, unsigned_dims.data(), unsigned_strides.data(), box.data(), promotion);
}

}  // namespace

TensorMap make_bf16_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int box_rows) {
  return make_map(api, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, rows, columns, row_stride, box_rows);
}

TensorMap make_bf16_store_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                              int box_rows, int box_columns) {
  const uint64_t dims[] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t strides[] = {static_cast<uint64_t>(row_stride) * 2};
  const uint32_t box[] = {static_cast<uint32_t>(box_columns), static_cast<uint32_t>(box_rows)};
  return encode(api, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, 2, dims, strides, box, L2Promotion::kNone,
                box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
}

TensorMap make_byte_map(const DriverApi& api, const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                        int box_rows) {
  return make_map(api, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, data, rows, columns, row_stride, box_rows);
}

TensorMap make_bf16_map_4d(const DriverApi& api, const void* data, const std::array<int64_t, 4>& dims,
                           const std::array<int64_t, 3>& strides, const std::array<uint32_t, 4>& box) {
  return make_map_of<4>(api, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, dims, strides, box, L2Promotion::k256Bytes);
}

TensorMap make_bf16_map_5d(const DriverApi& api, const void* data, const std::array<int64_t, 5>& dims,
                           const std::array<int64_t, 4>& strides, const std::array<uint32_t, 5>& box,
                           L2Promotion promotion) {
  return make_map_of<5>(api, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, dims, strides, box, promotion);
}

TensorMap make_byte_map_5d(const DriverApi& api, const void* data, const std::array<int64_t, 5>& dims,
                           const std::array<int64_t, 4>& strides, const std::array<uint32_t, 5>& box,
                           L2Promotion promotion) {
  return make_map_of<5>(api, CU_TENSOR_MAP_DATA_TYPE_UINT8, data, dims, strides, box, promotion);
}

TensorMap make_heads_map(const DriverApi& api, const HeadsMapParams& p) {
  const uint64_t dims[] = {static_cast<uint64_t>(p.head_dim), static_cast<uint64_t>(p.num_heads),
                           static_cast<uint64_t>(p.num_tokens)};
  const uint64_t strides[] = {static_cast<uint64_t>(p.head_stride) * 2, static_cast<uint64_t>(p.token_stride) * 2};
  const uint32_t box[] = {kBoxRowBytes / 2, static_cast<uint32_t>(p.box_heads), static_cast<uint32_t>(p.box_tokens)};
  return encode(api, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, p.data, 3, dims, strides, box);
}

TensorMap make_kv_map(const DriverApi& api, const KvLayout& kv, int64_t num_blocks, int box_keys,
                      L2Promotion promotion) {
  constexpr int kAtomRows = 8, kAtomColumns = kBoxRowBytes / 2;
  const int64_t slices = kv.head_dim / kAtomColumns, key_bytes = slices * kBoxRowBytes;
  const int64_t block_rows = int64_t{2} * kv.num_kv_heads * kv.kv_block_size;
  return make_bf16_map_5d(
      api, kv.data, {kAtomColumns, kAtomRows, slices, block_rows / kAtomRows, num_blocks},
      {key_bytes, kBoxRowBytes, kAtomRows * key_bytes, kv.block_bytes},
      {kAtomColumns, kAtomRows, static_cast<uint32_t>(slices), static_cast<uint32_t>(box_keys / kAtomRows), 1},
      promotion);
}

TensorMap make_kv_codes_map(const DriverApi& api, const KvLayout& kv, int64_t num_blocks, int box_keys) {
  const int64_t part_bytes = kv.row_offset(1, 0, 0);
  return make_byte_map_5d(api, kv.data, {kBoxRowBytes, part_bytes / kBoxRowBytes, 2, num_blocks, 1},
                          {kBoxRowBytes, part_bytes, kv.block_bytes, kv.block_bytes},
                          {kBoxRowBytes, static_cast<uint32_t>(box_keys * kv.head_dim) / kBoxRowBytes, 2, 1, 1},
                          L2Promotion::kNone);
}

TensorMap make_kv_scales_map(const DriverApi& api, const KvLayout& kv, int64_t num_blocks, int box_keys) {
  const auto part_scales = static_cast<uint64_t>(kv.scale_idx(1, 0, 0));
  const uint64_t dims[] = {part_scales, 2, static_cast<uint64_t>(num_blocks)};
  const uint64_t strides[] = {part_scales * sizeof(float), static_cast<uint64_t>(kv.block_bytes)};
  const uint32_t box[] = {static_cast<uint32_t>(box_keys), 2, 1};
  return encode(api, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, kv.scales(0), 3, dims, strides, box, L2Promotion::kNone,
                CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace spate::cuda
