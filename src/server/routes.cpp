#include "server/routes.h"

#include <string>
#include <vector>

#include "server/request_table.h"

namespace spate {
namespace {

// Clients mis-set their base URL with and without /v1; both are served.
constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "POST", Endpoint::kChat, true, "Answers a conversation.", kChatRequest},
    {"/chat/completions", "POST", Endpoint::kChat, true, "", kChatRequest},
    {"/v1/completions", "POST", Endpoint::kCompletions, true, "Continues a text.", kCompletionRequest},
    {"/completions", "POST", Endpoint::kCompletions, true, "", kCompletionRequest},
    {"/v1/messages", "POST", Endpoint::kMessages, true, "Anthropic's Messages.", kMessagesRequest},
    {"/v1/messages/count_tokens", "POST", Endpoint::kCountTokens, true, "The tokens of such a prompt.",
     kCountTokensRequest},
    {"/v1/responses", "POST", Endpoint::kResponses, true, "OpenAI's Responses.", kResponsesRequest},
    {"/responses", "POST", Endpoint::kResponses, true, "", kResponsesRequest},
    {"/v1/responses/input_tokens", "POST", Endpoint::kCountResponseTokens, true, "The tokens of such an input.",
     kResponsesRequest},
    {"/inference/v1/generate", "POST", Endpoint::kTokensGenerate, true, "Token ids in, token ids out.", kTokensRequest},
    {"/completion", "POST", Endpoint::kLlamaCompletion, true,
     "llama-server's own: the fields of /v1/completions, `n_probs`, `return_tokens`, `response_fields`, `n_indent` and "
     "`t_max_predict_ms`; prompts that mix texts and token ids; without a limit the answer goes on to the end of the "
     "context. The end of the answer has `generation_settings` and `prompt`."},
    {"/infill", "POST", Endpoint::kInfill, true,
     "llama-server's: what stands between `input_prefix` and `input_suffix`, given the files of `input_extra` "
     "(`filename`, `text`) and the beginning `prompt`; otherwise as /completion. 400 where the model has no tokens for "
     "it."},
    {"/v1/embeddings", "POST", Endpoint::kEmbeddings, true, "Vectors of texts, from the model's hidden states.",
     kEmbeddingsRequest},
    {"/embeddings", "POST", Endpoint::kEmbeddings, true, "", kEmbeddingsRequest},
    {"/embedding", "POST", Endpoint::kLlamaEmbeddings, true,
     "llama-server's: the fields of /v1/embeddings, `content` as `input` and `embd_normalize` (-1: none, 2: length 1); "
     "a list of vectors."},
    {"/v1/score", "POST", Endpoint::kScore, true, "The cosine of the embeddings of two texts, for each pair.",
     kScoreRequest},
    {"/score", "POST", Endpoint::kScore, true, "", kScoreRequest},
    {"/v1/rerank", "POST", Endpoint::kRerank, true,
     "Documents by the cosine of their embeddings and a query's, best first.", kRerankRequest},
    {"/v2/rerank", "POST", Endpoint::kRerank, true, "", kRerankRequest},
    {"/rerank", "POST", Endpoint::kRerank, true, "", kRerankRequest},
    {"/reranking", "POST", Endpoint::kRerank, true, "", kRerankRequest},
    {"/v1/reranking", "POST", Endpoint::kRerank, true, "", kRerankRequest},
    {"/invocations", "POST", Endpoint::kInvocations, true, "A chat or a completion, by its fields; SageMaker's path."},
    {"/v1/models", "GET", Endpoint::kModels, true, "The served names."},
    {"/models", "GET", Endpoint::kModels, true, ""},
    {"/tokenize", "POST", Endpoint::kTokenize, true, "Token ids of a text or a conversation.", kTokenizeRequest},
    {"/v1/tokenize", "POST", Endpoint::kTokenize, true, "", kTokenizeRequest},
    {"/detokenize", "POST", Endpoint::kDetokenize, true, "The text of token ids.", kDetokenizeRequest},
    {"/v1/detokenize", "POST", Endpoint::kDetokenize, true, "", kDetokenizeRequest},
    {"/tokenizer_info", "GET", Endpoint::kTokenizerInfo, true, "Special tokens and the chat template."},
    {"/apply-template", "POST", Endpoint::kApplyTemplate, true,
     "The text of a conversation's prompt; llama-server's path. Fields as /tokenize."},
    {"/props", "GET", Endpoint::kProps, true,
     "Context length, sampling defaults, chat template and ends of texts, as llama-server tells them."},
    {"/slots", "GET", Endpoint::kSlots, true,
     "llama-server's: what runs, in as many slots as `--max-num-seqs`; with `fail_on_no_slot=1` 503 when none is free. "
     "Takes ?model=. 404 with `--no-slots`."},
    {"/lora-adapters", "GET", Endpoint::kLoraAdapters, true,
     "llama-server's: an empty list, as there are no adapters."},
    {"/lora-adapters", "POST", Endpoint::kSetLoraAdapters, true,
     "llama-server's: a list of `id` and `scale`. An empty one and scales of 0 change nothing; 400 for others."},
    {"/v1/chat/completions/input_tokens", "POST", Endpoint::kCountChatTokens, true,
     "The tokens of such a prompt; llama-server's path.", kChatRequest},
    {"/chat/completions/input_tokens", "POST", Endpoint::kCountChatTokens, true, "", kChatRequest},
    {"/v1/chat/completions/render", "POST", Endpoint::kRenderChat, true,
     "The token ids of a chat's prompt and its `sampling_params`, as /inference/v1/generate takes them. What `tools` "
     "and "
     "a thinking budget demand is not among them.",
     kChatRequest},
    {"/v1/messages/render", "POST", Endpoint::kRenderMessages, true, "The same of Anthropic's Messages.",
     kMessagesRequest},
    {"/v1/completions/render", "POST", Endpoint::kRenderCompletion, true, "The same of each prompt of a completion.",
     kCompletionRequest},
    {"/abort_requests", "POST", Endpoint::kAbortRequests, true, "Ends requests that generate, by their ids.",
     kAbortRequest},
    {"/v1/abort_requests", "POST", Endpoint::kAbortRequests, true, "", kAbortRequest},
    {"/", "GET", Endpoint::kRoot, false,
     "The web page; a line of text for clients that do not ask for HTML, and with --no-ui."},
    {"/health", "GET", Endpoint::kHealth, false, "200 when ready; 503 while loading, draining or dead."},
    {"/v1/health", "GET", Endpoint::kHealth, false, ""},
    {"/ping", "GET", Endpoint::kHealth, false, ""},
    {"/livez", "GET", Endpoint::kLivez, false, "200 unless the engine is stuck or dead."},
    {"/load", "GET", Endpoint::kLoad, true, "Requests in flight."},
    {"/version", "GET", Endpoint::kServerVersion, false, "The server's version."},
    {"/openapi.json", "GET", Endpoint::kOpenApi, false, "This API as an OpenAPI document."},
    {"/config", "GET", Endpoint::kConfig, true,
     "Every setting with its source; facts about the model. This and /debug take ?model=; default: the first."},
    {"/debug/live", "GET", Endpoint::kLive, true,
     "Server-sent events: what runs, waits and lies in the KV cache, four times a second."},
    {"/debug/steps", "GET", Endpoint::kSteps, true, "The last 300 steps, a line each."},
    {"/debug/log", "GET", Endpoint::kLog, true,
     "The last 1,000 lines of the log; `after=N` those behind number N, `level` info, warning or error and above."},
    {"/debug/allowed_tokens", "POST", Endpoint::kAllowedTokens, true,
     "The tokens that a structured output allows after those of an answer so far: `num_allowed`, the first 200 with "
     "their "
     "text, and `may_end`.",
     kAllowedTokensRequest},
    {"/debug/abort", "POST", Endpoint::kAbort, true, "Ends the request whose `id` of /debug/live the body has."},
    {"/admin/models", "GET", Endpoint::kAdminModels, true,
     "Every model with its state: loading and how far, ready, unloading, idle; the requests that it has and that wait "
     "for it. 403 "
     "without `--enable-admin`, as the next ones."},
    {"/admin/models/load", "POST", Endpoint::kAdminLoad, true,
     "Loads a model beside the others: `name`, `path`, `alias` (one or a list), and the keys of `--model`. Answers "
     "when it is "
     "ready, or why it is not."},
    {"/admin/models/unload", "POST", Endpoint::kAdminUnload, true,
     "Ends the model `name` and frees its memory. Its requests may end first, within `timeout` seconds (default: "
     "`--shutdown-timeout`)."},
    {"/reset_prefix_cache", "POST", Endpoint::kResetPrefixCache, true,
     "Forgets every cached prompt beginning. This and the next three ask for `--enable-admin`, and take ?model=; "
     "default: all."},
    {"/sleep", "POST", Endpoint::kSleep, true,
     "Frees the memory of the model until /wake_up. Its requests end with an error; with ?mode=wait they may end "
     "first, "
     "within `--shutdown-timeout`."},
    {"/wake_up", "POST", Endpoint::kWakeUp, true, "Loads it again; answers when it is ready."},
    {"/is_sleeping", "GET", Endpoint::kIsSleeping, true, "Whether any sleeps."},
    {"/metrics", "GET", Endpoint::kMetrics, false, "Prometheus metrics under vLLM's names."},
};
constexpr Route kWebPageRoute{"/ui/{file}", "GET", Endpoint::kWebPage, false, "Parts of the web page."};
// Paths with an id in them.
constexpr Route kIdRoutes[] = {
    {"/v1/models/{id}", "GET", Endpoint::kModel, true, "One served name; it may contain slashes."},
    {"/v1/responses/{id}", "GET", Endpoint::kResponse, true,
     "A stored response; with `stream=true` its events, with `starting_after=N` those behind number N."},
    {"/v1/responses/{id}", "DELETE", Endpoint::kDeleteResponse, true, "Forgets a stored response."},
    {"/v1/responses/{id}/cancel", "POST", Endpoint::kCancelResponse, true, "Ends a response in the background."},
    {"/v1/responses/{id}/input_items", "GET", Endpoint::kInputItems, true,
     "The items that the request of a stored response brought; `limit`, `order` (asc, desc), `after`."},
};

