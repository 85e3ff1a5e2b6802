// WHAT       out = x W^T + bias, or silu(gate) * up of it, x in bf16 and 4-bit codes of W with f16 scales and offsets
//            of groups, or f32 ones of rows.
// SHAPES     As linear_wgmma.cu; W int4, groups of 32 or a multiple of 64, or whole rows.
// LAYOUT     int4_groups.h.
// NUMERICS   The values of W are those of the same weight in bf16, to the bit (int4_groups_decode.h), and the sums are
//            those of linear_wgmma.cu.
// WORK       linear_skeleton.h. The rows of W go to the tensor core through registers, where they become bf16.
// ROOFLINE   Few tokens: bytes of W over 4.65 TB/s. Many: 2 * num_tokens * in * out over 750 TFLOP/s.
// WARM       7 s: other-codes
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter a16
#include "backend/cuda/kernel/linear/int4_groups_format.h"

namespace spate::cuda {

SPATE_INT4_GROUP_KERNELS(linear_int4_offsets, true, false)
SPATE_INT4_GROUP_KERNELS(linear_int4_offsets_silu, true, true)

}  // namespace spate::cuda
