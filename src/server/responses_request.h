// OpenAI's Responses: a request as a chat, and what its response object tells back.
#pragma once

#include "server/api_request.h"
#include "server/response_store.h"

namespace spate {

struct ResponsesRequest {
  ChatRequest chat;
  std::shared_ptr<const nlohmann::ordered_json> messages;  // the conversation up to here, without the instructions
  std::shared_ptr<const nlohmann::ordered_json> told;      // fields of the response object that repeat the request
  bool is_stored = true;
  bool is_background = false;
};

// Unknown previous_response_id: 404.
ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const ParseLimits& limits,
                                                    ResponseStore& store);

}  // namespace spate
