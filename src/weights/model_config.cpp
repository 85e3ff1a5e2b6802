#include "weights/model_config.h"

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "weights/file_text.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_checkpoint.h"
#include "weights/json_fields.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

// Whose keys say what a model's experts are.
enum class ExpertKeys : uint8_t { kNone, kMixtral, kQwen, kErnie, kDeepseekV2, kDeepseekV3 };

// What a family's configuration class in transformers assumes when config.json is silent. Llama's values, where a
// family has no own. A null is not silence: it means "none" or "derived" where the class allows it, else it is refused.
struct FamilyClass {
  std::string_view model_type;
  std::string_view architecture;
  std::string_view other_architecture = "";  // another spelling of it
  int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_layers = 32, num_heads = 32;
  int64_t num_kv_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;      // 0: hidden_size / num_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  int64_t sliding_window = 0;                  // 0: the family has no window
  int32_t bos_token_id = 1, eos_token_id = 2;  // -1: none
  bool has_window_switch = false;              // use_sliding_window, max_window_layers (28)
  std::string_view nullable;                   // which of num_key_value_heads and head_dim may be null
  bool may_slide = false;                      // config.json may give a window, though the class has none
  ExpertKeys expert_keys = ExpertKeys::kNone;
  ExpertConfig experts;
  LatentConfig latent;
  double partial_rotary_factor = 0;  // 0: heads are rotated whole, and config.json may not say otherwise
};
const FamilyClass kFamilyClasses[] = {
    {.model_type = "llama", .architecture = "LlamaForCausalLM", .nullable = "num_key_value_heads head_dim"},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .intermediate_size = 14336,
     .num_kv_heads = 8,
     .max_position_embeddings = 131072,
     .sliding_window = 4096,
     .nullable = "head_dim"},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .vocab_size = 151936,
     .intermediate_size = 22016,
     .num_kv_heads = 32,
     .max_position_embeddings = 32768,
     .sliding_window = 4096,
     .bos_token_id = -1,
     .eos_token_id = -1,
     .has_window_switch = true,
     .nullable = "num_key_value_heads"},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .vocab_size = 151936,
     .intermediate_size = 22016,
     .num_kv_heads = 32,
     .head_dim = 128,
     .max_position_embeddings = 32768,
     .sliding_window = 4096,
     .bos_token_id = -1,
     .eos_token_id = -1,
     .has_window_switch = true,
     .nullable = "num_key_value_heads"},
    {.model_type = "ernie4_5",
     .architecture = "Ernie4_5ForCausalLM",
     .other_architecture = "Ernie4_5_ForCausalLM",  // as Baidu's own repositories spell it
     .vocab_size = 103424,
     .hidden_size = 1024,
     .intermediate_size = 3072,
     .num_layers = 18,
     .num_heads = 16,
     .num_kv_heads = 2,
     .head_dim = 128,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .rope_theta = 500000.0,
     .tie_word_embeddings = true,
     .nullable = "num_key_value_heads head_dim"},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .intermediate_size = 14336,
     .num_kv_heads = 8,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .rope_theta = 1e6,
     .nullable = "num_key_value_heads head_dim",
     .may_slide = true,
     .expert_keys = ExpertKeys::kMixtral,
     .experts = {.num_experts = 8, .num_experts_per_tok = 2, .norm_topk_prob = true}},
    {.model_type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .vocab_size = 151936,
     .hidden_size = 2048,
     .intermediate_size = 5632,
     .num_layers = 24,
     .num_heads = 16,
     .num_kv_heads = 16,
     .max_position_embeddings = 32768,
     .sliding_window = 4096,
     .bos_token_id = -1,
     .eos_token_id = -1,
     .has_window_switch = true,
     .nullable = "num_key_value_heads",
     .expert_keys = ExpertKeys::kQwen,
     .experts =
         {.num_experts = 60, .num_experts_per_tok = 4, .intermediate_size = 1408, .shared_intermediate_size = 5632}},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .vocab_size = 151936,
     .hidden_size = 2048,
     .intermediate_size = 6144,
     .num_layers = 24,
     .num_heads = 32,
     .num_kv_heads = 4,
     .max_position_embeddings = 32768,
     .sliding_window = 4096,
     .bos_token_id = -1,
     .eos_token_id = -1,
     .has_window_switch = true,
     .expert_keys = ExpertKeys::kQwen,
     .experts = {.num_experts = 128, .num_experts_per_tok = 8, .intermediate_size = 768}},
    {.model_type = "ernie4_5_moe",
     .architecture = "Ernie4_5_MoeForCausalLM",
     .vocab_size = 103424,
     .hidden_size = 2560,
     .intermediate_size = 12288,
     .num_layers = 28,
     .num_heads = 20,
     .num_kv_heads = 4,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .rope_theta = 500000.0,
     .tie_word_embeddings = true,
     .nullable = "num_key_value_heads head_dim",
     .expert_keys = ExpertKeys::kErnie,
     .experts = {.num_experts = 64,
                 .num_experts_per_tok = 6,
                 .intermediate_size = 1536,
                 .norm_topk_prob = true,
                 .norm_min = 1e-12}},
    {.model_type = "glm4_moe",
     .architecture = "Glm4MoeForCausalLM",
     .vocab_size = 151552,
     .intermediate_size = 10944,
     .num_layers = 46,
     .num_heads = 96,
     .num_kv_heads = 8,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-5,
     .bos_token_id = -1,
     .eos_token_id = -1,
     .expert_keys = ExpertKeys::kDeepseekV3,
     .experts = {.num_experts = 128,
                 .num_experts_per_tok = 8,
                 .intermediate_size = 1408,
                 .norm_topk_prob = true,
                 .norm_min = 1e-20},
     .partial_rotary_factor = 0.5},
    {.model_type = "deepseek_v2",
     .architecture = "DeepseekV2ForCausalLM",
     .vocab_size = 102400,
     .max_position_embeddings = 2048,
     .nullable = "num_key_value_heads head_dim",
     .expert_keys = ExpertKeys::kDeepseekV2,
     .experts = {.num_experts = 64, .intermediate_size = 1407},
     .latent = {.kv_lora_rank = 512,
                .q_lora_rank = 1536,
                .qk_nope_head_dim = 128,
                .qk_rope_head_dim = 64,
                .v_head_dim = 128}},
    {.model_type = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .vocab_size = 129280,
     .hidden_size = 7168,
     .intermediate_size = 18432,
     .num_layers = 61,
     .num_heads = 128,
     .max_position_embeddings = 4096,
     .bos_token_id = 0,
     .eos_token_id = 1,
     .nullable = "num_key_value_heads head_dim",
     .expert_keys = ExpertKeys::kDeepseekV3,
     .experts = {.num_experts = 256,
                 .num_experts_per_tok = 8,
                 .intermediate_size = 2048,
                 .norm_topk_prob = true,
                 .norm_min = 1e-20,
                 .routed_scaling_factor = 2.5,
                 .num_groups = 8,
                 .num_chosen_groups = 4},
     .latent = {.kv_lora_rank = 512,
                .q_lora_rank = 1536,
                .qk_nope_head_dim = 128,
                .qk_rope_head_dim = 64,
                .v_head_dim = 128}},
};
constexpr int64_t kDefaultMaxWindowLayers = 28;

