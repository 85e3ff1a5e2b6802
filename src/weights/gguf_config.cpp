// The metadata of a GGUF file as the config.json that the model was converted from, so that both go through one reader
// and its checks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "weights/gguf_checkpoint.h"
#include "weights/gguf_metadata.h"

namespace spate {
namespace {

struct Architecture {
  std::string_view gguf, model_type;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama"},        {"qwen2", "qwen2"},       {"qwen2moe", "qwen2_moe"},        {"qwen3", "qwen3"},
    {"qwen3moe", "qwen3_moe"}, {"ernie4_5", "ernie4_5"}, {"ernie4_5-moe", "ernie4_5_moe"}, {"deepseek2", "deepseek_v2"},
    {"glm4moe", "glm4_moe"},
};

// Tokens that end an answer where eos_token_id does not say it: files name one end, models have several.
constexpr std::string_view kEndTexts[] = {"<|im_end|>",      "<|endoftext|>", "<|eot_id|>",    "<|eom_id|>",
                                          "<|end_of_text|>", "<|end|>",       "<end_of_turn>", "<|end_of_sentence|>"};

constexpr int64_t kNormalToken = 1;  // tokenizer.ggml.token_type

Result<const Architecture*> find_architecture(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string_view name, file.get_string("general.architecture"));
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.gguf == name) return &architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.gguf);
  }
  return unimplemented("general.architecture is '{}'; this build runs {}", name, known);
}

// Files of one architecture may be of several families.
Result<std::string_view> model_type_of(const Architecture& architecture, const GgufMetadata& metadata) {
  std::string_view type = architecture.model_type;
  if (type == "llama") {
    ASSIGN_OR_RETURN(const int64_t num_experts, metadata.get_int("expert_count", 0));
    // Llama's own models have no window: a file that has one is of Mistral.
    ASSIGN_OR_RETURN(const int64_t window, metadata.get_int("attention.sliding_window", 0));
    type = num_experts > 0 ? "mixtral" : window > 0 ? "mistral" : type;
  } else if (type == "deepseek_v2") {
    ASSIGN_OR_RETURN(const bool is_sigmoid, has_sigmoid_experts(metadata));
    if (is_sigmoid) type = "deepseek_v3";
  }
  return type;
}

// What cos and sin are multiplied with. Converters write config.json's attention_factor as yarn_attn_factor: it
// replaces YaRN's own factor. attn_factor multiplies the result.
Status read_yarn_attention(const GgufMetadata& metadata, double factor, ConfigJson& scaling) {
  if (metadata.architecture() == "deepseek2" && metadata.has("rope.scaling.yarn_log_multiplier")) {
    // A tenth of mscale_all_dim. mscale, which no key has, is the same in all of DeepSeek's models.
    ASSIGN_OR_RETURN(const double multiplier, metadata.get_number("rope.scaling.yarn_log_multiplier"));
    const double mscale = std::round(multiplier * 1e7) / 1e6;
    scaling.add("mscale", mscale);
    scaling.add("mscale_all_dim", mscale);
    return ok_status();
  }
  double attention_factor = factor > 1 ? 0.1 * std::log(factor) + 1 : 1;
  bool is_given = false;
  if (metadata.has("rope.scaling.yarn_attn_factor")) {
    ASSIGN_OR_RETURN(attention_factor, metadata.get_number("rope.scaling.yarn_attn_factor"));
    is_given = true;
  }
  if (metadata.has("rope.scaling.attn_factor")) {
    ASSIGN_OR_RETURN(const double attn_factor, metadata.get_number("rope.scaling.attn_factor"));
    attention_factor *= attn_factor;
    is_given = true;
  }
  if (is_given) scaling.add("attention_factor", attention_factor);
  // Keys of other architectures that would change the factors again.
  for (const auto& [key, neutral] :
       {std::pair{"rope.scaling.yarn_ext_factor", 1.0}, {"rope.scaling.yarn_log_multiplier", 0.0}}) {
    if (!metadata.has(key)) continue;
    ASSIGN_OR_RETURN(const double value, metadata.get_number(key));
    if (value != neutral) return unimplemented("{} is {}, needs {}", key, value, neutral);
  }
  return ok_status();
}

