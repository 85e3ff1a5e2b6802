// WHAT       out = x W^T + bias on wgmma, for up to 256 tokens, the k of a tile cut among the CTAs of a cluster.
// SHAPES     As linear_wgmma.cu. A tile is 128 rows of W and the kernel's number of tokens.
// LAYOUT     As linear_wgmma.cu.
// NUMERICS   fp32 sums along k; those of a cluster's CTAs are added in the order of k. How many there are depends on
// the
//            step's sizes.
// WORK       For few rows of W (a router, the latent of MLA). A cluster of 8 CTAs has a tile, its CTAs have equal runs
// of
//            the tile's k. One warp loads stages, two warpgroups multiply. Then every CTA adds and stores some of the
//            tile's tokens: the others send it their sums of those (st.async into its shared memory), and a barrier
//            there counts their bytes. That is the difference from linear_skeleton.h, where one CTA reads the sums of
//            all others from global memory.
// ROOFLINE   None: W is small, the time is that of a launch, a chain of loads and the exchange.
// WARM       1.3 s: fast, bf16, bf16-weights
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter linear
#include "backend/cuda/kernel/linear/linear_split.h"

#include "backend/cuda/kernel/linear/linear_skeleton.h"
#include "backend/cuda/kernel/primitive/cluster.h"

namespace spate::cuda {

// --- a CTA -----------------------------------------------------------------------------------------------------------

template <int kTokens>
struct Split {
  static constexpr int kCount = split_stages(kTokens), kGroups = split_groups(kTokens);
  static constexpr int kChunks = kTokens > kSplitChunkTokens ? kTokens / kSplitChunkTokens : 1;
  static constexpr uint32_t kStageBytes = split_stage_bytes(kTokens);

  // CTAs that add; each has so many groups of 8 tokens of a chunk.
  static constexpr int kAdding = kGroups < kSplitCtas ? kGroups : kSplitCtas, kEach = kGroups / kAdding;

  const LinearWgmmaKernelParams& p;
  uint32_t base;
  int rank, first_row, first_token;
  int begin, end;  // this CTA's steps of the tile's k

  __device__ Split(const LinearWgmmaKernelParams& params, uint32_t shared)
      : p(params), base((shared + 1023) / 1024 * 1024), rank(cluster_rank()) {
    const int tile = static_cast<int>(blockIdx.x) / kSplitCtas;
    first_row = tile % p.num_row_tiles * kWgmmaTileRows;
    first_token = tile / p.num_row_tiles * kTokens;
    begin = p.num_steps * rank / kSplitCtas;
    end = p.num_steps * (rank + 1) / kSplitCtas;
  }

  __device__ uint32_t weight(int stage) const { return base + static_cast<uint32_t>(stage) * kStageBytes; }
  __device__ uint32_t x(int stage) const { return weight(stage) + kBf16StageWeightBytes; }
  __device__ uint32_t chunk() const { return base + kCount * kStageBytes; }
  __device__ uint32_t full(int stage) const {
    return chunk() + split_chunk_bytes(kTokens) + static_cast<uint32_t>(stage) * 16;
  }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
  __device__ uint32_t received() const { return full(kCount); }   // the sums of a chunk
  __device__ uint32_t freed() const { return full(kCount) + 8; }  // all CTAs have read a chunk's

  __device__ void init() const {
    prefetch_map(p.weight);
    prefetch_map(p.x);
    for (int stage = 0; stage < kCount; ++stage) {
      init_barrier(full(stage), 1);
      init_barrier(empty(stage), kConsumerThreads / 32);
    }
    init_barrier(received(), 1);
    init_barrier(freed(), kAdding);
    fence_barrier_init();
  }

  __device__ void load_weight(int stage, int step) const {
    arrive_expecting(full(stage), kStageBytes);
#pragma unroll
    for (int box = 0; box < kWgmmaTileRows / kWgmmaRows; ++box) {
      copy_box(weight(stage) + static_cast<uint32_t>(box) * kWgmmaRows * kWgmmaStageRowBytes, p.weight,
               step * kWgmmaTileK, first_row + box * kWgmmaRows, full(stage));
    }
  }
  // One thread.
  __device__ void load() const {
    const int num_early = min(kCount, end - begin);
    for (int i = 0; i < num_early; ++i) load_weight(i, begin + i);
    wait_for_inputs();
    Place<kCount> place;
    for (int step = begin; step < end; ++step) {
      if (step >= begin + num_early) {
        wait_barrier(empty(place.stage), place.parity ^ 1);
        load_weight(place.stage, step);
      }
      copy_box(x(place.stage), p.x, step * kWgmmaTileK, first_token, full(place.stage));
      place.advance();
    }
  }

