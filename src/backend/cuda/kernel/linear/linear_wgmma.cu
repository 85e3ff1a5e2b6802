// WHAT       out = x W^T + bias on wgmma, for any number of tokens.
// SHAPES     x [num_tokens, in_features] bf16; W [out_features, in_features] bf16; bias [out_features] bf16 or null;
// out
//            [num_tokens, out_features] bf16 or f32. Rows of x at multiples of 16 bytes.
// LAYOUT     W row-major, rows padded to 16 elements with zeros.
// NUMERICS   fp32 sums on the tensor core along k, in steps of 16. Where several CTAs share the k of a tile, their sums
// are
//            added in the order of k. Which tiles are shared depends on the step's sizes.
// WORK       linear_skeleton.h.
// ROOFLINE   Few tokens: bytes of W over 4.65 TB/s. Many: 2 * num_tokens * in * out over 750 TFLOP/s.
// WARM       3.5 s: bf16, bf16-weights
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter linear
#include "backend/cuda/kernel/linear/bf16_format.h"

namespace spate::cuda {

SPATE_WGMMA_KERNELS_TO_128(linear_wgmma, Bf16Format)
SPATE_WGMMA_TEAM_KERNEL(linear_wgmma, Bf16Format)

}  // namespace spate::cuda
