// WHAT       out = x W^T + bias on wgmma, for any number of tokens.
// SHAPES     x [num_tokens, in_features] bf16; W [out_features, in_features] bf16; bias [out_features] bf16 or null;
// out
//            [num_tokens, out_features] bf16 or f32. Rows of x at multiples of 16 bytes.
// LAYOUT     W row-major, rows padded to 16 elements with zeros.
// NUMERICS   fp32 sums on the tensor core along k, in steps of 16. Where several CTAs share the k of a tile, their sums
// are
//            added in the order of k. Which tiles are shared depends on the step's sizes.
// WORK       Operands are swapped: rows of W are the 64 rows of wgmma, tokens its columns, so that few tokens waste
// nothing.
//            A CTA: one warp that loads stages of 128 rows and the tokens, 64 elements of k each, by TMA; two
//            warpgroups that multiply, 64 rows each. The grid is one CTA an SM. Whole tiles first; the k of the rest is
//            cut into equal runs, one a CTA (stream-K), and the CTA that has a tile's first k adds the others' sums.
//            The first stages of W are loaded before the grid waits for the kernels before it: weights depend on
//            nothing.
// ROOFLINE   Few tokens: bytes of W over 4.65 TB/s. Many: 2 * num_tokens * in * out over 750 TFLOP/s.
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter linear
#include "backend/cuda/kernel/linear/linear_wgmma.h"

#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/tma.h"
#include "backend/cuda/kernel/primitive/wgmma.h"

namespace spate::cuda {

constexpr int kTokenTilesTogether = 8;  // tiles of tokens that share a pass over W

// A run of steps of k of one tile.
struct Segment {
  int row;    // the tile's first row of W
  int token;  // and token
  int begin, end;
};

// The shared steps of k, of all shared tiles one behind the other: a CTA has those from here to the next CTA's.
__device__ inline int first_shared_step(const LinearWgmmaKernelParams& p, int cta) {
  const int64_t num_steps = static_cast<int64_t>(p.num_tiles - p.num_whole_tiles) * p.num_steps;
  return static_cast<int>(num_steps * min(cta, p.num_sharing_ctas) / p.num_sharing_ctas);
}

// The CTA's segments, in order; the warps that load and those that multiply walk through them alike.
class Work {
 public:
  __device__ Work(const LinearWgmmaKernelParams& p, int tile_tokens) : p_(p), tile_tokens_(tile_tokens) {
    tile_ = static_cast<int>(blockIdx.x);
    step_ = first_shared_step(p, tile_);
    end_ = first_shared_step(p, tile_ + 1);
  }
  __device__ bool next(Segment& segment) {
    int tile = tile_;
    if (tile < p_.num_whole_tiles) {
      segment.begin = 0;
      segment.end = p_.num_steps;
      tile_ += static_cast<int>(gridDim.x);
    } else if (step_ < end_) {
      tile = p_.num_whole_tiles + step_ / p_.num_steps;
      segment.begin = step_ % p_.num_steps;
      segment.end = min(p_.num_steps, segment.begin + end_ - step_);
      step_ += segment.end - segment.begin;
    } else {
      return false;
    }
    const int num_token_tiles = p_.num_tiles / p_.num_row_tiles, in_group = kTokenTilesTogether * p_.num_row_tiles;
    const int first = tile / in_group * kTokenTilesTogether,
              together = min(kTokenTilesTogether, num_token_tiles - first);
    segment.token = (first + tile % in_group % together) * tile_tokens_;
    segment.row = tile % in_group / together * kWgmmaTileRows;
    return true;
  }

 private:
  const LinearWgmmaKernelParams& p_;
  const int tile_tokens_;
  int tile_;        // of the whole ones
  int step_, end_;  // of all steps of the shared ones
};

template <int kTokens>
struct Stages {
  static constexpr int kCount = wgmma_num_stages(kTokens);
  static constexpr uint32_t kWeightBytes = kWgmmaTileRows * kWgmmaTileK * 2;
  static constexpr uint32_t kBytes = wgmma_stage_bytes(kTokens);

  uint32_t base;  // of shared memory

