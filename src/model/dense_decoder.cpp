#include "model/dense_decoder.h"

#include <algorithm>

#include "model/families.h"

namespace spate {
namespace {

Status check_tensor_parallel(const ModelConfig& config, TensorParallel tp) {
  const auto divides = [&](int64_t size) {
    return config.num_heads % size == 0 && config.intermediate_size % size == 0 &&
           (config.num_kv_heads % size == 0 || size % config.num_kv_heads == 0);
  };
  if (tp.size >= 1 && divides(tp.size)) return ok_status();
  std::string good;
  for (int64_t size = 1; size <= std::min<int64_t>(config.num_heads, 64); ++size) {
    if (divides(size)) good += fmt::format("{}{}", good.empty() ? "" : ", ", size);
  }
  return invalid_argument(
      "--tensor-parallel-size {}: {} heads, {} kv heads and intermediate_size {} cannot be shared out so; "
      "sizes that work: {}",
      tp.size, config.num_heads, config.num_kv_heads, config.intermediate_size, good);
}

// Positions beyond the trained ones make sense where RoPE is scaled for them.
int64_t longest_model_len(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (rope.type == RopeType::kDefault || rope.type == RopeType::kLlama3) return config.max_position_embeddings;
  const int64_t trained =
      rope.type == RopeType::kYarn ? rope.original_max_position_embeddings : config.max_position_embeddings;
  return std::max(config.max_position_embeddings, static_cast<int64_t>(static_cast<double>(trained) * rope.factor));
}

Status check_options(const ModelConfig& config, const ModelOptions& options) {
  if (options.max_model_len > longest_model_len(config)) {
    return invalid_argument("--max-model-len {}: the model has {} positions; use at most that", options.max_model_len,
                            longest_model_len(config));
  }
  if (options.kv_block_size <= 0 || options.kv_block_size % 16 != 0) {
    return invalid_argument("--block-size {}: needs a multiple of 16", options.kv_block_size);
  }
  for (const auto& [name, value] : {std::pair{"max_num_batched_tokens", options.max_num_batched_tokens},
                                    {"max_num_logits", options.max_num_logits}}) {
    if (value < 1) return invalid_argument("{} {}: needs at least 1", name, value);
  }
  const bool known = options.act_dtype == DType::kF32 || options.act_dtype == DType::kBf16;
  if (!known || (options.kv_dtype != options.act_dtype && options.kv_dtype != DType::kBf16 && options.kv_dtype != DType::kI8)) {
    return invalid_argument(
        "activations of {} with a KV cache of {}: needs bf16 or f32, and a cache no wider than activations",
        dtype_name(options.act_dtype), dtype_name(options.kv_dtype));
  }
  return ok_status();
}

// Lays tensors out one after the other; without memory behind them it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  Tensor take(DType dtype, int64_t rows, int64_t columns) {
    const Tensor tensor(base_ == nullptr ? nullptr : base_ + used_, dtype, {rows, columns});
    used_ += (tensor.num_bytes() + 255) / 256 * 256;
    return tensor;
  }
  // Rows as far apart as the device likes them; room for the largest such distance, so that a plan without a device agrees.
  Tensor take_activations(const Device* device, DType dtype, int64_t rows, int64_t columns) {
    constexpr int64_t kRoom = 128;
    const int64_t element_bytes = dtype_bytes(dtype), row_bytes = columns * element_bytes;
    const Tensor room = take(dtype, rows, columns + kRoom / element_bytes);
    const int64_t stride = device == nullptr ? row_bytes : device->activation_row_bytes(row_bytes);
    CHECK(stride >= row_bytes && stride < row_bytes + kRoom && stride % element_bytes == 0, "rows of {} bytes {} apart", row_bytes, stride);
    return Tensor(room.raw(), dtype, {rows, stride / element_bytes}).columns(0, columns);
  }
  int64_t used() const { return used_; }
  void rewind(int64_t used) { used_ = used; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace

Result<std::unique_ptr<Model>> Model::create(const ModelConfig& config, Device& device, TensorParallel tp,
                                             const ModelOptions& options) {
  ASSIGN_OR_RETURN(const DecoderSpec spec, make_decoder_spec(config));
  ASSIGN_OR_RETURN(std::unique_ptr<DenseDecoder> model, DenseDecoder::create(spec, config, &device, tp, options));
  return std::unique_ptr<Model>(std::move(model));
}

Result<ModelMemory> Model::memory(const ModelConfig& config, TensorParallel tp, const ModelOptions& options) {
  ASSIGN_OR_RETURN(const DecoderSpec spec, make_decoder_spec(config));
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseDecoder> model, DenseDecoder::create(spec, config, nullptr, tp, options));
  return model->memory();
}

Status Model::verify(const ModelConfig& config, const WeightSource& source) {
  ASSIGN_OR_RETURN(const DecoderSpec spec, make_decoder_spec(config));
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseDecoder> model, DenseDecoder::create(spec, config, nullptr, {}, {}));
  return model->verify(source);
}

