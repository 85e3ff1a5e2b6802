// What the kernels that add a token's experts share: expert_combine.cu, expert_combine_rows.cu.
#pragma once

#include "backend/cuda/kernel/expert/expert_product.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

constexpr int kMaxPairs = 64;

// The rows of a token and their weights, by rising row.
struct TokenRows {
  int32_t unsorted[kMaxPairs], rows[kMaxPairs];
  float weights[kMaxPairs];
};

// How many there are. All threads of the CTA call it, at least kMaxPairs.
__device__ inline int find_rows(const ExpertCombineKernelParams& p, int64_t token, TokenRows& found) {
  const int k = p.num_experts_per_tok, pair = static_cast<int>(threadIdx.x);
  int row = -1;
  float weight = 0;
  if (pair < k) {
    found.unsorted[pair] = row = p.pair_rows[token * k + pair];
    weight = p.expert_weights[token * p.weights_stride + pair];
  }
  const int num_rows = __syncthreads_count(row >= 0);
  if (row >= 0) {
    int rank = 0;
    for (int i = 0; i < k; ++i) rank += found.unsorted[i] >= 0 && found.unsorted[i] < row;
    found.rows[rank] = row;
    found.weights[rank] = weight;
  }
  __syncthreads();
  return num_rows;
}

// sums += weight times y of each row. Rows of y are padded to whole pieces. All loads of a round are on their way
// before the first sum.
template <typename Y>
__device__ inline void add_rows(const ExpertCombineKernelParams& p, int first, int num_rows, const TokenRows& found,
                                float (&sums)[kPieceElems]) {
  constexpr int kRound = 8;
  for (int r = 0; r < num_rows; r += kRound) {
    Piece<Y> pieces[kRound];
#pragma unroll
    for (int j = 0; j < kRound; ++j) {
      if (r + j >= num_rows) continue;
      const Y* row = static_cast<const Y*>(p.y) + found.rows[r + j] * p.y_stride;
      pieces[j] = load_piece(row, first, first + kPieceElems, true);
    }
#pragma unroll
    for (int j = 0; j < kRound; ++j) {
      if (r + j >= num_rows) continue;
      const float weight = found.weights[r + j];
#pragma unroll
      for (int i = 0; i < kPieceElems; ++i) sums[i] = __fmaf_rn(weight, value_of(pieces[j], i), sums[i]);
    }
  }
}

// add(sums): of the experts.
template <typename Act, typename Add>
__device__ inline Piece<Act> combined_piece(const ExpertCombineKernelParams& p, int64_t token, int first, Add add) {
  const int width = p.hidden_size;
  float sums[kPieceElems] = {};
  if (p.shared != nullptr) {
    const float gate = p.shared_gate != nullptr ? p.shared_gate[token * p.shared_gate_stride] : 0.0f;
    const float factor = p.shared_gate != nullptr ? 1.0f / (1.0f + expf(-gate)) : 1.0f;
    const Act* shared = static_cast<const Act*>(p.shared) + token * p.shared_stride;
    const Piece<Act> piece = load_piece(shared, first, width, p.is_aligned);
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) sums[i] = factor * value_of(piece, i);
  }
  add(sums);
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) sums[i] = first + i < width ? sums[i] : 0.0f;
  return to_piece<Act>(sums);
}

}  // namespace spate::cuda
