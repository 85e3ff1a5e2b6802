#include "layer/mlp.h"

namespace spate {

Result<Mlp> Mlp::create(ParameterFactory& factory, const std::string& name, int64_t hidden_size,
                        int64_t intermediate_size, bool has_bias) {
  const Range share = even_share(intermediate_size, factory.tp());
  const LinearPart parts[] = {{name + ".gate_proj", intermediate_size, share},
                              {name + ".up_proj", intermediate_size, share}};
  ASSIGN_OR_RETURN(Linear gate_up_proj, Linear::column_parallel(factory, parts, hidden_size, has_bias));
  ASSIGN_OR_RETURN(Linear down_proj,
                   Linear::row_parallel(factory, name + ".down_proj", hidden_size, intermediate_size, has_bias));
  return Mlp(std::move(gate_up_proj), std::move(down_proj), share.count);
}

void Mlp::forward(const StepContext& ctx, const Tensor& x, const Tensor& gate_up, const Tensor& act,
                  const Tensor& out) const {
  ctx.ops.linear_silu_and_mul(
      ctx.stream,
      {.x = x, .weight = &gate_up_proj_.weight(), .bias = gate_up_proj_.bias(), .gate_up = gate_up, .out = act});
  down_proj_.forward(ctx, act, out);
}

}  // namespace spate
