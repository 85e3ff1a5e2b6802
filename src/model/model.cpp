#include "model/model.h"

#include <algorithm>

#include "model/decoder.h"

namespace spate {
namespace {

Status check_tensor_parallel(const ModelConfig& config, TensorParallel tp) {
  const ExpertConfig& experts = config.experts;
  const int64_t dense_width = experts.in_all_layers() ? 0 : config.intermediate_size;
  const auto divides = [&](int64_t size) {
    return config.num_heads % size == 0 && dense_width % size == 0 && experts.intermediate_size % size == 0 &&
           experts.shared_intermediate_size % size == 0 &&
           (config.num_kv_heads % size == 0 || size % config.num_kv_heads == 0);
  };
  if (tp.size >= 1 && divides(tp.size)) return ok_status();
  std::string good;
  for (int64_t size = 1; size <= std::min<int64_t>(config.num_heads, 64); ++size) {
    if (divides(size)) good += fmt::format("{}{}", good.empty() ? "" : ", ", size);
  }
  std::string widths;
  for (const auto& [name, width] : {std::pair{"intermediate_size", dense_width},
                                    {"intermediate_size of an expert", experts.intermediate_size},
                                    {"intermediate_size of the shared expert", experts.shared_intermediate_size}}) {
    if (width > 0) widths += fmt::format("{}{} {}", widths.empty() ? "" : ", ", name, width);
  }
  return invalid_argument(
      "--tensor-parallel-size {}: {} heads, {} kv heads and {} cannot be shared out so; sizes that work: {}", tp.size,
      config.num_heads, config.num_kv_heads, widths, good);
}

// Not every back-end has the ops of every model.
Status check_device(const ModelConfig& config, const Device& device) {
  const OpTable& ops = device.ops();
  if (config.experts.num_experts > 0 && (ops.route_experts == nullptr || ops.expert_mlp == nullptr)) {
    return unimplemented("{} has layers of {} experts, which the {} back-end does not run yet", config.architecture,
                         config.experts.num_experts, device.kind());
  }
  const bool has_latent_ops =
      ops.latent_write != nullptr && ops.attention_latent != nullptr && ops.linear_heads != nullptr;
  if (config.latent.kv_lora_rank > 0 && !has_latent_ops) {
    return unimplemented("{} has latent attention (kv_lora_rank {}), which the {} back-end does not run yet",
                         config.architecture, config.latent.kv_lora_rank, device.kind());
  }
  return ok_status();
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
  if (options.limits.max_model_len > longest_model_len(config)) {
    return invalid_argument("--max-model-len {}: the model has {} positions; use at most that",
                            options.limits.max_model_len, longest_model_len(config));
  }
  if (options.limits.kv_block_size <= 0 || options.limits.kv_block_size % 16 != 0) {
    return invalid_argument("--block-size {}: needs a multiple of 16", options.limits.kv_block_size);
  }
  for (const auto& [name, value] : {std::pair{"max_num_batched_tokens", options.limits.max_num_batched_tokens},
                                    {"max_num_logits", options.limits.max_num_logits}}) {
    if (value < 1) return invalid_argument("{} {}: needs at least 1", name, value);
  }
  const bool known = options.act_dtype == DType::kF32 || options.act_dtype == DType::kBf16;
  if (!known ||
      (options.kv_dtype != options.act_dtype && options.kv_dtype != DType::kBf16 && options.kv_dtype != DType::kI8)) {
    return invalid_argument(
        "--kv-cache-dtype: activations of {} with a KV cache of {}: needs bf16 or f32, and a cache no wider than "
        "activations",
        dtype_name(options.act_dtype), dtype_name(options.kv_dtype));
  }
  return ok_status();
}

// Without a device: what it would take.
Result<std::unique_ptr<Decoder>> make_decoder(const ModelConfig& config, Device* device, TensorParallel tp,
                                              const ModelOptions& options) {
  ASSIGN_OR_RETURN(const ModelFamily* family, find_family(config));
  RETURN_IF_ERROR(check_tensor_parallel(config, tp));
  RETURN_IF_ERROR(check_options(config, options));
  if (device != nullptr) RETURN_IF_ERROR(check_device(config, *device));
  return Decoder::create(*family, config, device, tp, options);
}

}  // namespace

Result<std::unique_ptr<Model>> Model::create(const ModelConfig& config, Device& device, TensorParallel tp,
                                             const ModelOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Decoder> model, make_decoder(config, &device, tp, options));
  return std::unique_ptr<Model>(std::move(model));
}

LatentShape latent_shape(const ModelConfig& config, DType act_dtype) {
  return {.kv_lora_rank = config.latent.kv_lora_rank,
          .qk_nope_head_dim = config.latent.qk_nope_head_dim,
          .qk_rope_head_dim = config.latent.qk_rope_head_dim,
          .v_head_dim = config.latent.v_head_dim,
          .act_dtype = act_dtype};
}

Result<ModelMemory> Model::memory(const ModelConfig& config, TensorParallel tp, const ModelOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> model, make_decoder(config, nullptr, tp, options));
  return model->memory();
}

Status Model::verify(const ModelConfig& config, const WeightSource& source) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> model, make_decoder(config, nullptr, {}, {.source = &source}));
  return model->verify(source);
}

Result<ModelOutline> Model::outline(const ModelConfig& config) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> model, make_decoder(config, nullptr, {}, {}));
  ModelOutline outline = model->outline();
  for (ModelOutline::Layer& layer : outline.layers) {
    for (Product& product : layer.products) product.weight = nullptr;  // they end with `model`
  }
  return outline;
}

}  // namespace spate
