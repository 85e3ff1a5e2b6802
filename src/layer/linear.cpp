#include "layer/linear.h"

#include "parallel/communicators.h"

namespace spate {

Result<Linear> Linear::column_parallel(ParameterFactory& factory, std::span<const LinearPart> parts,
                                       int64_t in_features, bool has_bias) {
  int64_t out_features = 0;
  std::vector<std::string> names;
  for (const LinearPart& part : parts) {
    out_features += part.rows.count;
    names.push_back(part.name + ".weight");
  }
  Linear linear;
  ASSIGN_OR_RETURN(linear.weight_, factory.matrix(ParameterFactory::Role::kLinear, names, out_features, in_features));
  if (has_bias) {
    ASSIGN_OR_RETURN(linear.bias_, factory.vector(out_features));
  }
  int64_t dst = 0;
  for (const LinearPart& part : parts) {
    factory.declare(WeightLoader::MatrixSlice{.name = part.name + ".weight",
                                              .full_rows = part.out_features,
                                              .full_columns = in_features,
                                              .rows = part.rows,
                                              .columns = {0, in_features},
                                              .weight = linear.weight_.get(),
                                              .dst_row = dst});
    factory.count_parameters(part.out_features * (in_features + (has_bias ? 1 : 0)));
    if (has_bias) {
      factory.declare(WeightLoader::VectorSlice{.name = part.name + ".bias",
                                                .full_size = part.out_features,
                                                .range = part.rows,
                                                .vector = linear.bias_.view,
                                                .dst = dst});
    }
    dst += part.rows.count;
  }
  return linear;
}

Result<Linear> Linear::row_parallel(ParameterFactory& factory, const std::string& name, int64_t out_features,
                                    int64_t in_features, bool has_bias) {
  const TensorParallel tp = factory.tp();
  const Range columns = even_share(in_features, tp);
  Linear linear;
  linear.sum_over_ranks_ = tp.size > 1;
  const std::string names[] = {name + ".weight"};
  ASSIGN_OR_RETURN(linear.weight_, factory.matrix(ParameterFactory::Role::kLinear, names, out_features, columns.count));
  factory.declare(WeightLoader::MatrixSlice{.name = name + ".weight",
                                            .full_rows = out_features,
                                            .full_columns = in_features,
                                            .rows = {0, out_features},
                                            .columns = columns,
                                            .weight = linear.weight_.get()});
  factory.count_parameters(out_features * (in_features + (has_bias ? 1 : 0)));
  if (!has_bias) return linear;
  // The sum over the ranks must hold the bias once: rank 0 adds it.
  if (tp.rank != 0) {
    factory.ignore(name + ".bias");
    return linear;
  }
  ASSIGN_OR_RETURN(linear.bias_, factory.vector(out_features));
  factory.declare(WeightLoader::VectorSlice{
      .name = name + ".bias", .full_size = out_features, .range = {0, out_features}, .vector = linear.bias_.view});
  return linear;
}

Result<Linear> Linear::replicated(ParameterFactory& factory, const std::string& name, int64_t out_features,
                                  int64_t in_features) {
  Linear linear;
  const std::string names[] = {name + ".weight"};
  ASSIGN_OR_RETURN(linear.weight_, factory.matrix(ParameterFactory::Role::kRouter, names, out_features, in_features));
  factory.declare(WeightLoader::MatrixSlice{.name = names[0],
                                            .full_rows = out_features,
                                            .full_columns = in_features,
                                            .rows = {0, out_features},
                                            .columns = {0, in_features},
                                            .weight = linear.weight_.get()});
  factory.count_parameters(out_features * in_features);
  return linear;
}

void Linear::forward_of_rank(const StepContext& ctx, const Tensor& x, const Tensor& out) const {
  ctx.ops.linear(ctx.stream, {.x = x, .weight = weight_.get(), .bias = bias_.view, .out = out});
}

void Linear::forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const {
  forward_of_rank(ctx, x, out);
  if (sum_over_ranks_) static_cast<void>(ctx.communicators.tp->all_reduce_sum(ctx.stream, out));
}

}  // namespace spate
