// WHAT       rms_norm:      out = act(act(x * rsqrt(mean(x^2) + eps)) * weight) for each row.
//            add_rms_norm:  residual = act(residual + x), then out = rms_norm(residual).
// SHAPES     x, out [num_tokens, num_heads, width] act, outer strides free; out may be x. weight [width] act. residual,
//            x, out of add_rms_norm [num_tokens, width].
// LAYOUT     Rows contiguous.
// NUMERICS   Squares add in fp32 in an order that depends on width alone: piece i of 8 elements belongs to thread
//            i % num_threads; a thread adds its pieces in order, then lanes, then warps. The normalised value is
//            rounded to act before it meets the weight, as in Hugging Face's LlamaRMSNorm. add_rms_norm: bit-identical
//            to add, then rms_norm.
// WORK       narrow (width <= 256): a warp a row. Else a CTA a row, which stays in registers between the two passes, 1,
//            2 or 4 pieces a thread (width <= 16,384); wider rows are read twice, the second time from L1 or L2. The
//            weight is loaded before the wait for the kernel before.
// ROOFLINE   Memory: 4 bytes an element in bf16 (rms_norm), 8 (add_rms_norm): 8,192 rows of 4,096 are 268 MB, 63 us at
//            4.25 TB/s. One row: latency of a load, a reduction and a store, some 2 us.
// WARM       1.9 s: always
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter rms_norm; bits of the fused op: cuda_test on a GPU
#include "backend/cuda/kernel/rms_norm/rms_norm.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/rms_norm/norm_row.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

template <typename Act>
__device__ inline void rms_norm_narrow(const RmsNormKernelParams& p) {
  let_dependents_launch();
  const int first = threadIdx.x % kWarpSize * kPieceElems;
  const Piece<Act> weight = load_constant_piece(static_cast<const Act*>(p.weight), first, p.width, p.is_aligned);
  wait_for_inputs();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kNormNarrowThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (row >= p.num_rows) return;
  const int64_t token = row / p.num_heads, head = row % p.num_heads;
  const Act* x = static_cast<const Act*>(p.x) + token * p.x_token_stride + head * p.x_head_stride;
  Act* out = static_cast<Act*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
  const Piece<Act> piece = load_piece(x, first, p.width, p.is_aligned);
  const float inv_rms = inv_rms_of(warp_reduce(add_squares(piece, 0.0f), Sum()), p.width, p.eps);
  store_piece(out, first, p.width, p.is_aligned, normalized(piece, weight, inv_rms));
}

// kPieces of the row a thread; blockDim.x * kPieces pieces cover it.
template <typename Act, int kPieces, bool kAdds, bool kIsWhole>
__device__ inline void norm_row_of(const RmsNormKernelParams& p, void* residual, int64_t residual_stride) {
  const auto first_of = [&](int i) {
    return (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kPieceElems;
  };
  const auto row = row_of_cta<Act, kAdds, kIsWhole>(p, residual, residual_stride);
  const NormWeight<Act, kPieces, kIsWhole> weight(p, first_of);
  constexpr bool kRehearses = kIsWhole && kPieces == 1;  // more pieces would need more registers
  Piece<Act> sums[kPieces], outs[kPieces];
#pragma unroll 1
  for (bool is_real = !kRehearses || begins_for_real(true);; is_real = true) {
    if (is_real) {
      wait_for_inputs();
#pragma unroll
      for (int i = 0; i < kPieces; ++i) sums[i] = row.take(first_of(i));
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) sums[i] = made_up_piece<Act>();
    }
    float sum_of_squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) sum_of_squares = add_squares(sums[i], sum_of_squares);
    const float inv_rms = inv_rms_of(sum_of_cta(sum_of_squares), p.width, p.eps);
    weight.wait();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      outs[i] = normalized(sums[i], weight.piece(i), inv_rms);
      if constexpr (kRehearses) asm volatile("" : "+r"(outs[i].words[0]));  // else it is all done behind the loop
    }
    if (is_real) break;
  }
  wait_for_inputs();  // done, which the compiler's output does not show
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if constexpr (kAdds) row.store(row.residual, first_of(i), sums[i]);
    row.store(row.out, first_of(i), outs[i]);
  }
}

template <typename Act, int kPieces, bool kAdds>
__device__ inline void norm_row(const RmsNormKernelParams& p, void* residual, int64_t residual_stride) {
  let_dependents_launch();
  if (!has_whole_pieces(p.is_aligned, p.width)) {
    return norm_row_of<Act, kPieces, kAdds, false>(p, residual, residual_stride);
  }
  norm_row_of<Act, kPieces, kAdds, true>(p, residual, residual_stride);
}

// Any width. Each thread writes only what it alone reads, so out may be x.
template <typename Act, bool kAdds>
__device__ inline void norm_wide_row(const RmsNormKernelParams& p, void* residual, int64_t residual_stride) {
  let_dependents_launch();
  const auto row = row_of_cta<Act, kAdds>(p, residual, residual_stride);
  wait_for_inputs();
  const int begin = static_cast<int>(threadIdx.x) * kPieceElems, step = static_cast<int>(blockDim.x) * kPieceElems;
  float sum_of_squares = 0.0f;
  for (int first = begin; first < p.width; first += step) {
    const Piece<Act> piece = row.take(first);
    if constexpr (kAdds) row.store(row.residual, first, piece);
    sum_of_squares = add_squares(piece, sum_of_squares);
  }
  const float inv_rms = inv_rms_of(sum_of_cta(sum_of_squares), p.width, p.eps);
  for (int first = begin; first < p.width; first += step) {
    const Piece<Act> weight = load_constant_piece(static_cast<const Act*>(p.weight), first, p.width, p.is_aligned);
    store_piece(row.out, first, p.width, p.is_aligned, normalized(row.take_again(first), weight, inv_rms));
  }
}

#define SPATE_NORM_KERNELS(suffix, Act, rms_norm_body, add_rms_norm_body)       \
  extern "C" __global__ void __launch_bounds__(kNormMaxThreads)                 \
      rms_norm_##suffix(const __grid_constant__ RmsNormKernelParams p) {        \
    rms_norm_body(p, nullptr, 0);                                               \
  }                                                                             \
  extern "C" __global__ void __launch_bounds__(kNormMaxThreads)                 \
      add_rms_norm_##suffix(const __grid_constant__ AddRmsNormKernelParams p) { \
    add_rms_norm_body(p.norm, p.residual, p.residual_stride);                   \
  }
#define SPATE_NORM_KERNELS_OF(act, Act)                                                 \
  extern "C" __global__ void __launch_bounds__(kNormNarrowThreads)                      \
      rms_norm_##act##_narrow(const __grid_constant__ RmsNormKernelParams p) {          \
    rms_norm_narrow<Act>(p);                                                            \
  }                                                                                     \
  SPATE_NORM_KERNELS(act##_1, Act, (norm_row<Act, 1, false>), (norm_row<Act, 1, true>)) \
  SPATE_NORM_KERNELS(act##_2, Act, (norm_row<Act, 2, false>), (norm_row<Act, 2, true>)) \
  SPATE_NORM_KERNELS(act##_4, Act, (norm_row<Act, 4, false>), (norm_row<Act, 4, true>)) \
  SPATE_NORM_KERNELS(act##_wide, Act, (norm_wide_row<Act, false>), (norm_wide_row<Act, true>))
SPATE_NORM_KERNELS_OF(bf16, Bf16)
SPATE_NORM_KERNELS_OF(f32, float)

}  // namespace spate::cuda
