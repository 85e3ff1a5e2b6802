// Kernels of latency rehearse: while the kernel before still runs, a CTA goes through its arithmetic once with made-up
// numbers, so that its instructions are at hand when the inputs come. And rows of whole pieces, for which such kernels
// have machine code of their own.
#pragma once

#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

// Many CTAs find no room so early, and a rehearsal would only delay them.
constexpr int kMaxRehearsingCtas = 132;

__device__ inline bool begins_for_real(bool may_rehearse) {
#if __CUDA_ARCH__ < 900
  return true;
#else
  uint32_t is_real = !may_rehearse || gridDim.x > kMaxRehearsingCtas;
  asm volatile("" : "+r"(is_real));  // so that there is one loop
  return is_real != 0;
#endif
}
template <typename T>
__device__ inline Piece<T> made_up_piece() {
  float ones[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) ones[i] = 1.0f;
  return to_piece<T>(ones);
}

// Whether a row is whole pieces in accesses of 16 bytes.
__device__ inline bool has_whole_pieces(int is_aligned, int width) {
  return ((is_aligned != 0) & (width % kPieceElems == 0)) != 0;
}
// load_piece() and store_piece() of such rows.
template <typename T>
__device__ inline Piece<T> load_whole(const T* row, int first, int width) {
  Piece<T> piece = {};
  if (first >= width) return piece;
#pragma unroll
  for (int q = 0; q < Piece<T>::kQuads; ++q) {
    const uint4 quad = reinterpret_cast<const uint4*>(row + first)[q];
    piece.words[4 * q] = quad.x;
    piece.words[4 * q + 1] = quad.y;
    piece.words[4 * q + 2] = quad.z;
    piece.words[4 * q + 3] = quad.w;
  }
  return piece;
}
template <typename T>
__device__ inline void store_whole(T* row, int first, int width, const Piece<T>& piece) {
  if (first < width) store_piece(row, first, first + kPieceElems, true, piece);
}

}  // namespace spate::cuda
