#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api_request.h"
#include "server/json_parse.h"
#include "server/request_fields.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAnswerLimits[] = {"max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict"};
constexpr size_t kMaxPromptTokens = size_t{1} << 24;  // of one prompt on the wire; the context length is checked later

bool is_token_id(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX);
}

std::vector<int32_t> token_prompt(FieldReader& fields, std::string_view name, const Json& ids) {
  std::vector<int32_t> token_ids;
  if (ids.size() > kMaxPromptTokens) {
    fields.fail(name, fmt::format("{} has {} tokens, at most {} are taken", name, ids.size(), kMaxPromptTokens));
    return token_ids;
  }
  token_ids.reserve(ids.size());
  for (const Json& id : ids) {
    if (!is_token_id(id)) {
      fields.fail_type(name, "a string, an array of strings, an array of token ids or an array of those", id);
      return token_ids;
    }
    token_ids.push_back(id.get<int32_t>());
  }
  return token_ids;
}

std::optional<ApiError> check_token_ids(const std::vector<int32_t>& token_ids, const ParseLimits& limits) {
  for (const int32_t id : token_ids) {
    if (id >= limits.vocab_size) {
      return bad_request("tokens", fmt::format("tokens contains token id {}, the vocabulary has ids 0 to {}", id,
                                               limits.vocab_size - 1));
    }
  }
  return std::nullopt;
}

void read_prompts(FieldReader& fields, CompletionRequest& request) {
  const Json* prompt = fields.any("prompt");
  const Json* alias = fields.any("prompt_token_ids");
  const char* name = prompt ? "prompt" : "prompt_token_ids";
  if (!prompt) prompt = alias;
  if (fields.has_error()) return;
  if (!prompt) return fields.fail(bad_request("prompt", "prompt is missing", "missing_required_parameter"));
  read_texts_or_tokens(fields, name, *prompt, request.prompts);
}

}  // namespace

void read_texts_or_tokens(FieldReader& fields, std::string_view name, const Json& value,
                          std::vector<TextOrTokens>& out) {
  if (value.is_string()) {
    out.emplace_back(value.get<std::string>());
    return;
  }
  if (!value.is_array()) {
    return fields.fail_type(name, "a string, an array of strings, an array of token ids or an array of those", value);
  }
  if (value.empty()) return fields.fail(name, fmt::format("{} must not be empty", name));
  if (value.front().is_number()) {
    out.emplace_back(token_prompt(fields, name, value));
    return;
  }
  if (value.size() > kMaxPrompts) {
    return fields.fail(name, fmt::format("{} has {} prompts, at most {} are taken", name, value.size(), kMaxPrompts));
  }
  for (const Json& item : value) {
    if (item.is_string()) {
      out.emplace_back(item.get<std::string>());
    } else if (item.is_array()) {
      out.emplace_back(token_prompt(fields, name, item));
    } else {
      return fields.fail_type(name, "a string, an array of strings, an array of token ids or an array of those", item);
    }
  }
}

ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  return read_completion_request(**json, limits);
}

ApiResult<CompletionRequest> parse_tokens_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, kTokensRequest, limits);
  fields.token_ids("token_ids", kMaxPromptTokens);  // no texts, no lists of lists
  if (fields.has_error()) return fields.error();
  const Json* sampling = fields.object("sampling_params");
  Json completion = sampling ? *sampling : Json::object();
  for (const char* name : {"stream", "stream_options", "echo"}) {
    const Json given = completion.value(name, Json());
    completion.erase(name);
    if (given.is_null() || given == false) continue;
    return not_supported("sampling_params",
                         fmt::format("sampling_params takes no {}{}", name,
                                     *name == 'e' ? "; use /v1/completions" : ": it stands beside them"));
  }
  completion.erase("detokenize");  // nothing is
  completion["prompt"] = *fields.array("token_ids");
  completion["return_token_ids"] = true;
  // The 16 of completions holds for those alone.
  const auto is_given = [&](const char* name) { return !completion.value(name, Json()).is_null(); };
  if (std::ranges::none_of(kAnswerLimits, is_given)) completion["max_tokens"] = -1;
  for (const char* name : {"model", "priority", "cache_salt", "request_id", "stream", "stream_options"}) {
    if (const Json* value = fields.any(name)) completion[name] = *value;
  }
  ApiResult<CompletionRequest> request = read_completion_request(completion, limits);
  if (!request.ok()) return with_field_name(request.error(), "prompt", "token_ids");
  const std::vector<std::string> unknown = fields.unknown_fields();
  request->unknown_fields.insert(request->unknown_fields.end(), unknown.begin(), unknown.end());
  return request;
}