Result<std::unique_ptr<DenseDecoder>> DenseDecoder::create(const DecoderSpec& spec, const ModelConfig& config,
                                                           Device* device, TensorParallel tp,
                                                           const ModelOptions& options) {
  RETURN_IF_ERROR(check_tensor_parallel(config, tp));
  RETURN_IF_ERROR(check_options(config, options));
  std::unique_ptr<DenseDecoder> model(new DenseDecoder(config, device, options));
  model->loader_ = std::make_unique<WeightLoader>(device);
  ParameterFactory factory(device, model->loader_.get(), tp,
                           {.act_dtype = options.act_dtype,
                            .quantization = options.quantization,
                            .source = options.source,
                            .integer = options.integer_weights});
  RETURN_IF_ERROR(model->create_layers(spec, factory));
  model->num_parameters_ = factory.num_parameters();
  model->weight_bytes_ = factory.weight_bytes();
  RETURN_IF_ERROR(model->allocate_workspace(tp));
  return model;
}

Status DenseDecoder::create_layers(const DecoderSpec& spec, ParameterFactory& factory) {
  const int64_t hidden_size = config_.hidden_size;
  const int64_t max_model_len = options_.max_model_len > 0 ? options_.max_model_len : config_.max_position_embeddings;
  const std::string embed_name = spec.prefix + ".embed_tokens";
  ASSIGN_OR_RETURN(embed_tokens_, VocabEmbedding::create(factory, embed_name, config_.vocab_size, hidden_size));
  ASSIGN_OR_RETURN(rotary_emb_, RotaryEmbedding::create(factory, config_, max_model_len, spec.interleaved_rope));
  layers_.reserve(static_cast<size_t>(config_.num_layers));
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    const std::string name = fmt::format("{}.layers.{}", spec.prefix, i);
    const int64_t window = spec.windows.empty() ? 0 : spec.windows[static_cast<size_t>(i)];
    const AttentionSpec attention{.name = name + ".self_attn",
                                  .hidden_size = hidden_size,
                                  .num_heads = config_.num_heads,
                                  .num_kv_heads = config_.num_kv_heads,
                                  .head_dim = config_.head_dim,
                                  .qkv_bias = spec.qkv_bias,
                                  .o_bias = spec.o_bias,
                                  .qk_norm = spec.qk_norm,
                                  .rms_norm_eps = config_.rms_norm_eps,
                                  .window = window};
    ASSIGN_OR_RETURN(RmsNorm input_layernorm,
                     RmsNorm::create(factory, name + ".input_layernorm", hidden_size, config_.rms_norm_eps));
    ASSIGN_OR_RETURN(Attention self_attn, Attention::create(factory, attention));
    ASSIGN_OR_RETURN(RmsNorm post_attention_layernorm,
                     RmsNorm::create(factory, name + ".post_attention_layernorm", hidden_size, config_.rms_norm_eps));
    ASSIGN_OR_RETURN(Mlp mlp,
                     Mlp::create(factory, name + ".mlp", hidden_size, config_.intermediate_size, spec.mlp_bias));
    kv_groups_.push_back({.kind = window > 0 ? KvKind::kWindow : KvKind::kFull,
                          .num_kv_heads = self_attn.num_kv_heads(),
                          .head_dim = config_.head_dim,
                          .kv_block_size = options_.kv_block_size,
                          .dtype = options_.kv_dtype});
    layers_.push_back(
        {std::move(input_layernorm), std::move(self_attn), std::move(post_attention_layernorm), std::move(mlp)});
  }
  ASSIGN_OR_RETURN(norm_, RmsNorm::create(factory, spec.prefix + ".norm", hidden_size, config_.rms_norm_eps));
  if (config_.tie_word_embeddings) {
    lm_head_ = LmHead::tied(factory, spec.lm_head, embed_tokens_, config_.vocab_size);
  } else {
    ASSIGN_OR_RETURN(lm_head_, LmHead::create(factory, spec.lm_head, config_.vocab_size, hidden_size));
  }
  factory.ignore("*.rotary_emb.inv_freq");  // a constant that old checkpoints store; it is computed here
  return ok_status();
}

