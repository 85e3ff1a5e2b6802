#include "server/api_handlers.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "server/api_response.h"
#include "server/embedding.h"
#include "server/http_message.h"
#include "server/json_parse.h"
#include "server/random_hex.h"
#include "server/response_events.h"
#include "server/responses.h"
#include "text/unicode.h"

namespace spate {
namespace {

constexpr size_t kDefaultInputItems = 20, kMaxInputItems = 100;  // of a list, as OpenAI's
constexpr int64_t kMaxSequenceNumber = INT32_MAX;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// What the head says of the request: its id, which wins over the body's, and the trace that it is part of.
void take_head(const ApiCall& call, ApiRequest& request) {
  if (call.request.has_client_request_id || request.request_id.empty()) request.request_id = call.request.request_id;
  request.trace_parent = parse_traceparent(call.request.header("traceparent"));
}

ResponseInfo response_info(const ApiCall& call, const ApiRequest& request, std::string_view prefix) {
  const ServingModel& model = call.frontend->model();
  return {.id = std::string(prefix) + request.request_id,
          .created = unix_seconds(),
          .model = request.model.empty() ? model.names.front() : request.model,
          .system_fingerprint = model.system_fingerprint,
          .tokenizer = model.tokenizer.get(),
          .force_include_usage = call.force_include_usage,
          .force_metrics = call.force_metrics};
}

// A client that goes away takes its sequences with it.
void cancel_on_disconnect(const ApiCall& call, std::shared_ptr<Generation> run) {
  call.responder->on_disconnect([run = std::move(run)] { run->cancel(); });
}

using MakeChatListener = std::shared_ptr<ChatListener> (*)(const ChatRequest&, ResponseInfo,
                                                           std::shared_ptr<HttpResponder>);

ApiOutcome run_chat_request(ApiCall& call, ChatRequest& request, std::string_view prefix, MakeChatListener make) {
  if (!call.frontend->serves(request.model)) return model_not_found(request.model, call.frontend->model().names);
  if (call.responder->is_gone()) return std::nullopt;
  take_head(call, request);
  auto listener = make(request, response_info(call, request, prefix), call.responder);
  ApiResult<std::shared_ptr<Generation>> run = call.frontend->chat(request, std::move(listener));
  if (!run.ok()) return run.error();
  cancel_on_disconnect(call, std::move(*run));
  return std::nullopt;
}

// `to_json` makes the answer of the request's vectors.
template <typename Request>
ApiOutcome run_embeddings_request(ApiCall& call, IgnoredFields& ignored, Request& request, std::string_view prefix,
                                  std::string (*to_json)(const Request&, const ResponseInfo&, const Embeddings&)) {
  ignored = {request.unknown_fields, request.no_effect_fields};
  if (!call.frontend->serves(request.model)) return model_not_found(request.model, call.frontend->model().names);
  if (call.responder->is_gone()) return std::nullopt;
  take_head(call, request);
  auto on_done = [request, info = response_info(call, request, prefix), responder = call.responder,
                  to_json](const Embeddings& embeddings) {
    if (!embeddings.error.ok()) return responder->respond(http_response_of(api_error_of(embeddings.error)));
    responder->respond({.body = to_json(request, info, embeddings)});
  };
  ApiResult<std::shared_ptr<EmbeddingRun>> run = call.frontend->embed(request, std::move(on_done));
  if (!run.ok()) return run.error();
  call.responder->on_disconnect([run = std::move(*run)] { run->cancel(); });
  return std::nullopt;
}

void write_model(JsonWriter& json, const ModelCard& model, std::string_view name) {
  json.begin_object()
      .field("id", name)
      .field("object", "model")
      .field("created", model.created)
      .field("owned_by", "spate")
      .field("root", model.root)
      .null_field("parent")
      .field("max_model_len", model.max_model_len)
      .key("permission")
      .begin_array()
      .end_array()
      .end_object();
}

void write_special_token(JsonWriter& json, const char* name, const std::optional<SpecialToken>& token) {
  if (token) {
    json.field(name, token->text);
  } else {
    json.null_field(name);
  }
}

// llama-server's form: a piece that is no text by itself, half a character, is told by its bytes.
void write_pieces(JsonWriter& json, const Tokenizer& tokenizer, const std::vector<int32_t>& token_ids) {
  json.key("tokens").begin_array();
  for (const int32_t id : token_ids) {
    const std::string bytes = tokenizer.token_bytes(id);
    json.begin_object().field("id", id);
    if (is_valid_utf8(bytes)) {
      json.field("piece", bytes);
    } else {
      json.key("piece").begin_array();
      for (const char byte : bytes) json.value(static_cast<int>(static_cast<unsigned char>(byte)));
      json.end_array();
    }
    json.end_object();
  }
  json.end_array();
}

}  // namespace

ApiOutcome run_completion_request(ApiCall& call, CompletionRequest& request, std::string_view prefix,
                                  const MakeListener& make,
                                  const std::function<void(std::shared_ptr<Generation>)>& on_run) {
  if (!call.frontend->serves(request.model)) return model_not_found(request.model, call.frontend->model().names);
  if (call.responder->is_gone()) return std::nullopt;
  take_head(call, request);
  auto listener = make(request, response_info(call, request, prefix), call.responder);
  ApiResult<std::shared_ptr<Generation>> run = call.frontend->complete(request, std::move(listener));
  if (!run.ok()) return run.error();
  if (on_run) on_run(*run);
  cancel_on_disconnect(call, std::move(*run));
  return std::nullopt;
}

ApiOutcome run_api_call(Endpoint endpoint, ApiCall& call, IgnoredFields& ignored) {
  switch (endpoint) {
    case Endpoint::kChat:
      return handle_chat_completions(call, ignored);
    case Endpoint::kCompletions:
      return handle_completions(call, ignored);
    case Endpoint::kMessages:
      return handle_messages(call, ignored);
    case Endpoint::kCountTokens:
      return handle_count_tokens(call, ignored);
    case Endpoint::kCountChatTokens:
      return handle_count_chat_tokens(call, ignored);
    case Endpoint::kCountResponseTokens:
      return handle_count_response_tokens(call, ignored);
    case Endpoint::kResponses:
      return handle_responses(call, ignored);
    case Endpoint::kResponse:
      return handle_response(call, call.request.path.substr(kResponsePrefix.size()));
    case Endpoint::kDeleteResponse:
      return handle_delete_response(call, call.request.path.substr(kResponsePrefix.size()));
    case Endpoint::kCancelResponse:
      return handle_cancel_response(
          call, call.request.path.substr(kResponsePrefix.size(),
                                         call.request.path.size() - kResponsePrefix.size() - kCancelSuffix.size()));
    case Endpoint::kInputItems:
      return handle_input_items(
          call, call.request.path.substr(kResponsePrefix.size(),
                                         call.request.path.size() - kResponsePrefix.size() - kInputItemsSuffix.size()));
    case Endpoint::kTokensGenerate:
      return handle_tokens_generate(call, ignored);
    case Endpoint::kLlamaCompletion:
      return handle_llama_completion(call, ignored);
    case Endpoint::kInfill:
      return handle_infill(call, ignored);
    case Endpoint::kApplyTemplate:
      return handle_apply_template(call, ignored);
    case Endpoint::kProps:
      return handle_props(call);
    case Endpoint::kEmbeddings:
      return handle_embeddings(call, ignored);
    case Endpoint::kLlamaEmbeddings:
      return handle_llama_embeddings(call, ignored);
    case Endpoint::kScore:
      return handle_score(call, ignored);
    case Endpoint::kRerank:
      return handle_rerank(call, ignored);
    case Endpoint::kInvocations:
      return handle_invocations(call, ignored);
    case Endpoint::kModels:
      return handle_models(call);
    case Endpoint::kModel:
      return handle_model(call, call.request.path.substr(kModelPrefix.size()));
    case Endpoint::kTokenize:
      return handle_tokenize(call, ignored);
    case Endpoint::kDetokenize:
      return handle_detokenize(call, ignored);
    case Endpoint::kTokenizerInfo:
      return handle_tokenizer_info(call);
    case Endpoint::kAllowedTokens:
      return handle_allowed_tokens(call, ignored);
    case Endpoint::kRenderChat:
      return handle_render_chat(call, ignored);
    case Endpoint::kRenderMessages:
      return handle_render_messages(call, ignored);
    case Endpoint::kRenderCompletion:
      return handle_render_completion(call, ignored);
    default:
      return http_error(500, "Internal error.");
  }
}

ApiOutcome handle_chat_completions(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<ChatRequest> request = parse_chat_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  return run_chat_request(call, *request, "chatcmpl-", make_chat_response);
}

ApiOutcome handle_completions(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<CompletionRequest> request = parse_completion_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  return run_completion_request(call, *request, "cmpl-", make_completion_response);
}

ApiOutcome handle_messages(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<ChatRequest> request = parse_messages_request(call.request.body, call.frontend->parse_limits(), false);
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  return run_chat_request(call, *request, "msg_", make_messages_response);
}

namespace {

ApiOutcome count_chat_tokens(ApiCall& call, IgnoredFields& ignored, ApiResult<ChatRequest> request) {
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  if (!call.frontend->serves(request->model)) return model_not_found(request->model, call.frontend->model().names);
  ApiResult<ChatPrompt> prompt = call.frontend->prepare_chat(*request);
  if (!prompt.ok()) return prompt.error();
  call.responder->respond({.body = fmt::format(R"({{"input_tokens":{}}})", prompt->token_ids.size())});
  return std::nullopt;
}

}  // namespace

ApiOutcome handle_count_tokens(ApiCall& call, IgnoredFields& ignored) {
  return count_chat_tokens(call, ignored,
                           parse_messages_request(call.request.body, call.frontend->parse_limits(), true));
}

ApiOutcome handle_count_chat_tokens(ApiCall& call, IgnoredFields& ignored) {
  return count_chat_tokens(call, ignored, parse_chat_request(call.request.body, call.frontend->parse_limits()));
}

ApiOutcome handle_count_response_tokens(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<ResponsesRequest> request =
      parse_responses_request(call.request.body, call.frontend->parse_limits(), *call.responses);
  if (!request.ok()) return request.error();
  const ChatRequest& chat = request->chat;
  ignored = {chat.unknown_fields, chat.no_effect_fields};
  if (!call.frontend->serves(chat.model)) return model_not_found(chat.model, call.frontend->model().names);
  ApiResult<ChatPrompt> prompt = call.frontend->prepare_chat(chat);
  if (!prompt.ok()) return by_their_names(prompt.error(), request->places);
  call.responder->respond(
      {.body = fmt::format(R"({{"object":"response.input_tokens","input_tokens":{}}})", prompt->token_ids.size())});
  return std::nullopt;
}

namespace {

// The client's own id where a path can have it and no stored response does: clients send one id with every turn.
std::string response_id(const ApiRequest& request, ResponseStore& store) {
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.';
  };
  const std::string id = "resp_" + request.request_id;
  return std::ranges::all_of(request.request_id, is_plain) && !store.find(id) ? id : "resp_" + random_hex(32);
}

}  // namespace

