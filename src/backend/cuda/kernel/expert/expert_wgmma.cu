// WHAT       Products of rows with one of several matrices, on wgmma:
//              expert_gate_up  act[r] = silu(x[token of r] Wg_e^T) * (x[token of r] Wu_e^T)
//              expert_down     y[r] = act[r] Wd_e^T
//              head_product    out[t, h] = x[t, h] W_h^T
// SHAPES     bf16, but y f32. Rows and experts as ExpertOrder says; weights row-major, rows padded to 16 elements.
// NUMERICS   fp32 sums on the tensor core along k, in steps of 16. Where several CTAs share the k of a tile, their sums
//            are added in the order of k. gate, up, silu and their product are rounded to bf16.
// WORK       As linear_wgmma.cu: rows of W are the 64 rows of wgmma, rows of x its columns; a CTA loads stages of 128
//            rows of W and up to tile_rows rows of x, 64 elements of k each. One thread loads W by TMA. The rows of x
//            of expert_gate_up lie apart: 96 threads copy 16 bytes each, swizzled as TMA would do it.
//            A box of gate_up holds 8 rows of gate, the same 8 of up, and so on: a thread has gate and up of the same
//            feature in neighbouring registers, and silu needs no exchange.
//            The tiles of a matrix follow each other, those of a row of W innermost, so that W comes from L2 for all but
//            the first. How many there are is read on the device; the grid is one CTA an SM.
// ROOFLINE   Few rows: bytes of the experts that are used over 4.65 TB/s. Many: 750 TFLOP/s.
// LIMITS     sm_90a; rows of x at multiples of 16 bytes; widths multiples of 8.
// TESTS      spate-conformance --backend cuda --filter expert_mlp, --filter linear_heads
#include "backend/cuda/kernel/expert/expert_wgmma.h"

#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/tma.h"
#include "backend/cuda/kernel/primitive/wgmma.h"

namespace spate::cuda {

enum class ExpertKind { kGateUp, kGateUpDense, kDown, kHeads };

constexpr bool has_silu(ExpertKind kind) { return kind == ExpertKind::kGateUp || kind == ExpertKind::kGateUpDense; }

// A run of steps of k of one tile.
struct Segment {
  int matrix;
  int weight_tile;
  int first_row, num_rows;
  int begin, end;
};

// The CTA's segments, in order; the warps that load and those that multiply walk through them alike.
template <ExpertKind kKind>
class Work {
 public:
  __device__ Work(const ExpertWgmmaKernelParams& p, int tile_rows) : p_(p), tile_rows_(tile_rows) {
    constexpr int kMinSteps = 8;  // of k a CTA: fewer take longer to add than to multiply
    const int num_ctas = static_cast<int>(gridDim.x);
    const int num_row_tiles = kKind == ExpertKind::kHeads
                                  ? p.num_matrices * ((p.num_rows + tile_rows - 1) / tile_rows)
                                  : *p.order.num_tiles;
    num_tiles_ = num_row_tiles * p.num_weight_tiles;
    // A last round of tiles that leaves few SMs idle is not cut.
    const int rest = num_tiles_ % num_ctas;
    const bool is_rest_large = num_tiles_ >= num_ctas && 10 * rest > 7 * num_ctas;
    num_whole_ = p.is_whole || (p.is_many && is_rest_large) ? num_tiles_ : p.is_many ? num_tiles_ - rest : 0;
    num_shared_steps_ = (num_tiles_ - num_whole_) * p.num_steps;
    num_sharing_ = max(1, min(num_ctas, num_shared_steps_ / kMinSteps));
    tile_ = static_cast<int>(blockIdx.x);
    step_ = first_shared_step(tile_);
    end_ = first_shared_step(tile_ + 1);
  }

  // The shared steps of k, of all shared tiles one behind the other: a CTA has those from here to the next CTA's.
  __device__ int first_shared_step(int cta) const {
    return static_cast<int>(static_cast<int64_t>(num_shared_steps_) * min(cta, num_sharing_) / num_sharing_);
  }