Status DenseDecoder::allocate_workspace(TensorParallel tp) {
  const int64_t num_tokens = options_.max_num_batched_tokens, num_logits = options_.max_num_logits;
  const Layer& layer = layers_.front();
  const auto lay_out = [&](void* base) {
    Arena arena(base);
    const DType act = options_.act_dtype;
    const auto take_activations = [&](int64_t columns) {
      return arena.take_activations(device_, act, num_tokens, columns);
    };
    workspace_.residual = arena.take(act, num_tokens, config_.hidden_size);
    // The sum over ranks takes contiguous tensors.
    workspace_.x = tp.size > 1 ? arena.take(act, num_tokens, config_.hidden_size) : take_activations(config_.hidden_size);
    const int64_t shared = arena.used();
    workspace_.qkv = take_activations(layer.self_attn.qkv_width());
    workspace_.heads = take_activations(layer.self_attn.attn_width());
    const int64_t attention_end = arena.used();
    arena.rewind(shared);
    workspace_.gate_up = arena.take(act, num_tokens, 2 * layer.mlp.width());
    workspace_.act = take_activations(layer.mlp.width());
    arena.rewind(std::max(attention_end, arena.used()));
    workspace_.sampled = arena.take(act, num_logits, config_.hidden_size);
    workspace_.logits_shard = arena.take(DType::kF32, num_logits, lm_head_.shard_width());
    if (tp.size > 1 && tp.rank == 0)
      workspace_.logits = arena.take(DType::kF32, num_logits, tp.size * lm_head_.shard_width());
    return arena.used();
  };
  workspace_bytes_ = lay_out(nullptr);
  if (device_ == nullptr) return ok_status();
  ASSIGN_OR_RETURN(workspace_buffer_, device_->allocate(static_cast<size_t>(workspace_bytes_), MemoryKind::kDevice));
  lay_out(workspace_buffer_.data());
  return ok_status();
}

ModelMemory DenseDecoder::memory() const {
  return {.num_parameters = num_parameters_,
          .weight_bytes = weight_bytes_,
          .workspace_bytes = workspace_bytes_,
          .kv_groups = kv_groups_};
}

Status DenseDecoder::load(const WeightSource& source, const LoadProgress& progress) {
  CHECK(loader_ != nullptr, "the weights are loaded already");
  RETURN_IF_ERROR(loader_->load(source, progress));
  loader_.reset();
  return ok_status();
}

Status DenseDecoder::load_dummy(uint64_t seed, const LoadProgress& progress) {
  CHECK(loader_ != nullptr, "the weights are loaded already");
  RETURN_IF_ERROR(loader_->load_dummy(seed, progress));
  loader_.reset();
  return ok_status();
}

Tensor DenseDecoder::forward(const StepContext& ctx) {
  CHECK(loader_ == nullptr, "forward before load");
  num_tokens_ = ctx.batch.num_tokens();
  CHECK(num_tokens_ <= options_.max_num_batched_tokens && ctx.kv.size() == layers_.size(),
        "{} tokens (at most {}), {} KV views", num_tokens_, options_.max_num_batched_tokens, ctx.kv.size());
  const auto used = [&](const Tensor& tensor) { return tensor.rows(0, num_tokens_); };
  const Tensor residual = used(workspace_.residual), x = used(workspace_.x);
  const Tensor qkv = used(workspace_.qkv), heads = used(workspace_.heads);
  const Tensor gate_up = used(workspace_.gate_up), act = used(workspace_.act);

  embed_tokens_.forward(ctx, ctx.batch.token_ids, residual);
  if (tap_) tap_(-1, residual);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (i == 0)
      layer.input_layernorm.forward(ctx, residual, x);
    else
      layer.input_layernorm.add_forward(ctx, x, residual, x);
    if (i + 1 == layers_.size() && ctx.batch.output_rows.defined() && !tap_) return hidden_states_ = forward_output_rows(ctx);
    layer.self_attn.forward(ctx, rotary_emb_, ctx.kv[i], x, qkv, heads, x);
    layer.post_attention_layernorm.add_forward(ctx, x, residual, x);
    layer.mlp.forward(ctx, x, gate_up, act, x);
    if (tap_) tap(ctx, static_cast<int64_t>(i), residual, x);
  }
  ctx.ops.add(ctx.stream, {.a = residual, .b = x, .out = residual});
  return hidden_states_ = residual;
}

