// WHAT       out = x W^T + bias by 8-bit codes of x and 4-bit codes of W with two-level scales.
// SHAPES     As linear_int8.cu; W int4, groups of a multiple of 64.
// LAYOUT     integer_weight.h.
// NUMERICS   multiplier * code is an 8-bit code of the row's scale: the sums are exact, as with int8.
// WORK       linear_skeleton.h. The rows of W go to the tensor core through registers: a word of 8 codes becomes two
//            of 4 bytes by a mask and one multiplication, (code + 8) * multiplier + 128 - 8 * multiplier, which no byte
//            leaves; the 128 that all have too much are taken off at the end, by the sum of x's codes.
// ROOFLINE   Few tokens: bytes of W over 4.65 TB/s. Many: 2 * num_tokens * in * out over 1,400 TOP/s.
// WARM       6 s: int4
// LIMITS     sm_90a; in_features at most 65,536.
// TESTS      spate-conformance --backend cuda --filter int4
#include "backend/cuda/kernel/linear/int4_format.h"

namespace spate::cuda {

using Int4 = Int4Format<2>;
SPATE_WGMMA_KERNELS_TO_128(linear_int4, Int4)

}  // namespace spate::cuda