  __device__ bool next(Segment& segment) {
    int tile = tile_;
    if (tile < num_whole_) {
      segment.begin = 0;
      segment.end = p_.num_steps;
      tile_ += static_cast<int>(gridDim.x);
    } else if (step_ < end_) {
      tile = num_whole_ + step_ / p_.num_steps;
      segment.begin = step_ % p_.num_steps;
      segment.end = min(p_.num_steps, segment.begin + end_ - step_);
      step_ += segment.end - segment.begin;
    } else {
      return false;
    }
    if constexpr (kKind == ExpertKind::kHeads) {
      const int tiles_of_rows = (p_.num_rows + tile_rows_ - 1) / tile_rows_;
      const int tiles_of_matrix = tiles_of_rows * p_.num_weight_tiles, in_matrix = tile % tiles_of_matrix;
      segment.matrix = tile / tiles_of_matrix;
      segment.weight_tile = in_matrix / tiles_of_rows;
      segment.first_row = in_matrix % tiles_of_rows * tile_rows_;
      segment.num_rows = min(tile_rows_, p_.num_rows - segment.first_row);
    } else {
      // The tiles of an expert take num_of_expert * num_weight_tiles places from that of its first on.
      const int place = tile / p_.num_weight_tiles;
      const ExpertTile any = p_.order.tiles[place];
      const int first = place - any.idx_of_expert, in_expert = tile - first * p_.num_weight_tiles;
      const ExpertTile own = p_.order.tiles[first + in_expert % any.num_of_expert];
      segment.matrix = own.expert;
      segment.weight_tile = in_expert / any.num_of_expert;
      segment.first_row = own.first_row;
      segment.num_rows = own.num_rows;
    }
    return true;
  }

 private:
  const ExpertWgmmaKernelParams& p_;
  const int tile_rows_;
  int num_tiles_, num_whole_, num_shared_steps_, num_sharing_;
  int tile_;        // of the whole ones
  int step_, end_;  // of all steps of the shared ones
};

template <int kRows>
struct Stages {
  static constexpr int kCount = expert_num_stages(kRows);
  static constexpr uint32_t kWeightBytes = kExpertTileWeights * kExpertTileK * 2;
  static constexpr uint32_t kXBytes = kRows * kExpertTileK * 2;
  static constexpr uint32_t kBytes = expert_stage_bytes(kRows);

  uint32_t base;  // of shared memory

  __device__ uint32_t weight(int stage) const { return base + static_cast<uint32_t>(stage) * kBytes; }
  __device__ uint32_t x(int stage) const { return weight(stage) + kWeightBytes; }
  __device__ uint32_t full(int stage) const { return base + kCount * kBytes + static_cast<uint32_t>(stage) * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
  __device__ uint32_t tokens() const { return base + kCount * (kBytes + 16); }
};

// A place in the ring of stages.
template <int kCount>
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < kCount) return;
    stage = 0;
    parity ^= 1;
  }
};

// One thread: W, and x where its rows follow each other.
template <ExpertKind kKind, int kRows>
__device__ inline void load_stages(const ExpertWgmmaKernelParams& p, const Stages<kRows>& stages) {
  constexpr bool kGathers = kKind == ExpertKind::kGateUp;
  Work<kKind> work(p, kRows);
  Segment segment;
  Place<Stages<kRows>::kCount> place;
  while (work.next(segment)) {
    for (int step = segment.begin; step < segment.end; ++step) {
      const uint32_t full = stages.full(place.stage), weight = stages.weight(place.stage);
      wait_barrier(stages.empty(place.stage), place.parity ^ 1);
      arrive_expecting(full, Stages<kRows>::kWeightBytes + (kGathers ? 0 : Stages<kRows>::kXBytes));
      if constexpr (has_silu(kKind)) {
        copy_box_5d(weight, p.weight, step * kExpertTileK, 0, 0, segment.weight_tile * kExpertTileWeights / 16,
                    segment.matrix, full);
      } else {
        const int row = segment.matrix * p.out_features + segment.weight_tile * kExpertTileWeights;
        copy_box(weight, p.weight, step * kExpertTileK, row, full);
      }
      if constexpr (!kGathers) {
        const int column = kKind == ExpertKind::kHeads ? segment.matrix * p.x_matrix_columns : 0;
        copy_box(stages.x(place.stage), p.x, column + step * kExpertTileK, segment.first_row, full);
      }
      place.advance();
    }
  }
}

