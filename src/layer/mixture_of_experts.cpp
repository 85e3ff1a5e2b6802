#include "layer/mixture_of_experts.h"

#include "parallel/communicators.h"

namespace spate {
namespace {

// Where a matrix of an expert lies in the checkpoint.
struct ExpertTensor {
  std::string name;
  int64_t full_rows = 0;  // of the tensor, or of each of its matrices
  int64_t first_row = 0;  // of this matrix in those
  int64_t full_matrices = 0, src_matrix = 0;
};

// Names the tensors of expert matrices, in either layout.
class ExpertTensors {
 public:
  ExpertTensors(const MixtureOfExpertsSpec& spec, const ParameterFactory& factory)
      : spec_(spec), is_fused_(factory.checkpoint_has(spec.name + ".experts.gate_up_proj")) {}

  ExpertTensor gate(int64_t expert) const { return gate_or_up(expert, spec_.gate_proj, 0); }
  ExpertTensor up(int64_t expert) const { return gate_or_up(expert, spec_.up_proj, spec_.intermediate_size); }
  ExpertTensor down(int64_t expert) const {
    if (is_fused_) return {spec_.name + ".experts.down_proj", spec_.hidden_size, 0, spec_.num_experts, expert};
    return {own_name(expert, spec_.down_proj), spec_.hidden_size};
  }

 private:
  std::string own_name(int64_t expert, const std::string& matrix) const {
    return fmt::format("{}.experts.{}.{}.weight", spec_.name, expert, matrix);
  }
  ExpertTensor gate_or_up(int64_t expert, const std::string& matrix, int64_t first_row) const {
    if (!is_fused_) return {own_name(expert, matrix), spec_.intermediate_size};
    return {spec_.name + ".experts.gate_up_proj", 2 * spec_.intermediate_size, first_row, spec_.num_experts, expert};
  }

