// model_config_test.cpp
//
// Goal     The real config.json of served models gives their facts, in the spelling of transformers 4 and 5; nonsense
//          is refused with key, value and what is allowed, all at once.
// Method   The shapes under bench/configs are published facts; each bad document differs from a small good one, or from
//          that of a released model with experts, in one key.
#include "weights/model_config.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/test_support.h"
#include "weights/generation_config.h"

#include "base/test.h"

namespace spate {
namespace {

// A good config with `more` at its end.
std::string config_with(const std::string& more, const std::string& without = "") {
  std::string json = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama")";
  for (const auto& [key, value] : {std::pair{"vocab_size", "160"},
                                   {"hidden_size", "48"},
                                   {"intermediate_size", "96"},
                                   {"num_hidden_layers", "3"},
                                   {"num_attention_heads", "4"},
                                   {"max_position_embeddings", "128"}}) {
    if (without != key) json += std::string(",\"") + key + "\":" + value;
  }
  return json + (more.empty() ? "" : "," + more) + "}";
}

std::string config_error(const std::string& json) { return parse_model_config(json).status().message(); }

TEST_CASE("Qwen3-0.6B and Llama-3.1-8B") {
  const auto qwen = load_model_config(repo_root() / "bench/configs/qwen3-0.6b");
  REQUIRE_MESSAGE(qwen.ok(), qwen.status().to_string());
  CHECK(qwen->architecture == "Qwen3ForCausalLM");
  CHECK(qwen->num_kv_heads == 8);
  CHECK(qwen->head_dim == 128);
  CHECK(qwen->tie_word_embeddings);
  CHECK(qwen->rope.theta == 1e6);
  CHECK(qwen->rope.type == RopeType::kDefault);
  CHECK(qwen->eos_token_ids == std::vector<int32_t>{151645});
  CHECK(qwen->sliding_window == 0);

  const auto llama = load_model_config(repo_root() / "bench/configs/llama-3.1-8b/config.json");
  REQUIRE_MESSAGE(llama.ok(), llama.status().to_string());
  CHECK(llama->head_dim == 128);
  CHECK(llama->rope.type == RopeType::kLlama3);
  CHECK(llama->rope.factor == 8.0);
  CHECK(llama->rope.original_max_position_embeddings == 8192);
  CHECK(llama->eos_token_ids == std::vector<int32_t>{128001, 128008, 128009});
  CHECK(llama->rms_norm_eps == 1e-5);
}

TEST_CASE("both spellings of RoPE and dtype mean the same") {
  const auto old_style = parse_model_config(config_with(
      R"("rope_theta":5e5,"torch_dtype":"float16","rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":32})"));
  const auto new_style = parse_model_config(config_with(
      R"("dtype":"float16","rope_parameters":{"rope_type":"yarn","rope_theta":500000,"factor":4,"original_max_position_embeddings":32})"));
  for (const auto& config : {old_style, new_style}) {
    REQUIRE_MESSAGE(config.ok(), config.status().to_string());
    CHECK(config->rope.type == RopeType::kYarn);
    CHECK(config->rope.theta == 5e5);
    CHECK(config->rope.factor == 4.0);
    CHECK(config->rope.original_max_position_embeddings == 32);
    CHECK(config->torch_dtype == DType::kF16);
  }
}

TEST_CASE("what config.json leaves out is what the family's class assumes") {
  const auto llama = parse_model_config(config_with(R"("rope_scaling":null,"num_key_value_heads":null)"));
  REQUIRE(llama.ok());
  CHECK(llama->num_kv_heads == 4);
  CHECK(llama->head_dim == 12);
  CHECK_FALSE(llama->tie_word_embeddings);
  std::string json = config_with("");
  json.replace(json.find("\"llama\""), 7, "\"ernie4_5\"");
  json.replace(json.find("Llama"), 5, "Ernie4_5");
  const auto ernie = parse_model_config(json);
  REQUIRE_MESSAGE(ernie.ok(), ernie.status().to_string());
  CHECK(ernie->head_dim == 128);
  CHECK(ernie->tie_word_embeddings);
  CHECK(ernie->rope.theta == 500000);
  CHECK(ernie->rms_norm_eps == 1e-5);
  CHECK(ernie->num_kv_heads == 2);
}

TEST_CASE("either of architectures and model_type is enough") {
  const auto by_architecture = parse_model_config(R"({"architectures":["Qwen3ForCausalLM"]})");
  REQUIRE_MESSAGE(by_architecture.ok(), by_architecture.status().to_string());
  CHECK(by_architecture->model_type == "qwen3");
  CHECK(by_architecture->head_dim == 128);
  const auto by_type = parse_model_config(R"({"model_type":"mistral"})");
  REQUIRE_MESSAGE(by_type.ok(), by_type.status().to_string());
  CHECK(by_type->architecture == "MistralForCausalLM");
  CHECK(by_type->num_kv_heads == 8);
  CHECK(by_type->sliding_window == 4096);
  // A family that nobody here knows is refused by what runs models, or here, by its name and not by its keys.
  CHECK(parse_model_config(R"({"architectures":["GraniteForCausalLM"],"model_type":"granite"})")->architecture ==
        "GraniteForCausalLM");
  const std::string error = config_error(
      R"({"architectures":["Gemma2ForCausalLM"],"model_type":"gemma2","hidden_act":"gelu","sliding_window":64})");
  CHECK_MESSAGE(error.find("architectures is \"Gemma2ForCausalLM\"; this build runs Deep") != std::string::npos, error);
  CHECK_MESSAGE(error.find("gelu") == std::string::npos, error);
}

// Embeddings of two tokens and perhaps an lm_head, bf16.
void write_checkpoint(const std::filesystem::path& dir, const std::string& lm_head_name, bool lm_head_differs) {
  const std::string tensor = R"({"dtype":"BF16","shape":[2,1],"data_offsets":[)";
  std::string header = R"({"model.embed_tokens.weight":)" + tensor + "0,4]}";
  if (!lm_head_name.empty()) header += ",\"" + lm_head_name + "\":" + tensor + "4,8]}";
  header += "}";
  const uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += header + "abcd";
  if (!lm_head_name.empty()) bytes += lm_head_differs ? "abce" : "abcd";
  write_file_or_die(dir / "model.safetensors", bytes);
}

TEST_CASE("an lm_head of its own is not tied, whatever config.json says") {
  TempDir dir;
  write_file_or_die(dir.path() / "config.json", config_with(R"("tie_word_embeddings":true)"));
  const auto is_tied = [&] { return load_model_config(dir.path())->tie_word_embeddings; };
  CHECK(is_tied());  // no weights at all: --load-format dummy
  write_checkpoint(dir.path(), "", false);
  CHECK(is_tied());
  write_checkpoint(dir.path(), "lm_head.weight", false);
  CHECK(is_tied());
  write_checkpoint(dir.path(), "lm_head.weight", true);
  CHECK_FALSE(is_tied());
  write_checkpoint(dir.path(), "lm_head.qweight", false);
  CHECK_FALSE(is_tied());
}

TEST_CASE("bad values are named") {
  struct Case {
    std::string json;
    const char* says;
  };
  const Case cases[] = {
      {"", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {config_with(R"("hidden_size":64)"), "hidden_size is there twice"},
      {config_with(R"("rope_scaling":{"type":"linear","factor":2,"factor":4})"), "rope_scaling.factor is there twice"},
      {"{}", "architectures and model_type are missing"},
      {R"({"model_type":"magic"})", "architectures is missing, and model_type \"magic\" is not known"},
      {R"({"architectures":["LlamaForCausalLM","LlamaModel"]})", "architectures has 2 entries, needs one"},
      {config_with(R"("hidden_size":-5)", "hidden_size"), "hidden_size is -5, needs a whole number in [1, 1048576]"},
      {config_with(R"("hidden_size":"48")", "hidden_size"), "hidden_size is \"48\", needs a whole number"},
      {config_with(R"("hidden_size":47)", "hidden_size"), "hidden_size 47 is not a multiple of num_attention_heads 4"},
      {config_with(R"("num_hidden_layers":1e9)", "num_hidden_layers"),
       "num_hidden_layers is 1000000000.0, needs a whole number"},
      {config_with(R"("num_key_value_heads":3)"), "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
      {config_with(R"("head_dim":7)"), "head_dim 7 x partial_rotary_factor 1 gives 7 rotated elements"},
      {config_with(R"("rms_norm_eps":"x")"), "rms_norm_eps is \"x\", needs a number"},
      {config_with(R"("hidden_act":"gelu")"), "hidden_act is \"gelu\", needs silu"},
      {config_with(R"("eos_token_id":[1,-2])"), "eos_token_id is [1,-2], needs a token id or a list of token ids"},
      {config_with(R"("torch_dtype":"int4")"), "torch_dtype is \"int4\""},
      {config_with(R"("layer_types":["full_attention"])"), "layer_types has 1 entries, needs num_hidden_layers = 3"},
      {config_with(R"("layer_types":["full_attention","a","full_attention"])"), "layer_types has \"a\""},
      {config_with(R"("rope_scaling":{"type":"magic"})"),
       "rope type \"magic\" is not one of default, linear, dynamic, yarn, llama3"},
      {config_with(R"("rope_scaling":{"type":"linear"})"),
       "rope_scaling.factor is missing, and rope type \"linear\" needs it"},
      {config_with(R"("rope_scaling":{"type":"linear","factor":0})"),
       "rope_scaling.factor is 0, needs a number in [1, 1000000]"},
      {config_with(R"("rope_scaling":[1])"), "rope_scaling is [1], needs an object"},
      {config_with(R"("rope_parameters":{"full_attention":{}})"), "differs between layer types"},
  };
  for (const Case& one_case : cases) {
    const std::string error = config_error(one_case.json);
    CAPTURE(one_case.says);
    CHECK_MESSAGE(error.find(one_case.says) != std::string::npos, error);
  }
  const std::string both = config_error(config_with(R"("head_dim":-1,"mlp_bias":3)"));
  CHECK_MESSAGE((both.find("head_dim") != both.npos && both.find("mlp_bias is 3, needs true or false") != both.npos),
                both);
}

// config.json of a model with experts: the sizes that all families need, then `more`.
std::string expert_config(std::string_view model_type, std::string_view more) {
  return fmt::format(R"({{"model_type": "{}", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128{}}})",
                     model_type, more);
}

TEST_CASE("experts: every family's keys, and which layers have them") {
  const auto parse = [](std::string_view model_type, std::string_view more) {
    return parse_model_config(expert_config(model_type, more)).value().experts;
  };
  const ExpertConfig mixtral = parse("mixtral", R"(, "num_local_experts": 6, "num_experts_per_tok": 3)");
  CHECK(mixtral.num_experts == 6);
  CHECK(mixtral.num_experts_per_tok == 3);
  CHECK(mixtral.intermediate_size == 48);
  CHECK(mixtral.in_all_layers());
  const ExpertConfig qwen2 = parse("qwen2_moe", R"(, "decoder_sparse_step": 2, "mlp_only_layers": [3])");
  CHECK(qwen2.layers == std::vector<bool>{false, true, false, false});
  CHECK(qwen2.num_experts == 60);
  CHECK(qwen2.shared_intermediate_size == 5632);
  CHECK_FALSE(qwen2.norm_topk_prob);
  const ExpertConfig qwen3 =
      parse("qwen3_moe", R"(, "num_experts": 16, "moe_intermediate_size": 24, "norm_topk_prob": true)");
  CHECK(qwen3.num_experts == 16);
  CHECK(qwen3.num_experts_per_tok == 8);
  CHECK(qwen3.shared_intermediate_size == 0);
  CHECK(qwen3.norm_topk_prob);
  const ExpertConfig ernie = parse("ernie4_5_moe", R"(, "moe_num_experts": 8, "moe_k": 2, "moe_layer_end_index": 2,
    "moe_intermediate_size": 24)");
  CHECK(ernie.layers == std::vector<bool>{false, true, true, false});
  CHECK(ernie.num_experts_per_tok == 2);
  CHECK(ernie.shared_intermediate_size == 48);
  const ExpertConfig deepseek = parse("deepseek_v3", R"(, "n_routed_experts": 16, "n_group": 4, "topk_group": 2)");
  CHECK(deepseek.layers == std::vector<bool>{false, false, false, true});
  CHECK(deepseek.num_groups == 4);
  CHECK(deepseek.num_chosen_groups == 2);
  CHECK(deepseek.routed_scaling_factor == 2.5);
  CHECK(deepseek.shared_intermediate_size == 2048);
  const ExpertConfig glm = parse("glm4_moe", "");
  CHECK(glm.layers == std::vector<bool>{false, true, true, true});
  CHECK(glm.num_experts == 128);
  CHECK(glm.routed_scaling_factor == 1.0);
}

TEST_CASE("GLM-4.5 rotates a half of each head, or what its config.json says") {
  const auto parse = [](std::string_view more) { return parse_model_config(expert_config("glm4_moe", more)).value(); };
  CHECK(parse(R"(, "head_dim": 128)").rotary_dim() == 64);
  CHECK(parse(R"(, "head_dim": 128, "partial_rotary_factor": 0.25)").rotary_dim() == 32);
  const ModelConfig air = parse(R"(, "head_dim": 128, "num_nextn_predict_layers": 1, "use_qk_norm": true,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000, "partial_rotary_factor": 0.5})");
  CHECK(air.rotary_dim() == 64);
  CHECK(air.rope.theta == 1000000);
  CHECK(air.num_mtp_layers == 1);
  CHECK(air.use_qk_norm);
}

// What the config.json of released models says, without what no one reads.
struct Released {
  const char *name, *json;
};
constexpr Released kReleased[] = {
    {"Mixtral-8x7B", R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
      "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
      "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
      "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000})"},
    {"Qwen2-57B-A14B", R"({"architectures": ["Qwen2MoeForCausalLM"], "bos_token_id": 151643, "decoder_sparse_step": 1,
      "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
      "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2_moe",
      "moe_intermediate_size": 2560, "norm_topk_prob": false, "num_attention_heads": 28, "num_experts": 64,
      "num_experts_per_tok": 8, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "shared_expert_intermediate_size": 20480, "sliding_window": 65536,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen3-235B-A22B", R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
      "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 94, "mlp_only_layers": [],
      "model_type": "qwen3_moe", "moe_intermediate_size": 1536, "norm_topk_prob": true, "num_attention_heads": 64,
      "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4,
      "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": null,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})"},
    {"ERNIE-4.5-300B-A47B", R"({"architectures": ["Ernie4_5_MoeForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 8192, "intermediate_size": 28672, "max_position_embeddings": 131072,
      "model_type": "ernie4_5_moe", "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 54,
      "pad_token_id": 0, "rms_norm_eps": 1e-05, "use_cache": false, "vocab_size": 103424, "rope_theta": 500000,
      "use_rmsnorm": true, "use_bias": false, "moe_num_experts": 64, "moe_num_shared_experts": 0,
      "moe_layer_start_index": 3, "moe_layer_end_index": 53, "moe_intermediate_size": 3584, "moe_capacity": [64, 64, 64],
      "moe_gate": "topk", "moe_k": 8, "moe_layer_interval": 1, "moe_use_aux_free": true, "num_nextn_predict_layers": 1,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16"})"},
    {"DeepSeek-V2", R"({"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
      "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu",
      "hidden_size": 5120, "intermediate_size": 12288, "kv_lora_rank": 512, "max_position_embeddings": 163840,
      "model_type": "deepseek_v2", "moe_intermediate_size": 1536, "moe_layer_freq": 1, "n_group": 8,
      "n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 128,
      "num_experts_per_tok": 6, "num_hidden_layers": 60, "num_key_value_heads": 128, "pretraining_tp": 1,
      "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
      "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
      "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 16.0,
      "scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 3,
      "topk_method": "group_limited_greedy", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 102400})"},
    {"DeepSeek-R1", R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "bos_token_id": 0,
      "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
      "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
      "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
      "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
      "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
      "quant_method": "fp8", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32,
      "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
      "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
      "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
      "v_head_dim": 128, "vocab_size": 129280})"},
    {"GLM-4.5", R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
      "pad_token_id": 151329, "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 5120, "partial_rotary_factor": 0.5, "intermediate_size": 12288, "max_position_embeddings": 131072,
      "model_type": "glm4_moe", "moe_intermediate_size": 1536, "norm_topk_prob": true, "num_attention_heads": 96,
      "n_group": 1, "topk_group": 1, "n_routed_experts": 160, "n_shared_experts": 1, "routed_scaling_factor": 2.5,
      "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_hidden_layers": 92, "num_key_value_heads": 8,
      "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": true,
      "vocab_size": 151552})"},
};

