// How the reference device stores a matrix: the values row by row; of integer codes these, then scales, then offsets,
// for each row its own, also where rows share them.
#pragma once

#include "backend/backend.h"

namespace spate::reference {

inline DType value_dtype(const WeightSpec& spec) {
  return spec.has_integer_codes() ? DType::kI8 : spec.codes == Codes::kF32 ? DType::kF32 : DType::kBf16;
}

inline int64_t codes_bytes(const WeightDesc& desc) {
  const int64_t bytes = desc.out_features * desc.in_features * dtype_bytes(value_dtype(desc.spec));
  return desc.spec.has_integer_codes() ? (bytes + 3) / 4 * 4 : bytes;
}
inline int64_t scales_count(const WeightDesc& desc) {
  return desc.out_features * desc.spec.num_groups(desc.in_features);
}
// Of one matrix.
inline int64_t storage_bytes(const WeightDesc& desc) {
  return codes_bytes(desc) +
         (desc.spec.has_integer_codes() ? scales_count(desc) * 4 * (desc.spec.has_offsets ? 2 : 1) : 0);
}

// The codes, scales and offsets of an integer weight.
inline QuantizedRows quantized_view(const WeightDesc& desc, const void* data) {
  char* base = static_cast<char*>(const_cast<void*>(data));
  const int64_t num_groups = desc.spec.num_groups(desc.in_features);
  QuantizedRows rows{.spec = desc.spec,
                     .codes = Tensor(base, DType::kI8, {desc.out_features, desc.in_features}),
                     .scales = Tensor(base + codes_bytes(desc), DType::kF32, {desc.out_features, num_groups}),
                     .offsets = {}};
  if (desc.spec.has_offsets) {
    rows.offsets =
        Tensor(base + codes_bytes(desc) + 4 * scales_count(desc), DType::kF32, {desc.out_features, num_groups});
  }
  return rows;
}
inline QuantizedRows quantized_view(const PackedWeight& weight, int64_t matrix_idx) {
  return quantized_view(weight.desc(), weight.matrix(matrix_idx));
}

}  // namespace spate::reference
