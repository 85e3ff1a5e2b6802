// WHAT       out = silu(x Wg^T) * (x Wu^T) on wgmma, for any number of tokens.
// SHAPES     x [num_tokens, in_features] bf16; W [2 * width, in_features] bf16: gates, then ups; no bias; out
// [num_tokens,
//            width] bf16. Rows of x at multiples of 16 bytes, even columns of out at multiples of 4; width a multiple
//            of 8.
// LAYOUT     W row-major, rows padded to 16 elements with zeros. A stage is 8 rows of gate and their 8 of up by turns,
// so
//            that a thread has both of a feature.
// NUMERICS   As linear_wgmma.cu and then silu_and_mul of what it stores, to the bit.
// WORK       linear_skeleton.h.
// ROOFLINE   As linear_wgmma.cu; 6 bytes of each token and feature are neither written nor read again.
// WARM       2 s: bf16, bf16-weights
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter linear_silu_and_mul
#include "backend/cuda/kernel/linear/bf16_format.h"

namespace spate::cuda {

struct Bf16SiluFormat : Bf16Format {
  static constexpr bool kHasSilu = true;

  __device__ static void load_weight(const Params& p, uint32_t shared, int row, int step, uint32_t barrier) {
    copy_box_5d(shared, p.weight, step * kTileK, 0, 0, row / 16, 0, barrier);
  }
};

template <>
constexpr bool kHasTeams<Bf16SiluFormat> = true;

SPATE_WGMMA_KERNELS_TO_128(linear_silu_wgmma, Bf16SiluFormat)
SPATE_WGMMA_TEAM_KERNEL(linear_silu_wgmma, Bf16SiluFormat)

}  // namespace spate::cuda
