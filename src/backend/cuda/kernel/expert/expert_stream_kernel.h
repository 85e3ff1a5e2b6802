// Both products of a layer of int4 experts that have few rows each, in one launch: for expert_stream_int4.cu and its
// like.
//
//   act[r] = silu(x[token of r] Wg_e^T) * (x[token of r] Wu_e^T),   y[r] = act[r] Wd_e^T
//
// W is streamed: a warp takes 16 rows of it along k, a step of 128 elements at a time, from a ring of its own in shared
// memory that its copies fill, five steps ahead, through the ends of tiles and from one product into the next. The
// packed layout is that of the tensor core's operand, so a lane copies and reads the same 16 bytes, decodes them in
// registers and multiplies: no barrier of the CTA, no trip of decoded codes through shared memory.
//
// A CTA has an equal run of the groups of 16 rows (of gate_up 8 gates and their 8 ups) of all tiles of each product, a
// tile being up to kRows rows of one expert. It goes through the run tile by tile: a phase. First its warps make codes
// of the tile's rows of x, a warp a row, in shared memory; then they share the phase's steps of k equally, and where
// that cuts a group along k the warp with its first k adds the sums of the others, which are exact whole numbers. down
// of a tile begins when all CTAs with groups of its gate_up have told so: those are neighbours, which end together.
#pragma once

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/expert/expert_stream_order.h"
#include "backend/cuda/kernel/expert/expert_stream_rows.h"
#include "backend/cuda/kernel/expert/expert_stream_work.h"
#include "backend/cuda/kernel/primitive/flag.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

constexpr int kStreamBias = 128;  // of a code that the tensor core takes

__device__ inline uint4 load_stream_quad(uint32_t address) {
  uint4 quad;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
               : "r"(address)
               : "memory");
  return quad;
}
template <int kMultipliers>
__device__ inline uint32_t load_stream_multipliers(uint32_t address) {
  if constexpr (kMultipliers == 4) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
  } else {
    uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
    return half;
  }
}

// Of the 16 rows of W that a warp has: the lane's two.
struct StreamScales {
  float of[2];
  int rows[2];

  __device__ StreamScales(const ExpertStreamKernelParams& p, const char* matrix, const StreamRun& run, int group_row) {
    const ExpertStreamProduct& product = run.is_down != 0 ? p.down : p.gate_up;
    rows[0] = run.is_down != 0 ? run.group * 16 + group_row : run.group * 8 + group_row;
    rows[1] = run.is_down != 0 ? rows[0] + 8 : p.intermediate_size + rows[0];
    const float* scales = reinterpret_cast<const float*>(matrix + product.layout.scales_offset);
#pragma unroll
    for (int r = 0; r < 2; ++r) of[r] = scales[rows[r]];
  }
};

template <int kMultipliers, int kRows>
class StreamWarp {
 public:
  static constexpr int kBlocks = kRows / 8, kDepth = expert_stream_depth(kMultipliers, kRows),
                       kStepBytes = expert_stream_step_bytes(kMultipliers);