__device__ inline void sync_gatherers() { asm volatile("bar.sync 2, %0;" ::"n"(kExpertGatherThreads) : "memory"); }

// 96 threads: the rows of x of an expert's tokens. What the stage holds beyond num_rows makes columns that nobody reads.
template <int kRows>
__device__ inline void gather_stages(const ExpertWgmmaKernelParams& p, const Stages<kRows>& stages, int thread) {
  constexpr int kChunks = kExpertTileK / 8;  // of 16 bytes a row
  Work<ExpertKind::kGateUp> work(p, kRows);
  Segment segment;
  Place<Stages<kRows>::kCount> place;
  const int chunk = thread % kChunks, first_row = thread / kChunks;
  const char* x = static_cast<const char*>(p.x_rows) + chunk * 16;
  while (work.next(segment)) {
    sync_gatherers();  // the tokens before have been read
    for (int row = thread; row < segment.num_rows; row += kExpertGatherThreads) {
      const int token = p.order.row_tokens[segment.first_row + row];
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(stages.tokens() + static_cast<uint32_t>(row) * 4), "r"(token));
    }
    sync_gatherers();
    for (int step = segment.begin; step < segment.end; ++step) {
      const int k = step * kExpertTileK;
      const bool exists = k + chunk * 8 < p.in_features;
      wait_barrier(stages.empty(place.stage), place.parity ^ 1);
#pragma unroll 4
      for (int row = first_row; row < segment.num_rows; row += kExpertGatherThreads / kChunks) {
        int token;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(token) : "r"(stages.tokens() + static_cast<uint32_t>(row) * 4));
        const char* from = x + (token * p.x_stride + (exists ? k : 0)) * 2;
        const uint32_t to = stages.x(place.stage) + static_cast<uint32_t>(row * 128 + (chunk ^ row % 8) * 16);
        copy_async_16(to, from, exists);
      }
      arrive_with_copies(stages.full(place.stage));
      place.advance();
    }
  }
}

// --- the sums of a tile ------------------------------------------------------------------------------------------

constexpr int kConsumerThreads = 128 * kExpertConsumers;

__device__ inline void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }

__device__ inline uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Where a CTA leaves sums, of a tile as large as the kernel has: products of fewer columns use a part of it.
template <int kRows>
__device__ inline float4* place_of_sums(const ExpertWgmmaKernelParams& p, int cta) {
  return reinterpret_cast<float4*>(p.partial) + static_cast<int64_t>(cta) * (kRows / 8) * kConsumerThreads;
}

