// From the exact sums of codes to values, for the formats of linear_int8.cu and linear_int4.cu.
#pragma once

#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/primitive/async_copy.h"

namespace spate::cuda {

// values[i] = x_scale * row_scale * (sums[i] - bias * code_sum). rows: of tokens, of which column n of the tile is that at
// token_at(n). scale: of the thread's two rows of W. seen(i, num_outliers): the outliers of the thread's column i.
template <int kTokens, typename TokenAt, typename Seen>
__device__ inline void scale_sums_of(const QuantizedRow* rows, const float (&scale)[2], const int32_t (&sums)[kTokens / 2],
                                     float (&values)[kTokens / 2], int bias, TokenAt token_at, Seen seen) {
  const int first_column = threadIdx.x % 32 % 4 * 2;
#pragma unroll
  for (int i = 0; i < kTokens / 4; ++i) {  // tokens 8 j + c
    // Not all at once: there are no registers for them.
    if constexpr (kTokens > 128) {
      if (i % 8 == 0) __syncwarp();
    } else {
      if (i % 8 == 0) asm volatile("" ::: "memory");
    }
    const int j = i / 2, c = i % 2;
    const QuantizedRow x = rows[token_at(first_column + 8 * j + c)];
    seen(i, x.num_outliers);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = 4 * j + 2 * r + c;
      values[at] = x.scale * (scale[r] * static_cast<float>(sums[at] - bias * x.code_sum));
    }
  }
}

// values[i] += the outliers of the token times this row of W; max_outliers of a token. weight_at(r, k): the code there in
// the first or second row; 0 where the matrix has no such row.
template <int kTokens, typename TokenAt, typename WeightAt>
__device__ inline void add_outliers_of(const QuantizedRow* rows, const Outlier* outliers, const float (&scale)[2],
                                       int max_outliers, float (&values)[kTokens / 2], TokenAt token_at,
                                       WeightAt weight_at) {
  const int first_column = threadIdx.x % 32 % 4 * 2;
  // Tokens have their outliers in the same few places: the weights there are kept from one token to the next.
  int kept_k = -1;
  float kept[2] = {};
  for (int e = 0; e < max_outliers; ++e) {
    // There are no registers to keep the addresses of all tokens, or to read all of them at once.
    int column_here = first_column;
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      if (i % 4 == 0) asm volatile("" : "+r"(column_here)::"memory");
      const int j = i / 2, c = i % 2, token = token_at(column_here + 8 * j + c);
      const Outlier outlier = outliers[static_cast<int64_t>(token) * kMaxOutliers + e];
      if (e >= rows[token].num_outliers) continue;
      if (kept_k != outlier.k) {
        kept_k = outlier.k;
#pragma unroll
        for (int r = 0; r < 2; ++r) kept[r] = scale[r] * static_cast<float>(weight_at(r, kept_k));
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) values[4 * j + 2 * r + c] += outlier.x * kept[r];
    }
  }
}

// What the end of a tile takes: tokens, zeros where there are no more, and scales of those rows of W that there
// are. In shared memory; of tiles of 128 tokens and fewer it made decode no faster (bench/results).
template <int kTokens>
struct alignas(16) TileScales {
  QuantizedRow rows[kTokens];
  float scales[kWgmmaTileRows];
};
template <int kTokens>
constexpr bool kHasTileScales = kTokens > 128;