  // The two warpgroups.
  __device__ void multiply() const {
    const int thread = static_cast<int>(threadIdx.x) - 128, consumer = thread / 128, lane = thread % 32;
    wait_for_inputs();
    Place<kCount> place;
    float sums[kTokens / 2];
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0;
    int last_stage = -1;
    for (int step = begin; step < end; ++step) {
      wait_barrier(full(place.stage), place.parity);
      wgmma_fence();
      const uint64_t rows = wgmma_descriptor(weight(place.stage) +
                                             static_cast<uint32_t>(consumer) * kWgmmaRows * kWgmmaStageRowBytes),
                     columns = wgmma_descriptor(x(place.stage));
#pragma unroll
      for (int k = 0; k < kWgmmaTileK / kWgmmaK; ++k) {
        wgmma_bf16<kTokens>(sums, next_wgmma_k(rows, k), next_wgmma_k(columns, k));
      }
      wgmma_commit();
      wgmma_wait<1>();  // the step before has been read
      if (last_stage >= 0 && lane == 0) arrive(empty(last_stage));
      last_stage = place.stage;
      place.advance();
    }
    wgmma_wait<0>();
    const TileRows rows(p, first_row + consumer * kWgmmaRows + thread % 128 / 32 * 16);
#pragma unroll
    for (int chunk_idx = 0; chunk_idx < kChunks; ++chunk_idx) {
      exchange(rows, sums + chunk_idx * (kSplitChunkTokens / 2), chunk_idx, thread);
    }
  }

 private:
  // sums: of the chunk's tokens.
  __device__ void exchange(const TileRows& rows, const float* sums, int chunk_idx, int thread) const {
    const uint32_t parity = static_cast<uint32_t>(chunk_idx) % 2;
    if (chunk_idx > 0) wait_cluster_barrier(freed(), parity ^ 1);
    if (rank < kAdding && thread == 0) arrive_expecting(received(), kSplitCtas * kEach * kSplitGroupBytes);
    const auto place_of = [&](int from, int i) {
      return chunk() + static_cast<uint32_t>((from * kEach + i) * kSplitGroupBytes + thread * 16);
    };
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int to = g / kEach;
      send_four(shared_of(place_of(rank, g % kEach), to), sums[4 * g], sums[4 * g + 1], sums[4 * g + 2], sums[4 * g + 3],
           shared_of(received(), to));
    }
    if (rank >= kAdding) return;
    wait_cluster_barrier(received(), parity);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float total[4] = {};
#pragma unroll
      for (int from = 0; from < kSplitCtas; ++from) {
        float more[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(more[0]), "=f"(more[1]), "=f"(more[2]), "=f"(more[3])
                     : "r"(place_of(from, i))
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; ++j) total[j] += more[j];
      }
      rows.store(first_token + chunk_idx * kSplitChunkTokens + 8 * (rank * kEach + i), total[0], total[1], total[2],
                 total[3]);
    }
    if (chunk_idx + 1 == kChunks) return;  // nobody waits for it, and the others may have ended
    sync_consumers();
    if (thread < kSplitCtas) arrive_at_cta(freed(), thread);
  }
};

template <int kTokens>
__device__ inline void linear_split(const LinearWgmmaKernelParams& p) {
  extern __shared__ char smem[];
  let_dependents_launch();
  const Split<kTokens> split(p, shared_address(smem));
  if (threadIdx.x == 0) split.init();
  cluster_barrier();  // the others' barriers are there
  if (threadIdx.x < 128) {
    if constexpr (kTokens > 64) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) return split.load();
    wait_for_inputs();
  } else {
    if constexpr (kTokens > 64) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    split.multiply();
  }
}

#define SPATE_SPLIT_KERNEL(tokens)                                                                  \
  extern "C" __global__ void __cluster_dims__(kSplitCtas, 1, 1) __launch_bounds__(kWgmmaThreads, 1) \
      linear_split_n##tokens(const __grid_constant__ LinearWgmmaKernelParams p) {                   \
    linear_split<tokens>(p);                                                                        \
  }
SPATE_SPLIT_KERNEL(16)
SPATE_SPLIT_KERNEL(32)
SPATE_SPLIT_KERNEL(64)
SPATE_SPLIT_KERNEL(128)
SPATE_SPLIT_KERNEL(256)

}  // namespace spate::cuda
