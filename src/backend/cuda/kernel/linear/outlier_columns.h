// The outliers of many tokens as a matrix product: the columns of W that they meet, side by side as bf16, and their
// values in the same columns, zero where a token has none. The warps of linear_skeleton.h that neither load nor
// multiply make both while the others go through k; a warp takes four rows of W or a token. Exact: codes, and outliers
// of bf16 rows, are bf16 numbers. Columns beyond what there is room for are not gathered: their outliers stay in the
// list.
#pragma once

#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/flag.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

constexpr int kColumnWarps = 3, kColumnThreads = 32 * kColumnWarps;

__device__ inline void sync_column_warps() { asm volatile("bar.sync 2, %0;" ::"n"(kColumnThreads) : "memory"); }

// Ranks the marked columns: *p.outlier_columns gets the first `capacity` of them and the ranks at which words of marks
// begin, the same from every CTA. Returns how many are marked; all threads.
__device__ inline int rank_columns(const LinearIntegerKernelParams& p, int thread) {
  __shared__ int32_t of_warp[kColumnWarps];
  OutlierColumns& columns = *p.outlier_columns;
  const int lane = thread % 32, warp = thread / 32;
  const int num_words = static_cast<int>(p.layout.row_bytes() / 32),
            words = (num_words + kColumnThreads - 1) / kColumnThreads;
  const int first = min(thread * words, num_words), last = min(first + words, num_words);
  int count = 0;
#pragma unroll 1
  for (int i = first; i < last; ++i) count += __popc(__ldcg(columns.marks + i));
  int before = count;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, distance);
    if (lane >= distance) before += other;
  }
  if (lane == 31) of_warp[warp] = before;
  sync_column_warps();
  int total = 0;
  before -= count;
#pragma unroll
  for (int i = 0; i < kColumnWarps; ++i) {
    if (i < warp) before += of_warp[i];
    total += of_warp[i];
  }
  if (total == 0) return 0;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    columns.before[i] = static_cast<uint16_t>(before);
#pragma unroll 1
    for (uint32_t left = __ldcg(columns.marks + i); left != 0; left &= left - 1, ++before) {
      if (before < p.outlier_capacity) columns.ks[before] = static_cast<uint16_t>(32 * i + __ffs(left) - 1);
    }
  }
  sync_column_warps();
  return total;
}

// A warp: four rows of W from a multiple of four on, two each half of it.
template <typename Format>
__device__ inline void gather_four_rows(const LinearIntegerKernelParams& p, int num_columns, int num_padded,
                                        int first_row, int lane) {
  const int row = first_row + lane / 16 * 2;
  if (row >= p.layout.num_rows) return;
#pragma unroll 1
  for (int column = lane % 16 * 4; column < num_padded; column += 64) {
    const uint2 four = __ldcg(reinterpret_cast<const uint2*>(p.outlier_columns->ks + column));
    uint32_t words[2][2];  // of a row, two columns
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t ks = half == 0 ? four.x : four.y;
      int first[2] = {}, second[2] = {};
      if (column + 2 * half < num_columns) Format::load_two_rows(p, row, static_cast<int>(ks & 0xffff), first);
      if (column + 2 * half + 1 < num_columns) Format::load_two_rows(p, row, static_cast<int>(ks >> 16), second);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        words[r][half] = pack_bf16(static_cast<float>(first[r]), static_cast<float>(second[r]));
      if (Format::kBias != 0) asm volatile("" ::: "memory");  // int4: there are no registers for both halves at once
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + r >= p.layout.num_rows) break;
      uint16_t* to = p.outlier_weights + static_cast<int64_t>(row + r) * p.outlier_capacity + column;
      *reinterpret_cast<uint2*>(to) = make_uint2(words[r][0], words[r][1]);
    }
  }
}

// A warp: outliers of a token that are gathered go to its row of values, the others move up in the list.
__device__ inline void place_outliers(const LinearIntegerKernelParams& p, int num_padded, int token, int lane) {
  const OutlierColumns& columns = *p.outlier_columns;
  const int count = p.rows[token].num_outliers;
  uint16_t* values = p.outlier_values + static_cast<int64_t>(token) * p.outlier_capacity;
#pragma unroll 1
  for (int column = 2 * lane; column < num_padded; column += 64) *reinterpret_cast<uint32_t*>(values + column) = 0;
  Outlier* list = p.outliers + static_cast<int64_t>(token) * kMaxOutliers;
  Outlier own = {};
  int rank = 0;
  if (lane < count) {
    own = list[lane];
    const uint32_t below = __ldcg(columns.marks + own.k / 32) & ((1u << own.k % 32) - 1);
    rank = __ldcg(columns.before + own.k / 32) + __popc(below);
  }
  const bool stays = rank >= p.outlier_capacity;
  __syncwarp();  // zeros before values, and the list has been read
  if (lane < count && !stays) reinterpret_cast<Bf16*>(values)[rank] = from_float<Bf16>(own.x);
  const uint32_t staying = __ballot_sync(0xffffffffu, stays);
  if (stays) list[__popc(staying & ((1u << lane) - 1))] = own;
  if (lane == 0) p.rows[token].num_outliers = __popc(staying);
}

// This CTA's share of the gathering; the last CTA to end says so to all. thread: of kColumnThreads.
template <typename Format>
__device__ inline void gather_outliers(const LinearIntegerKernelParams& p, int num_columns, int thread) {
  const int num_padded = (num_columns + kOutlierStepColumns - 1) / kOutlierStepColumns * kOutlierStepColumns;
  const int num_items = p.tiles.num_tokens + (p.layout.num_rows + 3) / 4, warp = thread / 32, lane = thread % 32;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x) * kColumnWarps + warp; item < num_items;
       item += static_cast<int>(gridDim.x) * kColumnWarps) {
    if (item < p.tiles.num_tokens) {
      place_outliers(p, num_padded, item, lane);
    } else {
      gather_four_rows<Format>(p, num_columns, num_padded, 4 * (item - p.tiles.num_tokens), lane);
    }
  }
  __threadfence();
  fence_async_proxy_global();
  sync_column_warps();
  if (thread >= 32) return;
  OutlierColumns& columns = *p.outlier_columns;
  uint32_t is_last = 0;
  if (lane == 0) {
    __threadfence();
    is_last = atomicAdd(&columns.num_arrived, 1) == gridDim.x - 1;
  }
  if (__shfl_sync(0xffffffffu, is_last, 0) == 0) return;
  __threadfence();
#pragma unroll 1
  for (int i = lane; i < static_cast<int>(p.layout.row_bytes() / 32); i += 32)
    columns.marks[i] = 0;  // for the next product
  if (lane == 0) {
    columns.num_arrived = 0;
    store_release(&columns.is_gathered, 1);
  }
}

}  // namespace spate::cuda