  __device__ StreamWarp(const ExpertStreamKernelParams& p, const StreamOrder<kRows>& order, uint32_t ring)
      : p_(p), order_(order), loads_(p, order), ring_(ring), lane_(static_cast<int>(threadIdx.x) % 32) {}
  // Starts the copies of the first steps.
  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < kDepth - 1; ++i) loads_.next(ring_ + i * kStepBytes);
  }

  // sums += of the steps [begin, end) of a group. codes: the row of x of the lane's column.
  __device__ void multiply(int32_t (&sums)[kBlocks][4], uint32_t codes, int row_bytes, int num_rows, int begin,
                           int end) {
    const int group = lane_ / 4, pair = lane_ % 4;
    const uint32_t at = codes + static_cast<uint32_t>(group * row_bytes + ((pair * 2) ^ group % 2) * 16);
    uint32_t x = at + static_cast<uint32_t>(begin * kIntegerTileK);
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
      wait_copies<kDepth - 2>();
      __syncwarp();
      const uint32_t slot = ring_ + slot_ * kStepBytes;
      const int before = slot_ == 0 ? kDepth - 1 : slot_ - 1;
      loads_.next(ring_ + before * kStepBytes);
      slot_ = slot_ == kDepth - 1 ? 0 : slot_ + 1;
      uint32_t a[4][4];
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint4 quad = load_stream_quad(slot + 512 * r + lane_ * 16);
        const uint32_t multipliers =
            load_stream_multipliers<kMultipliers>(slot + 1024 + (8 * r + group) * kMultipliers);
        const uint32_t words[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const uint32_t multiplier = multipliers >> (s * kMultipliers / 4 * 8) & 0xff;
          const uint32_t offset = 0x80808080u - multiplier * 0x08080808u;
          a[s][r] = (words[s] & 0x0f0f0f0fu) * multiplier + offset;
          a[s][2 + r] = (words[s] >> 4 & 0x0f0f0f0fu) * multiplier + offset;
        }
      }
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        if (8 * j >= num_rows) break;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 quad = load_stream_quad((x ^ i * 16) + static_cast<uint32_t>(8 * j * row_bytes));
          const uint32_t first[2] = {quad.x, quad.y}, second[2] = {quad.z, quad.w};
          mma_m16n8k32_u8_s8(sums[j], a[2 * i], first);
          mma_m16n8k32_u8_s8(sums[j], a[2 * i + 1], second);
        }
      }
      x += kIntegerTileK;
    }
  }

 private:
  const ExpertStreamKernelParams& p_;
  const StreamOrder<kRows>& order_;
  StreamLoads<kMultipliers, kRows> loads_;
  const uint32_t ring_;
  const int lane_;
  int slot_ = 0;
};

// values += the outliers of x times the group's 16 rows of W, by rising k. The lanes of the warp read the codes of a
// column's outliers together.
template <int kMultipliers, int kRows>
__device__ inline void add_stream_outliers(const char* matrix, const IntegerLayout& layout, int num_rows,
                                           const StreamScales& scales, const StreamRows<kRows>& rows,
                                           const Outlier* outliers, float (&values)[kRows / 8][4]) {
  constexpr int kEach = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, half = lane / 16, own = lane % 8;
  const bool is_second = lane % 16 >= 8;
  // IntegerLayout's code_offset() and multiplier_offset() of this row, the part of k left to each outlier.
  constexpr int kChunkBytes = kInt4CodeBytes + kWgmmaTileRows * kMultipliers;
  const int weight_row = (is_second ? scales.rows[1] : scales.rows[0]) - group + own;
  const char* chunk = matrix + layout.chunk_offset(weight_row, 0);
  const char *codes = chunk + weight_row % kWgmmaTileRows * kInt4RowBytes,
             *multipliers = chunk + kInt4CodeBytes + weight_row % kWgmmaTileRows * kMultipliers;
  const float low = __shfl_sync(0xffffffffu, scales.of[0], 4 * own),
              high = __shfl_sync(0xffffffffu, scales.of[1], 4 * own);
  const float own_scale = is_second ? high : low;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll 1
    for (int in_block = 0; in_block < 8; ++in_block) {
      const int column = 8 * j + in_block;
      if (column >= num_rows) return;
      const int num_outliers = rows.num_outliers[column];
      if (num_outliers == 0) continue;
      const Outlier* list = outliers + column * kMaxOutliers;
      const bool is_odd = in_block % 2 != 0, is_own = lane % 4 == in_block / 2;
      float sums[2] = {is_odd ? values[j][1] : values[j][0], is_odd ? values[j][3] : values[j][2]};
#pragma unroll 1
      for (int first = 0; first < num_outliers; first += 2 * kEach) {
        float kept[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const auto k = static_cast<uint32_t>(list[min(first + half * kEach + i, num_outliers - 1)].k);
          const uint32_t to_chunk = k / kIntegerTileK * kChunkBytes;
          const int byte = static_cast<unsigned char>(codes[to_chunk + k / 4 % 4 * 16 + k / 32 % 4 * 4 + k % 4]);
          const int multiplier = multipliers[to_chunk + k % kIntegerTileK * kMultipliers / kIntegerTileK];
          const int code = static_cast<int>(static_cast<uint32_t>(byte) >> (k / 16 % 2 * 4) & 15) - 8;
          kept[i] = own_scale * static_cast<float>(code * multiplier);
        }
#pragma unroll
        for (int i = 0; i < 2 * kEach; ++i) {
          if (first + i >= num_outliers) break;
          const float x = list[first + i].x;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            sums[r] += x * __shfl_sync(0xffffffffu, kept[i % kEach], i / kEach * 16 + 8 * r + group);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (is_own && !is_odd) values[j][2 * r] = sums[r];
        if (is_own && is_odd) values[j][2 * r + 1] = sums[r];
      }
    }
  }
}

