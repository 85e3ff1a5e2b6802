// WHAT       Log-softmax of raw logits at a target token, its rank, and the num_top most probable tokens.
// SHAPES     logits [num_logits, vocab_size] f32; target_ids [num_logits] i32; target_logprob f32, target_rank i32
//            [num_logits]; top_ids i32, top_logprobs f32 [num_logits, num_top], both null when num_top is 0.
// LAYOUT     Row-major, row strides free.
// NUMERICS   exp and sums in fp64, the results rounded to fp32. Ties: the smaller id first.
// WORK       A cluster of 8 CTAs a row, as sample.cu: logits are read once, the maximum, then the sum, rank and each
//            thread's best token come from the slice. A CTA takes its num_top best one by one, where only the thread
//            that owned the last one searches again; then one CTA ranks the 8 lists. Below sm_90: one CTA a row.
// ROOFLINE   Memory: 4 * vocab_size bytes a row once. Expected for 1 / 32 / 128 rows of 128,256, 20 top tokens, on an
//            H200, not measured: 20 / 30 / 90 us.
// WARM       1.1 s: always
// LIMITS     vocab_size < 2^24; targets inside the vocabulary, or kNoToken; num_top <= 32.
// TESTS      spate-conformance --backend cuda --filter logprobs
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/sample/row_team.h"
#include "backend/cuda/kernel/sample/sample.h"
#include "backend/cuda/kernel/sample/sort_key.h"

namespace spate::cuda {

struct LogprobsMemory {
  TeamMemory team;
  uint64_t top[kMaxTopOfCta];                               // of the CTA's slice, descending; 0: there is none
  uint64_t tops_of_all[kSampleClusterCtas * kMaxTopOfCta];  // in the CTA that ranks them
};

__device__ inline void write_no_logprobs(const LogprobsKernelParams& p, int64_t row) {
  if (threadIdx.x == 0) {
    p.target_logprob[row] = 0.0f;
    p.target_rank[row] = 0;
  }
  for (int i = threadIdx.x; i < p.num_top; i += kSampleThreads) {
    p.top_ids[row * p.top_ids_stride + i] = kNoToken;
    p.top_logprobs[row * p.top_logprobs_stride + i] = 0.0f;
  }
}

// The keys of the num_top first tokens of the slice to `top`. own_best: of this thread's tokens (for_values).
__device__ inline void find_top(const Slice& slice, uint64_t own_best, int num_top, uint64_t* top) {
  for (int i = 0; i < num_top; ++i) {
    const uint64_t key = block_reduce(own_best, Max());
    if (threadIdx.x == 0) top[i] = key;
    if (key == 0 || own_best != key) continue;
    own_best = 0;
    for_values(slice, [&](int id, float logit) {
      const uint64_t other = token_key(logit, id);
      if (other < key) own_best = Max()(own_best, other);
    });
  }
}

// shared_slice: null where the slice lies in the workspace.
template <int kCtas>
__device__ inline void logprobs_of_row(const LogprobsKernelParams& p, float* shared_slice) {
  __shared__ LogprobsMemory memory;
  let_dependents_launch();
  wait_for_inputs();
  const int64_t row = blockIdx.x / kCtas;
  const bool is_first_cta = blockIdx.x % kCtas == 0;
  const int32_t target = p.target_ids[row];
  if (target == kNoToken) {
    if (is_first_cta) write_no_logprobs(p, row);
    return;
  }
  Slice slice = slice_of<kCtas>(p.logits + row * p.logits_stride, p.vocab_size, shared_slice);
  if (shared_slice == nullptr) slice.values = p.values + row * p.values_stride + slice.begin;
  RowTeam<kCtas> team(memory.team);

  bool is_spoiled = false;
  float own_max = -kInfinity;
  for_logits(slice, [&](int i, float logit) {
    is_spoiled |= !(logit < kInfinity);
    own_max = fmaxf(own_max, logit);
    slice.values[i] = logit;
  });
  const float max_logit = team.reduce(is_spoiled ? kInfinity : own_max, Max());
  if (max_logit == kInfinity || max_logit == -kInfinity) {
    if (is_first_cta) write_no_logprobs(p, row);
    team.leave();
    return;
  }

  const float target_logit = slice.logits[target];
  double sum = 0.0;
  int num_larger = 0;
  uint64_t own_best = 0;
  for_values(slice, [&](int id, float logit) {
    sum += exp(logit - static_cast<double>(max_logit));
    num_larger += logit > target_logit;
    own_best = Max()(own_best, token_key(logit, id));
  });
  const double log_sum = max_logit + log(team.reduce(sum, Sum()));
  num_larger = team.reduce(num_larger, Sum());
  if (is_first_cta && threadIdx.x == 0) {
    p.target_logprob[row] = static_cast<float>(target_logit - log_sum);
    p.target_rank[row] = 1 + num_larger;
  }
  if (p.num_top == 0) {
    team.leave();
    return;
  }

  find_top(slice, own_best, p.num_top, memory.top);
  team.barrier();
  if (is_first_cta) {
    const int num_keys = kCtas * p.num_top, thread = static_cast<int>(threadIdx.x);
    uint64_t key = 0;
    if (thread < num_keys) {
      key = *team.of(&memory.top[thread % p.num_top], thread / p.num_top);
      memory.tops_of_all[thread] = key;
    }
    __syncthreads();
    int place = 0;
    for (int i = 0; i < num_keys; ++i) place += memory.tops_of_all[i] > key;
    if (key != 0 && place < p.num_top) {
      p.top_ids[row * p.top_ids_stride + place] = token_of_key(key);
      p.top_logprobs[row * p.top_logprobs_stride + place] = static_cast<float>(logit_of_key(key) - log_sum);
    }
  }
  team.leave();
}

extern "C" __global__ void __launch_bounds__(kSampleThreads, 1)
    logprobs(const __grid_constant__ LogprobsKernelParams p) {
  logprobs_of_row<1>(p, nullptr);
}
extern "C" __global__ void __launch_bounds__(kSampleThreads, 2) SPATE_CLUSTER
    logprobs_cluster(const __grid_constant__ LogprobsKernelParams p) {
  logprobs_of_row<kSampleClusterCtas>(p, nullptr);
}

#define SPATE_LOGPROBS_KERNEL(size)                                                           \
  extern "C" __global__ void __launch_bounds__(kSampleThreads, 2)                             \
      SPATE_CLUSTER logprobs_cluster_##size(const __grid_constant__ LogprobsKernelParams p) { \
    extern __shared__ __align__(16) char slice[];                                             \
    logprobs_of_row<kSampleClusterCtas>(p, reinterpret_cast<float*>(slice));                  \
  }
SPATE_LOGPROBS_KERNEL(small)
SPATE_LOGPROBS_KERNEL(medium)
SPATE_LOGPROBS_KERNEL(large)

}  // namespace spate::cuda