TEST_CASE("config.json of released models with experts") {
  std::map<std::string, ModelConfig> configs;
  for (const Released& model : kReleased) {
    CAPTURE(model.name);
    Result<ModelConfig> config = parse_model_config(model.json);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    configs[model.name] = std::move(config).value();
  }
  CHECK(configs["Mixtral-8x7B"].experts.intermediate_size == 14336);
  CHECK(configs["Mixtral-8x7B"].sliding_window == 0);
  CHECK(configs["Qwen2-57B-A14B"].experts.shared_intermediate_size == 20480);
  CHECK(configs["Qwen2-57B-A14B"].sliding_window == 0);
  CHECK(configs["Qwen3-235B-A22B"].experts.in_all_layers());
  const ExpertConfig& ernie = configs["ERNIE-4.5-300B-A47B"].experts;
  CHECK(ernie.shared_intermediate_size == 0);
  CHECK_FALSE(ernie.in_layer(2));
  CHECK(ernie.in_layer(53));
  const ModelConfig& v2 = configs["DeepSeek-V2"];
  CHECK(v2.experts.num_groups == 8);
  CHECK(v2.experts.num_chosen_groups == 3);
  CHECK(v2.experts.shared_intermediate_size == 3072);
  CHECK(v2.rope.mscale_all_dim == 0.707);
  CHECK(configs["DeepSeek-R1"].latent.q_lora_rank == 1536);
  CHECK(configs["DeepSeek-R1"].num_mtp_layers == 1);
  CHECK(configs["GLM-4.5"].rotary_dim() == 64);
}