// "LlamaForCausalLM", and "LlamaModel", whose files lack lm_head and the names' prefix.
bool has_architecture(const FamilyClass& family, std::string_view architecture) {
  const std::string_view base = family.architecture.substr(0, family.architecture.find("ForCausalLM"));
  return architecture == family.architecture || (architecture == family.other_architecture && !architecture.empty()) ||
         (architecture.starts_with(base) && architecture.substr(base.size()) == "Model");
}

// The class that transformers would choose: model_type says which. Null for a family that is not known here; the
// families themselves refuse it by its architecture.
const FamilyClass* read_family(JsonFields& fields, std::string_view read_as, ModelConfig& config) {
  for (const FamilyClass& family : kFamilyClasses) {
    if (read_as != family.architecture) continue;
    config.architecture = family.architecture;
    config.model_type = family.model_type;
    return &family;
  }
  std::vector<std::string> architectures;
  fields.read_strings("architectures", architectures);
  if (architectures.size() > 1) {
    fields.problem(fmt::format("architectures has {} entries, needs one", architectures.size()));
  }
  if (!architectures.empty()) config.architecture = architectures[0];
  fields.read("model_type", config.model_type);
  const FamilyClass *by_type = nullptr, *by_architecture = nullptr;
  for (const FamilyClass& family : kFamilyClasses) {
    if (family.model_type == config.model_type) by_type = &family;
    if (has_architecture(family, config.architecture)) by_architecture = &family;
  }
  if (config.architecture.empty() && config.model_type.empty()) {
    fields.problem("architectures and model_type are missing");
  } else if (config.architecture.empty() && by_type == nullptr) {
    fields.problem(fmt::format("architectures is missing, and model_type \"{}\" is not known", config.model_type));
  } else if (!config.architecture.empty() && !config.model_type.empty() && by_type != by_architecture) {
    // transformers goes by model_type, other engines by architectures.
    fields.problem(by_architecture != nullptr
                       ? fmt::format("model_type is \"{}\", but architectures is \"{}\", which is of model_type \"{}\"",
                                     config.model_type, config.architecture, by_architecture->model_type)
                       : fmt::format("architectures is \"{}\", but model_type is \"{}\", which is of {}",
                                     config.architecture, config.model_type, by_type->architecture));
  }
  const FamilyClass* family = by_type != nullptr ? by_type : by_architecture;
  if (family != nullptr) {
    config.architecture = family->architecture;
    config.model_type = family->model_type;
  }
  return family;
}

