// WHAT       Log-softmax of raw logits at a target token, its rank, and the num_top most probable tokens.
// SHAPES     logits [num_logits, vocab_size] f32; target_ids [num_logits] i32; target_logprob f32, target_rank i32
//            [num_logits]; top_ids i32, top_logprobs f32 [num_logits, num_top], both null when num_top is 0.
// LAYOUT     Row-major, row strides free.
// NUMERICS   exp and sums in fp64, the results rounded to fp32. Ties: the smaller id first.
// WORK       A CTA a row; each of the top tokens is one more pass over the row, from L2.
// ROOFLINE   Memory: 4 * vocab_size * (3 + num_top) bytes a row. Not tuned.
// LIMITS     vocab_size < 2^24; targets inside the vocabulary, or kNoToken.
// TESTS      spate-conformance --backend cuda --filter logprobs
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/sample/sample.h"
#include "backend/cuda/kernel/sample/sort_key.h"

namespace spate::cuda {

// The first token, in descending order, whose key is below `above`.
__device__ inline uint64_t next_key(const float* logits, int vocab_size, uint64_t above) {
  uint64_t best = 0;
  for (int id = threadIdx.x; id < vocab_size; id += blockDim.x) {
    const uint64_t key = token_key(logits[id], id);
    if (key < above) best = Max()(best, key);
  }
  return block_reduce(best, Max());
}

extern "C" __global__ void __launch_bounds__(kSampleThreads) logprobs(const __grid_constant__ LogprobsKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const float* logits = p.logits + row * p.logits_stride;
  const int32_t target = p.target_ids[row];
  uint64_t key = next_key(logits, p.vocab_size, ~uint64_t{0});
  const double max_logit = logits[token_of_key(key)];
  if (target == kNoToken || has_nan_or_inf(logits, p.vocab_size) || max_logit == -kInfinity) {
    if (threadIdx.x == 0) {
      p.target_logprob[row] = 0.0f;
      p.target_rank[row] = 0;
    }
    for (int i = threadIdx.x; i < p.num_top; i += blockDim.x) {
      p.top_ids[row * p.top_ids_stride + i] = kNoToken;
      p.top_logprobs[row * p.top_logprobs_stride + i] = 0.0f;
    }
    return;
  }
  const float target_logit = logits[target];

  double sum = 0.0;
  int num_larger = 0;
  for (int id = threadIdx.x; id < p.vocab_size; id += blockDim.x) {
    sum += exp(logits[id] - max_logit);
    num_larger += logits[id] > target_logit;
  }
  sum = block_reduce(sum, Sum());
  num_larger = block_reduce(num_larger, Sum());
  const double log_sum = max_logit + log(sum);
  if (threadIdx.x == 0) {
    p.target_logprob[row] = static_cast<float>(target_logit - log_sum);
    p.target_rank[row] = 1 + num_larger;
  }
  for (int i = 0; i < p.num_top; ++i) {
    const int32_t id = token_of_key(key);
    if (threadIdx.x == 0) {
      p.top_ids[row * p.top_ids_stride + i] = id;
      p.top_logprobs[row * p.top_logprobs_stride + i] = static_cast<float>(logits[id] - log_sum);
    }
    key = next_key(logits, p.vocab_size, key);
  }
}

}  // namespace spate::cuda