Status read_rope(const GgufMetadata& metadata, ConfigJson& json) {
  if (metadata.has("rope.freq_base")) RETURN_IF_ERROR(metadata.copy_number("rope.freq_base", "rope_theta", json));
  ConfigJson scaling;
  std::string type = "none";
  if (metadata.has("rope.scaling.type")) {
    ASSIGN_OR_RETURN(type, metadata.file().get_string(fmt::format("{}.rope.scaling.type", metadata.architecture())));
  }
  if (type == "none" && metadata.has("rope.scale_linear")) {  // the oldest files
    scaling.add_string("rope_type", "linear");
    RETURN_IF_ERROR(metadata.copy_number("rope.scale_linear", "factor", scaling));
  } else if (type == "linear" || type == "yarn") {
    scaling.add_string("rope_type", type);
    ASSIGN_OR_RETURN(const double factor, metadata.get_number("rope.scaling.factor"));
    scaling.add("factor", factor);
    if (metadata.has("rope.scaling.original_context_length")) {
      RETURN_IF_ERROR(
          metadata.copy_int("rope.scaling.original_context_length", "original_max_position_embeddings", scaling));
    }
    if (type == "yarn") RETURN_IF_ERROR(read_yarn_attention(metadata, factor, scaling));
    for (const auto& [key, json_key] :
         {std::pair{"rope.scaling.yarn_beta_fast", "beta_fast"}, {"rope.scaling.yarn_beta_slow", "beta_slow"}}) {
      if (metadata.has(key)) RETURN_IF_ERROR(metadata.copy_number(key, json_key, scaling));
    }
  } else if (type != "none") {
    return unimplemented("rope.scaling.type is '{}'; none, linear and yarn are read", type);
  }
  if (!scaling.empty()) json.add("rope_scaling", scaling.object());
  return ok_status();
}

// vocab_size: the rows of the embedding table; tokens may be fewer.
Status read_sizes(const GgufMetadata& metadata, ConfigJson& json) {
  for (const auto& [key, json_key] : {std::pair{"embedding_length", "hidden_size"},
                                      {"feed_forward_length", "intermediate_size"},
                                      {"attention.head_count", "num_attention_heads"},
                                      {"context_length", "max_position_embeddings"}}) {
    RETURN_IF_ERROR(metadata.copy_int(key, json_key, json));
  }
  // Layers for multi-token prediction are counted with the others.
  ASSIGN_OR_RETURN(const int64_t num_blocks, metadata.get_int("block_count"));
  ASSIGN_OR_RETURN(const int64_t num_mtp_layers, metadata.get_int("nextn_predict_layers", 0));
  json.add("num_hidden_layers", num_blocks - num_mtp_layers);
  if (num_mtp_layers > 0) json.add("num_nextn_predict_layers", num_mtp_layers);
  RETURN_IF_ERROR(metadata.copy_number("attention.layer_norm_rms_epsilon", "rms_norm_eps", json));
  return ok_status();
}

Status read_heads(const GgufMetadata& metadata, ConfigJson& json) {
  // Families differ in what they assume: a file that is silent means as many as heads.
  const bool has_kv_heads = metadata.has("attention.head_count_kv");
  RETURN_IF_ERROR(metadata.copy_int(has_kv_heads ? "attention.head_count_kv" : "attention.head_count",
                                    "num_key_value_heads", json));
  // The same holds for the width of a head: width / heads.
  ASSIGN_OR_RETURN(const int64_t width, metadata.get_int("embedding_length"));
  ASSIGN_OR_RETURN(const int64_t heads, metadata.get_int("attention.head_count"));
  int64_t head_dim = heads > 0 ? width / heads : 0;
  if (metadata.has("attention.key_length")) {
    ASSIGN_OR_RETURN(head_dim, metadata.get_int("attention.key_length"));
  }
  if (metadata.has("attention.value_length")) {
    ASSIGN_OR_RETURN(const int64_t value_dim, metadata.get_int("attention.value_length"));
    if (value_dim != head_dim) return unimplemented("keys of {} and values of {} elements", head_dim, value_dim);
  }
  json.add("head_dim", head_dim);
  return ok_status();
}

// A part of each head may rotate, which no config.json of these families can say. llama.cpp refuses it for Llama.
Status read_rotary_dim(const GgufMetadata& metadata, ModelConfig& config) {
  if (!metadata.has("rope.dimension_count")) return ok_status();
  ASSIGN_OR_RETURN(const int64_t rotary_dim, metadata.get_int("rope.dimension_count"));
  config.rope.partial_rotary_factor = 1;
  if (rotary_dim == config.head_dim) return ok_status();
  ASSIGN_OR_RETURN(const std::string_view architecture, metadata.file().get_string("general.architecture"));
  if (architecture == "llama") {
    return data_loss("llama.rope.dimension_count is {}, needs {}, the width of a head", rotary_dim, config.head_dim);
  }
  if (rotary_dim < 4 || rotary_dim > config.head_dim || rotary_dim % 2 != 0) {
    return data_loss("{}.rope.dimension_count is {}, needs an even number in [4, {}]", architecture, rotary_dim,
                     config.head_dim);
  }
  config.rope.partial_rotary_factor = static_cast<double>(rotary_dim) / static_cast<double>(config.head_dim);
  return ok_status();
}

Result<std::vector<int64_t>> end_token_ids(const GgufFile& file) {
  std::vector<int64_t> ids;
  const auto add = [&](int64_t id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (file.find(key) == nullptr) continue;
    ASSIGN_OR_RETURN(const int64_t id, file.get_int(key));
    add(id);
  }
  if (file.find("tokenizer.ggml.tokens") == nullptr) return ids;
  ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens, file.get_strings("tokenizer.ggml.tokens"));
  std::vector<int64_t> types;
  if (file.find("tokenizer.ggml.token_type") != nullptr) {
    ASSIGN_OR_RETURN(types, file.get_ints("tokenizer.ggml.token_type"));
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (id < types.size() && types[id] == kNormalToken) continue;  // a piece of text that looks so
    if (std::find(std::begin(kEndTexts), std::end(kEndTexts), tokens[id]) != std::end(kEndTexts)) {
      add(static_cast<int64_t>(id));
    }
  }
  return ids;
}

}  // namespace

