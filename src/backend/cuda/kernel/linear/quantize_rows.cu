// WHAT       Rows of activations as 8-bit codes with a scale each, outliers set aside.
// SHAPES     x [num_tokens, width] act; codes [num_tokens, row_bytes], zeros behind the width.
// NUMERICS   quantize_row.h.
// WORK       Where tokens are few a cluster of up to 8 CTAs a row, else a CTA; the row stays in registers, 1, 2 or 4
//            pieces of 8 elements a thread. Many narrow rows of bf16: a warp a row, 4 or 8 pieces a lane.
// ROOFLINE   Memory: 3 bytes an element in bf16: 2,048 rows of 4,096 are 25 MB, 6 us at 4.25 TB/s. One row: latency.
// WARM       1.3 s: codes
// LIMITS     width <= 65,536 (linear_int8.cu). Hopper.
// TESTS      spate-conformance --backend cuda --filter int8
#include "backend/cuda/kernel/linear/quantize_row.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/rehearsal.h"

namespace spate::cuda {

template <typename Act, int kPieces, bool kIsWhole>
__device__ inline void quantize_rows_of(const QuantizeRowsKernelParams& p) {
  __shared__ RowShared shared;
  RowTeam team(shared, p.out.num_ctas);
  const int64_t token = cluster_idx();
  const Act* x = static_cast<const Act*>(p.x) + token * p.x_stride;
  team.meet();
  Piece<Act> pieces[kPieces];
  EncodedRow<kPieces> encoded;
#pragma unroll 1
  for (bool is_real = begins_for_real(kIsWhole);; is_real = true) {
    if (is_real) {
      wait_for_inputs();
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int first = team.first_of(i);
        pieces[i] = kIsWhole ? load_whole(x, first, p.out.width) : load_piece(x, first, p.out.width, p.is_x_aligned);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) pieces[i] = made_up_piece<Act>();
    }
    encoded = encode_row(p.out, pieces, team);
    if (is_real) break;
  }
  wait_for_inputs();  // done, which the compiler's output does not show
  store_encoded(p.out, token, pieces, encoded, shared, team);
}

template <typename Act, int kPieces>
__device__ inline void quantize_rows(const QuantizeRowsKernelParams& p) {
  let_dependents_launch();
  if (!has_whole_pieces(p.is_x_aligned, p.out.width)) return quantize_rows_of<Act, kPieces, false>(p);
  quantize_rows_of<Act, kPieces, true>(p);
}

template <int kPieces>
__device__ inline void quantize_narrow_rows(const QuantizeRowsKernelParams& p) {
  let_dependents_launch();
  __shared__ RowFound found[kQuantizeNarrowWarps];
  RowFound& own = found[threadIdx.x / kWarpSize];
  RowWarp team(own);
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kQuantizeNarrowWarps + threadIdx.x / kWarpSize;
  wait_for_inputs();
  if (token >= p.num_tokens) return;
  const Bf16* x = static_cast<const Bf16*>(p.x) + token * p.x_stride;
  Piece<Bf16> pieces[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) pieces[i] = load_piece(x, team.first_of(i), p.out.width, p.is_x_aligned);
  quantize_row(p.out, token, pieces, own, team);
}

extern "C" __global__ void __launch_bounds__(kWarpSize* kQuantizeNarrowWarps, 3)
    quantize_narrow_rows_4(const __grid_constant__ QuantizeRowsKernelParams p) {
  quantize_narrow_rows<4>(p);
}
extern "C" __global__ void __launch_bounds__(kWarpSize* kQuantizeNarrowWarps, 3)
    quantize_narrow_rows_8(const __grid_constant__ QuantizeRowsKernelParams p) {
  quantize_narrow_rows<8>(p);
}

#define SPATE_QUANTIZE_ROWS(name, Act, pieces)                                   \
  extern "C" __global__ void __launch_bounds__(kQuantizeMaxThreads)              \
      quantize_rows_##name(const __grid_constant__ QuantizeRowsKernelParams p) { \
    quantize_rows<Act, pieces>(p);                                               \
  }
SPATE_QUANTIZE_ROWS(bf16_1, Bf16, 1)
SPATE_QUANTIZE_ROWS(bf16_2, Bf16, 2)
SPATE_QUANTIZE_ROWS(bf16_4, Bf16, 4)
SPATE_QUANTIZE_ROWS(f32_1, float, 1)
SPATE_QUANTIZE_ROWS(f32_2, float, 2)
SPATE_QUANTIZE_ROWS(f32_4, float, 4)

}  // namespace spate::cuda
