// WHAT       The experts of each token and their weights, from the router's logits: scores, bias, groups, top-k,
//            normalisation in one launch. The formulas are those of ExpertRouting (backend/ops.h).
// SHAPES     logits [num_tokens, num_experts] f32; bias [num_experts] f32 or null; expert_ids, expert_weights
//            [num_tokens, num_experts_per_tok] i32, f32. Row strides free.
// NUMERICS   f32. The order of each sum depends on the shape only.
// WORK       A warp a token, scores and choices in registers, lane l has experts l, l + 32, ... The next expert is the
//            largest key over the warp: each lane keeps its own best, and only the lane that gave the last one looks
//            again (route_token.h).
// ROOFLINE   Latency: 8 bytes a token and expert.
// WARM       0.9 s: experts
// LIMITS     num_experts <= 1,024.
// TESTS      spate-conformance --backend cuda --filter route_experts
#include "backend/cuda/kernel/expert/route_token.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

template <int kPerLane>
__device__ inline void route_experts(const RouteExpertsKernelParams& p) {
  __shared__ GroupScratch<kPerLane> scratch[kRouteWarps];
  let_dependents_launch();
  wait_for_inputs();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int token = static_cast<int>(blockIdx.x) * kRouteWarps + warp;
  if (token >= p.num_tokens) return;
  const float* logits = p.logits + token * p.logits_stride;
  float values[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + i * kWarpSize;
    values[i] = expert < p.rules.num_experts ? logits[expert] : 0.0f;
  }
  TokenRouter<kPerLane> router(p.rules, values);
  if (p.rules.num_chosen_groups < p.rules.num_groups) router.keep_best_groups(scratch[warp]);
  router.choose(p.expert_ids + token * p.ids_stride, p.expert_weights + token * p.weights_stride);
}

#define SPATE_ROUTE_EXPERTS(experts)                                                \
  extern "C" __global__ void __launch_bounds__(kRouteWarps* kWarpSize)              \
      route_experts_##experts(const __grid_constant__ RouteExpertsKernelParams p) { \
    route_experts<experts / kWarpSize>(p);                                          \
  }
SPATE_ROUTE_EXPERTS(128)
SPATE_ROUTE_EXPERTS(256)
SPATE_ROUTE_EXPERTS(1024)

}  // namespace spate::cuda
