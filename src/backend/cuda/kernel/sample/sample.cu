// WHAT       One token a logits row: bias, masked stop ids, penalties, temperature, min_p, top_k, top_p, then the
//            largest logit + gumbel (temperature 0: the largest logit). backend/ops.h SampleParams has the exact order.
// SHAPES     logits [num_logits, vocab_size] f32, unchanged; adjusted [num_logits, vocab_size] f32 scratch, touched
//            only by rows that have a bias, a mask or a penalty; the running state as in RowState.
// LAYOUT     Row-major.
// NUMERICS   Adjusted logits in fp32 without contraction, in the order of ops.h, so greedy ties are those of every
//            back-end. Probabilities relative to the largest in fp64; their sums as integers of 2^-40, which add in any
//            order to the same bits. Gumbel noise and the last comparison in fp64.
// WORK       A CTA a row. A cut (the last token that is kept) is found by radix selection over 56-bit keys (logit, id),
//            8 bits a pass: 7 passes over the row for top_k and 7 for top_p.
// ROOFLINE   Memory: greedy reads 4 * vocab_size bytes a row once, 0.6 MB at 152,064. Not tuned: one SM a row.
// LIMITS     vocab_size < 2^24.
// TESTS      spate-conformance --backend cuda --filter sample
#include "backend/cuda/kernel/sample/sample.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/philox.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/sample/sort_key.h"