// Of an architecture that is not known here. What else its config.json says is of a class that nobody runs: "hidden_act
// needs silu" would be read as advice.
Status unknown_architecture(const ModelConfig& config) {
  std::vector<std::string_view> names;
  for (const FamilyClass& family : kFamilyClasses) names.push_back(family.architecture);
  std::sort(names.begin(), names.end());
  return invalid_argument("architectures is \"{}\"; this build runs {}", config.architecture, fmt::join(names, ", "));
}

void set_defaults(const FamilyClass& family, ModelConfig& config) {
  config.vocab_size = family.vocab_size;
  config.hidden_size = family.hidden_size;
  config.intermediate_size = family.intermediate_size;
  config.num_layers = family.num_layers;
  config.num_heads = family.num_heads;
  config.num_kv_heads = family.num_kv_heads;
  config.head_dim = family.head_dim;
  config.max_position_embeddings = family.max_position_embeddings;
  config.rms_norm_eps = family.rms_norm_eps;
  config.rope.theta = family.rope_theta;
  config.tie_word_embeddings = family.tie_word_embeddings;
  if (family.partial_rotary_factor > 0) config.rope.partial_rotary_factor = family.partial_rotary_factor;
}

void refuse_nulls(JsonFields& fields, const FamilyClass& family) {
  const auto refuse = [&](std::string_view key) {
    if (fields.is_null(key)) fields.problem(fmt::format("{} is null, needs a value", key));
  };
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings"}) {
    refuse(key);
  }
  for (const std::string_view key : {"num_key_value_heads", "head_dim"}) {
    if (family.nullable.find(key) == std::string_view::npos) refuse(key);
  }
  if (family.has_window_switch) {
    refuse("use_sliding_window");
    refuse("max_window_layers");
  }
}

constexpr std::string_view kRopeTypeNames[] = {"default", "linear", "dynamic", "yarn", "llama3"};

bool read_rope_type(JsonFields& fields, RopeConfig& rope) {
  const std::string_view key = fields.has("rope_type") || fields.is_null("rope_type") ? "rope_type" : "type";
  if (fields.is_null(key)) {
    fields.problem(fmt::format("{}{} is null, needs one of {}", fields.prefix(), key, fmt::join(kRopeTypeNames, ", ")));
    return false;
  }
  std::string type = "default";
  fields.read(key, type);
  for (size_t i = 0; i < std::size(kRopeTypeNames); ++i) {
    if (type != kRopeTypeNames[i]) continue;
    rope.type = static_cast<RopeType>(i);
    return true;
  }
  fields.problem(fmt::format("rope type \"{}\" is not one of {}", type, fmt::join(kRopeTypeNames, ", ")));
  return false;
}