ApiOutcome handle_responses(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<ResponsesRequest> request =
      parse_responses_request(call.request.body, call.frontend->parse_limits(), *call.responses);
  if (!request.ok()) return request.error();
  ignored = {request->chat.unknown_fields, request->chat.no_effect_fields};
  take_head(call, request->chat);
  ChatRequest chat = request->chat;
  const std::vector<std::string> places = request->places;
  const bool is_background = request->is_background;
  if (!call.frontend->serves(chat.model)) return model_not_found(chat.model, call.frontend->model().names);
  if (call.responder->is_gone()) return std::nullopt;
  ResponseInfo info = response_info(call, chat, "resp_");
  if (std::string id = response_id(chat, *call.responses); id != info.id) {
    info.id = std::move(id);
    chat.answer_id = info.id.substr(std::string_view("resp_").size());
  }
  auto answer = make_responses_answer(std::move(*request), std::move(info), call.responder, call.responses);
  ApiResult<std::shared_ptr<Generation>> run = call.frontend->chat(chat, answer);
  if (!run.ok()) return by_their_names(run.error(), places);
  if (is_background) {
    answer->set_cancel([run = *run] { run->cancel(); });
  } else {
    cancel_on_disconnect(call, std::move(*run));
  }
  return std::nullopt;
}

