// Sums of a tile that several CTAs share: each leaves its own, and the one that has the first k adds them.
#pragma once

#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/primitive/flag.h"

namespace spate::cuda {

constexpr int kConsumerThreads = 128 * kWgmmaConsumers;

__device__ inline void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }

// Sums are floats or 32-bit integers.
template <typename T>
struct Four;
template <>
struct Four<float> {
  using Type = float4;
};
template <>
struct Four<int32_t> {
  using Type = int4;
};

// Where a CTA leaves sums, of a tile as large as the kernel has (kTileRegs numbers a thread): a smaller one uses a part.
template <int kTileRegs, typename T>
__device__ inline typename Four<T>::Type* place_of_sums(float* partial, int cta) {
  return reinterpret_cast<typename Four<T>::Type*>(partial) +
         static_cast<int64_t>(cta) * (kTileRegs / 4) * kConsumerThreads;
}

// Leaves the sums for the CTA that has the tile's first k. p: partial and arrived of the kernel's params.
template <int kTileRegs, typename Params, typename T, int kRegs>
__device__ inline void leave_sums(const Params& p, const T (&acc)[kRegs], int thread) {
  using Quad = typename Four<T>::Type;
  Quad* to = place_of_sums<kTileRegs, T>(p.partial, static_cast<int>(blockIdx.x));
#pragma unroll
  for (int i = 0; i < kRegs / 4; ++i) {
    __stcg(to + i * kConsumerThreads + thread, Quad{acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]});
  }
  sync_consumers();
  if (thread == 0) store_release(p.arrived + blockIdx.x, 1);  // and what the barrier has ordered before it
}

// Adds what the next CTAs have of the tile, `num_steps` steps of k. first_step(cta): the first shared step of a CTA, or
// of a team.
template <int kTileRegs, int kTeam = 1, typename Params, typename T, int kRegs, typename FirstStep>
__device__ inline void add_sums(const Params& p, T (&acc)[kRegs], int thread, int num_steps, FirstStep first_step) {
  using Quad = typename Four<T>::Type;
  const int first_cta = static_cast<int>(blockIdx.x) + kTeam, first = static_cast<int>(blockIdx.x) / kTeam + 1;
  int num_ctas = 0;
  for (; num_steps > 0; ++num_ctas) {
    const int cta = first + num_ctas;
    num_steps -= first_step(cta + 1) - first_step(cta);
  }
  for (int i = thread; i < num_ctas; i += kConsumerThreads) {
    while (load_acquire(p.arrived + first_cta + i * kTeam) == 0) {
    }
  }
  sync_consumers();
  const Quad* from = place_of_sums<kTileRegs, T>(p.partial, first_cta) + thread;
  constexpr int kUnroll = kRegs <= 16 ? 4 : 1;
#pragma unroll kUnroll
  for (int i = 0; i < num_ctas; ++i, from += kTeam * (kTileRegs / 4) * kConsumerThreads) {
#pragma unroll
    for (int j = 0; j < kRegs / 4; ++j) {
      const Quad more = __ldcg(from + j * kConsumerThreads);
      acc[4 * j] += more.x;
      acc[4 * j + 1] += more.y;
      acc[4 * j + 2] += more.z;
      acc[4 * j + 3] += more.w;
    }
  }
  sync_consumers();
  // For the kernels after this.
  for (int i = thread; i < num_ctas; i += kConsumerThreads) p.arrived[first_cta + i * kTeam] = 0;
}

}  // namespace spate::cuda