// Leaves the sums for the CTA that has the tile's first k.
template <int kRows, int kRegs>
__device__ inline void leave_sums(const ExpertWgmmaKernelParams& p, const float (&acc)[kRegs], int thread) {
  float4* to = place_of_sums<kRows>(p, static_cast<int>(blockIdx.x));
#pragma unroll
  for (int i = 0; i < kRegs / 4; ++i) {
    __stcg(to + i * kConsumerThreads + thread, make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
  }
  sync_consumers();
  if (thread == 0) {
    __threadfence();
    store_release(p.arrived + blockIdx.x, 1);
  }
}

// Adds what the next CTAs have of the tile, `num_steps` steps of k.
template <ExpertKind kKind, int kRows, int kRegs>
__device__ inline void add_sums(const ExpertWgmmaKernelParams& p, const Work<kKind>& work, float (&acc)[kRegs],
                                int thread, int num_steps) {
  const int first_cta = static_cast<int>(blockIdx.x) + 1;
  int num_ctas = 0;
  for (; num_steps > 0; ++num_ctas) {
    const int cta = first_cta + num_ctas;
    num_steps -= work.first_shared_step(cta + 1) - work.first_shared_step(cta);
  }
  for (int i = thread; i < num_ctas; i += kConsumerThreads) {
    while (load_acquire(p.arrived + first_cta + i) == 0) {
    }
  }
  sync_consumers();
  for (int i = 0; i < num_ctas; ++i) {
    const float4* from = place_of_sums<kRows>(p, first_cta + i) + thread;
#pragma unroll
    for (int j = 0; j < kRegs / 4; ++j) {
      const float4 more = __ldcg(from + j * kConsumerThreads);
      acc[4 * j] += more.x;
      acc[4 * j + 1] += more.y;
      acc[4 * j + 2] += more.z;
      acc[4 * j + 3] += more.w;
    }
  }
  sync_consumers();
  for (int i = thread; i < num_ctas; i += kConsumerThreads) p.arrived[first_cta + i] = 0;  // for the kernels after this
}

// Rows of bf16 pairs become columns: lane l has elements (l / 4, 2 (l % 4)) and the next of an 8 x 8 matrix, and gets
// those of the transposed one.
__device__ inline uint32_t transpose_8x8(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

__device__ inline float silu_times(float gate, float up) {
  gate = round_to<Bf16>(gate);
  return round_to<Bf16>(gate / (1.0f + expf(-gate))) * round_to<Bf16>(up);
}

// The first rows of W of a warp: of gate_up 8 features, else 16 rows.
template <ExpertKind kKind, int kColumns>
__device__ inline void store_tile(const ExpertWgmmaKernelParams& p, const float (&acc)[kColumns / 2],
                                  const Segment& segment, int warp) {
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  const int first = segment.weight_tile * kExpertTileWeights + warp * 16;
  Bf16* out = static_cast<Bf16*>(p.out) + segment.first_row * p.out_stride + segment.matrix * p.out_matrix_stride;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (8 * j >= segment.num_rows) break;
    const float* sums = acc + 4 * j;
    const int row = 8 * j + group;  // after a transposition
    if constexpr (has_silu(kKind)) {
      const int feature = first / 2 + 2 * pair;
      const uint32_t both =
          transpose_8x8(pack_bf16(silu_times(sums[0], sums[2]), silu_times(sums[1], sums[3])));
      if (row < segment.num_rows && feature < p.out_features) {
        *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature) = both;
      }
    } else if constexpr (kKind == ExpertKind::kHeads) {
      const uint32_t low = transpose_8x8(pack_bf16(sums[0], sums[1]));
      const uint32_t high = transpose_8x8(pack_bf16(sums[2], sums[3]));
      const int feature = first + 2 * pair;
      if (row >= segment.num_rows) continue;
      if (feature < p.out_features) *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature) = low;
      if (feature + 8 < p.out_features) *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature + 8) = high;
    } else {
      float* y = static_cast<float*>(p.out) + segment.first_row * p.out_stride;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * j + 2 * pair + i % 2, feature = first + group + i / 2 * 8;
        if (column < segment.num_rows && feature < p.out_features) y[column * p.out_stride + feature] = sums[i];
      }
    }
  }
}

// One segment, by a product of kColumns columns: as many as its rows need.
template <ExpertKind kKind, int kRows, int kColumns>
__device__ inline void multiply_segment(const ExpertWgmmaKernelParams& p, const Stages<kRows>& stages,
                                        const Work<kKind>& work, const Segment& segment,
                                        Place<Stages<kRows>::kCount>& place) {
  const int thread = static_cast<int>(threadIdx.x) - 128, consumer = thread / 128, lane = thread % 32;
  const uint32_t weight_offset = static_cast<uint32_t>(consumer) * 64 * kExpertTileK * 2;
  float acc[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) acc[i] = 0.0f;
  int last_stage = -1;
  for (int step = segment.begin; step < segment.end; ++step) {
    wait_barrier(stages.full(place.stage), place.parity);
    if constexpr (kKind == ExpertKind::kGateUp) fence_async_proxy();  // x came by copies of threads
    const uint64_t a = wgmma_descriptor(stages.weight(place.stage) + weight_offset),
                   b = wgmma_descriptor(stages.x(place.stage));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kExpertTileK / kWgmmaK; ++k) {
      wgmma_bf16<kColumns>(acc, next_wgmma_k(a, k), next_wgmma_k(b, k));
    }
    wgmma_commit();
    wgmma_wait<1>();  // the step before has been read
    if (last_stage >= 0 && lane == 0) arrive(stages.empty(last_stage));
    last_stage = place.stage;
    place.advance();
  }
  wgmma_wait<0>();
  if (lane == 0) arrive(stages.empty(last_stage));
  if (segment.begin > 0) return leave_sums<kRows>(p, acc, thread);
  if (segment.end < p.num_steps) add_sums<kKind, kRows>(p, work, acc, thread, p.num_steps - segment.end);
  store_tile<kKind, kColumns>(p, acc, segment, thread / 32);
}

