// What the integer formats of expert_skeleton.h share.
#pragma once

#include "backend/cuda/kernel/expert/expert_skeleton.h"
#include "backend/cuda/kernel/linear/integer_sums.h"

namespace spate::cuda {

__device__ inline const char* expert_matrix(const ExpertWgmmaKernelParams& p, int matrix) {
  return p.integer.weight + matrix * p.integer.layout.matrix_bytes;
}

// Values of a tile, the outliers of x included. first_row: of the warp. code_at(weight, row, k): the code of a matrix there.
template <ExpertKind kKind, int kColumns, typename CodeAt>
__device__ inline void finish_integer(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                const int32_t (&sums)[kColumns / 2],
                                      float (&values)[kColumns / 2], const ExpertSegment& segment, int first_row,
                                      int bias, CodeAt code_at) {
  const char* weight = expert_matrix(p, segment.matrix);
  const float* scales = reinterpret_cast<const float*>(weight + p.integer.layout.scales_offset);
  const int group = threadIdx.x % 32 / 4, feature = (has_silu(kKind) ? first_row / 2 : first_row) + group;
  const int own_rows[2] = {feature, has_silu(kKind) ? p.out_features + feature : feature + 8};
  const bool exists[2] = {feature < p.out_features,
                          (has_silu(kKind) ? feature : feature + 8) < p.out_features};
  float scale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) scale[r] = exists[r] ? scales[own_rows[r]] : 0.0f;
  const int last_column = segment.num_rows - 1;
  const bool gathers = p.integer.gathers;
  scale_sums_of<kColumns>(
      p.integer.rows, p.integer.outliers, scale, sums, values, bias,
      [&](int column) {
        const int row = segment.first_row + min(column, last_column);
        return gathers ? order.row_tokens[row] : row;
      },
      [&](int r, int k) { return exists[r] ? code_at(weight, own_rows[r], k) : 0; });
}

}  // namespace spate::cuda