constexpr ForeignPath kForeignPaths[] = {
    {"/v1/v1/*", "OpenAI", "The base URL ends with /v1, and the path begins with it: take one of them away."},
    {"/slots/*", "llama-server",
     "Slots are not saved, restored or erased; POST /reset_prefix_cache empties the cache."},
    {"/v1/chat/completions/control", "llama-server", "Use thinking_token_budget of the chat, or /abort_requests."},
    {"/generate", "SGLang", "Use /v1/completions, or /inference/v1/generate for token ids."},
    {"/generate_stream", "TGI", "Use /v1/completions with \"stream\": true."},
    {"/get_model_info", "SGLang", "Use /v1/models and /config."},
    {"/get_server_info", "SGLang", "Use /config."},
    {"/server_info", "vLLM, SGLang", "Use /config."},
    {"/get_load", "SGLang", "Use /load, or /metrics."},
    {"/health_generate", "SGLang", "Use /health, or /livez, which fails when the engine makes no progress."},
    {"/flush_cache", "SGLang", "Use /reset_prefix_cache."},
    {"/abort_request", "SGLang", "Use /abort_requests."},
    {"/pause", "vLLM", "Use /sleep?mode=wait."},
    {"/resume", "vLLM", "Use /wake_up."},
    {"/encode", "SGLang", "Use /v1/embeddings."},
    {"/embed", "TEI", "Use /v1/embeddings."},
    {"/pooling", "vLLM", "Use /v1/embeddings."},
    {"/classify", "vLLM, SGLang",
     "Models here make text and vectors: there are /v1/embeddings, /v1/score and /v1/rerank."},
    {"/v1/reward", "FastDeploy",
     "Models here make text and vectors: there are /v1/embeddings, /v1/score and /v1/rerank."},
    {"/v1/load_lora_adapter", "vLLM", "There are no adapters."},
    {"/v1/unload_lora_adapter", "vLLM", "There are no adapters."},
    {"/v1/responses/compact", "OpenAI", "Nothing is compacted; see truncation of /v1/responses."},
    {"/v1/conversations*", "OpenAI", "Use previous_response_id of /v1/responses."},
    {"/v1/audio/*", "OpenAI", "Models here read and make text only."},
    {"/v1/images/*", "OpenAI", "Models here read and make text only."},
    {"/v1/files*", "OpenAI", "Files are not kept; send each request by itself."},
    {"/v1/batches*", "OpenAI", "Batches are not kept; send each request by itself: they run together."},
    {"/v1/messages/batches*", "Anthropic", "Batches are not kept; send each request by itself: they run together."},
    {"/v1/complete", "Anthropic", "Use /v1/messages."},
    {"/v1/engines/*", "OpenAI", "Use /v1/completions."},
    {"/openai/deployments/*", "Azure", "Use the base URL .../v1 with a client of OpenAI's API."},
    {"/api/chat", "Ollama", "Use /v1/chat/completions: the base URL ends with /v1."},
    {"/api/generate", "Ollama", "Use /v1/completions: the base URL ends with /v1."},
    {"/api/tags", "Ollama", "Use /v1/models."},
    {"/docs", "vLLM", "Use /openapi.json."},
    {"/redoc", "vLLM", "Use /openapi.json."},
};

