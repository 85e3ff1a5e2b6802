// ModelConfig: config.json of a Hugging Face directory as plain data, checked. Field names are the keys of config.json
// except for sizes that our glossary names otherwise (num_heads, num_kv_heads, num_layers).
//
// Read in both spellings that are in use: rope_theta + rope_scaling + torch_dtype, and transformers 5's rope_parameters
// + dtype. A key that config.json leaves out has the value that the family's configuration class in transformers gives
// it. What transformers cannot run, or runs differently from what the keys say, is refused.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace spate {

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kYarn, kLlama3 };
std::string_view rope_type_name(RopeType type);  // as in config.json: "default", "linear", ...

// Rotary embedding: theta and, beyond the trained length, how positions or frequencies are scaled.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;                    // rotary_dim = head_dim * this
  double factor = 1.0;                                   // linear, dynamic, yarn, llama3
  int64_t original_max_position_embeddings = 0;          // yarn, llama3; default max_position_embeddings
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 0.0;                         // yarn: multiplies cos and sin; 0: computed from factor
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn
  bool truncate = true;                                  // yarn: whole-numbered correction range
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  std::vector<float> freq_factors;  // [rotary_dim / 2] divide the frequencies; empty: none. GGUF says llama3 with them
};

// Layers whose feed-forward is many experts, of which each token uses a few. Each family has keys of its own for these.
struct ExpertConfig {
  int64_t num_experts = 0;  // of a layer; 0: the model has none
  int64_t num_experts_per_tok = 0;
  int64_t intermediate_size = 0;         // of one expert
  int64_t shared_intermediate_size = 0;  // of what every token sees beside them; 0: nothing
  bool norm_topk_prob = false;           // the weights of a token's experts are divided by their sum
  double norm_min = 0;                   // ... or by this, if it is larger
  double routed_scaling_factor = 1;
  int64_t num_groups = 1, num_chosen_groups = 1;  // n_group, topk_group
  std::vector<bool> layers;  // [num_layers] which of them have experts; the others are dense

  bool in_layer(int64_t i) const { return num_experts > 0 && layers[static_cast<size_t>(i)]; }
  bool in_all_layers() const {
    return num_experts > 0 && std::find(layers.begin(), layers.end(), false) == layers.end();
  }
};

// Latent attention (DeepSeek): keys and values are made of one short vector a token. head_dim is then qk_rope_head_dim.
struct LatentConfig {
  int64_t kv_lora_rank = 0;  // 0: the model has none
  int64_t q_lora_rank = 0;   // 0: queries are one product
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
};

struct ModelConfig {
  std::string architecture;  // "Qwen3ForCausalLM": architectures[0], or of model_type
  std::string model_type;    // "qwen3", or of architectures[0]
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;    // num_hidden_layers
  int64_t num_heads = 0;     // num_attention_heads, over all ranks
  int64_t num_kv_heads = 0;  // num_key_value_heads, over all ranks
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  std::string hidden_act = "silu";
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // families read it differently: their spec says what it means
  bool mlp_bias = false;
  bool use_bias = false;                 // ERNIE
  int64_t sliding_window = 0;            // 0: none
  bool use_sliding_window = false;       // Qwen: false makes sliding_window 0
  int64_t max_window_layers = 0;         // Qwen: the first layer that slides
  std::vector<std::string> layer_types;  // "full_attention", "sliding_attention"; empty when config.json has none
  bool qkv_bias = true;                  // Qwen2-MoE
  bool use_qk_norm = false;              // GLM-4.5
  ExpertConfig experts;
  LatentConfig latent;
  bool rope_interleave = true;  // DeepSeek-V3
  int64_t num_mtp_layers = 0;   // num_nextn_predict_layers: layers behind the last one that guess further tokens
  RopeConfig rope;
  DType torch_dtype = DType::kBf16;  // of the checkpoint, as config.json says; the tensors decide
  std::vector<int32_t> eos_token_ids;
  std::vector<int32_t> bos_token_ids;

  int64_t rotary_dim() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
  }
};

// Errors name the key, its value and what is allowed. Keys that no supported family reads are not looked at.
// `read_as`: the architecture whose keys it has, whatever it calls itself.
Result<ModelConfig> parse_model_config(std::string_view json, std::string_view read_as = {});
// `path`: a model directory, a config.json or a *.gguf file. If the directory holds an lm_head.weight that differs from
// the embedding table, tie_word_embeddings is false, whatever config.json says.
Result<ModelConfig> load_model_config(const std::filesystem::path& path);

}  // namespace spate
