#include "model/eagle_head.h"

#include <algorithm>
#include <vector>

#include "model/part_factory.h"

namespace spate {

Result<std::unique_ptr<EagleHead>> EagleHead::create(const EagleConfig& config, Model& target, Device& device,
                                                     TensorParallel tp, const ModelOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<EagleHead> head, make(config, &target, &device, tp, options));
  ASSIGN_OR_RETURN(head->workspace_buffer_,
                   device.allocate(static_cast<size_t>(head->workspace_bytes_), MemoryKind::kDevice));
  head->lay_out_workspace(head->workspace_buffer_.data(), tp);
  RETURN_IF_ERROR(head->fill_tables(tp));
  return head;
}

Result<ModelMemory> EagleHead::memory(const EagleConfig& config, TensorParallel tp, const ModelOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<EagleHead> head, make(config, nullptr, nullptr, tp, options));
  const int64_t table_bytes = config.draft_vocab_size * dtype_bytes(DType::kI32);
  return ModelMemory{.num_parameters = head->num_parameters_,
                     .weight_bytes = head->weight_bytes_,
                     .workspace_bytes = head->workspace_bytes_ + table_bytes,
                     .kv_layers = head->kv_layers_,
                     .mtp_kv_layers = {}};
}

Result<std::unique_ptr<EagleHead>> EagleHead::make(const EagleConfig& config, Model* target, Device* device,
                                                   TensorParallel tp, const ModelOptions& options) {
  const ModelConfig& layer = config.layer;
  if (layer.num_heads % tp.size != 0 || layer.intermediate_size % tp.size != 0 ||
      (layer.num_kv_heads % tp.size != 0 && tp.size % layer.num_kv_heads != 0)) {
    return invalid_argument(
        "--tensor-parallel-size {}: {} heads, {} kv heads and intermediate_size {} of the EAGLE head cannot "
        "be shared out so",
        tp.size, layer.num_heads, layer.num_kv_heads, layer.intermediate_size);
  }
  std::unique_ptr<EagleHead> head(new EagleHead(config, target, device, options));
  head->loader_ = std::make_unique<WeightLoader>(device);
  ParameterFactory parameters(device, head->loader_.get(), tp,
                              {.act_dtype = options.act_dtype,
                               .quantization = options.quantization,
                               .source = options.source,
                               .supports = options.supports_weight});
  const PartFactory factory(layer, parameters, options);
  parameters.ignore("d2t");
  parameters.ignore("t2d");
  parameters.ignore("*.rotary_emb.inv_freq");
  const int64_t width = layer.hidden_size;
  // The reader of safetensors takes a head with an embedding for a bare decoder, and adds its prefix.
  const bool has_embedding = parameters.checkpoint_has("model.embed_tokens.weight");
  if (has_embedding) {
    ASSIGN_OR_RETURN(head->embed_tokens_, factory.embedding("model.embed_tokens"));
  }
  ASSIGN_OR_RETURN(head->fc_, Linear::whole(parameters, "fc", width, EagleConfig::kNumInputs * width, false));
  ASSIGN_OR_RETURN(head->hidden_norm_, factory.rms_norm("midlayer.hidden_norm"));
  ASSIGN_OR_RETURN(head->input_layernorm_, factory.rms_norm("midlayer.input_layernorm"));
  ASSIGN_OR_RETURN(const auto rotary, factory.rotary_embedding());
  ASSIGN_OR_RETURN(head->self_attn_, factory.attention({.name = "midlayer.self_attn",
                                                        .rotary = rotary,
                                                        .input_size = 2 * width,
                                                        .qkv_bias = layer.attention_bias,
                                                        .o_bias = layer.attention_bias}));
  ASSIGN_OR_RETURN(head->post_attention_layernorm_, factory.rms_norm("midlayer.post_attention_layernorm"));
  ASSIGN_OR_RETURN(head->mlp_, factory.mlp("midlayer.mlp", layer.mlp_bias));
  ASSIGN_OR_RETURN(head->norm_, factory.rms_norm(has_embedding ? "model.norm" : "norm"));
  ASSIGN_OR_RETURN(head->lm_head_, LmHead::create(parameters, "lm_head", config.draft_vocab_size, width));

  KvLayerDesc kv_layer = head->self_attn_->kv_layer();
  kv_layer.kv_block_size = options.limits.kv_block_size;
  kv_layer.dtype = options.kv_dtype;
  head->kv_layers_ = {kv_layer};
  head->num_parameters_ = parameters.num_parameters();
  head->weight_bytes_ = parameters.weight_bytes();
  head->workspace_bytes_ = head->lay_out_workspace(nullptr, tp);
  return head;
}

int64_t EagleHead::lay_out_workspace(void* base, TensorParallel tp) {
  const int64_t num_tokens = options_.limits.max_num_batched_tokens, num_logits = options_.limits.max_num_logits;
  const int64_t width = config_.layer.hidden_size, shard_width = lm_head_.shard_width();
  Arena arena(device_, base, options_.act_dtype, num_tokens);
  workspace_.residual = arena.take_contiguous(width);
  workspace_.x = arena.take_contiguous(width);
  workspace_.joined = arena.take_activations(2 * width);
  const int64_t shared = arena.used();
  self_attn_->take_workspace(arena);
  const int64_t end = arena.used();
  arena.rewind(shared);
  mlp_->take_workspace(arena);
  arena.rewind(std::max(end, arena.used()));
  workspace_.sampled = arena.take(options_.act_dtype, num_logits, width);
  workspace_.logits_shard = arena.take(DType::kF32, num_logits, shard_width);
  if (tp.rank > 0) return arena.used();
  if (tp.size > 1) workspace_.gathered = arena.take(DType::kF32, num_logits, tp.size * shard_width);
  workspace_.logits = arena.take(DType::kF32, num_logits, config_.layer.vocab_size);
  return arena.used();
}