TEST_CASE("a released config.json that was changed into what is not served is refused by key") {
  struct Change {
    const char *name, *from, *to, *says;
  };
  const Change changes[] = {
      {"Mixtral-8x7B", R"("num_local_experts": 8)", R"("num_local_experts": null)", "num_local_experts is null"},
      {"Mixtral-8x7B", R"("hidden_act": "silu")", R"("hidden_act": "gelu")", "hidden_act is \"gelu\""},
      {"Qwen2-57B-A14B", R"("shared_expert_intermediate_size": 20480)", R"("shared_expert_intermediate_size": 0)",
       "shared_expert_intermediate_size is 0, needs a whole number"},
      {"Qwen3-235B-A22B", R"("norm_topk_prob": true)", R"("shared_expert_intermediate_size": 768)",
       "shared_expert_intermediate_size is 768, but Qwen3MoeForCausalLM has no such expert"},
      {"Qwen3-235B-A22B", R"("rope_scaling": null)", R"("rope_scaling": {"rope_type": "longrope", "factor": 4.0})",
       "rope type \"longrope\" is not one of"},
      {"ERNIE-4.5-300B-A47B", R"("moe_gate": "topk")", R"("moe_gate_act": "sigmoid")",
       "moe_gate_act is \"sigmoid\", needs \"softmax\""},
      {"ERNIE-4.5-300B-A47B", R"("moe_num_experts": 64)", R"("moe_num_experts": [64, 64])",
       "moe_num_experts is [64,64], needs a whole number"},
      {"DeepSeek-V2", R"("n_group": 8)", R"("n_group": null)",
       "topk_method is \"group_limited_greedy\", but n_group is null"},
      {"DeepSeek-V2", R"("moe_layer_freq": 1)", R"("moe_layer_freq": 2)", "moe_layer_freq is 2, needs 1"},
      {"DeepSeek-V2", R"("scoring_func": "softmax")", R"("scoring_func": "sigmoid")",
       "scoring_func is \"sigmoid\", needs \"softmax\""},
      {"DeepSeek-R1", R"("topk_method": "noaux_tc")", R"("topk_method": "greedy")",
       "topk_method is \"greedy\", needs \"noaux_tc\""},
      {"DeepSeek-R1", R"("ep_size": 1)", R"("index_topk": 2048)",
       "index_topk is 2048: sparse attention is not served, DeepseekV3ForCausalLM has none"},
      {"DeepSeek-R1", R"("n_shared_experts": 1)", R"("n_shared_experts": null)", "n_shared_experts is null"},
      {"DeepSeek-R1", R"("num_key_value_heads": 128)", R"("num_key_value_heads": 1)",
       "num_key_value_heads is 1, needs num_attention_heads = 128"},
      {"DeepSeek-R1", R"("factor": 40)", R"("factor": 0.5)", "rope_scaling.factor is 0.5, needs a number"},
      {"GLM-4.5", R"("partial_rotary_factor": 0.5)", R"("partial_rotary_factor": 0.12)", "rotated elements"},
      {"GLM-4.5", R"("topk_group": 1)", R"("topk_group": 2)", "topk_group 2 of n_group 1"},
      {"GLM-4.5", R"("model_type": "glm4_moe")", R"("model_type": "deepseek_v3")",
       "model_type is \"deepseek_v3\", but"},
  };
  for (const Change& change : changes) {
    CAPTURE(change.name);
    const auto model = std::find_if(std::begin(kReleased), std::end(kReleased),
                                    [&](const Released& one) { return std::string(one.name) == change.name; });
    std::string json = model->json;
    const size_t at = json.find(change.from);
    REQUIRE_MESSAGE(at != std::string::npos, change.from);
    const Status status = parse_model_config(json.replace(at, std::strlen(change.from), change.to)).status();
    CHECK_MESSAGE(status.message().find(change.says) != std::string::npos, status.message(), "\n  should say ",
                  change.says);
  }
}

