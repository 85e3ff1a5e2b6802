// The store of a tile of expert_skeleton.h.
#pragma once

#include "backend/cuda/kernel/expert/expert_work.h"
#include "backend/cuda/kernel/linear/tile_store.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

// Of 16 features and 8 columns as wgmma has them (a lane: feature group and group + 8 of columns 2 pair and 2 pair +
// 1): four neighbouring features of one column, by exchanges with the lanes of group ^ 1 and group ^ 2.
struct FourFeatures {
  int feature, column;  // column: of the lane's two
  float4 values;

  __device__ FourFeatures(const float* own, int group) {
    const bool is_odd = group % 2 != 0, is_high = group / 2 % 2 != 0;
    float2 pairs[2];  // features group - group % 2 and the next, of the low 8 and of the high 8
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float even = own[2 * i], odd = own[2 * i + 1];
      const float got = __shfl_xor_sync(0xffffffffu, is_odd ? even : odd, 4);
      pairs[i] = is_odd ? make_float2(got, odd) : make_float2(even, got);
    }
    const float2 kept = is_high ? pairs[1] : pairs[0], sent = is_high ? pairs[0] : pairs[1];
    const float2 got = make_float2(__shfl_xor_sync(0xffffffffu, sent.x, 8), __shfl_xor_sync(0xffffffffu, sent.y, 8));
    values = is_high ? make_float4(got.x, got.y, kept.x, kept.y) : make_float4(kept.x, kept.y, got.x, got.y);
    column = is_odd;
    feature = 8 * is_high + group / 4 * 4;
  }
};

// values: as wgmma has them. first: the warp's first row of W in the matrix.
template <ExpertKind kKind, int kColumns>
__device__ inline void store_expert_tile(const ExpertWgmmaKernelParams& p, const float (&values)[kColumns / 2],
                                         const ExpertSegment& segment, int first) {
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  Bf16* out = static_cast<Bf16*>(p.out) + segment.first_row * p.out_stride + segment.matrix * p.out_matrix_stride;
  float* out_f32 = static_cast<float*>(p.out) + segment.first_row * p.out_stride;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (8 * j >= segment.num_rows) break;
    const float* own = values + 4 * j;
    const int row = 8 * j + group, column = 8 * j + 2 * pair;  // after a transposition; without
    if constexpr (has_silu(kKind)) {
      if (p.is_act_f32) {
        const int feature = first / 2 + group;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (column + i >= segment.num_rows || feature >= p.out_features) continue;
          out_f32[(column + i) * p.out_stride + feature] = silu_times<float>(own[i], own[2 + i]);
        }
        continue;
      }
      const int feature = first / 2 + 2 * pair;
      const uint32_t both = silu_of_8x8(own);
      if (row < segment.num_rows && feature < p.out_features) {
        *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature) = both;
      }
    } else if constexpr (kKind == ExpertKind::kHeads) {
      const uint32_t low = transpose_8x8(pack_bf16(own[0], own[1]));
      const uint32_t high = transpose_8x8(pack_bf16(own[2], own[3]));
      const int feature = first + 2 * pair;
      if (row >= segment.num_rows) continue;
      if (feature < p.out_features) *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature) = low;
      if (feature + 8 < p.out_features) *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature + 8) = high;
    } else {
      const FourFeatures four(own, group);
      const int own_column = 8 * j + 2 * pair + four.column, feature = first + four.feature;
      if (own_column < segment.num_rows && feature < p.out_features) {
        if (p.is_y_bf16) {
          const float4& of = four.values;
          *reinterpret_cast<uint2*>(out + own_column * p.out_stride + feature) =
              make_uint2(pack_bf16(of.x, of.y), pack_bf16(of.z, of.w));
        } else {
          *reinterpret_cast<float4*>(out_f32 + own_column * p.out_stride + feature) = four.values;
        }
      }
    }
  }
}

// Results of tiles of many rows go through shared memory to whole lines, those of the largest by the copy engine.
template <ExpertKind kKind, int kRows>
constexpr bool kStoresByCopies = kHasManyRows<kKind, kRows>&& kRows == 256;

