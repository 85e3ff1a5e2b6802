// WHAT       Experts of int8 weights by 8-bit codes of x: the products of expert_skeleton.h. quantize_rows before each.
// SHAPES     x, act as codes, scales and outliers; act is stored in the dtype of activations, y as f32.
// LAYOUT     integer_weight.h.
// NUMERICS   quant/weight_format.h, kInt8PerToken: sums of codes are exact in 32 bits, whatever their order; then one
//            product of scales each, and the outliers in fp32 in the order of k. gate, up, silu and their product are
//            rounded to the dtype of activations.
// WORK       As expert_wgmma.cu, with 128 codes of k in a stage.
// ROOFLINE   Few rows: bytes of the experts that are used over 4.65 TB/s. Many: 1,400 TOP/s.
// WARM       9 s: expert-int8
// LIMITS     sm_90a; in_features at most 65,536.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_integer.h"
#include "backend/cuda/kernel/linear/int8_format.h"

namespace spate::cuda {

struct ExpertInt8 : Int8Format {
  static constexpr bool kHasWeightMap = true, kHasScales = true;

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
      copy_box_5d(shared, p.weight, step * kTileK, segment.weight_tile * kWgmmaTileRows, 0, 0, segment.matrix, barrier);
    }
  }
  template <ExpertKind kKind>
  __device__ static void take(const ExpertWgmmaKernelParams&, Operand&, uint32_t, int) {}
  __device__ static auto code_at(const ExpertWgmmaKernelParams& p) {
    return [&p](const char* weight, int row, int k) {
      return static_cast<int>(reinterpret_cast<const int8_t*>(weight)[row * p.integer.layout.row_bytes() + k]);
    };
  }
  SPATE_EXPERT_INTEGER_FINISH(0)
};

SPATE_EXPERT_GATE_UP_KERNELS(expert_int8, ExpertInt8)
SPATE_EXPERT_DOWN_KERNELS(expert_int8, ExpertInt8)

}  // namespace spate::cuda
