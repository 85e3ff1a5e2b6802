// How sample.cu and sample_cluster.cu choose the token of a row.
#pragma once

#include "backend/cuda/kernel/sample/sample.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/philox.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/sample/row_team.h"
#include "backend/cuda/kernel/sample/sort_key.h"

namespace spate::cuda {

constexpr int kRadixBits = 8;
constexpr int kRadixBins = 1 << kRadixBits;
constexpr uint32_t kSeenBit = 0x80000000u;      // beside the count of a token in the output
constexpr double kProbUnits = 1099511627776.0;  // 2^40

// What a pass of select_cut finds in a CTA's slice.
struct RadixPass {
  unsigned long long bins[kRadixBins];
  unsigned long long max_key;  // of the tokens that match the digits found so far
  unsigned int num_matches;
};

struct SampleMemory {
  TeamMemory team;
  RadixPass passes[2];
  uint64_t sums_of_warps[kRadixBins / kWarpSize];
  uint64_t above;
  int digit;
  uint32_t bias_history[kMaxLogitBias];
};

struct Row {
  const float* logits;
  RowSampling sampling;
  int num_tokens;        // drafts before this place included
  const uint32_t* mask;  // of the tokens that are allowed, or null
  int draft;             // that relaxed acceptance may keep, or -1
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

__device__ inline bool is_allowed(const Row& row, int id) {
  return row.mask == nullptr || (row.mask[id / 32] >> (id % 32) & 1) != 0;
}

// How often each token of the slice stands in the output, and whether it stands anywhere, in the memory of the slice's
// values.
__device__ inline uint32_t* count_history(const Row& row, const Slice& slice) {
  uint32_t* history = reinterpret_cast<uint32_t*>(slice.values);
  for (int i = threadIdx.x; i < slice.count; i += kSampleThreads) history[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < row.num_tokens; i += kSampleThreads) {
    const int id = row.token_ids[i];
    if (!slice.has(id)) continue;
    atomicOr(&history[id - slice.begin], kSeenBit);
    if (i >= row.sampling.prompt_len) atomicAdd(&history[id - slice.begin], 1u);
  }
  __syncthreads();
  return history;
}

// The slice's values become the row's logits after bias, mask and penalties. Returns whether this thread saw a NaN or
// +inf among the logits.
__device__ inline bool adjust_logits(const Row& row, const Slice& slice, uint32_t* bias_history) {
  const RowSampling& s = row.sampling;
  const uint32_t* history = count_history(row, slice);
  // The biased tokens are few: keep their history, treat all tokens as unbiased, then write the biased ones again.
  for (int i = threadIdx.x; i < s.num_bias; i += kSampleThreads) {
    const int id = row.bias_ids[i];
    bias_history[i] = slice.has(id) ? history[id - slice.begin] : 0;
  }
  __syncthreads();
  bool is_spoiled = false;
  for_logits(slice, [&](int i, float logit) {
    is_spoiled |= !(logit < kInfinity);
    slice.values[i] = is_allowed(row, slice.begin + i) ? penalized(s, logit, history[i]) : -kInfinity;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < s.num_bias; i += kSampleThreads) {
    const int id = row.bias_ids[i];
    bool is_first = slice.has(id);
    for (int j = 0; j < i && is_first; ++j) is_first = row.bias_ids[j] != id;
    if (!is_first) continue;
    float logit = row.logits[id];
    for (int j = i; j < s.num_bias; ++j) {
      if (row.bias_ids[j] == id) logit += row.bias_values[j];
    }
    slice.values[id - slice.begin] = is_allowed(row, id) ? penalized(s, logit, bias_history[i]) : -kInfinity;
  }
  __syncthreads();
  if (row.num_tokens < s.min_tokens_until) {
    for (int i = threadIdx.x; i < s.num_stop_ids; i += kSampleThreads) {
      const int id = row.stop_ids[i];
      if (slice.has(id)) slice.values[id - slice.begin] = -kInfinity;
    }
  }
  __syncthreads();
  return is_spoiled;
}

// Single tokens change beyond mask and penalties, so that their values are known behind a pass over the slice only.
__device__ inline bool needs_adjusting(const Row& row) {
  const RowSampling& s = row.sampling;
  return s.num_bias > 0 || (s.num_stop_ids > 0 && row.num_tokens < s.min_tokens_until);
}

__device__ inline bool has_penalties(const RowSampling& s) {
  return s.repetition_penalty != 1.0f || s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f;
}

// Adds the weights of a warp's tokens to their bins. All lanes call it. Where many lanes share few bins (is_crowded),
// the first four bins are summed in the warp: 64-bit atomics on one address would run one after the other.
__device__ inline void add_to_bins(unsigned long long* bins, bool is_in, int digit, uint64_t weight, bool is_crowded) {
  constexpr int kSummedBins = 4, kFewLanes = 4;
  const int lane = threadIdx.x % kWarpSize;
  uint32_t left = __ballot_sync(0xffffffffu, is_in);
  for (int round = 0; is_crowded && round < kSummedBins && __popc(left) > kFewLanes; ++round) {
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const int bin = __shfl_sync(0xffffffffu, digit, leader);
    const bool is_mine = is_in && digit == bin;
    const uint64_t sum = warp_reduce(is_mine ? weight : uint64_t{0}, Sum());
    if (lane == leader) atomicAdd(&bins[bin], static_cast<unsigned long long>(sum));
    left &= ~__ballot_sync(0xffffffffu, is_mine);
    is_in = is_in && !is_mine;
  }
  if (is_in) atomicAdd(&bins[digit], static_cast<unsigned long long>(weight));
}

// The key at which the sum of weight(value) over tokens in descending order reaches target_of(sum of all), of those
// with key >= lowest. The target is above 0 and at most the sum.
template <int kCtas, typename Target, typename Weight>
__device__ inline uint64_t select_cut(RowTeam<kCtas>& team, SampleMemory& memory, const Slice& slice, uint64_t lowest,
                                      Target target_of, Weight weight) {
  constexpr int kFirstShift = kTokenKeyBits - kRadixBits, kScanWarps = kRadixBins / kWarpSize;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize, warp = thread / kWarpSize;
  uint64_t prefix = 0, target = 0;  // the digits found so far, at the top of the key
  for (int shift = kFirstShift; shift >= 0; shift -= kRadixBits) {
    RadixPass& pass = memory.passes[team.next_copy()];
    if (thread < kRadixBins) pass.bins[thread] = 0;
    if (thread == 0) {
      pass.max_key = 0;
      pass.num_matches = 0;
    }
    __syncthreads();
    uint64_t max_key = 0;
    int num_matches = 0;
    for (int first = thread - lane; first < slice.count; first += kSampleThreads) {  // whole warps
      const int i = first + lane;
      const float value = i < slice.count ? slice.values[i] : 0.0f;
      const uint64_t key = token_key(value, slice.begin + i);
      const bool is_in = i < slice.count && key >= lowest && (key ^ prefix) >> (shift + kRadixBits) == 0;
      const int digit = static_cast<int>(key >> shift & (kRadixBins - 1));
      if (is_in) {
        ++num_matches;
        max_key = Max()(max_key, key);
      }
      add_to_bins(pass.bins, is_in, digit, is_in ? weight(value) : uint64_t{0}, shift == kFirstShift);
    }
    max_key = warp_reduce(max_key, Max());
    num_matches = warp_reduce(num_matches, Sum());
    if (lane == 0 && num_matches > 0) {
      atomicMax(&pass.max_key, static_cast<unsigned long long>(max_key));
      atomicAdd(&pass.num_matches, static_cast<unsigned int>(num_matches));
    }
    team.barrier();

    // Thread t has the bin of digit 255 - t: a scan over threads goes from the largest key down.
    uint64_t in_bin = 0, last_key = 0;
    unsigned int matches = 0;
#pragma unroll 2
    for (int cta = 0; cta < kCtas; ++cta) {
      const RadixPass* of_cta = team.of(&pass, cta);
      if (thread < kRadixBins) in_bin += of_cta->bins[kRadixBins - 1 - thread];
      matches += of_cta->num_matches;
      last_key = Max()(last_key, static_cast<uint64_t>(of_cta->max_key));
    }
    if (matches == 1) return last_key;
    uint64_t sum_so_far = in_bin;  // of this bin and those of larger keys
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const uint64_t earlier = __shfl_up_sync(0xffffffffu, sum_so_far, distance);
      if (lane >= distance) sum_so_far += earlier;
    }
    if (lane == kWarpSize - 1 && warp < kScanWarps) memory.sums_of_warps[warp] = sum_so_far;
    __syncthreads();
    uint64_t sum_of_all = 0;
    for (int w = 0; w < kScanWarps; ++w) {
      if (w < warp) sum_so_far += memory.sums_of_warps[w];
      sum_of_all += memory.sums_of_warps[w];
    }
    if (shift == kFirstShift) target = target_of(sum_of_all);
    const bool is_last = thread == kRadixBins - 1;
    if (thread < kRadixBins && sum_so_far - in_bin < target && (sum_so_far >= target || is_last)) {
      memory.digit = kRadixBins - 1 - thread;
      memory.above = sum_so_far - in_bin;
    }
    __syncthreads();
    prefix |= static_cast<uint64_t>(memory.digit) << shift;
    target -= memory.above;
  }
  return prefix;
}

// The key of the last token that min_p, top_k and top_p leave. `first` is the key of the largest value.
template <int kCtas>
__device__ inline uint64_t find_cut(RowTeam<kCtas>& team, SampleMemory& memory, const Row& row, const Slice& slice,
                                    uint64_t first) {
  const RowSampling& s = row.sampling;
  const double max_value = logit_of_key(first);
  const auto prob = [&](float value) { return exp(value - max_value); };

  uint64_t cut = 0;
  if (s.min_p > 0.0f) {
    cut = first;
    for_values(slice, [&](int id, float value) {
      if (prob(value) >= s.min_p) cut = min(cut, token_key(value, id));
    });
    cut = ~team.reduce(~cut, Max());
  }
  if (s.sampling_top_k > 0 && s.sampling_top_k < row.vocab_size) {
    int num_kept = row.vocab_size;
    if (cut > 0) {
      num_kept = 0;
      for_values(slice, [&](int id, float value) { num_kept += token_key(value, id) >= cut; });
      num_kept = team.reduce(num_kept, Sum());
    }
    if (num_kept > s.sampling_top_k) {
      const auto top_k = [&](uint64_t) { return static_cast<uint64_t>(s.sampling_top_k); };
      cut = select_cut(team, memory, slice, cut, top_k, [](float) { return uint64_t{1}; });
    }
  }
  if (s.top_p < 1.0f) {
    const auto reach_of = [&](uint64_t sum) {
      const double reach = ceil(s.top_p * static_cast<double>(sum));
      return reach < 1.0 ? uint64_t{1} : static_cast<uint64_t>(reach);
    };
    cut = select_cut(team, memory, slice, cut, reach_of,
                     [&](float value) { return static_cast<uint64_t>(prob(value) * kProbUnits); });
  }
  return cut;
}

__device__ inline double gumbel(uint32_t word) { return -log(-log(static_cast<double>(uniform_open(word)))); }
// Within 3e-6 of it.
__device__ inline double rough_gumbel(uint32_t word) { return -logf(-logf(uniform_open(word))); }

// Calls visit(id, value, noise) for each token of this thread with key >= cut; four neighbours share a block of noise.
template <typename Visit>
__device__ inline void for_kept(const Row& row, const Slice& slice, uint64_t cut, Visit visit) {
  for (int quad = 4 * static_cast<int>(threadIdx.x); quad < slice.count; quad += 4 * kSampleThreads) {
    bool is_kept[4];
    bool has_kept = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      is_kept[j] = quad + j < slice.count && token_key(slice.values[quad + j], slice.begin + quad + j) >= cut;
      has_kept |= is_kept[j];
    }
    if (!has_kept) continue;
    const PhiloxBlock noise = philox4x32(row.sampling.seed, row.num_tokens, (slice.begin + quad) / 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (is_kept[j]) visit(slice.begin + quad + j, slice.values[quad + j], noise.words[j]);
    }
  }
}

// The kept token with the largest value + gumbel.
template <int kCtas>
__device__ inline int32_t draw(RowTeam<kCtas>& team, const Row& row, const Slice& slice, uint64_t cut) {
  double rough_best = -kInfinity;
  for_kept(row, slice, cut,
           [&](int, float value, uint32_t noise) { rough_best = Max()(value + rough_gumbel(noise), rough_best); });
  const double rough_max = team.reduce(rough_best, Max());
  const double threshold = rough_max - (2e-4 + 1e-14 * fabs(rough_max));
  Ranked<double> best{-kInfinity, row.vocab_size};
  if (rough_best >= threshold) {
    for_kept(row, slice, cut, [&](int id, float value, uint32_t noise) {
      if (value + rough_gumbel(noise) >= threshold) best = First()(best, Ranked<double>{value + gumbel(noise), id});
    });
  }
  return team.reduce(best, First()).id;
}

__device__ inline const uint32_t* mask_of(const SampleKernelParams& p, int64_t logits_row) {
  const int mask_idx = p.sample_masks != nullptr ? p.sample_masks[logits_row] : -1;
  if (mask_idx < 0) return nullptr;
  const StepPlanHeader& plan = *reinterpret_cast<const StepPlanHeader*>(p.plan);
  const uint32_t* masks = reinterpret_cast<const uint32_t*>(p.plan + plan.masks_offset);
  return masks + static_cast<int64_t>(mask_idx) * plan.mask_words;
}

// Whether the draft takes the place of `chosen`. The slice has all values; `first` and `cut` are the keys of the
// largest value and of the last token that is kept. The same in all threads of all CTAs of the row.
template <int kCtas>
__device__ inline bool relaxes(RowTeam<kCtas>& team, const Row& row, const Slice& slice, uint64_t first, uint64_t cut,
                               int32_t chosen) {
  const RowSampling& s = row.sampling;
  if (row.draft < 0 || row.draft >= row.vocab_size || row.draft == chosen || chosen == s.relaxed_end_id) return false;
  for (int i = 0; i < s.num_stop_ids; ++i) {
    if (row.stop_ids[i] == chosen) return false;
  }
  const int place = row.draft - slice.begin;
  const bool is_owner = threadIdx.x == 0 && place >= 0 && place < slice.count;
  const uint64_t key = team.reduce(is_owner ? token_key(slice.values[place], row.draft) : uint64_t{0}, Max());
  if (key < cut || logit_of_key(key) == -kInfinity) return false;
  const double max_value = logit_of_key(first);
  const auto prob = [&](float value) { return exp(value - max_value); };
  int num_before = 0;
  uint64_t sum = 0;
  for_values(slice, [&](int id, float value) {
    num_before += token_key(value, id) > key;
    sum += static_cast<uint64_t>(prob(value) * kProbUnits);
  });
  num_before = team.reduce(num_before, Sum());
  sum = team.reduce(sum, Sum());
  if (num_before >= s.relaxed_top_k) return false;
  return (1.0 - prob(logit_of_key(key))) * kProbUnits <= s.relaxed_delta * static_cast<double>(sum);
}

struct Choice {
  int32_t token_id;
  bool is_relaxed;
};

// The same in all threads of all CTAs of the row.
template <int kCtas>
__device__ inline Choice choose(RowTeam<kCtas>& team, SampleMemory& memory, const Row& row, const Slice& slice) {
  const float temperature = row.sampling.temperature;
  const bool is_greedy = temperature == 0.0f;
  bool is_spoiled = false;
  uint64_t best = 0;
  if (needs_adjusting(row)) {
    is_spoiled = adjust_logits(row, slice, memory.bias_history);
    for_values(slice, [&](int id, float value) { best = Max()(best, token_key(value, id)); });
  } else {
    float best_logit = -kInfinity;
    int best_id = -1;
    const uint32_t* history = has_penalties(row.sampling) ? count_history(row, slice) : nullptr;
    for_logits(slice, [&](int i, float logit) {
      is_spoiled |= !(logit < kInfinity);
      if (!is_allowed(row, slice.begin + i)) {
        logit = -kInfinity;
      } else if (history != nullptr) {
        logit = penalized(row.sampling, logit, history[i]);
      }
      if (logit > best_logit) {
        best_logit = logit;
        best_id = slice.begin + i;
      }
      if (!is_greedy) {
        slice.values[i] = logit / temperature;
      } else if (row.draft >= 0) {
        slice.values[i] = logit;
      }
    });
    if (best_id >= 0) best = token_key(best_logit, best_id);
  }
  best = team.reduce(is_spoiled ? kSpoiledKey : best, Max());
  if (best == kSpoiledKey || best == 0 || logit_of_key(best) == -kInfinity) return {kNoToken, false};
  const auto choice_of = [&](int32_t chosen, uint64_t first, uint64_t cut) -> Choice {
    const bool is_relaxed = relaxes(team, row, slice, first, cut, chosen);
    return {is_relaxed ? row.draft : chosen, is_relaxed};
  };
  if (is_greedy) return choice_of(token_of_key(best), best, 0);
  if (needs_adjusting(row)) {
    for (int i = threadIdx.x; i < slice.count; i += kSampleThreads) slice.values[i] /= temperature;
    __syncthreads();
  }
  const uint64_t first = token_key(logit_of_key(best) / temperature, token_of_key(best));
  uint64_t cut = find_cut(team, memory, row, slice, first);
  // What a mask forbids is never drawn while there is another: no noise is made for it.
  if (logit_of_key(first) != -kInfinity) cut = Max()(cut, token_key(-kInfinity, 0) + 1);
  return choice_of(draw(team, row, slice, cut), first, cut);
}

// shared_slice: null where the values lie in the workspace.
template <int kCtas>
__device__ inline void sample_row(const SampleKernelParams& p, float* shared_slice) {
  __shared__ SampleMemory memory;
  let_dependents_launch();
  wait_for_inputs();
  const int64_t logits_row = blockIdx.x / kCtas;
  const int64_t state_row = p.sample_state_rows[logits_row];
  const bool is_writer = blockIdx.x % kCtas == 0 && threadIdx.x == 0;
  if (state_row < 0) {  // a dummy
    if (is_writer) p.next_token_ids[logits_row] = 0;
    if (is_writer && p.is_relaxed != nullptr) p.is_relaxed[logits_row] = 0;
    return;
  }
  const Row row{
      .logits = p.logits + logits_row * p.logits_stride,
      .sampling = *reinterpret_cast<const RowSampling*>(p.sampling + state_row * p.sampling_stride),
      .num_tokens = p.num_tokens[state_row] + (p.sample_offsets != nullptr ? p.sample_offsets[logits_row] : 0),
      .mask = mask_of(p, logits_row),
      .draft = p.sample_drafts != nullptr ? p.sample_drafts[logits_row] : -1,
      .vocab_size = p.vocab_size,
      .token_ids = p.token_ids + state_row * p.token_ids_stride,
      .bias_ids = p.bias_ids + state_row * p.bias_ids_stride,
      .bias_values = p.bias_values + state_row * p.bias_values_stride,
      .stop_ids = p.stop_ids + state_row * p.stop_ids_stride};
  Slice slice = slice_of<kCtas>(row.logits, p.vocab_size, shared_slice);
  if (shared_slice == nullptr) slice.values = p.values + logits_row * p.values_stride + slice.begin;
  RowTeam<kCtas> team(memory.team);
  const Choice choice = choose(team, memory, row, slice);
  if (is_writer) p.next_token_ids[logits_row] = choice.token_id;
  if (is_writer && p.is_relaxed != nullptr) p.is_relaxed[logits_row] = choice.is_relaxed ? 1 : 0;
  team.leave();
}

}  // namespace spate::cuda