// row: the warpgroup's first.
template <ExpertKind kKind>
__device__ inline bool can_stage_expert_tile(const ExpertWgmmaKernelParams& p, int row) {
  const int feature = has_silu(kKind) ? row / 2 : row, width = has_silu(kKind) ? kWgmmaRows / 2 : kWgmmaRows;
  const bool is_bf16 = kKind == ExpertKind::kDown ? p.is_y_bf16 : !p.is_act_f32;
  return is_bf16 && feature + width <= p.out_features;
}

// As store_expert_tile(), of bf16 and the warpgroup's 64 rows of W.
template <ExpertKind kKind, int kColumns>
__device__ inline void store_staged_expert_tile(const ExpertWgmmaKernelParams& p, const float (&values)[kColumns / 2],
                                                const ExpertSegment& segment, int row, uint32_t staging) {
  constexpr bool kHasSilu = has_silu(kKind);
  Bf16* out = static_cast<Bf16*>(p.out) + segment.first_row * p.out_stride + (kHasSilu ? row / 2 : row);
  constexpr float kNoBias[2] = {};
  store_through_shared<kHasSilu, kColumns>(out, p.out_stride, segment.num_rows, values, kNoBias, staging);
}

// The same by the copy engine, which goes on while the next tile is multiplied, from two buffers by turns.
template <ExpertKind kKind, int kColumns>
__device__ inline void store_tile_by_copies(const ExpertWgmmaKernelParams& p, const float (&values)[kColumns / 2],
                                            const ExpertSegment& segment, int row, uint32_t staging) {
  constexpr bool kHasSilu = has_silu(kKind);
  constexpr int kFeatures = kHasSilu ? kWgmmaRows / 2 : kWgmmaRows, kChunks = kFeatures / 8;
  constexpr int kFits = kWgmmaStagingBytes / (2 * kFeatures), kPassRows = kColumns < kFits ? kColumns : kFits;
  constexpr int kRound = 32;
  constexpr float kNoBias[2] = {};
  const int thread = static_cast<int>(threadIdx.x) % 128, feature = kHasSilu ? row / 2 : row;
#pragma unroll
  for (int first = 0; first < kColumns; first += kPassRows) {
    if (first >= segment.num_rows) break;
    const uint32_t buffer = staging + static_cast<uint32_t>(first / kPassRows % 2 * kWgmmaStagingBytes);
    if (thread == 0) {  // the copies from this buffer have read it
      if (first == 0) {
        wait_stores_read<0>();
      } else {
        wait_stores_read<1>();
      }
    }
    sync_warpgroup();
#pragma unroll
    for (int row_of_pass = 0; row_of_pass < kPassRows; row_of_pass += kRound) {  // of few rows not all have silu
      if (first + row_of_pass >= segment.num_rows) break;
      stage_results<kHasSilu, kRound, true>(values + (first + row_of_pass) / 2, kNoBias,
                                            buffer + static_cast<uint32_t>(row_of_pass * kFeatures * 2));
    }
    fence_async_proxy();
    sync_warpgroup();
    // Boxes that reach into the rows of the next expert go by threads.
    const int num_rows = min(kPassRows, segment.num_rows - first);
    const int num_copied = num_rows / kExpertStoreBoxRows * kExpertStoreBoxRows;
    if (thread == 0) {
      for (int box = 0; box < num_copied; box += kExpertStoreBoxRows) {
        store_box(p.out_map, feature, segment.first_row + first + box,
                  buffer + static_cast<uint32_t>(box * kFeatures * 2));
      }
      commit_stores();
    }
    Bf16* out = static_cast<Bf16*>(p.out) + (segment.first_row + first) * p.out_stride + feature;
    for (int i = num_copied * kChunks + thread; i < num_rows * kChunks; i += 128) {
      store_staged_chunk<kHasSilu>(buffer, static_cast<uint32_t>(i), out, p.out_stride);
    }
  }
}

}  // namespace spate::cuda
