// The CTAs that share a row of logits: one, or a cluster of 8, each with a slice of neighbouring tokens.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/cluster.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/sample/sample.h"

#if __CUDA_ARCH__ >= 900
#define SPATE_CLUSTER __cluster_dims__(8, 1, 1)
#else
#define SPATE_CLUSTER
#endif

namespace spate::cuda {

// What the CTAs of a row tell each other, in two copies: while one is read by the others, the next is written. Between
// two writes of a copy lies a barrier that all readers of it have passed.
struct TeamMemory {
  alignas(16) char value[2][16];
};

// A decision that all threads of all CTAs of a row make alike rests on what reduce() gives or on global memory that no
// CTA writes. leave() is the last call of every path that has called another one: no CTA may end while others read from
// it.
template <int kCtas>
class RowTeam {
 public:
  __device__ explicit RowTeam(TeamMemory& memory) : memory_(memory) {}

  __device__ static int rank() { return kCtas == 1 ? 0 : cluster_rank(); }

  __device__ static void barrier() {
    if constexpr (kCtas == 1) {
      __syncthreads();
    } else {
      cluster_barrier();
    }
  }
  __device__ static void leave() {
    if constexpr (kCtas > 1) cluster_barrier();
  }
  template <typename T>
  __device__ static const T* of(const T* own, int rank) {
    return kCtas == 1 ? own : of_cluster_cta(own, rank);
  }
  // 0 and 1 in turn.
  __device__ int next_copy() { return copy_ ^= 1; }

  // Over all threads of all CTAs; CTAs in their order.
  template <typename T, typename Combine>
  __device__ T reduce(T value, Combine combine) {
    static_assert(sizeof(T) <= 16, "it fits into a copy of TeamMemory");
    value = block_reduce(value, combine);
    if constexpr (kCtas == 1) return value;
    T* own = reinterpret_cast<T*>(memory_.value[next_copy()]);
    if (threadIdx.x == 0) *own = value;
    barrier();
    T result = *of(own, 0);
#pragma unroll 2
    for (int cta = 1; cta < kCtas; ++cta) result = combine(result, *of(own, cta));
    return result;
  }

 private:
  TeamMemory& memory_;
  int copy_ = 0;
};

// Tokens [begin, begin + count) of a row. `values` is the CTA's memory for them: shared, or a part of the workspace.
struct Slice {
  const float* logits;  // of the whole row, unchanged
  float* values;
  int begin;
  int count;
  bool is_aligned;  // logits + begin lies at a multiple of 16 bytes

  __device__ bool has(int id) const { return id >= begin && id < begin + count; }
};

template <int kCtas>
__device__ inline Slice slice_of(const float* logits, int vocab_size, float* values) {
  const int length = slice_length(vocab_size, kCtas);
  const int begin = min(RowTeam<kCtas>::rank() * length, vocab_size);
  return {logits, values, begin, min(length, vocab_size - begin), reinterpret_cast<uint64_t>(logits + begin) % 16 == 0};
}

// Calls visit(i, logits[begin + i]) for each token of the slice that this thread owns, in ascending order. Four loads
// of 16 bytes are in flight.
template <typename Visit>
__device__ inline void for_logits(const Slice& slice, Visit visit) {
  constexpr int kLoads = 4;
  const float* logits = slice.logits + slice.begin;
  const int num_quads = slice.is_aligned ? slice.count / 4 : 0;
  for (int first = threadIdx.x; first < num_quads; first += kLoads * kSampleThreads) {
    float4 quads[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int quad = first + j * kSampleThreads;
      if (quad < num_quads) quads[j] = reinterpret_cast<const float4*>(logits)[quad];
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = 4 * (first + j * kSampleThreads);
      if (i >= 4 * num_quads) continue;
      visit(i, quads[j].x);
      visit(i + 1, quads[j].y);
      visit(i + 2, quads[j].z);
      visit(i + 3, quads[j].w);
    }
  }
  for (int i = 4 * num_quads + static_cast<int>(threadIdx.x); i < slice.count; i += kSampleThreads) visit(i, logits[i]);
}

// The same of the slice's own values, after a __syncthreads() that follows their last write.
template <typename Visit>
__device__ inline void for_values(const Slice& slice, Visit visit) {
  for (int i = threadIdx.x; i < slice.count; i += kSampleThreads) visit(slice.begin + i, slice.values[i]);
}

}  // namespace spate::cuda
