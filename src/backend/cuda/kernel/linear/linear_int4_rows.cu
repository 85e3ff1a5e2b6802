// WHAT       out = x W^T + bias for 1 to 8 tokens in bf16 and 4-bit codes of W whose groups have scales of their own,
//            bound by the bytes of W; or silu(gate) * up of it.
// SHAPES     As linear_rows.cu; in_features a multiple of 128, at least 1,024; groups of 32 << n.
// LAYOUT     int4_groups.h.
// NUMERICS   The values of W are those of the same weight in bf16, to the bit (int4_groups_decode.h); fp32 sums as in
//            linear_rows.cu, of steps of 128.
// WORK       As linear_rows.cu, groups of 16 rows, walked by row_groups.h. Codes become bf16 in registers, operand A of
//            mma.sync as they are. Every CTA copies x to shared memory, from where ldmatrix reads operand B: in the
//            order of k that the codes have for wgmma a lane's elements of x are no neighbours.
// ROOFLINE   Bytes of W over 4.65 TB/s: 2.3 instructions an element, 4 with offsets.
// WARM       3 s: other-codes
// LIMITS     sm_90a; x has to fit kInt4RowsLargeBytes.
// TESTS      spate-conformance --backend cuda --filter a16
#include "backend/cuda/kernel/linear/int4_groups_decode.h"
#include "backend/cuda/kernel/linear/row_groups.h"
#include "backend/cuda/kernel/linear/row_results.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

__device__ inline uint2 load_codes(const char* address) {
  uint2 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "l"(address));
  return value;
}

// Where a lane finds its two rows of a group, lane / 4 and that + pair_step: the codes of the first step and the scales.
struct Int4RowPlaces {
  const char* codes[2];
  const char* scales[2];
  int group = -1;

  __device__ void move_to(const LinearInt4RowsKernelParams& p, int new_group) {
    group = new_group;
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = min(group * p.rows.group_step + lane / 4 + p.rows.pair_step * r, p.rows.out_features - 1);
      const char* unit = p.rows.weight + p.layout.unit_offset(row, 0);
      codes[r] = unit + row % kInt4UnitRows * kInt4GroupRowBytes + lane % 4 * 8;
      scales[r] = unit + kInt4UnitCodeBytes + row % kInt4UnitRows * p.layout.scale_bytes;
    }
  }
};

// What a lane holds of its two rows and 128 elements of k. kScales: of a row in them; 1, or 4, one for each 32 elements.
template <bool kHasOffsets, int kScales>
struct Int4RowStep {
  static constexpr int kChunks = kInt4UnitChunks, kScaleBytes = kHasOffsets ? 4 : 2;
  uint2 codes[2][kChunks];
  uint32_t scales[2][kScales];

  __device__ void load(const LinearInt4RowsKernelParams& p, const Int4RowPlaces& places, int step) {
    const uint64_t offset = static_cast<uint64_t>(static_cast<uint32_t>(step)) * static_cast<uint32_t>(2 * p.layout.unit_bytes);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const char* from = places.codes[r] + offset;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) codes[r][c] = load_codes(from + c * kInt4ChunkBytes);
      const char* row_scales = places.scales[r] + offset;
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        scales[r][i] = load_scale(row_scales + (i >> p.place_shift) * (kInt4UnitRows * kScaleBytes));
      }
    }
  }
  // x: the lane's row of its matrix, at the step's first element.
  __device__ void multiply(float (&sums)[4], uint32_t x) const {
#pragma unroll
    for (int i = 0; i < 2 * kChunks; ++i) {
      uint32_t b[4], low[4], high[4];
      load_matrices(b, x + static_cast<uint32_t>(i) * 64);
      const auto word = [&](int r) { return i % 2 == 0 ? codes[r][i / 2].x : codes[r][i / 2].y; };
      decode_word(word(0), scale_of(scales[0][kScales == 1 ? 0 : i]), low);
      decode_word(word(1), scale_of(scales[1][kScales == 1 ? 0 : i]), high);
      mma_m16n8k16_bf16(sums, {low[0], high[0], low[1], high[1]}, {b[0], b[1]});
      mma_m16n8k16_bf16(sums, {low[2], high[2], low[3], high[3]}, {b[2], b[3]});
    }
  }

 private:
  __device__ static uint32_t load_scale(const char* address) {
    if constexpr (kHasOffsets) {
      uint32_t halves;
      asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(halves) : "l"(address));
      return halves;
    } else {
      uint16_t half;
      asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(half) : "l"(address));
      return half;
    }
  }
  __device__ static auto scale_of(uint32_t stored) {
    if constexpr (kHasOffsets) {
      return halves_to_large_scale(stored);
    } else {
      return split_scale(static_cast<uint16_t>(stored));
    }
  }
};

