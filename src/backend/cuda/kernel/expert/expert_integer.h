// What the integer formats of expert_skeleton.h share.
#pragma once

#include "backend/cuda/kernel/expert/expert_skeleton.h"
#include "backend/cuda/kernel/linear/integer_sums.h"

namespace spate::cuda {

__device__ inline const char* expert_matrix(const ExpertWgmmaKernelParams& p, int matrix) {
  return p.integer.weight + matrix * p.integer.layout.matrix_bytes;
}

// The outliers of one column after the other, of those that have any: bit i of `columns` for column i of the thread.
template <int kColumns, typename RowAt, typename WeightAt>
__device__ inline void add_outliers_by_column(const ExpertIntegerParams& p, const float (&scale)[2], uint32_t columns,
                                              float (&values)[kColumns / 2], RowAt row_at, WeightAt weight_at) {
  static_assert(kColumns / 4 <= 32);
  constexpr int kAtOnce = 4;  // that are read before the first is added
  for (; columns != 0; columns &= columns - 1) {
    const int own = __ffs(static_cast<int>(columns)) - 1;
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[r] = i == own ? values[4 * (i / 2) + 2 * r + i % 2] : sums[r];
    }
    const int row = row_at(static_cast<int>(threadIdx.x) % 4 * 2 + 8 * (own / 2) + own % 2);
    const Outlier* outliers = p.outliers + static_cast<int64_t>(row) * kMaxOutliers;
    const int num_outliers = p.rows[row].num_outliers;
#pragma unroll 1
    for (int first = 0; first < num_outliers; first += kAtOnce) {
      float x[kAtOnce], weights[kAtOnce][2];
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) {
        const Outlier outlier = outliers[min(first + e, num_outliers - 1)];
        x[e] = outlier.x;
#pragma unroll
        for (int r = 0; r < 2; ++r) weights[e][r] = scale[r] * static_cast<float>(weight_at(r, outlier.k));
      }
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) {
        if (first + e >= num_outliers) break;
#pragma unroll
        for (int r = 0; r < 2; ++r) sums[r] += x[e] * weights[e][r];
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& value = values[4 * (i / 2) + 2 * r + i % 2];
        value = i == own ? sums[r] : value;
      }
    }
  }
}

// Scales of a tile come to shared memory, a thread those of a row of x or of W.
template <ExpertKind kKind, int kRows>
__device__ inline void fetch_expert_scales(const ExpertWgmmaKernelParams& p, ExpertTileScales<kRows>& to,
                                           const ExpertSegment& segment, int thread) {
  static_assert(kRows + kWgmmaTileRows <= kConsumerThreads);
  if (thread < kRows) {
    const int row = segment.first_row + min(thread, segment.num_rows - 1);
    copy_async_16(shared_address(to.rows + thread), p.integer.ordered_rows + row, true);
    return;
  }
  const int i = thread - kRows, half = kWgmmaTileRows / 2;
  const int feature =
      has_silu(kKind) ? segment.weight_tile * half + i % half : segment.weight_tile * kWgmmaTileRows + i;
  if (i >= kWgmmaTileRows || feature >= p.out_features) return;
  const int row = has_silu(kKind) && i >= half ? p.out_features + feature : feature;
  const char* scales = expert_matrix(p, segment.matrix) + p.integer.layout.scales_offset;
  copy_async_4(shared_address(to.scales + i), scales + int64_t{row} * 4);
}