  const MixtureOfExpertsSpec& spec_;
  const bool is_fused_;
};

}  // namespace

Result<std::unique_ptr<FeedForward>> MixtureOfExperts::create(ParameterFactory& factory,
                                                              const MixtureOfExpertsSpec& spec) {
  ASSIGN_OR_RETURN(Linear router, Linear::replicated(factory, spec.name + ".gate", spec.num_experts, spec.hidden_size));
  std::unique_ptr<MixtureOfExperts> part(new MixtureOfExperts(spec, std::move(router)));
  part->sum_over_ranks_ = factory.tp().size > 1;
  if (!spec.correction_bias.empty()) {
    ASSIGN_OR_RETURN(part->correction_bias_, factory.vector(spec.num_experts, DType::kF32));
    factory.count_parameters(spec.num_experts);
    factory.declare(WeightLoader::VectorSlice{.name = spec.correction_bias,
                                              .full_size = spec.num_experts,
                                              .range = {0, spec.num_experts},
                                              .vector = part->correction_bias_.view,
                                              .is_row = spec.correction_bias_is_row});
  }
  RETURN_IF_ERROR(part->make_experts(factory));
  RETURN_IF_ERROR(part->make_shared(factory));
  return std::unique_ptr<FeedForward>(std::move(part));
}

Status MixtureOfExperts::make_experts(ParameterFactory& factory) {
  const ExpertTensors tensors(spec_, factory);
  const Range share = even_share(spec_.intermediate_size, factory.tp()), hidden{0, spec_.hidden_size};
  std::vector<std::string> gate_up_names, down_names;
  for (int64_t e = 0; e < spec_.num_experts; ++e) {
    gate_up_names.push_back(tensors.gate(e).name);
    gate_up_names.push_back(tensors.up(e).name);
    down_names.push_back(tensors.down(e).name);
  }
  constexpr auto kRole = ParameterFactory::Role::kLinear;
  ASSIGN_OR_RETURN(gate_up_,
                   factory.matrix(kRole, gate_up_names, 2 * share.count, spec_.hidden_size, spec_.num_experts));
  ASSIGN_OR_RETURN(down_, factory.matrix(kRole, down_names, spec_.hidden_size, share.count, spec_.num_experts));
  for (int64_t e = 0; e < spec_.num_experts; ++e) {
    const auto declare = [&](const ExpertTensor& tensor, PackedWeight* weight, Range rows, Range columns,
                             int64_t full_columns, int64_t dst_row) {
      factory.declare(WeightLoader::MatrixSlice{.name = tensor.name,
                                                .full_rows = tensor.full_rows,
                                                .full_columns = full_columns,
                                                .rows = {tensor.first_row + rows.begin, rows.count},
                                                .columns = columns,
                                                .weight = weight,
                                                .dst_row = dst_row,
                                                .dst_matrix = e,
                                                .full_matrices = tensor.full_matrices,
                                                .src_matrix = tensor.src_matrix});
    };
    declare(tensors.gate(e), gate_up_.get(), share, hidden, spec_.hidden_size, 0);
    declare(tensors.up(e), gate_up_.get(), share, hidden, spec_.hidden_size, share.count);
    declare(tensors.down(e), down_.get(), hidden, share, spec_.intermediate_size, 0);
  }
  factory.count_parameters(3 * spec_.num_experts * spec_.intermediate_size * spec_.hidden_size);
  return ok_status();
}

Status MixtureOfExperts::make_shared(ParameterFactory& factory) {
  if (spec_.shared_name.empty()) return ok_status();
  ASSIGN_OR_RETURN(Mlp shared, Mlp::make(factory, spec_.name + "." + spec_.shared_name, spec_.hidden_size,
                                         spec_.shared_intermediate_size, false));
  shared_.emplace(std::move(shared));
  if (!spec_.has_shared_gate) return ok_status();
  ASSIGN_OR_RETURN(Linear gate, Linear::replicated(factory, spec_.name + ".shared_expert_gate", 1, spec_.hidden_size));
  shared_gate_.emplace(std::move(gate));
  return ok_status();
}

void MixtureOfExperts::take_workspace(Arena& arena) {
  logits_ = arena.take_rows(DType::kF32, spec_.num_experts);
  expert_ids_ = arena.take_rows(DType::kI32, spec_.num_experts_per_tok);
  expert_weights_ = arena.take_rows(DType::kF32, spec_.num_experts_per_tok);
  if (!shared_) return;
  shared_out_ = arena.take_activations(spec_.hidden_size);
  if (shared_gate_) shared_scale_ = arena.take_rows(DType::kF32, 1);
  shared_->take_workspace(arena);
}

void MixtureOfExperts::list_products(const std::string& norm, std::vector<Product>& products) const {
  const size_t first = products.size();
  if (shared_) shared_->list_products(norm, products);
  for (int64_t e = 0; e < spec_.num_experts; ++e) {
    const std::string name = fmt::format("{}.experts.{}.", spec_.name, e);
    products.push_back({.matrices = {{name + spec_.gate_proj}, {name + spec_.up_proj}},
                        .weight = gate_up_.get(),
                        .expert = e,
                        .source = norm,
                        .source_is_norm = true});
    products.push_back(
        {.matrices = {{name + spec_.down_proj}}, .weight = down_.get(), .expert = e, .source = name + spec_.up_proj});
  }
  // The norm feeds the router and all experts.
  for (size_t i = first; i < products.size(); ++i) {
    if (products[i].source_is_norm) products[i].source.clear();
    products[i].source_is_norm = false;
  }
}

ExpertMlpParams MixtureOfExperts::start_experts(const StepContext& ctx, const Tensor& x, const Tensor& out) const {
  const auto rows = [&](const Tensor& scratch) { return scratch.defined() ? scratch.rows(0, x.dim(0)) : Tensor(); };
  const Tensor logits = rows(logits_), ids = rows(expert_ids_), weights = rows(expert_weights_);
  const Tensor shared = rows(shared_out_), shared_scale = rows(shared_scale_);
  router_.forward(ctx, x, logits);
  ctx.ops.route_experts(ctx.stream, {.logits = logits,
                                     .bias = correction_bias_.view,
                                     .routing = spec_.routing,
                                     .expert_ids = ids,
                                     .expert_weights = weights});
  if (shared_) shared_->forward_of_rank(ctx, x, shared);
  if (shared_gate_) shared_gate_->forward(ctx, x, shared_scale);
  return {.x = x,
          .expert_ids = ids,
          .expert_weights = weights,
          .gate_up = gate_up_.get(),
          .down = down_.get(),
          .shared = shared,
          .shared_gate = shared_scale,
          .out = out};
}

void MixtureOfExperts::put_products(ExpertLayerProductsParams& params, int64_t num_tokens) const {
  params.router = &router_.weight();
  params.route = {.logits = logits_.rows(0, num_tokens),
                  .bias = correction_bias_.view,
                  .routing = spec_.routing,
                  .expert_ids = expert_ids_.rows(0, num_tokens),
                  .expert_weights = expert_weights_.rows(0, num_tokens)};
  params.gate_up = gate_up_.get();
  params.down = down_.get();
  if (!shared_) return;
  shared_->put_products(params.shared, num_tokens);
  params.shared.out = shared_out_.rows(0, num_tokens);
}

void MixtureOfExperts::forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const {
  ctx.ops.expert_mlp(ctx.stream, start_experts(ctx, x, out));
  if (sum_over_ranks_) static_cast<void>(ctx.communicators.tp->all_reduce_sum(ctx.stream, out));
}

void MixtureOfExperts::forward_with_norms(const StepContext& ctx, const NormsAround& norms, const Tensor& x,
                                          const Tensor& residual) const {
  if (norms.next == nullptr || sum_over_ranks_) return FeedForward::forward_with_norms(ctx, norms, x, residual);
  norms.own.add_forward(ctx, x, residual, x, x_reader());
  ctx.ops.expert_mlp_add_norm(ctx.stream, {.experts = start_experts(ctx, x, x),
                                           .norm = {.x = x,
                                                    .residual = residual,
                                                    .weight = norms.next->weight(),
                                                    .eps = norms.next->eps(),
                                                    .out = x,
                                                    .reader = norms.next_reader}});
}

}  // namespace spate