void read_rope_scaling(JsonFields& fields, RopeConfig& rope) {
  if (!read_rope_type(fields, rope)) return;
  fields.read("rope_theta", rope.theta, 1.001, 1e12);
  fields.read("partial_rotary_factor", rope.partial_rotary_factor, 0.01, 1.0);
  if (rope.type == RopeType::kDefault) return;  // transformers looks at no other key
  const auto require = [&](std::string_view key) {
    if (fields.has(key)) return;
    // YaRN's factor alone may be null: it is derived.
    if (rope.type == RopeType::kYarn && fields.is_null(key)) return;
    fields.problem(fmt::format("{}{} is {}, and rope type \"{}\" needs it", fields.prefix(), key,
                               fields.is_null(key) ? "null" : "missing", rope_type_name(rope.type)));
  };
  require("factor");
  rope.factor = 0;
  fields.read("factor", rope.factor, 1.0, 1e6);
  fields.read("original_max_position_embeddings", rope.original_max_position_embeddings, 1, int64_t{1} << 28);
  if (rope.type == RopeType::kYarn) {
    fields.read("beta_fast", rope.beta_fast, 1e-3, 1e6);
    fields.read("beta_slow", rope.beta_slow, 1e-3, 1e6);
    fields.read("attention_factor", rope.attention_factor, 1e-3, 1e3);
    fields.read("mscale", rope.mscale, 0.0, 1e3);
    fields.read("mscale_all_dim", rope.mscale_all_dim, 0.0, 1e3);
    rope.truncate = !fields.is_null("truncate");  // null counts as false
    fields.read("truncate", rope.truncate);
  } else if (rope.type == RopeType::kLlama3) {
    require("low_freq_factor");
    require("high_freq_factor");
    fields.read("low_freq_factor", rope.low_freq_factor, 1e-3, 1e6);
    fields.read("high_freq_factor", rope.high_freq_factor, 1e-3, 1e6);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      fields.problem(fmt::format("rope high_freq_factor is {}, needs more than low_freq_factor {}",
                                 rope.high_freq_factor, rope.low_freq_factor));
    }
  }
}

// transformers: a rope_scaling with a key in it replaces rope_parameters, theta included.
std::optional<JsonFields> rope_object(JsonFields& fields) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    std::optional<JsonFields> rope = fields.object(key);
    if (!rope || rope->empty()) continue;
    rope->refuse_repeated_keys();
    return rope;
  }
  return std::nullopt;
}

void read_rope(JsonFields& fields, const FamilyClass& family, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  fields.read("rope_theta", rope.theta, 1.001, 1e12);
  fields.read("partial_rotary_factor", rope.partial_rotary_factor, 0.01, 1.0);
  std::optional<JsonFields> object = rope_object(fields);
  if (object && (object->has("full_attention") || object->has("sliding_attention"))) {
    fields.problem(fmt::format("{} differs between layer types, which no supported model needs",
                               object->prefix().substr(0, object->prefix().size() - 1)));
  } else if (object) {
    read_rope_scaling(*object, rope);
  }
  const bool has_own_theta = object && object->has("rope_theta");
  if ((object && object->is_null("rope_theta")) || (!has_own_theta && fields.is_null("rope_theta"))) {
    fields.problem("rope_theta is null, needs a number");
  }
  if (rope.partial_rotary_factor != 1.0 && family.partial_rotary_factor == 0) {
    // With plain RoPE the classes of these families rotate the whole head nevertheless, with scaled RoPE they fail.
    fields.problem(fmt::format("partial_rotary_factor is {}, needs 1: {} in transformers has no partial rotation",
                               rope.partial_rotary_factor, config.architecture));
  }
  fields.read("original_max_position_embeddings", rope.original_max_position_embeddings, 1, int64_t{1} << 28);
  if (rope.original_max_position_embeddings == 0)
    rope.original_max_position_embeddings = config.max_position_embeddings;
  if (rope.factor == 0) {
    rope.factor = static_cast<double>(config.max_position_embeddings) /
                  static_cast<double>(std::max<int64_t>(rope.original_max_position_embeddings, 1));
  }
}

void read_window(JsonFields& fields, const FamilyClass& family, ModelConfig& config) {
  fields.read_strings("layer_types", config.layer_types);
  bool is_used = true;
  if (family.has_window_switch) {
    fields.read("use_sliding_window", config.use_sliding_window);
    is_used = config.use_sliding_window;
    config.max_window_layers = kDefaultMaxWindowLayers;
    fields.read("max_window_layers", config.max_window_layers, 0, 4096);
  }
  if (is_used) {
    if (!fields.is_null("sliding_window")) config.sliding_window = family.sliding_window;
    fields.read("sliding_window", config.sliding_window, 1, int64_t{1} << 30);
  }
  const bool slides_never = family.sliding_window == 0 && !family.may_slide;
  if (slides_never && config.sliding_window > 0) {
    if (config.sliding_window < config.max_position_embeddings) {
      // There the cache forgets what the mask still allows.
      fields.problem(
          fmt::format("sliding_window is {}, which {} does not have", config.sliding_window, family.architecture));
    }
    config.sliding_window = 0;
  }
  const bool slides =
      std::find(config.layer_types.begin(), config.layer_types.end(), "sliding_attention") != config.layer_types.end();
  if (slides && config.sliding_window == 0) {
    fields.problem(fmt::format("layer_types has sliding_attention, but {}",
                               family.sliding_window == 0 ? fmt::format("{} has no window", family.architecture)
                               : is_used                  ? "sliding_window is null"
                                                          : "use_sliding_window is false"));
  }
}

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

