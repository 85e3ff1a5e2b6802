#include "model/decoder.h"

#include <algorithm>
#include <iterator>

#include "backend/layer_products.h"
#include "layer/mixture_of_experts.h"
#include "layer/mlp.h"
#include "model/part_factory.h"

namespace spate {
namespace {

// This rank computes all of the layer, and a device can join its products. An Mlp is whole where its attention is.
bool can_join(const DecoderLayer& layer) {
  const auto* experts = dynamic_cast<const MixtureOfExperts*>(layer.mlp.get());
  return layer.self_attn->is_whole() && (experts == nullptr || experts->can_join());
}

// The step's layers run by layer_products(). Not where the device's products have been replaced in the op table:
// somebody wants to see what they read.
bool joins_layer_products(const StepContext& ctx, const std::vector<DecoderLayer>& layers) {
  Device& device = ctx.stream.device();
  const LayerProductsDevice* joining = layer_products_device(device);
  return joining != nullptr && joining->joins_layer_products(ctx.batch.num_tokens()) &&
         ctx.ops.linear == device.ops().linear && ctx.ops.expert_mlp == device.ops().expert_mlp &&
         std::ranges::all_of(layers, can_join);
}

// The products of layer i, and of the next one's qkv.
template <typename Params>
void join_products(const StepContext& ctx, const std::vector<DecoderLayer>& layers, size_t i, const auto& feed_forward,
                   const Tensor& residual, const Tensor& x) {
  const int64_t num_tokens = x.dim(0);
  Params params;
  params.residual = residual;
  params.x = x;
  params.post_norm = layers[i].post_attention_layernorm.weight();
  params.post_eps = layers[i].post_attention_layernorm.eps();
  const LinearParams o = layers[i].self_attn->last_product(num_tokens);
  params.heads = o.x;
  params.o = o.weight;
  params.o_bias = o.bias;
  feed_forward.put_products(params, num_tokens);
  if (i + 1 < layers.size()) {
    params.next_norm = layers[i + 1].input_layernorm.weight();
    params.next_eps = layers[i + 1].input_layernorm.eps();
    const LinearParams qkv = layers[i + 1].self_attn->first_product(num_tokens);
    params.qkv = qkv.weight;
    params.qkv_bias = qkv.bias;
    params.qkv_out = qkv.out;
  }
  layer_products_device(ctx.stream.device())->layer_products(ctx.stream, params);
}

// All layers after the first norm, which gave x. What they give is residual + x.
void run_joined(const StepContext& ctx, const std::vector<DecoderLayer>& layers, const Tensor& residual,
                const Tensor& x) {
  layers.front().self_attn->project(ctx, x);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].self_attn->attend(ctx, ctx.kv[i]);
    const FeedForward* feed_forward = layers[i].mlp.get();
    if (const auto* experts = dynamic_cast<const MixtureOfExperts*>(feed_forward)) {
      join_products<ExpertLayerProductsParams>(ctx, layers, i, *experts, residual, x);
    } else {
      join_products<LayerProductsParams>(ctx, layers, i, dynamic_cast<const Mlp&>(*feed_forward), residual, x);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::create(const ModelFamily& family, const ModelConfig& config, Device* device,
                                                 TensorParallel tp, const ModelOptions& options) {
  std::unique_ptr<Decoder> model(new Decoder(config, device, options));
  model->loader_ = std::make_unique<WeightLoader>(device);
  ParameterFactory parameters(device, model->loader_.get(), tp,
                              {.act_dtype = options.act_dtype,
                               .quantization = options.quantization,
                               .source = options.source,
                               .supports = options.supports_weight});
  parameters.ignore("*.rotary_emb.inv_freq");  // a constant that old checkpoints store; it is computed here
  ASSIGN_OR_RETURN(model->parts_, family.make(PartFactory(config, parameters, options)));
  if (std::ssize(model->parts_.mtp) != options.num_mtp_layers) {
    return unimplemented("{}: {} layers for multi-token prediction are wanted; config.json has {} that can be run",
                         config.architecture, options.num_mtp_layers, model->parts_.mtp.size());
  }
  const auto kv_layer_of = [&](const DecoderLayer& layer) {
    KvLayerDesc kv_layer = layer.self_attn->kv_layer();
    kv_layer.kv_block_size = options.limits.kv_block_size;
    kv_layer.dtype = options.kv_dtype;
    return kv_layer;
  };
  for (const DecoderLayer& layer : model->parts_.layers) model->kv_layers_.push_back(kv_layer_of(layer));
  for (const MtpModule& module : model->parts_.mtp) model->mtp_kv_layers_.push_back(kv_layer_of(module.layer));
  model->num_parameters_ = parameters.num_parameters();
  model->weight_bytes_ = parameters.weight_bytes();
  model->workspace_bytes_ = model->lay_out_workspace(nullptr, tp);
  if (device == nullptr) return model;
  ASSIGN_OR_RETURN(model->workspace_buffer_,
                   device->allocate(static_cast<size_t>(model->workspace_bytes_), MemoryKind::kDevice));
  model->lay_out_workspace(model->workspace_buffer_.data(), tp);
  return model;
}

int64_t Decoder::lay_out_workspace(void* base, TensorParallel tp) {
  const int64_t num_tokens = options_.limits.max_num_batched_tokens, num_logits = options_.limits.max_num_logits;
  Arena arena(device_, base, options_.act_dtype, num_tokens);
  workspace_.residual = arena.take_contiguous(config_.hidden_size);
  // The sum over ranks takes contiguous tensors.
  workspace_.x = tp.size > 1 ? arena.take_contiguous(config_.hidden_size) : arena.take_activations(config_.hidden_size);
  const int64_t shared = arena.used();
  int64_t end = shared;
  const auto take_of_layer = [&](const DecoderLayer& layer) {
    layer.self_attn->take_workspace(arena);
    end = std::max(end, arena.used());
    arena.rewind(shared);
    layer.mlp->take_workspace(arena);
    end = std::max(end, arena.used());
    arena.rewind(shared);
  };
  for (const DecoderLayer& layer : parts_.layers) take_of_layer(layer);
  for (const MtpModule& module : parts_.mtp) take_of_layer(module.layer);
  if (!parts_.mtp.empty()) {  // read before the layer runs
    workspace_.joined = arena.take_activations(2 * config_.hidden_size);
    end = std::max(end, arena.used());
    arena.rewind(shared);
  }
  arena.rewind(end);
  const int64_t shard_width = parts_.lm_head.shard_width();
  workspace_.sampled = arena.take(options_.act_dtype, num_logits, config_.hidden_size);
  workspace_.logits_shard = arena.take(DType::kF32, num_logits, shard_width);
  if (tp.size > 1 && tp.rank == 0) workspace_.logits = arena.take(DType::kF32, num_logits, tp.size * shard_width);
  return arena.used();
}

ModelMemory Decoder::memory() const {
  return {.num_parameters = num_parameters_,
          .weight_bytes = weight_bytes_,
          .workspace_bytes = workspace_bytes_,
          .kv_layers = kv_layers_,
          .mtp_kv_layers = mtp_kv_layers_};
}

ModelOutline Decoder::outline() const {
  ModelOutline outline{.embed_tokens = parts_.embed_tokens.name(),
                       .layers = {},
                       .norm = parts_.norm.name(),
                       .lm_head = parts_.lm_head.name()};
  for (const DecoderLayer& layer : parts_.layers) {
    std::vector<Product>& products =
        outline.layers.emplace_back(ModelOutline::Layer{.name = layer.name, .products = {}}).products;
    layer.self_attn->list_products(layer.input_layernorm.name(), products);
    layer.mlp->list_products(layer.post_attention_layernorm.name(), products);
  }
  return outline;
}

Status Decoder::load(const WeightSource& source, const LoadProgress& progress) {
  CHECK(loader_ != nullptr, "the weights are loaded already");
  RETURN_IF_ERROR(loader_->load(source, progress, options_.weight_cache));
  loader_.reset();
  return ok_status();
}

Status Decoder::load_dummy(uint64_t seed, const LoadProgress& progress) {
  CHECK(loader_ != nullptr, "the weights are loaded already");
  RETURN_IF_ERROR(loader_->load_dummy(seed, progress));
  loader_.reset();
  return ok_status();
}

Tensor Decoder::forward(const StepContext& ctx) {
  CHECK(loader_ == nullptr, "forward before load");
  const int64_t num_tokens = ctx.batch.num_tokens();
  const std::vector<DecoderLayer>& layers = parts_.layers;
  CHECK(num_tokens <= options_.limits.max_num_batched_tokens && ctx.kv.size() == kv_layers_.size(),
        "{} tokens (at most {}), {} KV views", num_tokens, options_.limits.max_num_batched_tokens, ctx.kv.size());
  const Tensor residual = workspace_.residual.rows(0, num_tokens), x = workspace_.x.rows(0, num_tokens);

  parts_.embed_tokens.forward(ctx, ctx.batch.inputs.token_ids, residual);
  if (tap_) tap_(ctx, -1, residual);
  if (input_follower_) input_follower_(ctx, 0, residual);
  layers.front().input_layernorm.forward(ctx, residual, x);
  if (!few_outputs(ctx.batch) && !tap_ && !input_follower_ && joins_layer_products(ctx, layers)) {
    run_joined(ctx, layers, residual, x);
    ctx.ops.add(ctx.stream, {.a = residual, .b = x, .out = residual});
    return residual;
  }
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    const RmsNorm& next_norm = layers[i + 1].input_layernorm;
    const PackedWeight* next_reader = layers[i + 1].self_attn->x_reader();
    if (tap_) {  // between the layer and the next norm
      run_layer(ctx, layers[i], ctx.kv[i], {.own = layers[i].post_attention_layernorm}, residual, x);
      tap(ctx, static_cast<int64_t>(i), residual, x);
      next_norm.add_forward(ctx, x, residual, x, next_reader);
    } else {
      run_layer(ctx, layers[i], ctx.kv[i],
                {.own = layers[i].post_attention_layernorm, .next = &next_norm, .next_reader = next_reader}, residual,
                x);
    }
    if (input_follower_) input_follower_(ctx, static_cast<int64_t>(i) + 1, residual);
  }
  const Tensor out = run_last_layer(ctx, layers.back(), ctx.kv[layers.size() - 1], residual, x);
  if (tap_) tap_(ctx, static_cast<int64_t>(layers.size()) - 1, out);
  return out;
}

// All tokens: the residual. A few: behind the rows of x that the last layer reuses for its output.
Tensor Decoder::hidden_states(const StepBatch& batch) const {
  if (!few_outputs(batch)) return workspace_.residual.rows(0, batch.num_tokens());
  const int64_t n = batch.output_rows.dim(0);
  return workspace_.x.rows(n, 2 * n);
}

void Decoder::run_layer(const StepContext& ctx, const DecoderLayer& layer, const KvView& kv, const NormsAround& norms,
                        const Tensor& residual, const Tensor& x) {
  layer.self_attn->forward(ctx, kv, x, x);
  layer.mlp->forward_with_norms(ctx, norms, x, residual);
}

Tensor Decoder::run_last_layer(const StepContext& ctx, const DecoderLayer& layer, const KvView& kv,
                               const Tensor& residual, const Tensor& x) {
  const Tensor all_or_few = hidden_states(ctx.batch);
  if (!few_outputs(ctx.batch)) {
    run_layer(ctx, layer, kv, {.own = layer.post_attention_layernorm}, residual, x);
    ctx.ops.add(ctx.stream, {.a = residual, .b = x, .out = all_or_few});
    return all_or_few;
  }
  const int64_t n = ctx.batch.output_rows.dim(0);
  const Tensor out = x.rows(0, n);
  layer.self_attn->forward_output_rows(ctx, kv, x, out);
  if (n == 0) return all_or_few;
  // Rows of x: the attention has read them.
  ctx.ops.gather_rows(ctx.stream, {.x = residual, .row_ids = ctx.batch.output_rows, .out = all_or_few});
  layer.mlp->forward_with_norms(ctx, {.own = layer.post_attention_layernorm}, out, all_or_few);
  ctx.ops.add(ctx.stream, {.a = all_or_few, .b = out, .out = all_or_few});
  return all_or_few;
}

Tensor Decoder::mtp_forward(const StepContext& ctx, const MtpRun& run) {
  const int64_t num_tokens = ctx.batch.num_tokens(), num_modules = std::ssize(parts_.mtp);
  CHECK(loader_ == nullptr && 0 <= run.mtp_idx && run.mtp_idx < num_modules && -1 <= run.source_idx &&
            run.source_idx < num_modules,
        "layer {} after {} of {}", run.mtp_idx, run.source_idx, num_modules);
  CHECK(num_tokens <= options_.limits.max_num_batched_tokens && run.hidden_states.dim(0) == num_tokens &&
            ctx.kv.size() == mtp_kv_layers_.size(),
        "{} tokens (at most {}), {} hidden states, {} KV views", num_tokens, options_.limits.max_num_batched_tokens,
        run.hidden_states.dim(0), ctx.kv.size());
  const MtpModule& module = parts_.mtp[static_cast<size_t>(run.mtp_idx)];
  const Tensor residual = workspace_.residual.rows(0, num_tokens), x = workspace_.x.rows(0, num_tokens);
  const Tensor joined = workspace_.joined.rows(0, num_tokens);
  const Tensor embedded = joined.columns(0, config_.hidden_size),
               known = joined.columns(config_.hidden_size, 2 * config_.hidden_size);
  // The hidden states may lie in the residual or behind the rows of x: they are read before either is written.
  norm_of(run.source_idx).forward(ctx, run.hidden_states, known);
  module.hnorm.forward(ctx, known, known);
  parts_.embed_tokens.forward(ctx, ctx.batch.inputs.token_ids, residual);
  module.enorm.forward(ctx, residual, embedded);
  module.eh_proj.forward(ctx, joined, residual);
  module.layer.input_layernorm.forward(ctx, residual, x);
  return run_last_layer(ctx, module.layer, ctx.kv[static_cast<size_t>(run.mtp_idx)], residual, x);
}

Tensor Decoder::norm_rows(const StepContext& ctx, const RmsNorm& norm, const Tensor& hidden_states,
                          const Tensor& row_ids) {
  const int64_t num_rows = row_ids.dim(0);
  CHECK(num_rows <= options_.limits.max_num_logits, "{} rows, at most {}", num_rows, options_.limits.max_num_logits);
  const Tensor rows = workspace_.sampled.rows(0, num_rows);
  ctx.ops.gather_rows(ctx.stream, {.x = hidden_states, .row_ids = row_ids, .out = rows});
  norm.forward(ctx, rows, rows);
  return rows;
}

Tensor Decoder::compute_normed(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) {
  return norm_rows(ctx, parts_.norm, hidden_states, row_ids);
}

Tensor Decoder::run_head(const StepContext& ctx, const Tensor& normed) {
  const int64_t num_logits = normed.dim(0);
  return parts_.lm_head.forward(ctx, normed, workspace_.logits_shard.rows(0, num_logits),
                                workspace_.logits.defined() ? workspace_.logits.rows(0, num_logits) : Tensor());
}

Tensor Decoder::compute_logits(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) {
  return run_head(ctx, compute_normed(ctx, hidden_states, row_ids));
}

Tensor Decoder::compute_mtp_logits(const StepContext& ctx, int64_t mtp_idx, const Tensor& hidden_states,
                                   const Tensor& row_ids) {
  CHECK(0 <= mtp_idx && mtp_idx < std::ssize(parts_.mtp), "layer {} of {}", mtp_idx, parts_.mtp.size());
  return run_head(ctx, norm_rows(ctx, norm_of(mtp_idx), hidden_states, row_ids));
}

void Decoder::set_tap(Tap tap) {
  tap_ = std::move(tap);
  if (!tap_ || tap_buffer_.data() != nullptr) return;
  const Tensor& all = workspace_.residual;
  tap_buffer_ = device_->allocate(static_cast<size_t>(all.num_bytes()), MemoryKind::kDevice).value();
}

void Decoder::tap(const StepContext& ctx, int64_t layer_idx, const Tensor& residual, const Tensor& x) {
  const Tensor sum = tap_buffer_.tensor(options_.act_dtype, {residual.dim(0), config_.hidden_size});
  ctx.ops.add(ctx.stream, {.a = residual, .b = x, .out = sum});
  tap_(ctx, layer_idx, sum);
}

}  // namespace spate