// Values of a tile, the outliers of x included unless expert_outliers.cu adds them. first_row: of the warp.
// code_at(weight, row, k): the code of a matrix there. fetched: null, or what fetch_expert_scales() brought.
template <ExpertKind kKind, int kColumns, typename CodeAt, int kRows = 1>
__device__ inline void finish_integer(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                      const int32_t (&sums)[kColumns / 2], float (&values)[kColumns / 2],
                                      const ExpertSegment& segment, int first_row, int bias, CodeAt code_at,
                                      const ExpertTileScales<kRows>* fetched = nullptr) {
  constexpr bool kIsFetched = kRows > 1;
  const char* weight = expert_matrix(p, segment.matrix);
  const float* scales = reinterpret_cast<const float*>(weight + p.integer.layout.scales_offset);
  const int group = threadIdx.x % 32 / 4, feature = (has_silu(kKind) ? first_row / 2 : first_row) + group;
  const int own_rows[2] = {feature, has_silu(kKind) ? p.out_features + feature : feature + 8};
  const bool exists[2] = {feature < p.out_features,
                          (has_silu(kKind) ? feature : feature + 8) < p.out_features};
  float scale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int of_tile =
        has_silu(kKind) ? feature % (kWgmmaTileRows / 2) + r * (kWgmmaTileRows / 2) : feature % kWgmmaTileRows + 8 * r;
    scale[r] = !exists[r] ? 0.0f : kIsFetched ? fetched->scales[of_tile] : scales[own_rows[r]];
  }
  const int last_column = segment.num_rows - 1;
  const bool gathers = p.integer.gathers;
  const auto row_at = [&](int column) {
    const int row = segment.first_row + min(column, last_column);
    return gathers ? order.row_tokens[row] : row;
  };
  const auto weight_at = [&](int r, int k) { return exists[r] ? code_at(weight, own_rows[r], k) : 0; };
  const int first_column = threadIdx.x % 4 * 2;
  uint32_t columns = 0;  // of the thread, that have outliers
  int max_outliers = 0;
  const auto see = [&](int i, int num_outliers) {
    if (first_column + 8 * (i / 2) + i % 2 > last_column) return;
    max_outliers = max(max_outliers, num_outliers);
    columns |= static_cast<uint32_t>(num_outliers > 0) << i;
  };
  if constexpr (kIsFetched) {
    scale_sums_of<kColumns>(
        fetched->rows, scale, sums, values, bias, [](int column) { return column; }, see);
  } else {
    scale_sums_of<kColumns>(p.integer.rows, scale, sums, values, bias, row_at, see);
  }
  if (max_outliers == 0 || (kKind == ExpertKind::kDown && p.integer.leaves_outliers)) return;
  // Activations between gate_up and down: one row in hundreds has outliers, and it has tens of them. (Kernels of small
  // tiles leave the registers to the CTAs beside them.)
  if (kKind == ExpertKind::kDown && kColumns >= 128 && 2 * __popc(columns) <= max_outliers * kColumns / 16) {
    add_outliers_by_column<kColumns>(p.integer, scale, columns, values, row_at, weight_at);
  } else {
    add_outliers_of<kColumns>(p.integer.rows, p.integer.outliers, scale, max_outliers, values, row_at, weight_at);
  }
}

// The end of a tile of a format that has code_at(p).
#define SPATE_EXPERT_INTEGER_FINISH(bias)                                                                           \
  template <ExpertKind kKind, int kRows>                                                                            \
  __device__ static void fetch_scales(const ExpertWgmmaKernelParams& p, ExpertTileScales<kRows>& to,                \
                                      const ExpertSegment& segment, int thread) {                                   \
    fetch_expert_scales<kKind>(p, to, segment, thread);                                                             \
  }                                                                                                                 \
  template <ExpertKind kKind, int kColumns>                                                                         \
  __device__ static void finish(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,                         \
                                const int32_t(&sums)[kColumns / 2], float(&values)[kColumns / 2],                   \
                                const ExpertSegment& segment, int first_row) {                                      \
    finish_integer<kKind, kColumns>(p, order, sums, values, segment, first_row, bias, code_at(p));                  \
  }                                                                                                                 \
  template <ExpertKind kKind, int kColumns, int kRows>                                                              \
  __device__ static void finish_scaled(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,                  \
                                       const ExpertTileScales<kRows>& fetched, const int32_t(&sums)[kColumns / 2],  \
                                       float(&values)[kColumns / 2], const ExpertSegment& segment, int first_row) { \
    finish_integer<kKind, kColumns>(p, order, sums, values, segment, first_row, bias, code_at(p), &fetched);        \
  }

}  // namespace spate::cuda