// The same of a product with one matrix. rows, row_at(column): of the tile's tokens. scale_at(row), weight_at(row, k):
// the scale and a code of W, of rows below num_rows. outlier_steps: of linear_skeleton.h; they take values without the
// scales of W.
template <int kTokens, typename RowAt, typename ScaleAt, typename OutlierSteps, typename WeightAt>
__device__ inline void scale_sums(const LinearIntegerKernelParams& p, const QuantizedRow* rows, RowAt row_at,
                                     ScaleAt scale_at, const int32_t (&sums)[kTokens / 2], float (&values)[kTokens / 2],
                                     int row, int token, int bias, OutlierSteps outlier_steps, WeightAt weight_at) {
  const int own_row = row + static_cast<int>(threadIdx.x) % 32 / 4, last_token = p.tiles.num_tokens - 1;
  float scale[2];
  const auto load_scales = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r) scale[r] = own_row + 8 * r < p.layout.num_rows ? scale_at(own_row + 8 * r) : 0.0f;
  };
  load_scales();
  const bool has_steps = outlier_steps.count() > 0;
  if (has_steps) scale[0] = scale[1] = 1.0f;
  const auto token_at = [&](int column) { return min(token + column, last_token); };
  int max_outliers = 0;
  scale_sums_of<kTokens>(rows, scale, sums, values, bias, row_at,
                         [&](int, int num_outliers) { max_outliers = max(max_outliers, num_outliers); });
  if (has_steps) {
    outlier_steps.add(values, static_cast<int>(threadIdx.x) / 128 - 1);
    load_scales();
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) values[i] *= scale[i / 2 % 2];
    max_outliers = outlier_steps.has_more() ? static_cast<int>(kMaxOutliers) : 0;
  }
  add_outliers_of<kTokens>(
      p.rows, p.outliers, scale, max_outliers, values, token_at,
      [&](int r, int k) { return own_row + 8 * r < p.layout.num_rows ? weight_at(own_row + 8 * r, k) : 0; });
}

// The end of a tile for linear_skeleton.h. A format of integers has it from here; it says kBias, of its codes, and
// code_of(p), a function that gives the code of W at (n, k).
template <typename Format>
struct IntegerFinish {
  using Params = LinearIntegerKernelParams;

  // The scales of the 8 rows of W from `row` on come to L2.
  __device__ static void prefetch_finish(const Params& p, int row) {
    if (row >= p.layout.num_rows) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.weight + p.layout.scales_offset + static_cast<int64_t>(row) * 4));
  }
  template <int kTokens>
  requires(kHasTileScales<kTokens>) using FinishInputs = TileScales<kTokens>;
  // Starts the copies; thread: of kTokens.
  template <int kTokens>
  __device__ static void fetch_finish(const Params& p, TileScales<kTokens>& to, int row, int token, int thread) {
    static_assert(kTokens >= kWgmmaTileRows);
    const bool exists = token + thread < p.tiles.num_tokens;
    copy_async_16(shared_address(to.rows + thread), p.rows + (exists ? token + thread : 0), exists);
    if (thread < kWgmmaTileRows && row + thread < p.layout.num_rows) {
      copy_async_4(shared_address(to.scales + thread), p.weight + p.layout.scales_offset + int64_t{row + thread} * 4);
    }
  }
  // Rows and scales from `tile`.
  template <int kTokens, typename OutlierSteps>
  __device__ static void finish(const Params& p, const TileScales<kTokens>& tile, const int32_t (&sums)[kTokens / 2],
                                float (&values)[kTokens / 2], int row, int token, OutlierSteps outlier_steps) {
    scale_sums<kTokens>(
        p, tile.rows, [](int column) { return column; }, [&](int of) { return tile.scales[of % kWgmmaTileRows]; }, sums,
        values, row, token, Format::kBias, outlier_steps, Format::code_of(p));
  }
  // From global memory.
  template <int kTokens, typename OutlierSteps>
  __device__ static void finish(const Params& p, const int32_t (&sums)[kTokens / 2], float (&values)[kTokens / 2],
                                int row, int token, OutlierSteps outlier_steps) {
    const int last_token = p.tiles.num_tokens - 1;
    const float* scales = reinterpret_cast<const float*>(p.weight + p.layout.scales_offset);
    scale_sums<kTokens>(
        p, p.rows, [&](int column) { return min(token + column, last_token); }, [&](int of) { return scales[of]; },
        sums, values, row, token, Format::kBias, outlier_steps, Format::code_of(p));
  }
};

}  // namespace spate::cuda
