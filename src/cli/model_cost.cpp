#include "cli/model_cost.h"

#include <cmath>

namespace spate {
namespace {

// Matrices that are read together.
struct MatrixSum {
  double bytes = 0, elements = 0;

  void add(const WeightSpec& spec, int64_t out_features, int64_t in_features, int64_t count = 1) {
    bytes += static_cast<double>(count * weight_bytes(spec, out_features, in_features));
    elements += static_cast<double>(count * out_features * in_features);
  }
  void add_mlp(const WeightSpec& spec, int64_t hidden_size, int64_t intermediate_size) {
    add(spec, 2 * intermediate_size, hidden_size);
    add(spec, hidden_size, intermediate_size);
  }
};

// `plain`: of matrices that are never quantised.
void add_attention(const ModelConfig& c, const WeightSpec& linear, const WeightSpec& plain, MatrixSum& layer) {
  const LatentConfig& latent = c.latent;
  if (latent.kv_lora_rank == 0) {
    layer.add(linear, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, c.hidden_size);
    layer.add(linear, c.hidden_size, c.num_heads * c.head_dim);
    return;
  }
  const int64_t q_width = c.num_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim);
  if (latent.q_lora_rank > 0) layer.add(linear, latent.q_lora_rank, c.hidden_size);
  layer.add(linear, q_width, latent.q_lora_rank > 0 ? latent.q_lora_rank : c.hidden_size);
  layer.add(linear, latent.kv_lora_rank + latent.qk_rope_head_dim, c.hidden_size);
  layer.add(plain, latent.kv_lora_rank, latent.qk_nope_head_dim, c.num_heads);
  layer.add(plain, latent.v_head_dim, latent.kv_lora_rank, c.num_heads);
  layer.add(linear, c.hidden_size, c.num_heads * latent.v_head_dim);
}

double kv_bytes_of_layer(const ModelConfig& c, DType kv_dtype) {
  const int64_t latent_width = c.latent.kv_lora_rank + c.latent.qk_rope_head_dim;
  const int64_t vectors = c.latent.kv_lora_rank > 0 ? 1 : 2 * c.num_kv_heads;
  const int64_t width = c.latent.kv_lora_rank > 0 ? latent_width : c.head_dim;
  return static_cast<double>(vectors * (width * dtype_bytes(kv_dtype) + (kv_dtype == DType::kI8 ? 4 : 0)));
}

double attention_flops_of_layer(const ModelConfig& c) {
  if (c.latent.kv_lora_rank == 0) return static_cast<double>(4 * c.num_heads * c.head_dim);
  return static_cast<double>(2 * c.num_heads * (2 * c.latent.kv_lora_rank + c.latent.qk_rope_head_dim));
}

}  // namespace

ModelCost model_cost(const ModelConfig& c, DType act_dtype, DType kv_dtype, const Quantization& quantization) {
  const WeightSpec plain{.codes = act_dtype == DType::kF32 ? Codes::kF32 : Codes::kBf16};
  const WeightSpec linear = quantization.enabled() ? quantization.linear : plain;
  const WeightSpec vocabulary = quantization.enabled() ? quantization.vocabulary : plain;
  const ExpertConfig& experts = c.experts;
  MatrixSum all, expert;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    add_attention(c, linear, plain, all);
    if (!experts.in_layer(i)) {
      all.add_mlp(linear, c.hidden_size, c.intermediate_size);
      continue;
    }
    all.add(plain, experts.num_experts, c.hidden_size);
    if (experts.shared_intermediate_size > 0) all.add_mlp(linear, c.hidden_size, experts.shared_intermediate_size);
    expert.add_mlp(linear, c.hidden_size, experts.intermediate_size);
  }
  const auto layers = static_cast<double>(c.num_layers);
  return {
      .weight_bytes = all.bytes + static_cast<double>(weight_bytes(vocabulary, c.vocab_size, c.hidden_size)),
      .expert_bytes = expert.bytes,
      .num_experts = experts.num_experts,
      .num_experts_per_tok = experts.num_experts_per_tok,
      .linear_flops_per_token = 2 * (all.elements + static_cast<double>(experts.num_experts_per_tok) * expert.elements),
      .kv_bytes_per_token = layers * kv_bytes_of_layer(c, kv_dtype),
      .lm_head_flops = 2 * static_cast<double>(c.vocab_size * c.hidden_size),
      .attention_flops_per_pair = layers * attention_flops_of_layer(c)};
}

double step_weight_bytes(const ModelCost& cost, int64_t num_tokens) {
  if (cost.num_experts == 0) return cost.weight_bytes;
  const auto experts = static_cast<double>(cost.num_experts), chosen = static_cast<double>(cost.num_experts_per_tok);
  const double used = experts * (1 - std::pow(1 - chosen / experts, static_cast<double>(num_tokens)));
  return cost.weight_bytes + used * cost.expert_bytes;
}

double prefill_flops(const ModelCost& cost, int64_t len) {
  const auto tokens = static_cast<double>(len);
  return tokens * cost.linear_flops_per_token + 0.5 * tokens * tokens * cost.attention_flops_per_pair +
         cost.lm_head_flops;
}

double decode_step_bytes(const ModelCost& cost, int64_t num_seqs, int64_t seq_len) {
  return step_weight_bytes(cost, num_seqs) + static_cast<double>(num_seqs * seq_len) * cost.kv_bytes_per_token;
}

double decode_step_flops(const ModelCost& cost, int64_t num_seqs, int64_t seq_len) {
  return static_cast<double>(num_seqs) * (cost.linear_flops_per_token + cost.lm_head_flops +
                                          static_cast<double>(seq_len) * cost.attention_flops_per_pair);
}

}  // namespace spate