ApiOutcome handle_response(ApiCall& call, const std::string& id) {
  const std::optional<StoredResponse> found = call.responses->find(id);
  if (!found) return http_error(404, fmt::format("There is no response \"{}\" here.", id.substr(0, 100)));
  const std::string stream = query_value(call.request.query, "stream");
  const std::string starting_after = query_value(call.request.query, "starting_after");
  const bool is_stream = stream == "true" || stream == "1";
  if (!is_stream && !stream.empty() && stream != "false" && stream != "0") {
    return bad_request("stream", fmt::format("stream must be true or false, got {}", stream.substr(0, 100)));
  }
  if (!is_stream && !starting_after.empty()) return bad_request("starting_after", "starting_after needs stream=true");
  int64_t after = -1;
  if (!starting_after.empty()) {
    const char* end = starting_after.data() + starting_after.size();
    const auto [read, error] = std::from_chars(starting_after.data(), end, after);
    if (error != std::errc() || read != end || after < 0 || after > kMaxSequenceNumber) {
      return bad_request("starting_after", fmt::format("starting_after must be an integer in [0, {}], got {}",
                                                       kMaxSequenceNumber, starting_after.substr(0, 100)));
    }
  }
  if (is_stream && call.request.method != "HEAD") {
    found->events->follow(call.responder, after);
  } else {
    call.responder->respond({.body = found->response_json});
  }
  return std::nullopt;
}

