#include "server/llama_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/json_parse.h"
#include "server/request_table.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxResponseFields = 64;
constexpr size_t kMaxInfillFiles = 1024;
constexpr double kMostIndent = 1e9;  // no line has more

bool is_mixed(const Json& list) {
  const auto has = [&](bool (*is_kind)(const Json&)) { return std::ranges::any_of(list, is_kind); };
  return has([](const Json& item) { return item.is_number(); }) &&
         has([](const Json& item) { return item.is_string(); });
}

// One prompt: a text, token ids, both mixed, or an object that has a text. What is wrong stays, and is refused as one
// of /v1/completions.
ApiResult<Json> plain_prompt(const Json& prompt, const EncodeText& encode) {
  if (prompt.is_object() && prompt.contains("prompt_string")) {
    if (const Json media = prompt.value("multimodal_data", Json::array()); !media.empty()) {
      return not_supported("prompt", "prompt has multimodal_data: this model reads text only");
    }
    return Json(prompt["prompt_string"]);
  }
  if (!prompt.is_array() || !is_mixed(prompt)) return prompt;
  Json token_ids = Json::array();
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (!prompt[i].is_string()) {
      token_ids.push_back(prompt[i]);
      continue;
    }
    const ApiResult<std::vector<int32_t>> piece = encode(prompt[i].get<std::string>(), i == 0);
    if (!piece.ok()) return piece.error();
    for (const int32_t id : *piece) token_ids.push_back(static_cast<uint32_t>(id));
  }
  return token_ids;
}

// {"5": 1, "word": -1} to [[5, 1], ["word", -1]].
void list_biases(Json& completion) {
  const auto found = completion.find("logit_bias");
  if (found == completion.end() || !found->is_object()) return;
  Json list = Json::array();
  for (const auto& [key, value] : found->items()) {
    const bool is_id = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    list.push_back(Json::array({is_id ? Json(std::stoi(key)) : Json(key), value}));
  }
  *found = std::move(list);
}

}  // namespace

std::optional<ApiError> take_llama_options(Json& completion, LlamaOptions& options) {
  const auto take = [&](const char* name) {
    Json value = completion.value(name, Json());
    completion.erase(name);
    return value;
  };
  for (const char* name : {"n_predict", "min_p", "grammar"}) {
    if (completion.contains(name)) options.asked[name] = completion[name];
  }
  if (const Json names = take("response_fields"); !names.is_null()) {
    const bool is_list = names.is_array() && names.size() <= kMaxResponseFields &&
                         std::ranges::all_of(names, [](const Json& name) { return name.is_string(); });
    if (!is_list) {
      return bad_request("response_fields",
                         fmt::format("response_fields must be an array of at most {} strings", kMaxResponseFields));
    }
    options.response_fields = names.get<std::vector<std::string>>();
    options.picks_fields = !names.empty();
  }
  if (const Json indent = take("n_indent"); !indent.is_null()) {
    if (!has_type(indent, FieldType::kInteger) || indent.get<double>() < 0) {
      return bad_request("n_indent",
                         fmt::format("n_indent must be an integer of at least 0, got {}", json_excerpt(indent)));
    }
    options.min_indent = static_cast<int64_t>(std::min(indent.get<double>(), kMostIndent));
  }
  if (const Json limit = take("t_max_predict_ms"); !limit.is_null()) {
    if (!limit.is_number()) {
      return bad_request("t_max_predict_ms",
                         fmt::format("t_max_predict_ms must be a number, got {}", json_excerpt(limit)));
    }
    options.max_predict_ms = std::max(0.0, limit.get<double>());
  }
  return std::nullopt;
}

