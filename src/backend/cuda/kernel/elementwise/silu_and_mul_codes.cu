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
#include "backend/cuda/kernel/primitive/rehearsal.h"

namespace spate::cuda {

template <int kPieces, bool kIsWhole>
__device__ inline void silu_and_mul_codes_of(const SiluAndMulCodesKernelParams& p) {
  __shared__ RowShared shared;
  RowTeam team(shared, p.out.num_ctas);
  const int64_t token = cluster_idx();
  const int width = p.out.width;
  const Bf16* row = static_cast<const Bf16*>(p.gate_up) + token * p.gate_up_stride;
  team.meet();
  const auto load = [&](const Bf16* from, int first) {
    return kIsWhole ? load_whole(from, first, width) : load_piece(from, first, width, p.is_aligned);
  };
  Piece<Bf16> gates[kPieces], ups[kPieces];
  EncodedRow<kPieces> encoded;
#pragma unroll 1
  for (bool is_real = begins_for_real(kIsWhole);; is_real = true) {
    if (is_real) {
      wait_for_inputs();
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        gates[i] = load(row, team.first_of(i));
        ups[i] = load(row + width, team.first_of(i));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) gates[i] = ups[i] = made_up_piece<Bf16>();
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) gates[i] = silu_and_mul_of(gates[i], ups[i]);
    encoded = encode_row(p.out, gates, team);
    if (is_real) break;
  }
  wait_for_inputs();  // done, which the compiler's output does not show
  store_encoded(p.out, token, gates, encoded, shared, team);
}

template <int kPieces>
__device__ inline void silu_and_mul_codes(const SiluAndMulCodesKernelParams& p) {
  let_dependents_launch();
  if (!has_whole_pieces(p.is_aligned, p.out.width)) return silu_and_mul_codes_of<kPieces, false>(p);
  silu_and_mul_codes_of<kPieces, true>(p);
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
