#include "model/part_factory.h"

#include <cmath>
#include <numeric>

namespace spate {

std::vector<int64_t> PartFactory::layers() const {
  const Range all{0, config_.num_layers}, range = options_.layers.count > 0 ? options_.layers : all;
  CHECK(range.begin >= 0 && range.begin + range.count <= config_.num_layers, "layers {} to {} of {}", range.begin,
        range.begin + range.count, config_.num_layers);
  std::vector<int64_t> numbers(static_cast<size_t>(range.count));
  std::iota(numbers.begin(), numbers.end(), range.begin);
  return numbers;
}

Result<std::shared_ptr<const RotaryEmbedding>> PartFactory::rotary_embedding(bool interleaved) const {
  const int64_t max_model_len =
      options_.limits.max_model_len > 0 ? options_.limits.max_model_len : config_.max_position_embeddings;
  ASSIGN_OR_RETURN(RotaryEmbedding rotary, RotaryEmbedding::create(parameters_, config_, max_model_len, interleaved));
  return std::make_shared<const RotaryEmbedding>(std::move(rotary));
}

Result<std::unique_ptr<Attention>> PartFactory::attention(GroupedQueryAttentionSpec spec) const {
  spec.hidden_size = config_.hidden_size;
  spec.num_heads = config_.num_heads;
  spec.num_kv_heads = config_.num_kv_heads;
  spec.head_dim = config_.head_dim;
  spec.rms_norm_eps = config_.rms_norm_eps;
  return GroupedQueryAttention::create(parameters_, spec);
}

Result<std::unique_ptr<Attention>> PartFactory::latent_attention(MultiHeadLatentAttentionSpec spec) const {
  const LatentConfig& latent = config_.latent;
  const RopeConfig& rope = config_.rope;
  spec.hidden_size = config_.hidden_size;
  spec.num_heads = config_.num_heads;
  spec.q_lora_rank = latent.q_lora_rank;
  spec.kv_lora_rank = latent.kv_lora_rank;
  spec.qk_nope_head_dim = latent.qk_nope_head_dim;
  spec.qk_rope_head_dim = latent.qk_rope_head_dim;
  spec.v_head_dim = latent.v_head_dim;
  spec.expands = options_.min_expanded_query_len > 0;
  double mscale = 1;
  if (rope.type != RopeType::kDefault && rope.mscale_all_dim > 0 && rope.factor > 1) {
    mscale = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
  }
  spec.softmax_scale = static_cast<float>(mscale * mscale / std::sqrt(static_cast<double>(spec.qk_head_dim())));
  return MultiHeadLatentAttention::create(parameters_, spec);
}

Result<std::unique_ptr<FeedForward>> PartFactory::experts(MixtureOfExpertsSpec spec) const {
  const ExpertConfig& experts = config_.experts;
  spec.hidden_size = config_.hidden_size;
  spec.num_experts = experts.num_experts;
  spec.num_experts_per_tok = experts.num_experts_per_tok;
  spec.intermediate_size = experts.intermediate_size;
  spec.shared_intermediate_size = experts.shared_intermediate_size;
  if (experts.shared_intermediate_size == 0) spec.shared_name.clear();
  spec.routing.normalises = experts.norm_topk_prob;
  spec.routing.min_sum = static_cast<float>(experts.norm_min);
  spec.routing.scale = static_cast<float>(experts.routed_scaling_factor);
  spec.routing.num_groups = experts.num_groups;
  spec.routing.num_chosen_groups = experts.num_chosen_groups;
  return MixtureOfExperts::create(parameters_, spec);
}

Result<LmHead> PartFactory::lm_head(const std::string& name, const VocabEmbedding& embedding) const {
  if (config_.tie_word_embeddings) return LmHead::tied(parameters_, name, embedding, config_.vocab_size);
  return LmHead::create(parameters_, name, config_.vocab_size, config_.hidden_size);
}

}  // namespace spate
