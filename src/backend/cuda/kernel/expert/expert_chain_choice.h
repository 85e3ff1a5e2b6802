// expert_chain.cu: the router's product, a part of that of o, and the choice of experts.
#pragma once

#include "backend/cuda/kernel/expert/expert_chain_steps.h"
#include "backend/cuda/kernel/expert/route_token.h"
#include "backend/cuda/kernel/primitive/grid_barrier.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

// Of the rows of o that this CTA has, a multiple of 8, what lies at `first`: the norm's weights, the residual.
__device__ inline int o_place(const ExpertChainKernelParams& p, const ChainRange& o, int first) {
  const int begin = o.begin * p.phases[kChainO].group_step, end = o.end * p.phases[kChainO].group_step;
  return first < begin || first >= end ? -1 : first - begin;
}
template <typename Format>
__device__ inline void put_o_norm(const ExpertChainKernelParams& p, int first, ExpertChainShared<Format>& shared) {
  const int at = o_place(p, shared.ranges[kChainO], first);
  if (at < 0) return;
  const Piece<Bf16> norm = load_constant_piece(static_cast<const Bf16*>(p.post_norm), first, p.hidden_size, true);
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) shared.o_norm[at + i] = value_of(norm, i);
}
template <typename Format>
__device__ inline void put_o_residual(const ExpertChainKernelParams& p, const Piece<Bf16>& residual, int first,
                                      ExpertChainShared<Format>& shared) {
  const int at = o_place(p, shared.ranges[kChainO], first);
  if (at < 0) return;
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) shared.o_residual[at + i] = value_of(residual, i);
}

// What the rows of o that this CTA has add to the logits. A thread has an expert; those of the first warp have none, as
// they finish o meanwhile. The router's columns wait in shared memory, behind the sums of o.
class RouterRows {
 public:
  static_assert(kExpertChainMaxExperts <= kThreads - kWarpSize);

  template <typename Format>
  __device__ RouterRows(const ExpertChainKernelParams& p, ExpertChainShared<Format>& shared)
      : expert_(static_cast<int>(threadIdx.x) - kWarpSize), num_rows_(num_rows_of(p, shared)) {
    rows_ = shared_address(shared.sums[kExpertChainMaxORows / 8]) + static_cast<uint32_t>(expert_ * num_rows_) * 2;
    if (expert_ < 0 || expert_ >= p.rules.num_experts) num_rows_ = 0;
  }
  // A part of the copies that are committed next.
  template <typename Format>
  __device__ void copy(const ExpertChainKernelParams& p, const ExpertChainShared<Format>& shared) const {
    const int first = shared.ranges[kChainO].begin * p.phases[kChainO].group_step;
    const char* from = p.router + expert_ * p.router_row_bytes + first * 2;
#pragma unroll 1
    for (int i = 0; i < num_rows_ * 2; i += 16) copy_async_16(rows_ + i, from + i, true);
  }
  __device__ void add(const ExpertChainKernelParams& p, const float* rows) const {
    if (num_rows_ == 0) return;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < num_rows_; i += kPieceElems) {
      const uint4 four = load_shared_16(rows_ + i * 2);
      const Piece<Bf16> piece = {{four.x, four.y, four.z, four.w}};
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) sum = __fmaf_rn(value_of(piece, j), rows[i + j], sum);
    }
    const long long units = __float2ll_rn(sum * kExpertChainLogitUnits);
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p.logit_sums + expert_), "l"(units) : "memory");
  }

 private:
  template <typename Format>
  __device__ static int num_rows_of(const ExpertChainKernelParams& p, const ExpertChainShared<Format>& shared) {
    return (shared.ranges[kChainO].end - shared.ranges[kChainO].begin) * p.phases[kChainO].group_step;
  }
  int expert_, num_rows_;
  uint32_t rows_;
};

// The choice of a CTA, in shared memory. Keys order the experts; where they are those of the logits, scores of the
// chosen ones alone are made, by the sum of all that one warp makes meanwhile.
struct ExpertChoice {
  static constexpr int kMax = kExpertChainMaxExperts;
  float logits[kMax], scores[kMax];  // logits: in units, before the norm
  alignas(16) uint32_t keys[kMax];
  float largest, sum;  // of the logits times 1 / rms; of the exponentials below it
};
static_assert(sizeof(ExpertChoice) <= kExpertChainMaxGroups * kWarps * 16 * 4);

