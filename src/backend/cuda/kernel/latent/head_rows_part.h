// A warp's rows of a product of one row of x with a matrix for each head.
#pragma once

#include "backend/cuda/kernel/latent/head_rows.h"
#include "backend/cuda/kernel/linear/row_results.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

// kRowLanes lanes share a row and have kPieces pieces of it each; the warp has kRows rows.
template <int kRowLanes, int kPieces, int kRows>
class HeadRows {
 public:
  // Loads all bytes of W.
  __device__ HeadRows(const HeadRowsKernelParams& p, int warp)
      : first_row_(warp * kRows + static_cast<int>(threadIdx.x) % kWarpSize / kRowLanes) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int row = first_row_ + s * kAtOnce;
        weights_[s][i] = {};
        if (row < p.num_rows && elem_of(i) < p.in_features) {
          weights_[s][i] = load_stream(p.weight + row * p.weight_row_bytes + elem_of(i) * 2);
        }
      }
    }
  }
  __device__ void multiply(const HeadRowsKernelParams& p) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int row = first_row_ + s * kAtOnce, head = row / p.out_features;
      const Bf16* x = static_cast<const Bf16*>(p.x) + head * p.x_stride;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (row >= p.num_rows || elem_of(i) >= p.in_features) continue;
        const Piece<Bf16> piece = load_piece(x, elem_of(i), p.in_features, true);
        const Piece<Bf16> weight{{weights_[s][i].x, weights_[s][i].y, weights_[s][i].z, weights_[s][i].w}};
#pragma unroll
        for (int j = 0; j < kPieceElems; ++j) sum = __fmaf_rn(value_of(piece, j), value_of(weight, j), sum);
      }
#pragma unroll
      for (int mask = kRowLanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
      if (elem_of(0) == 0 && row < p.num_rows) {
        static_cast<Bf16*>(p.out)[head * p.out_stride + row % p.out_features] = from_float<Bf16>(sum);
      }
    }
  }

 private:
  static constexpr int kAtOnce = kWarpSize / kRowLanes, kSteps = kRows / kAtOnce;
  __device__ static int elem_of(int piece) {
    return (piece * kRowLanes + static_cast<int>(threadIdx.x) % kRowLanes) * kPieceElems;
  }

  const int first_row_;
  uint4 weights_[kSteps][kPieces];
};

using ShortHeadRows = HeadRows<kHeadRowsShortWidth / kPieceElems, 1, kHeadRowsShort>;
using LongHeadRows = HeadRows<kWarpSize, kHeadRowsLongWidth / kPieceElems / kWarpSize, kHeadRowsLong>;

}  // namespace spate::cuda
