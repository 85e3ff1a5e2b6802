// WHAT       Experts of int4 weights with two-level scales, groups of a multiple of 64, by 8-bit codes of x.
// SHAPES     As expert_int8.cu.
// LAYOUT     integer_weight.h.
// NUMERICS   multiplier * code is an 8-bit code of the row's scale: the sums are exact, as with int8.
// WORK       As expert_wgmma.cu; rows of W become 8-bit codes in registers as in linear_int4.cu.
// ROOFLINE   Few rows: bytes of the experts that are used over 4.65 TB/s. Many: 1,400 TOP/s.
// WARM       11 s: expert-int4
// LIMITS     sm_90a; in_features at most 65,536.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_int4.h"

namespace spate::cuda {

using Int4 = ExpertInt4<2>;
SPATE_EXPERT_GATE_UP_KERNELS(expert_int4, Int4)

}  // namespace spate::cuda
