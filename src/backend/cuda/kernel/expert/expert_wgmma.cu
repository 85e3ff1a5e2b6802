// WHAT       Experts of bf16 weights on wgmma: the products of expert_skeleton.h.
// SHAPES     bf16; y f32, of tiles of 128 rows and more also bf16. Rows and experts as ExpertOrder says; weights
//            row-major, rows padded to 16 elements.
// NUMERICS   fp32 sums on the tensor core along k, in steps of 16. Where several CTAs share the k of a tile, their sums
//            are added in the order of k. gate, up, silu and their product are rounded to bf16, of tiles of 256 rows in
//            pairs, to the same bits.
// WORK       A CTA loads stages of 128 rows of W and up to tile_rows rows of x, 64 elements of k each. One thread loads W
//            by TMA. The rows of x of expert_gate_up lie apart: 96 threads copy 16 bytes each, swizzled as TMA would do
//            it. The tiles of a matrix follow each other, those of a row of W innermost, so that W comes from L2 for all
//            but the first. How many there are is read on the device; the grid is one CTA an SM. Of tiles of 256 rows two
//            CTAs of a cluster, a team, have neighbouring rows of W and the same rows of x, of which each loads half for
//            both; there the tiles of a row of x are innermost, and a team takes its next tile from a counter: none is cut
//            along k. These tiles share the rows of an expert evenly, with as many columns as they need, in steps of 16.
// ROOFLINE   Few rows: bytes of the experts that are used over 4.65 TB/s. Many: 750 TFLOP/s.
// WARM       7 s: bf16, expert-bf16
// LIMITS     sm_90a; rows of x at multiples of 16 bytes; widths multiples of 8.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_bf16.h"

namespace spate::cuda {

SPATE_EXPERT_GATE_UP_KERNELS(expert, ExpertBf16)
SPATE_EXPERT_DOWN_KERNELS(expert, ExpertBf16)
SPATE_EXPERT_TEAM_KERNEL(expert_gate_up_dense, ExpertBf16, kGateUpDense, 256)
SPATE_EXPERT_TEAM_KERNEL(expert_down, ExpertBf16, kDown, 256)

}  // namespace spate::cuda