namespace spate::cuda {

constexpr int kRadixBits = 8;
constexpr int kRadixBins = 1 << kRadixBits;
constexpr uint32_t kSeenBit = 0x80000000u;      // beside the count of a token in the output
constexpr double kProbUnits = 1099511627776.0;  // 2^40

struct Row {
  const float* logits;
  RowSampling sampling;
  int num_tokens;        // drafts before this place included
  const uint32_t* mask;  // of the tokens that are allowed, or null
  int vocab_size;
  const int32_t* token_ids;
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* stop_ids;
};

__device__ inline float penalized(const RowSampling& s, float logit, uint32_t history) {
  const uint32_t output_count = history & ~kSeenBit;
  if (history != 0 && s.repetition_penalty != 1.0f) {
    logit = logit > 0.0f ? logit / s.repetition_penalty : logit * s.repetition_penalty;
  }
  if (output_count > 0) {
    logit -= s.frequency_penalty * static_cast<float>(output_count);
    logit -= s.presence_penalty;
  }
  return logit;
}

// Writes the row's logits after bias, mask and penalties to `adjusted`. The same memory holds the history of each token
// first: how often it stands in the output, and whether it stands anywhere.
__device__ inline void adjust_logits(const Row& row, float* adjusted) {
  __shared__ uint32_t bias_history[kMaxLogitBias];
  const RowSampling& s = row.sampling;
  uint32_t* history = reinterpret_cast<uint32_t*>(adjusted);
  for (int id = threadIdx.x; id < row.vocab_size; id += blockDim.x) history[id] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < row.num_tokens; i += blockDim.x) {
    const int id = row.token_ids[i];
    if (id < 0 || id >= row.vocab_size) continue;
    atomicOr(&history[id], kSeenBit);
    if (i >= s.prompt_len) atomicAdd(&history[id], 1u);
  }
  __syncthreads();
  // The biased tokens are few: keep their history, treat all tokens as unbiased, then write the biased ones again.
  for (int i = threadIdx.x; i < s.num_bias; i += blockDim.x) {
    const int id = row.bias_ids[i];
    bias_history[i] = id >= 0 && id < row.vocab_size ? history[id] : 0;
  }
  __syncthreads();
  for (int id = threadIdx.x; id < row.vocab_size; id += blockDim.x) {
    adjusted[id] = penalized(s, row.logits[id], history[id]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < s.num_bias; i += blockDim.x) {
    const int id = row.bias_ids[i];
    bool is_first = id >= 0 && id < row.vocab_size;
    for (int j = 0; j < i && is_first; ++j) is_first = row.bias_ids[j] != id;
    if (!is_first) continue;
    float logit = row.logits[id];
    for (int j = i; j < s.num_bias; ++j) {
      if (row.bias_ids[j] == id) logit += row.bias_values[j];
    }
    adjusted[id] = penalized(s, logit, bias_history[i]);
  }
  __syncthreads();
  if (row.mask != nullptr) {
    for (int id = threadIdx.x; id < row.vocab_size; id += blockDim.x) {
      if ((row.mask[id / 32] >> (id % 32) & 1) == 0) adjusted[id] = -kInfinity;
    }
  }
  if (row.num_tokens < s.min_tokens_until) {
    for (int i = threadIdx.x; i < s.num_stop_ids; i += blockDim.x) {
      const int id = row.stop_ids[i];
      if (id >= 0 && id < row.vocab_size) adjusted[id] = -kInfinity;
    }
  }
  __syncthreads();
}

__device__ inline bool needs_adjusting(const Row& row) {
  const RowSampling& s = row.sampling;
  return s.num_bias > 0 || row.mask != nullptr || (s.num_stop_ids > 0 && row.num_tokens < s.min_tokens_until) || s.repetition_penalty != 1.0f ||
         s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f;
}

__device__ inline int32_t argmax(const float* logits, int vocab_size) {
  uint64_t best = 0;
  for (int id = threadIdx.x; id < vocab_size; id += blockDim.x) best = Max()(best, token_key(logits[id], id));
  return token_of_key(block_reduce(best, Max()));
}

// The key at which the sum of weight(id, key) over tokens in descending order reaches `target`, of those with key >=
// lowest. Their sum is at least target, and target > 0.
template <typename Weight>
__device__ inline uint64_t select_cut(const Row& row, uint64_t lowest, uint64_t target, Weight weight) {
  __shared__ unsigned long long bins[kRadixBins];
  __shared__ uint64_t shared_prefix, shared_target;
  uint64_t prefix = 0;  // the digits found so far, at the top of the key
  for (int shift = kTokenKeyBits - kRadixBits; shift >= 0; shift -= kRadixBits) {
    for (int i = threadIdx.x; i < kRadixBins; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int id = threadIdx.x; id < row.vocab_size; id += blockDim.x) {
      const float logit = row.logits[id] / row.sampling.temperature;
      const uint64_t key = token_key(logit, id);
      if (key < lowest || key >> (shift + kRadixBits) != prefix >> (shift + kRadixBits)) continue;
      atomicAdd(&bins[key >> shift & (kRadixBins - 1)], static_cast<unsigned long long>(weight(logit)));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = kRadixBins - 1;
      uint64_t above = 0;
      for (; digit > 0 && above + bins[digit] < target; --digit) above += bins[digit];
      shared_target = target - above;
      shared_prefix = prefix | static_cast<uint64_t>(digit) << shift;
    }
    __syncthreads();
    prefix = shared_prefix;
    target = shared_target;
  }
  return prefix;
}

template <typename Value>
__device__ inline uint64_t sum_kept(const Row& row, uint64_t lowest, Value value) {
  uint64_t sum = 0;
  for (int id = threadIdx.x; id < row.vocab_size; id += blockDim.x) {
    const float logit = row.logits[id] / row.sampling.temperature;
    if (token_key(logit, id) >= lowest) sum += value(logit);
  }
  return block_reduce(sum, Sum());
}

// The key of the last token that min_p, top_k and top_p leave. first_id has the largest logit.
__device__ inline uint64_t find_cut(const Row& row, int32_t first_id) {
  const RowSampling& s = row.sampling;
  const float max_logit_float = row.logits[first_id] / s.temperature;
  const uint64_t best = token_key(max_logit_float, first_id);
  const double max_logit = max_logit_float;
  const auto prob = [&](float logit) { return exp(logit - max_logit); };

  uint64_t cut = 0;
  if (s.min_p > 0.0f) {
    cut = best;
    for (int id = threadIdx.x; id < row.vocab_size; id += blockDim.x) {
      const float logit = row.logits[id] / s.temperature;
      if (prob(logit) >= s.min_p) cut = min(cut, token_key(logit, id));
    }
    cut = ~block_reduce(~cut, Max());
  }
  const auto one = [](float) { return uint64_t{1}; };
  if (s.sampling_top_k > 0 && s.sampling_top_k < row.vocab_size &&
      sum_kept(row, cut, one) > static_cast<uint64_t>(s.sampling_top_k)) {
    cut = select_cut(row, cut, s.sampling_top_k, one);
  }
  if (s.top_p < 1.0f) {
    const auto units = [&](float logit) { return static_cast<uint64_t>(prob(logit) * kProbUnits); };
    const double reach = ceil(s.top_p * static_cast<double>(sum_kept(row, cut, units)));
    cut = select_cut(row, cut, reach < 1.0 ? uint64_t{1} : static_cast<uint64_t>(reach), units);
  }
  return cut;
}

__device__ inline double gumbel(const RowSampling& s, int num_tokens, int32_t id) {
  const PhiloxBlock block = philox4x32(s.seed, num_tokens, id / 4);
  const int word_idx = id % 4;
  const uint32_t word = word_idx == 0   ? block.words[0]
                        : word_idx == 1 ? block.words[1]
                        : word_idx == 2 ? block.words[2]
                                        : block.words[3];
  return -log(-log(static_cast<double>(uniform_open(word))));
}

__device__ inline const uint32_t* mask_of(const SampleKernelParams& p, int64_t logits_row) {
  const int mask_idx = p.sample_masks != nullptr ? p.sample_masks[logits_row] : -1;
  if (mask_idx < 0) return nullptr;
  const StepPlanHeader& plan = *reinterpret_cast<const StepPlanHeader*>(p.plan);
  const uint32_t* masks = reinterpret_cast<const uint32_t*>(p.plan + plan.masks_offset);
  return masks + static_cast<int64_t>(mask_idx) * plan.mask_words;
}

extern "C" __global__ void __launch_bounds__(kSampleThreads) sample(const __grid_constant__ SampleKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t logits_row = blockIdx.x;
  const int64_t state_row = p.sample_state_rows[logits_row];
  if (state_row < 0) {  // a dummy
    if (threadIdx.x == 0) p.next_token_ids[logits_row] = 0;
    return;
  }
  Row row{.logits = p.logits + logits_row * p.logits_stride,
          .sampling = *reinterpret_cast<const RowSampling*>(p.sampling + state_row * p.sampling_stride),
          .num_tokens = p.num_tokens[state_row] + (p.sample_offsets != nullptr ? p.sample_offsets[logits_row] : 0),
          .mask = mask_of(p, logits_row),
          .vocab_size = p.vocab_size,
          .token_ids = p.token_ids + state_row * p.token_ids_stride,
          .bias_ids = p.bias_ids + state_row * p.bias_ids_stride,
          .bias_values = p.bias_values + state_row * p.bias_values_stride,
          .stop_ids = p.stop_ids + state_row * p.stop_ids_stride};
  if (has_nan_or_inf(row.logits, row.vocab_size)) {
    if (threadIdx.x == 0) p.next_token_ids[logits_row] = kNoToken;
    return;
  }
  if (needs_adjusting(row)) {
    float* adjusted = p.adjusted + logits_row * p.vocab_size;
    adjust_logits(row, adjusted);
    row.logits = adjusted;
  }
  const int32_t first_id = argmax(row.logits, row.vocab_size);
  const bool none_left = row.logits[first_id] == -kInfinity;
  if (none_left || row.sampling.temperature == 0.0f) {
    if (threadIdx.x == 0) p.next_token_ids[logits_row] = none_left ? kNoToken : first_id;
    return;
  }

  const uint64_t cut = find_cut(row, first_id);
  Ranked<double> best{-kInfinity, row.vocab_size};
  for (int id = threadIdx.x; id < row.vocab_size; id += blockDim.x) {
    const float logit = row.logits[id] / row.sampling.temperature;
    if (token_key(logit, id) < cut) continue;
    best = First()(best, Ranked<double>{logit + gumbel(row.sampling, row.num_tokens, id), id});
  }
  best = block_reduce(best, First());
  if (threadIdx.x == 0) p.next_token_ids[logits_row] = best.id;
}

}  // namespace spate::cuda
