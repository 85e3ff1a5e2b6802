#include "layer/rms_norm.h"

namespace spate {

Result<RmsNorm> RmsNorm::create(ParameterFactory& factory, const std::string& name, int64_t size, double eps) {
  RmsNorm norm;
  norm.name_ = name;
  norm.eps_ = static_cast<float>(eps);
  ASSIGN_OR_RETURN(norm.weight_, factory.vector(size));
  factory.count_parameters(size);
  factory.declare(WeightLoader::VectorSlice{.name = name + ".weight",
                                            .full_size = size,
                                            .range = {0, size},
                                            .vector = norm.weight_.view,
                                            .dummy_value = 1.0f});
  return norm;
}

void RmsNorm::forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const {
  ctx.ops.rms_norm(ctx.stream, {.x = x, .weight = weight_.view, .eps = eps_, .out = out});
}

void RmsNorm::add_forward(const StepContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& out,
                          const PackedWeight* reader) const {
  ctx.ops.add_rms_norm(
      ctx.stream, {.x = x, .residual = residual, .weight = weight_.view, .eps = eps_, .out = out, .reader = reader});
}

}  // namespace spate