// Of the routes of the same path.
std::vector<std::string_view> methods_of(const Route& route) {
  std::vector<std::string_view> methods;
  for (const std::span<const Route> list : {std::span<const Route>(kRoutes), std::span<const Route>(kIdRoutes)}) {
    for (const Route& other : list) {
      if (std::string_view(other.path) == route.path) methods.emplace_back(other.method);
    }
  }
  if (methods.empty()) methods.emplace_back(route.method);
  return methods;
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }
std::span<const Route> id_routes() { return kIdRoutes; }

const Route* find_route(std::string_view path, std::string_view method) {
  const Route* found = nullptr;
  for (const Route& route : kRoutes) {
    if (path != route.path) continue;
    if (takes_method(route, method)) return &route;
    if (found == nullptr) found = &route;
  }
  if (found != nullptr) return found;
  if (path.starts_with(kWebPagePrefix)) return &kWebPageRoute;
  const auto has_id = [&](std::string_view prefix) { return path.starts_with(prefix) && path.size() > prefix.size(); };
  if (has_id(kModelPrefix)) return &kIdRoutes[0];
  if (!has_id(kResponsePrefix)) return nullptr;
  if (path.ends_with(kCancelSuffix)) return &kIdRoutes[3];
  if (path.ends_with(kInputItemsSuffix)) return &kIdRoutes[4];
  // What OpenAI has there beside ids and is not built here: /compact.
  const std::string_view id = path.substr(kResponsePrefix.size());
  if (id.find('/') != std::string_view::npos || id == "compact") return nullptr;
  return &kIdRoutes[method == "DELETE" ? 2 : 1];
}

std::span<const ForeignPath> foreign_paths() { return kForeignPaths; }

const ForeignPath* find_foreign_path(std::string_view path) {
  for (const ForeignPath& foreign : kForeignPaths) {
    const bool is_prefix = foreign.path.ends_with('*');
    if (is_prefix ? path.starts_with(foreign.path.substr(0, foreign.path.size() - 1)) : path == foreign.path)
      return &foreign;
  }
  return nullptr;
}

bool takes_method(const Route& route, std::string_view method) {
  return method == route.method || (method == "HEAD" && std::string_view(route.method) == "GET");
}

std::string allowed_methods(const Route& route) {
  std::string methods;
  for (const std::string_view method : methods_of(route)) {
    methods += std::string(method) + (method == "GET" ? ", HEAD, " : ", ");
  }
  return methods + "OPTIONS";
}

std::string taken_methods(const Route& route) {
  std::string methods;
  for (const std::string_view method : methods_of(route))
    methods += (methods.empty() ? "" : " and ") + std::string(method);
  return methods;
}

}  // namespace spate