ApiOutcome handle_input_items(ApiCall& call, const std::string& id) {
  const std::optional<StoredResponse> found = call.responses->find(id);
  if (!found) return http_error(404, fmt::format("There is no response \"{}\" here.", id.substr(0, 100)));
  const std::string limit = query_value(call.request.query, "limit"), order = query_value(call.request.query, "order");
  size_t most = kDefaultInputItems;
  if (!limit.empty()) {
    const auto [end, error] = std::from_chars(limit.data(), limit.data() + limit.size(), most);
    const bool is_number = error == std::errc() && end == limit.data() + limit.size();
    if (!is_number || most < 1 || most > kMaxInputItems) {
      return bad_request("limit", fmt::format("limit must be in [1, {}], got {}", kMaxInputItems, limit.substr(0, 100)));
    }
  }
  if (!order.empty() && order != "asc" && order != "desc") {
    return bad_request("order", fmt::format("order must be asc or desc, got {}", order.substr(0, 100)));
  }
  std::vector<nlohmann::ordered_json> items(found->input_items->begin(), found->input_items->end());
  if (order != "asc") std::ranges::reverse(items);
  if (const std::string after = query_value(call.request.query, "after"); !after.empty()) {
    const auto last = std::ranges::find_if(items, [&](const auto& item) { return item["id"] == after; });
    if (last == items.end()) return bad_request("after", fmt::format("after names no item: {}", after.substr(0, 100)));
    items.erase(items.begin(), last + 1);
  }
  const bool has_more = items.size() > most;
  items.resize(std::min(items.size(), most));
  nlohmann::ordered_json list{{"object", "list"}, {"data", items}, {"first_id", nullptr}, {"last_id", nullptr}, {"has_more", has_more}};
  if (!items.empty()) {
    list["first_id"] = items.front()["id"];
    list["last_id"] = items.back()["id"];
  }
  call.responder->respond({.body = list.dump()});
  return std::nullopt;
}