__device__ inline bool is_by_logits(const RoutingRules& rules) { return !rules.is_sigmoid && rules.bias == nullptr; }

// Before a barrier of the CTA.
__device__ inline void put_logit(const ExpertChainKernelParams& p, ExpertChoice& choice) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= ExpertChoice::kMax) return;
  uint32_t key = kTaken;
  if (thread < p.rules.num_experts) {
    const float logit = __ll2float_rn(static_cast<long long>(load_fresh(p.logit_sums + thread)));
    choice.logits[thread] = logit;
    key = order_key(logit);
  }
  choice.keys[thread] = key;
}

// Of one warp: scores and the keys that they give.
__device__ inline void put_scores(const RoutingRules& rules, float inv_rms, ExpertChoice& choice) {
  constexpr int kPerLane = ExpertChoice::kMax / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float values[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + i * kWarpSize;
    values[i] = expert < rules.num_experts ? choice.logits[expert] * (1.0f / kExpertChainLogitUnits) * inv_rms : 0.0f;
  }
  const TokenRouter<kPerLane> router(rules, values);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    choice.scores[lane + i * kWarpSize] = values[i];
    choice.keys[lane + i * kWarpSize] = router.key(i);
  }
}

// Of one warp.
__device__ inline void put_sum(const RoutingRules& rules, float inv_rms, ExpertChoice& choice) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float factor = (1.0f / kExpertChainLogitUnits) * inv_rms;
  float largest = -kInfinity, sum = 0.0f;
#pragma unroll 1
  for (int i = lane; i < rules.num_experts; i += kWarpSize) largest = fmaxf(largest, choice.logits[i] * factor);
  largest = warp_reduce(largest, Max());
#pragma unroll 1
  for (int i = lane; i < rules.num_experts; i += kWarpSize) sum += expf(choice.logits[i] * factor - largest);
  sum = warp_reduce(sum, Sum());
  if (lane == 0) {
    choice.largest = largest;
    choice.sum = sum;
  }
}

// As TokenRouter::choose(), by the ranks of all experts at once, four threads each: those that come before it are
// larger, or as large with a lower number. All threads call it; a barrier of the CTA follows.
__device__ inline void put_chosen(const RoutingRules& rules, const ExpertChoice& choice, int32_t* ids) {
  constexpr int kShares = 4;
  const int share = static_cast<int>(threadIdx.x) % kShares;
#pragma unroll 1
  for (int first = 0; first < rules.num_experts; first += kThreads / kShares) {
    const int expert = first + static_cast<int>(threadIdx.x) / kShares;
    const uint32_t own = expert < rules.num_experts ? choice.keys[expert] : 0xffffffffu;
    int rank = 0;
#pragma unroll 2
    for (int i = 4 * share; i < rules.num_experts; i += 4 * kShares) {
      const uint4 four = *reinterpret_cast<const uint4*>(choice.keys + i);
      rank += four.x > own - (i < expert);
      rank += four.y > own - (i + 1 < expert);
      rank += four.z > own - (i + 2 < expert);
      rank += four.w > own - (i + 3 < expert);
    }
#pragma unroll
    for (int mask = 1; mask < kShares; mask *= 2) rank += shuffle_xor(rank, mask);
    if (share == 0 && expert < rules.num_experts && rank < rules.num_experts_per_tok) ids[rank] = expert;
  }
}

// Of one warp: the weights of the chosen experts and of the shared one behind them.
__device__ inline void put_weights(const RoutingRules& rules, float inv_rms, const ExpertChoice& choice,
                                   const int32_t* ids, float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, k = rules.num_experts_per_tok;
  float score = 0.0f, sum = 0.0f;
  if (lane < k) {
    const int id = ids[lane];
    const float factor = (1.0f / kExpertChainLogitUnits) * inv_rms;
    score = is_by_logits(rules) ? expf(choice.logits[id] * factor - choice.largest) / choice.sum : choice.scores[id];
  }
  for (int i = 0; i < k; ++i) sum += __shfl_sync(kAllLanes, score, i);
  if (lane < k) weights[lane] = score * routing_factor(rules, sum);
  if (lane == k) weights[k] = 1.0f;
}

}  // namespace spate::cuda