std::optional<ApiError> make_prompts_plain(Json& completion, const EncodeText& encode) {
  const auto found = completion.find("prompt");
  if (found == completion.end()) return std::nullopt;
  const bool is_batch = found->is_array() && !is_mixed(*found) && !found->empty() && !found->front().is_number();
  if (!is_batch) {
    ApiResult<Json> plain = plain_prompt(*found, encode);
    if (!plain.ok()) return plain.error();
    *found = std::move(*plain);
    return std::nullopt;
  }
  for (Json& prompt : *found) {
    ApiResult<Json> plain = plain_prompt(prompt, encode);
    if (!plain.ok()) return plain.error();
    prompt = std::move(*plain);
  }
  return std::nullopt;
}

ApiResult<CompletionRequest> read_llama_completion(Json completion, const ParseLimits& limits, LlamaOptions& options) {
  const auto is_given = [&](const char* name) { return !completion.value(name, Json()).is_null(); };
  for (const char* name : {"echo", "suffix", "stream_options", "return_tokens_as_token_ids", "use_beam_search"}) {
    const Json value = completion.value(name, Json());
    if (value.is_null() || value == false || value == "") continue;
    return not_supported(name, fmt::format("{} is not taken by /completion; use /v1/completions", name));
  }
  const auto rename = [&](const char* name, const char* ours) {
    if (const Json value = completion.value(name, Json()); !value.is_null()) completion[ours] = value;
    completion.erase(name);
  };
  if (completion.value("n_probs", Json()) == 0) completion.erase("n_probs");
  rename("n_probs", "logprobs");
  rename("return_tokens", "return_token_ids");
  list_biases(completion);
  if (const Json temperature = completion.value("temperature", Json()); temperature.is_number() && temperature < 0) {
    completion["temperature"] = 0;  // greedy, as there
  }
  if (completion.value("n_predict", Json()) == 0 && !is_given("max_tokens")) {
    options.is_prefill_only = true;
    completion["n_predict"] = 1;
  }
  if (!is_given("max_tokens") && !is_given("max_completion_tokens") && !is_given("max_new_tokens") &&
      !is_given("n_predict")) {
    completion["max_tokens"] = -1;
  } else if (completion.value("n_predict", Json()) == -1 && !is_given("max_tokens")) {
    completion["max_tokens"] = -1;
  }
  ApiResult<CompletionRequest> request = read_completion_request(completion, limits);
  if (request.ok()) return request;
  return with_field_name(with_field_name(request.error(), "logprobs", "n_probs"), "return_token_ids", "return_tokens");
}

ApiResult<InfillText> take_infill_text(Json& body) {
  InfillText text;
  const std::pair<const char*, std::string*> parts[] = {
      {"input_prefix", &text.prefix}, {"input_suffix", &text.suffix}, {"prompt", &text.begun}};
  for (const auto& [name, part] : parts) {
    const Json value = body.value(name, Json());
    body.erase(name);
    if (value.is_null() && part == &text.begun) continue;
    if (value.is_null()) return bad_request(name, fmt::format("{} is missing", name), "missing_required_parameter");
    if (!value.is_string()) {
      return bad_request(name, fmt::format("{} must be a string, got {}", name, json_excerpt(value)), "invalid_type");
    }
    *part = value.get<std::string>();
  }
  const Json extra = body.value("input_extra", Json::array());
  body.erase("input_extra");
  const auto is_text = [](const Json& file, const char* name, bool is_needed) {
    const Json value = file.is_object() ? file.value(name, Json()) : Json(0);
    return value.is_string() || (value.is_null() && !is_needed);
  };
  const bool is_list = extra.is_null() || (extra.is_array() && extra.size() <= kMaxInfillFiles);
  if (!is_list || !std::ranges::all_of(extra, [&](const Json& file) {
        return is_text(file, "text", true) && is_text(file, "filename", false);
      })) {
    return bad_request("input_extra",
                       fmt::format("input_extra must be an array of at most {} objects with text and, if "
                                   "you like, filename, both strings",
                                   kMaxInfillFiles));
  }
  for (const Json& file : extra) {
    const Json name = file.value("filename", Json());
    text.extra.push_back({.name = name.is_null() ? "file" : name.get<std::string>(), .text = file["text"]});
  }
  return text;
}

}  // namespace spate
