// The arithmetic of silu_and_mul, shared by the kernels that do it alone and with more.
#pragma once

#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

// Of bf16 with the fast exponential and quotient: off by less than 2^-16 of it, a thousandth of what bf16 can tell
// apart.
template <typename Act>
__device__ inline float silu(float gate) {
  if constexpr (sizeof(Act) == sizeof(Bf16)) return __fdividef(gate, 1.0f + __expf(-gate));
  return gate / (1.0f + expf(-gate));
}

// act(silu(gate)) * up, of a gate and an up that are rounded to act: what is stored, before its own rounding.
template <typename Act>
__device__ inline float silu_times(float gate, float up) {
  return round_to<Act>(silu<Act>(gate)) * up;
}

// act(act(silu(gate)) * up)
template <typename Act>
__device__ inline Piece<Act> silu_and_mul_of(const Piece<Act>& gate, const Piece<Act>& up) {
  float product[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) product[i] = silu_times<Act>(value_of(gate, i), value_of(up, i));
  return to_piece<Act>(product);
}

}  // namespace spate::cuda
