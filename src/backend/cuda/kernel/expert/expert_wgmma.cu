// WHAT       Experts and heads of bf16 weights on wgmma: the products of expert_skeleton.h.
// SHAPES     bf16, but y f32. Rows and experts as ExpertOrder says; weights row-major, rows padded to 16 elements.
// NUMERICS   fp32 sums on the tensor core along k, in steps of 16. Where several CTAs share the k of a tile, their sums
//            are added in the order of k. gate, up, silu and their product are rounded to bf16.
// WORK       A CTA loads stages of 128 rows of W and up to tile_rows rows of x, 64 elements of k each. One thread loads W
//            by TMA. The rows of x of expert_gate_up lie apart: 96 threads copy 16 bytes each, swizzled as TMA would do
//            it. The tiles of a matrix follow each other, those of a row of W innermost, so that W comes from L2 for all
//            but the first. How many there are is read on the device; the grid is one CTA an SM.
// ROOFLINE   Few rows: bytes of the experts that are used over 4.65 TB/s. Many: 750 TFLOP/s.
// LIMITS     sm_90a; rows of x at multiples of 16 bytes; widths multiples of 8.
// TESTS      spate-conformance --backend cuda --filter expert_mlp, --filter linear_heads
#include "backend/cuda/kernel/expert/expert_skeleton.h"
#include "backend/cuda/kernel/linear/bf16_format.h"

namespace spate::cuda {

struct ExpertBf16 : Bf16Format {
  static constexpr bool kHasWeightMap = true;

  template <ExpertKind kKind>
  __device__ static uint32_t stage_weight_bytes(const ExpertWgmmaKernelParams&) {
    return kWeightBytes;
  }
  template <ExpertKind kKind>
  __device__ static void load_weight(const ExpertWgmmaKernelParams& p, uint32_t shared, const ExpertSegment& segment,
                                     int step, uint32_t barrier) {
    if constexpr (has_silu(kKind)) {
      copy_box_5d(shared, p.weight, step * kTileK, 0, 0, segment.weight_tile * kWgmmaTileRows / 16, segment.matrix,
                  barrier);
    } else {
      const int row = segment.matrix * p.out_features + segment.weight_tile * kWgmmaTileRows;
      copy_box(shared, p.weight, step * kTileK, row, barrier);
    }
  }
  template <ExpertKind kKind>
  __device__ static void take(const ExpertWgmmaKernelParams&, Operand&, uint32_t, int) {}
  template <ExpertKind kKind, int kColumns>
  __device__ static void finish(const ExpertWgmmaKernelParams&, const ExpertOrder&, const float (&sums)[kColumns / 2],
                                float (&values)[kColumns / 2], const ExpertSegment&, int) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) values[i] = sums[i];
  }
};

SPATE_EXPERT_KERNELS(expert, ExpertBf16)
SPATE_EXPERT_KERNEL(expert_gate_up_dense, ExpertBf16, kGateUpDense, 256)
SPATE_EXPERT_KERNEL(expert_down, ExpertBf16, kDown, 256)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 8)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 16)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 32)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 64)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 128)
SPATE_EXPERT_KERNEL(head_product, ExpertBf16, kHeads, 256)

}  // namespace spate::cuda
