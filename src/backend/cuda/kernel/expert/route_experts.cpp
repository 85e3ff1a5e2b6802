#include "backend/cuda/kernel/expert/route_experts.h"

#include <algorithm>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/kernel/expert/expert_order.h"
#include "backend/cuda/kernel/expert/route_experts_rules.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {

namespace {

// Above the first waiting CTAs cost decode of 128 sequences 1.7 %. From the second on the router's product takes 10 us
// and has one CTA an SM: those that wait take no room from it.
constexpr int64_t kEarlyTokens = 64, kRouterPlacedTokens = 1024;

}  // namespace

int64_t CudaDevice::max_experts() const { return std::min(kRouteMaxExperts, kOrderMaxExperts); }

void route_experts(Stream& stream, const RouteExpertsParams& p) {
  check_params(p);
  const int64_t num_tokens = p.logits.dim(0), num_experts = p.logits.dim(1);
  if (num_tokens == 0) return;
  CHECK(num_experts <= kRouteMaxExperts, "route_experts: {} experts exceed {}", num_experts, kRouteMaxExperts);
  const RouteExpertsKernelParams params{
      .rules = routing_rules(p),
      .logits = p.logits.data<float>(),
      .expert_ids = p.expert_ids.data<int32_t>(),
      .expert_weights = p.expert_weights.data<float>(),
      .logits_stride = p.logits.stride(0),
      .ids_stride = p.expert_ids.stride(0),
      .weights_stride = p.expert_weights.stride(0),
      .num_tokens = static_cast<int32_t>(num_tokens),
  };
  const KernelId kernel = num_experts <= 128   ? kernel_id("route_experts_128")
                          : num_experts <= 256 ? kernel_id("route_experts_256")
                                               : kernel_id("route_experts_1024");
  launch(stream, kernel,
         {.x = ceil_div(num_tokens, kRouteWarps),
          .num_threads = 32 * kRouteWarps,
          .is_early = num_tokens <= kEarlyTokens || num_tokens >= kRouterPlacedTokens},
         params,
         {{"num_tokens", num_tokens}, {"num_experts", num_experts}, {"num_experts_per_tok", p.expert_ids.dim(1)}});
}

}  // namespace spate::cuda