Status EagleHead::fill_tables(TensorParallel tp) {
  const std::vector<int32_t>& ids = config_.target_ids;
  const size_t bytes = ids.size() * sizeof(int32_t);
  ASSIGN_OR_RETURN(table_buffer_, device_->allocate(bytes, MemoryKind::kDevice));
  target_ids_ = table_buffer_.tensor(DType::kI32, {std::ssize(ids)});
  const std::unique_ptr<Stream> stream = device_->create_stream();
  device_->copy_to_device(*stream, table_buffer_.data(), ids.data(), bytes);
  const std::vector<float> row(static_cast<size_t>(config_.layer.vocab_size), kNotDrafted);
  for (int64_t i = 0; tp.rank == 0 && i < workspace_.logits.dim(0); ++i) {
    device_->copy_to_device(*stream, workspace_.logits.rows(i, i + 1).raw(), row.data(), row.size() * sizeof(float));
  }
  device_->synchronize(*stream);
  return ok_status();
}

// All tokens: the residual. A few: behind the rows of x that hold the layer's output.
Tensor EagleHead::hidden_states(const StepBatch& batch) const {
  if (!batch.output_rows.defined()) return workspace_.residual.rows(0, batch.num_tokens());
  const int64_t n = batch.output_rows.dim(0);
  return workspace_.x.rows(n, 2 * n);
}

Tensor EagleHead::forward(const StepContext& ctx, const Tensor& known, bool is_own) {
  const int64_t num_tokens = ctx.batch.num_tokens(), width = config_.layer.hidden_size;
  CHECK(num_tokens <= options_.limits.max_num_batched_tokens && known.dim(0) == num_tokens && ctx.kv.size() == 1,
        "{} tokens (at most {}), {} rows that are known, {} KV views", num_tokens,
        options_.limits.max_num_batched_tokens, known.dim(0), ctx.kv.size());
  const Tensor residual = workspace_.residual.rows(0, num_tokens), x = workspace_.x.rows(0, num_tokens);
  const Tensor joined = workspace_.joined.rows(0, num_tokens);
  if (embed_tokens_) {
    embed_tokens_->forward(ctx, ctx.batch.inputs.token_ids, x);
  } else {
    target_->embed(ctx, x);
  }
  input_layernorm_.forward(ctx, x, joined.columns(0, width));
  if (is_own) {
    ctx.ops.gather_rows(ctx.stream, {.x = known, .row_ids = ctx.batch.arange.rows(0, num_tokens), .out = residual});
  } else {
    fc_->forward(ctx, known, residual);
  }
  hidden_norm_.forward(ctx, residual, joined.columns(width, 2 * width));

  const Tensor out = hidden_states(ctx.batch);
  if (!ctx.batch.output_rows.defined()) {
    self_attn_->forward(ctx, ctx.kv[0], joined, x);
    post_attention_layernorm_.add_forward(ctx, x, residual, x, mlp_->x_reader());
    mlp_->forward(ctx, x, x);
    ctx.ops.add(ctx.stream, {.a = residual, .b = x, .out = out});
    return out;
  }
  const int64_t n = ctx.batch.output_rows.dim(0);
  const Tensor few = x.rows(0, n);
  self_attn_->forward_output_rows(ctx, ctx.kv[0], joined, few);
  if (n == 0) return out;
  ctx.ops.gather_rows(ctx.stream, {.x = residual, .row_ids = ctx.batch.output_rows, .out = out});
  post_attention_layernorm_.add_forward(ctx, few, out, few, mlp_->x_reader());
  mlp_->forward(ctx, few, few);
  ctx.ops.add(ctx.stream, {.a = out, .b = few, .out = out});
  return out;
}

// A scatter for each row: its columns go to those of the target's ids.
Tensor EagleHead::compute_logits(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) {
  const int64_t num_rows = row_ids.dim(0);
  CHECK(num_rows <= options_.limits.max_num_logits, "{} rows, at most {}", num_rows, options_.limits.max_num_logits);
  const Tensor rows = workspace_.sampled.rows(0, num_rows);
  ctx.ops.gather_rows(ctx.stream, {.x = hidden_states, .row_ids = row_ids, .out = rows});
  norm_.forward(ctx, rows, rows);
  const Tensor drafted =
      lm_head_.forward(ctx, rows, workspace_.logits_shard.rows(0, num_rows),
                       workspace_.gathered.defined() ? workspace_.gathered.rows(0, num_rows) : Tensor());
  if (!drafted.defined()) return {};
  const int64_t num_drafts = config_.draft_vocab_size, num_targets = config_.layer.vocab_size;
  const Tensor logits = workspace_.logits.rows(0, num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    ctx.ops.scatter_rows(ctx.stream, {.x = drafted.rows(i, i + 1).columns(0, num_drafts).reshaped({num_drafts, 1}),
                                      .row_ids = target_ids_,
                                      .out = logits.rows(i, i + 1).reshaped({num_targets, 1})});
  }
  return logits;
}

}  // namespace spate
