// /v1/chat/completions/render, /v1/messages/render and /v1/completions/render: a request as /inference/v1/generate
// takes it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api_handlers.h"
#include "server/json_parse.h"
#include "server/request_table.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

// Fields of completions that are no sampling parameters, or are told by their resolved value.
constexpr std::string_view kLeftOut[] = {"model",
                                         "prompt",
                                         "prompt_token_ids",
                                         "suffix",
                                         "echo",
                                         "add_special_tokens",
                                         "stream",
                                         "stream_options",
                                         "collect_metrics",
                                         "stream_interval",
                                         "max_streaming_response_tokens",
                                         "priority",
                                         "cache_salt",
                                         "request_id",
                                         "rid",
                                         "truncate_prompt_tokens",
                                         "truncation_side",
                                         "max_completion_tokens",
                                         "logprobs",
                                         "top_logprobs",
                                         "best_of",
                                         "return_token_ids",
                                         "return_tokens_as_token_ids",
                                         "repeat_penalty"};

// What the client said, and what became of the defaults.
Json sampling_params_of(const Json& body, const ApiRequest& request, int max_tokens) {
  Json params = Json::object();
  for (const auto& [name, value] : body.items()) {
    const RequestField* field = find_request_field(name, kCompletionRequest);
    const bool is_told = field != nullptr && field->use == FieldUse::kRead && !value.is_null();
    if (is_told && std::ranges::find(kLeftOut, name) == std::end(kLeftOut)) params[name] = value;
  }
  const SamplingParams& sampling = request.sampling;
  params["n"] = sampling.n;
  params["temperature"] = sampling.temperature;
  params["top_p"] = sampling.top_p;
  params["top_k"] = sampling.sampling_top_k;
  params["min_p"] = sampling.min_p;
  params["repetition_penalty"] = sampling.repetition_penalty;
  params["max_tokens"] = max_tokens;
  if (sampling.logprobs) params["logprobs"] = *sampling.logprobs;
  return params;
}

// In place of what the request says about the form of its answer.
void set_tag(const Json& tag, Json& params) {
  for (const RequestField& field : request_fields()) {
    if (field.kinds & kAllowedTokensRequest && find_request_field(field.name, kCompletionRequest) == &field) {
      params.erase(std::string(field.name));
    }
  }
  params["structured_outputs"] = {{"structural_tag", tag}};
}

Json rendered(const ApiCall& call, const Json& body, const ApiRequest& request, const std::vector<int32_t>& token_ids,
              int max_tokens) {
  const bool has_own_id = call.request.has_client_request_id || request.request_id.empty();
  return {{"request_id", has_own_id ? call.request.request_id : request.request_id},
          {"token_ids", token_ids},
          {"features", nullptr},
          {"sampling_params", sampling_params_of(body, request, max_tokens)},
          {"model", request.model.empty() ? call.frontend->model().names.front() : request.model},
          {"stream", request.stream},
          {"stream_options", request.stream ? body.value("stream_options", Json()) : Json()},
          {"cache_salt", request.cache_salt.empty() ? Json() : Json(request.cache_salt)},
          {"priority", request.priority},
          {"kv_transfer_params", nullptr}};
}

// `body`: of the chat, which is the request's or made from it.
ApiOutcome render_chat(ApiCall& call, IgnoredFields& ignored, ApiResult<ChatRequest> request, const Json& body) {
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  if (!call.frontend->serves(request->model)) return model_not_found(request->model, call.frontend->model().names);
  ApiResult<ChatPrompt> prompt = call.frontend->prepare_chat(*request);
  if (!prompt.ok()) return prompt.error();
  if (request->max_reasoning_tokens) {
    return not_supported("thinking_token_budget", "thinking_token_budget has no place in a rendered request");
  }
  const ApiResult<std::shared_ptr<const Json>> tag = call.frontend->tool_tag(*request, *prompt);
  if (!tag.ok()) return tag.error();
  std::vector<std::vector<int32_t>> prompts{std::move(prompt->token_ids)};
  const ApiResult<std::vector<int>> max_tokens = call.frontend->fit_prompts(*request, prompts, "messages");
  if (!max_tokens.ok()) return max_tokens.error();
  Json answer = rendered(call, body, *request, prompts[0], (*max_tokens)[0]);
  if (*tag) set_tag(**tag, answer["sampling_params"]);
  call.responder->respond({.body = answer.dump()});
  return std::nullopt;
}

}  // namespace

ApiOutcome handle_render_chat(ApiCall& call, IgnoredFields& ignored) {
  auto body = parse_json(call.request.body);
  if (!body.ok()) return body.error();
  return render_chat(call, ignored, read_chat_request(**body, call.frontend->parse_limits()), **body);
}

ApiOutcome handle_render_messages(ApiCall& call, IgnoredFields& ignored) {
  Json chat;
  auto request = parse_messages_request(call.request.body, call.frontend->parse_limits(), false, &chat);
  ApiOutcome error = render_chat(call, ignored, std::move(request), chat);
  return error ? with_field_name(std::move(*error), "thinking_token_budget", "thinking.budget_tokens") : error;
}

ApiOutcome handle_render_completion(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<CompletionRequest> request = parse_completion_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  if (!call.frontend->serves(request->model)) return model_not_found(request->model, call.frontend->model().names);
  ApiResult<std::vector<std::vector<int32_t>>> prompts = call.frontend->encode_prompts(*request);
  if (!prompts.ok()) return prompts.error();
  const ApiResult<std::vector<int>> max_tokens = call.frontend->fit_prompts(*request, *prompts, "prompt");
  if (!max_tokens.ok()) return max_tokens.error();
  auto body = parse_json(call.request.body);
  Json list = Json::array();
  for (size_t i = 0; i < prompts->size(); ++i) {
    list.push_back(rendered(call, **body, *request, (*prompts)[i], (*max_tokens)[i]));
  }
  call.responder->respond({.body = list.dump()});
  return std::nullopt;
}

}  // namespace spate
