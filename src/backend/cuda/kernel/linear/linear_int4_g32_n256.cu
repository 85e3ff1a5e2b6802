// WHAT       The kernel of linear_int4_g32.cu for tiles of 256 tokens, which takes as long to compile as all its others.
// SHAPES     This, and what follows, as there.
// WARM       10 s: int4-g32
// TESTS      spate-conformance --backend cuda --filter int4
#include "backend/cuda/kernel/linear/int4_format.h"

namespace spate::cuda {

using Int4 = Int4Format<4>;
SPATE_WGMMA_TEAM_KERNEL(linear_int4_g32, Int4)

}  // namespace spate::cuda
