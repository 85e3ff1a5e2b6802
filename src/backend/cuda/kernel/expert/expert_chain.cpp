#include "backend/cuda/kernel/expert/expert_chain.h"

#include <optional>

#include "backend/cuda/integer_scratch.h"
#include "backend/cuda/kernel/expert/route_experts_rules.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

// How a product uses its matrices, of which `num_chosen` count: those of gate_up follow each other in rows, those of
// down in k.
struct ExpertChainShape {
  ExpertChainProduct product;
  int64_t num_chosen = 1;
  bool is_int4 = false;  // the kernel's format
};

bool has_ups(ExpertChainProduct product) { return product == kChainGateUp || product == kChainSharedGateUp; }

// Phases without what all have in common: rows a CTA takes at once and how it walks along k.
std::optional<ExpertChainPhase> bf16_phase(const PackedWeight& weight, int64_t rows, const ExpertChainShape& shape,
                                           int num_sms) {
  const WeightDesc& desc = weight.desc();
  if (desc.spec.codes != Codes::kBf16) return std::nullopt;
  const bool is_gate_up = has_ups(shape.product);
  const int64_t row_bytes = weight_row_stride(desc) * 2;
  const int64_t k = (shape.product == kChainDown ? shape.num_chosen : 1) * desc.in_features;
  // 8 rows by 128 of k, where 16 rows by 64 share out badly.
  const auto rows_of_cta = [&](int64_t group) { return ceil_div(rows / group, num_sms) * group; };
  const bool is_narrow = !is_gate_up && desc.in_features % 128 == 0 && k / 128 >= kExpertChainWarps &&
                         (rows % 16 != 0 || rows_of_cta(8) < rows_of_cta(16));
  const bool has_8_rows = is_gate_up || is_narrow;
  return ExpertChainPhase{.row_bytes = row_bytes,
                          .pair_bytes = is_narrow ? 128 : (is_gate_up ? rows : 8) * row_bytes,
                          .group_step = has_8_rows ? 8 : 16,
                          .step_bytes = is_narrow ? 256 : 128,
                          .step_width = is_narrow ? 128 : 64};
}

std::optional<ExpertChainPhase> int4_phase(const PackedWeight& weight, int64_t rows, const ExpertChainShape& shape) {
  const WeightSpec& spec = weight.desc().spec;
  if (!spec.has_integer_codes() || !is_integer_kernel_spec(spec)) return std::nullopt;
  const IntegerLayout layout = integer_layout(weight.desc());
  if (layout.num_multipliers != 2) return std::nullopt;
  const bool is_gate_up = has_ups(shape.product);
  return ExpertChainPhase{.tile_bytes = layout.num_steps * layout.chunk_bytes(),
                          .scales_offset = layout.scales_offset,
                          .group_step = is_gate_up ? 8 : 16,
                          .pair_rows = static_cast<int32_t>(is_gate_up ? rows : 8),
                          .step_bytes = static_cast<int32_t>(layout.chunk_bytes()),
                          .step_width = kIntegerTileK};
}

// A product of the chain; none if the kernel does not run its shape.
std::optional<ExpertChainPhase> chain_phase(const PackedWeight& weight, const Tensor& bias, void* out, int num_sms,
                                            const ExpertChainShape& shape) {
  const WeightDesc& desc = weight.desc();
  const bool is_gate_up = has_ups(shape.product);
  const int64_t num_in_rows = shape.product == kChainGateUp ? shape.num_chosen : 1;
  const int64_t num_in_k = shape.product == kChainDown ? shape.num_chosen : 1;
  const int64_t rows = is_gate_up ? desc.out_features / 2 : desc.out_features;
  std::optional<ExpertChainPhase> phase =
      shape.is_int4 ? int4_phase(weight, rows, shape) : bf16_phase(weight, rows, shape, num_sms);
  if (!phase || rows % phase->group_step != 0 || desc.in_features % phase->step_width != 0) return std::nullopt;
  phase->weight = weight.matrix(0);
  phase->bias = bias.defined() ? bias.raw() : nullptr;
  phase->out = out;
  phase->matrix_bytes = static_cast<int64_t>(weight.matrix_bytes());
  phase->groups_of_matrix = static_cast<int32_t>(rows / phase->group_step);
  phase->num_groups = phase->groups_of_matrix * static_cast<int32_t>(num_in_rows);
  phase->steps_of_matrix = static_cast<int32_t>(desc.in_features / phase->step_width);
  phase->num_steps = phase->steps_of_matrix * static_cast<int32_t>(num_in_k);
  const int64_t groups_of_cta = ceil_div(phase->num_groups, num_sms);
  const bool fits = phase->num_steps >= kExpertChainWarps && groups_of_cta <= kExpertChainMaxGroups &&
                    !(shape.is_int4 && shape.product == kChainDown && groups_of_cta * 16 > kExpertChainMaxDownRows) &&
                    !(shape.product == kChainO && groups_of_cta * phase->group_step > kExpertChainMaxORows);
  return fits ? phase : std::nullopt;
}