// The exact sums of a group become values, which are stored.
template <int kMultipliers, int kRows>
__device__ inline void finish_stream_group(const ExpertStreamKernelParams& p, const StreamRun& run, const char* matrix,
                                           const StreamTile& tile, const StreamScales& scales,
                                           const StreamRows<kRows>& rows, const Outlier* outliers, bool has_outliers,
                                           const int32_t (&sums)[kRows / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, pair = lane % 4;
  float values[kRows / 8][4];
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = min(8 * j + 2 * pair + c, tile.num_rows - 1);
      const float x_scale = rows.scales[column];
      const int code_sum = rows.code_sums[column];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        values[j][2 * r + c] =
            x_scale * (scales.of[r] * static_cast<float>(sums[j][2 * r + c] - kStreamBias * code_sum));
      }
    }
  }
  if (has_outliers) {
    add_stream_outliers<kMultipliers, kRows>(matrix, run.is_down != 0 ? p.down.layout : p.gate_up.layout, tile.num_rows,
                                             scales, rows, outliers, values);
  }
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    if (8 * j >= tile.num_rows) break;
    if (run.is_down != 0) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = 8 * j + 2 * pair + c;
        if (column >= tile.num_rows) continue;
        float* y = p.y + (tile.first_row + column) * p.y_stride + scales.rows[0];
        y[0] = values[j][c];
        y[8] = values[j][2 + c];
      }
    } else {
      const auto product = [&](int c) {
        return silu_times<Bf16>(round_to<Bf16>(values[j][c]), round_to<Bf16>(values[j][2 + c]));
      };
      const uint32_t both = transpose_8x8(pack_bf16(product(0), product(1)));
      Bf16* act =
          static_cast<Bf16*>(p.act) + (tile.first_row + 8 * j + group) * p.act_stride + run.group * 8 + 2 * pair;
      if (8 * j + group < tile.num_rows) *reinterpret_cast<uint32_t*>(act) = both;
    }
  }
}

// The CTA has stored activations of groups of a tile. One thread, behind a barrier of all.
__device__ inline void tell_groups(const ExpertStreamKernelParams& p, int tile, int num_groups) {
  if (num_groups == 0) return;
  __threadfence();
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p.arrived + tile), "r"(num_groups) : "memory");
}

