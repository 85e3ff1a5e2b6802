// OpenAI's Responses: a request as a chat, and what its response object tells back.
#pragma once

#include "server/api_request.h"
#include "server/response_store.h"

namespace spate {

struct ResponsesRequest {
  ChatRequest chat;
  std::shared_ptr<const nlohmann::ordered_json> messages;  // the conversation up to here, without the instructions
  std::shared_ptr<const nlohmann::ordered_json> input_items;  // of `input`, as items with ids
  std::shared_ptr<const nlohmann::ordered_json> told;      // fields of the response object that repeat the request
  bool is_stored = true;
  bool is_background = false;
  std::vector<std::string> places;  // for each message of `chat`, what of the request it was made from
};

// Unknown previous_response_id: 404.
ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const ParseLimits& limits,
                                                    ResponseStore& store);
// An error of the chat, by the names of the request that it was made from.
ApiError by_their_names(ApiError error, const std::vector<std::string>& places);

}  // namespace spate
