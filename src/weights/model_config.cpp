#include "weights/model_config.h"

#include <limits>

#include "weights/file_text.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_checkpoint.h"
#include "weights/json_fields.h"

namespace spate {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;

// What a family's configuration class in transformers assumes when config.json is silent. Llama's, where a family is
// not listed.
struct FamilyDefaults {
  std::string_view model_type;
  int64_t head_dim = 0;  // 0: hidden_size / num_heads
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
};
constexpr FamilyDefaults kLlamaDefaults{.model_type = "llama"};
constexpr FamilyDefaults kFamilyDefaults[] = {
    {.model_type = "qwen3", .head_dim = 128},
    {.model_type = "ernie4_5",
     .head_dim = 128,
     .rms_norm_eps = 1e-5,
     .rope_theta = 500000.0,
     .tie_word_embeddings = true},
};

const FamilyDefaults& family_defaults(std::string_view model_type) {
  for (const FamilyDefaults& defaults : kFamilyDefaults) {
    if (defaults.model_type == model_type) return defaults;
  }
  return kLlamaDefaults;
}

constexpr std::string_view kRopeTypeNames[] = {"default", "linear", "dynamic", "yarn", "llama3"};

void read_rope_scaling(JsonFields& fields, RopeConfig& rope) {
  std::string type = "default";
  fields.read("type", type);
  fields.read("rope_type", type);
  bool known = false;
  for (size_t i = 0; i < std::size(kRopeTypeNames); ++i) {
    if (type != kRopeTypeNames[i]) continue;
    rope.type = static_cast<RopeType>(i);
    known = true;
  }
  if (!known)
    return fields.problem(fmt::format("rope type \"{}\" is not one of {}", type, fmt::join(kRopeTypeNames, ", ")));

  fields.read("rope_theta", rope.theta, 1.001, 1e12);
  fields.read("partial_rotary_factor", rope.partial_rotary_factor, 0.01, 1.0);
  rope.factor = 0;
  fields.read("factor", rope.factor, 1.0, 1e6);
  fields.read("original_max_position_embeddings", rope.original_max_position_embeddings, 1, int64_t{1} << 28);
  fields.read("beta_fast", rope.beta_fast, 1e-3, 1e6);
  fields.read("beta_slow", rope.beta_slow, 1e-3, 1e6);
  fields.read("attention_factor", rope.attention_factor, 1e-3, 1e3);
  fields.read("mscale", rope.mscale, 0.0, 1e3);
  fields.read("mscale_all_dim", rope.mscale_all_dim, 0.0, 1e3);
  fields.read("truncate", rope.truncate);
  fields.read("low_freq_factor", rope.low_freq_factor, 1e-3, 1e6);
  fields.read("high_freq_factor", rope.high_freq_factor, 1e-3, 1e6);
  if (rope.type == RopeType::kLlama3 && rope.high_freq_factor <= rope.low_freq_factor) {
    fields.problem(fmt::format("rope high_freq_factor is {}, needs more than low_freq_factor {}", rope.high_freq_factor,
                               rope.low_freq_factor));
  }
  const bool derived = rope.type == RopeType::kYarn && rope.original_max_position_embeddings > 0;
  if (rope.type != RopeType::kDefault && rope.factor == 0 && !derived) {
    fields.problem(fmt::format("rope type \"{}\" needs a factor", type));
  }
}

void read_rope(JsonFields& fields, ModelConfig& config) {
  fields.read("rope_theta", config.rope.theta, 1.001, 1e12);
  fields.read("partial_rotary_factor", config.rope.partial_rotary_factor, 0.01, 1.0);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    auto rope = fields.object(key);
    if (!rope) continue;
    if (rope->has("full_attention") || rope->has("sliding_attention")) {
      fields.problem(fmt::format("{} differs between layer types, which no supported model needs", key));
      continue;
    }
    read_rope_scaling(*rope, config.rope);
  }
  fields.read("original_max_position_embeddings", config.rope.original_max_position_embeddings, 1, int64_t{1} << 28);
  RopeConfig& rope = config.rope;
  if (rope.original_max_position_embeddings == 0)
    rope.original_max_position_embeddings = config.max_position_embeddings;
  if (rope.factor == 0) {
    rope.factor = static_cast<double>(config.max_position_embeddings) /
                  static_cast<double>(std::max<int64_t>(rope.original_max_position_embeddings, 1));
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
  for (const auto& [key, value] : {std::pair{"vocab_size", config.vocab_size},
                                   {"hidden_size", config.hidden_size},
                                   {"intermediate_size", config.intermediate_size},
                                   {"num_hidden_layers", config.num_layers},
                                   {"num_attention_heads", config.num_heads},
                                   {"max_position_embeddings", config.max_position_embeddings}}) {
    if (value == 0) fields.problem(fmt::format("{} is missing", key));
  }
  if (config.num_heads == 0 || config.hidden_size == 0) return;
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_heads != 0) {
      fields.problem(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is missing",
                                 config.hidden_size, config.num_heads));
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.num_kv_heads == 0) config.num_kv_heads = config.num_heads;
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.problem(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}", config.num_heads,
                               config.num_kv_heads));
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
  if (config.hidden_act != "silu") fields.problem(fmt::format("hidden_act is \"{}\", needs silu", config.hidden_act));
}

}  // namespace

