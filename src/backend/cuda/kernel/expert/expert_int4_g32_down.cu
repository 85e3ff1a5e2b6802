// WHAT       The second product of expert_int4_g32.cu's experts, which compiles beside the first.
// SHAPES     This, and what follows, as there.
// WARM       5 s: expert-int4-g32
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_int4.h"

namespace spate::cuda {

using Int4 = ExpertInt4<4>;
SPATE_EXPERT_DOWN_KERNELS(expert_int4_g32, Int4)

}  // namespace spate::cuda
