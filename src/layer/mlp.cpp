#include "layer/mlp.h"

namespace spate {

Result<Mlp> Mlp::make(ParameterFactory& factory, const std::string& name, int64_t hidden_size,
                      int64_t intermediate_size, bool has_bias) {
  const Range share = even_share(intermediate_size, factory.tp());
  const LinearPart parts[] = {{name + ".gate_proj", intermediate_size, share},
                              {name + ".up_proj", intermediate_size, share}};
  ASSIGN_OR_RETURN(Linear gate_up_proj, Linear::column_parallel(factory, parts, hidden_size, has_bias));
  ASSIGN_OR_RETURN(Linear down_proj,
                   Linear::row_parallel(factory, name + ".down_proj", hidden_size, intermediate_size, has_bias));
  return Mlp(name, std::move(gate_up_proj), std::move(down_proj), share.count);
}

Result<std::unique_ptr<FeedForward>> Mlp::create(ParameterFactory& factory, const std::string& name,
                                                 int64_t hidden_size, int64_t intermediate_size, bool has_bias) {
  ASSIGN_OR_RETURN(Mlp mlp, make(factory, name, hidden_size, intermediate_size, has_bias));
  return std::unique_ptr<FeedForward>(std::make_unique<Mlp>(std::move(mlp)));
}

void Mlp::take_workspace(Arena& arena) {
  gate_up_ = arena.take_contiguous(2 * width_);
  act_ = arena.take_activations(width_);
}

void Mlp::list_products(const std::string& norm, std::vector<Product>& products) const {
  products.push_back({.matrices = {{name_ + ".gate_proj"}, {name_ + ".up_proj"}},
                      .weight = &gate_up_proj_.weight(),
                      .source = norm,
                      .source_is_norm = true});
  products.push_back(
      {.matrices = {{name_ + ".down_proj"}}, .weight = &down_proj_.weight(), .source = name_ + ".up_proj"});
}

Tensor Mlp::activations(const StepContext& ctx, const Tensor& x) const {
  const Tensor act = act_.rows(0, x.dim(0));
  ctx.ops.linear_silu_and_mul(ctx.stream, {.x = x,
                                           .weight = &gate_up_proj_.weight(),
                                           .bias = gate_up_proj_.bias(),
                                           .gate_up = gate_up_.rows(0, x.dim(0)),
                                           .out = act,
                                           .reader = &down_proj_.weight()});
  return act;
}

void Mlp::forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const {
  down_proj_.forward(ctx, activations(ctx, x), out);
}

void Mlp::forward_of_rank(const StepContext& ctx, const Tensor& x, const Tensor& out) const {
  down_proj_.forward_of_rank(ctx, activations(ctx, x), out);
}

}  // namespace spate