std::string_view rope_type_name(RopeType type) { return kRopeTypeNames[static_cast<size_t>(type)]; }

Result<ModelConfig> parse_model_config(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return data_loss("not a JSON object: {}", simdjson::error_message(error));
  }
  std::vector<std::string> problems;
  JsonFields fields(root, "", problems);
  ModelConfig config;

  std::vector<std::string> architectures;
  fields.read_strings("architectures", architectures);
  if (architectures.size() == 1)
    config.architecture = architectures[0];
  else
    fields.problem(fmt::format("architectures has {} entries, needs one", architectures.size()));
  fields.read("model_type", config.model_type);

  const FamilyDefaults& defaults = family_defaults(config.model_type);
  config.head_dim = defaults.head_dim;
  config.rms_norm_eps = defaults.rms_norm_eps;
  config.rope.theta = defaults.rope_theta;
  config.tie_word_embeddings = defaults.tie_word_embeddings;

  constexpr int64_t kMaxSize = 1 << 24;
  fields.read("vocab_size", config.vocab_size, 1, kMaxSize);
  fields.read("hidden_size", config.hidden_size, 1, 1 << 20);
  fields.read("intermediate_size", config.intermediate_size, 1, kMaxSize);
  fields.read("num_hidden_layers", config.num_layers, 1, 4096);
  fields.read("num_attention_heads", config.num_heads, 1, 4096);
  fields.read("num_key_value_heads", config.num_kv_heads, 1, 4096);
  fields.read("head_dim", config.head_dim, 1, 1024);
  fields.read("max_position_embeddings", config.max_position_embeddings, 1, kMaxSize);
  fields.read("rms_norm_eps", config.rms_norm_eps, 0.0, 1.0);
  fields.read("hidden_act", config.hidden_act);
  fields.read("tie_word_embeddings", config.tie_word_embeddings);
  fields.read("attention_bias", config.attention_bias);
  fields.read("mlp_bias", config.mlp_bias);
  fields.read("use_bias", config.use_bias);
  fields.read("sliding_window", config.sliding_window, 1, int64_t{1} << 30);
  fields.read("use_sliding_window", config.use_sliding_window);
  fields.read("max_window_layers", config.max_window_layers, 0, 4096);
  fields.read_strings("layer_types", config.layer_types);
  fields.read_ids("eos_token_id", config.eos_token_ids);
  fields.read_ids("bos_token_id", config.bos_token_ids);
  read_dtype(fields, config);
  read_rope(fields, config);
  check_sizes(fields, config);
  RETURN_IF_ERROR(problems_status(problems));
  return config;
}

Result<ModelConfig> load_model_config(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return not_found("{}: no such model; give a directory with config.json and *.safetensors, or a *.gguf file", path.string());
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
  return config;
}

}  // namespace spate