template <ExpertKind kKind, int kRows>
__device__ inline void multiply_stages(const ExpertWgmmaKernelParams& p, const Stages<kRows>& stages) {
  Work<kKind> work(p, kRows);
  Segment segment;
  Place<Stages<kRows>::kCount> place;
  while (work.next(segment)) {
    if constexpr (kRows >= 128) {  // the last tile of an expert may have few rows
      if (segment.num_rows <= kRows / 4) {
        multiply_segment<kKind, kRows, kRows / 4>(p, stages, work, segment, place);
        continue;
      }
    }
    multiply_segment<kKind, kRows, kRows>(p, stages, work, segment, place);
  }
}

template <ExpertKind kKind, int kRows>
__device__ inline void expert_wgmma(const ExpertWgmmaKernelParams& p) {
  extern __shared__ char smem[];
  const Stages<kRows> stages{(shared_address(smem) + 1023) / 1024 * 1024};
  constexpr int kLoaders = kKind == ExpertKind::kGateUp ? 1 + kExpertGatherThreads : 1;
  let_dependents_launch();
  if (threadIdx.x == 0) {
    prefetch_map(p.weight);
    if constexpr (kKind != ExpertKind::kGateUp) prefetch_map(p.x);
    for (int stage = 0; stage < Stages<kRows>::kCount; ++stage) {
      init_barrier(stages.full(stage), kLoaders);
      init_barrier(stages.empty(stage), kConsumerThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_inputs();
  if (threadIdx.x < 128) {
    if constexpr (kRows > 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) load_stages<kKind, kRows>(p, stages);
    if constexpr (kKind == ExpertKind::kGateUp) {
      if (threadIdx.x >= 32) gather_stages<kRows>(p, stages, static_cast<int>(threadIdx.x) - 32);
    }
  } else {
    if constexpr (kRows > 128) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_stages<kKind, kRows>(p, stages);
  }
}

#define SPATE_EXPERT_WGMMA_KERNEL(name, kind, rows)                \
  extern "C" __global__ void __launch_bounds__(kExpertThreads, 1)  \
      name##_n##rows(const __grid_constant__ ExpertWgmmaKernelParams p) { \
    expert_wgmma<ExpertKind::kind, rows>(p);                       \
  }
SPATE_EXPERT_WGMMA_KERNEL(expert_gate_up, kGateUp, 8)
SPATE_EXPERT_WGMMA_KERNEL(expert_gate_up, kGateUp, 32)
SPATE_EXPERT_WGMMA_KERNEL(expert_gate_up, kGateUp, 64)
SPATE_EXPERT_WGMMA_KERNEL(expert_gate_up, kGateUp, 128)
// Many rows: gathering them in the load takes longer than the products, so that they are copied before.
SPATE_EXPERT_WGMMA_KERNEL(expert_gate_up_dense, kGateUpDense, 128)
SPATE_EXPERT_WGMMA_KERNEL(expert_gate_up_dense, kGateUpDense, 256)
SPATE_EXPERT_WGMMA_KERNEL(expert_down, kDown, 8)
SPATE_EXPERT_WGMMA_KERNEL(expert_down, kDown, 32)
SPATE_EXPERT_WGMMA_KERNEL(expert_down, kDown, 64)
SPATE_EXPERT_WGMMA_KERNEL(expert_down, kDown, 128)
SPATE_EXPERT_WGMMA_KERNEL(expert_down, kDown, 256)
SPATE_EXPERT_WGMMA_KERNEL(head_product, kHeads, 8)
SPATE_EXPERT_WGMMA_KERNEL(head_product, kHeads, 16)
SPATE_EXPERT_WGMMA_KERNEL(head_product, kHeads, 32)
SPATE_EXPERT_WGMMA_KERNEL(head_product, kHeads, 64)
SPATE_EXPERT_WGMMA_KERNEL(head_product, kHeads, 128)
SPATE_EXPERT_WGMMA_KERNEL(head_product, kHeads, 256)

}  // namespace spate::cuda
