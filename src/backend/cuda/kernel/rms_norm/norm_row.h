// What a CTA that owns a row reads and writes of it, for rms_norm.cu and add_rms_norm_codes.cu.
#pragma once

#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/rms_norm/rms_norm.h"

namespace spate::cuda {

// A row of x, and of the residual when kAdds.
template <typename Act, bool kAdds>
struct NormRow {
  const RmsNormKernelParams& p;
  const Act* x;
  Act* residual;
  Act* out;

  // What is normalised; with kAdds it becomes the residual.
  __device__ Piece<Act> take(int first) const {
    const Piece<Act> from_x = load_piece(x, first, p.width, p.is_aligned);
    if constexpr (!kAdds) return from_x;
    const Piece<Act> before = load_piece(static_cast<const Act*>(residual), first, p.width, p.is_aligned);
    float sum[kPieceElems];
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) sum[i] = value_of(before, i) + value_of(from_x, i);
    const Piece<Act> piece = to_piece<Act>(sum);
    store_piece(residual, first, p.width, p.is_aligned, piece);
    return piece;
  }
  // The same once more.
  __device__ Piece<Act> take_again(int first) const {
    return load_piece(kAdds ? static_cast<const Act*>(residual) : x, first, p.width, p.is_aligned);
  }
};

template <typename Act, bool kAdds>
__device__ inline NormRow<Act, kAdds> row_of_cta(const RmsNormKernelParams& p, void* residual,
                                                 int64_t residual_stride) {
  const int64_t token = blockIdx.x / p.num_heads, head = blockIdx.x % p.num_heads;
  return {p, static_cast<const Act*>(p.x) + token * p.x_token_stride + head * p.x_head_stride,
          kAdds ? static_cast<Act*>(residual) + token * residual_stride : nullptr,
          static_cast<Act*>(p.out) + token * p.out_token_stride + head * p.out_head_stride};
}

}  // namespace spate::cuda