void read_latent(JsonFields& fields, const FamilyClass& family, ModelConfig& config) {
  if (family.latent.kv_lora_rank == 0) return;
  LatentConfig& latent = config.latent = family.latent;
  if (fields.is_null("q_lora_rank")) latent.q_lora_rank = 0;
  fields.read("q_lora_rank", latent.q_lora_rank, 1, 1 << 20);
  fields.read("kv_lora_rank", latent.kv_lora_rank, 1, 1 << 14);
  fields.read("qk_nope_head_dim", latent.qk_nope_head_dim, 1, 1 << 12);
  fields.read("qk_rope_head_dim", latent.qk_rope_head_dim, 2, 1 << 12);
  fields.read("v_head_dim", latent.v_head_dim, 1, 1 << 12);
  fields.read("rope_interleave", config.rope_interleave);
  if (config.num_kv_heads != 0 && config.num_kv_heads != config.num_heads) {
    fields.problem(fmt::format("num_key_value_heads is {}, needs num_attention_heads = {}: latent attention has no other",
                               config.num_kv_heads, config.num_heads));
  }
  config.num_kv_heads = config.num_heads;
  config.head_dim = latent.qk_rope_head_dim;
}

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

void read_dtype(JsonFields& fields, ModelConfig& config) {
  std::string dtype;
  fields.read("torch_dtype", dtype);
  fields.read("dtype", dtype);
  if (dtype.starts_with("torch.")) dtype.erase(0, 6);
  if (dtype.empty() || dtype == "bfloat16")
    config.torch_dtype = DType::kBf16;
  else if (dtype == "float16")
    config.torch_dtype = DType::kF16;
  else if (dtype == "float32")
    config.torch_dtype = DType::kF32;
  else
    fields.problem(fmt::format("torch_dtype is \"{}\", needs bfloat16, float16 or float32", dtype));
}

void check_sizes(JsonFields& fields, ModelConfig& config) {
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_heads != 0) {
      fields.problem(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is missing",
                                 config.hidden_size, config.num_heads));
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.num_kv_heads == 0) config.num_kv_heads = config.num_heads;
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.problem(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}{}", config.num_heads,
                               config.num_kv_heads,
                               fields.has("num_key_value_heads") ? "" : ", the default of a missing one"));
  }
  if (config.rotary_dim() < 2 || config.rotary_dim() % 2 != 0) {
    fields.problem(fmt::format("head_dim {} x partial_rotary_factor {} gives {} rotated elements, needs an even number",
                               config.head_dim, config.rope.partial_rotary_factor, config.rotary_dim()));
  }
  if (config.rope.type == RopeType::kDynamic && config.rotary_dim() < 4) {
    fields.problem(fmt::format("rope type \"dynamic\" needs at least 4 rotated elements, not {}", config.rotary_dim()));
  }
  if (!config.layer_types.empty() && static_cast<int64_t>(config.layer_types.size()) != config.num_layers) {
    fields.problem(fmt::format("layer_types has {} entries, needs num_hidden_layers = {}", config.layer_types.size(),
                               config.num_layers));
  }
  for (const std::string& type : config.layer_types) {
    if (type == "full_attention" || type == "sliding_attention") continue;
    fields.problem(fmt::format("layer_types has \"{}\", needs full_attention or sliding_attention", type));
    break;
  }
  if (config.hidden_act == "swish") config.hidden_act = "silu";  // the same function
  if (config.hidden_act != "silu") fields.problem(fmt::format("hidden_act is \"{}\", needs silu", config.hidden_act));
}