// Adds what the shared expert has of k to `down`. Both walk through rows alike.
bool join_shared_down(ExpertChainPhase& down, const ExpertChainPhase& shared) {
  if (shared.step_width != down.step_width || shared.group_step != down.group_step) return false;
  down.num_steps += shared.num_steps;
  return true;
}

bool run_expert_chain(Stream& stream, const ExpertLayerProductsParams& p) {
  CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t hidden_size = p.residual.dim(1), num_chosen = p.route.expert_ids.dim(1);
  const SharedExpertParams& shared = p.shared;
  const int64_t num_experts = p.gate_up->desc().num_matrices, experts_width = num_chosen * p.down->desc().in_features;
  const int64_t act_width = experts_width + (shared.gate_up == nullptr ? 0 : shared.down->desc().in_features);
  const bool is_int4 = p.gate_up->desc().spec.has_integer_codes();
  const bool has_shared = shared.gate_up != nullptr;
  const KernelId kernel = is_int4 ? has_shared ? kernel_id("expert_chain_shared_int4") : kernel_id("expert_chain_int4")
                          : has_shared ? kernel_id("expert_chain_shared_bf16")
                                       : kernel_id("expert_chain_bf16");
  if (!device.joins_layer_products(p.x.dim(0)) || !device.has(kernel) || p.x.dtype() != DType::kBf16 ||
      hidden_size > kExpertChainMaxHidden || p.heads.dim(1) > kExpertChainMaxWidth ||
      act_width > (has_shared ? kExpertChainMaxSharedWidth : kExpertChainMaxWidth) ||
      num_experts > kExpertChainMaxExperts || num_chosen >= kExpertChainMaxChosen || shared.gate_up_bias.defined() ||
      shared.down_bias.defined() || p.route.routing.num_chosen_groups < p.route.routing.num_groups ||
      !are_rows_aligned({&p.residual, &p.post_norm, &p.heads, &p.x}) ||
      (p.qkv != nullptr && !are_rows_aligned({&p.next_norm}))) {
    return false;
  }
  const WeightDesc& router = p.router->desc();
  if (router.spec.codes != Codes::kBf16) return false;
  char* act = static_cast<char*>(device.workspace(static_cast<size_t>(act_width) * 2));
  ExpertChainKernelParams params{.phases = {},
                                 .num_phases = p.qkv == nullptr ? kChainQkv : kExpertChainProducts,
                                 .hidden_size = static_cast<int32_t>(hidden_size),
                                 .heads_width = static_cast<int32_t>(p.heads.dim(1)),
                                 .act_width = static_cast<int32_t>(act_width),
                                 .rules = routing_rules(p.route),
                                 .router = p.router->matrix(0),
                                 .router_row_bytes = weight_row_stride(router) * 2,
                                 .logit_sums = device.logit_sums(),
                                 .heads = p.heads.raw(),
                                 .x = p.x.raw(),
                                 .post_norm = p.post_norm.raw(),
                                 .next_norm = p.qkv == nullptr ? nullptr : p.next_norm.raw(),
                                 .post_eps = p.post_eps,
                                 .next_eps = p.next_eps,
                                 .residual = p.residual.raw(),
                                 .num_arrived = device.grid_arrivals()};
  const auto put = [&](ExpertChainProduct product, const PackedWeight& weight, const Tensor& bias, void* out) {
    const std::optional<ExpertChainPhase> phase = chain_phase(
        weight, bias, out, device.num_sms(), {.product = product, .num_chosen = num_chosen, .is_int4 = is_int4});
    if (phase) params.phases[product] = *phase;
    return phase.has_value();
  };
  if (!put(kChainO, *p.o, p.o_bias, p.x.raw()) || !put(kChainGateUp, *p.gate_up, Tensor(), act) ||
      !put(kChainDown, *p.down, Tensor(), p.x.raw()) ||
      (p.qkv != nullptr && !put(kChainQkv, *p.qkv, p.qkv_bias, p.qkv_out.raw()))) {
    return false;
  }
  if (has_shared && (!put(kChainSharedGateUp, *shared.gate_up, Tensor(), act + experts_width * 2) ||
                     !put(kChainSharedDown, *shared.down, Tensor(), p.x.raw()) ||
                     !join_shared_down(params.phases[kChainDown], params.phases[kChainSharedDown]))) {
    return false;
  }
  const ExpertChainPhase& o = params.phases[kChainO];
  if (ceil_div(o.num_groups, device.num_sms()) * o.group_step * 2 * num_experts > kExpertChainMaxRouterBytes)
    return false;
  launch(stream, kernel, {.x = device.num_sms(), .num_threads = 32 * kExpertChainWarps, .launches_late = true}, params,
         {{"hidden_size", hidden_size}, {"act_width", act_width}, {"num_phases", params.num_phases}});
  return true;
}

}  // namespace

void CudaDevice::layer_products(Stream& stream, const ExpertLayerProductsParams& p) {
  check_params(p);
  if (!run_expert_chain(stream, p)) decomposed_layer_products(stream, p);
}

}  // namespace spate::cuda
