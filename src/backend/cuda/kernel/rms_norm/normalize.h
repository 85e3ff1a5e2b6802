// The arithmetic of rms_norm on pieces, shared by all kernels that normalise, so that they give the same bits.
#pragma once

#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

template <typename Act>
__device__ inline float add_squares(const Piece<Act>& piece, float sum) {
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) sum = __fmaf_rn(value_of(piece, i), value_of(piece, i), sum);
  return sum;
}

__device__ inline float inv_rms_of(float sum_of_squares, int width, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(width) + eps);
}

// act(act(x * inv_rms) * weight)
template <typename Act>
__device__ inline Piece<Act> normalized(const Piece<Act>& x, const Piece<Act>& weight, float inv_rms) {
  float values[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) {
    values[i] = round_to<Act>(value_of(x, i) * inv_rms) * value_of(weight, i);
  }
  return to_piece<Act>(values);
}

}  // namespace spate::cuda
