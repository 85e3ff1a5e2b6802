// What each endpoint does, given a model that is ready. Called on a prepare thread with the whole request.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "server/frontend.h"
#include "server/http_server.h"
#include "server/model_registry.h"
#include "server/response_json.h"
#include "server/response_store.h"
#include "server/routes.h"

namespace spate {

struct ApiCall {
  std::shared_ptr<Frontend> frontend;  // of the model that the request names; null where names_model() is false
  HttpRequest request;
  std::shared_ptr<HttpResponder> responder;
  bool force_include_usage = false;
  bool force_metrics = false;  // each answer tells its times
  std::shared_ptr<ResponseStore> responses;
  std::vector<ModelCard> all_models;  // for the list of models
};

// Names of a request's fields, for the log.
struct IgnoredFields {
  std::vector<std::string> unknown, no_effect;
};

// Errors are answered by the caller. Nothing: the answer is given or on its way.
using ApiOutcome = std::optional<ApiError>;
// Starts a completion, whose answer `make` writes; `on_run` hears of it once it runs.
using MakeListener = std::function<std::shared_ptr<GenerationListener>(const CompletionRequest&, ResponseInfo,
                                                                       std::shared_ptr<HttpResponder>)>;
ApiOutcome run_completion_request(ApiCall& call, CompletionRequest& request, std::string_view prefix,
                                  const MakeListener& make,
                                  const std::function<void(std::shared_ptr<Generation>)>& on_run = {});
ApiOutcome run_api_call(Endpoint endpoint, ApiCall& call, IgnoredFields& ignored);  // one of the following
ApiOutcome handle_chat_completions(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_completions(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_messages(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_count_tokens(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_count_chat_tokens(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_count_response_tokens(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_responses(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_response(ApiCall& call, const std::string& id);
ApiOutcome handle_input_items(ApiCall& call, const std::string& id);
ApiOutcome handle_delete_response(ApiCall& call, const std::string& id);
ApiOutcome handle_cancel_response(ApiCall& call, const std::string& id);
ApiOutcome handle_tokens_generate(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_llama_completion(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_infill(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_apply_template(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_props(ApiCall& call);
ApiOutcome handle_embeddings(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_llama_embeddings(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_score(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_rerank(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_invocations(ApiCall& call, IgnoredFields& ignored);  // a chat or a completion
ApiOutcome handle_models(ApiCall& call);
ApiOutcome handle_model(ApiCall& call, std::string_view id);
ApiOutcome handle_tokenize(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_detokenize(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_tokenizer_info(ApiCall& call);
ApiOutcome handle_allowed_tokens(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_render_chat(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_render_messages(ApiCall& call, IgnoredFields& ignored);
ApiOutcome handle_render_completion(ApiCall& call, IgnoredFields& ignored);

}  // namespace spate
