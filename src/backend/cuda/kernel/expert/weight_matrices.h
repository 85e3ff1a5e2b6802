// The matrices of one PackedWeight, of experts or of heads, as their kernels take them. For the host.
#pragma once

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/expert/expert_wgmma.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/tensor_map.h"

namespace spate::cuda {

inline bool is_bf16(const PackedWeight& weight) { return weight.desc().spec.codes == Codes::kBf16; }

// The rows of all matrices, one behind the other, in boxes of a tile of W.
inline TensorMap bf16_rows_map(const DriverApi& api, const PackedWeight& weight) {
  const WeightDesc& desc = weight.desc();
  return make_bf16_map(api, weight.data(), desc.num_matrices * desc.out_features, desc.in_features,
                       weight_row_stride(desc), kWgmmaTileRows);
}

// Of expert_product.cu: any dtype and width.
inline KernelId product_kernel(DType act, Codes codes) {
  if (act == DType::kBf16)
    return codes == Codes::kBf16 ? kernel_id("expert_product_bf16_bf16") : kernel_id("expert_product_bf16_f32");
  return codes == Codes::kBf16 ? kernel_id("expert_product_f32_bf16") : kernel_id("expert_product_f32_f32");
}

}  // namespace spate::cuda