// Rows of x to shared memory, for the reads of all threads.
__device__ inline void copy_x(const LinearRowsKernelParams& p, uint32_t shared, int width) {
  const int pieces = width / 8, row_bytes = static_cast<int>(int4_rows_x_bytes(width));
  const auto* x = static_cast<const Bf16*>(p.x);
  for (int token = 0; token < p.num_tokens; ++token) {
    for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kRowsWarps * kLanes) {
      copy_async_16(shared + static_cast<uint32_t>(token * row_bytes + i * 16), x + token * p.x_stride + i * 8, true);
    }
  }
  commit_copies();
  wait_copies<0>();
  __syncthreads();
}

template <bool kHasOffsets, int kScales, int kDepth>
__device__ inline void linear_int4_rows(const LinearInt4RowsKernelParams& p) {
  using Step = Int4RowStep<kHasOffsets, kScales>;
  extern __shared__ char smem[];
  __shared__ GroupSums<kRowsWarps> shared;
  let_dependents_launch();
  RowGroups<Step, kDepth, kRowsWarps> groups(p.rows.num_groups, p.rows.num_steps);
  Int4RowPlaces places;
  const auto load = [&](Step& step, int group, int k) {
    if (group != places.group) places.move_to(p, group);
    step.load(p, places, k);
  };
  groups.fill(load);
  shared.init();
  wait_for_inputs();
  copy_x(p.rows, shared_address(smem), p.layout.width);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int token = min(lane % 8, p.rows.num_tokens - 1);  // columns of x that nobody stores may be anyone's
  const uint32_t x =
      shared_address(smem) + static_cast<uint32_t>(token * static_cast<int>(int4_rows_x_bytes(p.layout.width)) +
                                                   lane / 8 * 16 + warp * kInt4RowsTileK * 2);
  groups.run(
      shared, load,
      [&](const Step& step, float(&sums)[4], int i) {
        step.multiply(sums, x + static_cast<uint32_t>(i * (kRowsWarps * kInt4RowsTileK * 2)));
      },
      [&](int group, const float(&totals)[4]) { finish_rows<2>(p.rows, totals, group * p.rows.group_step); });
}

// 2 CTAs an SM.
#define SPATE_LINEAR_INT4_ROWS_KERNEL(name, has_offsets, scales, depth) \
  extern "C" __global__ void __launch_bounds__(kRowsWarps* kLanes, 2)   \
      name(const __grid_constant__ LinearInt4RowsKernelParams p) {      \
    linear_int4_rows<has_offsets, scales, depth>(p);                    \
  }
// _wide: the same for more x.
#define SPATE_LINEAR_INT4_ROWS_KERNELS(name, has_offsets, scales, depth) \
  SPATE_LINEAR_INT4_ROWS_KERNEL(name, has_offsets, scales, depth)        \
  SPATE_LINEAR_INT4_ROWS_KERNEL(name##_wide, has_offsets, scales, depth)
SPATE_LINEAR_INT4_ROWS_KERNELS(linear_int4_rows, false, 1, 4)
SPATE_LINEAR_INT4_ROWS_KERNELS(linear_int4_rows_g32, false, 4, 4)
SPATE_LINEAR_INT4_ROWS_KERNELS(linear_int4_rows_offsets, true, 1, 4)
SPATE_LINEAR_INT4_ROWS_KERNELS(linear_int4_rows_offsets_g32, true, 4, 4)

}  // namespace spate::cuda
