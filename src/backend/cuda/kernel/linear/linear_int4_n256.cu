// WHAT       The kernel of linear_int4.cu for tiles of 256 tokens, which takes as long to compile as all its others.
// SHAPES     This, and what follows, as there.
// WARM       10 s: int4
// TESTS      spate-conformance --backend cuda --filter int4
#include "backend/cuda/kernel/linear/int4_format.h"

namespace spate::cuda {

using Int4 = Int4Format<2>;
SPATE_WGMMA_TEAM_KERNEL(linear_int4, Int4)

}  // namespace spate::cuda