TEST_CASE("experts that cannot be served are refused by key and reason") {
  const auto problem = [](std::string_view model_type, std::string_view more) {
    return parse_model_config(expert_config(model_type, more)).status().message();
  };
  const auto says = [](const std::string& message, std::string_view text) {
    INFO(message);
    CHECK(message.find(text) != std::string::npos);
  };
  says(problem("mixtral", R"(, "num_experts_per_tok": 9)"), "num_experts_per_tok is 9, more than num_experts = 8");
  says(problem("mixtral", R"(, "num_local_experts": 0)"), "num_local_experts is 0, needs a whole number in [1, 4096]");
  says(problem("qwen2_moe", R"(, "use_sliding_window": true)"),
       "use_sliding_window is true, which is not served for Qwen2MoeForCausalLM");
  says(problem("qwen3_moe", R"(, "mlp_only_layers": [0, 1, 2, 3])"), "no layer has experts");
  says(problem("ernie4_5_moe", R"(, "use_bias": true)"), "use_bias is true");
  says(problem("ernie4_5_moe", R"(, "moe_num_experts": [64, 32])"), "moe_num_experts is [64,32], needs a whole number");
  says(problem("deepseek_v3", R"(, "scoring_func": "softmax")"), "scoring_func is \"softmax\", needs \"sigmoid\"");
  says(problem("deepseek_v3", R"(, "n_group": 7)"), "n_group 7 does not divide n_routed_experts 256");
  says(problem("deepseek_v3", R"(, "n_routed_experts": 16, "topk_group": 3)"),
       "topk_group 3 of n_group 8 leaves less than num_experts_per_tok = 8 of 16 experts");
  says(problem("deepseek_v2", ""), "num_experts_per_tok is missing");
  says(problem("deepseek_v2", R"(, "num_experts_per_tok": 6, "topk_method": "noaux_tc")"),
       "topk_method is \"noaux_tc\"");
  says(problem("deepseek_v2", R"(, "num_experts_per_tok": 6, "norm_topk_prob": true)"), "norm_topk_prob is true");
}

