// WHAT       y[r] += outliers of row r of the activations times W of its expert: what `down` of many rows by 8-bit
//            codes leaves (expert_integer.h), as some rows have outliers, and tens of them.
// SHAPES     expert_outliers.h; W int8 or two-level int4, up to 2,560 elements wide; activations bf16.
// NUMERICS   f32 by the tensor core, in the order of k.
// WORK       grid.x tiles of the order, grid.y parts of W by turns; a CTA takes 128 rows of W at a time, 16 a warp, and
//            goes through their k once for 16 rows of the tile that have outliers. W of the next 16 comes from L1.
// ROOFLINE   Memory: W of the experts that have such rows: 128 of 786 KB are 24 us at 4.25 TB/s.
// WARM       0.5 s: expert-int8; expert-int4; expert-int4-g32
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_outliers.h"

#include "backend/cuda/kernel/expert/expert_outlier_products.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

constexpr int kOutlierThreads = 32 * kExpertOutlierWarps, kOutlierRowsAtOnce = 16;

struct OutlierMemory {
  OutlierCounts<kOutlierRowsAtOnce> counts;
  uint32_t outliers[kOutlierRowsAtOnce][kMaxOutliers];
  int32_t found[kOutlierThreads];  // rows that have outliers
  int32_t num_found;
};

// The codes of a step of the warp's 16 rows of W, as OutlierProducts takes them. row: the lane's first.
__device__ inline void load_codes(const char* weight, const IntegerLayout& layout, int row, int step,
                                  uint32_t (&a)[4][4]) {
  const int pair = static_cast<int>(threadIdx.x) % 4, num_multipliers = layout.num_multipliers;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int own_row = row + 8 * r;
    if (num_multipliers == 0) {
      const char* codes = weight + own_row * layout.row_bytes() + step * kIntegerTileK + 4 * pair;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = own_row < layout.num_rows ? *reinterpret_cast<const uint32_t*>(codes + 16 * i) : 0;
        a[i / 2][2 * (i % 2) + r] = word ^ 0x80808080u;
      }
      continue;
    }
    const char* chunk = weight + layout.chunk_offset(own_row, step * kIntegerTileK);
    const int in_chunk = own_row % kWgmmaTileRows;
    const uint4 quad = *reinterpret_cast<const uint4*>(chunk + in_chunk * kInt4RowBytes + pair * 16);
    const uint32_t words[4] = {quad.x, quad.y, quad.z, quad.w};
    const auto* multipliers =
        reinterpret_cast<const unsigned char*>(chunk + kInt4CodeBytes + in_chunk * num_multipliers);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t multiplier = multipliers[s * num_multipliers / 4], offset = 0x80808080u - multiplier * 0x08080808u;
      a[s][r] = (words[s] & 0x0f0f0f0fu) * multiplier + offset;
      a[s][2 + r] = (words[s] >> 4 & 0x0f0f0f0fu) * multiplier + offset;
    }
  }
}

// The lists of the rows found[first] and the next ones. All threads.
__device__ inline void make_lists(const ExpertOutliersKernelParams& p, OutlierMemory& memory, int first, int num_rows) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kOutlierRowsAtOnce / kExpertOutlierWarps; ++i) {
    const int row = warp + i * kExpertOutlierWarps;
    if (row >= num_rows) break;
    const int64_t from = memory.found[first + row];
    const int count = p.rows[from].num_outliers;
    const Outlier own = p.outliers[from * kMaxOutliers + lane];  // behind the count: whatever there is
    if (lane < count) memory.outliers[row][lane] = pack_outlier(own.k, own.x);
    for (int step = 0; step <= p.layout.num_steps; ++step) {
      const int before = __popc(__ballot_sync(0xffffffffu, lane < count && own.k < step * kIntegerTileK));
      if (lane == 0) memory.counts.before[row][step] = static_cast<uint8_t>(before);
    }
    if (lane == 0) memory.counts.of_rows[row] = count;
  }
}

extern "C" __global__ void __launch_bounds__(kOutlierThreads, 3)
    expert_outliers(const __grid_constant__ ExpertOutliersKernelParams p) {
  __shared__ OutlierMemory memory;
  let_dependents_launch();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, group = lane / 4,
            pair = lane % 4;
  if (thread == 0) memory.num_found = 0;
  wait_for_inputs();
  if (static_cast<int>(blockIdx.x) >= *p.order.num_tiles) return;
  const ExpertTile tile = p.order.tiles[blockIdx.x];
  __syncthreads();
  if (thread < tile.num_rows && p.rows[tile.first_row + thread].num_outliers > 0) {
    memory.found[atomicAdd(&memory.num_found, 1)] = tile.first_row + thread;
  }
  __syncthreads();
  const int num_found = memory.num_found;
  const char* weight = p.weight + tile.expert * p.layout.matrix_bytes;
  const float* scales = reinterpret_cast<const float*>(weight + p.layout.scales_offset);
#pragma unroll 1
  for (int first = 0; first < num_found; first += kOutlierRowsAtOnce) {
    const int num_rows = min(kOutlierRowsAtOnce, num_found - first);
    if (first > 0) __syncthreads();  // the lists before have been read
    make_lists(p, memory, first, num_rows);
    __syncthreads();
#pragma unroll 1
    for (int part = static_cast<int>(blockIdx.y); part * kWgmmaTileRows < p.layout.num_rows;
         part += static_cast<int>(gridDim.y)) {
      const int weight_row = part * kWgmmaTileRows + warp * 16 + group;  // the lane's first
      OutlierProducts<kOutlierRowsAtOnce> products(memory.counts, memory.outliers[0], num_rows);
      uint32_t next[4][4];
      load_codes(weight, p.layout, weight_row, 0, next);
#pragma unroll 1
      for (int step = 0; step < p.layout.num_steps; ++step) {
        uint32_t a[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = next[i / 4][i % 4];
        if (step + 1 < p.layout.num_steps) load_codes(weight, p.layout, weight_row, step + 1, next);
        products.add(a, step);
      }
#pragma unroll
      for (int i = 0; i < kOutlierRowsAtOnce / 2; ++i) {
        const int column = i / 4 * 8 + 2 * pair + i % 2, own_row = weight_row + i % 4 / 2 * 8;
        if (column >= num_rows || own_row >= p.layout.num_rows) continue;
        const int64_t at = memory.found[first + column] * p.y_stride + own_row;
        const float more = scales[own_row] * products.sums[i / 4][i % 4];
        if (p.is_y_bf16) {
          Bf16& y = static_cast<Bf16*>(p.y)[at];
          y = from_float<Bf16>(to_float(y) + more);
        } else {
          static_cast<float*>(p.y)[at] += more;
        }
      }
    }
  }
}

}  // namespace spate::cuda
