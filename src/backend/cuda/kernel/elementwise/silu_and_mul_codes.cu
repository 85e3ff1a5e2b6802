// WHAT       silu_and_mul whose result is not stored but becomes 8-bit codes for the product that reads it.
// SHAPES     gate_up [num_tokens, 2 * intermediate_size] bf16, gate first; codes as quantize_rows.cu.
// NUMERICS   The bits of elementwise.cu, then of quantize_rows.cu.
// WORK       As quantize_rows.cu.
// ROOFLINE   Memory: 5 bytes an element: 8,192 x 14,336 is 587 MB, 138 us at 4.25 TB/s.
// WARM       0.9 s: bf16, codes
// LIMITS     intermediate_size <= 65,536. Hopper.
// TESTS      spate-conformance --backend cuda --filter handed
#include "backend/cuda/kernel/elementwise/silu_and_mul_codes.h"

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/linear/quantize_row.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

template <int kPieces>
__device__ inline void silu_and_mul_codes(const SiluAndMulCodesKernelParams& p) {
  let_dependents_launch();
  __shared__ RowShared shared;
  RowTeam team(shared, p.out.num_ctas);
  const int64_t token = static_cast<int>(blockIdx.x) / p.out.num_ctas;
  const int width = p.out.width;
  const Bf16* row = static_cast<const Bf16*>(p.gate_up) + token * p.gate_up_stride;
  wait_for_inputs();
  Piece<Bf16> gates[kPieces], ups[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    gates[i] = load_piece(row, team.first_of(i), width, p.is_aligned);
    ups[i] = load_piece(row + width, team.first_of(i), width, p.is_aligned);
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) gates[i] = silu_and_mul_of(gates[i], ups[i]);
  quantize_row(p.out, token, gates, shared, team);
}

#define SPATE_SILU_AND_MUL_CODES(pieces)                                                       \
  extern "C" __global__ void __launch_bounds__(kQuantizeMaxThreads)                            \
      silu_and_mul_codes_##pieces(const __grid_constant__ SiluAndMulCodesKernelParams p) {     \
    silu_and_mul_codes<pieces>(p);                                                             \
  }
SPATE_SILU_AND_MUL_CODES(1)
SPATE_SILU_AND_MUL_CODES(2)
SPATE_SILU_AND_MUL_CODES(4)

}  // namespace spate::cuda