ApiResult<CompletionRequest> read_completion_request(const Json& body, const ParseLimits& limits) {
  FieldReader fields(body, kCompletionRequest, limits);
  CompletionRequest request;
  read_common_fields(fields, limits, request);
  read_prompts(fields, request);
  request.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  request.echo = fields.boolean("echo").value_or(false);
  // FastDeploy's suffix is an object of extra parameters, which nobody needs here.
  if (const Json* suffix = fields.any("suffix"); suffix && suffix->is_string() && *suffix != "") {
    fields.fail("suffix", "suffix is not supported");
  }

  // 16 is the API's default, the cause of many cut answers, and what clients expect.
  auto max_tokens = fields.integer("max_tokens");
  if (!max_tokens) max_tokens = fields.integer("max_completion_tokens");
  for (const char* name : {"max_new_tokens", "n_predict"}) {
    const auto most = fields.integer(name);
    if (!max_tokens) max_tokens = most;
  }
  if (max_tokens.value_or(16) >= 0) request.max_tokens = static_cast<int>(max_tokens.value_or(16));
  request.score_only = request.max_tokens == 0;
  if (request.score_only && !request.echo) {
    fields.fail("max_tokens", "max_tokens must be at least 1 when echo is false, got 0");
  }
  fields.integer("logprobs", -1, limits.max_logprobs);
  auto logprobs = read_logprobs_count(fields, "logprobs", limits);
  if (!request.sampling.logprob_token_ids.empty() && !logprobs) logprobs = 0;
  if (logprobs) {
    request.sampling.logprobs = *logprobs;
    if (request.echo) {
      request.sampling.prompt_logprobs = std::max(*logprobs, request.sampling.prompt_logprobs.value_or(0));
    }
  }
  check_sampling(fields, limits, request);
  if (fields.has_error()) return fields.error();
  if (request.prompts.size() * static_cast<size_t>(request.beams.width) > kMaxPrompts) {
    return bad_request("best_of", fmt::format("{} prompts times {} beams are more than {}", request.prompts.size(),
                                              request.beams.width, kMaxPrompts));
  }
  if (request.prompts.size() * static_cast<size_t>(request.sampling.n) > kMaxPrompts) {
    return bad_request("n", fmt::format("{} prompts times n = {} are more than {} choices", request.prompts.size(),
                                        request.sampling.n, kMaxPrompts));
  }
  take_ignored_fields(fields, request);
  return request;
}

namespace {

constexpr std::initializer_list<const char*> kConversationFields = {"documents",
                                                                    "add_generation_prompt",
                                                                    "continue_final_message",
                                                                    "chat_template_kwargs",
                                                                    "reasoning_effort",
                                                                    "enable_thinking",
                                                                    "chat_template",
                                                                    "tools",
                                                                    "tool_choice",
                                                                    "parallel_tool_calls",
                                                                    "reasoning",
                                                                    "thinking"};

// /tokenize takes a text under one of two names, or a conversation.
void check_one_text(FieldReader& fields) {
  std::string given;
  for (const char* name : {"prompt", "content", "messages"}) {
    if (!fields.any(name)) continue;
    if (!given.empty())
      return fields.fail(name, fmt::format("{} and {} exclude each other; give one of them", given, name));
    given = name;
  }
}

void note_unused(FieldReader& fields, std::initializer_list<const char*> names, std::vector<std::string>& unused) {
  for (const char* name : names) {
    if (fields.any(name)) unused.emplace_back(name);
  }
}

}  // namespace

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, kTokenizeRequest, limits);
  TokenizeRequest request;
  request.model = fields.string("model").value_or("");
  request.prompt = fields.string("prompt");
  if (!request.prompt) {
    request.prompt = fields.string("content");
    request.content_dialect = request.prompt.has_value();
  }
  const bool is_chat = !request.prompt && fields.any("messages");
  if (is_chat) read_conversation(fields, request.chat);
  check_one_text(fields);
  if (!is_chat) note_unused(fields, kConversationFields, request.no_effect_fields);
  if (request.content_dialect) note_unused(fields, {"return_token_strs"}, request.no_effect_fields);
  if (!fields.has_error() && !request.prompt && !is_chat) {
    return bad_request("prompt", "prompt or messages is missing", "missing_required_parameter");
  }
  const bool default_special = !is_chat && !request.content_dialect;
  auto add_special = fields.boolean("add_special_tokens");
  if (!add_special) add_special = fields.boolean("add_special");
  request.add_special_tokens = add_special.value_or(default_special);
  request.return_token_strs = fields.boolean("return_token_strs").value_or(false);
  request.with_pieces = fields.boolean("with_pieces").value_or(false);
  if (!fields.boolean("parse_special").value_or(true)) {
    fields.fail(
        not_supported("parse_special", "parse_special must be true: special tokens in a text are read as such"));
  }
  request.unknown_fields = fields.unknown_fields();
  if (fields.has_error()) return fields.error();
  return request;
}

ApiResult<DetokenizeRequest> parse_detokenize_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, kDetokenizeRequest, limits);
  DetokenizeRequest request;
  request.model = fields.string("model").value_or("");
  request.token_ids = fields.token_ids("tokens", kMaxPromptTokens);
  request.unknown_fields = fields.unknown_fields();
  if (fields.has_error()) return fields.error();
  if (!fields.any("tokens")) return bad_request("tokens", "tokens is missing", "missing_required_parameter");
  if (auto error = check_token_ids(request.token_ids, limits)) return *error;
  return request;
}

ApiResult<AllowedTokensRequest> parse_allowed_tokens_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, kAllowedTokensRequest, limits);
  AllowedTokensRequest request;
  request.model = fields.string("model").value_or("");
  request.token_ids = fields.token_ids("tokens", kMaxPromptTokens);
  request.structured_output = read_structured_output(fields);
  request.unknown_fields = fields.unknown_fields();
  if (fields.has_error()) return fields.error();
  if (!request.structured_output) {
    return bad_request("structured_outputs",
                       "structured_outputs, or another field that says what the answer must look like, is missing",
                       "missing_required_parameter");
  }
  if (auto error = check_token_ids(request.token_ids, limits)) return *error;
  return request;
}

}  // namespace spate