template <int kMultipliers, int kRows>
__device__ inline void expert_stream(const ExpertStreamKernelParams& p) {
  constexpr int kBlocks = kRows / 8, kStepBytes = expert_stream_step_bytes(kMultipliers);
  constexpr int kRingBytes = expert_stream_depth(kMultipliers, kRows) * kStepBytes;  // of a warp
  extern __shared__ __align__(128) char stream_shared[];
  __shared__ StreamOrder<kRows> order;
  __shared__ StreamRows<kRows> rows;
  __shared__ uint32_t left_in[kExpertStreamWarps];  // the phase of which a warp has left sums
  let_dependents_launch();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread < kExpertStreamWarps) left_in[thread] = 0;
  make_stream_order(p, order, reinterpret_cast<uint32_t*>(stream_shared));
  int32_t* sums_of_warps = reinterpret_cast<int32_t*>(stream_shared + kExpertStreamWarps * kRingBytes);
  uint32_t* codes = reinterpret_cast<uint32_t*>(sums_of_warps + kExpertStreamWarps * kRows * 16);
  Outlier* outliers = reinterpret_cast<Outlier*>(codes + kRows * kExpertStreamMaxWidth / 4);
  StreamRuns runs(p, order.num_tiles);
  StreamRun run;
  bool has_phase = runs.next(run);
  const auto row_of = [&](const StreamTile& tile, int row) {
    return run.is_down != 0 ? static_cast<const Bf16*>(p.act) + (tile.first_row + row) * p.act_stride
                            : static_cast<const Bf16*>(p.x) + order.row_tokens[tile.first_row + row] * p.x_stride;
  };
  StreamWarp<kMultipliers, kRows> multiplier(p, order,
                                             shared_address(stream_shared) + static_cast<uint32_t>(warp * kRingBytes));
  int told_tile = -1, told_groups = 0;
  for (uint32_t phase = 1; has_phase; ++phase) {
    const StreamTile tile = order.tiles[run.tile];
    __syncthreads();  // the phase before has read the codes, and has stored its activations
    if (thread == 0) {
      tell_groups(p, told_tile, told_groups);
      if (run.is_down != 0) {
        const uint32_t groups = static_cast<uint32_t>(p.intermediate_size / 8);
        const long long start = clock64();
        while (load_acquire(p.arrived + run.tile) < groups) {
          if (clock64() - start > 2000000000ll) __trap();
        }
        // The last one to read makes the places zero again.
        uint32_t* num_readers = p.arrived + kExpertStreamMaxTiles + run.tile;
        if (atomicAdd(num_readers, 1u) + 1 == static_cast<uint32_t>(runs.num_ctas_of(run.tile))) {
          *num_readers = 0;
          p.arrived[run.tile] = 0;
        }
      }
    }
    if (run.is_down != 0) __syncthreads();
    told_tile = run.tile;
    told_groups = run.is_down != 0 ? 0 : run.num_groups;
    const int row_bytes = run.num_steps * kIntegerTileK;
    bool has_outliers = false;
    for (int row = warp;; row += kExpertStreamWarps) {
      const int width = run.is_down != 0 ? p.down.layout.width : p.gate_up.layout.width;
      StreamRow x;
      // The rings are filled behind the first row of x, which would wait for them; more rows leave no registers for
      // that.
      const bool fills = phase == 1 && row == warp;
      if (kRows > 8 && fills) multiplier.fill();
      if (row < tile.num_rows) x.load(row_of(tile, row), width);
      if (kRows == 8 && fills) multiplier.fill();
      if (row >= tile.num_rows) break;
      has_outliers |= put_stream_row<kRows>(x, width, row_bytes, row, codes, outliers, rows);
    }
    has_outliers = __syncthreads_or(has_outliers ? 1 : 0) != 0;
    const ExpertStreamProduct& product = run.is_down != 0 ? p.down : p.gate_up;
    const char* matrix = product.weight + tile.expert * product.layout.matrix_bytes;
    StreamRun own = run;
    while (own.count > 0) {
      const int end = min(own.num_steps, own.step + own.count);
      const StreamScales scales(p, matrix, own, lane / 4);
      int32_t sums[kBlocks][4] = {};
      multiplier.multiply(sums, shared_address(codes), row_bytes, tile.num_rows, own.step, end);
      own.count -= end - own.step;
      if (own.step > 0) {
        int32_t* to = sums_of_warps + (warp * kBlocks * 4) * 32 + lane;
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) to[i * 32] = sums[i / 4][i % 4];
        __threadfence_block();
        __syncwarp();
        if (lane == 0) *const_cast<volatile uint32_t*>(left_in + warp) = phase;
      } else {
        int missing = own.num_steps - end;
        for (int other = warp + 1; missing > 0; ++other) {
          const int count = StreamRuns::count_of(run, other);
          if (count == 0) continue;
          while (*const_cast<volatile uint32_t*>(left_in + other) != phase) {
          }
          __threadfence_block();
          const int32_t* from = sums_of_warps + (other * kBlocks * 4) * 32 + lane;
#pragma unroll
          for (int i = 0; i < kBlocks * 4; ++i) sums[i / 4][i % 4] += from[i * 32];
          missing -= count;
        }
        finish_stream_group<kMultipliers, kRows>(p, own, matrix, tile, scales, rows, outliers, has_outliers, sums);
      }
      own.step = 0;
      ++own.group;
    }
    has_phase = runs.next(run);
  }
  __syncthreads();
  if (thread == 0) tell_groups(p, told_tile, told_groups);
}

#define SPATE_EXPERT_STREAM_KERNEL(name, multipliers, rows)                \
  extern "C" __global__ void __launch_bounds__(kExpertStreamThreads, 1)    \
      name##_n##rows(const __grid_constant__ ExpertStreamKernelParams p) { \
    expert_stream<multipliers, rows>(p);                                   \
  }
#define SPATE_EXPERT_STREAM_KERNELS(name, multipliers) \
  SPATE_EXPERT_STREAM_KERNEL(name, multipliers, 8)     \
  SPATE_EXPERT_STREAM_KERNEL(name, multipliers, 16)    \
  SPATE_EXPERT_STREAM_KERNEL(name, multipliers, 32)

}  // namespace spate::cuda