// Whether the directory's weights hold an lm_head that is not the embedding table over again. A checkpoint that cannot
// be opened has none: opening its weights says what is wrong.
bool has_own_lm_head(const std::filesystem::path& dir) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir);
  if (!checkpoint.ok()) return false;
  const TensorEntry* lm_head = checkpoint->find("lm_head.weight");
  if (lm_head == nullptr) {  // perhaps as codes: lm_head.qweight, lm_head.weight_packed
    return std::any_of(checkpoint->entries().begin(), checkpoint->entries().end(),
                       [](const TensorEntry& entry) { return entry.name.starts_with("lm_head."); });
  }
  const TensorEntry* embed_tokens = checkpoint->find("model.embed_tokens.weight");
  return embed_tokens != nullptr && (lm_head->dtype_name != embed_tokens->dtype_name ||
                                     checkpoint->bytes(*lm_head) != checkpoint->bytes(*embed_tokens));
}

}  // namespace

std::string_view rope_type_name(RopeType type) { return kRopeTypeNames[static_cast<size_t>(type)]; }

Result<ModelConfig> parse_model_config(std::string_view json, std::string_view read_as) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return data_loss("not a JSON object: {}", simdjson::error_message(error));
  }
  std::vector<std::string> problems;
  JsonFields fields(root, "", problems);
  fields.refuse_repeated_keys();
  ModelConfig config;

  const FamilyClass* known = read_family(fields, read_as, config);
  const FamilyClass& family = known != nullptr ? *known : kFamilyClasses[0];
  if (known == nullptr) RETURN_IF_ERROR(problems_status(problems));
  set_defaults(family, config);
  refuse_nulls(fields, family);

  constexpr int64_t kMaxSize = 1 << 24;
  fields.read("vocab_size", config.vocab_size, 1, kMaxSize);
  fields.read("hidden_size", config.hidden_size, 1, 1 << 20);
  fields.read("intermediate_size", config.intermediate_size, 1, kMaxSize);
  fields.read("num_hidden_layers", config.num_layers, 1, 4096);
  fields.read("num_attention_heads", config.num_heads, 1, 4096);
  if (fields.is_null("num_key_value_heads")) config.num_kv_heads = 0;
  fields.read("num_key_value_heads", config.num_kv_heads, 1, 4096);
  if (fields.is_null("head_dim")) config.head_dim = 0;
  fields.read("head_dim", config.head_dim, 1, 1024);
  fields.read("max_position_embeddings", config.max_position_embeddings, 1, kMaxSize);
  fields.read("rms_norm_eps", config.rms_norm_eps, 0.0, 1.0);
  fields.read("hidden_act", config.hidden_act);
  fields.read("tie_word_embeddings", config.tie_word_embeddings);
  fields.read("attention_bias", config.attention_bias);
  fields.read("mlp_bias", config.mlp_bias);
  fields.read("use_bias", config.use_bias);
  fields.read("qkv_bias", config.qkv_bias);
  fields.read("use_qk_norm", config.use_qk_norm);
  read_window(fields, family, config);
  read_experts(fields, family, config);
  read_latent(fields, family, config);
  if (!fields.is_null("eos_token_id") && family.eos_token_id >= 0) config.eos_token_ids = {family.eos_token_id};
  if (!fields.is_null("bos_token_id") && family.bos_token_id >= 0) config.bos_token_ids = {family.bos_token_id};
  fields.read_ids("eos_token_id", config.eos_token_ids);
  fields.read_ids("bos_token_id", config.bos_token_ids);
  read_dtype(fields, config);
  read_rope(fields, family, config);
  check_sizes(fields, config);
  if (known == nullptr && !problems.empty()) return unknown_architecture(config);
  RETURN_IF_ERROR(problems_status(problems));
  return config;
}

Result<ModelConfig> load_model_config(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return not_found("{}: no such model; give a directory with config.json and *.safetensors, or a *.gguf file",
                     path.string());
  }
  if (is_gguf_path(path)) {
    ASSIGN_OR_RETURN(const std::unique_ptr<GgufCheckpoint> gguf, GgufCheckpoint::open(path));
    Result<ModelConfig> config = gguf->model_config();
    if (!config.ok()) return config.status().with_context(path.string());
    return config;
  }
  const auto file = std::filesystem::is_directory(path, error) ? path / "config.json" : path;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kMaxConfigBytes));
  Result<ModelConfig> config = parse_model_config(text);
  if (!config.ok()) return config.status().with_context(file.string());
  if (config->tie_word_embeddings && has_own_lm_head(file.parent_path())) {
    log_warning(
        "model",
        "{}: tie_word_embeddings is true, but the checkpoint has an lm_head that differs from embed_tokens; the "
        "lm_head is used, as in transformers",
        file.string());
    config->tie_word_embeddings = false;
  }
  return config;
}

}  // namespace spate
