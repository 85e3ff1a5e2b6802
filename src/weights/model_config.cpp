#include "weights/model_config.h"

#include <algorithm>

#include "base/log.h"
#include "weights/expert_fields.h"
#include "weights/family_classes.h"
#include "weights/file_text.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_checkpoint.h"
#include "weights/json_fields.h"
#include "weights/rope_fields.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

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
  for (const FamilyClass& family : family_classes()) {
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
  for (const FamilyClass& family : family_classes()) {
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
  for (const FamilyClass& family : family_classes()) names.push_back(family.architecture);
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
  const FamilyClass& family = known != nullptr ? *known : family_classes().front();
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