TEST_CASE("a missing model says what to give") {
  CHECK(load_model_config("/nonexistent/model").status().message() ==
        "/nonexistent/model: no such model; give a directory with config.json and *.safetensors, or a "
        "*.gguf file");
  TempDir dir;
  CHECK(load_model_config(dir.path()).status().code() == StatusCode::kNotFound);
}

TEST_CASE("generation_config.json") {
  const auto config =
      parse_generation_config(R"({"temperature":0.6,"top_p":0.95,"top_k":20,"eos_token_id":[1,2],"do_sample":true})");
  REQUIRE(config.ok());
  CHECK(config->temperature == 0.6);
  CHECK(config->top_k == 20);
  CHECK(parse_generation_config(R"({"top_k":-1})")->top_k == 0);  // all tokens, as requests may say it
  CHECK_FALSE(parse_generation_config(R"({"top_k":-2})").ok());
  CHECK_FALSE(config->repetition_penalty.has_value());
  CHECK(config->eos_token_ids == std::vector<int32_t>{1, 2});
  CHECK(parse_generation_config(R"({"temperature":-1})").status().message() ==
        "temperature is -1, needs a number in [0, 100]");
  TempDir dir;
  const auto missing = load_generation_config(dir.path());
  REQUIRE(missing.ok());
  CHECK_FALSE(missing->temperature.has_value());
}

}  // namespace
}  // namespace spate