ApiOutcome handle_delete_response(ApiCall& call, const std::string& id) {
  const std::optional<StoredResponse> found = call.responses->find(id);
  if (found && found->cancel) return bad_request("", "This response still runs: cancel it before it is deleted.");
  if (!found || !call.responses->erase(id)) {
    return http_error(404, fmt::format("There is no response \"{}\" here.", id.substr(0, 100)));
  }
  call.responder->respond({.body = nlohmann::ordered_json{{"id", id}, {"object", "response"}, {"deleted", true}}.dump()});
  return std::nullopt;
}

ApiOutcome handle_cancel_response(ApiCall& call, const std::string& id) {
  const std::optional<StoredResponse> found = call.responses->find(id);
  if (!found) return http_error(404, fmt::format("There is no response \"{}\" here.", id.substr(0, 100)));
  if (found->cancel) found->cancel();
  const std::optional<StoredResponse> stored = found->cancel ? call.responses->find(id) : found;
  const std::string& response = (stored ? *stored : *found).response_json;
  if (nlohmann::ordered_json::parse(response)["status"] != "cancelled") {  // again: the same answer
    return bad_request("", "Only a background response that still runs can be cancelled.");
  }
  call.responder->respond({.body = response});
  return std::nullopt;
}

ApiOutcome handle_tokens_generate(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<CompletionRequest> request = parse_tokens_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  ApiOutcome error = run_completion_request(call, *request, "generate-tokens-", make_tokens_response);
  return error ? with_field_name(std::move(*error), "prompt", "token_ids") : error;
}

ApiOutcome handle_embeddings(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<EmbeddingsRequest> request = parse_embeddings_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  return run_embeddings_request(call, ignored, *request, "embd-", embeddings_json);
}

ApiOutcome handle_llama_embeddings(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<EmbeddingsRequest> request =
      parse_llama_embeddings_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  return run_embeddings_request(call, ignored, *request, "embd-", llama_embeddings_json);
}

ApiOutcome handle_score(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<ScoreRequest> request = parse_score_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  return run_embeddings_request(call, ignored, *request, "score-", score_json);
}

ApiOutcome handle_rerank(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<ScoreRequest> request = parse_rerank_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  return run_embeddings_request(call, ignored, *request, "rerank-", rerank_json);
}

ApiOutcome handle_invocations(ApiCall& call, IgnoredFields& ignored) {
  auto json = parse_json(call.request.body);
  if (!json.ok()) return json.error();
  const bool is_chat = (**json).is_object() && (**json).contains("messages");
  return is_chat ? handle_chat_completions(call, ignored) : handle_completions(call, ignored);
}

ApiOutcome handle_models(ApiCall& call) {
  JsonWriter json;
  json.begin_object().field("object", "list").key("data").begin_array();
  for (const ModelCard& model : call.all_models) {
    for (const std::string& name : model.names) write_model(json, model, name);
  }
  call.responder->respond({.body = json.end_array().end_object().take()});
  return std::nullopt;
}

ApiOutcome handle_model(ApiCall& call, std::string_view id) {
  std::vector<std::string> names;
  for (const ModelCard& model : call.all_models) {
    names.insert(names.end(), model.names.begin(), model.names.end());
    if (std::ranges::find(model.names, id) == model.names.end()) continue;
    JsonWriter json;
    write_model(json, model, id);
    call.responder->respond({.body = json.take()});
    return std::nullopt;
  }
  return model_not_found(id, names);
}