  __device__ uint32_t weight(int stage) const { return base + static_cast<uint32_t>(stage) * kBytes; }
  __device__ uint32_t x(int stage) const { return weight(stage) + kWeightBytes; }
  __device__ uint32_t full(int stage) const { return base + kCount * kBytes + static_cast<uint32_t>(stage) * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
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

template <int kTokens>
__device__ inline void load_weight(const LinearWgmmaKernelParams& p, const Stages<kTokens>& stages, int stage, int row,
                                   int step) {
  arrive_expecting(stages.full(stage), Stages<kTokens>::kBytes);
  copy_box(stages.weight(stage), p.weight, step * kWgmmaTileK, row, stages.full(stage));
  copy_box(stages.weight(stage) + Stages<kTokens>::kWeightBytes / 2, p.weight, step * kWgmmaTileK,
           row + kWgmmaTileRows / 2, stages.full(stage));
}

// One thread.
template <int kTokens>
__device__ inline void load_stages(const LinearWgmmaKernelParams& p, const Stages<kTokens>& stages) {
  constexpr int kCount = Stages<kTokens>::kCount;
  const auto load_x = [&](int stage, const Segment& segment, int step) {
    copy_box(stages.x(stage), p.x, step * kWgmmaTileK, segment.token, stages.full(stage));
  };
  Work ahead(p, kTokens);
  Segment segment;
  int num_loaded = 0;
  while (num_loaded < kCount && ahead.next(segment)) {
    for (int step = segment.begin; step < segment.end && num_loaded < kCount; ++step) {
      load_weight(p, stages, num_loaded++, segment.row, step);
    }
  }
  wait_for_inputs();
  Work work(p, kTokens);
  Place<kCount> place;
  while (work.next(segment)) {
    for (int step = segment.begin; step < segment.end; ++step) {
      if (num_loaded > 0) {
        --num_loaded;
      } else {
        wait_barrier(stages.empty(place.stage), place.parity ^ 1);
        load_weight(p, stages, place.stage, segment.row, step);
      }
      load_x(place.stage, segment, step);
      place.advance();
    }
  }
}

// --- the sums of a tile ------------------------------------------------------------------------------------------

constexpr int kConsumerThreads = 128 * kWgmmaConsumers;

__device__ inline void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }

__device__ inline uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Leaves the sums for the CTA that has the tile's first k.
template <int kRegs>
__device__ inline void leave_sums(const LinearWgmmaKernelParams& p, const float (&acc)[kRegs], int thread) {
  float4* to = reinterpret_cast<float4*>(p.partial) + static_cast<int64_t>(blockIdx.x) * (kRegs / 4) * kConsumerThreads;
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
template <int kRegs>
__device__ inline void add_sums(const LinearWgmmaKernelParams& p, float (&acc)[kRegs], int thread, int num_steps) {
  const int first_cta = static_cast<int>(blockIdx.x) + 1;
  int num_ctas = 0;
  for (; num_steps > 0; ++num_ctas) {
    const int cta = first_cta + num_ctas;
    num_steps -= first_shared_step(p, cta + 1) - first_shared_step(p, cta);
  }
  for (int i = thread; i < num_ctas; i += kConsumerThreads) {
    while (load_acquire(p.arrived + first_cta + i) == 0) {
    }
  }
  sync_consumers();
  const float4* from = reinterpret_cast<const float4*>(p.partial) +
                       static_cast<int64_t>(first_cta) * (kRegs / 4) * kConsumerThreads + thread;
  constexpr int kUnroll = kRegs <= 16 ? 4 : 1;
#pragma unroll kUnroll
  for (int i = 0; i < num_ctas; ++i, from += (kRegs / 4) * kConsumerThreads) {
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

template <int kTokens>
__device__ inline void store_tile(const LinearWgmmaKernelParams& p, const float (&acc)[kTokens / 2], int row,
                                  int token) {
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  const int num_tokens = min(kTokens, p.num_tokens - token);
  float bias[2] = {};
  if (p.bias != nullptr) {
    const Bf16* values = static_cast<const Bf16*>(p.bias);
    if (row + group < p.out_features) bias[0] = to_float(values[row + group]);
    if (row + group + 8 < p.out_features) bias[1] = to_float(values[row + group + 8]);
  }
  const bool is_whole = row + 16 <= p.out_features;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    if (8 * j >= num_tokens) break;
    const float low[2] = {acc[4 * j] + bias[0], acc[4 * j + 1] + bias[0]};
    const float high[2] = {acc[4 * j + 2] + bias[1], acc[4 * j + 3] + bias[1]};
    if (!p.is_out_f32 && p.is_out_paired && is_whole) {
      const uint32_t first = transpose_8x8(pack_bf16(low[0], low[1]));
      const uint32_t second = transpose_8x8(pack_bf16(high[0], high[1]));
      if (8 * j + group < num_tokens) {
        Bf16* out = static_cast<Bf16*>(p.out) + (token + 8 * j + group) * p.out_stride + row + 2 * pair;
        *reinterpret_cast<uint32_t*>(out) = first;
        *reinterpret_cast<uint32_t*>(out + 8) = second;
      }
      continue;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * j + 2 * pair + i % 2, feature = row + group + i / 2 * 8;
      if (column >= num_tokens || feature >= p.out_features) continue;
      const float value = i < 2 ? low[i] : high[i - 2];
      const int64_t offset = (token + column) * p.out_stride + feature;
      if (p.is_out_f32) {
        static_cast<float*>(p.out)[offset] = value;
      } else {
        static_cast<Bf16*>(p.out)[offset] = from_float<Bf16>(value);
      }
    }
  }
}

template <int kTokens>
__device__ inline void multiply_stages(const LinearWgmmaKernelParams& p, const Stages<kTokens>& stages) {
  constexpr int kCount = Stages<kTokens>::kCount;
  const int thread = static_cast<int>(threadIdx.x) - 128, consumer = thread / 128, lane = thread % 32;
  const uint32_t row_offset = static_cast<uint32_t>(consumer) * kWgmmaRows * kWgmmaTileK * 2;
  wait_for_inputs();
  Work work(p, kTokens);
  Segment segment;
  Place<kCount> place;
  float acc[kTokens / 2];
  while (work.next(segment)) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) acc[i] = 0.0f;
    int last_stage = -1;
    for (int step = segment.begin; step < segment.end; ++step) {
      wait_barrier(stages.full(place.stage), place.parity);
      const uint64_t a = wgmma_descriptor(stages.weight(place.stage) + row_offset),
                     b = wgmma_descriptor(stages.x(place.stage));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kWgmmaTileK / kWgmmaK; ++k) wgmma_bf16<kTokens>(acc, next_wgmma_k(a, k), next_wgmma_k(b, k));
      wgmma_commit();
      wgmma_wait<1>();  // the step before has been read
      if (last_stage >= 0 && lane == 0) arrive(stages.empty(last_stage));
      last_stage = place.stage;
      place.advance();
    }
    wgmma_wait<0>();
    if (lane == 0) arrive(stages.empty(last_stage));
    if (segment.begin > 0) {
      leave_sums(p, acc, thread);
      continue;
    }
    if (segment.end < p.num_steps) add_sums(p, acc, thread, p.num_steps - segment.end);
    store_tile<kTokens>(p, acc, segment.row + consumer * kWgmmaRows + thread % 128 / 32 * 16, segment.token);
  }
}

template <int kTokens>
__device__ inline void linear_wgmma(const LinearWgmmaKernelParams& p) {
  extern __shared__ char smem[];
  const Stages<kTokens> stages{(shared_address(smem) + 1023) / 1024 * 1024};
  let_dependents_launch();
  if (threadIdx.x == 0) {
    prefetch_map(p.weight);
    prefetch_map(p.x);
    for (int stage = 0; stage < Stages<kTokens>::kCount; ++stage) {
      init_barrier(stages.full(stage), 1);
      init_barrier(stages.empty(stage), kConsumerThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    if constexpr (kTokens > 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) return load_stages<kTokens>(p, stages);
    wait_for_inputs();
  } else {
    if constexpr (kTokens > 128) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_stages<kTokens>(p, stages);
  }
}

#define SPATE_LINEAR_WGMMA_KERNEL(tokens)                                         \
  extern "C" __global__ void __launch_bounds__(kWgmmaThreads, 1)                  \
      linear_wgmma_n##tokens(const __grid_constant__ LinearWgmmaKernelParams p) { \
    linear_wgmma<tokens>(p);                                                      \
  }
SPATE_LINEAR_WGMMA_KERNEL(8)
SPATE_LINEAR_WGMMA_KERNEL(16)
SPATE_LINEAR_WGMMA_KERNEL(32)
SPATE_LINEAR_WGMMA_KERNEL(64)
SPATE_LINEAR_WGMMA_KERNEL(128)
SPATE_LINEAR_WGMMA_KERNEL(256)

}  // namespace spate::cuda
