// WHAT       out = x W^T + bias by 8-bit codes: quantize_rows, then linear_int8.
// SHAPES     x [num_tokens, in_features] act as codes, scales and outliers (integer_weight.h); W [out_features,
//            in_features] int8, a scale a row; out [num_tokens, out_features] bf16 or f32.
// LAYOUT     integer_weight.h.
// NUMERICS   quant/weight_format.h, kInt8PerToken: sums of codes are exact in 32 bits, whatever their order; then one
//            product of scales each, and the outliers in fp32 in the order of k.
// WORK       linear_skeleton.h; codes go from shared memory to the tensor core as they are.
// ROOFLINE   Few tokens: bytes of W over 4.65 TB/s. Many: 2 * num_tokens * in * out over 1,400 TOP/s.
// WARM       9 s: int8
// LIMITS     sm_90a; in_features at most 65,536.
// TESTS      spate-conformance --backend cuda --filter int8
#include "backend/cuda/kernel/linear/int8_format.h"

namespace spate::cuda {

SPATE_WGMMA_KERNELS_TO_128(linear_int8, Int8Format)
SPATE_WGMMA_TEAM_KERNEL(linear_int8, Int8Format)

}  // namespace spate::cuda
