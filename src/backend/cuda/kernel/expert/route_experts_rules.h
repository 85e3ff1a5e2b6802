// ExpertRouting as kernels take it; for the host.
#pragma once

#include "backend/cuda/kernel/expert/route_experts.h"
#include "backend/ops.h"

namespace spate::cuda {

inline RoutingRules routing_rules(const RouteExpertsParams& p) {
  return {.bias = p.bias.defined() ? p.bias.data<float>() : nullptr,
          .num_experts = static_cast<int32_t>(p.logits.dim(1)),
          .num_experts_per_tok = static_cast<int32_t>(p.expert_ids.dim(1)),
          .num_groups = static_cast<int32_t>(p.routing.num_groups),
          .num_chosen_groups = static_cast<int32_t>(p.routing.num_chosen_groups),
          .is_sigmoid = p.routing.scores == ExpertScores::kSigmoid,
          .is_top2_sum = p.routing.group_scores == GroupScores::kTop2Sum,
          .normalises = p.routing.normalises,
          .min_sum = p.routing.min_sum,
          .scale = p.routing.scale};
}

}  // namespace spate::cuda
