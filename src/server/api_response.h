// Listeners that turn what the front-end says into the OpenAI protocol's answers, streamed or whole.
#pragma once

#include <memory>

#include "server/api_request.h"
#include "server/frontend.h"
#include "server/http_server.h"
#include "server/response_json.h"
#include "server/routes.h"

namespace spate {

std::shared_ptr<ChatListener> make_chat_response(const ChatRequest& request, ResponseInfo info,
                                                 std::shared_ptr<HttpResponder> responder);
std::shared_ptr<ChatListener> make_messages_response(const ChatRequest& request, ResponseInfo info,
                                                     std::shared_ptr<HttpResponder> responder);
std::shared_ptr<GenerationListener> make_tokens_response(const CompletionRequest& request, ResponseInfo info,
                                                         std::shared_ptr<HttpResponder> responder);
// Anthropic's envelope: {"type":"error","error":{"type":...,"message":...}}
std::string messages_error_json(const ApiError& error);
HttpResponse messages_error_response(const ApiError& error);
HttpResponse error_response(Endpoint endpoint, const ApiError& error);  // in the envelope of its protocol
std::shared_ptr<GenerationListener> make_completion_response(const CompletionRequest& request, ResponseInfo info,
                                                             std::shared_ptr<HttpResponder> responder);

}  // namespace spate
