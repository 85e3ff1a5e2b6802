// WHAT       expert_order, and expert_copy_rows of the order that it makes, in one launch, of many tokens.
// SHAPES     Those of both; rows of kOrderRowsBytes at most.
// NUMERICS   Bytes are copied.
// WORK       A CTA an SM, with an equal run of tokens. It counts its pairs, tells the other CTAs through global memory
//            and a barrier of the grid, and places its pairs behind those of the CTAs before it. The rows of x come to
//            shared memory by bulk copies meanwhile, a few to each warp, and leave it by bulk copies, a lane an expert.
// ROOFLINE   Memory: what is written. 65,536 rows of 2,048 bf16 are 268 MB, 65 us at 4.1 TB/s; about 8 us before.
// WARM       0.3 s: experts
// LIMITS     sm_90a; kOrderRowsMaxExperts experts, kOrderRowsMaxPairs pairs a CTA, 32 experts a token.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_order_rows.h"

#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/grid_barrier.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {
namespace {

constexpr int kThreads = kOrderRowsWarps * kWarpSize;

struct OrderRowsShared {
  alignas(8) uint64_t arrived[kOrderRowsWarps][kOrderRowsSlots];
  int2 parts[kThreads];                                       // of a run of CTAs: pairs of all, of those before
  int32_t counts[kOrderRowsWarps][kOrderRowsMaxExperts];      // pairs of a warp, then the row of its next pair
  int32_t first_row[kOrderRowsMaxExperts], num_rows[kOrderRowsMaxExperts], num_tiles[kOrderRowsMaxExperts];
  int32_t rows[kOrderRowsMaxPairs];                           // of the CTA's pairs
  int32_t of_warp[kOrderRowsWarps];
};
static_assert(sizeof(OrderRowsShared) <= kOrderRowsStateBytes);

// `bytes` neighbours of shared memory to global memory, multiples of 16.
__device__ inline void store_bytes(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}

// The list of tiles, by one CTA.
__device__ inline void write_tiles(const ExpertOrderKernelParams& p, const OrderRowsShared& s) {
  for (int expert = static_cast<int>(threadIdx.x); expert < p.num_experts; expert += kThreads) {
    int first_tile = 0;
    for (int other = 0; other < expert; ++other) first_tile += s.num_tiles[other];
    const int num_rows = s.num_rows[expert], num_tiles = s.num_tiles[expert];
    const int num_units = (num_rows + kExpertUnitRows - 1) / kExpertUnitRows;
    const auto first_row_of_tile = [&](int i) {
      const int row = p.tile_rows == kEvenTileRows ? i * num_units / num_tiles * kExpertUnitRows : i * p.tile_rows;
      return min(row, num_rows);
    };
    for (int i = 0; i < num_tiles; ++i) {
      const int begin_row = first_row_of_tile(i), end_row = first_row_of_tile(i + 1);
      p.order.tiles[first_tile + i] = {expert, s.first_row[expert] + begin_row, end_row - begin_row,
                                       static_cast<int16_t>(i), static_cast<int16_t>(num_tiles)};
    }
    if (expert + 1 == p.num_experts) {
      p.order.num_tiles[0] = first_tile + num_tiles;
      p.order.num_tiles[1] = p.order.num_tiles[2] = 0;
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    expert_order_rows(const __grid_constant__ ExpertOrderRowsKernelParams params) {
  extern __shared__ __align__(128) char smem[];
  OrderRowsShared& s = *reinterpret_cast<OrderRowsShared*>(smem);
  const ExpertOrderKernelParams& p = params.order;
  const ExpertCopyRowsKernelParams& copy = params.copy;
  let_dependents_launch();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int num_experts = p.num_experts, k = p.num_experts_per_tok, num_slots = params.num_slots;
  for (int i = thread; i < kOrderRowsWarps * kOrderRowsMaxExperts; i += kThreads) (&s.counts[0][0])[i] = 0;
  if (thread < kOrderRowsWarps * kOrderRowsSlots) init_barrier(shared_address(&s.arrived[0][0] + thread), 1);
  fence_barrier_init();
  __syncthreads();
  wait_for_inputs();

  const int num_ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  const int tokens_of_cta = (params.num_tokens + num_ctas - 1) / num_ctas;
  const int first_token = min(cta * tokens_of_cta, params.num_tokens),
            end_token = min(first_token + tokens_of_cta, params.num_tokens);
  const auto row_bytes = static_cast<uint32_t>(copy.num_units) * 16;
  const uint32_t buffers = shared_address(smem) + kOrderRowsStateBytes + warp * num_slots * row_bytes;
  const auto load = [&](int i) {  // the i-th token of the warp
    const int token = first_token + warp + i * kOrderRowsWarps, slot = i % num_slots;
    if (lane != 0 || token >= end_token) return;
    const uint32_t barrier = shared_address(&s.arrived[warp][slot]);
    arrive_expecting(barrier, row_bytes);
    copy_bytes(buffers + slot * row_bytes, copy.x + token * copy.x_stride_bytes, row_bytes, barrier);
  };
  for (int i = 0; i < num_slots; ++i) load(i);

  const int first_pair = first_token * k, num_pairs = (end_token - first_token) * k;
  const int pairs_of_warp = (num_pairs + kThreads - 1) / kThreads * kWarpSize;
  const int begin = min(warp * pairs_of_warp, num_pairs), end = min(begin + pairs_of_warp, num_pairs);
  const auto expert_of = [&](int pair) {
    const int id = pair < end ? p.expert_ids[(first_token + pair / k) * p.ids_stride + pair % k] : -1;
    return id < num_experts ? id : -1;
  };
  for (int first = begin; first < end; first += kWarpSize) {
    const int expert = expert_of(first + lane);
    if (expert >= 0) atomicAdd(&s.counts[warp][expert], 1);
  }
  __syncthreads();
  for (int expert = thread; expert < num_experts; expert += kThreads) {
    int num_rows = 0;
#pragma unroll
    for (int w = 0; w < kOrderRowsWarps; ++w) num_rows += s.counts[w][expert];
    params.cta_counts[cta * num_experts + expert] = num_rows;
  }
  __syncthreads();
  if (thread == 0) {
    GridBarrier barrier(params.num_arrived);
    barrier.arrive();
    barrier.wait();
  }
  __syncthreads();

  // A thread has an expert's counts of every few CTAs.
  const int width = num_experts <= 64 ? 64 : num_experts <= 128 ? 128 : kOrderRowsMaxExperts;
  const int num_parts = kThreads / width, own_expert = thread % width;
  int2 sums = make_int2(0, 0);
  if (own_expert < num_experts) {
#pragma unroll 8
    for (int other = thread / width; other < num_ctas; other += num_parts) {
      const int count = __ldcg(params.cta_counts + other * num_experts + own_expert);
      sums.x += count;
      sums.y += other < cta ? count : 0;
    }
  }
  s.parts[thread] = sums;
  __syncthreads();
  static_assert(kOrderRowsMaxExperts <= kThreads);
  int num_rows = 0, of_ctas_before = 0;
  if (thread < num_experts) {
    for (int part = 0; part < num_parts; ++part) {
      num_rows += s.parts[part * width + thread].x;
      of_ctas_before += s.parts[part * width + thread].y;
    }
  }
  const int through = sum_through_lane(num_rows);
  if (lane == kWarpSize - 1) s.of_warp[warp] = through;
  __syncthreads();
  int first_row = through - num_rows, all_rows = 0;
#pragma unroll
  for (int w = 0; w < kOrderRowsWarps; ++w) {
    if (w == warp) first_row += all_rows;
    all_rows += s.of_warp[w];
  }
  if (thread < num_experts) {
    int row = first_row + of_ctas_before;
#pragma unroll
    for (int w = 0; w < kOrderRowsWarps; ++w) {
      const int count = s.counts[w][thread];
      s.counts[w][thread] = row;
      row += count;
    }
    s.first_row[thread] = first_row;
    s.num_rows[thread] = num_rows;
    s.num_tiles[thread] = (num_rows + p.tile_rows - 1) / p.tile_rows;
  }
  for (int row = all_rows + cta * kThreads + thread; row < p.num_pairs; row += num_ctas * kThreads)
    p.order.row_tokens[row] = 0;
  __syncthreads();

  for (int first = begin; first < end; first += kWarpSize) {
    const int pair = first + lane, expert = expert_of(pair);
    const uint32_t equal = __match_any_sync(0xffffffffu, expert);
    const int rank = __popc(equal & ((1u << lane) - 1));
    const int row = expert >= 0 ? s.counts[warp][expert] + rank : -1;
    __syncwarp();
    if (expert >= 0 && rank == 0) s.counts[warp][expert] += __popc(equal);
    __syncwarp();
    if (pair >= end) continue;
    s.rows[pair] = row;
    p.order.pair_rows[first_pair + pair] = row;
    if (row >= 0) p.order.row_tokens[row] = first_token + pair / k;
  }
  __syncthreads();

  for (int i = 0; first_token + warp + i * kOrderRowsWarps < end_token; ++i) {
    const int in_cta = warp + i * kOrderRowsWarps, slot = i % num_slots;
    const int row = lane < k ? s.rows[in_cta * k + lane] : -1;
    wait_barrier(shared_address(&s.arrived[warp][slot]), static_cast<uint32_t>(i / num_slots % 2));
    if (row >= 0) {
      store_bytes(copy.out + row * static_cast<int64_t>(row_bytes), buffers + slot * row_bytes, row_bytes);
      if (copy.rows != nullptr) copy.ordered_rows[row] = copy.rows[first_token + in_cta];
    }
    commit_stores();
    if (num_slots == 1) {
      wait_stores_read<0>();
      __syncwarp();
      load(i + 1);
    } else if (i > 0) {  // the slot of the token before
      wait_stores_read<1>();
      __syncwarp();
      load(i - 1 + num_slots);
    }
  }
  if (cta == num_ctas - 1) write_tiles(p, s);
  wait_stores_read<0>();
}

}  // namespace spate::cuda
