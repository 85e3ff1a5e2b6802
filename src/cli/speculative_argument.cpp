#include "cli/speculative_argument.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "cli/yaml_file.h"

namespace spate {
namespace {

Result<SpeculativeMethod> parse_method(const std::string& name) {
  // vLLM's other spellings of what is here.
  if (name == "[ngram]" || name == "ngram_gpu") return SpeculativeMethod::kNgram;
  if (name == "deepseek_mtp" || name == "ernie_mtp" || name == "glm4_moe_mtp") return SpeculativeMethod::kMtp;
  if (name == "eagle3") return SpeculativeMethod::kEagle;
  for (const SpeculativeMethod method :
       {SpeculativeMethod::kNgram, SpeculativeMethod::kReference, SpeculativeMethod::kDraftModel,
        SpeculativeMethod::kMtp, SpeculativeMethod::kEagle}) {
    if (name == speculative_method_name(method)) return method;
  }
  for (const char* known : {"medusa", "mlp_speculator", "suffix", "dflash", "extract_hidden_states", "mimo_mtp",
                            "qwen3_next_mtp", "qwen3_5_mtp", "longcat_flash_mtp", "pangu_ultra_moe_mtp"}) {
    if (name != known) continue;
    return unimplemented(
        "--speculative-config: method {} is not built; there are ngram, reference, draft_model, mtp and eagle", name);
  }
  return invalid_argument("--speculative-config: method must be ngram, reference, draft_model, mtp or eagle, got '{}'",
                          name);
}

template <typename T>
Status read(const std::string& key, const YAML::Node& value, const char* type, T& out) {
  try {
    out = value.as<T>();
    return ok_status();
  } catch (const YAML::Exception&) {
    return invalid_argument("--speculative-config: {} must be {}, got '{}'", key, type, YAML::Dump(value));
  }
}

// Fields of vLLM's that have no counterpart, and why not.
struct ForeignField {
  std::string_view key, reason;
};
constexpr ForeignField kForeignFields[] = {
    {"draft_tensor_parallel_size", "a draft model is sharded as the model is"},
    {"quantization", "a draft model keeps the number formats of its checkpoint"},
    {"max_model_len", "a draft model reaches as far as the model does"},
    {"revision", "model is a folder, or a name in the Hugging Face cache"},
    {"code_revision", "no code of a checkpoint is run"},
    {"disable_by_batch_size", "a controller runs as many drafts as pay, at any batch"},
    {"speculative_disable_by_batch_size", "a controller runs as many drafts as pay, at any batch"},
    {"speculative_token_tree", "drafts are a sequence, not a tree"},
    {"parallel_drafting", "drafts are made one behind the other"},
    {"acceptance_method", "a draft is accepted where it equals the model's choice"},
    {"draft_token_acceptance_method", "a draft is accepted where it equals the model's choice"},
    {"rejection_sample_method", "a draft is accepted where it equals the model's choice"},
    {"draft_sample_method", "a draft model draws with the request's own parameters and noise"},
    {"max_draft_len", "it is num_speculative_tokens here"},
    {"speculative_model", "it is model here"},
    {"speculative_model_dir", "it is model here"},
    {"decoding_type", "it is method here"},
    {"relaxed_top_n", "it is relaxed_topk here"},
    {"begin_thinking_phase_token", "the tokens around the reasoning are those of the model's chat template"},
    {"end_thinking_phase_token", "the tokens around the reasoning are those of the model's chat template"},
};

Status read_field(const std::string& key, const YAML::Node& value, SpeculativeConfig& config, bool& has_method) {
  if (key == "method") {
    std::string name;
    RETURN_IF_ERROR(read(key, value, "a string", name));
    ASSIGN_OR_RETURN(config.method, parse_method(name));
    has_method = true;
    return ok_status();
  }
  if (key == "num_speculative_tokens") return read(key, value, "a whole number", config.num_speculative_tokens);
  if (key == "model") return read(key, value, "a string", config.model);
  if (key == "prompt_lookup_min") return read(key, value, "a whole number", config.prompt_lookup_min);
  if (key == "prompt_lookup_max") return read(key, value, "a whole number", config.prompt_lookup_max);
  if (key == "adaptive") return read(key, value, "true or false", config.adaptive);
  if (key == "use_relaxed_acceptance_for_thinking") {
    return read(key, value, "true or false", config.use_relaxed_acceptance_for_thinking);
  }
  if (key == "relaxed_topk") return read(key, value, "a whole number", config.relaxed_topk);
  if (key == "relaxed_delta") return read(key, value, "a number", config.relaxed_delta);
  if (key == "relaxed_by_default") return read(key, value, "true or false", config.relaxed_by_default);
  for (const ForeignField& field : kForeignFields) {
    if (key == field.key) return unimplemented("--speculative-config: {} is not a field: {}", key, field.reason);
  }
  return invalid_argument(
      "--speculative-config: unknown field '{}'; there are method, num_speculative_tokens, model, "
      "prompt_lookup_min, prompt_lookup_max, adaptive, use_relaxed_acceptance_for_thinking, relaxed_topk, "
      "relaxed_delta, "
      "relaxed_by_default",
      key);
}

}  // namespace

Result<SpeculativeConfig> parse_speculative_config(const std::string& text) {
  SpeculativeConfig config;
  if (text.empty()) return config;
  YAML::Node root;
  try {
    if (second_document_line(text) > 0) {
      return invalid_argument("--speculative-config must be one object, got more behind it: {}", text);
    }
    root = YAML::Load(text);  // JSON is YAML
  } catch (const YAML::Exception& e) {
    return invalid_argument("--speculative-config: {} at column {} of {}", e.msg, e.mark.column + 1, text);
  }
  if (!root.IsMap()) {
    return invalid_argument("--speculative-config must be an object like {{\"method\": \"ngram\"}}, got {}", text);
  }
  bool has_method = false;
  std::set<std::string> seen;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar()) {
      return invalid_argument("--speculative-config: a key must be a word, got {}", YAML::Dump(entry.first));
    }
    if (!seen.insert(entry.first.Scalar()).second) {
      return invalid_argument("--speculative-config: the field {} comes twice", entry.first.Scalar());
    }
    RETURN_IF_ERROR(read_field(entry.first.Scalar(), entry.second, config, has_method));
  }
  if (!has_method)
    return invalid_argument("--speculative-config needs the field method: ngram, reference, draft_model, mtp or eagle");
  // One bound alone moves the other's default out of its way.
  if (!root["prompt_lookup_min"]) config.prompt_lookup_min = std::min(config.prompt_lookup_min, config.prompt_lookup_max);
  if (!root["prompt_lookup_max"]) config.prompt_lookup_max = std::max(config.prompt_lookup_min, config.prompt_lookup_max);
  RETURN_IF_ERROR(validate_speculative_config(config));
  return config;
}

std::string with_draft_model(const std::string& text, const std::string& model) {
  YAML::Node root = YAML::Load(text);
  root["model"] = model;
  YAML::Emitter out;
  out.SetMapFormat(YAML::Flow);
  out << root;
  return out.c_str();
}

}  // namespace spate
