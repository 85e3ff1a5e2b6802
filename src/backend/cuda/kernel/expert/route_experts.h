#pragma once

#include <cstdint>

namespace spate::cuda {

constexpr int kRouteWarps = 4;
constexpr int kRouteMaxExperts = 1024;

// ExpertRouting for the device.
struct RoutingRules {
  const float* bias;  // [num_experts], or null
  int32_t num_experts;
  int32_t num_experts_per_tok;
  int32_t num_groups;
  int32_t num_chosen_groups;
  int32_t is_sigmoid;
  int32_t is_top2_sum;
  int32_t normalises;
  float min_sum;
  float scale;
};

struct RouteExpertsKernelParams {
  RoutingRules rules;
  const float* logits;    // [num_tokens, num_experts]
  int32_t* expert_ids;    // [num_tokens, num_experts_per_tok]
  float* expert_weights;  // [num_tokens, num_experts_per_tok]
  int64_t logits_stride;  // elements
  int64_t ids_stride;
  int64_t weights_stride;
  int32_t num_tokens;
};

}  // namespace spate::cuda
