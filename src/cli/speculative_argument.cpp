#include "cli/speculative_argument.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

namespace spate {
namespace {

Result<SpeculativeMethod> parse_method(const std::string& name) {
  if (name == "[ngram]") return SpeculativeMethod::kNgram;  // vLLM's older spellings
  if (name == "deepseek_mtp" || name == "ernie_mtp") return SpeculativeMethod::kMtp;
  if (name == "eagle3") return SpeculativeMethod::kEagle;
  for (const SpeculativeMethod method :
       {SpeculativeMethod::kNgram, SpeculativeMethod::kReference, SpeculativeMethod::kDraftModel,
        SpeculativeMethod::kMtp, SpeculativeMethod::kEagle}) {
    if (name == speculative_method_name(method)) return method;
  }
  for (const char* known : {"medusa", "mlp_speculator", "suffix"}) {
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

}  // namespace spate
