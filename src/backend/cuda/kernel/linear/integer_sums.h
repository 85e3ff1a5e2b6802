// From the exact sums of codes to values, for the formats of linear_int8.cu and linear_int4.cu.
#pragma once

#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

// values[i] = x_scale * row_scale * (sums[i] - bias * code_sum) + the outliers of the token times this row of W.
// weight_at(row, k): the code of W there, of rows below num_rows.
template <int kTokens, typename WeightAt>
__device__ inline void scale_sums(const LinearIntegerKernelParams& p, const int32_t (&sums)[kTokens / 2],
                                  float (&values)[kTokens / 2], int row, int token, int bias, WeightAt weight_at) {
  const int lane = threadIdx.x % 32, first_column = token + lane % 4 * 2;
  const int own_rows[2] = {row + lane / 4, row + lane / 4 + 8};
  const float* scales = reinterpret_cast<const float*>(p.weight + p.layout.scales_offset);
  float scale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) scale[r] = own_rows[r] < p.layout.num_rows ? scales[own_rows[r]] : 0.0f;
  const int last_column = p.tiles.num_tokens - 1;
  int max_outliers = 0;
#pragma unroll
  for (int i = 0; i < kTokens / 4; ++i) {  // tokens 8 j + c
    if (i % 8 == 0) asm volatile("" ::: "memory");
    const int j = i / 2, c = i % 2;
    const QuantizedRow x = p.rows[min(first_column + 8 * j + c, last_column)];
    max_outliers = max(max_outliers, x.num_outliers);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = 4 * j + 2 * r + c;
      values[at] = x.scale * (scale[r] * static_cast<float>(sums[at] - bias * x.code_sum));
    }
  }
  // Tokens have their outliers in the same few places: the weights there are kept from one token to the next.
  int kept_k = -1;
  float kept[2] = {};
  for (int e = 0; e < max_outliers; ++e) {
    // There are no registers to keep the addresses of all tokens, or to read all of them at once.
    int column_here = first_column;
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      if (i % 4 == 0) asm volatile("" : "+r"(column_here)::"memory");
      const int j = i / 2, c = i % 2, column = min(column_here + 8 * j + c, last_column);
      const Outlier outlier = p.outliers[static_cast<int64_t>(column) * kMaxOutliers + e];
      if (e >= p.rows[column].num_outliers) continue;
      if (kept_k != outlier.k) {
        kept_k = outlier.k;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          kept[r] = own_rows[r] < p.layout.num_rows ? scale[r] * static_cast<float>(weight_at(own_rows[r], kept_k)) : 0;
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) values[4 * j + 2 * r + c] += outlier.x * kept[r];
    }
  }
}

}  // namespace spate::cuda
