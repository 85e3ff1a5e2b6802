// WHAT       The experts of each token and their weights, from the router's logits: scores, bias, groups, top-k,
//            normalisation in one launch. The formulas are those of ExpertRouting (backend/ops.h).
// SHAPES     logits [num_tokens, num_experts] f32; bias [num_experts] f32 or null; expert_ids, expert_weights
//            [num_tokens, num_experts_per_tok] i32, f32. Row strides free.
// NUMERICS   f32. The order of each sum depends on the shape only.
// WORK       A warp a token; scores and choices of a token lie in shared memory, lane l has experts l, l + 32, ... The
//            next expert is the largest key over the warp: each lane keeps its own best, and only the lane that gave
//            the last one looks again.
// ROOFLINE   Latency: 8 bytes a token and expert.
// LIMITS     num_experts <= 1,024.
// TESTS      spate-conformance --backend cuda --filter route_experts
#include "backend/cuda/kernel/expert/route_experts.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr uint32_t kTaken = 0;  // a key below that of every number

// Unsigned order as that of the numbers, a NaN among the largest.
__device__ inline uint32_t order_key(float choice) {
  if (choice != choice) choice = kInfinity;
  const uint32_t bits = __float_as_uint(choice + 0.0f);  // -0 becomes 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The number of a key.
__device__ inline float choice_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

struct Best {
  uint32_t key;
  int idx;
};

// Of keys lane, lane + 32, ... below n: the largest, of equal ones the first.
__device__ inline Best best_of_lane(const uint32_t* keys, int n, int lane) {
  Best best{kTaken, n};
  for (int i = lane; i < n; i += kWarpSize) {
    if (keys[i] > best.key) best = {keys[i], i};
  }
  return best;
}

// Takes the largest key out, of equal ones that of the smallest index, and returns the index. `mine` is the lane's best.
__device__ inline int take_largest(uint32_t* keys, int n, int lane, Best& mine) {
  const uint32_t largest = __reduce_max_sync(kAllLanes, mine.key);
  const int idx =
      static_cast<int>(__reduce_min_sync(kAllLanes, mine.key == largest ? static_cast<uint32_t>(mine.idx) : ~0u));
  if (idx == mine.idx) {
    keys[idx] = kTaken;
    mine = best_of_lane(keys, n, lane);
  }
  return idx;
}

// The scores of a token.
__device__ inline void make_scores(const RouteExpertsKernelParams& p, int token, int lane, float* scores) {
  const float* logits = p.logits + token * p.logits_stride;
  const int n = p.num_experts;
  if (p.is_sigmoid) {
    for (int e = lane; e < n; e += kWarpSize) scores[e] = 1.0f / (1.0f + expf(-logits[e]));
    return;
  }
  float largest = -kInfinity, sum = 0.0f;
  for (int e = lane; e < n; e += kWarpSize) {
    scores[e] = logits[e];
    largest = fmaxf(largest, scores[e]);
  }
  largest = warp_reduce(largest, Max());
  for (int e = lane; e < n; e += kWarpSize) {
    scores[e] = expf(scores[e] - largest);
    sum += scores[e];
  }
  sum = warp_reduce(sum, Sum());
  for (int e = lane; e < n; e += kWarpSize) scores[e] /= sum;
}

// Takes the experts of all but the best groups out of the choice. Lane l has groups l, l + 32, ...
__device__ inline void keep_best_groups(const RouteExpertsKernelParams& p, int lane, uint32_t* keys,
                                        uint32_t* group_keys) {
  const int size = p.num_experts / p.num_groups;
  for (int g = lane; g < p.num_groups; g += kWarpSize) {
    float first = -kInfinity, second = -kInfinity;
    for (int i = 0; i < size; ++i) {
      const float choice = choice_of(keys[g * size + (i + g) % size]);  // lanes read different banks
      second = fmaxf(second, fminf(first, choice));
      first = fmaxf(first, choice);
    }
    group_keys[g] = order_key(p.is_top2_sum ? first + second : first);
  }
  __syncwarp();
  Best mine = best_of_lane(group_keys, p.num_groups, lane);
  for (int i = 0; i < p.num_chosen_groups; ++i) take_largest(group_keys, p.num_groups, lane, mine);
  __syncwarp();
  for (int e = lane; e < p.num_experts; e += kWarpSize) {
    if (group_keys[e / size] != kTaken) keys[e] = kTaken;
  }
  __syncwarp();
}

extern "C" __global__ void __launch_bounds__(kRouteWarps* kWarpSize)
    route_experts(const __grid_constant__ RouteExpertsKernelParams p) {
  __shared__ float all_scores[kRouteWarps][kRouteMaxExperts];
  __shared__ uint32_t all_keys[kRouteWarps][kRouteMaxExperts], all_group_keys[kRouteWarps][kRouteMaxExperts];
  let_dependents_launch();
  wait_for_inputs();
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int token = static_cast<int>(blockIdx.x) * kRouteWarps + warp;
  if (token >= p.num_tokens) return;
  float* scores = all_scores[warp];
  uint32_t* keys = all_keys[warp];
  make_scores(p, token, lane, scores);
  for (int e = lane; e < p.num_experts; e += kWarpSize) {
    keys[e] = order_key(p.bias != nullptr ? scores[e] + p.bias[e] : scores[e]);
  }
  __syncwarp();
  if (p.num_chosen_groups < p.num_groups) keep_best_groups(p, lane, keys, all_group_keys[warp]);

  const int k = p.num_experts_per_tok;
  int32_t* ids = p.expert_ids + token * p.ids_stride;
  float* weights = p.expert_weights + token * p.weights_stride;
  int first = 0, second = 0;  // lane l keeps the l-th and the (l + 32)-th
  float sum = 0.0f;
  Best mine = best_of_lane(keys, p.num_experts, lane);
  for (int i = 0; i < k; ++i) {
    const int expert = take_largest(keys, p.num_experts, lane, mine);
    if (i == lane) first = expert;
    if (i == lane + kWarpSize) second = expert;
    sum += scores[expert];
  }
  const float factor = p.normalises ? p.scale / (sum < p.min_sum ? p.min_sum : sum) : p.scale;
  for (int i = lane; i < k; i += kWarpSize) {
    const int expert = i < kWarpSize ? first : second;
    ids[i] = expert;
    weights[i] = scores[expert] * factor;
  }
}

}  // namespace spate::cuda
