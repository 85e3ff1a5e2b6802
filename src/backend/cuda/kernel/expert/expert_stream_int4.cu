// WHAT       Both products of a layer of int4 experts of up to about 16 rows each (groups of a multiple of 64) in one
//            launch.
// SHAPES     expert_stream.h: up to 256 tokens and experts, rows of up to 2,560 elements.
// LAYOUT     integer_weight.h.
// NUMERICS   x, and activations, as integers of 13 bits and a sign in a unit of 128 elements (expert_stream_rows.h),
//            where expert_int4.cu makes 8-bit codes of a row: nothing is an outlier. Sums of a step are exact, those
//            along a row fp32, in an order that depends on the tiles.
// WORK       expert_stream_kernel.h.
// ROOFLINE   Bytes of the experts that are used over 4.65 TB/s.
// WARM       5 s: expert-int4, fast, bf16
// LIMITS     sm_90a; one such kernel of a GPU at a time (CTAs wait for each other).
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_stream_kernel.h"

namespace spate::cuda {

SPATE_EXPERT_STREAM_KERNELS(expert_stream_int4, 2)

}  // namespace spate::cuda
