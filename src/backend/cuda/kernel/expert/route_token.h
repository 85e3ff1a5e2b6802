// The experts of a token, chosen by one warp that has its logits in registers: the formulas of ExpertRouting
// (backend/ops.h), for all kernels that route.
#pragma once

#include "backend/cuda/kernel/expert/route_experts.h"
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

// Of the scores of the chosen experts, whose sum is `sum`.
__device__ inline float routing_factor(const RoutingRules& rules, float sum) {
  return rules.normalises ? rules.scale / (sum < rules.min_sum ? rules.min_sum : sum) : rules.scale;
}

// What a warp needs in shared memory where a token may only choose among some groups.
template <int kPerLane>
struct GroupScratch {
  uint32_t keys[kPerLane * kWarpSize], group_keys[kPerLane * kWarpSize];
};

// Lane l has experts l, l + 32, ...: `values` are their logits, then their scores.
template <int kPerLane>
class TokenRouter {
 public:
  __device__ TokenRouter(const RoutingRules& rules, float (&values)[kPerLane])
      : r_(rules), scores_(values), lane_(static_cast<int>(threadIdx.x) % kWarpSize) {
    make_scores();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = lane_ + i * kWarpSize;
      const bool exists = expert < r_.num_experts;
      keys_[i] = exists ? order_key(r_.bias != nullptr ? scores_[i] + r_.bias[expert] : scores_[i]) : kTaken;
    }
  }

  __device__ uint32_t key(int i) const { return keys_[i]; }  // of the lane's i-th expert

  // Takes the experts of all but the best groups out of the choice.
  __device__ void keep_best_groups(GroupScratch<kPerLane>& scratch) {
    const int num_groups = r_.num_groups, size = r_.num_experts / num_groups;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) scratch.keys[lane_ + i * kWarpSize] = keys_[i];
    __syncwarp();
    for (int g = lane_; g < num_groups; g += kWarpSize) {
      float first = -kInfinity, second = -kInfinity;
      for (int i = 0; i < size; ++i) {
        const float choice = choice_of(scratch.keys[g * size + (i + g) % size]);  // lanes read different banks
        second = fmaxf(second, fminf(first, choice));
        first = fmaxf(first, choice);
      }
      scratch.group_keys[g] = order_key(r_.is_top2_sum ? first + second : first);
    }
    __syncwarp();
    Best mine = best_group(scratch);
    for (int i = 0; i < r_.num_chosen_groups; ++i) {
      const int group = winner(mine);
      if (group == mine.idx) {
        scratch.group_keys[group] = kTaken;
        mine = best_group(scratch);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = lane_ + i * kWarpSize;
      if (expert < r_.num_experts && scratch.group_keys[expert / size] != kTaken) keys_[i] = kTaken;
    }
  }

  // ids and weights: [num_experts_per_tok] of the token. The sum of the chosen scores is added by falling choice.
  __device__ void choose(int32_t* ids, float* weights) {
    const int k = r_.num_experts_per_tok;
    int id[2] = {};  // the lane-th and the (lane + 32)-th
    float score[2] = {}, best_score, sum = 0.0f;
    Best mine = best_expert(best_score);
    for (int i = 0; i < k; ++i) {
      const int expert = winner(mine);
      const float its_score = __shfl_sync(kAllLanes, best_score, expert % kWarpSize);
      if (expert == mine.idx) {
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) {
          if (expert == lane_ + j * kWarpSize) keys_[j] = kTaken;
        }
        mine = best_expert(best_score);
      }
      if (i % kWarpSize == lane_) {
        const int half = i / kWarpSize;
        id[0] = half == 0 ? expert : id[0];
        id[1] = half == 1 ? expert : id[1];
        score[0] = half == 0 ? its_score : score[0];
        score[1] = half == 1 ? its_score : score[1];
      }
      sum += its_score;
    }
    const float factor = routing_factor(r_, sum);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane_ + half * kWarpSize;
      if (i >= k) continue;
      ids[i] = id[half];
      weights[i] = score[half] * factor;
    }
  }

 private:
  struct Best {
    uint32_t key;
    int idx;
  };

  __device__ void make_scores() {
    const int n = r_.num_experts;
    if (r_.is_sigmoid) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) scores_[i] = 1.0f / (1.0f + expf(-scores_[i]));
      return;
    }
    float largest = -kInfinity, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) largest = lane_ + i * kWarpSize < n ? fmaxf(largest, scores_[i]) : largest;
    largest = warp_reduce(largest, Max());
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      scores_[i] = lane_ + i * kWarpSize < n ? expf(scores_[i] - largest) : 0.0f;
      sum += scores_[i];
    }
    sum = warp_reduce(sum, Sum());
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) scores_[i] /= sum;
  }

  // Of the lane: the largest key, of equal ones the first, and its score.
  __device__ Best best_expert(float& score) const {
    Best best{kTaken, r_.num_experts + kWarpSize};
    score = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys_[i] <= best.key) continue;
      best = {keys_[i], lane_ + i * kWarpSize};
      score = scores_[i];
    }
    return best;
  }
  __device__ Best best_group(const GroupScratch<kPerLane>& scratch) const {
    Best best{kTaken, r_.num_groups + kWarpSize};
    for (int g = lane_; g < r_.num_groups; g += kWarpSize) {
      if (scratch.group_keys[g] > best.key) best = {scratch.group_keys[g], g};
    }
    return best;
  }
  // The largest of the lanes' bests, of equal ones that of the smallest index.
  __device__ static int winner(const Best& mine) {
    const uint32_t largest = __reduce_max_sync(kAllLanes, mine.key);
    return static_cast<int>(__reduce_min_sync(kAllLanes, mine.key == largest ? static_cast<uint32_t>(mine.idx) : ~0u));
  }

  const RoutingRules& r_;
  float (&scores_)[kPerLane];
  uint32_t keys_[kPerLane];
  const int lane_;
};

}  // namespace spate::cuda
