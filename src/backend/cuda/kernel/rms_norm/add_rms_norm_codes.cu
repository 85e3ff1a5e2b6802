// WHAT       add_rms_norm whose `out` is not stored but becomes 8-bit codes for the product that reads it.
// SHAPES     x, residual [num_tokens, width] bf16, weight [width]; codes as quantize_rows.cu.
// NUMERICS   The bits of add_rms_norm (rms_norm.cu), whose order of the sum it has, then of quantize_rows.cu.
// WORK       A CTA a row, which stays in registers, 1, 2 or 4 pieces a thread.
// ROOFLINE   Memory: 7 bytes an element: 8,192 rows of 4,096 are 235 MB, 55 us at 4.25 TB/s. One row: latency.
// WARM       0.9 s: bf16, codes
// LIMITS     256 < width <= 16,384. Hopper.
// TESTS      spate-conformance --backend cuda --filter handed
#include "backend/cuda/kernel/rms_norm/add_rms_norm_codes.h"

#include "backend/cuda/kernel/linear/quantize_row.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/rehearsal.h"
#include "backend/cuda/kernel/rms_norm/norm_row.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

template <int kPieces, bool kIsWhole>
__device__ inline void add_rms_norm_codes_of(const AddRmsNormCodesKernelParams& p) {
  __shared__ RowShared shared;
  RowTeam team(shared, 1);
  const RmsNormKernelParams& norm = p.add.norm;
  const auto row = row_of_cta<Bf16, true, kIsWhole>(norm, p.add.residual, p.add.residual_stride);
  const NormWeight<Bf16, kPieces, kIsWhole> weight(norm, [&](int i) { return team.first_of(i); });
  Piece<Bf16> sums[kPieces], pieces[kPieces];
  EncodedRow<kPieces> encoded;
#pragma unroll 1
  for (bool is_real = begins_for_real(kIsWhole);; is_real = true) {
    if (is_real) {
      wait_for_inputs();
#pragma unroll
      for (int i = 0; i < kPieces; ++i) sums[i] = row.take(team.first_of(i));
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) sums[i] = made_up_piece<Bf16>();
    }
    float sum_of_squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) sum_of_squares = add_squares(sums[i], sum_of_squares);
    const float inv_rms = inv_rms_of(sum_of_cta(sum_of_squares), norm.width, norm.eps);
    weight.wait();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i] = normalized(sums[i], weight.piece(i), inv_rms);
    encoded = encode_row(p.out, pieces, team);
    if (is_real) break;
  }
  wait_for_inputs();  // done, which the compiler's output does not show
#pragma unroll
  for (int i = 0; i < kPieces; ++i) row.store(row.residual, team.first_of(i), sums[i]);
  store_encoded(p.out, blockIdx.x, pieces, encoded, shared, team);
}

template <int kPieces>
__device__ inline void add_rms_norm_codes(const AddRmsNormCodesKernelParams& p) {
  let_dependents_launch();
  if (!has_whole_pieces(p.add.norm.is_aligned, p.add.norm.width)) return add_rms_norm_codes_of<kPieces, false>(p);
  add_rms_norm_codes_of<kPieces, true>(p);
}

#define SPATE_ADD_RMS_NORM_CODES(pieces)                                                   \
  extern "C" __global__ void __launch_bounds__(kNormMaxThreads)                            \
      add_rms_norm_codes_##pieces(const __grid_constant__ AddRmsNormCodesKernelParams p) { \
    add_rms_norm_codes<pieces>(p);                                                         \
  }
SPATE_ADD_RMS_NORM_CODES(1)
SPATE_ADD_RMS_NORM_CODES(2)
SPATE_ADD_RMS_NORM_CODES(4)

}  // namespace spate::cuda
