// The format of expert_wgmma.cu and head_product.cu for expert_skeleton.h.
#pragma once

#include "backend/cuda/kernel/expert/expert_skeleton.h"
#include "backend/cuda/kernel/linear/bf16_format.h"
#include "backend/cuda/kernel/primitive/wgmma_columns.h"

namespace spate::cuda {

struct ExpertBf16 : Bf16Format {
  static constexpr bool kHasWeightMap = true, kHasScales = false;

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

}  // namespace spate::cuda
