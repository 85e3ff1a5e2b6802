#include "cli/serving_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/json_parse.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

Result<std::shared_ptr<const Json>> parse_object(const char* flag, const std::string& text) {
  auto parsed = parse_json(text, "not valid JSON: ");
  if (!parsed.ok()) return invalid_argument("{}: {}", flag, parsed.error().message);
  if (!(*parsed)->is_object()) return invalid_argument("{}: must be a JSON object, got {}", flag, text);
  return *parsed;
}

Status refuse_unknown(const char* flag, const Json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
    return invalid_argument("{}: unknown field '{}'; there are {}", flag, key, names);
  }
  return ok_status();
}

template <typename T>
void take_given(const std::optional<T>& given, std::optional<T>& value) {
  if (given) value = given;
}

}  // namespace

Result<std::shared_ptr<const Json>> parse_template_kwargs(const std::string& text) {
  if (text.empty()) return std::shared_ptr<const Json>();
  return parse_object("--default-chat-template-kwargs", text);
}

Result<GenerationConfig> override_generation_config(GenerationConfig config, const std::string& text) {
  constexpr const char* kFlag = "--override-generation-config";
  if (text.empty()) return config;
  ASSIGN_OR_RETURN(const std::shared_ptr<const Json> object, parse_object(kFlag, text));
  RETURN_IF_ERROR(refuse_unknown(
      kFlag, *object,
      {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "do_sample", "eos_token_id"}));
  const Result<GenerationConfig> parsed = parse_generation_config(object->dump());
  if (!parsed.ok()) return parsed.status().with_context(kFlag);
  if (parsed->temperature) config.do_sample.reset();
  take_given(parsed->temperature, config.temperature);
  take_given(parsed->top_p, config.top_p);
  take_given(parsed->top_k, config.top_k);
  take_given(parsed->min_p, config.min_p);
  take_given(parsed->repetition_penalty, config.repetition_penalty);
  take_given(parsed->max_new_tokens, config.max_new_tokens);
  take_given(parsed->do_sample, config.do_sample);
  if (!parsed->eos_token_ids.empty()) config.eos_token_ids = parsed->eos_token_ids;
  return config;
}

Result<std::string> parse_reasoning_end(const std::string& text, const ReasoningFormat* format) {
  constexpr const char* kFlag = "--reasoning-config";
  if (text.empty()) return std::string();
  ASSIGN_OR_RETURN(const std::shared_ptr<const Json> object, parse_object(kFlag, text));
  RETURN_IF_ERROR(refuse_unknown(kFlag, *object, {"reasoning_start_str", "reasoning_end_str"}));
  for (const auto& [key, value] : object->items()) {
    if (!value.is_string()) return invalid_argument("{}: {} must be a string, got {}", kFlag, key, value.dump());
  }
  if (format == nullptr || format->is_harmony) {
    return invalid_argument("{}: the model has no reasoning between two marks; see --reasoning-parser", kFlag);
  }
  const std::string begin = object->value("reasoning_start_str", std::string(format->begin));
  const std::string end = object->value("reasoning_end_str", std::string(format->end));
  if (begin != format->begin) {
    return invalid_argument(
        "{}: reasoning_start_str must be '{}', with which the reasoning of --reasoning-parser {} begins, got '{}'",
        kFlag, format->begin, first_name(format->names), begin);
  }
  if (!end.ends_with(format->end) || end.find(format->end) != end.size() - format->end.size()) {
    return invalid_argument("{}: reasoning_end_str must have '{}' at its end and nowhere else, got '{}'", kFlag,
                            format->end, end);
  }
  return end;
}

}  // namespace spate
