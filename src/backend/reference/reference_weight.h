// How the reference device stores a weight: the values row by row; of integer formats the codes, then scales, then
// offsets.
#pragma once

#include "backend/backend.h"

namespace spate::reference {

inline DType value_dtype(const WeightSpec& spec) {
  return spec.is_integer() ? DType::kI8 : spec.format == WeightFormat::kF32 ? DType::kF32 : DType::kBf16;
}

inline int64_t codes_bytes(const WeightDesc& desc) {
  const int64_t bytes = desc.out_features * desc.in_features * dtype_bytes(value_dtype(desc.spec));
  return desc.spec.is_integer() ? (bytes + 3) / 4 * 4 : bytes;
}
inline int64_t scales_count(const WeightDesc& desc) {
  return desc.out_features * desc.spec.num_groups(desc.in_features);
}
inline int64_t storage_bytes(const WeightDesc& desc) {
  return codes_bytes(desc) + (desc.spec.is_integer() ? scales_count(desc) * 4 * (desc.spec.has_offsets ? 2 : 1) : 0);
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
inline QuantizedRows quantized_view(const PackedWeight& weight) { return quantized_view(weight.desc(), weight.data()); }

}  // namespace spate::reference
