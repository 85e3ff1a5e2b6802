// The arithmetic of silu_and_mul on pieces, shared by the kernels that do it alone and with more.
#pragma once

#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

// act(act(silu(gate)) * up)
template <typename Act>
__device__ inline Piece<Act> silu_and_mul_of(const Piece<Act>& gate, const Piece<Act>& up) {
  float product[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) {
    const float g = value_of(gate, i);
    product[i] = round_to<Act>(g / (1.0f + expf(-g))) * value_of(up, i);
  }
  return to_piece<Act>(product);
}

}  // namespace spate::cuda
