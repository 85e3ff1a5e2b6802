#include "weights/expert_fields.h"

#include <algorithm>

namespace spate {
namespace {

// The first of these keys that is there.
std::string_view spelling(const JsonFields& fields, std::string_view key, std::string_view other) {
  return !fields.has(key) && fields.has(other) ? other : key;
}

constexpr int64_t kMaxExperts = 4096, kMaxExpertsPerTok = 64;

// Null where a number or a switch must be, for any of the families: the classes then fail, or take it for 0.
constexpr const char* kExpertKeys[] = {"num_local_experts",
                                       "num_experts",
                                       "moe_num_experts",
                                       "n_routed_experts",
                                       "num_experts_per_tok",
                                       "moe_k",
                                       "moe_intermediate_size",
                                       "shared_expert_intermediate_size",
                                       "moe_num_shared_experts",
                                       "n_shared_experts",
                                       "decoder_sparse_step",
                                       "first_k_dense_replace",
                                       "moe_layer_start_index",
                                       "moe_layer_interval",
                                       "norm_topk_prob",
                                       "routed_scaling_factor",
                                       "moe_norm_min"};

// Parts that other models of these shapes have, and this family's class has not: it would leave them out in silence.
void refuse_foreign_parts(JsonFields& fields, const FamilyClass& family) {
  int64_t shared_width = 0, num_selected = 0;
  if (family.expert_keys != ExpertKeys::kQwen || family.experts.shared_intermediate_size == 0) {
    fields.read("shared_expert_intermediate_size", shared_width, 0, 1 << 24);
    if (shared_width > 0) {
      fields.problem(fmt::format("shared_expert_intermediate_size is {}, but {} has no such expert", shared_width,
                                 family.architecture));
    }
  }
  fields.read("index_topk", num_selected, 0, 1 << 24);
  if (num_selected > 0) {
    fields.problem(fmt::format("index_topk is {}: sparse attention is not served, {} has none", num_selected,
                               family.architecture));
  }
}

void read_qwen_experts(JsonFields& fields, const ModelConfig& config, ExpertConfig& experts) {
  int64_t step = 1;
  std::vector<int32_t> dense_layers;
  fields.read("decoder_sparse_step", step, 1, 4096);
  fields.read_ids("mlp_only_layers", dense_layers);
  fields.read("norm_topk_prob", experts.norm_topk_prob);
  fields.read("moe_intermediate_size", experts.intermediate_size, 1, 1 << 24);
  if (experts.shared_intermediate_size > 0) {
    fields.read("shared_expert_intermediate_size", experts.shared_intermediate_size, 1, 1 << 24);
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const bool is_dense = std::find(dense_layers.begin(), dense_layers.end(), i) != dense_layers.end();
    experts.layers[static_cast<size_t>(i)] = !is_dense && (i + 1) % step == 0;
  }
  if (config.use_sliding_window && config.model_type == "qwen2_moe") {
    fields.problem("use_sliding_window is true, which is not served for Qwen2MoeForCausalLM: needs false");
  }
}

// Refuses another value than what the family's class computes.
void require_text(JsonFields& fields, std::string_view key, std::string_view needed, std::string_view architecture) {
  std::string value(needed);
  fields.read(key, value);
  if (value == needed) return;
  fields.problem(fmt::format("{} is \"{}\", needs \"{}\" for {}", key, value, needed, architecture));
}

void read_ernie_experts(JsonFields& fields, ModelConfig& config, ExpertConfig& experts) {
  int64_t num_shared = 2, first = 1, last = -1, interval = 1;
  fields.read("moe_intermediate_size", experts.intermediate_size, 1, 1 << 24);
  fields.read("moe_num_shared_experts", num_shared, 0, 1024);
  fields.read("moe_layer_start_index", first, 0, 4096);
  fields.read("moe_layer_end_index", last, -1, 4096);
  fields.read("moe_layer_interval", interval, 1, 4096);
  fields.read("moe_norm_min", experts.norm_min, 0.0, 1.0);
  require_text(fields, "moe_gate_act", "softmax", config.architecture);
  fields.read("num_nextn_predict_layers", config.num_mtp_layers, 0, 64);
  experts.shared_intermediate_size = num_shared * experts.intermediate_size;
  if (config.use_bias) fields.problem("use_bias is true, which is not served for Ernie4_5_MoeForCausalLM: needs false");
  for (int64_t i = 0; i < config.num_layers; ++i) {
    experts.layers[static_cast<size_t>(i)] = (i + 1) % interval == 0 && i >= first && (last == -1 || i <= last);
  }
}

void read_groups(JsonFields& fields, ExpertConfig& experts) {
  fields.read("n_group", experts.num_groups, 1, kMaxExperts);
  fields.read("topk_group", experts.num_chosen_groups, 1, kMaxExperts);
  const int64_t groups = experts.num_groups, size = experts.num_experts / groups;
  if (experts.num_experts % groups != 0) {
    fields.problem(fmt::format("n_group {} does not divide n_routed_experts {}", groups, experts.num_experts));
  } else if (experts.num_chosen_groups > groups || experts.num_experts_per_tok > size * experts.num_chosen_groups) {
    fields.problem(fmt::format("topk_group {} of n_group {} leaves less than num_experts_per_tok = {} of {} experts",
                               experts.num_chosen_groups, groups, experts.num_experts_per_tok, experts.num_experts));
  }
}

void read_deepseek_experts(JsonFields& fields, bool is_v3, ModelConfig& config, ExpertConfig& experts) {
  const bool is_glm = config.model_type == "glm4_moe";
  int64_t num_shared = is_v3 ? 1 : 2, num_dense = is_glm ? 1 : is_v3 ? 3 : 0, frequency = 1;
  fields.read("moe_intermediate_size", experts.intermediate_size, 1, 1 << 24);
  fields.read("n_shared_experts", num_shared, 1, 1024);
  fields.read("first_k_dense_replace", num_dense, 0, 4096);
  fields.read("moe_layer_freq", frequency, 1, 1 << 16);
  fields.read("routed_scaling_factor", experts.routed_scaling_factor, 0.0, 1e6);
  fields.read("norm_topk_prob", experts.norm_topk_prob);
  experts.shared_intermediate_size = num_shared * experts.intermediate_size;
  for (int64_t i = 0; i < config.num_layers; ++i) experts.layers[static_cast<size_t>(i)] = i >= num_dense;
  if (frequency != 1) {
    fields.problem(fmt::format("moe_layer_freq is {}, needs 1: {} in transformers knows no other", frequency,
                               config.architecture));
  }
  fields.read("num_nextn_predict_layers", config.num_mtp_layers, 0, 64);
  fields.read("num_mtp_layers", config.num_mtp_layers, 0, 64);
  require_text(fields, "scoring_func", is_v3 ? "sigmoid" : "softmax", config.architecture);
  if (is_v3) {
    require_text(fields, "topk_method", "noaux_tc", config.architecture);
    read_groups(fields, experts);
    if (experts.num_experts / experts.num_groups < 2) {
      fields.problem(fmt::format("n_group {} makes groups of one expert of {}; a group's score is of two",
                                 experts.num_groups, experts.num_experts));
    }
    return;
  }
  std::string method = "greedy";
  fields.read("topk_method", method);
  if (method == "group_limited_greedy") {
    for (const char* key : {"n_group", "topk_group"}) {
      if (!fields.has(key)) {
        fields.problem(fmt::format("topk_method is \"group_limited_greedy\", but {} is {}", key,
                                   fields.is_null(key) ? "null" : "missing"));
      }
    }
    read_groups(fields, experts);
  } else if (method != "greedy") {
    fields.problem(fmt::format("topk_method is \"{}\", needs greedy or group_limited_greedy", method));
  }
  if (experts.norm_topk_prob) {
    fields.problem("norm_topk_prob is true, needs false: DeepseekV2ForCausalLM in transformers divides by no sum");
  }
}

}  // namespace

void read_experts(JsonFields& fields, const FamilyClass& family, ModelConfig& config) {
  if (family.expert_keys == ExpertKeys::kNone) return;
  ExpertConfig& experts = config.experts = family.experts;
  const bool is_ernie = family.expert_keys == ExpertKeys::kErnie, is_v3 = family.expert_keys == ExpertKeys::kDeepseekV3;
  const bool is_deepseek = is_v3 || family.expert_keys == ExpertKeys::kDeepseekV2;
  const std::string_view count = is_ernie      ? spelling(fields, "moe_num_experts", "num_experts")
                                 : is_deepseek ? spelling(fields, "n_routed_experts", "num_local_experts")
                                               : spelling(fields, "num_experts", "num_local_experts");
  const std::string_view chosen = is_ernie ? spelling(fields, "moe_k", "num_experts_per_tok") : "num_experts_per_tok";
  for (const char* key : kExpertKeys) {
    if (fields.is_null(key)) fields.problem(fmt::format("{} is null, needs a value", key));
  }
  refuse_foreign_parts(fields, family);
  fields.read(count, experts.num_experts, 1, kMaxExperts);
  fields.read(chosen, experts.num_experts_per_tok, 1, kMaxExpertsPerTok);
  if (experts.num_experts_per_tok == 0) fields.problem(fmt::format("{} is missing", chosen));
  if (experts.num_experts_per_tok > experts.num_experts) {
    fields.problem(
        fmt::format("{} is {}, more than {} = {}", chosen, experts.num_experts_per_tok, count, experts.num_experts));
  }
  experts.layers.assign(static_cast<size_t>(config.num_layers), true);
  if (family.expert_keys == ExpertKeys::kMixtral) experts.intermediate_size = config.intermediate_size;
  if (family.expert_keys == ExpertKeys::kQwen) read_qwen_experts(fields, config, experts);
  if (is_ernie) read_ernie_experts(fields, config, experts);
  if (is_deepseek) read_deepseek_experts(fields, is_v3, config, experts);
  if (std::find(experts.layers.begin(), experts.layers.end(), true) == experts.layers.end()) {
    fields.problem("no layer has experts; use the dense architecture");
  }
}

}  // namespace spate
