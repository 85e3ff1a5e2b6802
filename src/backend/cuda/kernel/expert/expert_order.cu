// WHAT       Sorts the pairs of token and expert by expert, stable, and cuts the rows of each expert into tiles:
//            those of kEvenTileRows share them evenly, in units of 16. Counters of gate_up and down become 0.
// SHAPES     expert_ids [num_tokens, num_experts_per_tok] i32; the rest as ExpertOrder says. An id outside
//            [0, num_experts) is no row.
// WORK       One CTA, of many pairs the 8 of a cluster; a warp takes an equal run of pairs. Counts of each warp and
//            expert, their sums over the warps, then each warp places its pairs: equal ids among 32 are found by
//            match.any.
// ROOFLINE   Latency: about 3 us for 1,024 pairs.
// WARM       0.2 s: experts
// LIMITS     num_experts <= 1,024.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_order.h"

#include "backend/cuda/kernel/primitive/cluster.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr int kOrderThreads = kOrderWarps * kWarpSize;

// Exclusive sums over the CTA of two counts a thread; every thread calls it. `total` gets the sums of all.
__device__ inline int2 scan_exclusive(int2 value, int2& total) {
  __shared__ int2 of_warp[kOrderWarps];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int2 sum = make_int2(sum_through_lane(value.x), sum_through_lane(value.y));
  __syncthreads();  // the sums before may still be read
  if (lane == kWarpSize - 1) of_warp[warp] = sum;
  __syncthreads();
  int2 before = make_int2(0, 0);
  total = make_int2(0, 0);
#pragma unroll
  for (int w = 0; w < kOrderWarps; ++w) {
    if (w == warp) before = total;
    total.x += of_warp[w].x;
    total.y += of_warp[w].y;
  }
  return make_int2(before.x + sum.x - value.x, before.y + sum.y - value.y);
}

extern "C" __global__ void __launch_bounds__(kOrderThreads)
    expert_order(const __grid_constant__ ExpertOrderKernelParams p) {
  extern __shared__ int32_t smem[];
  int32_t* counts = smem;  // [kOrderWarps][num_experts]: pairs of a warp, then the row of its next pair
  int32_t* of_cta = smem + kOrderWarps * kOrderMaxExperts;  // [num_experts] pairs of this CTA
  let_dependents_launch();
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, num_experts = p.num_experts;
  for (int i = threadIdx.x; i < kOrderWarps * num_experts; i += kOrderThreads) counts[i] = 0;
  __syncthreads();
  wait_for_inputs();
  const int num_ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  const int pairs_of_warp = (p.num_pairs + num_ctas * kOrderThreads - 1) / (num_ctas * kOrderThreads) * kWarpSize;
  const int begin = min((cta * kOrderWarps + warp) * pairs_of_warp, p.num_pairs),
            end = min(begin + pairs_of_warp, p.num_pairs);
  int32_t* own = counts + warp * num_experts;
  const auto expert_of = [&](int pair) {
    const int k = p.num_experts_per_tok;
    const int id = pair < end ? p.expert_ids[pair / k * p.ids_stride + pair % k] : -1;
    return id < num_experts ? id : -1;
  };

  // Of many pairs a warp has many rounds: the ids of several are read at once.
  constexpr int kRounds = 8;
  const auto read_ids = [&](int first, int (&experts)[kRounds]) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) experts[i] = expert_of(first + i * kWarpSize + lane);
  };
  for (int first = begin; first < end; first += kRounds * kWarpSize) {
    int experts[kRounds];
    read_ids(first, experts);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (experts[i] >= 0) atomicAdd(own + experts[i], 1);
    }
  }
  __syncthreads();
  for (int expert = static_cast<int>(threadIdx.x); expert < num_experts && num_ctas > 1; expert += kOrderThreads) {
    int num_rows = 0;
    for (int w = 0; w < kOrderWarps; ++w) num_rows += counts[w * num_experts + expert];
    of_cta[expert] = num_rows;
  }
  if (num_ctas > 1) cluster_barrier();

  int2 before = make_int2(0, 0);  // rows and tiles of the experts before
  for (int first = 0; first < num_experts; first += kOrderThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    int num_rows = 0, of_ctas_before = 0;
    if (expert < num_experts && num_ctas == 1) {
      for (int w = 0; w < kOrderWarps; ++w) num_rows += counts[w * num_experts + expert];
    } else if (expert < num_experts) {
      for (int other = 0; other < num_ctas; ++other) {
        if (other == cta) of_ctas_before = num_rows;
        num_rows += *of_cluster_cta(of_cta + expert, other);
      }
    }
    const int num_tiles = (num_rows + p.tile_rows - 1) / p.tile_rows;
    int2 total;
    const int2 place = scan_exclusive(make_int2(num_rows, num_tiles), total);
    const int first_row = before.x + place.x, first_tile = before.y + place.y;
    const int num_units = (num_rows + kExpertUnitRows - 1) / kExpertUnitRows;
    const auto first_row_of_tile = [&](int i) {
      const int row = p.tile_rows == kEvenTileRows ? i * num_units / num_tiles * kExpertUnitRows : i * p.tile_rows;
      return min(row, num_rows);
    };
    if (expert < num_experts) {
      int row = first_row + of_ctas_before;
      for (int w = 0; w < kOrderWarps; ++w) {
        const int count = counts[w * num_experts + expert];
        counts[w * num_experts + expert] = row;
        row += count;
      }
      for (int i = cta; i < num_tiles; i += num_ctas) {
        const int begin_row = first_row_of_tile(i), end_row = first_row_of_tile(i + 1);
        p.order.tiles[first_tile + i] = {expert, first_row + begin_row, end_row - begin_row, static_cast<int16_t>(i),
                                         static_cast<int16_t>(num_tiles)};
      }
    }
    before.x += total.x;
    before.y += total.y;
  }
  if (num_ctas > 1) cluster_arrive();  // the counts of the others have been read
  if (threadIdx.x == 0 && cta == 0) {
    p.order.num_tiles[0] = before.y;
    p.order.num_tiles[1] = p.order.num_tiles[2] = 0;
  }
  for (int row = before.x + cta * kOrderThreads + threadIdx.x; row < p.num_pairs; row += num_ctas * kOrderThreads)
    p.order.row_tokens[row] = 0;
  __syncthreads();

  for (int first = begin; first < end; first += kRounds * kWarpSize) {
    int experts[kRounds];
    read_ids(first, experts);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int pair = first + i * kWarpSize + lane, expert = experts[i];
      if (pair - lane >= end) break;
      const uint32_t equal = __match_any_sync(0xffffffffu, expert);
      const int rank = __popc(equal & ((1u << lane) - 1));
      const int row = expert >= 0 ? own[expert] + rank : -1;
      __syncwarp();
      if (expert >= 0 && rank == 0) own[expert] += __popc(equal);
      __syncwarp();
      if (pair >= end) continue;
      p.order.pair_rows[pair] = row;
      if (row >= 0) p.order.row_tokens[row] = pair / p.num_experts_per_tok;
    }
  }
  if (num_ctas > 1) cluster_wait();
}

}  // namespace spate::cuda