Result<ModelConfig> GgufCheckpoint::model_config() const {
  const GgufFile& file = files_[0];
  ASSIGN_OR_RETURN(const Architecture* architecture, find_architecture(file));
  const GgufMetadata metadata(file, architecture->gguf);
  ASSIGN_OR_RETURN(const std::string_view model_type, model_type_of(*architecture, metadata));
  ConfigJson json;
  json.add_string("model_type", model_type);
  if (model_type == "mistral" || model_type == "mixtral") {
    ASSIGN_OR_RETURN(const int64_t window, metadata.get_int("attention.sliding_window", 0));
    json.add("sliding_window", window > 0 ? fmt::to_string(window) : "null");
  }
  RETURN_IF_ERROR(read_sizes(metadata, json));
  RETURN_IF_ERROR(architecture->gguf == "deepseek2" ? read_gguf_latent(metadata, json) : read_heads(metadata, json));
  RETURN_IF_ERROR(read_gguf_experts(metadata, model_type, json));
  RETURN_IF_ERROR(read_rope(metadata, json));
  const TensorEntry* embedding = find("model.embed_tokens.weight");
  if (embedding == nullptr) return data_loss("token_embd.weight is missing");
  json.add("vocab_size", embedding->shape[0]);
  json.add("tie_word_embeddings", find("lm_head.weight") == nullptr);
  const bool has_qkv_bias = find("model.layers.0.self_attn.q_proj.bias") != nullptr;
  const bool has_mlp_bias = find("model.layers.0.mlp.gate_proj.bias") != nullptr;
  json.add("attention_bias", has_qkv_bias);
  json.add("mlp_bias", has_mlp_bias);
  json.add("use_bias", has_qkv_bias);
  json.add("qkv_bias", has_qkv_bias);
  json.add("use_qk_norm", find("model.layers.0.self_attn.q_norm.weight") != nullptr);
  ASSIGN_OR_RETURN(const std::vector<int64_t> ends, end_token_ids(file));
  json.add("eos_token_id", ends.empty() ? "null" : fmt::format("[{}]", fmt::join(ends, ",")));
  if (file.find("tokenizer.ggml.bos_token_id") != nullptr) {
    ASSIGN_OR_RETURN(const int64_t bos, file.get_int("tokenizer.ggml.bos_token_id"));
    json.add("bos_token_id", bos);
  } else {
    json.add("bos_token_id", "null");
  }
  ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(json.object()));
  RETURN_IF_ERROR(read_rotary_dim(metadata, config));
  if (!rope_factors_.empty()) {
    if (static_cast<int64_t>(rope_factors_.size()) != config.rotary_dim() / 2) {
      return data_loss("rope_freqs.weight has {} elements, needs {}", rope_factors_.size(), config.rotary_dim() / 2);
    }
    for (const float factor : rope_factors_) {
      if (!(factor >= 1e-3f && factor <= 1e6f)) return data_loss("rope_freqs.weight holds {}", factor);
    }
    config.rope.freq_factors = rope_factors_;
  }
  return config;
}

Result<GenerationConfig> GgufCheckpoint::generation_config() const {
  const GgufMetadata sampling(files_[0], "general.sampling");
  ConfigJson json;
  for (const auto& [key, json_key] : {std::pair{"temp", "temperature"},
                                      {"top_p", "top_p"},
                                      {"min_p", "min_p"},
                                      {"penalty_repeat", "repetition_penalty"}}) {
    if (sampling.has(key)) RETURN_IF_ERROR(sampling.copy_number(key, json_key, json));
  }
  if (sampling.has("top_k")) RETURN_IF_ERROR(sampling.copy_int("top_k", "top_k", json));
  return parse_generation_config(json.object());
}

Result<PoolingConfig> GgufCheckpoint::pooling_config() const {
  PoolingConfig config;
  ASSIGN_OR_RETURN(const Architecture* architecture, find_architecture(files_[0]));
  const GgufMetadata metadata(files_[0], architecture->gguf);
  if (!metadata.has("pooling_type")) return config;
  ASSIGN_OR_RETURN(const int64_t type, metadata.get_int("pooling_type"));
  constexpr Pooling kPoolings[] = {Pooling::kNone, Pooling::kMean, Pooling::kCls, Pooling::kLast};  // llama.cpp's order
  config.source = fmt::format("{}.pooling_type", architecture->gguf);
  if (type >= 0 && type < std::ssize(kPoolings)) {
    config.pooling = kPoolings[type];
  } else {
    config.problem = fmt::format("{} is {}; 1 (mean), 2 (cls) and 3 (last) are built", config.source, type);
  }
  return config;
}

}  // namespace spate
