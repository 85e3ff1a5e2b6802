// What the metadata of a GGUF file says of experts and of latent attention, in the words of each family's config.json.
#include <initializer_list>
#include <utility>

#include "weights/gguf_metadata.h"

namespace spate {
namespace {

// A key of the metadata, and what config.json calls it.
struct KeyPair {
  std::string_view gguf, hugging_face;
};

Status copy_all(const GgufMetadata& metadata, std::initializer_list<KeyPair> keys, ConfigJson& json) {
  for (const KeyPair& key : keys) RETURN_IF_ERROR(metadata.copy_int(key.gguf, key.hugging_face, json));
  return ok_status();
}

// Families whose config.json knows one kind of score.
Status require_scores(const GgufMetadata& metadata, bool is_sigmoid) {
  ASSIGN_OR_RETURN(const bool has_sigmoid, has_sigmoid_experts(metadata));
  if (has_sigmoid == is_sigmoid || !metadata.has("expert_gating_func")) return ok_status();
  return unimplemented("{}.expert_gating_func is {}, needs {}", metadata.architecture(), has_sigmoid ? 2 : 1,
                       is_sigmoid ? "2 (sigmoid)" : "1 (softmax)");
}

// Qwen's and Mixtral's weights of a token's experts are never scaled.
Status require_no_scale(const GgufMetadata& metadata) {
  ASSIGN_OR_RETURN(const double scale, metadata.get_number("expert_weights_scale", 1));
  if (scale == 1 || scale == 0) return ok_status();  // 0: converters' word for none
  return unimplemented("{}.expert_weights_scale is {}, needs 1", metadata.architecture(), scale);
}

Status read_qwen(const GgufMetadata& metadata, bool is_qwen2, ConfigJson& json) {
  RETURN_IF_ERROR(
      copy_all(metadata, {{"expert_count", "num_experts"}, {"expert_used_count", "num_experts_per_tok"}}, json));
  ASSIGN_OR_RETURN(const int64_t width, metadata.get_int("feed_forward_length"));
  ASSIGN_OR_RETURN(const int64_t num_used, metadata.get_int("expert_used_count"));
  // The oldest files have one width, of all experts that a token uses.
  const int64_t missing = num_used > 0 ? width / num_used : 0;
  ASSIGN_OR_RETURN(const int64_t expert_width, metadata.get_int("expert_feed_forward_length", missing));
  json.add("moe_intermediate_size", expert_width);
  ASSIGN_OR_RETURN(const bool normalises, metadata.get_bool("expert_weights_norm", !is_qwen2));
  json.add("norm_topk_prob", normalises);
  if (!is_qwen2) return ok_status();
  ASSIGN_OR_RETURN(const int64_t shared_width, metadata.get_int("expert_shared_feed_forward_length", width));
  json.add("shared_expert_intermediate_size", shared_width);
  return ok_status();
}

// expert_shared_feed_forward_length is not looked at: converters write another number there.
Status read_ernie(const GgufMetadata& metadata, ConfigJson& json) {
  RETURN_IF_ERROR(copy_all(metadata,
                           {{"expert_count", "moe_num_experts"},
                            {"expert_used_count", "moe_k"},
                            {"expert_feed_forward_length", "moe_intermediate_size"}},
                           json));
  const std::pair<KeyPair, int64_t> others[] = {
      {{"expert_shared_count", "moe_num_shared_experts"}, 0},
      {{"leading_dense_block_count", "moe_layer_start_index"}, 0},
      {{"interleave_moe_layer_step", "moe_layer_interval"}, 1},
  };
  for (const auto& [key, missing] : others) {
    ASSIGN_OR_RETURN(const int64_t value, metadata.get_int(key.gguf, missing));
    json.add(key.hugging_face, value);
  }
  return ok_status();
}

// DeepSeek-V2, V3 and GLM-4.5.
Status read_deepseek(const GgufMetadata& metadata, std::string_view model_type, ConfigJson& json) {
  RETURN_IF_ERROR(copy_all(metadata,
                           {{"expert_count", "n_routed_experts"},
                            {"expert_used_count", "num_experts_per_tok"},
                            {"expert_feed_forward_length", "moe_intermediate_size"},
                            {"expert_shared_count", "n_shared_experts"}},
                           json));
  ASSIGN_OR_RETURN(const int64_t num_dense, metadata.get_int("leading_dense_block_count", 0));
  json.add("first_k_dense_replace", num_dense);
  ASSIGN_OR_RETURN(const double scale, metadata.get_number("expert_weights_scale", 1));
  json.add("routed_scaling_factor", scale == 0 ? 1 : scale);
  ASSIGN_OR_RETURN(const bool normalises, metadata.get_bool("expert_weights_norm", false));
  json.add("norm_topk_prob", normalises);
  ASSIGN_OR_RETURN(const int64_t num_groups, metadata.get_int("expert_group_count", 1));
  ASSIGN_OR_RETURN(const int64_t num_chosen, metadata.get_int("expert_group_used_count", 1));
  json.add("n_group", num_groups);
  json.add("topk_group", num_chosen);
  if (model_type == "deepseek_v2") {
    json.add_string("topk_method", num_groups > 1 ? "group_limited_greedy" : "greedy");
  }
  return ok_status();
}

}  // namespace

Result<bool> has_sigmoid_experts(const GgufMetadata& metadata) {
  ASSIGN_OR_RETURN(const int64_t function, metadata.get_int("expert_gating_func", 1));
  if (function == 1 || function == 2) return function == 2;
  return unimplemented("{}.expert_gating_func is {}; 1 (softmax) and 2 (sigmoid) are read", metadata.architecture(),
                       function);
}

Status read_gguf_experts(const GgufMetadata& metadata, std::string_view model_type, ConfigJson& json) {
  const bool is_qwen2 = model_type == "qwen2_moe", is_deepseek = model_type.starts_with("deepseek");
  if (model_type == "mixtral" || is_qwen2 || model_type == "qwen3_moe") {
    RETURN_IF_ERROR(require_scores(metadata, false));
    RETURN_IF_ERROR(require_no_scale(metadata));
    if (model_type != "mixtral") return read_qwen(metadata, is_qwen2, json);
    return copy_all(metadata, {{"expert_count", "num_local_experts"}, {"expert_used_count", "num_experts_per_tok"}},
                    json);
  }
  if (model_type == "ernie4_5_moe") {
    RETURN_IF_ERROR(require_scores(metadata, false));
    RETURN_IF_ERROR(require_no_scale(metadata));
    return read_ernie(metadata, json);
  }
  if (model_type == "glm4_moe") RETURN_IF_ERROR(require_scores(metadata, true));
  return is_deepseek || model_type == "glm4_moe" ? read_deepseek(metadata, model_type, json) : ok_status();
}

// Newer files call the latent vector one head, keys and values alike, and have widths of heads under keys that end
// with _mla.
Status read_gguf_latent(const GgufMetadata& metadata, ConfigJson& json) {
  RETURN_IF_ERROR(metadata.copy_int("attention.kv_lora_rank", "kv_lora_rank", json));
  RETURN_IF_ERROR(metadata.copy_int("rope.dimension_count", "qk_rope_head_dim", json));
  if (metadata.has("attention.q_lora_rank")) {
    RETURN_IF_ERROR(metadata.copy_int("attention.q_lora_rank", "q_lora_rank", json));
  } else {
    json.add("q_lora_rank", "null");
  }
  const bool has_mla = metadata.has("attention.key_length_mla");
  ASSIGN_OR_RETURN(const int64_t rope, metadata.get_int("rope.dimension_count"));
  ASSIGN_OR_RETURN(const int64_t width,
                   metadata.get_int(has_mla ? "attention.key_length_mla" : "attention.key_length"));
  if (width <= rope) {
    return data_loss("{}.attention.key_length{} is {}, needs more than rope.dimension_count = {}",
                     metadata.architecture(), has_mla ? "_mla" : "", width, rope);
  }
  json.add("qk_nope_head_dim", width - rope);
  return metadata.copy_int(has_mla ? "attention.value_length_mla" : "attention.value_length", "v_head_dim", json);
}

}  // namespace spate
