// WHAT       expert_stream_int4.cu with groups of 32.
// SHAPES     This, and what follows, as there.
// WARM       4 s: expert-int4-g32, fast, bf16
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_stream_kernel.h"

namespace spate::cuda {

SPATE_EXPERT_STREAM_KERNELS(expert_stream_int4_g32, 4)

}  // namespace spate::cuda