ApiOutcome handle_tokenize(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<TokenizeRequest> request = parse_tokenize_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  ignored = {request->unknown_fields, request->no_effect_fields};
  if (!call.frontend->serves(request->model)) return model_not_found(request->model, call.frontend->model().names);
  std::string text;
  if (request->prompt) {
    text = std::move(*request->prompt);
  } else {
    ApiResult<std::string> rendered = call.frontend->render_chat(request->chat);
    if (!rendered.ok()) return rendered.error();
    text = std::move(*rendered);
  }
  const Tokenizer& tokenizer = *call.frontend->model().tokenizer;
  const std::vector<int32_t> token_ids = tokenizer.encode(text, {.add_special_tokens = request->add_special_tokens});
  JsonWriter json;
  json.begin_object();
  if (!request->content_dialect) {
    json.field("count", static_cast<int64_t>(token_ids.size())).field("max_model_len", call.frontend->max_model_len());
  }
  if (request->with_pieces) {
    write_pieces(json, tokenizer, token_ids);
  } else {
    write_token_ids(json, "tokens", token_ids);
  }
  if (!request->content_dialect) {
    json.key("token_strs");
    if (request->return_token_strs) {
      json.begin_array();
      for (const int32_t id : token_ids) json.value(tokenizer.token_text(id));
      json.end_array();
    } else {
      json.null();
    }
  }
  call.responder->respond({.body = json.end_object().take()});
  return std::nullopt;
}

ApiOutcome handle_detokenize(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<DetokenizeRequest> request = parse_detokenize_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  ignored.unknown = request->unknown_fields;
  if (!call.frontend->serves(request->model)) return model_not_found(request->model, call.frontend->model().names);
  const std::string text = call.frontend->model().tokenizer->decode(request->token_ids, false);
  JsonWriter json;
  // vLLM's clients read "prompt", llama-server's "content"; their requests are alike.
  json.begin_object().field("prompt", text).field("content", text).end_object();
  call.responder->respond({.body = json.take()});
  return std::nullopt;
}

ApiOutcome handle_tokenizer_info(ApiCall& call) {
  const ServingModel& model = call.frontend->model();
  JsonWriter json;
  json.begin_object().field("tokenizer_class", "PreTrainedTokenizerFast");
  write_special_token(json, "bos_token", model.tokenizer->bos_token());
  write_special_token(json, "eos_token", model.tokenizer->eos_token());
  write_special_token(json, "pad_token", model.tokenizer->pad_token());
  write_special_token(json, "unk_token", model.tokenizer->unk_token());
  json.field("add_bos_token", model.tokenizer->adds_bos());
  json.field("vocab_size", model.tokenizer->vocab_size()).field("model_max_length", call.frontend->max_model_len());
  if (model.chat_template) {
    json.field("chat_template", model.chat_template->source());
  } else {
    json.null_field("chat_template");
  }
  call.responder->respond({.body = json.end_object().take()});
  return std::nullopt;
}

ApiOutcome handle_allowed_tokens(ApiCall& call, IgnoredFields& ignored) {
  ApiResult<AllowedTokensRequest> request =
      parse_allowed_tokens_request(call.request.body, call.frontend->parse_limits());
  if (!request.ok()) return request.error();
  ignored.unknown = request->unknown_fields;
  if (!call.frontend->serves(request->model)) return model_not_found(request->model, call.frontend->model().names);
  ApiResult<AllowedTokens> allowed = call.frontend->allowed_tokens(*request->structured_output, request->token_ids);
  if (!allowed.ok()) return allowed.error();
  JsonWriter json;
  json.begin_object().field("num_allowed", allowed->num_allowed).field("may_end", allowed->may_end);
  write_pieces(json, *call.frontend->model().tokenizer, allowed->first_ids);
  call.responder->respond({.body = json.end_object().take()});
  return std::nullopt;
}

}  // namespace spate
