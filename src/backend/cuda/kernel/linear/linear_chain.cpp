#include "backend/cuda/kernel/linear/linear_chain.h"

#include <optional>

#include "backend/cuda/integer_scratch.h"
#include "backend/cuda/kernel/row_alignment.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

bool can_join(const CudaDevice& device, int64_t num_tokens) {
  return num_tokens == 1 && device.has_grid_barriers() && device.has(kernel_id("linear_chain_bf16"));
}

struct ChainFormat {
  KernelId kernel;
  int step_width;  // elements of k
  int group_rows;
};

// Where all products have the same format, one that the kernel knows.
std::optional<ChainFormat> format_of(const LayerProductsParams& p) {
  const WeightSpec& spec = p.o->desc().spec;
  for (const PackedWeight* weight : {p.gate_up, p.down, p.qkv}) {
    if (weight != nullptr && weight->desc().spec != spec) return std::nullopt;
  }
  if (!spec.has_integer_codes()) {
    if (spec.codes != Codes::kBf16) return std::nullopt;
    return ChainFormat{kernel_id("linear_chain_bf16"), 64, 16};
  }
  if (!is_integer_kernel_spec(spec)) return std::nullopt;
  switch (integer_layout(p.o->desc()).num_multipliers) {
    case 0:
      return ChainFormat{kernel_id("linear_chain_int8"), 128, 16};
    case 2:
      return ChainFormat{kernel_id("linear_chain_int4"), 128, 32};
    default:
      return ChainFormat{kernel_id("linear_chain_int4_g32"), 128, 32};
  }
}

// A product of the chain; none if the kernel does not run its shape.
std::optional<ChainPhase> phase_of(const PackedWeight& weight, const Tensor& bias, const Tensor& x, const Tensor& out,
                                   const ChainFormat& format, int num_sms, bool has_silu) {
  const WeightDesc& desc = weight.desc();
  const bool is_integer = desc.spec.has_integer_codes();
  ChainPhase phase{.weight = weight.matrix(0),
                   .bias = bias.defined() ? bias.raw() : nullptr,
                   .x = x.raw(),
                   .norm = nullptr,
                   .out = out.raw(),
                   .layout = {},
                   .row_bytes = weight_row_stride(desc) * 2,
                   .num_groups = static_cast<int32_t>(desc.out_features / format.group_rows),
                   .group_step = has_silu ? format.group_rows / 2 : format.group_rows,
                   .pair_step = has_silu ? static_cast<int32_t>(desc.out_features / 2) : format.group_rows / 2,
                   .has_silu = has_silu,
                   .eps = 0};
  if (is_integer) {
    phase.layout = integer_layout(desc);
    phase.row_bytes = phase.layout.row_bytes();
  } else {
    phase.layout.num_rows = static_cast<int32_t>(desc.out_features);
    phase.layout.width = static_cast<int32_t>(desc.in_features);
    phase.layout.num_steps = static_cast<int32_t>(desc.in_features / format.step_width);
    phase.layout.matrix_bytes = desc.out_features * phase.row_bytes;
  }
  const bool fits = desc.out_features % format.group_rows == 0 && desc.in_features % format.step_width == 0 &&
                    desc.in_features <= kChainMaxWidth && phase.layout.num_steps >= kChainWarps &&
                    ceil_div(phase.num_groups, num_sms) * format.group_rows <= 16 * kChainMaxGroups &&
                    phase.layout.matrix_bytes <= INT32_MAX && are_rows_aligned({&x});
  if (!fits) return std::nullopt;
  return phase;
}

bool run_chain(Stream& stream, const LayerProductsParams& p) {
  const CudaDevice& device = static_cast<CudaStream&>(stream).cuda_device();
  const int64_t hidden_size = p.residual.dim(1);
  if (!can_join(device, p.x.dim(0)) || p.x.dtype() != DType::kBf16 || hidden_size < kChainMinHidden ||
      hidden_size > kChainMaxHidden || !are_rows_aligned({&p.residual, &p.post_norm}) ||
      (p.qkv != nullptr && !are_rows_aligned({&p.next_norm}))) {
    return false;
  }
  const std::optional<ChainFormat> format = format_of(p);
  if (!format || !device.has(format->kernel)) return false;
  LinearChainKernelParams params{.phases = {},
                                 .num_phases = p.qkv == nullptr ? 3 : 4,
                                 .residual = p.residual.raw(),
                                 .num_arrived = device.grid_arrivals()};
  const auto put = [&](int i, const PackedWeight* weight, const Tensor& bias, const Tensor& x, const Tensor& out) {
    const std::optional<ChainPhase> phase = phase_of(*weight, bias, x, out, *format, device.num_sms(), i == 1);
    if (phase) params.phases[i] = *phase;
    return phase.has_value();
  };
  if (!put(0, p.o, p.o_bias, p.heads, p.x) || !put(1, p.gate_up, p.gate_up_bias, p.x, p.act) ||
      !put(2, p.down, p.down_bias, p.act, p.x)) {
    return false;
  }
  params.phases[1].norm = p.post_norm.raw();
  params.phases[1].eps = p.post_eps;
  if (p.qkv != nullptr) {
    if (!put(3, p.qkv, p.qkv_bias, p.x, p.qkv_out)) return false;
    params.phases[3].norm = p.next_norm.raw();
    params.phases[3].eps = p.next_eps;
  }
  launch(stream, format->kernel, {.x = device.num_sms(), .num_threads = 32 * kChainWarps}, params,
         {{"hidden_size", hidden_size}, {"intermediate_size", p.act.dim(1)}, {"num_phases", params.num_phases}});
  return true;
}

}  // namespace

bool CudaDevice::joins_layer_products(int64_t num_tokens) const { return can_join(*this, num_tokens); }

void CudaDevice::layer_products(Stream& stream, const LayerProductsParams& p) {
  check_params(p);
  if (!run_chain(stream, p)) decomposed_layer_products(stream, p);
}

}  // namespace spate::cuda