// Gathered rows lie behind those that are computed, in buffers whose other rows nobody needs any more.
Tensor DenseDecoder::forward_output_rows(const StepContext& ctx) {
  const Layer& layer = layers_.back();
  const Tensor& output_rows = ctx.batch.output_rows;
  const int64_t n = output_rows.dim(0);
  CHECK(2 * n <= num_tokens_, "{} outputs of {} tokens", n, num_tokens_);
  const Tensor qkv = workspace_.qkv.rows(0, num_tokens_), x = workspace_.x.rows(0, n);
  layer.self_attn.project_qkv(ctx, rotary_emb_, ctx.kv.back(), workspace_.x.rows(0, num_tokens_), qkv);
  if (n == 0) return x;
  const auto gather = [&](const Tensor& from, const Tensor& out) {
    ctx.ops.gather_rows(ctx.stream, {.x = from, .row_ids = output_rows, .out = out});
    return out;
  };
  const Tensor residual = gather(workspace_.residual.rows(0, num_tokens_), workspace_.x.rows(n, 2 * n));
  Tensor heads = workspace_.heads.rows(0, n);
  if (ctx.batch.outputs_all_seqs) {  // one query a sequence, its last token
    const Tensor q = gather(layer.self_attn.q_of(qkv), workspace_.heads.rows(n, 2 * n));
    layer.self_attn.attend(ctx, ctx.kv.back(), q, ctx.batch.arange.rows(0, n + 1), 1, heads);
  } else {
    const Tensor all = workspace_.heads.rows(0, num_tokens_);
    layer.self_attn.attend(ctx, ctx.kv.back(), layer.self_attn.q_of(qkv), ctx.batch.cu_seqlens_q, ctx.batch.max_query_len, all);
    heads = gather(all, layer.self_attn.q_of(qkv).rows(0, n));
  }
  layer.self_attn.project_out(ctx, heads, x);
  layer.post_attention_layernorm.add_forward(ctx, x, residual, x);
  layer.mlp.forward(ctx, x, workspace_.gate_up.rows(0, n), workspace_.act.rows(0, n), x);
  ctx.ops.add(ctx.stream, {.a = residual, .b = x, .out = residual});
  return residual;
}

Tensor DenseDecoder::compute_logits(const StepContext& ctx, const Tensor& row_ids) {
  const int64_t num_logits = row_ids.dim(0);
  CHECK(num_logits <= options_.max_num_logits, "{} logits rows, at most {}", num_logits, options_.max_num_logits);
  const Tensor sampled = workspace_.sampled.rows(0, num_logits);
  ctx.ops.gather_rows(ctx.stream, {.x = hidden_states_, .row_ids = row_ids, .out = sampled});
  norm_.forward(ctx, sampled, sampled);
  return lm_head_.forward(ctx, sampled, workspace_.logits_shard.rows(0, num_logits),
                          workspace_.logits.defined() ? workspace_.logits.rows(0, num_logits) : Tensor());
}

void DenseDecoder::set_tap(Tap tap) {
  tap_ = std::move(tap);
  if (!tap_ || tap_buffer_.data() != nullptr) return;
  const Tensor& all = workspace_.residual;
  tap_buffer_ = device_->allocate(static_cast<size_t>(all.num_bytes()), MemoryKind::kDevice).value();
}

void DenseDecoder::tap(const StepContext& ctx, int64_t layer_idx, const Tensor& residual, const Tensor& x) {
  const Tensor sum = tap_buffer_.tensor(options_.act_dtype, {num_tokens_, config_.hidden_size});
  ctx.ops.add(ctx.stream, {.a = residual, .b = x, .out = sum});
  tap_(layer_idx, sum);
}

}  // namespace spate
