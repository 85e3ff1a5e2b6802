// The arithmetic of rms_norm on pieces, shared by all kernels that normalise, so that they give the same bits.
#pragma once

#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/rms_norm/rms_norm.h"

namespace spate::cuda {

template <typename Act>
__device__ inline float add_squares(const Piece<Act>& piece, float sum) {
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) sum = __fmaf_rn(value_of(piece, i), value_of(piece, i), sum);
  return sum;
}

// The sum over a CTA of up to kNormMaxThreads, of lanes, then of warps in order: block_reduce()'s bits, but the warps'
// sums are read before the first of them is added. Once in a kernel; a rehearsal before it may mix with it, since its
// sum is not used.
__device__ inline float sum_of_cta(float value) {
  constexpr int kWarps = kNormMaxThreads / kWarpSize;
  __shared__ float4 of_warps[kWarps / 4];
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = warp_reduce(value, Sum());
  if (threadIdx.x % kWarpSize == 0) reinterpret_cast<float*>(of_warps)[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float sums[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps / 4; ++i) {
    const float4 four = of_warps[i];
    sums[4 * i] = four.x;
    sums[4 * i + 1] = four.y;
    sums[4 * i + 2] = four.z;
    sums[4 * i + 3] = four.w;
  }
  value = sums[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) value = warp < num_warps ? value + sums[warp] : value;
  return value;
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
