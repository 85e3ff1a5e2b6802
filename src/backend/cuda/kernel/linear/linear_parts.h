// What the kernels of linear share on the device.
#pragma once

#include "backend/cuda/kernel/linear/linear.h"
#include "backend/cuda/kernel/primitive/bf16.h"

namespace spate::cuda {

template <typename Act>
__device__ inline void store_out(const LinearKernelParams& p, int row, int column, float sum) {
  if (row >= p.num_tokens || column >= p.out_features) return;
  if (p.bias != nullptr) sum += to_float(static_cast<const Act*>(p.bias)[column]);
  const int64_t offset = row * p.out_stride + column;
  if (p.is_out_f32) {
    static_cast<float*>(p.out)[offset] = sum;
  } else {
    static_cast<Act*>(p.out)[offset] = from_float<Act>(sum);
  }
}

// Two neighbouring columns of a row, in one store where the address allows it.
__device__ inline void store_out_pair(const LinearKernelParams& p, int row, int column, float first, float second) {
  const int64_t offset = row * p.out_stride + column;
  if (p.is_out_f32 || !p.is_out_paired || row >= p.num_tokens || column + 1 >= p.out_features) {
    store_out<Bf16>(p, row, column, first);
    store_out<Bf16>(p, row, column + 1, second);
    return;
  }
  if (p.bias != nullptr) {
    first += to_float(static_cast<const Bf16*>(p.bias)[column]);
    second += to_float(static_cast<const Bf16*>(p.bias)[column + 1]);
  }
  const Vec<Bf16, 2> pair{{from_float<Bf16>(first), from_float<Bf16>(second)}};
  *reinterpret_cast<Vec<Bf16, 2>*>(static_cast<Bf16*>(p.out) + offset) = pair;
}

constexpr int kChunk = 8;  // bf16 values in 16 bytes
using Chunk = Vec<Bf16, kChunk>;

// Elements [k, k + 8) of a row of x, zeros outside the matrix.
__device__ inline Chunk load_x_chunk(const LinearKernelParams& p, int row, int k) {
  Chunk chunk = {};
  if (row >= p.num_tokens) return chunk;
  const Bf16* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  if (p.is_x_aligned && k + kChunk <= p.in_features) return *reinterpret_cast<const Chunk*>(x + k);
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if (k + j < p.in_features) chunk.elems[j] = x[k + j];
  }
  return chunk;
}

}  // namespace spate::cuda
